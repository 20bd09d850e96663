"""The forecast host: the kernel in a world where everything goes as it is said to go.

Like every host it folds events into a state and answers the agenda; unlike the others it keeps no log and
performs nothing. A `World` decides what is not the kernel's to know, and says how long each step takes and
how it ends. What a forecast shows is what the scheduler does: plan order, slots, caps of scopes, agents,
budgets, conflicts.

Rules
* Steps that end in the same instant report one at a time, in the order in which they began, as in a run
  whose steps take equally long. What one report makes possible starts before the next is heard.
* What asks a person in the middle of its work asks at once, is agreed to at once, and goes on in its place.
* Nothing is too slow: deadlines are left out of the plan. A back-off takes its time.
* A limit that holds the run is noted, and raised for what follows, so that a forecast shows the whole run.
  Only `MAX_INSTANCES` stays: what would need more step instances than that is not looked into.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple, Protocol

from msgspec.structs import replace

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
from fanfold.kernel.decide import next_timer
from fanfold.kernel.events import (
    Created,
    Data,
    Decided,
    Event,
    Finished,
    Paused,
    Raised,
    Resumed,
    Settings,
    Started,
    StepEvent,
    Woke,
)
from fanfold.kernel.lifecycle import ASKED, COMPLETED, PAUSED, READY, RUN_TERMINAL, RUNNING, SKIPPED, WAITING
from fanfold.kernel.nodes import LEAF, Node, State
from fanfold.kernel.plan import GroupAction, Plan, Step
from fanfold.kernel.state import create_state, evolve, mark_late
from fanfold.runtime.steps.registry import type_of

ROOT = "forecast"
MAX_INSTANCES = 20_000
"""About a second of work; the largest map has 10,000 items."""
PLENTY = 1 << 60


class World(Protocol):
    """What a forecast takes for the outside."""

    def decide(self, node: Node, what: str) -> Decided:
        """What an expression of a step comes to."""
        ...

    def start(self, state: State, node: Node, start: Start, /) -> StepEvent:
        """The answer to a `Start`."""
        ...

    def asks(self, node: Node) -> bool:
        """Whether an attempt that was just started asks a person before it goes on."""
        ...

    def outcome(self, node: Node, start: Start) -> tuple[int, StepEvent]:
        """How long an attempt takes that was just started, and how it ends."""
        ...


class Begun(NamedTuple):
    """An attempt of a step, or a question to a person, and when it began and ended."""

    at: int
    until: int
    node: Node


class Held(NamedTuple):
    """A pause for limits, after how many attempts had begun."""

    begun: int
    limits: tuple[str, ...]
    by_tree: bool
    """Whether `max_agents` is the tree's own, not that of a scope inside."""


