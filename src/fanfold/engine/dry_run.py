"""Dry run: a forecast of a run, made with the real scheduler. It starts nothing and writes nothing.

The kernel runs with steps that take one tick each (`ForecastHost`). It uses the values that are known before
the run, and assumptions for the others (`Foresight`). A wave is the set of steps that start in one tick.

`DryRun` has exactly the keys that scripts read from `run --dry-run --json`. The nodes that are returned with
it let a user interface present the same facts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from operator import attrgetter
from typing import NamedTuple

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from fanfold.engine.forecast import MAX_INSTANCES, Assumptions, ForecastHost, Foresight
from fanfold.kernel.claims import ClaimIndex
from fanfold.kernel.events import Settings
from fanfold.kernel.paths import overlaps, witness
from fanfold.kernel.plan import JSON, GroupAction, Plan, Step, WorkflowAction, in_order
from fanfold.kernel.state import (
    FAILED,
    LEAF,
    LOOP,
    SCOPE,
    TERMINAL,
    Composite,
    Loop,
    Map,
    Node,
    WorkflowCall,
    is_shared_writer,
)

# -----------------------------------------------------------------------------------------------------------
# Bounds on the number of agents of a run
#
# Minimum: no attempt fails, unknown conditions are false, unknown lists are empty, loops end after one
# iteration, and every cacheable step is cached. Maximum: the opposite of each. Expected: every attempt
# succeeds, unknown conditions are true, unknown lists have five items, loops end after one iteration.

USUAL_ITEMS = 5
"""The expected length of a list that is known only during the run."""


class Bounds(NamedTuple):
    """The minimum, expected and maximum number of agents."""

    low: int
    expected: int
    high: int

    def times(self, low: int, expected: int, high: int) -> Bounds:
        return Bounds(self.low * low, self.expected * expected, self.high * high)

    def perhaps(self) -> Bounds:
        """The bounds of a step that may not run."""
        return self.times(0, 1, 1)

    def mapped(self, most: int) -> Bounds:
        """The bounds of a map over an unknown list with at most `most` items."""
        return self.times(0, min(USUAL_ITEMS, most), most)


NONE = Bounds(0, 0, 0)


def _sum(parts: Iterable[Bounds]) -> Bounds:
    low = expected = high = 0
    for part in parts:
        low += part.low
        expected += part.expected
        high += part.high
    return Bounds(low, expected, high)


class AgentBounds:
    """Computes the bounds from the instances of a forecast and the assumptions about them."""

    def __init__(self, plan: Plan, assumed: Assumptions) -> None:
        self._plan = plan
        self._assumed = assumed
        self._workflows: dict[str, Bounds] = {}

    def of(self, node: Node) -> Bounds:
        begun = node.children if isinstance(node, Composite) else node.attempt
        if node.status in TERMINAL and not begun:
            return NONE  # skipped, cancelled before it started, or certain to fail
        found = self._of_composite(node) if isinstance(node, Composite) else _of_work(node.step)
        return found.perhaps() if self._assumed.has("conditions", node) else found

    def _of_composite(self, node: Composite) -> Bounds:
        if not node.children:  # the forecast did not expand it, because it was full
            if isinstance(node, Map):
                count = node.count or 0
                return self._of_item(node.step).times(0, count, count)
            return (self._of_loop if isinstance(node, Loop) else self._of_body)(node.step).perhaps()
        inside = [self.of(child) for child in node.children]
        if self._assumed.has("lists", node):
            return inside[0].mapped(node.step.max_items)
        if isinstance(node, Loop) and self._assumed.has("loops", node):
            assert node.step.repeat is not None
            rounds, fold = inside[: node.iteration], inside[node.iteration :]
            most = max(each.high for each in rounds) * node.step.repeat.max_iterations
            shown = _sum(rounds)
            return _sum((Bounds(shown.low, shown.expected, most), *fold))
        return _sum(inside)

    # Steps that the forecast did not expand: bounds from the recipe alone

    def _of_step(self, step: Step) -> Bounds:
        item = self._of_item(step)
        return item if step.for_each is None else item.mapped(step.max_items)

    def _of_item(self, step: Step) -> Bounds:
        found = self._of_loop(step)
        return found if step.when is None else found.perhaps()

    def _of_loop(self, step: Step) -> Bounds:
        body = self._of_body(step)
        if step.repeat is None:
            return body
        fold = NONE if step.fold is None else self._of_step(step.fold)
        return _sum((body.times(1, 1, step.repeat.max_iterations), fold))

    def _of_body(self, step: Step) -> Bounds:
        action = step.action
        if isinstance(action, GroupAction):
            return _sum(self._of_step(inner) for inner in action.steps)
        if not isinstance(action, WorkflowAction):
            return _of_work(step)
        name = action.workflow
        if name not in self._workflows:
            steps = self._plan.workflows[name].steps
            self._workflows[name] = _sum(self._of_step(inner) for inner in steps)
        return self._workflows[name]


def _of_work(step: Step) -> Bounds:
    if step.traits.role is None:
        return NONE
    return Bounds(0 if step.cache else 1, 1, step.retry.attempts)


# -----------------------------------------------------------------------------------------------------------
# The order of steps by edges alone: the critical path, and pairs of unordered steps
#
# The tree of instances is walked scope by scope, dependencies first. Steps are numbered in plan order. Sets
# of steps are integers with one bit per step. So a thousand steps with the same dependency share one integer.


class _Chain(NamedTuple):
    """A chain of dependent steps, last step first."""

    length: int
    number: int
    before: _Chain | None


_NOTHING = _Chain(0, -1, None)
_length = attrgetter("length")


class StepOrder:
    """The order of `steps` by edges below `top`. The steps are given in plan order."""

    def __init__(self, top: Composite, steps: Sequence[Node]) -> None:
        self._numbers = {node: number for number, node in enumerate(steps)}
        self._top = top
        self._before: list[int] = []
        """For each step, the set of steps that end before it starts. Computed on first use."""
        self._after: list[int] = []

    def related(self, number: int) -> int:
        """The set of steps that end before this one starts, or start after it ends."""
        if not self._before:
            self._before, self._after = [0] * len(self._numbers), [0] * len(self._numbers)
            self._walk(self._top, 0, self._before, forward=True)
            self._walk(self._top, 0, self._after, forward=False)
        return self._before[number] | self._after[number]

    def _walk(self, node: Node, earlier: int, found: list[int], *, forward: bool) -> int:
        """Store the predecessors of every step inside a node in `found`, and return the steps of the node.

        `earlier` is the set of steps that come before the whole node.
        """
        if node.kind == LEAF or not isinstance(node, Composite):
            number = self._numbers.get(node)
            if number is None:
                return 0
            found[number] = earlier
            return 1 << number
        inside = 0
        if node.kind == SCOPE:
            closed: dict[str, int] = {}
            for child, edges in _edges(node, forward=forward):
                before = earlier
                for name in edges:
                    before |= closed[name]
                own = self._walk(child, before, found, forward=forward)
                closed[child.step.id] = before | own
                inside |= own
            return inside
        for child in node.children if forward else reversed(node.children):
            # Iterations and the fold after them run in sequence; items of a map do not.
            before = earlier | inside if node.kind == LOOP else earlier
            inside |= self._walk(child, before, found, forward=forward)
        return inside

    def critical_path(self, weigh: Callable[[int], int]) -> list[int]:
        """The chain of dependent steps with the largest weight. Of equal chains, the first declared wins."""
        chain: _Chain | None = self._longest(self._top, _NOTHING, weigh)
        path: list[int] = []
        while chain is not None and chain.number >= 0:
            path.append(chain.number)
            chain = chain.before
        return path[::-1]

    def _longest(self, node: Node, chain: _Chain, weigh: Callable[[int], int]) -> _Chain:
        if node.kind == LEAF or not isinstance(node, Composite):
            number = self._numbers.get(node)
            return chain if number is None else _Chain(chain.length + weigh(number), number, chain)
        if node.kind == SCOPE:
            ends: dict[str, _Chain] = {}
            for child, edges in _edges(node, forward=True):
                start = max((ends[name] for name in edges), key=_length, default=chain)
                ends[child.step.id] = self._longest(child, max(start, chain, key=_length), weigh)
            return max((ends[child.step.id] for child in node.children), key=_length, default=chain)
        end = chain
        for child in node.children:
            last = self._longest(child, end if node.kind == LOOP else chain, weigh)
            end = max(end, last, key=_length)
        return end


def _edges(scope: Composite, *, forward: bool) -> list[tuple[Node, list[str]]]:
    """The children of a scope with their edges, dependencies first; dependents first if not `forward`."""
    children = {child.step.id: child for child in scope.children}
    edges = {
        name: [need for need in child.step.depends_on + child.step.after if need in children]
        for name, child in children.items()
    }
    if not forward:
        backward: dict[str, list[str]] = {name: [] for name in edges}
        for name, needs in edges.items():
            for need in needs:
                backward[need].append(name)
        edges = backward
    return [(children[name], edges[name]) for name in in_order(edges)]


# -----------------------------------------------------------------------------------------------------------
# Conflicts: pairs of unordered steps that may not run at the same time because of their path sets
#
# The scheduler's own index of claims is asked for overlaps, pattern by pattern. The steps that claim a
# pattern are a set of bits. So ten thousand writers with one common file cost one lookup, not fifty million.

MAX_LISTED = 1_000
MAX_OVERLAPS = 50_000
"""The maximum number of pairs of overlapping patterns to inspect.

