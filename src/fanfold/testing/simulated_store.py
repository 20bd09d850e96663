"""A fake durable store: a list of log lines that forgets its unacknowledged tail in a crash.

Rules
* Lines are appended in tree order; `commit` acknowledges all lines so far. A crash keeps the acknowledged
  lines and any part of the rest, cut between two events (a torn tail).
* Appends carry the epoch of their owner's lease and are refused after another owner acquired it.
* A separate hash covers the acknowledged lines, so that their loss is detected (invariant 2).
"""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from random import Random

from fanfold.kernel.events import Envelope, Event, log_line, read_line, type_name
from fanfold.kernel.state import Run


class StaleEpochError(Exception):
    """An append by an owner whose lease was taken over."""


class SimulatedStore:
    """The log of one run tree."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.logs: list[str] = []
        """The log of each line."""
        self.acknowledged = 0
        self.lease = 0
        self._sequences: dict[str, int] = {}
        self._receipt = blake2b(digest_size=16)
        """The hash of every acknowledged line, as a client would store it."""

    def take_lease(self) -> int:
        """Acquire the lease; appends of earlier owners are refused from now on."""
        self.lease += 1
        return self.lease

    def append(self, event: Event, run: Run, root: str, epoch: int) -> Envelope:
        """Append one event, durable after the next `commit`."""
        if epoch != self.lease:
            raise StaleEpochError(f"epoch {epoch} is stale, {self.lease} owns the run")
        seq = self._sequences.get(event.run, 0) + 1
        self._sequences[event.run] = seq
        envelope = Envelope(
            log=event.run,
            seq=seq,
            tree_seq=len(self.lines) + 1,
            at=event.at,
            type=type_name(event.data),
            data=event.data,
            run_id=event.run,
            root_run_id=root,
            parent_run_id=None if run.parent is None else run.parent.id,
            depth=run.depth,
            path=run.path,
            epoch=epoch,
        )
        self.lines.append(log_line(envelope))
        self.logs.append(event.run)
        return envelope

    def commit(self) -> None:
        """Acknowledge all lines so far."""
        for line in self.lines[self.acknowledged :]:
            self._receipt.update(line)
        self.acknowledged = len(self.lines)

    def crash(self, keep: int) -> int:
        """Lose the unacknowledged lines except the first `keep`; return the number of lost lines."""
        end = self.acknowledged + keep
        lost = len(self.lines) - end
        del self.lines[end:], self.logs[end:]
        self._sequences = {}
        for log in self.logs:
            self._sequences[log] = self._sequences.get(log, 0) + 1
        return lost

    def kept_its_word(self) -> bool:
        """Return whether every acknowledged line is unchanged and in its place."""
        digest = blake2b(digest_size=16)
        for line in self.lines[: self.acknowledged]:
            digest.update(line)
        return len(self.lines) >= self.acknowledged and digest.digest() == self._receipt.digest()

    def read(self) -> list[tuple[Envelope, Event]]:
        """Return all lines, as another process would read them."""
        return [read_line(line) for line in self.lines]

    def digest(self) -> str:
        """Return a hash of the whole log."""
        return blake2b(b"\n".join(self.lines), digest_size=16).hexdigest()


# -----------------------------------------------------------------------------------------------------------
# The faults of a schedule and their frequency.
#
# Each schedule has its own random mixture: some faults are off, some rare, some frequent, so that thousands
# of schedules contain every pair. When a schedule is `calm`, no more faults occur, and the run must finish
# (invariant 19).

RATES: dict[str, tuple[float, ...]] = {
    # Per recorded event.
    "crash": (0.005, 0.03, 0.15), "slow disk": (0.02, 0.2), "early commit": (0.1, 0.5),
    # Per attempt.
    "failure": (0.1, 0.3, 0.7), "hang": (0.05, 0.2), "interruption": (0.05, 0.2),
    "unasked end": (0.03, 0.1), "unrendered": (0.02, 0.1), "deaf to stop": (0.3,),
    "held by another run": (0.3, 0.7), "outage": (0.1, 0.5), "limit": (0.1,), "daily_cap": (0.1,),
    "kept waits": (0.5,), "overspending": (0.2, 0.7), "budget used up": (0.2, 0.5),
    # Per answer of a person.
    "rejection": (0.3,), "no answer": (0.3, 1.0),
    # Per report from outside.
    "reordering": (0.3, 1.0), "duplicate": (0.05, 0.2), "late result": (0.2, 0.7), "pause": (0.01, 0.08),
    "pause while waiting": (0.3, 0.8), "cancel": (0.01, 0.04), "cancel child": (0.03, 0.15),
    "clock forward": (0.02, 0.1), "clock backward": (0.02, 0.1), "chatter": (0.05,), "payment": (0.05, 0.3),
    # Per crash, per resume.
    "zombie": (0.5,), "workers survive": (0.5, 1.0), "cancel while paused": (0.1, 0.4),
    "nothing raised": (0.4,), "raised for nothing": (0.3,),
}  # fmt: skip
FAULTS = tuple(RATES)
FAILURES = (
    "transport", "transport", "transport", "rate_limit", "rate_limit", "timeout", "agent", "agent",
    "invalid_output", "tool", "conflict", "violation", "quota", "permission", "internal",
)  # fmt: skip
"""Classes of failures; common ones appear more than once."""
TRANSIENT = ("transport", "rate_limit")
"""Classes in some schedules without worse faults, so that steps reach their second and third attempt."""
MAX_CRASHES = 12


class Faults:
    """The faults of one schedule; `hits` decides at random and counts those that occurred."""

    def __init__(self, rng: Random, reached: Counter[str]) -> None:
        self.rng = rng
        self.reached = reached
        share = 0.0 if rng.random() < 0.12 else rng.choice((0.1, 0.2, 0.35, 0.6))
        self.rates = {name: rng.choice(rates) for name, rates in RATES.items() if rng.random() < share}
        if self.rates and rng.random() < 0.4:
            self.rates["failure"] = 0.3
        self.kinds = FAILURES if rng.random() < 0.6 else TRANSIENT
        self.crashes = 0
        self.calm = not self.rates
        self.lasting = rng.choice((30, 100, 300, 600))
        """The number of events after which no fault occurs."""

    def hits(self, name: str) -> bool:
        """Return whether the fault occurs now."""
        rate = 0.0 if self.calm else self.rates.get(name, 0.0)
        if rate == 0.0 or self.rng.random() >= rate:
            return False
        if name == "crash":
            if self.crashes >= MAX_CRASHES:
                return False
            self.crashes += 1
        self.reached[name] += 1
        return True
