"""Leases: which process owns a run tree, whether that process is alive, and when its lease expires.

Rules
* Epochs only grow. Releasing a lease keeps its row, so the next owner's epoch is higher.
* A lease expires unless its owner renews it, by the clock of the store. The clock of a SQLite store counts
  from the boot of the machine, including suspended time. It is the same for all containers of the machine. A
  heartbeat that this clock has not reached yet is from an earlier boot, and its lease has expired.
* If the owner is known to be dead, its lease can be acquired at once. Only an owner on this machine can be
  known to be dead: its boot has ended, or its process is gone from this pid namespace. Any other lease can be
  acquired when it has expired. This includes the lease of a process that exists but is stopped.
* A row whose `root` is a session contains the execution that may append to its log, and never an owner.
* If an owner was wrongly judged dead, its next write carries a stale epoch and is refused. Two processes can
  disagree about who the owner is, but the log stays consistent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import apsw
import msgspec
from msgspec import Struct

from fanfold.kernel.events import Envelope
from fanfold.process_identity import ProcessIdentity
from fanfold.store.protocol import (
    Claim,
    Clean,
    Lease,
    LeaseHeld,
    LeaseLost,
    Request,
    StoreFault,
    superseded,
)
from fanfold.store.sealing import reseal

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The fallback on systems without `CLOCK_BOOTTIME`; their monotonic clock includes suspended time."""
_OFFSETS = Path("/proc/self/timens_offsets")


class Holder(Struct, frozen=True):
    """The owner of a lease, and the times of its lease in milliseconds of the store's clock."""

    owner: ProcessIdentity
    taken_at: int
    heartbeat_at: int
    expires_at: int
    now: int
    """The time of the store's clock when this was read."""

    @property
    def lived_ms(self) -> int:
        """Milliseconds from the acquisition of the lease to the last heartbeat."""
        return self.heartbeat_at - self.taken_at

    def is_alive(self) -> bool:
        """Whether the lease has not expired, and its process is not known to be dead."""
        return self.now < self.expires_at and self.owner.is_alive()

    @property
    def heartbeat_age_ms(self) -> int:
        """Milliseconds since the last heartbeat."""
        return max(0, self.now - self.heartbeat_at)


