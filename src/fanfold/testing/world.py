"""The world that survives an owner: store, clock, blobs, users, and pending results."""

from __future__ import annotations

from collections import Counter
from random import Random

from msgspec.structs import replace

from fanfold.engine.command_handler import CommandHandler, World, evaluate_expression, not_started
from fanfold.kernel.commands import Command, Create, Finish, Start, Stop
from fanfold.kernel.events import (
    Data,
    Envelope,
    Estimate,
    Event,
    Failure,
    ResumeRequested,
    RunResumed,
    Settings,
    StepEvent,
    SubagentEvent,
    TimerFired,
    ValueDecided,
    WorkflowEvent,
)
from fanfold.kernel.invariants import Auditor
from fanfold.kernel.plan import (
    EVERYTHING,
    Action,
    Budget,
    Constant,
    Fields,
    GroupAction,
    Input,
    LeafAction,
    Limits,
    OnFailure,
    Output,
    Plan,
    Ref,
    Repeat,
    RetryPolicy,
    Step,
    Template,
    Traits,
    Value,
    WorkflowAction,
)
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
from fanfold.language.leaf_steps import AgentBody, ApprovalBody, CommandBody, read_body
from fanfold.language.template import UnresolvedPath
from fanfold.steps.deliver import DeliverBody
from fanfold.steps.function import FunctionBody
from fanfold.steps.order import CallJob, GroupJob, Job, Order, Question, SettledJob, Timer
from fanfold.steps.set_and_end import EndBody, SetBody
from fanfold.testing.checks import NOWHERE, InvariantError, SimulatedValues, Watch, check_explained, fill_sets
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
        if violations := self.auditor.observe(envelope, event, state):
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
                raise InvariantError(19, "the faults stopped long ago, but the run does not end")
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
        if (waits := node.step.traits.waits) is not None:
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
        if (wait := self._state.waits.get(provider_of(node))) is None or wait.probe is node:
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
        number = (command.attempt, command.execution)
        started = SimulatedExecution(command.run, command.step, command.type, *number, due, seen)
        self.running.append(started)

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
        raise InvariantError(9, f"{command.step} gets a stop command, but is not executing")

    def recall_people(self) -> None:
        """Show open approvals to users again after a crash."""
        for run in self.state.runs.values():
            for node in run.nodes.values():
                asks = node.step.traits.waits == "person" or node.reason == ASKED
                if node.status == WAITING and asks:
                    self.ask(run.id, node.path)


# -----------------------------------------------------------------------------------------------------------
# Random plans with every construct of the kernel, small enough to run thousands of them.
#
# Rules
# * A plan is a function of the generator alone: the same seed gives the same plan on every machine.
# * Expressions are words that the simulated host knows, so it needs no expression language (`world` reads
#   them):
#
# | where | word | means |
# |---|---|---|
# | `when` | `true`, `false`, `coin`, `error` | `coin` is random for each evaluation |
# | `for_each` | `items:3`, `error` | three items; the expression fails |
# | `until` | `from:2`, `never`, `coin`, `error` | `from:2`: true from the second iteration; an error: false |
#
# * References are those that a recipe can contain: to `depends_on` of the step or of a group around it, to
#   inputs of the run, and to the item.
# * The number of instances is estimated while the plan grows and kept below a random limit, so that maps of
#   loops of maps stay small.

ROLES = ("default", "explorer", "worker")
SETS = ("src/**", "src/*.py", "src/a.py", "src/b/**", "docs/**", "docs/*.md", "{src,docs}/a.*", "lib/[ab]/**")
ITEM_SETS = ("packages/{{item}}/**", "src/{{item}}.py", "docs/{{index}}/*.md")
ON_FAILURE: tuple[OnFailure, ...] = (
    "skip", "skip", "skip", "skip", "skip", "skip", "inline", "inline", "inline", "stop",
)  # fmt: skip
WHEN = (*("true", "coin") * 4, "false", "error")
UNTIL = (*("from:1", "from:2", "from:3", "coin") * 2, "never", "error")
TIMER = LeafAction("timer", traits=Traits(slot=False, workspace="none", waits="timer"))
NOTE = LeafAction("note", traits=Traits(slot=False, workspace="none"))
LEAD = replace(AgentBody(prompt="lead").action(), traits=Traits(slot=False, role="default"))
DELIVER = DeliverBody(branch="a-branch", message="what was done").action()
SET = SetBody({"one": "1"}).action()
ENDS = (EndBody(end="completed").action(), EndBody(end="failed").action())
"""Types of steps without a slot, and types that finish as soon as they are decided."""
CHAIN = 6
"""The length of a chain of sub-workflows: one more than the limit of nesting."""