Thousands of steps may have different patterns that all overlap. The scheduler never inspects all pairs, and a
forecast must not either.
"""


class Conflicts(Struct, frozen=True):
    """The conflicts among the steps of a forecast."""

    listed: list[tuple[int, int, str]]
    """Two steps by number, and a path that both claim."""
    total: int
    complete: bool
    """False if there are too many different path sets to count all conflicts."""


def find_conflicts(steps: Sequence[Node], order: StepOrder) -> Conflicts:
    """The conflicts among these steps, which are in plan order. Steps that are never queued claim nothing."""
    claims = _Claims(steps)
    listed: list[tuple[int, int, str]] = []
    twice = 0
    for number, node in enumerate(steps):
        rivals = claims.rivals(node)
        if not rivals:
            continue
        rivals &= ~(order.related(number) | 1 << number)
        twice += rivals.bit_count()
        later = rivals >> (number + 1)
        while later and len(listed) < MAX_LISTED:
            other = number + (later & -later).bit_length()
            later &= later - 1
            listed.append((number, other, _on(node, steps[other])))
    return Conflicts(listed, twice // 2, claims.complete)


def _writes(node: Node) -> tuple[str, ...]:
    return node.write_set if node.step.posture == "writer" else ()


class _Claims:
    """The writers and readers of each pattern."""

    def __init__(self, steps: Sequence[Node]) -> None:
        self._writers, self._sharers, self._readers = _Patterns(), _Patterns(), _Patterns()
        self._known: dict[tuple[tuple[str, ...], tuple[str, ...], bool], int] = {}
        for number, node in enumerate(steps):
            if node.step.traits.workspace == "none":
                continue
            self._writers.add(_writes(node), 1 << number)
            self._readers.add(node.read_set, 1 << number)
            if is_shared_writer(node):
                self._sharers.add(_writes(node), 1 << number)

    @property
    def complete(self) -> bool:
        return all(claims.complete for claims in (self._writers, self._sharers, self._readers))

    def rivals(self, node: Node) -> int:
        """The set of steps that may not run at the same time as this one, including itself."""
        if node.step.traits.workspace == "none":
            return 0
        shared = is_shared_writer(node)
        facts = (_writes(node), node.read_set, shared)
        if facts not in self._known:
            found = self._writers.meeting(_writes(node)) | self._sharers.meeting(node.read_set)
            self._known[facts] = found | self._readers.meeting(_writes(node)) if shared else found
        return self._known[facts]


class _Patterns:
    """The steps that claim each pattern, and the patterns that overlap."""

    def __init__(self) -> None:
        self._holders: dict[str, int] = {}
        self._index = ClaimIndex()
        self._names: list[str] = []
        self._met: dict[str, int] = {}
        self._left = MAX_OVERLAPS
        self.complete = True

    def add(self, patterns: tuple[str, ...], holder: int) -> None:
        for pattern in patterns:
            if pattern not in self._holders:
                self._index.add(len(self._names), (pattern,))
                self._names.append(pattern)
            self._holders[pattern] = self._holders.get(pattern, 0) | holder

    def meeting(self, patterns: tuple[str, ...]) -> int:
        """The steps that claim a pattern which overlaps one of these."""
        found = 0
        for pattern in patterns if self._names else ():
            if pattern not in self._met:
                held = 0
                below = self._index.latest((pattern,), None)
                while below is not None and self._left:
                    self._left -= 1
                    held |= self._holders[self._names[below]]
                    below = self._index.latest((pattern,), below)
                self.complete = self.complete and bool(self._left)
                self._met[pattern] = held
            found |= self._met[pattern]
        return found


def _on(a: Node, b: Node) -> str:
    """A path that both steps claim."""
    for one, other in collisions(a, b):
        for left, right in product(one, other):
            found = witness(left, right)
            if found is not None:
                return found
    return ""


def collisions(a: Node, b: Node) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The path sets of two steps that conflict: both write, or one writes where the other reads."""
    pairs = [(_writes(a), _writes(b))]
    if is_shared_writer(a):
        pairs.append((_writes(a), b.read_set))
    if is_shared_writer(b):
        pairs.append((_writes(b), a.read_set))
    return (pair for pair in pairs if overlaps(*pair))


