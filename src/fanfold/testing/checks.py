"""Invariants that only a host can check, in addition to `kernel.invariants`.

| number | how it is checked here |
|---|---|
| 2 | all acknowledged lines are in the store after every crash |
| 3 | folding the stored lines gives the fingerprints of the live run, also the second time |
| 17 | folding the lines decides, at every point, the command that was answered there |
| 19 | after the last fault, the run finishes or names what it waits for within a number of events |

The store checks 11, because it refuses stale owners; the tracked values below check 14. `Watch` adds rules of
scheduling beyond the numbered invariants: fairness, cancellations that reach everything, pauses that start
nothing, skips with a cause, and maps with as many items as their list.
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
    """An invariant is violated; the schedule ends here."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(f"invariant {number}: {message}")
        self.violation = InvariantViolation(number, message)


def _around(node: Node | None) -> Iterator[Node]:
    """Yield a step and the steps around it in its run."""
    while node is not None:
        yield node
        node = node.parent


def check_acknowledged(store: SimulatedStore) -> None:
    if not store.kept_its_word():
        raise InvariantError(2, "an acknowledged event was lost in a crash")


def check_replay(
    store: SimulatedStore, answered: Sequence[Command | None], sampled: dict[int, str], final: State
) -> None:
    """Fold the stored lines again and compare the result with the live run (3 and 17)."""
    events = [event for _, event in store.read()]
    state = create_state(events[0])
    for place, event in enumerate(events[1:], start=1):
        check_due(answered[place], event, state)
        evolve(state, event)
        if (wanted := sampled.get(place)) is not None and fingerprint(state) != wanted:
            raise InvariantError(3, f"the state after line {place + 1} differs from the live one")
    if fingerprint(state) != fingerprint(final):
        raise InvariantError(3, "the stored log folds to another state than the live one")


def check_due(answered: Command | None, event: Event, state: State) -> None:
    """Check that the command that a line answered is the next one, or that it answered none (17)."""
    due = state.agenda[0] if state.agenda else None
    if isinstance(event.data, RunResumed):
        return  # an owner can die at any point of its agenda
    if due != answered:
        raise InvariantError(
            17, f"the log has an answer for {answered}, but the state from that log asks for {due}"
        )


def check_explained(state: State) -> None:
    """After all commands are answered, check that each unfinished step names what it waits for (19)."""
    for run in state.runs.values():
        for node in run.nodes.values():
            if node.status in TERMINAL:
                continue
            explanation = explain(state, node)
            idle = explanation.reason == "slots" and state.live < state.slots
            if idle or explanation.reason in ("deciding", "chosen"):
                raise InvariantError(19, f"{explanation.message}, and nothing will ever change that")


class Watch:
    """Facts of the log so far, compared with each command before it is answered."""

    def __init__(self) -> None:
        self.cancelled: set[str] = set()
        """Runs with a requested cancellation."""
        self.closing: set[tuple[str, str]] = set()
        """Steps of an open run, and their later turns, with a requested end."""
        self.asked_to_end = False
        self.pausing = False
        self.ended: dict[tuple[str, str], tuple[str, str]] = {}
        """Status and reason of every step that ended."""
        self.items: dict[tuple[str, str], int] = {}
        self.events = 0
        self.parked_at: dict[int, int] = {}
        """The number at which a step was refused for a conflict and reserved its sets, by `ready_seq`."""
        self.chosen_at: dict[int, int] = {}

    def note(self, event: Event, state: State) -> None:
        """Note one event after it was folded into `state`."""
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
        """Return whether the end of the step, or of one around it, was requested."""
        return any((inner.run.id, inner.path) in self.closing for inner in _around(node))

    def lost_its_parent(self, node: Node) -> bool:
        """Return whether the agent that requested a step, or one around it, has finished."""
        parents = (inner.step.parent for inner in _around(node) if inner.step.parent)
        call = node.run.call
        lost = any((node.run.id, parent) in self.ended for parent in parents)
        return lost or (call is not None and self.lost_its_parent(call))

    def check(self, command: Command, state: State) -> None:
        """Check a command against the log before it is answered."""
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
        raise InvariantError(4, f"{node.path} was skipped because of a failure, but no dependency failed")

    def _check_outcome(self, run: Run, status: str) -> None:
        """Check the reported status of a run against the outcomes of its steps (10)."""
        ends = [(path, *end) for (owner, path), end in self.ended.items() if owner == run.id]
        done = sum(end == COMPLETED for _, end, _ in ends)
        lost = [(path, end) for path, end, reason in ends if end in UNSUCCESSFUL or reason == "failure"]
        enders = [run.nodes[path].step.traits.ends for path, end, _ in ends if end == COMPLETED]
        if status in enders and run.ending == "end":
            return  # one of its steps requested it and was reached
        stops = any(run.nodes[path].step.on_failure == "stop" for path, _ in lost)
        right = {
            COMPLETED: not lost or (done > 0 and all(is_tolerated(run.nodes[path]) for path, _ in lost)),
            PARTIAL: bool(lost) and done > 0,
            FAILED: bool(lost) and (done == 0 or stops),
        }
        if not right.get(status, True):
            message = f"run {run.id} says {status}: {done} steps completed, {len(lost)} did not"
            raise InvariantError(10, message)

    def is_cancelled(self, run: Run | None) -> bool:
        """Return whether the run, or one around it, was cancelled on request."""
        return run is not None and (run.id in self.cancelled or self.is_cancelled(run.parent))


