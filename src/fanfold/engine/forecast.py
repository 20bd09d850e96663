"""The forecast host: runs the kernel with simulated steps.

The `CommandHandler` of every host answers the commands of the kernel. Unlike other hosts this one keeps no
log and executes nothing. A `ForecastWorld` supplies the values of expressions, and the duration and result of
each step. A forecast shows the work of the scheduler: plan order, slots, caps of scopes, agents, budgets,
conflicts.

Rules
* Steps that end at the same time report one at a time, in the order of their start, as in a run whose steps
  take equally long. Steps that a report makes ready start before the next report.
* A step that asks a person during its work asks at once, is approved at once, and continues in its position.
* Nothing times out: deadlines are removed from the plan. A back-off takes its time.
* A limit that pauses the run is recorded and then raised, so that a forecast shows the whole run. Only
  `MAX_INSTANCES` is fixed: steps that would need more instances are not expanded.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from fanfold.engine.command_handler import CommandHandler, World, evaluate_expression, not_started
from fanfold.errors import AuthorError
from fanfold.kernel.commands import Command, Retry, Start
from fanfold.kernel.decide import next_timer
from fanfold.kernel.events import (
    Data,
    Event,
    Failure,
    LimitsRaised,
    RunCreated,
    RunResumed,
    RunStarted,
    Settings,
    StepEvent,
    SubagentEvent,
    TimerFired,
    Usage,
    ValueDecided,
)
from fanfold.kernel.paths import check_glob, escape
from fanfold.kernel.plan import JSON, Constant, GroupAction, Plan, Ref, Step, Value, WorkflowAction
from fanfold.kernel.state import (
    ASKED,
    CANCELLED,
    COMPLETED,
    EVENT_WORDS,
    LEAF,
    MAP,
    PAUSED,
    READY,
    RUN_TERMINAL,
    RUNNING,
    SKIPPED,
    TERMINAL,
    WAITING,
    Composite,
    Loop,
    Map,
    Node,
    Scope,
    State,
)
from fanfold.kernel.transitions import create_state, evolve, mark_late
from fanfold.language.expression_work import Use, free_uses, read
from fanfold.language.expressions import evaluate
from fanfold.language.inputs import bind_inputs
from fanfold.language.leaf_steps import find_body
from fanfold.language.template import (
    ExpressionError,
    Hole,
    UnresolvedPath,
    parse_path,
    parse_template,
    render,
)
from fanfold.steps.order import CallJob, GroupJob, Job, Question, SettledJob, Timer
from fanfold.steps.set_and_end import SetBody
from fanfold.steps.step_type import Names, condition_holds, items_of, sets_of, type_of, undecided, value_of
from fanfold.steps.values import visible_scopes

ROOT = "forecast"
MAX_INSTANCES = 20_000
"""About a second of work; the largest map has 10,000 items."""
PLENTY = 1 << 60


class ForecastWorld(World):
    """The source of values, durations and results for a forecast. It stores no outputs."""

    @abstractmethod
    def asks(self, node: Node) -> bool:
        """Whether an attempt that was just started asks a person before it continues."""

    @abstractmethod
    def outcome(self, node: Node, start: Start) -> tuple[int, StepEvent]:
        """The duration and the final event of an attempt that was just started."""


class ForecastStart(NamedTuple):
    """An attempt of a step, or a question to a person, with its start and end."""

    at: int
    until: int
    node: Node


class ForecastPause(NamedTuple):
    """A pause because of limits, after `begun` attempts have started."""

    begun: int
    limits: tuple[str, ...]
    by_tree: bool
    """Whether the limit `max_agents` is that of the tree, not of a scope inside it."""


class ForecastHost:
    """Drives one plan from its first event to its end. `state` is then the final state of the run."""

    def __init__(
        self,
        plan: Plan,
        settings: Settings,
        world: ForecastWorld,
        *,
        run_id: str = ROOT,
        largest: int = MAX_INSTANCES,
    ) -> None:
        roomy = replace(settings, timeout_ms=None, max_steps=min(settings.max_steps, largest))
        created = RunCreated(plan=without_deadlines(plan), settings=roomy)
        self.state = create_state(Event(run_id, 0, created))
        self.now = 0
        self.begun: list[ForecastStart] = []
        """The attempts and questions in the order of their start."""
        self.backed_off: dict[Node, int] = {}
        """The time that each step waited for retries."""
        self.held: list[ForecastPause] = []
        self.complete = True
        """False if the forecast does not cover the whole run."""
        self._world = world
        self._handler = CommandHandler(self.state, world)
        self._under_way: list[tuple[int, int, str, Data]] = []
        self._asking: list[Node] = []
        self._places: dict[Node, int] = {}
        """The positions in `begun` of the steps that asked a person."""

    def drive(self) -> None:
        state = self.state
        self._fold(state.root.id, RunStarted())
        while state.root.status not in RUN_TERMINAL:
            if state.root.status == PAUSED:
                if not self._raise_limits():
                    self.complete = False
                    return
            elif self._asking:
                # Ask for the first step in the queue, then approve it. A limit may pause the run in between
                node = self._asking[0]
                if node.status in (RUNNING, WAITING):  # else its run has ended
                    word = "agreed" if node.reason == ASKED else ASKED
                    self._fold(node.run.id, StepEvent(node.path, word, node.attempt, node.execution))
                if node.reason != ASKED:
                    self._asking.pop(0)
            else:
                timer = next_timer(state)
                if self._under_way and (timer is None or self._under_way[0][0] <= timer):
                    self.now, _, run, end = heappop(self._under_way)
                    self._fold(run, end)
                else:
                    assert timer is not None, "an unfinished run has something to wait for"
                    self.now = timer
                    self._fold(state.root.id, TimerFired())

    def _fold(self, run: str, data: Data) -> None:
        state = self.state
        evolve(state, mark_late(state, Event(run, self.now, data)))
        self._handler.answer_all(self._record)

    def _record(self, command: Command, answer: Data) -> None:
        if isinstance(command, Retry):
            node = self._node(command.run, command.step)
            self.backed_off[node] = self.backed_off.get(node, 0) + command.retry_at - self.now
        evolve(self.state, Event(command.run, self.now, answer))
        if isinstance(command, Start):
            self._begin(command)

    def _node(self, run: str, step: str) -> Node:
        return self.state.runs[run].nodes[step]

    def _begin(self, start: Start) -> None:
        node = self._node(start.run, start.step)
        if node.kind == LEAF and node.status == COMPLETED and type_of(node.step).settled:  # takes no time
            self.begun.append(ForecastStart(self.now, self.now, node))
        if node.kind != LEAF or node.status not in (RUNNING, WAITING):
            return
        if node.status == RUNNING and not node.agreed and self._world.asks(node):
            self._asking.append(node)
            self._places[node] = len(self.begun)
            self.begun.append(ForecastStart(self.now, self.now, node))
            return
        takes, end = self._world.outcome(node, start)
        until, place = self.now + takes, self._places.pop(node, len(self.begun))
        heappush(self._under_way, (until, place, start.run, end))
        self.begun[place : place + 1] = [ForecastStart(self.now, until, node)]

    def _raise_limits(self) -> bool:
        """Record the limits that pause the run and raise them. False if that cannot continue the run."""
        state = self.state
        limits = limits_that_hold(state)
        in_vain = bool(self.held) and self.held[-1][:2] == (len(self.begun), limits)
        if in_vain or not limits:
            return False
        self.held.append(ForecastPause(len(self.begun), limits, state.agents >= state.max_agents))
        self._fold(state.root.id, RunResumed(state.epoch + 1, lifted(limits)))
        return True


def limits_that_hold(state: State) -> tuple[str, ...]:
    """The limits that pause a run: `budget`, `max_agents`, `max_steps`."""
    limits = sorted({limit for _, node, limit in state.starved if node.status == READY})
    if state.oversize and state.max_steps < MAX_INSTANCES:
        limits.append("max_steps")
    return tuple(limits)


def lifted(limits: tuple[str, ...]) -> LimitsRaised:
    """The event data that raises these limits and no others."""
    money = PLENTY if "budget" in limits else None
    return LimitsRaised(
        max_agents=PLENTY if "max_agents" in limits else None,
        max_steps=MAX_INSTANCES if "max_steps" in limits else None,
        budget_tokens=money,
        budget_micro_usd=money,
    )


def without_deadlines(plan: Plan) -> Plan:
    """The same plan without time-outs."""
    return replace(
        plan,
        steps=tuple(_without_deadline(step) for step in plan.steps),
        limits=replace(plan.limits, timeout_ms=None),
        workflows={name: without_deadlines(other) for name, other in plan.workflows.items()},
    )


def _without_deadline(step: Step) -> Step:
    action = step.action
    if isinstance(action, GroupAction):
        action = replace(action, steps=tuple(_without_deadline(inner) for inner in action.steps))
    fold = step.fold if step.fold is None else _without_deadline(step.fold)
    return replace(step, action=action, fold=fold, timeout_ms=None)


# -----------------------------------------------------------------------------------------------------------
# The assumptions of a forecast about values that are unknown before the run
#
# | known only during the run | assumption |
# |---|---|
# | a condition | true |
# | a list | one item, shown as `id[*]` |
# | a condition of a step that ends the run | false, so that later steps are shown |
# | whether a loop continues | no: one iteration is shown |
# | the answer of a person | the answer that continues the run |
# | whether a step succeeds | yes, at the first attempt |

MAX_NAMED = 8
_INSTANCE = r"\[\d+\]|#\d+"

_SENTENCES = {
    "conditions": "conditions that are known only during the run are taken as true: {}",
    "lists": "lists that are known only during the run are shown with one item: {}",
    "loops": "loops whose end is known only during the run are shown with one iteration: {}",
    "ends": "steps that end the run under a condition are taken not to be reached: {}",
    "people": "assumes approval of: {}",
}


class Assumptions:
    """The assumptions that were made, by kind, with the steps of the recipe that they concern."""

    def __init__(self) -> None:
        self._made: dict[str, dict[Node, None]] = {kind: {} for kind in _SENTENCES}

    def add(self, kind: str, node: Node) -> None:
        self._made[kind].setdefault(node)

    def has(self, kind: str, node: Node) -> bool:
        """Whether a value of that kind was assumed for a step."""
        return node in self._made[kind]

    def any_of(self, *kinds: str) -> bool:
        return any(self._made[kind] for kind in kinds)

    def messages(self) -> Iterator[str]:
        """A sentence for each kind of assumption."""
        for kind, sentence in _SENTENCES.items():
            paths = list(dict.fromkeys(map(declared_path, self._made[kind])))
            if paths:
                more = f" and {len(paths) - MAX_NAMED:,} more" if len(paths) > MAX_NAMED else ""
                yield sentence.format(", ".join(paths[:MAX_NAMED]) + more)


def declared_path(node: Node) -> str:
    """The path of a step in the recipe: its tree path without items and iterations."""
    return re.sub(_INSTANCE, "", node.run.tree_path(node.path))


# -----------------------------------------------------------------------------------------------------------
# Values that are known before a run: inputs, values computed from them, steps that are certainly skipped
#
# The names are those of a run (`steps.values`) that have a value; unknown names are missing. The result of an
# expression without them is certain: in CEL, `false && …` is false whatever follows. If an expression cannot
# be evaluated, `is_certain` distinguishes an error in the expression from a missing value.

_UNKNOWN = object()
_LEFT_OUT: dict[str, JSON] = {"output": None, "status": SKIPPED, "error": None}


class KnownValues:
    """The known values, by run and by map."""

    def __init__(self, inputs: Mapping[str, JSON]) -> None:
        self.inputs: dict[str, dict[str, JSON]] = {ROOT: dict(inputs)}
        self.items: dict[tuple[str, str], list[JSON]] = {}
        """The items of maps whose list is known."""
        self.outputs: dict[tuple[str, str], JSON] = {}
        """The outputs of steps that use only known values."""

    def at(self, node: Node) -> dict[str, JSON]:
        """The names that a step's templates and expressions may use."""
        return {**self._around(node), "steps": KnownSteps(self.outputs, list(visible_scopes(node)))}

    def gate(self, loop: Loop) -> dict[str, JSON]:
        """The names that `until` may use after an iteration. The `output` is never known."""
        names = self.at(loop)
        body = loop.children[loop.iteration - 1]
        if isinstance(body, Scope):
            ids = tuple(child.step.id for child in body.children)
            names["steps"] = KnownSteps(self.outputs, [(body, ids), *visible_scopes(loop)])
        names["iteration"] = loop.iteration
        return names

    def _around(self, node: Node) -> dict[str, JSON]:
        names: dict[str, JSON] = {"inputs": self.inputs[node.run.id]}
        child, parent = node, node.parent
        while parent is not None and parent.run is node.run:
            if parent.kind == MAP and parent.step.item_name not in names:
                items = self.items.get((parent.run.id, parent.path))
                index = child.order[-1]
                names[parent.step.item_name] = _UNKNOWN if items is None else items[index]
                names.setdefault("index", _UNKNOWN if items is None else index)
            elif isinstance(parent, Loop) and "iteration" not in names:
                is_fold = child.step is parent.step.fold
                names["iteration"] = parent.iteration if is_fold else child.order[-1]
            child, parent = parent, parent.parent
        return {name: value for name, value in names.items() if value is not _UNKNOWN}


