"""The invariants that only a host can check, next to the auditor's.

| number | how it is checked here |
|---|---|
| 2 | the store's acknowledged lines are all there after every crash |
| 3 | reading the lines and folding them gives the fingerprints seen live, and the same one twice |
| 17 | folding the lines decides, at every point, the command whose answer was recorded there |
| 19 | after the faults have stopped, the run ends or names what it waits for in a bounded number of events |

11 is checked by the store, which refuses stale owners, and 14 by `values`. `Watch` adds what the
scheduling rules promise beyond the numbered invariants: fairness, the reach of a cancellation, the quiet
of a pause, skips that have a cause, and maps with as many items as their list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import TypeAlias

import msgspec

from fanfold.kernel.commands import Command, Conclude, Finish, Skip, Start
from fanfold.kernel.events import (
    CancelRequested,
    CloseRequested,
    EndRequested,
    Event,
    PauseRequested,
    RunCreated,
    RunFinished,
    RunResumed,
    StepEvent,
    SubagentEvent,
    ValueDecided,
)
from fanfold.kernel.explain import explain
from fanfold.kernel.invariants import InvariantViolation, conflict
from fanfold.kernel.plan import Fields, GroupAction, Output, Plan, Ref, Template, Value
from fanfold.kernel.progress import is_tolerated
from fanfold.kernel.state import (
    COMPLETED,
    EVENT_WORDS,
    FAILED,
    LEAF,
    MAP,
    PARTIAL,
    SCOPE,
    SKIPPED,
    TERMINAL,
    UNSUCCESSFUL,
    Composite,
    Loop,
    Map,
    Node,
    Run,
    Scope,
    State,
    WorkflowCall,
    fingerprint,
)
from fanfold.kernel.transitions import create_state, evolve
from fanfold.language.leaf_steps import AgentBody, find_body
from fanfold.testing.simulated_store import SimulatedStore


class InvariantError(Exception):
    """An invariant does not hold; the schedule ends here."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(f"invariant {number}: {message}")
        self.violation = InvariantViolation(number, message)


def check_acknowledged(store: SimulatedStore) -> None:
    if not store.kept_its_word():
        raise InvariantError(2, "an acknowledged event is gone after a crash")


def check_replay(
    store: SimulatedStore, answered: Sequence[Command | None], sampled: dict[int, str], final: State
) -> None:
    """Fold the stored lines from scratch and compare with what happened live (3 and 17)."""
    events = [event for _, event in store.read()]
    state = create_state(events[0])
    for place, event in enumerate(events[1:], start=1):
        check_due(answered[place], event, state)
        evolve(state, event)
        wanted = sampled.get(place)
        if wanted is not None and fingerprint(state) != wanted:
            raise InvariantError(3, f"the state after line {place + 1} differs from the live one")
    if fingerprint(state) != fingerprint(final):
        raise InvariantError(3, "folding the stored log gives another state than the live one")


def check_due(answered: Command | None, event: Event, state: State) -> None:
    """A line is folded again: what it answered must be due, or nothing if it was a report (17)."""
    due = state.agenda[0] if state.agenda else None
    if isinstance(event.data, RunResumed):
        return  # an owner may have died at any point of its agenda
    if due != answered:
        raise InvariantError(17, f"the log answers {answered}; folding it again decides {due}")


def check_explained(state: State) -> None:
    """Everything decided is answered: a node that has not ended must name what it waits for (19)."""
    for run in state.runs.values():
        for node in run.nodes.values():
            if node.status in TERMINAL:
                continue
            explanation = explain(state, node)
            idle = explanation.reason == "slots" and state.live < state.slots
            if idle or explanation.reason in ("deciding", "chosen"):
                raise InvariantError(19, f"{explanation.message}, and nothing will ever change that")


