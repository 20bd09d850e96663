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

_OF_OUTPUT = "run_id, root_run_id, path, role, status, at"
_INSERT = "INSERT OR IGNORE INTO blobs (hash, content) VALUES (?, ?)"
_INSERT_NEW = f"INSERT OR IGNORE INTO blobs ({_OF_OUTPUT}, hash, content) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - constants only
_INSERT_KNOWN = f"INSERT INTO blobs ({_OF_OUTPUT}, output) VALUES (?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - constants only
_SELECT = (
    "SELECT id, run_id, root_run_id, path, role, status, coalesce(hash, output), at FROM blobs"
    " WHERE id > ? AND status IS NOT NULL ORDER BY id LIMIT ?"
)


def write(db: apsw.Connection, batch: Batch) -> None:
    """Store the values of a batch and note its outputs; runs inside a write transaction."""
    fresh = dict(batch.blobs)
    new: list[tuple[object, ...]] = []
    known: list[tuple[object, ...]] = []
    for row in batch.outputs:
        content = fresh.pop(row.blob, None)
        if content is None:
            known.append((*_bound(row), row.blob))
        else:
            new.append((*_bound(row), row.blob, content))
    if new:
        before = db.total_changes()
        db.executemany(_INSERT_NEW, new)
        if db.total_changes() - before < len(new):  # another run said the same
            known += [row[:7] for row in new if not _is_there(db, row)]
    if known:
        db.executemany(_INSERT_KNOWN, known)
    if fresh:
        db.executemany(_INSERT, fresh.items())


def _is_there(db: apsw.Connection, row: tuple[object, ...]) -> bool:
    query = "SELECT 1 FROM blobs WHERE hash = ? AND run_id = ? AND path = ? AND at = ?"
    run_id, _, path, _, _, at, blob, _ = row
    return db.execute(query, (blob, run_id, path, at)).get is not None


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
        db.execute(_INSERT_KNOWN, (*_bound(deleted), ""))  # first: numbers that are free are used again
        before = root, db.last_insert_rowid()
        db.execute("DELETE FROM blobs WHERE root_run_id = ? AND id < ? AND hash IS NULL", before)
        db.execute(
            "UPDATE blobs SET run_id = NULL, root_run_id = NULL, path = NULL, role = NULL, status = NULL,"
            " at = NULL WHERE root_run_id = ? AND id < ?",
            before,
        )


def _bound(row: OutputRow) -> tuple[str, str, str, str, str, int]:
    return row.run_id, row.root_run_id, row.path, row.role, row.status, row.at