class KnownSteps(Mapping[str, JSON]):
    """The value of `steps`: only steps that a condition skips (null) or whose output is known."""

    def __init__(
        self, outputs: Mapping[tuple[str, str], JSON], places: list[tuple[Composite, tuple[str, ...]]]
    ) -> None:
        self._outputs = outputs
        self._places = places

    def __getitem__(self, name: str) -> JSON:
        for scope, allowed in self._places:
            if name in allowed:
                node = scope.run.nodes[f"{scope.path}/{name}" if scope.path else name]
                if node.status == SKIPPED and node.reason == "condition":
                    return _LEFT_OUT
                if (node.run.id, node.path) in self._outputs:
                    output = self._outputs[node.run.id, node.path]
                    return {"output": output, "status": COMPLETED, "error": None}
                break
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        names = dict.fromkeys(name for _, allowed in self._places for name in allowed)
        return (name for name in names if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


# Whether all references in a text have a value


def is_certain(expression: str, names: Mapping[str, JSON]) -> bool:
    """Whether all references of an expression have a value, so that the run gets the same result."""
    return all(_has(use.name, use.parts, names) for use in uses_of(expression))


@lru_cache(maxsize=1_024)
def uses_of(expression: str) -> tuple[Use, ...]:
    """The names that an expression reads, with the paths after them."""
    return tuple(free_uses(read(expression)))


def is_known(value: Value | str, names: Mapping[str, JSON]) -> bool:
    """Whether all references of a step's value or of a template are known."""
    if isinstance(value, Constant):
        return True
    if isinstance(value, Ref):
        paths = [parse_path(value.path)]
    else:
        parts = parse_template(value if isinstance(value, str) else value.text)
        paths = [part.path for part in parts if isinstance(part, Hole)]
    return all(_has(path.root, path.parts, names) for path in paths)


def _has(root: str, parts: tuple[str | int, ...], names: Mapping[str, JSON]) -> bool:
    if root not in names:
        return False
    if root not in ("inputs", "steps"):
        return True
    word, held = str(parts[0]) if parts else "", names[root]
    return word in held or any(name.replace("-", "_") == word for name in held)


def widest(pattern: str, names: Mapping[str, JSON]) -> str:
    """A pattern of a path set with its values filled in. An unknown value becomes `*` or `**`."""
    parts = parse_template(pattern)
    filled: list[str] = []
    for place, part in enumerate(parts):
        if isinstance(part, str):
            filled.append(part)
            continue
        try:
            filled.append(escape(render((part,), names)))
        except UnresolvedPath:
            before, after = parts[place - 1] if place else "/", parts[place + 1 : place + 2]
            alone = isinstance(before, str) and before.endswith("/")
            if after:
                alone = alone and isinstance(after[0], str) and after[0].startswith("/")
            filled.append("**" if alone else "*")
    return "".join(filled)


# -----------------------------------------------------------------------------------------------------------
# The world of a dry run: every step takes one tick and succeeds, with the values known before the run

TICK = 1
T = TypeVar("T")


class Unknown(Exception):
    """An expression needs a value that is unknown before the run."""


def _certainly(expression: str, names: Names, judge: Callable[[], T]) -> T:
    """The result of an expression that does not depend on missing values. Raises `Unknown`, or its error.

    An expression with `has` needs all values, because `has` would treat a missing value as a result.
    """
    if "has(" in expression and not is_certain(expression, names):
        raise Unknown
    try:
        return judge()
    except (ExpressionError, UnresolvedPath):
        if is_certain(expression, names):
            raise
        raise Unknown from None


class Foresight(ForecastWorld):
    """Evaluates expressions like a real run, and assumes the values that are unknown before the run."""

    def __init__(self, inputs: Mapping[str, JSON]) -> None:
        self.assumed = Assumptions()
        self._known = KnownValues(inputs)

    def names(self, node: Node) -> dict[str, JSON]:
        """The known names that a step's templates may use."""
        return self._known.at(node)

    # Expressions

    def decide(self, node: Node, what: str) -> ValueDecided:
        return evaluate_expression(self, node, what)

    def items(self, node: Map) -> tuple[int, str | None]:
        names, expression = self._known.at(node), node.step.for_each
        assert expression is not None
        try:
            items = _certainly(expression, names, lambda: items_of(node.step, names))
        except Unknown:
            self.assumed.add("lists", node)
            return 1, None
        self._known.items[node.run.id, node.path] = items
        return len(items), None

    def converged(self, loop: Loop) -> bool:
        assert loop.step.repeat is not None
        until, names = loop.step.repeat.until, self._known.gate(loop)
        try:
            return _certainly(until, names, lambda: evaluate(until, names) is True)
        except Unknown:
            self.assumed.add("loops", loop)
            return True
        except ExpressionError:
            return False  # a gate that cannot be evaluated never passes

    def admits(self, node: Node, when: str) -> bool:
        names = self._known.at(node)
        try:
            return _certainly(when, names, lambda: condition_holds(when, names))
        except Unknown:
            if node.step.traits.ends is not None:
                self.assumed.add("ends", node)
                return False
            self.assumed.add("conditions", node)
            return True

    def sets(self, node: Node) -> tuple[tuple[str, ...], tuple[str, ...]]:
        names = self._known.at(node)
        try:
            return sets_of(node, names)
        except UnresolvedPath:
            sets = (node.step.read_set, node.step.write_set)
            if all(is_known(pattern, names) for patterns in sets for pattern in patterns):
                raise
        read_set, write_set = (tuple(widest(pattern, names) for pattern in patterns) for patterns in sets)
        for pattern in (*read_set, *write_set):
            check_glob(pattern)
        return read_set, write_set

    # Starts and ends

    def prepare(self, state: State, node: Node, start: Start) -> Job | StepEvent:
        action = node.step.action
        if action.traits.waits is not None:
            if action.traits.waits == "person":
                self.assumed.add("people", node)
                return Question("")
            return Timer(0)
        if isinstance(action, WorkflowAction):
            return self._call(state, node, start, action)
        if self.asks(node) and not node.agreed:
            self.assumed.add("people", node)
        problem = self._work_out(node)
        if problem is not None:
            return not_started(node, start, problem)
        if isinstance(action, GroupAction):
            return GroupJob()
        return SettledJob(None) if type_of(node.step).settled else Job()

    def _call(self, state: State, node: Node, start: Start, action: WorkflowAction) -> CallJob | StepEvent:
        child = f"{state.root.id}.{len(state.runs)}"
        plan, names, inputs = state.plan.workflows[action.workflow], self._known.at(node), node.step.inputs
        try:
            # Unknown inputs are omitted, so that nothing depends on them.
            known = {name: value_of(value, names) for name, value in inputs.items() if is_known(value, names)}
            unknown = inputs.keys() - known.keys()
            declared = tuple(declared for declared in plan.inputs if declared.name not in unknown)
            self._known.inputs[child] = bind_inputs(replace(plan, inputs=declared), known)
        except UnresolvedPath as error:
            message = f"{node.path} cannot start: {error}"
            failure = Failure("agent", "template.unresolved", message, retryable=False, step=node.path)
        except AuthorError as error:
            failure = Failure("agent", error.code, error.message, error.hint, retryable=False, step=node.path)
        else:
            return CallJob({}, child)
        return not_started(node, start, failure)

    def asks(self, node: Node) -> bool:
        return node.step.traits.workspace == "claims"

    def _work_out(self, node: Node) -> Failure | None:
        """Store the output of a `set` step if it is known. Returns the failure if it cannot be evaluated."""
        body = find_body(SetBody, node.step)
        if body is None:
            return None
        names = self._known.at(node)
        if not all(is_certain(text, names) for text in body.set.values()):
            return None
        try:
            values = {name: evaluate(text, names) for name, text in body.set.items()}
        except ExpressionError as error:
            return undecided(node, error)
        self._known.outputs[node.run.id, node.path] = values
        return None

    def outcome(self, node: Node, start: Start) -> tuple[int, StepEvent]:
        usage = None
        if node.step.traits.role is not None:  # the agent spends its reservation
            usage = Usage(input_tokens=start.reserved_tokens, micro_usd=start.reserved_micro_usd)
        return TICK, StepEvent(node.path, COMPLETED, start.attempt, start.execution, usage=usage)


# -----------------------------------------------------------------------------------------------------------
# A recorded run as input for a forecast: the durations and results of its steps, from its log.
#
# Rules
# * Conditions, lists, gates, failures with their retries, and child runs are as recorded. Only the start
#   times of steps are decided anew.
# * An attempt takes the time during which it was running, over all its executions. An execution that a crash
#   cut off has no end in the log: its time is unknown and not counted.
# * A step that only a person can end takes no time. Nor does the answer to a question within an attempt.
# * Nothing is invented for steps that did not run: they take no time and are not listed.

Address = tuple[str, str]
"""Run id and path."""


class RecordedAttempt(Struct):
    """One attempt as the log records it."""

    took_ms: int = 0
    since: int | None = None
    """When the running execution started."""
    begun: bool = False
    asked: bool = False
    """Whether the attempt asked a person before it ended."""
    status: str = ""
    """The final status of the attempt, or empty if the log has no end."""
    error: Failure | None = None


class Recording:
    """The contents of a log by address, read from the events of a whole tree in order."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.run_id = ""
        self.plan: Plan
        self.settings = Settings()
        self.lost = 0
        """The number of executions without a recorded end."""
        self._decided: dict[tuple[str, str, str], list[ValueDecided]] = {}
        self._attempts: dict[Address, dict[int, RecordedAttempt]] = {}
        self._children: dict[Address, str] = {}
        for event in events:
            data = event.data
            if isinstance(data, RunCreated) and data.plan is not None:
                self.run_id, self.plan, self.settings = event.run, data.plan, data.settings or Settings()
            elif isinstance(data, ValueDecided):
                self._decided.setdefault((event.run, data.step, data.what), []).append(data)
            elif isinstance(data, StepEvent | SubagentEvent) and not data.late:
                self._note_step(event, data)

    def _note_step(self, event: Event, data: StepEvent | SubagentEvent) -> None:
        word = EVENT_WORDS.get(data.status, data.status)
        address = (event.run, data.step)
        if isinstance(data, StepEvent) and data.child_run_id:
            self._children[address] = data.child_run_id
        if word not in TERMINAL and word not in ("started", "waiting", "interrupted", ASKED):
            return
        if word == SKIPPED:  # the step was waiting when the plan ended its run
            for attempt in self._attempts.get(address, {}).values():
                if attempt.since is not None:
                    attempt.took_ms += max(0, event.at - attempt.since)
                    attempt.since, attempt.status = None, CANCELLED
            return
        attempt = self._attempts.setdefault(address, {}).setdefault(data.attempt, RecordedAttempt())
        if attempt.since is not None:
            if word == "started":
                self.lost += 1
            else:
                attempt.took_ms += max(0, event.at - attempt.since)
        attempt.since = event.at if word in ("started", "waiting") else None
        attempt.begun = attempt.begun or attempt.since is not None
        attempt.asked = attempt.asked or word == ASKED
        if word in TERMINAL and not attempt.status:  # else the step was ended while it waited for a retry
            attempt.status, attempt.error = word, data.error

    def decided(self, node: Node, what: str, time: int) -> ValueDecided | None:
        """The result of evaluation number `time` of an expression, if it was recorded."""
        found = self._decided.get((node.run.id, node.path, what), [])
        return found[time] if time < len(found) else None

    def attempt(self, node: Node, number: int) -> RecordedAttempt | None:
        return self._attempts.get((node.run.id, node.path), {}).get(number)

    def child_of(self, node: Node) -> str:
        return self._children.get((node.run.id, node.path), "")


class RecordedResults(ForecastWorld):
    """The recorded results, as the world of a forecast."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._asked: dict[tuple[str, str, str], int] = {}
        self.unknown = 0
        """The number of steps that would start but have no end in the log."""
        self.people = 0
        """The number of questions to people."""

    def decide(self, node: Node, what: str) -> ValueDecided:
        key = (node.run.id, node.path, what)
        time = self._asked.get(key, 0)
        self._asked[key] = time + 1
        found = self._recording.decided(node, what, time)
        if found is not None:
            return found
        nothing = 0 if isinstance(node, Map) else what == "until"
        return ValueDecided(step=node.path, what=what, value=nothing)

    def prepare(self, state: State, node: Node, start: Start) -> Job | StepEvent:  # noqa: ARG002 - the host's signature
        attempt = self._recording.attempt(node, start.attempt)
        if attempt is None or (node.kind == LEAF and not attempt.status):
            self.unknown += attempt is not None
            return StepEvent(node.path, COMPLETED, start.attempt, start.execution, cached=True)
        if not attempt.begun:  # it was cached, or could not be rendered
            return StepEvent(node.path, attempt.status, start.attempt, start.execution, error=attempt.error)
        if node.step.traits.waits is not None:
            return Question("")
        child = self._recording.child_of(node)
        return CallJob({}, child) if child else Job()

    def asks(self, node: Node) -> bool:  # noqa: ARG002 - as above
        return False  # questions take no time

    def outcome(self, node: Node, start: Start) -> tuple[int, StepEvent]:
        attempt = self._recording.attempt(node, start.attempt)
        assert attempt is not None, "it was started because the log has it"
        end = StepEvent(node.path, attempt.status, start.attempt, start.execution, error=attempt.error)
        if node.step.traits.waits != "person":
            self.people += attempt.asked
            return attempt.took_ms, end
        self.people += 1
        return (attempt.took_ms if attempt.status == CANCELLED else 0), end  # cancelled: the run ended it
