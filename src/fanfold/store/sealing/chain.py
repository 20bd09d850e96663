"""The hash chain of a tree's log: each commit carries the hash of everything before it, and of the state.

Rules
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
