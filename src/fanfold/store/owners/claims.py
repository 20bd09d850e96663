"""Rows of claims: files of the project itself that steps change, whichever process they run in.

Rules
* A step takes all that it claims or nothing, in one transaction. Who is refused stands in line: the number of
  its row. What overlaps with a claim that is held, or that stands further ahead in line, is refused.
* So nobody waits for ever, and nobody waits in a circle: who holds a claim waits for nobody, and whoever is
  first in line waits for holders alone.
* Claims of one tree never stand in each other's way: its scheduler sees to that.
* A claim lives as long as the lease under which it was made. What a dead owner claimed is as good as gone.
* A claim that was given back is kept as `PAST` while anybody holds one: who looks at what changed while it
  held its own files learns whose else that may have been.
* Claims need not survive a power cut, which their owners do not survive either.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apsw
import msgspec

from fanfold.store.owners import leases
from fanfold.store.protocol import Claim, Lease
from fanfold.store.sealing import reseal

WAITS, HELD, PAST = 0, 1, 2
_COLUMNS = "id, root, run_id, step, patterns, held"


def take(db: apsw.Connection, lease: Lease, claim: Claim) -> Claim | None:
    """Hold a claim, or stand in line for it and tell what is in the way; runs inside a write transaction."""
    current = leases.current_epoch(db, lease.root)
    if current != lease.epoch:
        raise leases.lost(lease.root, lease.epoch, current)
    for root in _roots(db, claim.root):
        if not _lives(db, root):
            drop_tree(db, root)
    name = (claim.root, claim.run_id, claim.step)
    db.execute("DELETE FROM claims WHERE root = ? AND run_id = ? AND step = ? AND held = 2", name)
    found = find_blocker(db, claim)
    db.execute(
        "INSERT INTO claims (root, run_id, step, patterns, held) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (root, run_id, step) DO UPDATE SET held = excluded.held, patterns = excluded.patterns",
        (*name, msgspec.json.encode(claim.patterns).decode(), HELD if found is None else WAITS),
    )
    reseal(db, "claims", "root = ? AND run_id = ? AND step = ?", *name)
    return found


def find_blocker(db: apsw.Connection, claim: Claim) -> Claim | None:
    """The claim of a live owner that is in the way of this one."""
    place: int | None = db.execute(
        "SELECT id FROM claims WHERE root = ? AND run_id = ? AND step = ? AND held < 2",
        (claim.root, claim.run_id, claim.step),
    ).get
    from fanfold.kernel.paths import overlaps  # not for those who only read

    for number, other, held in _others(db, claim.root):
        ahead = held == HELD or place is None or number < place
        if ahead and overlaps(claim.patterns, other.patterns) and _lives(db, other.root):
            return other
    return None


def drop(db: apsw.Connection, root: str, steps: list[tuple[str, str]]) -> None:
    """Give back what steps (run id, path) claimed."""
    for step in steps:
        _give_back(db, "root = ? AND run_id = ? AND step = ?", root, *step)
    _forget_past(db)


def drop_tree(db: apsw.Connection, root: str) -> bool:
    """Give back everything that a tree claimed; whether there was anything."""
    had = db.execute("SELECT 1 FROM claims WHERE root = ? AND held < 2 LIMIT 1", (root,)).get
    if had:
        _give_back(db, "root = ?", root)
        _forget_past(db)
    return bool(had)


def _give_back(db: apsw.Connection, where: str, *values: str) -> None:
    db.execute(f"DELETE FROM claims WHERE {where} AND held = 0", values)  # noqa: S608 - constants only
    db.execute(f"UPDATE claims SET held = 2 WHERE {where}", values)  # noqa: S608 - constants only
    reseal(db, "claims", where, *values)


def _forget_past(db: apsw.Connection) -> None:
    db.execute("DELETE FROM claims WHERE held = 2 AND NOT EXISTS (SELECT 1 FROM claims WHERE held = 1)")


def beside(db: apsw.Connection, root: str) -> list[Claim]:
    """What other trees hold, or held while anybody did."""
    query = f"SELECT {_COLUMNS} FROM claims WHERE root <> ? AND held > 0 ORDER BY id"  # noqa: S608 - constants only
    return [_claim(row) for row in db.execute(query, (root,))]


def waiting(db: apsw.Connection, root: str) -> list[str]:
    """Other trees of which a step stands in line."""
    rows = db.execute("SELECT DISTINCT root FROM claims WHERE held = 0 AND root <> ? ORDER BY root", (root,))
    return [str(other) for (other,) in rows]


def _roots(db: apsw.Connection, root: str) -> list[str]:
    query = "SELECT DISTINCT root FROM claims WHERE root <> ? AND held < 2"
    return [other for (other,) in db.execute(query, (root,))]


def _others(db: apsw.Connection, root: str) -> Iterator[tuple[int, Claim, int]]:
    rest = "WHERE root <> ? AND held < 2 ORDER BY held DESC, id"
    for row in db.execute(f"SELECT {_COLUMNS} FROM claims {rest}", (root,)):  # noqa: S608 - constants only
        yield int(row[0]), _claim(row), int(row[5])


def _claim(row: tuple[Any, ...]) -> Claim:
    _, root, run, step, patterns, _ = row
    return Claim(root, run, step, msgspec.json.decode(patterns, type=tuple[str, ...]))


def _lives(db: apsw.Connection, root: str) -> bool:
    holder = leases.holder(db, root)
    return holder is not None and holder.is_alive()