def random_plan(rng: Random) -> Plan:
    """Return a plan for one schedule, with all its sub-workflows."""
    return _Maker(rng).plan()


def random_additions(rng: Random) -> tuple[Plan, tuple[Step, ...]]:
    """Return an open plan, and the steps that users will add to it, in order."""
    return _Maker(rng).open_plan()


def random_settings(rng: Random, plan: Plan) -> Settings:
    """Return limits of the run, mostly high, sometimes so low that the run must pause."""
    tight = rng.random()
    return Settings(
        max_concurrency=rng.choice((1, 2, 2, 3, 4, 4, 8)),
        max_agents=rng.randint(1, 8) if tight < 0.12 else 500,
        max_steps=len(plan.steps) + rng.randint(0, 12) if 0.12 <= tight < 0.18 else 5_000,
        timeout_ms=rng.choice((200, 1_000, 3_000)) if rng.random() < 0.1 else 10_000_000,
        budget_tokens=rng.choice((50, 300, 1_500)) if 0.18 <= tight < 0.28 else None,
        budget_micro_usd=rng.choice((40, 400)) if 0.24 <= tight < 0.32 else None,
        estimates={"*": Estimate(tokens=60, micro_usd=20), "worker": Estimate(tokens=120, micro_usd=5)},
        outage_ms=rng.choice((None, 0, 60_000, 3_600_000)),
    )


