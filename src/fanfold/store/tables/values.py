"""Values by hash, and which of them are outputs of steps: rows of one table.

Rules
* A value is stored once, under its hash. An output that nobody stored before is one row: what it is and whose
  it is. One whose value is stored already has a row without content, that names it in `output`.
* Rows are numbered in order of arrival. A number that was given to an output is never given to another: a
  deleted tree leaves one row that says so behind all others.
"""

from __future__ import annotations

from typing import Any

import apsw

from fanfold.store.protocol import DELETED, Batch, OutputRow
from fanfold.store.sealing import seal

_INSERT = "INSERT OR IGNORE INTO blobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_SELECT = (
    "SELECT id, run_id, root_run_id, path, role, status, coalesce(hash, output), at FROM blobs"
    " WHERE id > ?1 AND status IS NOT NULL AND (?2 IS NULL OR root_run_id = ?2) ORDER BY id LIMIT ?3"
)


def write(db: apsw.Connection, batch: Batch) -> None:
    """Store the values of a batch and note its outputs; runs inside a write transaction."""
    fresh = dict(batch.blobs)
    number = db.execute("SELECT max(id) FROM blobs").get or 0
    if batch.outputs:
        rows = [_row(n, row, fresh.pop(row.blob, None)) for n, row in enumerate(batch.outputs, number + 1)]
        number += len(rows)
        before = db.total_changes()
        db.executemany(_INSERT, rows)
        if db.total_changes() - before < len(rows):  # another run said the same
            for made, row in zip(rows, batch.outputs, strict=True):
                if not db.execute("SELECT 1 FROM blobs WHERE id = ?", (made[0],)).get:
                    number += 1
                    db.execute(_INSERT, _row(number, row, None))
    if fresh:
        db.executemany(_INSERT, [_value(n, *value) for n, value in enumerate(fresh.items(), number + 1)])


def _row(number: int, row: OutputRow, content: bytes | None) -> tuple[Any, ...]:
    """An output, with its value where nobody stored that before."""
    known = content is None
    of_output = row.run_id, row.root_run_id, row.path, row.role, row.status, row.at
    sealed = number, None if known else row.blob, row.blob if known else None, *of_output
    return *sealed, seal(*sealed), content


def _value(number: int, hash: str, content: bytes) -> tuple[Any, ...]:
    """A value that is nobody's output."""
    sealed = number, hash, None, None, None, None, None, None, None
    return *sealed, seal(*sealed), content


def read_outputs(
    db: apsw.Connection, root: str | None, after: int, limit: int
) -> list[tuple[int, OutputRow]]:
    """Outputs of one tree or of all, in order of arrival, with their running number."""
    return [
        (
            number,
            OutputRow(run_id=run, root_run_id=tree, path=path, role=role, status=status, blob=blob, at=at),
        )
        for number, run, tree, path, role, status, blob, at in db.execute(_SELECT, (after, root, limit))
    ]


def forget_outputs(db: apsw.Connection, root: str) -> None:
    """Note that the outputs of a tree are gone; their values stay, for whoever else refers to them."""
    if db.execute("SELECT 1 FROM blobs WHERE root_run_id = ? AND status <> ? LIMIT 1", (root, DELETED)).get:
        last = db.execute("SELECT max(id) FROM blobs").get or 0
        deleted = OutputRow(run_id=root, root_run_id=root, path="", status=DELETED, blob="", at=0)
        db.execute(_INSERT, _row(last + 1, deleted, None))  # first: numbers that are free are used again
        db.execute("DELETE FROM blobs WHERE root_run_id = ? AND id <= ? AND hash IS NULL", (root, last))
        db.execute(
            "UPDATE blobs SET run_id = NULL, root_run_id = NULL, path = NULL, role = NULL, status = NULL,"
            " at = NULL, seal = seal(id, hash, output, NULL, NULL, NULL, NULL, NULL, NULL)"
            " WHERE root_run_id = ? AND id <= ?",
            (root, last),
        )
