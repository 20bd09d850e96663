"""Who owns a run tree, whether that process still lives, and for how long others must believe it.

Rules
* Epochs only grow. Releasing a lease keeps its row, so the next owner's epoch is higher.
* A lease runs out unless its owner renews it. The clock counts from the boot of the machine, suspended time
  included, and is the same for all containers of it; the wall clock decides nothing.
* A lease whose owner is known to be dead is taken at once: its boot is over, or its process is gone from this
  pid namespace. Any other lease is taken when it ran out, also that of a process which is there but stopped.
* Should a judgement of death ever be wrong, the old owner's next write carries a stale epoch and is refused:
  two owners can disagree, the log cannot.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import apsw
from msgspec import Struct

from fanfold.process_identity import ProcessIdentity, this_process
from fanfold.store.protocol import Lease, LeaseHeld, LeaseLost
from fanfold.store.sealing import reseal

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Where there is no such clock, the monotonic one counts suspended time too."""
_OFFSETS = Path("/proc/self/timens_offsets")


class Holder(Struct, frozen=True):
    """Who holds a lease, and until when that must be believed."""

    owner: ProcessIdentity
    taken_at: int
    heartbeat_at: int
    expires_at: int

    @property
    def lived_ms(self) -> int:
        """How long its owner is known to have lived under it, by one clock of one boot."""
        return self.heartbeat_at - self.taken_at

    def is_alive(self) -> bool:
        return boot_clock_ms() < self.expires_at and self.owner.is_alive()

    def heartbeat_age_ms(self) -> int | None:
        """None: it was another boot of the machine, whose clock says nothing about this one."""
        if self.owner.boot_id != this_process().boot_id:
            return None
        return max(0, boot_clock_ms() - self.heartbeat_at)


def boot_clock_ms() -> int:
    """Milliseconds since this machine was booted, the same in every time namespace."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000 - _offset_ms()


def holder(db: apsw.Connection, root: str) -> Holder | None:
    """Who holds the lease, dead or alive."""
    who = "boot_id, pid, started, pid_namespace"
    query = f"SELECT {who}, taken_at, heartbeat_at, expires_at FROM leases WHERE root = ?"  # noqa: S608 - constants only
    for boot, pid, started, namespace, *times in db.execute(query, (root,)):
        if pid is not None:
            return Holder(ProcessIdentity(boot, pid, started, namespace), *times)
    return None


def take(db: apsw.Connection, root: str, owner: ProcessIdentity, expiry_ms: int) -> Lease:
    """Give `owner` a new epoch; runs inside a write transaction."""
    before = holder(db, root)
    if before is not None and before.is_alive():
        raise held(root, before)
    now = boot_clock_ms()
    epoch = db.execute(
        "INSERT INTO leases VALUES (?, 1, ?, ?, ?, ?, ?, ?, ?, '')"
        " ON CONFLICT (root) DO UPDATE SET epoch = epoch + 1, boot_id = excluded.boot_id,"
        " pid = excluded.pid, started = excluded.started,"
        " pid_namespace = excluded.pid_namespace, taken_at = excluded.taken_at,"
        " heartbeat_at = excluded.heartbeat_at,"
        " expires_at = excluded.expires_at RETURNING epoch",
        (root, owner.boot_id, owner.pid, owner.started, owner.namespace, now, now, now + expiry_ms),
    ).get
    reseal(db, "leases", "root = ?", root)
    return Lease(root, owner, epoch, before.lived_ms if before is not None else None)


def renew(db: apsw.Connection, leases: Sequence[Lease], expiry_ms: int) -> dict[Lease, LeaseLost]:
    """Say that their owner lives, inside a write transaction; those that it does not hold any more."""
    now, losses = boot_clock_ms(), {}
    for lease in leases:
        db.execute(
            "UPDATE leases SET heartbeat_at = ?, expires_at = ?"
            " WHERE root = ? AND epoch = ? AND pid IS NOT NULL",
            (now, now + expiry_ms, lease.root, lease.epoch),
        )
        if db.changes():
            reseal(db, "leases", "root = ?", lease.root)
        else:
            losses[lease] = lost(lease.root, lease.epoch, current_epoch(db, lease.root))
    return losses


def give_back(db: apsw.Connection, lease: Lease) -> bool:
    """Forget the owner, keep the epoch; a lease that was lost meanwhile is left alone, which is told."""
    db.execute(
        "UPDATE leases SET boot_id = NULL, pid = NULL, started = NULL, pid_namespace = NULL,"
        " taken_at = NULL, heartbeat_at = NULL, expires_at = NULL WHERE root = ? AND epoch = ?",
        (lease.root, lease.epoch),
    )
    was_ours = bool(db.changes())
    reseal(db, "leases", "root = ? AND epoch = ?", lease.root, lease.epoch)
    return was_ours


def current_epoch(db: apsw.Connection, root: str) -> int:
    """The epoch whose writes are accepted; 0 when nobody ever owned the tree."""
    epoch: int | None = db.execute("SELECT epoch FROM leases WHERE root = ?", (root,)).get
    return epoch or 0


def held(root: str, by: Holder) -> LeaseHeld:
    """The refusal to touch a tree that another process drives."""
    owner, seconds = by.owner, max(0, by.expires_at - boot_clock_ms()) / 1_000
    elsewhere = "" if owner.is_visible() else " of another container"
    return LeaseHeld(
        "lease.held",
        f"run {root} is being driven by process {owner.pid}{elsewhere}",
        hint="watch it, or stop that process first"
        + ("" if owner.is_visible() else f"; should it be dead, the run is free in {seconds:.0f} s"),
        details={"root": root, "pid": owner.pid, "started": owner.started, "boot_id": owner.boot_id},
    )


def lost(root: str, epoch: int, current: int) -> LeaseLost:
    """The refusal of a write or an effect whose epoch is not the current one."""
    return LeaseLost(
        "lease.lost",
        f"run {root} is not this process's any more (epoch {current}, this one had {epoch})",
        hint=f"another process goes on with it, or did: fanfold watch {root}",
        details={"root": root, "epoch": epoch, "current": current},
    )


@cache
def _offset_ms() -> int:
    """How far the boot clock of this process's time namespace is ahead of the machine's."""
    try:
        lines = [line.split() for line in _OFFSETS.read_text().splitlines()]
    except OSError:
        return 0
    return sum(int(line[1]) * 1_000 + int(line[2]) // 1_000_000 for line in lines if line[0] == "boottime")
