"""The world that survives an owner: store, clock, blobs, users, and pending results."""

from __future__ import annotations

from collections import Counter
from random import Random

from fanfold.engine.command_handler import CommandHandler, World, evaluate_expression, not_started
from fanfold.kernel.commands import Command, Create, Finish, Start, Stop
from fanfold.kernel.events import (
    Data,
    Envelope,
    Event,
    Failure,
    ResumeRequested,
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
    EVENT_WORDS,
    WAITING,
    Composite,
    Loop,
    Map,
    Node,
    Run,
    State,
    fingerprint,
)
from fanfold.kernel.transitions import evolve
from fanfold.language.leaf_steps import ApprovalBody, read_body
from fanfold.language.template import UnresolvedPath
from fanfold.steps.order import CallJob, GroupJob, Job, Order, Question, SettledJob, Timer
from fanfold.testing.checks import NOWHERE, InvariantError, SimulatedValues, Watch, check_explained, fill_sets
from fanfold.testing.plans import random_additions, random_plan, random_settings
from fanfold.testing.simulated_store import Faults, SimulatedStore

ROOT = "r0"


class SimulatedExecution:
    """A running execution of one attempt, or an open question to a user."""

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
        """The time of its report; None if it reports only after a stop."""
        self.seen = seen
        self.stop = ""