class _Maker:
    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.count = 0
        self.costs: dict[str, int] = {}
        self.workflows: dict[str, Plan] = {}
        self.open = False
        roll = rng.random()
        self.size = rng.randint(3, 12) if roll < 0.35 else rng.randint(12, 40) if roll < 0.92 else 120

    def plan(self) -> Plan:
        rng = self.rng
        self._make_workflows()
        deep = () if rng.random() < 0.92 else (self._chain(),)
        steps, _ = self._steps(self.size, 0, False, ())
        steps = (*deep, *steps)
        return Plan(
            name="root",
            inputs=(Input("topic", default="t", has_default=True),),
            steps=steps,
            output=self._output(steps),
            workflows=dict(sorted(self.workflows.items())),
        )

    def open_plan(self) -> tuple[Plan, tuple[Step, ...]]:
        self.open = True
        self._make_workflows()
        steps, _ = self._steps(self.size, 0, False, (), shuffled=False)
        # More time-outs than in other runs, because users act on timed-out children.
        steps = tuple(replace(step, timeout_ms=20) if self.rng.random() < 0.12 else step for step in steps)
        topic = Input("topic", default="t", has_default=True)
        workflows = dict(sorted(self.workflows.items()))
        return Plan(name="root", open=True, inputs=(topic,), steps=(), workflows=workflows), steps

    def _make_workflows(self) -> None:
        if self.rng.random() < 0.55:
            names = [f"w{number}" for number in range(self.rng.choice((1, 1, 2, 3)))]
            for name in reversed(names):
                self._workflow(name, self.size // 4 + 1)

    def _workflow(self, name: str, budget: int) -> None:
        """Add a sub-workflow. It can call only earlier ones, so there are no cycles."""
        rng = self.rng
        steps, cost = self._steps(budget, 0, False, ())
        limits = Limits(
            max_concurrency=rng.choice((1, 2)) if rng.random() < 0.2 else None,
            max_agents=rng.randint(1, 4) if rng.random() < 0.06 else None,
            timeout_ms=rng.choice((100, 500)) if rng.random() < 0.12 else None,
            budget=Budget(
                tokens=rng.choice((40, 400)) if rng.random() < 0.08 else None,
                micro_usd=rng.choice((30, 300)) if rng.random() < 0.05 else None,
            ),
        )
        self.workflows[name] = Plan(
            name=name, steps=steps, inputs=(Input("topic"),), output=self._output(steps), limits=limits
        )
        self.costs[name] = cost + 1

    def _chain(self) -> Step:
        """Return a call of sub-workflows nested to the limit, or one deeper."""
        below = ""
        for level in range(self.rng.choice((CHAIN - 1, CHAIN)), 0, -1):
            inner: Action = WorkflowAction(below) if below else AgentBody(prompt="{{inputs.topic}}").action()
            step = Step(id=self._id("d"), action=inner, inputs={"topic": Ref("inputs.topic")})
            below = f"deep{level}"
            self.workflows[below] = Plan(name=below, steps=(step,), inputs=(Input("topic"),))
        return Step(id=self._id("w"), action=WorkflowAction(below), inputs={"topic": Ref("inputs.topic")})

    # Scopes

    def _id(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def _steps(
        self, budget: int, nesting: int, in_map: bool, outer: tuple[str, ...], *, shuffled: bool = True
    ) -> tuple[tuple[Step, ...], int]:
        """Return the steps of one scope, mostly not in the order of their edges."""
        rng = self.rng
        made: list[Step] = []
        cost = 0
        most = rng.randint(min(6, budget) if nesting == 0 else 2, 12 if budget < 30 else 24)
        while len(made) < most and (not made or cost < budget):
            edges = [step.id for step in made if rng.random() < 0.7 / len(made)] if made else []
            if made and rng.random() < 0.1:
                edges = [step.id for step in made]
            step, size = self._step(max(1, budget - cost), nesting, in_map, edges, outer)
            made.append(step)
            cost += size
        if shuffled and rng.random() < 0.3:
            rng.shuffle(made)
            order = [other.id for other in made]
            made = [
                replace(step, depends_on=tuple(name for name in order if name in step.depends_on))
                for step in made
            ]
        return tuple(made), cost

    def _step(
        self, budget: int, nesting: int, in_map: bool, edges: list[str], outer: tuple[str, ...]
    ) -> tuple[Step, int]:
        rng = self.rng
        items: int | None = None  # no map
        iterations = 1
        if rng.random() < 0.2:
            items = min(rng.choice((0, 1, 2, 3, 3, 4, 6, 40)), max(2, budget))
        if rng.random() < 0.15:
            iterations = min(rng.choice((2, 2, 3, 4)), max(2, budget // 2))
        inner_map = in_map or items is not None
        share = max(1, budget // (max(1, items or 1) * iterations))
        # References from inside a group are edges of the group.
        visible = (*outer, *edges)
        action, cost = self._action(share, nesting, inner_map, visible)
        repeat = None
        if iterations > 1 or rng.random() < 0.03:
            repeat = Repeat(rng.choice(UNTIL), iterations, rng.choice(("fail", "fail", "continue")))
        fold = None
        if repeat is not None and rng.random() < 0.35:
            fold = self._with_sets(
                Step(id="fold", action=AgentBody(agent="explorer", prompt="fold", purpose="fold").action()),
                inner_map,
            )
            cost += 1
        step = Step(
            id=self._id(action.type[0]),
            action=action,
            depends_on=tuple(edges),
            when=rng.choice(WHEN) if rng.random() < 0.14 else None,
            max_concurrency=rng.choice((1, 2, 2)) if rng.random() < 0.1 else None,
            for_each=None if items is None else "error" if rng.random() < 0.03 else f"items:{items}",
            repeat=repeat,
            fold=fold,
            inputs=self._inputs(edges, outer, inner_map),
            timeout_ms=self._timeout(action),
            retry=self._retry(),
            on_failure=rng.choice(ON_FAILURE),
        )
        return self._with_sets(step, inner_map), max(1, cost * max(1, items or 1) * iterations)

    def _action(self, budget: int, nesting: int, in_map: bool, outer: tuple[str, ...]) -> tuple[Action, int]:
        rng = self.rng
        roll = rng.random()
        calls = [name for name, cost in self.costs.items() if cost <= budget + 6]
        if roll < 0.15 and nesting < 3 and budget > 1:
            steps, cost = self._steps(min(budget, 12), nesting + 1, in_map, outer)
            group = GroupAction(
                steps=steps,
                output=self._output(steps),
                max_concurrency=rng.choice((1, 1, 2)) if rng.random() < 0.25 else None,
                max_agents=rng.randint(1, 5) if rng.random() < 0.06 else None,
            )
            return group, cost + 1
        if roll < 0.35 and calls:
            name = rng.choice(calls)
            return WorkflowAction(name), self.costs[name]
        if roll < 0.39:
            choices = ("ship", "hold") if rng.random() < 0.4 else ()
            default = rng.choice(choices or ("approve", "reject")) if rng.random() < 0.4 else None
            return ApprovalBody("go?", choices=choices, default=default).action(), 1
        if roll < 0.41:
            closing = () if self.open else (DELIVER, *ENDS)
            return rng.choice((TIMER, NOTE, LEAD, SET, *closing)), 1
        if roll < 0.52:
            return FunctionBody("count").action(), 1
        if roll < 0.62:
            return CommandBody(("make", "test")).action(), 1
        prompt = "".join(f"{{{{steps.{name}.output}}}} " for name in outer if rng.random() < 0.5)
        return AgentBody(rng.choice(ROLES), prompt=f"{prompt}{{{{inputs.topic}}}}").action(), 1

    # Parts of a step

    def _output(self, steps: tuple[Step, ...]) -> Output | None:
        rng = self.rng
        roll = rng.random()
        if roll < 0.6:
            return None
        if roll < 0.8:
            return Ref(f"steps.{rng.choice(steps).id}.output")
        return Fields({"one": Ref(f"steps.{rng.choice(steps).id}.output"), "two": Constant(2)})

    def _inputs(self, edges: list[str], outer: tuple[str, ...], in_map: bool) -> dict[str, Value]:
        rng = self.rng
        inputs: dict[str, Value] = {"topic": Ref("inputs.topic")}
        for name in (*outer, *edges):
            if rng.random() < 0.6:
                path = f"steps.{name}.output"
                inputs[name] = Template(f"see {{{{{path}}}}}") if rng.random() < 0.3 else Ref(path)
        if in_map and rng.random() < 0.5:
            inputs["which"] = Ref("item")
        return inputs

    def _timeout(self, action: Action) -> int | None:
        rng = self.rng
        if isinstance(action, GroupAction | WorkflowAction):
            return rng.choice((60, 300, 1_500)) if rng.random() < 0.15 else None
        if action.traits.waits is not None:
            return rng.choice((100, 2_000)) if rng.random() < 0.5 else None
        return rng.choice((20, 80, 400)) if rng.random() < 0.15 else None

    def _retry(self) -> RetryPolicy:
        rng = self.rng
        kinds = ("timeout", "transport", "rate_limit", "invalid_output", "agent")
        if rng.random() < 0.5:
            return RetryPolicy(rng.choice((2, 3)), backoff_ms=50)
        on = tuple(kind for kind in kinds if rng.random() < 0.7)
        return RetryPolicy(rng.randint(1, 4), rng.choice((0, 10, 300)), rng.choice((10, 1_000)), on)

    def _with_sets(self, step: Step, in_map: bool) -> Step:
        """Return posture, path sets and workspace of a step that uses files."""
        rng = self.rng
        if step.traits.workspace == "none":
            return step
        choices = (*SETS, *ITEM_SETS) if in_map else SETS
        reads = EVERYTHING if rng.random() < 0.3 else tuple(rng.sample(choices, rng.randint(1, 2)))
        writes: tuple[str, ...] = ()
        if rng.random() < 0.4:
            writes = EVERYTHING if rng.random() < 0.1 else tuple(rng.sample(choices, rng.randint(1, 2)))
        return replace(
            step,
            posture="writer" if writes else "read_only",
            read_set=reads,
            write_set=writes,
            templated_sets=any("{{" in pattern for pattern in (*reads, *writes)),
            workspace_mode="shared" if rng.random() < (0.35 if writes else 0.9) else "isolated",
            cache=not writes and rng.random() < 0.15,
        )