class Watch:
    """What the log has promised so far, held against each command before it is answered."""

    def __init__(self) -> None:
        self.cancelled: set[str] = set()
        """Runs whose cancellation was asked for."""
        self.closing: set[tuple[str, str]] = set()
        """Steps of an open run, and the turns behind them, that were asked to end."""
        self.asked_to_end = False
        self.pausing = False
        self.ended: dict[tuple[str, str], tuple[str, str]] = {}
        """Status and reason of every step that ended."""
        self.items: dict[tuple[str, str], int] = {}
        self.events = 0
        self.parked_at: dict[int, int] = {}
        """When a step was refused for a conflict and began to reserve its sets, by `ready_seq`."""
        self.chosen_at: dict[int, int] = {}

    def note(self, event: Event, state: State) -> None:
        """Follow one event that was folded into `state`."""
        self.events += 1
        for seq, node in state.claimants.items():
            (self.parked_at if node.reserving else self.chosen_at).setdefault(seq, self.events)
        data = event.data
        if isinstance(data, CancelRequested):
            self.cancelled.add(event.run)
        elif isinstance(data, PauseRequested | RunResumed):
            self.pausing = isinstance(data, PauseRequested)
        elif isinstance(data, CloseRequested):
            turns = [data.step]
            for node in state.root.scope.children:
                if any(name in turns for name in node.step.after):
                    turns.append(node.path)
            self.closing.update((state.root.id, turn) for turn in turns)
        elif isinstance(data, EndRequested):
            self.asked_to_end = True
        elif isinstance(data, ValueDecided):
            if data.what == "for_each" and data.error is None:
                self.items[event.run, data.step] = data.value or 0
        elif isinstance(data, StepEvent | SubagentEvent) and not data.late:
            word = EVENT_WORDS.get(data.status, data.status)
            if word in TERMINAL and state.runs[event.run].nodes[data.step].status in TERMINAL:
                self.ended[event.run, data.step] = (word, data.reason)

    def is_closing(self, node: Node) -> bool:
        """Whether the step, or one around it, was asked to end."""
        inner: Node | None = node
        while inner is not None:
            if (inner.run.id, inner.path) in self.closing:
                return True
            inner = inner.parent
        return False

    def lost_its_parent(self, node: Node) -> bool:
        """Whether the agent that asked for a step, or for one around it, has ended."""
        inner: Node | None = node
        while inner is not None:
            if inner.step.parent and (inner.run.id, inner.step.parent) in self.ended:
                return True
            inner = inner.parent if inner.parent is not None else inner.run.call
        return False

    def check(self, command: Command, state: State) -> None:
        """Hold a command that is about to be answered against the log."""
        if isinstance(command, Start):
            node = state.runs[command.run].nodes[command.step]
            if node.kind == LEAF and node.step.traits.waits is None:
                self._check_start(node, command, state)
        elif isinstance(command, Skip) and command.reason == "failure":
            self._check_skip(state.runs[command.run].nodes[command.step])
        elif isinstance(command, Finish):
            self._check_outcome(state.runs[command.run], command.status)
        elif isinstance(command, Conclude) and command.status == COMPLETED:
            node = state.runs[command.run].nodes[command.step]
            wanted = self.items.get((command.run, command.step))
            if isinstance(node, Map) and len(node.children) != wanted:
                raise InvariantError(13, f"{node.path} has {len(node.children)} items, its list {wanted}")

    def _check_start(self, node: Node, command: Start, state: State) -> None:
        if self.is_cancelled(node.run):
            raise InvariantError(9, f"{node.path} starts although its run was cancelled")
        if self.is_closing(node):
            raise InvariantError(9, f"{node.path} starts although it was closed")
        if self.pausing and not self.cancelled:
            raise InvariantError(19, f"{node.path} starts although a pause was asked for")
        if command.execution > 1:
            return
        chosen_at = self.chosen_at.get(node.ready_seq, self.events)
        for seq, other in state.claimants.items():
            waited = other.reserving and seq < node.ready_from and self.parked_at[seq] < chosen_at
            if waited and conflict(node, other):
                raise InvariantError(19, f"{node.path} overtakes {other.path}, which waited longer")

    def _check_skip(self, node: Node) -> None:
        assert node.parent is not None
        prefix = f"{node.parent.path}/" if node.parent.path else ""
        for name in node.step.depends_on:
            status, reason = self.ended.get((node.run.id, prefix + name), (COMPLETED, ""))
            inline = node.run.nodes[prefix + name].step.on_failure == "inline"
            if status == SKIPPED:
                if reason == "failure":
                    return
            elif status != COMPLETED and not inline:
                return
        raise InvariantError(4, f"{node.path} is skipped for a failure, but no dependency failed")

    def _check_outcome(self, run: Run, status: str) -> None:
        """A run's word about itself, held against what became of its steps (10)."""
        ends = [(path, *end) for (owner, path), end in self.ended.items() if owner == run.id]
        done = sum(end == COMPLETED for _, end, _ in ends)
        lost = [(path, end) for path, end, reason in ends if end in UNSUCCESSFUL or reason == "failure"]
        enders = [run.nodes[path].step.traits.ends for path, end, _ in ends if end == COMPLETED]
        if status in enders and run.ending == "end":
            return  # one of its steps requested it, and that one was reached
        stops = any(run.nodes[path].step.on_failure == "stop" for path, _ in lost)
        right = {
            COMPLETED: not lost or (done > 0 and all(is_tolerated(run.nodes[path]) for path, _ in lost)),
            PARTIAL: bool(lost) and done > 0,
            FAILED: bool(lost) and (done == 0 or stops),
        }
        if not right.get(status, True):
            raise InvariantError(
                10, f"run {run.id} says {status}: {done} steps completed, {len(lost)} did not"
            )

    def is_cancelled(self, run: Run | None) -> bool:
        """Whether the run, or one around it, was cancelled on request."""
        while run is not None:
            if run.id in self.cancelled:
                return True
            run = run.parent
        return False