MAX_FAILURES = 20


def dry_run(
    plan: Plan,
    inputs: Mapping[str, JSON],
    settings: Settings,
    *,
    warnings: Sequence[str] = (),
    allowed: bool = True,
    prompt: Callable[[str, Node, dict[str, JSON]], ForeseenPrompt] | None = None,
) -> tuple[DryRun, dict[str, Node]]:
    """Forecast a run of `plan` with these settings. Also returns the instance of every path that starts.

    `prompt` builds the prompt of an agent step from the names that are known.
    """
    world = Foresight(inputs)
    host = ForecastHost(plan, settings, world)
    host.drive()
    begun = {begun.node for begun in host.begun}
    shown = {node: path for node, path in _paths(host.state.root.scope, "", world) if node in begun}
    steps = list(shown)
    order = StepOrder(host.state.root.scope, steps)
    conflicts = find_conflicts(steps, order)
    names = list(shown.values())
    bounds = AgentBounds(host.state.plan, world.assumed).of(host.state.root.scope)
    waves: dict[int, list[str]] = {}
    for start in host.begun:
        waves.setdefault(start.at, []).append(shown[start.node])
    failures = list(_failures(host))
    limits = list(_limits(host, settings, bounds.low, not world.assumed.any_of("conditions", "lists")))
    notes = list(_notes(host, settings, bounds.high, conflicts))
    # The run pauses at the cap, unless the minimum already exceeds it.
    high = max(bounds.low, min(bounds.high, settings.max_agents))
    budget = settings.budget_micro_usd
    usd_max = 0.0 if not bounds.high else None if budget is None else budget / 1_000_000
    result = DryRun(
        waves=list(waves.values()),
        conflicts=[ForeseenConflict(names[a], names[b], on) for a, b, on in conflicts.listed],
        conflicts_total=conflicts.total,
        critical_path=[names[number] for number in order.critical_path(lambda _: 1)],
        agents=Agents(bounds.low, min(max(bounds.expected, bounds.low), high), high),
        cost=Cost(usd_max),
        would_run=allowed and not failures and not any(blocking for _, blocking in limits),
        warnings=[*warnings, *failures, *(text for text, _ in limits), *notes, *world.assumed.messages()],
    )
    if prompt is not None:
        agents = [(path, node) for node, path in shown.items() if node.kind == LEAF and node.step.traits.role]
        result = replace(result, prompts=[prompt(path, node, world.names(node)) for path, node in agents])
    return result, {path: node for node, path in shown.items()}


