"""Hashes by which a changed row is found: the chain of a tree's log, and the seal of rows that are no events.

Content is named by its hash. Of what is sealed, all that can be derived from the log is compared with it
besides, and what cannot (whose turn it is, what was asked, what may be reused) has nothing but its seal.

Rules of the chain: each commit carries the hash of everything before it, and of the state
* A link is the hash of the link before, of the state after the commit, and of every column of every row that
  the commit added, in order. It stands in the last of these rows, so that it costs no page of its own.
* A log whose end was cut off is found by what its last commits left elsewhere: the row of an output, or, for
  a commit without one, the place that the log is known to reach (`logs.reaches`).
* Only the owner of a tree appends to it, so what it remembers of the last link is right until its lease is
  lost, and then nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

import apsw
import msgspec

LINK_BYTES = 12
_encode = msgspec.msgpack.Encoder().encode
SEAL_BYTES = 8

SEALED = {
    "logs": "key log root_run_id parent_run_id depth path reaches",
    "runs": "id run_id root_run_id parent_run_id nesting_depth execution_path recipe version status"
    " created_at started_at ended_at inputs output error input_tokens output_tokens micro_usd agents"
    " forked_from",
    "blobs": "id hash output run_id root_run_id path role status at",
    "leases": "root epoch boot_id pid started pid_namespace taken_at heartbeat_at expires_at",
    "requests": "id root run_id kind data at",
    "claims": "id root run_id step patterns held",
    "cache": "key blob run_id",
}
"""The columns of each table in the order in which they are hashed; the first one names the row."""

_COLUMNS = {table: ", ".join(columns.split()) for table, columns in SEALED.items()}
_RESEAL = {
    table: f"UPDATE {table} SET seal = seal({columns}) WHERE"  # noqa: S608 - constants only
    for table, columns in _COLUMNS.items()
}


def link(before: bytes, state: bytes, rows: Sequence[Sequence[Any]]) -> bytes:
    """The hash that follows `before`; the rows have no link yet."""
    digest = blake2b(before, digest_size=LINK_BYTES)
    digest.update(state)
    digest.update(_encode(rows))
    return digest.digest()


def state_of(chained: bytes) -> bytes:
    """The hash of the kernel's state that a stored link carries; empty where the commit changed none."""
    return chained[LINK_BYTES:]


class Chain:
    """What the writer remembers: the last link of each tree."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._last: dict[int, bytes] = {}

    def forget(self) -> None:
        """Look everything up again."""
        self._last.clear()

    def follow(self, first: int, rows: Sequence[Sequence[Any]], state: bytes) -> bytes:
        """What to store in the last of these new rows of the tree whose ids begin at `first`."""
        before = self._last.get(first)
        if before is None:
            query = "SELECT chain FROM events WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT 1"
            found = self._db.execute(query, (first, rows[0][0] - 1)).get
            before = found[:LINK_BYTES] if isinstance(found, bytes) else b""
        made = self._last[first] = link(before, state, rows)
        return made + state


def breaks(rows: Iterable[Sequence[Any]], reaches: object) -> Iterator[str]:
    """What is wrong with the rows of one tree, each with its link last; `reaches` is an id among them."""
    before = b""
    since: list[Sequence[Any]] = []
    count = 0
    is_reached = reaches is None
    for *row, chained in rows:
        count += 1
        since.append((*row, None))
        if chained is None:
            continue
        if not isinstance(chained, bytes) or chained[:LINK_BYTES] != link(before, state_of(chained), since):
            yield f"the log was changed at row {count - len(since) + 1}, or behind it up to row {count}"
            return
        before, since = chained[:LINK_BYTES], []
        is_reached = is_reached or row[0] == reaches
    if since or not is_reached:
        yield f"the end of the log was cut off, after row {count}"


def seal(*values: Any) -> bytes:
    """The hash of a row's values."""
    return blake2b(_encode(values), digest_size=SEAL_BYTES).digest()


def prepare(db: apsw.Connection) -> None:
    """Let statements of this connection call `seal`."""
    db.create_scalar_function("seal", seal, deterministic=True)


def reseal(db: apsw.Connection, table: str, where: str, *values: Any) -> None:
    """Seal rows again that were just made or changed."""
    db.execute(f"{_RESEAL[table]} {where}", values)


def changed(db: apsw.Connection, table: str, where: str = "1", *values: Any) -> Iterator[str]:
    """What to say of each row whose seal does not fit."""
    query = f"SELECT seal, {_COLUMNS[table]} FROM {table} WHERE {where}"  # noqa: S608 - constants only
    for found, *row in db.execute(query, values):
        if found != seal(*row):
            yield f"row {row[0]!r} of the table {table} was changed"
