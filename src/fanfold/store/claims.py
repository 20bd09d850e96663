"""Rows of claims: files of the project itself that steps change, whichever process they run in.

Rules
* A step takes all that it claims or nothing, in one transaction. Who is refused stands in line: the number of
  its row. What overlaps with a claim that is held, or that stands further ahead in line, is refused.
* So nobody waits for ever, and nobody waits in a circle: who holds a claim waits for nobody, and whoever is
  first in line waits for holders alone.
* Claims of one tree never stand in each other's way: its scheduler sees to that.
* A claim lives as long as the lease under which it was made. What a dead owner claimed is as good as gone.
* Claims need not survive a power cut, which their owners do not survive either.
"""

from __future__ import annotations

from collections.abc import Iterator

import apsw
import msgspec

from fanfold.kernel.paths import overlaps
from fanfold.store import leases
from fanfold.store.protocol import Claim, Lease
from fanfold.store.seals import reseal

_COLUMNS = "id, root, run_id, step, patterns, held"


def take(db: apsw.Connection, lease: Lease, claim: Claim) -> Claim | None:
    """Hold a claim, or stand in line for it and tell what is in the way; runs inside a write transaction."""
    current = leases.current_epoch(db, lease.root)
    if current != lease.epoch:
        raise leases.lost(lease.root, lease.epoch, current)
    for root in _roots(db, claim.root):
        if not _lives(db, root):
            drop_tree(db, root)
    found = find_blocker(db, claim)
    db.execute(
        "INSERT INTO claims (root, run_id, step, patterns, held) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (root, run_id, step) DO UPDATE SET held = excluded.held, patterns = excluded.patterns",
        (claim.root, claim.run_id, claim.step, msgspec.json.encode(claim.patterns).decode(), found is None),
    )
    reseal(db, "claims", "root = ? AND run_id = ? AND step = ?", claim.root, claim.run_id, claim.step)
    return found


def find_blocker(db: apsw.Connection, claim: Claim) -> Claim | None:
    """The claim of a live owner that is in the way of this one."""
    place: int | None = db.execute(
        "SELECT id FROM claims WHERE root = ? AND run_id = ? AND step = ?",
        (claim.root, claim.run_id, claim.step),
    ).get
    for number, other, held in _others(db, claim.root):
        ahead = held or place is None or number < place
        if ahead and overlaps(claim.patterns, other.patterns) and _lives(db, other.root):
            return other
    return None


def drop(db: apsw.Connection, root: str, steps: list[tuple[str, str]]) -> None:
    """Give back what steps (run id, path) claimed."""
    rows = [(root, *step) for step in steps]
    db.executemany("DELETE FROM claims WHERE root = ? AND run_id = ? AND step = ?", rows)


def drop_tree(db: apsw.Connection, root: str) -> bool:
    """Give back everything that a tree claimed; whether there was anything."""
    db.execute("DELETE FROM claims WHERE root = ?", (root,))
    return bool(db.changes())


def waiting(db: apsw.Connection, root: str) -> list[str]:
    """Other trees of which a step stands in line."""
    rows = db.execute("SELECT DISTINCT root FROM claims WHERE held = 0 AND root <> ? ORDER BY root", (root,))
    return [str(other) for (other,) in rows]


def _roots(db: apsw.Connection, root: str) -> list[str]:
    return [other for (other,) in db.execute("SELECT DISTINCT root FROM claims WHERE root <> ?", (root,))]


def _others(db: apsw.Connection, root: str) -> Iterator[tuple[int, Claim, bool]]:
    query = f"SELECT {_COLUMNS} FROM claims WHERE root <> ? ORDER BY held DESC, id"  # noqa: S608 - constants only
    for number, other, run, step, patterns, held in db.execute(query, (root,)):
        claim = Claim(other, run, step, msgspec.json.decode(patterns, type=tuple[str, ...]))
        yield number, claim, bool(held)


def _lives(db: apsw.Connection, root: str) -> bool:
    holder = leases.holder(db, root)
    return holder is not None and holder.is_alive()