# -----------------------------------------------------------------------------------------------------------
# Values in a simulated run: their producers and their readers (invariant 14).
#
# The host renders the values of a step from the log, not from the state of the kernel. Every value has an
# *origin*: the tree paths of all leaves that contributed to it. So three rules are checked for each start:
#
# * a reference leads to a finished dependency of the step, or of a group around it;
# * its value is the output in the log;
# * a child run sees nothing from outside except its inputs.

Origin: TypeAlias = frozenset[str]
NOWHERE: Origin = frozenset()

_HOLE = r"\{\{([^}]+)\}\}"


class SimulatedValues:
    """The blob store of one run tree, and the finished steps of its log."""

    def __init__(self) -> None:
        self.origins: dict[str, Origin] = {}
        """The origins of each stored value, by hash."""
        self.ended: dict[tuple[str, str], str | None] = {}
        """The output hash of every finished step (path "" for runs), from the events alone."""
        self.inputs: dict[str, str] = {}

    def put(self, value: object, origin: Origin) -> str:
        """Store a value; return its hash."""
        key = blake2b(msgspec.json.encode(value), digest_size=8).hexdigest()
        self.origins[key] = origin
        return key

    def forget_the_log(self) -> None:
        """Forget all finished steps after a crash cut the log; reading it notes them again."""
        self.ended.clear()
        self.inputs.clear()

    def note(self, event: Event, state: State) -> None:
        """Note one event after it was folded into `state`."""
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

    # Values of a step

    def see(self, node: Node) -> list[str]:
        """Render the inputs and the prompt of a leaf; return the hashes of all values that it gets."""
        step = node.step
        seen = [self._resolve(node, path) for path in _paths(step.inputs.values())]
        if (body := find_body(AgentBody, step)) is not None and body.prompt:
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
        """Return the inputs of a child run, the only values of its parent that it sees."""
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
            raise InvariantError(14, f"{node.path} refers to {name}, which is not visible there")
        if root == "item":
            return self.put(item_of(node), NOWHERE)
        raise InvariantError(14, f"{node.path} refers to {path}, which no recipe can write")

    def _output(self, run: Run, path: str, reader: Node) -> str | None:
        if (run.id, path) not in self.ended:
            raise InvariantError(14, f"{reader.path} sees {path} before its end")
        return self.ended[run.id, path]

    def origin(self, keys: Iterable[str]) -> Origin:
        return frozenset().union(*(self.origins[key] for key in keys))

    # Outputs

    def result(self, node: Node, attempt: int, seen: list[str]) -> str:
        """Return the output of a leaf that got these values."""
        address = node.run.tree_path(node.path)
        return self.put([address, attempt, seen], self.origin(seen) | {address})

    def folded(self, node: Node) -> str | None:
        """Return the output of a composite, folded from its children."""
        if isinstance(node, WorkflowCall):
            return None if node.child is None else self.ended.get((node.child.id, ""))
        if isinstance(node, Loop):
            return self._output(node.run, node.children[-1].path, node) if node.children else None
        if isinstance(node, Scope):
            assert isinstance(node.step.action, GroupAction)
            return self._scope_output(node, node.step.action.output)
        assert isinstance(node, Composite)
        return self._combine([self._output(node.run, child.path, node) for child in node.children])

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
    """Return the index of the map item that this step is, or is inside of."""
    inside = (inner for inner in _around(node) if inner.parent is not None and inner.parent.kind == MAP)
    return next(inside).order[-1]


def item_of(node: Node) -> str:
    """Return the value of an item. Values repeat, so that two items can need the same files."""
    return f"p{item_index(node) % 3}"


def fill_sets(node: Node, patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the rendered path sets of one instance."""
    index = item_index(node)
    return tuple(
        pattern.replace("{{item}}", f"p{index % 3}").replace("{{index}}", str(index)) for pattern in patterns
    )
