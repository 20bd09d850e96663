"""One seed, one schedule: a random plan driven to its end through crashes and takeovers."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct

from fanfold.errors import BugError
from fanfold.kernel.events import CancelRequested, Created, Event, Forked, Resumed, Started, Woke
from fanfold.kernel.invariants import InvariantViolation
from fanfold.kernel.lifecycle import PENDING, RUN_TERMINAL, RUNNING, WAITING
from fanfold.kernel.nodes import Run, State
from fanfold.kernel.state import create_state, evolve
from fanfold.testing.checks import InvariantError, check_acknowledged, check_due, check_replay
from fanfold.testing.coverage import count_constructs
from fanfold.testing.outside import next_report, report_late
from fanfold.testing.owner import Crash, Owner
from fanfold.testing.store import StaleEpochError
from fanfold.testing.world import ROOT, SimulatedWorld

PATIENCE_S = 10.0
"""Processor time one schedule may take; the longest take a tenth of a second."""


class SimulatedOutcome(Struct):
    """What became of a schedule."""

    seed: int
    status: str
    events: int
    crashes: int
    digest: str
    reached: Counter[str]
    violation: InvariantViolation | None = None
    tail: list[str] = []


def run_schedule(seed: int, tail: int = 12) -> SimulatedOutcome:
    """Drive one seed to its end; never raises for a defect of the kernel, but reports it.

    The outcome holds the last `tail` lines of the log, so that a violation can be read.
    """
    world = SimulatedWorld(seed)
    violation: InvariantViolation | None = None
    status = "broken"
    try:
        with _patience():
            status = _drive(world)
    except InvariantError as error:
        violation = error.violation
    except BugError as error:
        violation = InvariantViolation(0, f"the kernel refused its own host: {error.code}: {error.message}")
    except (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        violation = InvariantViolation(0, f"{type(error).__name__}: {error}")
    store = world.store
    return SimulatedOutcome(
        seed, status, world.events, world.faults.crashes, store.digest(), world.reached, violation,
        [line.decode() for line in store.lines[-tail:]],
    )  # fmt: skip


@contextmanager
def _patience() -> Iterator[None]:
    """A kernel that never comes back is a violation too; processor time, so that a busy machine is none."""

    def give_up(_signal: int, _frame: object) -> None:
        raise InvariantError(19, "a decision takes for ever")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, PATIENCE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _drive(world: SimulatedWorld) -> str:
    owner = create_run(world)
    while True:
        try:
            live(owner)
            break
        except Crash:
            owner = _take_over(world, owner)
    return _finish(world, owner)


def create_run(world: SimulatedWorld, shape: type[Owner] = Owner) -> Owner:
    """Take the lease and record the first event."""
    epoch = world.store.take_lease()
    inputs = world.values.put({"topic": "t"}, frozenset())
    created = Created(plan=world.plan, settings=world.settings, inputs=inputs, epoch=epoch)
    event = Event(ROOT, world.now, created)
    envelope = world.store.append(event, Run(ROOT, world.plan, None, None), ROOT, epoch)
    world.answered.append(None)
    state = create_state(event)
    world.observe(envelope, event, state)
    return shape(world, state, epoch)


def _begin(owner: Owner) -> None:
    """Start, or resume what another owner left."""
    state = owner.state
    if owner.epoch > state.epoch and state.root.status not in RUN_TERMINAL:
        owner.record(ROOT, Resumed(owner.epoch))
    if state.root.status == PENDING:
        if owner.world.rng.random() < 0.05:
            owner.record(ROOT, Forked("from another run"))
        owner.record(ROOT, CancelRequested() if owner.world.faults.hits("cancel") else Started())


def live(owner: Owner) -> None:
    """Start or resume the run and stay with it until it ends, or nothing can happen any more."""
    _begin(owner)
    while True:
        owner.work_off_agenda()
        if owner.state.root.status in RUN_TERMINAL or not next_report(owner):
            return


def _take_over(world: SimulatedWorld, dead: Owner) -> Owner:
    """Another process finds what the dead owner left behind."""
    rng, store, faults = world.rng, world.store, world.faults
    pending = len(store.lines) - store.acknowledged
    if store.crash(rng.randint(0, pending)):
        world.reached["torn tail"] += 1
    check_acknowledged(store)
    world.orphans += [one for one in dead.running if one.type != "approval" and rng.random() < 0.5]
    del world.orphans[:-8]
    world.forget_the_log()
    world.now += rng.choice((0, 5, 50_000))
    if not store.lines:
        world.reached["crash before creation"] += 1
        return create_run(world)
    epoch = store.take_lease()
    if faults.hits("zombie"):
        _append_stale(world, dead)
    owner = Owner(world, _read_again(world), epoch)
    owner.recall_people()
    return owner


def _append_stale(world: SimulatedWorld, dead: Owner) -> None:
    """The old owner was only slow: whatever it still writes must be refused (invariant 11)."""
    event = Event(ROOT, world.now, Woke())
    try:
        world.store.append(event, dead.state.root, ROOT, dead.epoch)
    except StaleEpochError:
        return
    raise InvariantError(11, "the store took an append of an owner whose lease was taken over")


def _read_again(world: SimulatedWorld) -> State:
    """Fold the log as found, with every check on the way."""
    stored = world.store.read()
    state = create_state(stored[0][1])
    world.observe(*stored[0], state)
    for (envelope, event), command in zip(stored[1:], world.answered[1:], strict=True):
        check_due(command, event, state)
        evolve(state, event)
        world.observe(envelope, event, state)
    return state


def _finish(world: SimulatedWorld, owner: Owner) -> str:
    """After the end: late results change nothing, and the stored log tells the same story again."""
    state, status = owner.state, owner.state.root.status
    world.faults.calm = True
    if status in RUN_TERMINAL:
        for orphan in world.orphans[:3]:
            world.reached["late after the end"] += 1
            report_late(owner, orphan)
        violations = world.auditor.close(state)
        if violations:
            raise InvariantError(violations[0].number, violations[0].message)
        if state.root.status != status:
            raise InvariantError(10, "a late result changed the status of a run that had ended")
    world.store.commit()
    check_replay(world.store, world.answered, world.sampled, state)
    if status == RUNNING:
        status = WAITING
    world.reached[f"run {status}"] += 1
    count_constructs(state, world.reached)
    return status
