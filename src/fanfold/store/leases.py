"""Who owns a run tree, and whether that process still lives.

Rules
* An owner is (boot, pid, start time of the process): a pid alone is reused, the triple is not. An owner
  from another boot is dead.
* Epochs only grow. Releasing a lease keeps its row, so the next owner's epoch is higher.
* A dead owner's lease is taken at once. Should a judgement of death ever be wrong, the old owner's next
  write carries a stale epoch and is refused: two owners can disagree, the log cannot.
"""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import apsw

from fanfold.store.protocol import Lease, LeaseHeld, LeaseLost, Owner

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
STAT = "/proc/{pid}/stat"


@cache
def boot_id() -> str:
    """This boot of this machine."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return _ask("sysctl", "-n", "kern.bootsessionuuid") or "unknown boot"


def start_time(pid: int) -> str | None:
    """When the process started, in whatever unit the system counts; None when it is dead."""
    try:
        text = Path(STAT.format(pid=pid)).read_text()
    except OSError:
        if BOOT_ID.exists():
            return None
        return _ask("ps", "-o", "lstart=", "-p", str(pid)) or None
    # The name of the program is in parentheses and may hold anything, parentheses included.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


def this_process() -> Owner:
    """The owner to acquire leases as."""
    pid = os.getpid()
    return Owner(boot_id(), pid, start_time(pid) or "")


def is_alive(owner: Owner) -> bool:
    """Whether the very process is still there."""
    return owner.boot_id == boot_id() and start_time(owner.pid) == owner.started


def holder(db: apsw.Connection, root: str) -> Owner | None:
    """Who holds the lease, dead or alive."""
    for boot, pid, started in db.execute("SELECT boot_id, pid, started FROM leases WHERE root = ?", (root,)):
        return None if pid is None else Owner(boot, pid, started)
    return None


def take(db: apsw.Connection, root: str, owner: Owner) -> Lease:
    """Give `owner` a new epoch; runs inside a write transaction."""
    before = holder(db, root)
    if before is not None and is_alive(before):
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


def held(root: str, owner: Owner) -> LeaseHeld:
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


def _ask(*command: str) -> str:
    """What a system tool says on one line, or nothing."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=5).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