def boot_clock_ms() -> int:
    """Return the milliseconds since this machine booted; the same value in every time namespace."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000 - _offset_ms()


def holder(db: apsw.Connection, root: str, machine: str = "coalesce(machine, '')") -> Holder | None:
    """Return the owner of the lease, dead or alive; None if it has no owner."""
    who = f"boot_id, pid, started, pid_namespace, {machine}"
    query = f"SELECT {who}, taken_at, heartbeat_at, expires_at FROM leases WHERE root = ?"  # noqa: S608 - constants only
    for boot, pid, started, namespace, named, *times in db.execute(query, (root,)):
        numbers = all(isinstance(value, int) for value in (pid, *times))
        # A manipulated row has no owner; `verify` reports it.
        if numbers and all(isinstance(name, str) for name in (boot, started, namespace, named)):
            taken, heartbeat, expires = times
            now = boot_clock_ms()
            expires = expires if heartbeat <= now else now  # the clock restarted since: an earlier boot
            return Holder(
                ProcessIdentity(boot, pid, started, namespace, named), taken, heartbeat, expires, now
            )
    return None


def take(db: apsw.Connection, root: str, owner: ProcessIdentity, expiry_ms: int) -> Lease:
    """Acquire the lease for `owner` with a new epoch. Runs inside a write transaction."""
    before = holder(db, root)
    if before is not None and before.is_alive():
        raise held(root, before)
    now = boot_clock_ms()
    epoch = db.execute(
        "INSERT INTO leases VALUES (?, 1, ?, ?, ?, ?, ?, ?, ?, '', ?)"
        " ON CONFLICT (root) DO UPDATE SET epoch = epoch + 1, boot_id = excluded.boot_id,"
        " pid = excluded.pid, started = excluded.started,"
        " pid_namespace = excluded.pid_namespace, taken_at = excluded.taken_at,"
        " heartbeat_at = excluded.heartbeat_at,"
        " expires_at = excluded.expires_at, machine = excluded.machine RETURNING epoch",
        (
            *(root, owner.boot_id, owner.pid, owner.started, owner.namespace),
            *(now, now, now + expiry_ms, owner.machine),
        ),
    ).get
    reseal(db, "leases", "root = ?", root)
    return Lease(root, owner, epoch, before.lived_ms if before is not None else None)


def renew(db: apsw.Connection, leases: Sequence[Lease], expiry_ms: int) -> dict[Lease, LeaseLost]:
    """Renew leases inside a write transaction; return the leases that are lost."""
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
    """Release a lease and keep its epoch; return False if the lease was already lost."""
    db.execute(
        "UPDATE leases SET boot_id = NULL, pid = NULL, started = NULL, pid_namespace = NULL,"
        " taken_at = NULL, heartbeat_at = NULL, expires_at = NULL, machine = NULL"
        " WHERE root = ? AND epoch = ?",
        (lease.root, lease.epoch),
    )
    was_ours = bool(db.changes())
    reseal(db, "leases", "root = ? AND epoch = ?", lease.root, lease.epoch)
    return was_ours


def current_epoch(db: apsw.Connection, root: str) -> int:
    """Return the epoch whose writes are accepted; 0 if the tree never had an owner."""
    epoch: int | None = db.execute("SELECT epoch FROM leases WHERE root = ?", (root,)).get
    return epoch or 0


def check_executions(db: apsw.Connection, envelopes: Sequence[Envelope]) -> None:
    """Raise `SessionSuperseded` for an entry of an execution that is not the latest of its session."""
    checked = ""
    for envelope in envelopes:
        if envelope.tree_seq or envelope.log == checked:
            continue
        checked = envelope.log
        current = current_epoch(db, checked)
        if envelope.epoch < current:
            raise superseded(checked, envelope.epoch, current)


def raise_executions(db: apsw.Connection, started: Sequence[tuple[str, int]]) -> None:
    """Raise sessions to the executions that start. A first execution needs no row: none came before it."""
    for session, execution in started:
        if execution > 1:
            db.execute(
                "INSERT INTO leases (root, epoch) VALUES (?, ?)"
                " ON CONFLICT (root) DO UPDATE SET epoch = max(epoch, excluded.epoch)",
                (session, execution),
            )
            reseal(db, "leases", "root = ?", session)


def held(root: str, by: Holder) -> LeaseHeld:
    """Return the error for an attempt to change a tree that another process drives."""
    owner, seconds = by.owner, max(0, by.expires_at - by.now) / 1_000
    return LeaseHeld(
        "lease.held",
        f"run {root} is being driven by {owner.place}",
        hint="watch it, or stop that process first"
        + ("" if owner.is_visible() else f"; should it be dead, the run is free in {seconds:.0f} s"),
        details={
            "root": root,
            "pid": owner.pid,
            "started": owner.started,
            "boot_id": owner.boot_id,
            "machine": owner.machine,
        },
    )


def lost(root: str, epoch: int, current: int) -> LeaseLost:
    """Return the error for a write or an effect with a stale epoch."""
    return LeaseLost(
        "lease.lost",
        f"run {root} is not this process's any more (epoch {current}, this one had {epoch})",
        hint=f"another process continued it: fanfold watch {root}",
        details={"root": root, "epoch": epoch, "current": current},
    )


@cache
def _offset_ms() -> int:
    """Return how far the boot clock of this time namespace is ahead of the machine's."""
    try:
        lines = [line.split() for line in _OFFSETS.read_text().splitlines()]
    except OSError:
        return 0
    return sum(int(line[1]) * 1_000 + int(line[2]) // 1_000_000 for line in lines if line[0] == "boottime")


# -----------------------------------------------------------------------------------------------------------
# Renewal of leases
#
# Rules
# * A thread renews each lease after a third of its lifetime, even when the rest of the process is busy.
# * A lease counts as live for two thirds of its lifetime. The last third covers the time between the check
#   and the start of an effect. After two thirds the renewal is overdue: the process was stopped, the machine
#   slept, or the disk hangs. A caller that wants to start an effect then renews first, or gets `LeaseLost`.


class Renewal:
    """Renews the leases of this process in a thread.

    `renew` extends several leases in the store at once and returns the lost ones. It must be thread-safe.
    `on_loss` is called for each lease that the thread finds lost.
    """

    def __init__(
        self,
        renew: Callable[[Sequence[Lease]], Mapping[Lease, LeaseLost]],
        on_loss: Callable[[Lease], None],
        expiry_s: float,
    ) -> None:
        self._renew = renew
        self._on_loss = on_loss
        self._live_ms = int(expiry_s * 1_000 * 2 / 3)
        self._period_s = expiry_s / 3
        self._live_until: dict[Lease, int] = {}
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def keep(self, lease: Lease, taken_at: int) -> None:
        """Start to renew a lease that was acquired at `taken_at` (boot clock)."""
        self._live_until[lease] = taken_at + self._live_ms
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="fanfold leases", daemon=True)
            self._thread.start()

    def drop(self, lease: Lease) -> None:
        """Stop renewing a lease that was released or lost."""
        self._live_until.pop(lease, None)

    def confirm(self, lease: Lease) -> None:
        """Return if the lease is live; raise `LeaseLost` otherwise."""
        if boot_clock_ms() < self._live_until.get(lease, 0):
            return
        for loss in self._extend([lease]).values():
            raise loss

    def close(self) -> None:
        """Stop all renewals; leases that were not released expire."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        self._live_until.clear()

    def _extend(self, leases: Sequence[Lease]) -> Mapping[Lease, LeaseLost]:
        now = boot_clock_ms()
        lost = self._renew(leases)
        for lease in leases:
            if lease in lost:
                self.drop(lease)
            elif lease in self._live_until:  # otherwise it was released meanwhile
                self._live_until[lease] = now + self._live_ms
        return lost

    def _run(self) -> None:
        while not self._closed.wait(self._period_s):
            try:
                lost = self._extend(list(self._live_until))
            except StoreFault:
                continue  # the leases become overdue; `confirm` then retries and raises the error
            for lease in lost:
                self._on_loss(lease)


# -----------------------------------------------------------------------------------------------------------
# Claims: project files that steps change, across all processes
#
# Rules
# * A step acquires all files of its claim or none, in one transaction. A refused claim is queued. Its row
#   number is its position. A claim is refused if it overlaps with a held claim or with one ahead in the
#   queue.
# * So there is no starvation and no deadlock. The holder of a claim waits for no other claim. The first claim
#   in the queue waits only for holders.
# * Claims of the same tree never block each other: the scheduler of the tree orders its steps.
# * A claim is valid as long as the lease under which it was made. Claims of a dead owner are ignored.
# * A released claim is kept as `PAST` while any claim is held. So the holder of a claim can find out which
#   other steps may have changed files meanwhile.
# * Claims need not survive a power cut, because their owners do not survive it either.

WAITS, HELD, PAST = 0, 1, 2
_COLUMNS = "id, root, run_id, step, patterns, held"


def take_claims(db: apsw.Connection, lease: Lease, claim: Claim) -> Claim | None:
    """Acquire a claim, or queue it and return the claim that blocks it. Runs inside a write transaction."""
    current = current_epoch(db, lease.root)
    if current != lease.epoch:
        raise lost(lease.root, lease.epoch, current)
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
    """Return the claim of a live owner that blocks this claim."""
    place: int | None = db.execute(
        "SELECT id FROM claims WHERE root = ? AND run_id = ? AND step = ? AND held < 2",
        (claim.root, claim.run_id, claim.step),
    ).get
    from fanfold.kernel.paths import overlaps  # commands that only read do not need it

    for number, other, held in _others(db, claim.root):
        ahead = held == HELD or place is None or number < place
        if ahead and overlaps(claim.patterns, other.patterns) and _lives(db, other.root):
            return other
    return None


def drop(db: apsw.Connection, root: str, steps: list[tuple[str, str]]) -> None:
    """Release the claims of steps, given as (run id, path)."""
    for step in steps:
        _give_back(db, "root = ? AND run_id = ? AND step = ?", root, *step)
    _forget_past(db)


def drop_tree(db: apsw.Connection, root: str) -> bool:
    """Release all claims of a tree; return whether there were any."""
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
    """Return claims that other trees hold, and released claims that are kept as `PAST`."""
    query = f"SELECT {_COLUMNS} FROM claims WHERE root <> ? AND held > 0 ORDER BY id"  # noqa: S608 - constants only
    return [_claim(row) for row in db.execute(query, (root,))]


def waiting(db: apsw.Connection, root: str) -> list[str]:
    """Return the other trees that have a queued claim."""
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
    owner = holder(db, root)
    return owner is not None and owner.is_alive()


# -----------------------------------------------------------------------------------------------------------
# Requests: actions that other processes ask of a run, stored until the owner of the run handles them


def insert(db: apsw.Connection, request: Request, clean: Clean) -> int:
    """Store a request and return its id. Runs inside a write transaction."""
    data = clean(msgspec.json.encode(request.data)).decode()
    db.execute(
        "INSERT INTO requests (root, run_id, kind, data, at) VALUES (?, ?, ?, ?, ?)",
        (request.root, request.run_id, request.kind, data, request.at),
    )
    number = db.last_insert_rowid()
    reseal(db, "requests", "id = ?", number)
    return number


def select(db: apsw.Connection, root: str) -> list[Request]:
    """Return the requests of one tree, oldest first."""
    rows = db.execute("SELECT id, run_id, kind, data, at FROM requests WHERE root = ? ORDER BY id", (root,))
    return [
        Request(root=root, run_id=run, kind=kind, data=msgspec.json.decode(data), at=at, id=number)
        for number, run, kind, data, at in rows
    ]
