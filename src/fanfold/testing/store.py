"""A fake durable store: a list of log lines that forgets its unacknowledged tail in a crash.

Rules
* Lines are appended in tree order; `commit` acknowledges everything appended so far. A crash keeps
  what was acknowledged and any part of the rest, cut between two events (a torn tail).
* Appends carry the epoch of their owner's lease and are refused when another owner has taken it.
* What was acknowledged is remembered apart from the lines, so that losing it is seen (invariant 2).
"""

from __future__ import annotations

from hashlib import blake2b

from fanfold.kernel.events import Envelope, Event, log_line, read_line, type_name
from fanfold.kernel.nodes import Run


class StaleEpochError(Exception):
    """An append by an owner whose lease was taken over."""


class SimulatedStore:
    """The log of one run tree."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.logs: list[str] = []
        """Which log each line belongs to."""
        self.acknowledged = 0
        self.lease = 0
        self._sequences: dict[str, int] = {}
        self._receipt = blake2b(digest_size=16)
        """Hash over every acknowledged line, kept as the client would keep it."""

    def take_lease(self) -> int:
        """Become the owner; every earlier owner's appends are refused from now on."""
        self.lease += 1
        return self.lease

    def append(self, event: Event, run: Run, root: str, epoch: int) -> Envelope:
        """Write one event behind the others; durable after the next `commit`."""
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
        """Acknowledge everything appended so far."""
        for line in self.lines[self.acknowledged :]:
            self._receipt.update(line)
        self.acknowledged = len(self.lines)

    def crash(self, keep: int) -> int:
        """Lose the unacknowledged lines but the first `keep`; the number lost."""
        end = self.acknowledged + keep
        lost = len(self.lines) - end
        del self.lines[end:], self.logs[end:]
        self._sequences = {}
        for log in self.logs:
            self._sequences[log] = self._sequences.get(log, 0) + 1
        return lost

    def kept_its_word(self) -> bool:
        """Whether every acknowledged line is still there, in its place, unchanged."""
        digest = blake2b(digest_size=16)
        for line in self.lines[: self.acknowledged]:
            digest.update(line)
        return len(self.lines) >= self.acknowledged and digest.digest() == self._receipt.digest()

    def read(self) -> list[tuple[Envelope, Event]]:
        """Everything, as another process would read it."""
        return [read_line(line) for line in self.lines]

    def digest(self) -> str:
        """A hash of the whole log, byte for byte."""
        return blake2b(b"\n".join(self.lines), digest_size=16).hexdigest()
