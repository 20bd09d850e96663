"""Whether what is stored is what was written: chains, seals, and content against its name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b

import apsw

from fanfold.store import sealing
from fanfold.store.protocol import Damage
from fanfold.store.tables.heads import roots
from fanfold.store.tables.logs import KEY_SHIFT, span, stored_rows
from fanfold.store.tables.removal import mentioned

_ROW = "id, log, session, seq, at, type, epoch, path, data, chain"
_OF_TREE = {
    "logs": "log = ?1 OR root_run_id = ?1",
    "runs": "run_id = ?1 OR root_run_id = ?1",
    "blobs": "root_run_id = ?1",
    "leases": "root = ?1",
    "requests": "root = ?1",
    "claims": "root = ?1",
    "cache": "run_id = ?1 OR run_id IN (SELECT run_id FROM runs WHERE root_run_id = ?1)",
}


def check(db: apsw.Connection, root: str | None) -> list[Damage]:
    """Everything that is wrong with one tree, or with the whole store."""
    if root is not None:
        return [Damage(root, text) for text in (*_rows_of(db, root), *_tree(db, root))]
    found = [Damage("", text) for table in sealing.SEALED for text in sealing.changed(db, table)]
    found += [Damage(tree, text) for tree in roots(db) for text in _tree(db, tree)]
    found += [Damage("", text) for text in _strays(db)]
    blobs = db.execute("SELECT hash, content FROM blobs WHERE hash IS NOT NULL OR content IS NOT NULL")
    return found + [Damage("", text) for text in _unlike_their_name(blobs)]


def _rows_of(db: apsw.Connection, root: str) -> Iterator[str]:
    for table, where in _OF_TREE.items():
        yield from sealing.changed(db, table, where, root)


def _tree(db: apsw.Connection, root: str) -> Iterator[str]:
    found = db.execute("SELECT key, reaches FROM logs WHERE log = ?", (root,)).fetchone()
    if found is None or not isinstance(found[0], int):
        yield "the log is gone"
        return
    key, reaches = found
    yield from sealing.breaks(stored_rows(db, key, _ROW), reaches)
    ends = db.execute("SELECT max(epoch) FROM events WHERE id BETWEEN ? AND ?", span(key)).get or 0
    epoch = db.execute("SELECT epoch FROM leases WHERE root = ?", (root,)).get or 0
    if not isinstance(ends, int) or not isinstance(epoch, int) or epoch < ends:
        yield f"the lease is of epoch {epoch}, but the log goes on to epoch {ends}"
    for data in stored_rows(db, key, "id, data"):
        names = mentioned([(data[1],)]) if isinstance(data[1], bytes) else ()
        for name in sorted(names):
            yield from _unlike_their_name(
                db.execute("SELECT hash, content FROM blobs WHERE hash = ?", (name,))
            )


def _strays(db: apsw.Connection) -> Iterator[str]:
    """Rows that no log leads to."""
    query = f"SELECT count(*) FROM events WHERE id >> {KEY_SHIFT} NOT IN (SELECT key FROM logs)"  # noqa: S608 - constants only
    count = db.execute(query).get
    if count:
        yield f"{count} rows of the table events belong to no log"


def _unlike_their_name(blobs: Iterable[tuple[object, object]]) -> Iterator[str]:
    for name, content in blobs:
        if not isinstance(content, bytes) or blake2b(content, digest_size=16).hexdigest() != name:
            yield f"the content stored as {name} is not what was stored"