class SimulatedWorld:
    """The world of one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.reached: Counter[str] = Counter()
        """The number of occurrences of constructs, faults, transitions and ends."""
        self.additions: tuple[Step, ...] = ()
        """The steps that users add to an open run, in order."""
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
        """The command that each line answered."""
        self.sampled: dict[int, str] = {}
        """Fingerprints of the live run, by line."""
        self.orphans: list[SimulatedExecution] = []
        """Executions whose owner died or that already have a result; they can still report."""
        self.events = 0
        self.calm_events = 0

    def observe(self, envelope: Envelope, event: Event, state: State) -> None:
        """Check all invariants after one event."""
        self.values.note(event, state)
        self.watch.note(event, state)
        violations = self.auditor.observe(envelope, event, state)
        if violations:
            raise InvariantError(violations[0].number, violations[0].message)

    def forget_the_log(self) -> None:
        """Derive everything from the log again, because a crash may have cut it."""
        self.auditor = Auditor()
        self.values.forget_the_log()
        self.watch = Watch()
        self.sampled = {place: mark for place, mark in self.sampled.items() if place < len(self.store.lines)}
        del self.answered[len(self.store.lines) :]

    def count(self, state: State) -> None:
        """Note an event of the live run: take a fingerprint, and end the faults if it is time."""
        self.events += 1
        faults = self.faults
        if self.events >= faults.lasting:
            faults.calm = True
        if faults.calm:
            self.calm_events += 1
            if self.calm_events > 400 + 60 * state.instances:
                raise InvariantError(19, "the faults have stopped long ago and the run does not end")
        if self.rng.random() < 0.02:
            self.sampled[len(self.store.lines) - 1] = fingerprint(state)


def transition(event: Event, state: State) -> list[str]:
    """Yield the rows of the transition tables that an event will use."""
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
# Answers to commands: values, jobs and outputs, chosen by the seed.

_NOT_RENDERED = Failure("agent", "template.unresolved", "the prompt cannot be rendered", retryable=False)


class SimulatedAnswers(World):
    """The answers of the simulated world. Expressions of simulated plans are names such as `coin`."""

    def __init__(self, world: SimulatedWorld, state: State) -> None:
        self._world = world
        self._state = state

    # Expressions

    def decide(self, node: Node, what: str) -> ValueDecided:
        return evaluate_expression(self, node, what)

    def items(self, node: Map) -> tuple[int, str | None]:
        expression = node.step.for_each
        assert expression is not None
        if expression == "error":
            raise UnresolvedPath("for_each cannot be evaluated")
        count = int(expression.removeprefix("items:"))
        return count, self._world.values.put(["items", count], NOWHERE)

    def converged(self, loop: Loop) -> bool:
        assert loop.step.repeat is not None
        until = loop.step.repeat.until
        if until == "coin":
            return self._world.rng.random() < 0.5
        return until.startswith("from:") and loop.iteration >= int(until[5:])

    def admits(self, node: Node, when: str) -> bool:
        if when == "error":
            raise UnresolvedPath(f"the condition of {node.path} cannot be evaluated")
        return when != "false" and not (when == "coin" and self._world.rng.random() < 0.5)

    def sets(self, node: Node) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return fill_sets(node, node.step.read_set), fill_sets(node, node.step.write_set)

    # Starts

    def prepare(self, state: State, node: Node, start: Start) -> Job | StepEvent:
        world = self._world
        if start.execution == 1 and start.type != "group" and world.faults.hits("unrendered"):
            return not_started(node, start, _NOT_RENDERED)
        if start.type == "group":
            return GroupJob()
        if start.type == "workflow":
            return CallJob({}, f"r{len(state.runs)}")
        world.values.see(node)  # checks its references
        waits = node.step.traits.waits
        if waits is not None:
            return Timer(world.now + world.rng.choice((0, 40, 400))) if waits == "timer" else Question("")
        return SettledJob(None) if start.type in ("set", "end") else Job()

    def reuse(self, order: Order[Job]) -> tuple[str | None, Failure | None]:
        world = self._world
        if not order.step.cache or world.rng.random() < 0.5:
            return None, None
        world.reached["cached"] += 1
        node = self._state.runs[order.run].nodes[order.path]
        return world.values.result(node, order.attempt, world.values.see(node)), None

    def defer(self, node: Node, order: Order[Job]) -> tuple[str, Order[Job]]:
        wait = self._state.waits.get(provider_of(node))
        if wait is None or wait.probe is node:
            return "", order
        self._world.reached["deferred"] += 1
        return wait.subject, order

    def claim(self, node: Node) -> str:
        del node
        return "another run" if self._world.faults.hits("held by another run") else ""

    def describe(self, node: Node, job: Job) -> tuple[str, str]:
        del job
        return node.path, ""

    def child_inputs(self, command: Create) -> str:
        call = self._state.runs[command.parent_run].nodes[command.step]
        return self._world.values.inputs_of_child(call)

    # Outputs

    def settled(self, node: Node, start: Start, _job: SettledJob) -> tuple[str | None, Failure | None]:
        values = self._world.values
        return values.result(node, start.attempt, values.see(node)), None

    def combined(self, node: Composite) -> tuple[str | None, Failure | None]:
        return self._world.values.folded(node), None

    def default(self, node: Node) -> str | None:
        if node.step.traits.waits == "timer":
            return None
        self._world.reached["approval default"] += 1
        return self._world.values.put({"decision": read_body(ApprovalBody, node.step).default}, NOWHERE)

    def run_output(self, run: Run) -> str | None:
        return self._world.values.run_output(run, run.plan) if run.scope.entered else None


def provider_of(node: Node) -> str:
    """Return the provider of the agent of a step. Steps of one role share it."""
    role = node.step.traits.role
    return "" if role is None else f"provider of {role}"


# -----------------------------------------------------------------------------------------------------------
# One owner of a run tree: it records events, answers commands, and starts executions.
#
# Rules, the same as for every host
# * Log before act: an execution starts after the event that announces it is committed.
# * Commands are answered in order, one event per command, before anything else is reported.
# * An owner can die between any two events: `Crash` is raised after an event was appended and before it was
#   acknowledged, or between the commit and the first effect.

FOREVER_MS = 600_000
"""The duration of a hanging attempt, longer than any timeout of a plan."""


class Crash(BaseException):
    """Ends the owner here. A signal, not an error."""


class Owner:
    def __init__(self, world: SimulatedWorld, state: State, epoch: int) -> None:
        self.world = world
        self.state = state
        self.handler = CommandHandler(state, SimulatedAnswers(world, state))
        self.epoch = epoch
        self.running: list[SimulatedExecution] = []
        self.reported: list[SimulatedExecution] = []
        """Executions that ended since the last commit; a crash can lose their report."""
        self.effects: list[tuple[Command, Data]] = []
        """Executions that are recorded but not started."""

    def record(self, run: str, data: Data, command: Command | None = None) -> None:
        """Append one event, fold it, check all invariants, and perhaps crash."""
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
        """Answer every command; sometimes commit in between, like a group commit."""
        state, world = self.state, self.world
        self.handler.answer_all(self._record_answer)
        self.commit()
        if world.rng.random() < 0.1:
            check_explained(state)
        if world.watch.cancelled or state.plan.open:
            for execution in self.running:
                node = self.state.runs[execution.run].nodes[execution.step]
                watch = self.world.watch
                ends = watch.is_cancelled(node.run) or watch.is_closing(node) or watch.lost_its_parent(node)
                if execution.type != "approval" and ends and not execution.stop:
                    raise InvariantError(9, f"the cancellation did not reach {execution.step}")

    def _record_answer(self, command: Command, data: Data) -> None:
        world = self.world
        world.watch.check(command, self.state)
        if isinstance(command, Finish):
            for execution in self.running:
                if execution.run == command.run and execution.type != "approval":
                    raise InvariantError(9, f"run {command.run} finishes while {execution.step} is executing")
        # The effect is noted first: an owner that dies in `record` never starts it.
        if isinstance(command, Start | Stop):
            self.effects.append((command, data))
        self.record(command.run, data, command)
        if world.faults.hits("early commit"):
            self.commit()

    def commit(self) -> None:
        """Commit, then start the recorded executions."""
        world = self.world
        world.store.commit()
        self.reported.clear()
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
        """Show an approval to a user."""
        world = self.world
        due = None if world.faults.hits("no answer") else world.now + world.rng.choice((5, 50, 500))
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
        """Show open approvals to users again after a crash."""
        for run in self.state.runs.values():
            for node in run.nodes.values():
                asks = node.step.traits.waits == "person" or node.reason == ASKED
                if node.status == WAITING and asks:
                    self.ask(run.id, node.path)
