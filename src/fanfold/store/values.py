"""Values by hash, and which of them are outputs of steps: rows of one table.

Rules
* A value is stored once, under its hash. An output that nobody stored before is one row: what it is and whose
  it is. One whose value is stored already has a row without content, that names it in `output`.
* Rows are numbered in order of arrival. A number that was given to an output is never given to another: a
  deleted tree leaves one row that says so behind all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from fanfold.store.protocol import DELETED, Batch, OutputRow

_INSERT = "INSERT OR IGNORE INTO blobs (hash, content) VALUES (?, ?)"
_INSERT_OUTPUT = (
    "INSERT INTO blobs (hash, output, run_id, root_run_id, path, role, status, at, content)"
    " SELECT iif(known, NULL, ?1), iif(known, ?1, NULL), ?2, ?3, ?4, ?5, ?6, ?7, iif(known, NULL, ?8)"
    " FROM (SELECT ?8 IS NULL OR EXISTS (SELECT 1 FROM blobs WHERE hash = ?1) AS known)"
)
_SELECT = (
    "SELECT id, run_id, root_run_id, path, role, status, coalesce(hash, output), at FROM blobs"
    " WHERE id > ? AND status IS NOT NULL ORDER BY id LIMIT ?"
)


def write(db: apsw.Connection, batch: Batch) -> None:
    """Store the values of a batch and note its outputs; runs inside a write transaction."""
    fresh = dict(batch.blobs)
    outputs = [(*_bound(row), fresh.pop(row.blob, None)) for row in batch.outputs]
    if fresh:
        db.executemany(_INSERT, fresh.items())
    if outputs:
        db.executemany(_INSERT_OUTPUT, outputs)


def read_outputs(db: apsw.Connection, after: int, limit: int) -> list[tuple[int, OutputRow]]:
    """Outputs in order of arrival with their running number."""
    rows: Sequence[tuple[Any, ...]] = db.execute(_SELECT, (after, limit)).fetchall()
    return [
        (
            number,
            OutputRow(
                run_id=run_id,
                root_run_id=root,
                path=path,
                role=role,
                status=status,
                blob=blob,
                at=at,
            ),
        )
        for number, run_id, root, path, role, status, blob, at in rows
    ]


def forget_outputs(db: apsw.Connection, root: str) -> None:
    """Note that the outputs of a tree are gone; their values stay, for whoever else refers to them."""
    if db.execute("SELECT 1 FROM blobs WHERE root_run_id = ? AND status <> ? LIMIT 1", (root, DELETED)).get:
        deleted = OutputRow(run_id=root, root_run_id=root, path="", status=DELETED, blob="", at=0)
        db.execute(_INSERT_OUTPUT, (*_bound(deleted), None))  # first: numbers that are free are used again
        before = root, db.last_insert_rowid()
        db.execute("DELETE FROM blobs WHERE root_run_id = ? AND id < ? AND hash IS NULL", before)
        db.execute(
            "UPDATE blobs SET run_id = NULL, root_run_id = NULL, path = NULL, role = NULL, status = NULL,"
            " at = NULL WHERE root_run_id = ? AND id < ?",
            before,
        )


def _bound(row: OutputRow) -> tuple[str, str, str, str, str, str, int]:
    return row.blob, row.run_id, row.root_run_id, row.path, row.role, row.status, row.at
