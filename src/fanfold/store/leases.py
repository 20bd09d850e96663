"""Who owns a run tree, and whether that process still lives.

Rules
* Epochs only grow. Releasing a lease keeps its row, so the next owner's epoch is higher.
* A dead owner's lease is taken at once. Should a judgement of death ever be wrong, the old owner's next
  write carries a stale epoch and is refused: two owners can disagree, the log cannot.
"""

from __future__ import annotations

import apsw

from fanfold.process_identity import ProcessIdentity
from fanfold.store.protocol import Lease, LeaseHeld, LeaseLost


def holder(db: apsw.Connection, root: str) -> ProcessIdentity | None:
    """Who holds the lease, dead or alive."""
    for boot, pid, started in db.execute("SELECT boot_id, pid, started FROM leases WHERE root = ?", (root,)):
        return None if pid is None else ProcessIdentity(boot, pid, started)
    return None


def take(db: apsw.Connection, root: str, owner: ProcessIdentity) -> Lease:
    """Give `owner` a new epoch; runs inside a write transaction."""
    before = holder(db, root)
    if before is not None and before.is_alive():
        raise held(root, before)
    epoch = db.execute(
        "INSERT INTO leases VALUES (?, 1, ?, ?, ?) ON CONFLICT (root) DO UPDATE SET epoch = epoch + 1,"
        " boot_id = excluded.boot_id, pid = excluded.pid, started = excluded.started RETURNING epoch",
        (root, owner.boot_id, owner.pid, owner.started),
    ).get
    return Lease(root, owner, epoch)


def give_back(db: apsw.Connection, lease: Lease) -> None:
    """Forget the owner, keep the epoch; a lease that was lost meanwhile is left alone."""
    db.execute(
        "UPDATE leases SET boot_id = NULL, pid = NULL, started = NULL WHERE root = ? AND epoch = ?",
        (lease.root, lease.epoch),
    )


def held(root: str, owner: ProcessIdentity) -> LeaseHeld:
    """The refusal to touch a tree that another process drives."""
    return LeaseHeld(
        "lease.held",
        f"run {root} is being driven by process {owner.pid}",
        hint="watch it, or stop that process first",
        details={"root": root, "pid": owner.pid, "started": owner.started, "boot_id": owner.boot_id},
    )


def lost(root: str, epoch: int, current: int) -> LeaseLost:
    """The refusal of a write whose epoch is not the current one."""
    return LeaseLost(
        "lease.lost",
        f"run {root} has a new owner (epoch {current}, this write has {epoch}); nothing was written",
        hint="this process must stop driving the run",
        details={"root": root, "epoch": epoch, "current": current},
    )
