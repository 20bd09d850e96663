"""A scheduler that is slow and obviously right: at each decision it looks at everything, from scratch.

It follows the log with bookkeeping of its own (who ended, who is live, who was examined in vain) and
takes from the kernel's state only the shape of the tree. There are no queues, no heaps and no wake-ups:
a decision is one walk over all steps in plan order, asking the four questions that `admission` states.
"""

from __future__ import annotations

from collections.abc import Iterator

from fanfold.kernel.events import (
    UNBOUNDED,
    Event,
    RunCreated,
    RunResumed,
    RunStarted,
    Settings,
    StepEvent,
    SubagentEvent,
    ValueDecided,
)
from fanfold.kernel.paths import overlaps
from fanfold.kernel.plan import GroupAction
from fanfold.kernel.state import (
    COMPLETED,
    EVENT_WORDS,
    LEAF,
    LOOP,
    MAP,
    SCOPE,
    SKIPPED,
    TERMINAL,
    Composite,
    Node,
    State,
)

Address = tuple[str, str]


def address(node: Node) -> Address:
    return node.run.id, node.path


class SlowScheduler:
    def __init__(self, settings: Settings, *, is_open: bool) -> None:
        self.slots = settings.max_concurrency
        self.agents = settings.max_agents if not is_open else UNBOUNDED
        self.raised = 0
        self.ended: dict[Address, tuple[str, str]] = {}
        self.live: dict[Address, Node] = {}
        self.begun: list[Node] = []
        """Every attempt that was ever admitted."""
        self.evaluated: set[Address] = set()
        self.queued: set[Address] = set()
        """Steps that were added to an open run and took their place."""
        self.open: set[Address] = set()
        """Scopes whose start is in the log; runs have the path ""."""
        self.decisions = 0
        self.ready_at: dict[Address, int] = {}
        """In which decision a step became ready."""
        self.in_vain: set[Address] = set()
        """Examined and refused for a conflict: they hold their sets against whoever was ready later."""

    # Following the log

    def observe(self, event: Event, state: State) -> None:
        data = event.data
        if isinstance(data, RunStarted | RunCreated):
            self.open.add((event.run, ""))
        elif isinstance(data, ValueDecided):
            self.evaluated.add((event.run, data.step))
        elif isinstance(data, RunResumed):
            if data.raised is not None:
                self.agents = max(self.agents, data.raised.max_agents or 0)
                self.raised = max(self.raised, data.raised.max_agents or 0)
        elif isinstance(data, StepEvent | SubagentEvent) and not data.late:
            self._observe_step((event.run, data.step), data, state)
        for node in self._ready(state):
            self.ready_at.setdefault(address(node), self.decisions)

    def _observe_step(self, where: Address, data: StepEvent | SubagentEvent, state: State) -> None:
        word = EVENT_WORDS.get(data.status, data.status)
        node = state.runs[where[0]].nodes[where[1]]
        if word == "queued":
            self.queued.add(where)
        elif word == "started":
            self.open.add(where)
            if node.kind == LEAF:
                self.live[where] = node
                self.begun.append(node)
        elif word in TERMINAL:
            self.live.pop(where, None)
            self.ended[where] = (word, data.reason)

    # Who is ready

    def _ready(self, state: State) -> list[Node]:
        """Leaves that wait for nothing but their turn, in plan order."""
        nodes = [node for run in state.runs.values() for node in run.nodes.values()]
        return sorted((node for node in nodes if self._is_ready(node)), key=plan_order)

    def _is_ready(self, node: Node) -> bool:
        where = address(node)
        if node.kind != LEAF or node.step.traits.waits is not None:
            return False
        if where in self.ended or where in self.live:
            return False
        return self._is_admitted(node) and not self._is_doomed(node)

    def _is_admitted(self, node: Node) -> bool:
        step, parent = node.step, node.parent
        assert parent is not None
        asks = step.when is not None and parent.kind != LOOP and node.kind != MAP
        if (asks or (step.templated_sets and node.kind == LEAF)) and address(node) not in self.evaluated:
            return False
        if parent is node.run.scope and node.run.plan.open and address(node) not in self.queued:
            return False
        if parent.kind == SCOPE:
            return (
                address(parent) in self.open
                and all(self._lets_through(node, name) for name in step.depends_on)
                and all((node.run.id, name) in self.ended for name in step.after)
            )
        return True

    def _lets_through(self, node: Node, name: str) -> bool:
        assert node.parent is not None
        prefix = f"{node.parent.path}/" if node.parent.path else ""
        status, reason = self.ended.get((node.run.id, prefix + name), ("", ""))
        inline = node.run.nodes[prefix + name].step.on_failure == "inline"
        if status == SKIPPED:
            return reason == "condition"
        return status == COMPLETED or (bool(status) and inline)

    def _is_doomed(self, node: Node) -> bool:
        """The run it belongs to is being wound up."""
        return any(scope.stopping for scope in ancestors(node))

    # Who starts

    def wave(self, state: State) -> list[Address]:
        """The steps that must start now, in order."""
        self.decisions += 1
        chosen: list[Node] = []
        for node in sorted(self._ready(state), key=takes_slot):
            if takes_slot(node) and sum(map(takes_slot, (*self.live.values(), *chosen))) >= self.slots:
                break
            if not self._has_room(node, chosen):
                continue
            if self._is_blocked(node, chosen, state):
                self.in_vain.add(address(node))
                continue
            self.in_vain.discard(address(node))
            chosen.append(node)
        return [address(node) for node in chosen]

    def _has_room(self, node: Node, chosen: list[Node]) -> bool:
        is_agent = node.step.traits.role is not None
        admitted = [other for other in (*self.begun, *chosen) if other.step.traits.role is not None]
        if is_agent and len(admitted) >= self.agents:
            return False
        for scope in ancestors(node):
            slots, agents = caps(scope)
            inside = count_inside([one for one in (*self.live.values(), *chosen) if takes_slot(one)], scope)
            if takes_slot(node) and slots is not None and inside >= slots:
                return False
            if is_agent and agents is not None and count_inside(admitted, scope) >= max(agents, self.raised):
                return False
        return True

    def _is_blocked(self, node: Node, chosen: list[Node], state: State) -> bool:
        if any(conflict(node, other) for other in (*self.live.values(), *chosen)):
            return True
        mine = self.ready_at[address(node)]
        return any(
            conflict(node, state.runs[run].nodes[path])
            for run, path in self.in_vain
            if (run, path) not in self.ended and self.ready_at[run, path] < mine
        )


