"""Forgetting a run tree: its logs, heads and sessions, and the blobs that only it referred to.

Rules
* A blob is referred to when its hash stands anywhere in an event, a head, an output or the cache. Nobody
  keeps counts: the write path would pay for them on every step, and a wrong count loses data, whereas
  looking is exact and only deleting pays for it.
* Looking happens twice: once beside the writers, which takes as long as reading all logs, and once
  holding the write lock, only at what was appended meanwhile. So nobody waits for a long search, and no
  blob disappears under an event that began to refer to it in between.
* Whoever follows the outputs learns of a deleted tree (see `values.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import apsw

from fanfold.store.tables import values
from fanfold.store.tables.logs import KEY_SHIFT, span

_HASHES = re.compile(rb"(?<![0-9a-f])[0-9a-f]{32,128}(?![0-9a-f])")
_HELD = (
    "SELECT inputs FROM runs WHERE inputs IS NOT NULL"
    " UNION ALL SELECT output FROM runs WHERE output IS NOT NULL"
    " UNION ALL SELECT coalesce(hash, output) FROM blobs WHERE status IS NOT NULL"
    " UNION ALL SELECT blob FROM cache"
)
_HELD_BY_TREE = (
    "SELECT inputs FROM runs WHERE root_run_id = ?1 AND inputs IS NOT NULL"
    " UNION SELECT output FROM runs WHERE root_run_id = ?1 AND output IS NOT NULL"
    " UNION SELECT coalesce(hash, output) FROM blobs WHERE root_run_id = ?1"
)


class Removal:
    """Prepared beside the writers by making it; `carry_out` is the short part inside a transaction."""

    def __init__(self, db: apsw.Connection, root: str) -> None:
        self._root = root
        rows: Iterable[tuple[Any, ...]] = db.execute(
            "SELECT key FROM logs WHERE log = ?1 OR root_run_id = ?1", (root,)
        )
        self._trees: list[int] = [key for (key,) in rows]
        self._seen: dict[int, int] = {}
        """How far each other tree was read: the highest id of its events."""
        self._orphans = {hash for (hash,) in db.execute(_HELD_BY_TREE, (root,))}
        for key in self._trees:
            rows = db.execute("SELECT data FROM events WHERE id BETWEEN ? AND ?", span(key))
            self._orphans |= mentioned(rows)
        self._look(db)

    def carry_out(self, db: apsw.Connection) -> None:
        """Delete; runs inside a write transaction."""
        root = self._root
        values.forget_outputs(db, root)
        for key in self._trees:
            db.execute("DELETE FROM events WHERE id BETWEEN ? AND ?", span(key))
        db.execute("DELETE FROM logs WHERE log = ?1 OR root_run_id = ?1", (root,))
        db.execute(
            "DELETE FROM cache WHERE run_id IN (SELECT run_id FROM runs WHERE root_run_id = ?)", (root,)
        )
        db.execute("DELETE FROM runs WHERE root_run_id = ?", (root,))
        db.execute("DELETE FROM leases WHERE root = ?", (root,))
        db.execute("DELETE FROM requests WHERE root = ?", (root,))
        db.execute("DELETE FROM claims WHERE root = ?", (root,))
        self._look(db)
        self._orphans.difference_update(hash for (hash,) in db.execute(_HELD))
        db.executemany("DELETE FROM blobs WHERE hash = ?", [(hash,) for hash in sorted(self._orphans)])

    def _look(self, db: apsw.Connection) -> None:
        """Strike out what other trees mention, reading on from where the last look ended."""
        for tree, last in _trees(db):
            if tree in self._trees or not self._orphans:
                continue
            start = self._seen.get(tree, span(tree)[0])
            if last > start:
                rows = db.execute("SELECT data FROM events WHERE id > ? AND id <= ?", (start, last))
                self._orphans -= mentioned(rows)
                self._seen[tree] = last


def _trees(db: apsw.Connection) -> list[tuple[int, int]]:
    """The key of each tree and the id of its last event."""
    trees: list[tuple[int, int]] = []
    end = 0
    while True:
        # The first event of the next tree, then the last event of that tree.
        first: int | None = db.execute("SELECT min(id) FROM events WHERE id > ?", (end,)).get
        if first is None:
            return trees
        key = first >> KEY_SHIFT
        end = span(key)[1]
        trees.append((key, db.execute("SELECT max(id) FROM events WHERE id <= ?", (end,)).get))


def mentioned(rows: Iterable[tuple[bytes]]) -> set[str]:
    """Every hash that stands in the data of the given events."""
    found: set[bytes] = set()
    for (data,) in rows:
        found.update(_HASHES.findall(data))
    return {hash.decode() for hash in found}
