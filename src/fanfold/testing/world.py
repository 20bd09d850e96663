"""What survives an owner: the store, the clock, the blobs, the people, and results still under way."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from fanfold.kernel.commands import (
    Command,
    Conclude,
    Create,
    Evaluate,
    Finish,
    Pause,
    Queue,
    Retry,
    Skip,
    Start,
    Stop,
)
from fanfold.kernel.decide import decide
from fanfold.kernel.events import (
    Data,
    Envelope,
    Event,
    Failure,
    ResumeRequested,
    RunCreated,
    RunFinished,
    RunPaused,
    RunResumed,
    StepEvent,
    SubagentEvent,
    TimerFired,
    ValueDecided,
    WorkflowEvent,
)
from fanfold.kernel.invariants import Auditor
from fanfold.kernel.plan import Step
from fanfold.kernel.state import (
    ASKED,
    BY_DEFAULT,
    COMPLETED,
    EVENT_WORDS,
    LEAF,
    WAITING,
    Composite,
    Loop,
    Node,
    State,
    fingerprint,
    is_shared_writer,
)
from fanfold.kernel.transitions import evolve
from fanfold.language.leaf_steps import ApprovalBody
from fanfold.language.step_grammar import read_body
from fanfold.testing.checks import NOWHERE, InvariantError, SimulatedValues, Watch, check_explained, fill_sets
from fanfold.testing.plans import random_additions, random_plan, random_settings
from fanfold.testing.simulated_store import Faults, SimulatedStore

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
        if isinstance(data, ValueDecided | ResumeRequested):
            rows.append(f"{run.nodes[data.step].status} + {data.kind}")
        elif isinstance(data, RunResumed):
            rows += [f"{node.status} + {data.kind}" for node in state.in_flight.values()]
        return rows
    if isinstance(data, StepEvent | SubagentEvent) and not data.late:
        return [f"{run.nodes[data.step].status} + {EVENT_WORDS.get(data.status, data.status)}"]
    return []


# -----------------------------------------------------------------------------------------------------------
# How the simulated host answers each command: rendered, evaluated and folded like a real one.

_EXPRESSION_FAILED = Failure("agent", "expression.failed", "the expression cannot be evaluated")
_NOT_RENDERED = Failure("agent", "template.unresolved", "the prompt cannot be rendered", retryable=False)


def answer(world: SimulatedWorld, state: State, command: Command) -> Data:
    """The one event that answers a command."""
    match command:
        case Evaluate():
            return _evaluate(world, state, command)
        case Queue():
            return _queue(_node(state, command))
        case Start():
            return _start(world, state, command)
        case Create():
            return _create(world, state, command)
        case Skip(step=step, reason=reason):
            return StepEvent(step, "skipped", reason=reason)
        case Retry():
            return _retry(state, command)
        case Stop(step=step, attempt=attempt, execution=execution, reason=reason):
            return StepEvent(step, "stopping", attempt, execution, reason=reason)
        case Conclude():
            return _conclude(world, state, command)
        case Finish():
            return _finish(world, state, command)
        case Pause(reason=reason):
            return RunPaused(reason)


def _node(state: State, command: Evaluate | Queue | Start | Retry | Conclude) -> Node:
    return state.runs[command.run].nodes[command.step]


def _evaluate(world: SimulatedWorld, state: State, command: Evaluate) -> Data:
    node = _node(state, command)
    step = node.step
    decided = ValueDecided(step=node.path, what=command.what)
    if command.what == "for_each":
        assert step.for_each is not None
        return _decided_items(world, decided, step.for_each)
    if command.what == "until":
        assert isinstance(node, Loop) and step.repeat is not None
        return _with(decided, value=_until(world, step.repeat.until, node.iteration))
    if step.when == "error":
        return _with(decided, error=_EXPRESSION_FAILED)
    passed = step.when != "false" and not (step.when == "coin" and world.rng.random() < 0.5)
    if not (step.templated_sets and node.kind == LEAF):
        return _with(decided, value=passed)
    reads, writes = fill_sets(node, step.read_set), fill_sets(node, step.write_set)
    return _with(decided, value=passed, read_set=reads, write_set=writes)


def _decided_items(world: SimulatedWorld, decided: ValueDecided, expression: str) -> Data:
    if expression == "error":
        return _with(decided, error=_EXPRESSION_FAILED)
    count = int(expression.removeprefix("items:"))
    return _with(decided, value=count, items=world.values.put(["items", count], NOWHERE))


def _until(world: SimulatedWorld, expression: str, iteration: int) -> bool:
    if expression == "coin":
        return world.rng.random() < 0.5
    return expression.startswith("from:") and iteration >= int(expression[5:])


def _with(decided: ValueDecided, **values: Any) -> ValueDecided:
    from msgspec.structs import replace

    return replace(decided, **values)


def _queue(node: Node) -> Data:
    word = "input" if node.step.after else "queued"
    shape = SubagentEvent if node.step.traits.role is not None else StepEvent
    return shape(node.path, word)


def _start(world: SimulatedWorld, state: State, command: Start) -> Data:
    node = _node(state, command)
    path, attempt, execution = node.path, command.attempt, command.execution
    if execution == 1 and command.type != "group" and world.faults.hits("unrendered"):
        return StepEvent(path, "failed", attempt, execution, error=_NOT_RENDERED)
    if node.step.traits.waits is not None:
        world.values.see(node)
        timer = node.step.traits.waits == "timer"
        due_at = world.now + world.rng.choice((0, 40, 400)) if timer else 0
        return StepEvent(path, "waiting", attempt, execution, due_at=due_at)
    if command.type == "group":
        return StepEvent(path, "started", attempt, execution)
    if command.type in ("set", "end"):
        output = world.values.result(node, attempt, world.values.see(node))
        return StepEvent(path, "completed", attempt, execution, output=output)
    if command.type == "workflow":
        return StepEvent(path, "started", attempt, execution, child_run_id=f"r{len(state.runs)}")
    if is_shared_writer(node) and world.faults.hits("held by another run"):
        return StepEvent(path, "held", attempt, execution, summary="another run")
    wait = state.waits.get(provider_of(node))
    if wait is not None and wait.probe is not node:
        world.reached["deferred"] += 1
        return StepEvent(path, "deferred", attempt, execution, reason=wait.subject)
    seen = world.values.see(node)
    if execution == 1 and node.step.cache and world.rng.random() < 0.5:
        world.reached["cached"] += 1
        output = world.values.result(node, attempt, seen)
        return StepEvent(path, "completed", attempt, execution, output=output, cached=True)
    role = node.step.traits.role
    if role is None:
        return StepEvent(path, "started", attempt, execution)
    session = f"s{world.events}"
    return SubagentEvent(
        path, "started", attempt, execution, parent_id=command.run, subagent_id=session, session_id=session,
        role=role, task=path, depth=1,
    )  # fmt: skip


def provider_of(node: Node) -> str:
    """Whom the agent of a step asks; steps of one role share it."""
    role = node.step.traits.role
    return "" if role is None else f"provider of {role}"


def _create(world: SimulatedWorld, state: State, command: Create) -> Data:
    call = state.runs[command.parent_run].nodes[command.step]
    inputs = world.values.inputs_of_child(call)
    return RunCreated(workflow=command.workflow, inputs=inputs, parent_run_id=command.parent_run)


def _retry(state: State, command: Retry) -> Data:
    node = _node(state, command)
    shape = SubagentEvent if node.step.traits.role is not None else StepEvent
    return shape(command.step, "retrying", node.attempt, node.execution, retry_at=command.retry_at)


def _conclude(world: SimulatedWorld, state: State, command: Conclude) -> Data:
    node = _node(state, command)
    output = None
    if isinstance(node, Composite):
        converged = not (command.error is not None and command.error.code == "step.not_converged")
        if command.status == COMPLETED or not converged:
            output = world.values.folded(node)
    elif command.reason == BY_DEFAULT:
        world.reached["approval default"] += 1
        output = world.values.put({"decision": read_body(ApprovalBody, node.step).default}, NOWHERE)
    status, attempt, execution = command.status, command.attempt, command.execution
    return StepEvent(
        command.step, status, attempt, execution, output, error=command.error, reason=command.reason
    )


def _finish(world: SimulatedWorld, state: State, command: Finish) -> Data:
    run = state.runs[command.run]
    output = world.values.run_output(run, run.plan) if run.scope.entered else None
    return RunFinished(status=command.status, output=output, error=command.error)


# -----------------------------------------------------------------------------------------------------------
# One owner of a run tree: it records events, answers commands, and lets executions begin.
#
# Rules, the same as for every host
# * Log before act: an execution begins after the event that announces it was committed.
# * The agenda is answered in order, one event a command, before anything else is reported.
# * An owner may die at any event boundary: `Crash` is raised after an event was appended and before
#   anybody acknowledged it, or between the commit and the first effect.

FOREVER_MS = 600_000
"""How long a hanging attempt takes: longer than any timeout of a plan."""


class Crash(BaseException):
    """The owner dies here. A signal, not an error."""


class Owner:
    def __init__(self, world: SimulatedWorld, state: State, epoch: int) -> None:
        self.world = world
        self.state = state
        self.epoch = epoch
        self.running: list[SimulatedExecution] = []
        self.effects: list[tuple[Command, Data]] = []
        """Announced in the log, not yet begun."""

    def record(self, run: str, data: Data, command: Command | None = None) -> None:
        """Append one event, fold it, check everything, and perhaps die."""
        world, state = self.world, self.state
        event = Event(run, world.now, data)
        envelope = world.store.append(event, state.runs[run], state.root.id, self.epoch)
        world.answered.append(command)
        rows, backoffs = transition(event, state), state.backoffs
        evolve(state, event)
        world.reached.update(rows)
        if isinstance(data, TimerFired) and state.backoffs < backoffs:
            world.reached["waiting + woke"] += 1
        world.observe(envelope, event, state)
        world.count(state)
        if world.faults.hits("crash"):
            if state.agenda:
                resuming = isinstance(data, RunResumed)
                world.reached["crash in resume" if resuming else "crash in agenda"] += 1
            raise Crash
        if world.faults.hits("slow disk"):
            world.now += world.rng.randint(1, 60)

    def work_off_agenda(self) -> None:
        """Answer every command; sometimes commit half-way, as a busy group commit would."""
        state, world = self.state, self.world
        while commands := decide(state):
            command = commands[0]
            world.watch.check(command, state)
            data = answer(world, state, command)
            if isinstance(command, Finish):
                self._check_quiet(command.run)
            # The effect is noted first: an owner that dies in `record` never comes to carry it out.
            if isinstance(command, Start | Stop):
                self.effects.append((command, data))
            self.record(command.run, data, command)
            if world.faults.hits("early commit"):
                self.commit()
        self.commit()
        if world.rng.random() < 0.1:
            check_explained(state)
        if world.watch.cancelled or state.plan.open:
            self._check_stopped()

    def _check_stopped(self) -> None:
        """A cancellation reaches every execution below it (invariant 9)."""
        for execution in self.running:
            node = self.state.runs[execution.run].nodes[execution.step]
            watch = self.world.watch
            ends = watch.is_cancelled(node.run) or watch.is_closing(node) or watch.lost_its_parent(node)
            if execution.type != "approval" and ends and not execution.stop:
                raise InvariantError(9, f"the cancellation did not reach {execution.step}")

    def _check_quiet(self, run: str) -> None:
        """A run ends after the executions in it, as the host knows them (invariant 9)."""
        for execution in self.running:
            if execution.run == run and execution.type != "approval":
                raise InvariantError(9, f"run {run} finishes while {execution.step} is executing")

    def commit(self) -> None:
        """Acknowledge what was recorded, then let the effects begin."""
        world = self.world
        world.store.commit()
        if self.effects and world.faults.hits("crash"):
            world.reached["crash before effect"] += 1
            raise Crash
        effects, self.effects = self.effects, []
        for command, data in effects:
            if isinstance(command, Stop):
                self._ask_to_stop(command)
            elif isinstance(command, Start) and getattr(data, "status", "") in ("started", "waiting"):
                self._launch(command)

    def _launch(self, command: Start) -> None:
        if command.type in ("group", "workflow"):
            return
        world = self.world
        node = self.state.runs[command.run].nodes[command.step]
        if node.step.traits.waits is not None:
            if node.step.traits.waits == "person":
                self.ask(command.run, command.step)
            return
        due = world.now + world.rng.choice((0, 1, 5, 10, 30, 90))
        if world.faults.hits("hang"):
            due = world.now + FOREVER_MS
        seen = world.values.see(node)
        self.running.append(
            SimulatedExecution(
                command.run, command.step, command.type, command.attempt, command.execution, due, seen
            )
        )

    def ask(self, run: str, step: str) -> None:
        """Put an approval before a person."""
        world = self.world
        due = None if world.faults.hits("nobody answers") else world.now + world.rng.choice((5, 50, 500))
        self.running.append(SimulatedExecution(run, step, "approval", 1, 1, due, []))

    def _ask_to_stop(self, command: Stop) -> None:
        world = self.world
        for execution in self.running:
            if (execution.run, execution.step, execution.attempt, execution.execution) == (
                command.run, command.step, command.attempt, command.execution,
            ):  # fmt: skip
                execution.stop = command.reason
                grace = 500 if world.faults.hits("deaf to stop") else world.rng.choice((0, 1, 5))
                execution.due = min(execution.due or world.now + grace, world.now + grace)
                return
        raise InvariantError(9, f"{command.step} is asked to stop, but nothing of it is executing")

    def recall_people(self) -> None:
        """After a crash the approvals that are open are still before people."""
        for run in self.state.runs.values():
            for node in run.nodes.values():
                asks = node.step.traits.waits == "person" or node.reason == ASKED
                if node.status == WAITING and asks:
                    self.ask(run.id, node.path)