def takes_slot(node: Node) -> bool:
    return node.step.traits.slot


def plan_order(node: Node) -> list[int]:
    """Declaration order, then items, then iterations: the way to the node from the root."""
    if node.parent is None:
        return []
    return [*plan_order(node.parent), node.parent.children.index(node)]


def ancestors(node: Node) -> Iterator[Composite]:
    parent = node.parent
    while parent is not None:
        yield parent
        parent = parent.parent


def caps(scope: Composite) -> tuple[int | None, int | None]:
    """Slots and agents that a scope allows for everything inside it."""
    if scope is scope.run.scope:
        limits = scope.run.plan.limits
        return (limits.max_concurrency, limits.max_agents) if scope.run.parent else (None, None)
    action = scope.step.action
    slots, agents = None, None
    if scope.kind == SCOPE and isinstance(action, GroupAction):
        slots, agents = action.max_concurrency, action.max_agents
    whole = scope.parent is None or scope.parent.step is not scope.step
    both = [cap for cap in (slots, scope.step.max_concurrency if whole else None) if cap is not None]
    return min(both, default=None), agents


def count_inside(nodes: tuple[Node, ...] | list[Node], scope: Composite) -> int:
    return sum(1 for node in nodes if any(parent is scope for parent in ancestors(node)))


def conflict(a: Node, b: Node) -> bool:
    if a.write_set and b.write_set and overlaps(a.write_set, b.write_set):
        return True
    return writes_under(a, b) or writes_under(b, a)


def writes_under(writer: Node, reader: Node) -> bool:
    shared = writer.step.posture == "writer" and writer.step.workspace_mode == "shared"
    return shared and overlaps(writer.write_set, reader.read_set)