def _paths(node: Composite, path: str, world: Foresight) -> Iterator[tuple[Node, str]]:
    """Every instance in plan order with its tree path. The item of an unknown list is shown as `[*]`."""
    for child in node.children:
        if isinstance(node, Map) and world.assumed.has("lists", node):
            at = f"{path}[*]"
        else:
            whole = child.run.tree_path(child.path)
            at = path + whole[len(node.run.tree_path(node.path)) :]
        yield child, at.removeprefix("/")
        if isinstance(child, Composite):
            yield from _paths(child, at, world)


def _failures(host: ForecastHost) -> Iterator[str]:
    """A message for each step that is certain to fail, without the steps that only contain it."""
    found = 0
    for run in host.state.runs.values():
        for node in run.nodes.values():
            if node.status != FAILED or node.error is None:
                continue
            if isinstance(node, WorkflowCall) and node.child is not None:
                continue  # a step inside it fails
            if isinstance(node, Composite) and node.failed_child is not None:
                continue
            found += 1
            if found > MAX_FAILURES:
                yield "more steps would fail"
                return
            why = node.error.message.removeprefix(f"{node.path}: ")
            yield f'"{run.tree_path(node.path)}" would fail: {why}'


def _limits(host: ForecastHost, settings: Settings, low: int, sure: bool) -> Iterator[tuple[str, bool]]:
    """A message for each limit that would pause the run; True marks a limit that blocks the run."""
    for held in host.held:
        waves = len({begun.at for begun in host.begun[: held.begun]})
        when = f"it would pause after wave {waves}" if waves else "it would pause before its first step"
        for limit in held.limits:
            if limit == "budget":
                yield f"{when} for its budget, if each agent spends what is estimated for it", False
            elif limit == "max_steps":
                yield f"has more step instances than max_steps allows ({settings.max_steps:,}): {when}", sure
            elif not held.by_tree:
                yield f"a phase or child run needs more agents than its own max_agents: {when}", sure
            elif low > settings.max_agents:
                yield f"needs at least {low:,} agents, but max_agents is {settings.max_agents}: {when}", True
            else:
                yield f"may need more agents than max_agents ({settings.max_agents}): {when}", False


