"""Run many schedules and report each seed that violates an invariant.

    python -m fanfold.testing.simulate --seed 1 --count 20000 [--jobs N] [--verbose]

One schedule per seed. A violation prints the invariant, the end of the log and the command that repeats this
schedule; the exit status is then 1. The summary counts the constructs, faults and transitions that occurred,
because a simulation without a fault proves nothing about it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import Pool

from msgspec import Struct, field

from fanfold.errors import BugError
from fanfold.kernel.events import (
    CancelRequested,
    Event,
    ExecutionRef,
    RunCreated,
    RunForked,
    RunResumed,
    RunStarted,
    TimerFired,
)
from fanfold.kernel.invariants import InvariantViolation
from fanfold.kernel.plan import MAX_NESTING_DEPTH, GroupAction
from fanfold.kernel.state import (
    PENDING,
    RUN_TERMINAL,
    RUN_TRANSITIONS,
    RUNNING,
    STEP_TRANSITIONS,
    WAITING,
    Loop,
    Map,
    Node,
    Run,
    Scope,
    State,
    WorkflowCall,
)
from fanfold.kernel.transitions import create_state, evolve, is_executing
from fanfold.testing.checks import InvariantError, check_acknowledged, check_due, check_replay
from fanfold.testing.outside import next_report, report_late
from fanfold.testing.simulated_store import FAILURES, FAULTS, StaleEpochError
from fanfold.testing.world import ROOT, Crash, Owner, SimulatedWorld

# -----------------------------------------------------------------------------------------------------------
# The constructs that a schedule reached, counted in its final tree of instances.

CONSTRUCTS = (
    "agent", "function", "command", "workflow", "approval", "group", "timer", "note", "set", "end", "deliver",
    "agent without a slot",
    "depends_on", "when", "for_each", "empty for_each", "for_each over a group", "for_each over a call",
    "repeat", "repeat inside for_each", "repeat of a group", "fold", "nested group", "nested child run",
    "deepest child run", "run.depth refused", "two calls of one workflow", "cached", "templated sets",
    "shared writer", "isolated writer", "scope slots", "scope agents", "child slots", "child agents",
    "child budget", "child timeout", "root budget", "on_failure inline", "on_failure stop",
    "approval timeout", "approval default", "step timeout", "group timeout", "call timeout", "run timeout",
    "retried", "restarted", "not converged", "expression failed", "skipped for a failure",
    "skipped by condition", "skipped for the end",
)  # fmt: skip
SKIPS = {
    "failure": "skipped for a failure",
    "condition": "skipped by condition",
    "ended": "skipped for the end",
}
SITUATIONS = (
    "crash before creation", "crash in agenda", "crash before effect", "crash in resume", "torn tail",
    "late", "late after the end", "answer while paused", "resumed after a pause", "paused for a limit",
    "added", "next turn", "input to a running child", "input after a failure", "closed while running",
    "closed while queued", "closed when over", "refused behind a closed one", "interrupted child resumed",
    "interrupted child closed", "asked to end", "asked for by an agent", "asked while paused",
    "held by a limit of a scope", "live child cancelled", "approval by choice", "agreed", "not agreed",
    "run waiting", "deferred", "continued by another owner",
    *(f"failure {kind}" for kind in FAILURES),
)  # fmt: skip
"""Outcomes that need a combination of faults and constructs."""


def count_constructs(state: State, reached: Counter[str]) -> None:
    """Count every construct of the tree once per instance."""
    for run in state.runs.values():
        for node in run.nodes.values():
            step = node.step
            if isinstance(node, Map):
                reached["for_each"] += 1
                reached["empty for_each"] += node.count == 0
                reached["for_each over a group"] += step.type == "group" and len(node.children) > 1
                reached["for_each over a call"] += step.type == "workflow" and len(node.children) > 1
            elif isinstance(node, Loop):
                reached["repeat"] += node.iteration > 1
                reached["repeat inside for_each"] += isinstance(node.parent, Map)
                reached["repeat of a group"] += step.type == "group"
                reached["fold"] += bool(node.children) and node.children[-1].step is step.fold
            else:
                reached[step.type] += 1
            reached["agent without a slot"] += step.traits.role is not None and not step.traits.slot
            reached["depends_on"] += bool(step.depends_on)
            reached["when"] += step.when is not None
            reached["templated sets"] += step.templated_sets
            if step.posture == "writer" and node.attempt:
                reached[f"{step.workspace_mode} writer"] += 1
            if isinstance(node, Scope):
                assert isinstance(step.action, GroupAction)
                inner = isinstance(node.parent, Scope) and node.parent is not node.run.scope
                reached["nested group"] += inner
                reached["scope slots"] += step.action.max_concurrency is not None
                reached["scope agents"] += step.action.max_agents is not None
            _count_end(node, reached)
        if run.parent is not None:
            limits = run.plan.limits
            reached["child slots"] += limits.max_concurrency is not None
            reached["child agents"] += limits.max_agents is not None
            reached["child budget"] += limits.budget.tokens is not None or limits.budget.micro_usd is not None
            reached["child timeout"] += limits.timeout_ms is not None
            reached["nested child run"] += run.depth > 1
            reached["deepest child run"] += run.depth == MAX_NESTING_DEPTH
        reached["run timeout"] += run.status == "timed_out"
    calls = Counter(id(run.plan) for run in state.runs.values())
    reached["two calls of one workflow"] += max(calls.values()) > 1
    reached["root budget"] += state.ledger.limited


def _count_end(node: Node, reached: Counter[str]) -> None:
    step, status = node.step, node.status
    if status == "timed_out":
        kind = "call" if isinstance(node, WorkflowCall) else step.type
        reached[f"{kind if kind in ('call', 'group', 'approval') else 'step'} timeout"] += 1
    if status in ("failed", "timed_out"):
        reached[f"on_failure {step.on_failure}"] += 1
        assert node.error is not None
        code = node.error.code
        reached["not converged"] += code == "step.not_converged"
        reached["expression failed"] += code == "expression.failed"
        reached["run.depth refused"] += code == "run.depth"
    elif status == "skipped":
        reached[SKIPS[node.reason]] += 1
    reached["retried"] += node.attempt > 1
    reached["restarted"] += node.execution > 1


# -----------------------------------------------------------------------------------------------------------
# One seed is one schedule: a random plan, driven to its end through crashes and take-overs.

PATIENCE_S = 10.0
"""The limit of processor time of one schedule; the longest take a tenth of a second."""


class SimulatedOutcome(Struct):
    """The outcome of one schedule."""

    seed: int
    status: str
    events: int
    crashes: int
    digest: str
    reached: Counter[str]
    violation: InvariantViolation | None = None
    tail: list[str] = []


def run_schedule(seed: int, tail: int = 12) -> SimulatedOutcome:
    """Run the schedule of one seed. A defect of the kernel is reported in the outcome, never raised.

    The outcome contains the last `tail` lines of the log for reading a violation.
    """
    world = SimulatedWorld(seed)
    violation: InvariantViolation | None = None
    status = "broken"
    try:
        with _patience():
            owner = create_run(world)
            while True:
                try:
                    live(owner)
                    break
                except Crash:
                    owner = _take_over(world, owner)
            status = _finish(world, owner)
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
    """Report an endless loop in the kernel as a violation, by processor time, not by wall-clock time."""

    def give_up(_signal: int, _frame: object) -> None:
        raise InvariantError(19, "a decision does not end")

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


def create_run(world: SimulatedWorld, shape: type[Owner] = Owner) -> Owner:
    """Acquire the lease and record the first event."""
    epoch = world.store.take_lease()
    inputs = world.values.put({"topic": "t"}, frozenset())
    created = RunCreated(plan=world.plan, settings=world.settings, inputs=inputs, epoch=epoch)
    event = Event(ROOT, world.now, created)
    envelope = world.store.append(event, Run(ROOT, world.plan, None, None), ROOT, epoch)
    world.answered.append(None)
    state = create_state(event)
    world.observe(envelope, event, state)
    return shape(world, state, epoch)


def live(owner: Owner) -> None:
    """Start or resume the run, and drive it until it finishes or nothing more can happen."""
    state = owner.state
    if owner.epoch > state.epoch and state.root.status not in RUN_TERMINAL:
        continues = tuple(
            ExecutionRef(execution.run, execution.step, execution.attempt, execution.execution)
            for execution in owner.running
            if execution.type != "approval"
        )
        owner.world.reached["continued by another owner"] += len(continues)
        keep_waits = owner.world.rng.random() < 0.5
        owner.record(ROOT, RunResumed(owner.epoch, keep_waits=keep_waits, continues=continues))
    if state.root.status == PENDING:
        if owner.world.rng.random() < 0.05:
            owner.record(ROOT, RunForked("from another run"))
        owner.record(ROOT, CancelRequested() if owner.world.faults.hits("cancel") else RunStarted())
    while True:
        owner.work_off_agenda()
        if owner.state.root.status in RUN_TERMINAL or not next_report(owner):
            return


def _take_over(world: SimulatedWorld, dead: Owner) -> Owner:
    """Take over from a dead owner, as another process."""
    rng, store, faults = world.rng, world.store, world.faults
    pending = len(store.lines) - store.acknowledged
    if store.crash(rng.randint(0, pending)):
        world.reached["torn tail"] += 1
    check_acknowledged(store)
    left = [execution for execution in (*dead.running, *dead.reported) if execution.type != "approval"]
    survivors = (
        [execution for execution in left if rng.random() < 0.7] if faults.hits("workers survive") else []
    )
    world.orphans += [execution for execution in left if execution not in survivors and rng.random() < 0.5]
    del world.orphans[:-8]
    world.forget_the_log()
    world.now += rng.choice((0, 5, 50_000))
    if not store.lines:
        world.reached["crash before creation"] += 1
        return create_run(world)
    epoch = store.take_lease()
    if faults.hits("zombie"):
        # The old owner was only slow: everything that it still writes must be refused (invariant 11).
        with suppress(StaleEpochError):
            world.store.append(Event(ROOT, world.now, TimerFired()), dead.state.root, ROOT, dead.epoch)
            raise InvariantError(11, "the store accepted an append of an owner that had lost its lease")
    stored = world.store.read()
    state = create_state(stored[0][1])
    world.observe(*stored[0], state)
    for (envelope, event), command in zip(stored[1:], world.answered[1:], strict=True):
        check_due(command, event, state)
        evolve(state, event)
        world.observe(envelope, event, state)
    owner = Owner(world, state, epoch)
    for survivor in survivors:
        node = (
            owner.state.runs[survivor.run].nodes[survivor.step] if survivor.run in owner.state.runs else None
        )
        if (
            node
            and is_executing(node)
            and (node.attempt, node.execution) == (survivor.attempt, survivor.execution)
        ):
            owner.running.append(survivor)
    owner.recall_people()
    return owner


def _finish(world: SimulatedWorld, owner: Owner) -> str:
    """Check after the end that late results change nothing and that the log gives the same state."""
    state, status = owner.state, owner.state.root.status
    world.faults.calm = True
    if status in RUN_TERMINAL:
        for orphan in world.orphans[:3]:
            world.reached["late after the end"] += 1
            report_late(owner, orphan)
        if violations := world.auditor.close(state):
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


CHUNK = 50


class Tally(Struct):
    """The summary of a number of schedules."""

    schedules: int = 0
    events: int = 0
    crashes: int = 0
    reached: Counter[str] = field(default_factory=Counter)
    broken: list[SimulatedOutcome] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.schedules += other.schedules
        self.events += other.events
        self.crashes += other.crashes
        self.reached.update(other.reached)
        self.broken += other.broken

    def missing(self) -> list[str]:
        """Return constructs, faults and rows of the transition tables that never occurred."""
        rows = (f"{status} + {word}" for status, word in STEP_TRANSITIONS)
        run_rows = (f"run {status} + {word}" for status, word in RUN_TRANSITIONS)
        wanted = (*CONSTRUCTS, *SITUATIONS, *FAULTS, *rows, *run_rows)
        return [name for name in wanted if not self.reached[name]]


def run_schedules(seeds: Iterable[int]) -> Tally:
    """Run schedules one after the other; stop at the first that violates an invariant."""
    tally = Tally()
    for seed in seeds:
        outcome = run_schedule(seed)
        broken = [] if outcome.violation is None else [outcome]
        tally.add(Tally(1, outcome.events, outcome.crashes, outcome.reached, broken))
        if broken:
            break
    return tally


def simulate(seed: int, count: int, jobs: int, *, say: bool = False) -> Tally:
    """Run `count` schedules on `jobs` processes."""
    total, began, spoke = Tally(), time.monotonic(), time.monotonic()
    pool = Pool(jobs) if jobs > 1 and count > CHUNK else None
    end = seed + count
    chunks = (range(start, min(start + CHUNK, end)) for start in range(seed, end, CHUNK))
    try:
        for tally in pool.imap_unordered(run_schedules, chunks) if pool else map(run_schedules, chunks):
            total.add(tally)
            if total.broken:
                break
            if say and time.monotonic() - spoke > 2:
                spoke = time.monotonic()
                rate = total.schedules / (spoke - began)
                print(f"{total.schedules}/{count} schedules, {rate:.0f}/s", file=sys.stderr, flush=True)
    finally:
        if pool is not None:
            pool.terminate()
            pool.join()
    return total


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fanfold.testing.simulate", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--count", type=int, default=1_000, help="schedules to run, one per seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--verbose", action="store_true", help="count everything that occurred")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    tally = simulate(options.seed, options.count, options.jobs, say=True)
    for outcome in tally.broken:
        assert outcome.violation is not None
        number, message = outcome.violation.number, outcome.violation.message
        print(f"seed {outcome.seed}: " + (f"invariant {number}: {message}" if number else message))
        print("the log ends with")
        for line in outcome.tail:
            print("  " + (line if len(line) <= 600 else line[:600] + "…"))
        print("to repeat:")
        print(f"  python -m fanfold.testing.simulate --seed {outcome.seed} --count 1")
    if options.count == 1 and options.verbose:
        print("\n".join(line for line in replay_lines(options.seed)))
    seconds = time.monotonic() - began
    rate = tally.schedules / seconds if seconds else 0.0
    print(
        f"{tally.schedules} schedules, {tally.events} events, {tally.crashes} crashes in {seconds:.1f} s"
        f" ({rate:.0f} schedules/s)"
    )
    if options.verbose:
        for name, count in sorted(tally.reached.items()):
            print(f"  {count:>9}  {name}")
    missing = tally.missing()
    print(
        "never reached: " + ", ".join(missing) if missing else "reached every construct, fault and transition"
    )
    return 1 if tally.broken else 0


def replay_lines(seed: int) -> list[str]:
    """Print the whole log of one schedule."""
    return run_schedule(seed, tail=1_000_000).tail


if __name__ == "__main__":
    sys.exit(main())