class ForecastHost:
    """Drives one plan from its first event to its end; `state` is then what a run would have come to."""

    def __init__(
        self,
        plan: Plan,
        settings: Settings,
        world: World,
        *,
        run_id: str = ROOT,
        largest: int = MAX_INSTANCES,
    ) -> None:
        roomy = replace(settings, timeout_ms=None, max_steps=min(settings.max_steps, largest))
        created = Created(plan=without_deadlines(plan), settings=roomy)
        self.state = create_state(Event(run_id, 0, created))
        self.now = 0
        self.begun: list[Begun] = []
        """In the order of their start."""
        self.backed_off: dict[Node, int] = {}
        """How long each step waited for another attempt."""
        self.held: list[Held] = []
        self.complete = True
        """False when not all of the run was looked into."""
        self._world = world
        self._under_way: list[tuple[int, int, str, Data]] = []
        self._asking: list[Node] = []
        self._places: dict[Node, int] = {}
        """Of those that asked, in `begun`."""

    def drive(self) -> None:
        state = self.state
        self._fold(state.root.id, Started())
        while state.root.status not in RUN_TERMINAL:
            if state.root.status == PAUSED:
                if not self._raise_limits():
                    self.complete = False
                    return
            elif self._asking:
                self._agree()
            else:
                self._let_time_pass()

    def _fold(self, run: str, data: Data) -> None:
        state = self.state
        evolve(state, mark_late(state, Event(run, self.now, data)))
        while state.agenda:
            command = state.agenda[0]
            evolve(state, Event(command.run, self.now, self._answer(command)))
            if isinstance(command, Start):
                self._begin(command)

    def _answer(self, command: Command) -> Data:
        match command:
            case Evaluate(run=run, step=step, what=what):
                return self._world.decide(self._node(run, step), what)
            case Queue(step=step):
                return StepEvent(step, "queued")
            case Start(run=run, step=step):
                return self._world.start(self.state, self._node(run, step), command)
            case Create(workflow=workflow, parent_run=parent):
                return Created(workflow=workflow, parent_run_id=parent)
            case Skip(step=step, reason=reason):
                return StepEvent(step, SKIPPED, reason=reason)
            case Retry(run=run, step=step, attempt=attempt, retry_at=due):
                node = self._node(run, step)
                self.backed_off[node] = self.backed_off.get(node, 0) + due - self.now
                return StepEvent(step, "retrying", attempt, retry_at=due)
            case Stop(step=step, attempt=attempt, execution=execution, reason=reason):
                return StepEvent(step, "stopping", attempt, execution, reason=reason)
            case Conclude(step=step, status=status, attempt=attempt, execution=execution, error=error):
                return StepEvent(step, status, attempt, execution, error=error, reason=command.reason)
            case Finish(status=status, error=error):
                return Finished(status=status, error=error)
            case Pause(reason=reason):
                return Paused(reason)

    def _node(self, run: str, step: str) -> Node:
        return self.state.runs[run].nodes[step]

    def _begin(self, start: Start) -> None:
        node = self._node(start.run, start.step)
        if node.kind == LEAF and node.status == COMPLETED and type_of(node.step).settled:  # it takes no time
            self.begun.append(Begun(self.now, self.now, node))
        if node.kind != LEAF or node.status not in (RUNNING, WAITING):
            return
        if node.status == RUNNING and not node.agreed and self._world.asks(node):
            self._asking.append(node)
            self._places[node] = len(self.begun)
            self.begun.append(Begun(self.now, self.now, node))
            return
        takes, end = self._world.outcome(node, start)
        until, place = self.now + takes, self._places.pop(node, len(self.begun))
        heappush(self._under_way, (until, place, start.run, end))
        self.begun[place : place + 1] = [Begun(self.now, until, node)]

    def _agree(self) -> None:
        """Have the first that asks do so, and have it agreed to; a limit may hold the run in between."""
        node = self._asking[0]
        if node.status in (RUNNING, WAITING):  # else its run was wound up
            word = "agreed" if node.reason == ASKED else ASKED
            self._fold(node.run.id, StepEvent(node.path, word, node.attempt, node.execution))
        if node.reason != ASKED:
            self._asking.pop(0)

    def _let_time_pass(self) -> None:
        timer = next_timer(self.state)
        if self._under_way and (timer is None or self._under_way[0][0] <= timer):
            self.now, _, run, end = heappop(self._under_way)
            self._fold(run, end)
        else:
            assert timer is not None, "a run that is not over has something to wait for"
            self.now = timer
            self._fold(self.state.root.id, Woke())

    def _raise_limits(self) -> bool:
        """Note what holds the run and lift it; False when that is the size of the forecast itself."""
        state = self.state
        limits = limits_that_hold(state)
        in_vain = bool(self.held) and self.held[-1][:2] == (len(self.begun), limits)
        if in_vain or not limits:
            return False
        self.held.append(Held(len(self.begun), limits, state.agents >= state.max_agents))
        self._fold(state.root.id, Resumed(state.epoch + 1, lifted(limits)))
        return True


def limits_that_hold(state: State) -> tuple[str, ...]:
    """Why a run pauses: `budget`, `max_agents`, `max_steps`."""
    limits = sorted({limit for _, node, limit in state.starved if node.status == READY})
    if state.oversize and state.max_steps < MAX_INSTANCES:
        limits.append("max_steps")
    return tuple(limits)


def lifted(limits: tuple[str, ...]) -> Raised:
    """What takes these limits out of the way, and no others."""
    money = PLENTY if "budget" in limits else None
    return Raised(
        max_agents=PLENTY if "max_agents" in limits else None,
        max_steps=MAX_INSTANCES if "max_steps" in limits else None,
        budget_tokens=money,
        budget_micro_usd=money,
    )


def without_deadlines(plan: Plan) -> Plan:
    """The same plan, with nothing in it that ends because of time."""
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