# -----------------------------------------------------------------------------------------------------------
# Values in a simulated run: who produced what, and who saw it (invariant 14).
#
# The host really renders what a step sees: it follows the references of the step through the log, not
# through the kernel's state. Every value remembers its *origin*, the tree paths of all leaves that had a
# part in it. So three claims are checked for each start, not assumed:
#
# * a reference leads to a declared dependency of the step, or of a group around it, that has ended;
# * what is read is the output that the log recorded for it;
# * nothing that originates outside a child run is seen inside it, except through its inputs.

Origin: TypeAlias = frozenset[str]
NOWHERE: Origin = frozenset()

_HOLE = r"\{\{([^}]+)\}\}"


class SimulatedValues:
    """The blob store of one run tree, and what the log says has ended."""

    def __init__(self) -> None:
        self.origins: dict[str, Origin] = {}
        """What is known about each stored value, by hash."""
        self.ended: dict[tuple[str, str], str | None] = {}
        """Output hash of every step that ended (path "" for runs), from the events alone."""
        self.inputs: dict[str, str] = {}

    def put(self, value: object, origin: Origin) -> str:
        """Store a value; its hash."""
        key = blake2b(msgspec.json.encode(value), digest_size=8).hexdigest()
        self.origins[key] = origin
        return key

    def forget_the_log(self) -> None:
        """A crash may have cut the log: what ended is noted again while it is read."""
        self.ended.clear()
        self.inputs.clear()

    def note(self, event: Event, state: State) -> None:
        """Follow one event that was folded into `state`."""
        data = event.data
        if isinstance(data, RunCreated):
            if data.inputs is not None:
                self.inputs[event.run] = data.inputs
        elif isinstance(data, RunFinished):
            self.ended[event.run, ""] = data.output
        elif isinstance(data, StepEvent | SubagentEvent) and not data.late:
            word = EVENT_WORDS.get(data.status, data.status)
            if word in TERMINAL and state.runs[event.run].nodes[data.step].status in TERMINAL:
                self.ended[event.run, data.step] = data.output

    # What a step sees

    def see(self, node: Node) -> list[str]:
        """Render a leaf's inputs and prompt: the hashes of everything it gets to see."""
        step = node.step
        seen = [self._resolve(node, path) for path in _paths(step.inputs.values())]
        body = find_body(AgentBody, step)
        if body is not None and body.prompt:
            seen += [self._resolve(node, path) for path in re.findall(_HOLE, body.prompt)]
        if step.traits.continues is not None:
            seen.append(self._output(node.run, step.traits.continues, node))
        loop, run = node.parent, node.run
        if isinstance(loop, Loop):  # a fold sees the last iteration, an iteration the one before (`feedback`)
            last = loop.iteration if step is loop.step.fold else loop.iteration - 1
            seen += [self._output(run, f"{loop.path}#{last}", node)] if last else []
        hashes = [key for key in seen if key is not None]
        for path in self.origin(hashes) - self.origins[self.inputs[run.id]] if run.parent is not None else ():
            if not path.startswith(f"{run.path}/"):
                raise InvariantError(14, f"{node.path} in {run.path} sees {path} beyond its inputs")
        return hashes

    def inputs_of_child(self, call: Node) -> str:
        """The inputs of a child run: all that it will ever see of its parent."""
        seen = self.see(call)
        return self.put([call.run.id, call.path, seen], self.origin(seen))

    def _resolve(self, node: Node, path: str) -> str | None:
        root, _, rest = path.partition(".")
        if root == "inputs":
            return self.inputs[node.run.id]
        if root == "steps":
            name = rest.partition(".")[0]
            inner: Node = node
            while inner.parent is not None:
                scope = inner.parent
                if scope.kind == SCOPE:
                    prefix = f"{scope.path}/" if scope.path else ""
                    if prefix + name in node.run.nodes:
                        if name not in inner.step.depends_on:
                            raise InvariantError(14, f"{node.path} sees {name} without an edge to it")
                        return self._output(node.run, prefix + name, node)
                    if scope is node.run.scope:
                        break
                inner = scope
            raise InvariantError(14, f"{node.path} refers to {name}, which is not in sight")
        if root == "item":
            return self.put(item_of(node), NOWHERE)
        raise InvariantError(14, f"{node.path} refers to {path}, which no recipe can write")

    def _output(self, run: Run, path: str, reader: Node) -> str | None:
        if (run.id, path) not in self.ended:
            raise InvariantError(14, f"{reader.path} sees {path} before it ended")
        return self.ended[run.id, path]

    def origin(self, keys: Iterable[str]) -> Origin:
        return frozenset().union(*(self.origins[key] for key in keys))

    # What comes out

    def result(self, node: Node, attempt: int, seen: list[str]) -> str:
        """The output of a leaf that saw these values."""
        address = node.run.tree_path(node.path)
        return self.put([address, attempt, seen], self.origin(seen) | {address})

    def folded(self, node: Node) -> str | None:
        """The output of a composite, folded from its children."""
        keys: list[str | None]
        if isinstance(node, WorkflowCall):
            return None if node.child is None else self.ended.get((node.child.id, ""))
        if isinstance(node, Loop):
            return self._output(node.run, node.children[-1].path, node) if node.children else None
        if isinstance(node, Scope):
            assert isinstance(node.step.action, GroupAction)
            return self._scope_output(node, node.step.action.output)
        assert isinstance(node, Composite)
        keys = [self._output(node.run, child.path, node) for child in node.children]
        return self._combine(keys)

    def run_output(self, run: Run, plan: Plan) -> str | None:
        return self._scope_output(run.scope, plan.output)

    def _scope_output(self, scope: Scope, output: Output | None) -> str | None:
        prefix = f"{scope.path}/" if scope.path else ""
        if output is None:
            return self._output(scope.run, scope.children[-1].path, scope) if scope.children else None
        values = output.fields.values() if isinstance(output, Fields) else (output,)
        names = [path.split(".")[1] for path in _paths(values)]
        return self._combine([self._output(scope.run, prefix + name, scope) for name in names])

    def _combine(self, keys: list[str | None]) -> str:
        return self.put(keys, self.origin(key for key in keys if key is not None))


def _paths(values: Iterable[Value]) -> Iterator[str]:
    for value in values:
        if isinstance(value, Ref):
            yield value.path
        elif isinstance(value, Template):
            yield from re.findall(_HOLE, value.text)


def item_index(node: Node) -> int:
    """The index of the map item that this node is, or is inside of."""
    inner: Node | None = node
    while inner is not None and (inner.parent is None or inner.parent.kind != MAP):
        inner = inner.parent
    assert inner is not None
    return inner.order[-1]


def item_of(node: Node) -> str:
    """Items repeat, so that two of them may want the same files."""
    return f"p{item_index(node) % 3}"


def fill_sets(node: Node, patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Templated sets of one instance."""
    index = item_index(node)
    return tuple(
        pattern.replace("{{item}}", f"p{index % 3}").replace("{{index}}", str(index)) for pattern in patterns
    )
