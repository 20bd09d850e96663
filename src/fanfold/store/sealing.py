"""Hashes that reveal changed rows: the chain of a tree's log, and the seals of all other rows.

Both are keyed with the secret of the project's user (`Database.key`). A person without the secret can change
a row, but cannot compute its hash. A store that was opened without a key has plain hashes, which only reveal
accidental changes.

Content is named by its hash. Sealed values that can be derived from the log are also compared with the log.
Other values (leases, requests, the cache of reusable results) are protected only by their seal.

Rules of the chain: each commit carries the hash of everything before it, and of the state
* A link is the hash of the previous link, of the state after the commit, and of all columns of all rows that
  the commit added, in order. It is stored in the last of these rows, so it needs no page of its own.
* A truncated log is detected by traces that its last commits left elsewhere. The trace is the row of an
  output or, for a commit without outputs, the known end of the log (`logs.reaches`).
* Links up to the row in `logs.unkeyed` are plain. They were made before there was a key, or with the key of
  another user whose state was adopted. The seal of the row in `logs` is keyed.
* An older copy of rows that were all valid together cannot be distinguished from the current rows.
* Only the owner of a tree appends to it. So its cached last link is correct until its lease is lost, and
  after that it writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any

import apsw
import msgspec

LINK_BYTES = 12
_encode = msgspec.msgpack.Encoder().encode
SEAL_BYTES = 8

SEALED = {
    "logs": "key log root_run_id parent_run_id depth path reaches unkeyed",
    "runs": "id run_id root_run_id parent_run_id nesting_depth execution_path recipe version status"
    " created_at started_at ended_at inputs output error input_tokens output_tokens micro_usd agents"
    " forked_from",
    "blobs": "id hash output run_id root_run_id path role status at",
    "leases": "root epoch boot_id pid started pid_namespace taken_at heartbeat_at expires_at machine",
    "requests": "id root run_id kind data at",
    "claims": "id root run_id step patterns held",
    "cache": "key blob run_id",
    "about": "name value",
}
"""The columns of each table in the order in which they are hashed; the first one identifies the row."""

COLUMNS = {table: ", ".join(columns.split()) for table, columns in SEALED.items()}
_RESEAL = {
    table: f"UPDATE {table} SET seal = seal({columns}) WHERE"  # noqa: S608 - constants only
    for table, columns in COLUMNS.items()
}


class Database(apsw.Connection):
    """A connection with the key for the hashes it reads and writes."""

    key: bytes = b""


def key_of(db: apsw.Connection) -> bytes:
    """Return the key of a connection; empty if it has none."""
    return db.key if isinstance(db, Database) else b""


def name_of(key: bytes) -> str:
    """Return an identifier of a key for comparison; it reveals nothing about the key."""
    return blake2b(b"fanfold key", key=key, digest_size=8).hexdigest() if key else ""


def link(before: bytes, state: bytes, rows: Sequence[Sequence[Any]], key: bytes = b"") -> bytes:
    """Return the link after `before`; the rows have no link yet."""
    digest = blake2b(before, digest_size=LINK_BYTES, key=key)
    digest.update(state)
    digest.update(_encode(rows))
    return digest.digest()


def state_of(chained: bytes) -> bytes:
    """Return the hash of the kernel's state in a stored link; empty if the commit changed no state."""
    return chained[LINK_BYTES:]


class Chain:
    """The writer's cache of the last link of each tree."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._key = key_of(db)
        self._last: dict[int, bytes] = {}

    def forget(self) -> None:
        """Drop the cache."""
        self._last.clear()

    def follow(self, first: int, rows: Sequence[Sequence[Any]], state: bytes) -> bytes:
        """Return the link and state to store in the last new row; `first` is the first id of the tree."""
        before = self._last.get(first)
        if before is None:
            query = "SELECT chain FROM events WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT 1"
            found = self._db.execute(query, (first, rows[0][0] - 1)).get
            before = found[:LINK_BYTES] if isinstance(found, bytes) else b""
        made = self._last[first] = link(before, state, rows, self._key)
        return made + state


def breaks(
    rows: Iterable[Sequence[Any]],
    reaches: object,
    key: bytes = b"",
    unkeyed: int = -1,
    *,
    padded: bool = True,
) -> Iterator[str]:
    """Report damage in the rows of one tree; the last column of each is its link.

    `reaches` is the id of a row that must exist. Links up to the id `unkeyed` are plain. With `padded`, a row
    was hashed with an empty link.
    """
    before = b""
    since: list[Sequence[Any]] = []
    count = 0
    is_reached = reaches is None
    for *row, chained in rows:
        count += 1
        since.append((*row, None) if padded else tuple(row))
        if chained is None:
            continue
        used = b"" if row[0] <= unkeyed else key
        if not isinstance(chained, bytes) or chained[:LINK_BYTES] != link(
            before, state_of(chained), since, used
        ):
            yield f"the log was changed at row {count - len(since) + 1}, or behind it up to row {count}"
            return
        before, since = chained[:LINK_BYTES], []
        is_reached = is_reached or row[0] == reaches
    if since or not is_reached:
        yield f"the end of the log was cut off, after row {count}"


def seal(key: bytes, *values: Any) -> bytes:
    """Return the hash of a row's values."""
    return blake2b(_encode(values), digest_size=SEAL_BYTES, key=key).digest()


def prepare(db: apsw.Connection) -> None:
    """Define `seal` and `plain_seal` (without a key) for statements of this process, not for triggers."""
    for name, key in (("seal", key_of(db)), ("plain_seal", b"")):
        db.create_scalar_function(name, partial(seal, key), deterministic=True, flags=apsw.SQLITE_DIRECTONLY)


def reseal(db: apsw.Connection, table: str, where: str, *values: Any) -> None:
    """Update the seals of rows that were just inserted or changed."""
    db.execute(f"{_RESEAL[table]} {where}", values)


def changed(db: apsw.Connection, table: str, where: str = "1", *values: Any) -> Iterator[str]:
    """Report each row whose seal does not match."""
    key = key_of(db)
    query = f"SELECT seal, {COLUMNS[table]} FROM {table} WHERE {where}"  # noqa: S608 - constants only
    for found, *row in db.execute(query, values):
        if found != seal(key, *row):
            yield f"row {row[0]!r} of the table {table} was changed"
