"""Rows of requests: what processes ask of a run that they do not own, until its owner acted on it."""

from __future__ import annotations

import apsw
import msgspec

from fanfold.store.protocol import Clean, Request
from fanfold.store.sealing import reseal


def insert(db: apsw.Connection, request: Request, clean: Clean) -> int:
    """Keep a request; its number. Runs inside a write transaction."""
    data = clean(msgspec.json.encode(request.data)).decode()
    db.execute(
        "INSERT INTO requests (root, run_id, kind, data, at) VALUES (?, ?, ?, ?, ?)",
        (request.root, request.run_id, request.kind, data, request.at),
    )
    number = db.last_insert_rowid()
    reseal(db, "requests", "id = ?", number)
    return number


def select(db: apsw.Connection, root: str) -> list[Request]:
    """Those of one tree, oldest first."""
    rows = db.execute("SELECT id, run_id, kind, data, at FROM requests WHERE root = ? ORDER BY id", (root,))
    return [
        Request(root=root, run_id=run, kind=kind, data=msgspec.json.decode(data), at=at, id=number)
        for number, run, kind, data, at in rows
    ]