def _notes(host: ForecastHost, settings: Settings, high: int, conflicts: Conflicts) -> Iterator[str]:
    if high > settings.max_agents and not any("max_agents" in held.limits for held in host.held):
        yield f"may need more agents than max_agents ({settings.max_agents:,}); it would pause there"
    if not host.complete:
        yield f"only the first {MAX_INSTANCES:,} step instances were looked into"
    if not conflicts.complete:
        yield f"conflicts are counted among the first {MAX_OVERLAPS:,} overlapping patterns only"


# -----------------------------------------------------------------------------------------------------------
# The JSON documents of forecasts and what-if reports. Scripts rely on their shape.


class ForeseenConflict(Struct, frozen=True):
    """Two unordered steps that may not run at the same time; `on` is a path that both claim."""

    a: str
    b: str
    on: str


class Agents(Struct, frozen=True):
    """The number of sessions of the whole run tree, including retries and iterations.

    A run pauses at its `max_agents`.
    """

    min: int
    expected: int
    """The number if every attempt succeeds, conditions are true and unknown lists have five items."""
    max: int

    def told(self) -> str:
        """The numbers as text, the expected number first: `about 19 agents, at most 64`."""
        if self.min == self.max:
            return f"{self.max:,} agent{'' if self.max == 1 else 's'}"
        return f"about {self.expected:,} agent{'' if self.expected == 1 else 's'}, at most {self.max:,}"


class Cost(Struct, frozen=True):
    """The cost of a run."""

    usd_max: float | None
    """The upper bound in dollars, or None if it is unknown."""


class ForeseenPrompt(Struct, frozen=True):
    """The prompt of an agent; `{{…}}` marks values that are known only during the run."""

    path: str
    role: str
    system: str
    """Role, limits of the session and the project's instructions. Programs get them with the prompt."""
    prompt: str


class DryRun(Struct, frozen=True):
    """The forecast of a run."""

    waves: list[list[str]]
    conflicts: list[ForeseenConflict]
    conflicts_total: int
    critical_path: list[str]
    agents: Agents
    cost: Cost
    would_run: bool
    warnings: list[str]
    prompts: list[ForeseenPrompt] | UnsetType = UNSET
    """Set only if prompts were requested."""


class Slots(Struct, frozen=True):
    """The maximum number of concurrent steps, in the recorded run and in the hypothetical run."""

    recorded: int
    asked: int


class Time(Struct, frozen=True):
    """Durations in milliseconds, without waits for people and without pauses."""

    recorded: int
    """The duration of the recorded run."""
    replayed: int
    """The replayed duration with the recorded slots. Its difference to `recorded` shows the accuracy."""
    asked: int
    """The replayed duration with the slots of the hypothetical run."""
    work: int
    """The sum of all durations."""


class WhatIf(Struct, frozen=True):
    """The effect that another number of slots would have had on a recorded run."""

    run_id: str
    recipe: str
    version: int
    max_concurrency: Slots
    time_ms: Time
    attempts: int
    """The number of replayed attempts, including questions to people."""
    critical_path: list[str]
    """The longest chain of dependent steps. More slots cannot make the run shorter than this chain."""
    critical_path_ms: int
    notes: list[str]
    """Notes about the parts of the run that are not included."""
