"""What survives an owner: the store, the clock, the blobs, the people, and results still under way."""

from __future__ import annotations

from collections import Counter
from random import Random

from fanfold.kernel.commands import Command
from fanfold.kernel.events import (
    Decided,
    Envelope,
    Event,
    Resumed,
    ResumeRequested,
    StepEvent,
    SubagentEvent,
    WorkflowEvent,
)
from fanfold.kernel.fingerprint import fingerprint
from fanfold.kernel.invariants import Auditor
from fanfold.kernel.lifecycle import EVENT_WORDS
from fanfold.kernel.nodes import State
from fanfold.kernel.plan import Step
from fanfold.testing.checks import InvariantError, Watch
from fanfold.testing.faults import Faults
from fanfold.testing.plans import random_additions, random_plan, random_settings
from fanfold.testing.store import SimulatedStore
from fanfold.testing.values import SimulatedValues

ROOT = "r0"


class SimulatedExecution:
    """One execution of one attempt that is really under way, or a person who was asked."""

    __slots__ = ("attempt", "due", "execution", "run", "seen", "step", "stop", "type")

    def __init__(
        self, run: str, step: str, type_: str, attempt: int, execution: int, due: int | None, seen: list[str]
    ) -> None:
        self.run = run
        self.step = step
        self.type = type_
        self.attempt = attempt
        self.execution = execution
        self.due = due
        """When it will report; None: never, unless it is stopped."""
        self.seen = seen
        self.stop = ""


class SimulatedWorld:
    """One seed's world."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.reached: Counter[str] = Counter()
        """What occurred: constructs, faults, transitions, ends."""
        self.additions: tuple[Step, ...] = ()
        """What people add to an open run, in order."""
        if self.rng.random() < 0.3:
            self.plan, self.additions = random_additions(self.rng)
        else:
            self.plan = random_plan(self.rng)
        self.settings = random_settings(self.rng, self.plan)
        self.faults = Faults(self.rng, self.reached)
        self.store = SimulatedStore()
        self.values = SimulatedValues()
        self.watch = Watch()
        self.auditor = Auditor()
        self.now = 1_000_000
        self.answered: list[Command | None] = []
        """For each line, the command it answered."""
        self.sampled: dict[int, str] = {}
        """Fingerprints taken live, by line."""
        self.orphans: list[SimulatedExecution] = []
        """Executions whose owner died, or that were answered for already; they may still report."""
        self.events = 0
        self.calm_events = 0

    def observe(self, envelope: Envelope, event: Event, state: State) -> None:
        """Check everything that can be checked after one event."""
        self.values.note(event, state)
        self.watch.note(event, state)
        violations = self.auditor.observe(envelope, event, state)
        if violations:
            raise InvariantError(violations[0].number, violations[0].message)

    def forget_the_log(self) -> None:
        """A crash may have cut the log: everything derived from it is derived again."""
        self.auditor = Auditor()
        self.values.forget_the_log()
        self.watch = Watch()
        self.sampled = {place: mark for place, mark in self.sampled.items() if place < len(self.store.lines)}
        del self.answered[len(self.store.lines) :]

    def count(self, state: State) -> None:
        """One more event was recorded live: sample, and see whether the faults are over."""
        self.events += 1
        faults = self.faults
        if self.events >= faults.lasting:
            faults.calm = True
        if faults.calm:
            self.calm_events += 1
            if self.calm_events > 400 + 60 * state.instances:
                raise InvariantError(19, "the faults have stopped long ago and the run goes on and on")
        if self.rng.random() < 0.02:
            self.sampled[len(self.store.lines) - 1] = fingerprint(state)


def transition(event: Event, state: State) -> list[str]:
    """The rows of the transition tables that an event is about to use."""
    data, run = event.data, state.runs[event.run]
    if isinstance(data, WorkflowEvent):
        rows = [f"run {run.status} + {data.kind}"]
        if isinstance(data, Decided | ResumeRequested):
            rows.append(f"{run.nodes[data.step].status} + {data.kind}")
        elif isinstance(data, Resumed):
            rows += [f"{node.status} + {data.kind}" for node in state.in_flight.values()]
        return rows
    if isinstance(data, StepEvent | SubagentEvent) and not data.late:
        return [f"{run.nodes[data.step].status} + {EVENT_WORDS.get(data.status, data.status)}"]
    return []
