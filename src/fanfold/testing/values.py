"""Values in a simulated run: who produced what, and who saw it (invariant 14).

The host really renders what a step sees: it follows the references of the step through the log, not
through the kernel's state. Every value remembers its *origin*, the tree paths of all leaves that had a
part in it. So three claims are checked for each start, not assumed:

* a reference leads to a declared dependency of the step, or of a group around it, that has ended;
* what is read is the output that the log recorded for it;
* nothing that originates outside a child run is seen inside it, except through its inputs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import TypeAlias

import msgspec

from fanfold.kernel.events import Created, Event, Finished, StepEvent, SubagentEvent
from fanfold.kernel.lifecycle import EVENT_WORDS, TERMINAL
from fanfold.kernel.nodes import MAP, SCOPE, Composite, Loop, Node, Run, Scope, State, WorkflowCall
from fanfold.kernel.plan import Fields, GroupAction, Output, Plan, Ref, Template, Value
from fanfold.recipe.types.agent import AgentBody
from fanfold.recipe.types.body import find_body
from fanfold.testing.checks import InvariantError

Origin: TypeAlias = frozenset[str]
NOWHERE: Origin = frozenset()

_HOLE = re.compile(r"\{\{([^}]+)\}\}")


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
        if isinstance(data, Created):
            if data.inputs is not None:
                self.inputs[event.run] = data.inputs
        elif isinstance(data, Finished):
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
        said = find_body(AgentBody, step)
        if said is not None and said.prompt:
            seen += [self._resolve(node, path) for path in _HOLE.findall(said.prompt)]
        if step.traits.continues is not None:
            seen.append(self._output(node.run, step.traits.continues, node))
        seen += self._from_the_loop(node)
        hashes = [key for key in seen if key is not None]
        self._check_boundary(node, hashes)
        return hashes

    def inputs_of_child(self, call: Node) -> str:
        """The inputs of a child run: all that it will ever see of its parent."""
        seen = self.see(call)
        return self.put([call.run.id, call.path, seen], self.origin(seen))

    def _from_the_loop(self, node: Node) -> list[str | None]:
        """A fold sees the last iteration, an iteration sees the one before (`feedback`)."""
        loop = node.parent
        if not isinstance(loop, Loop):
            return []
        last = loop.iteration if node.step is loop.step.fold else loop.iteration - 1
        return [self._output(node.run, f"{loop.path}#{last}", node)] if last else []

    def _resolve(self, node: Node, path: str) -> str | None:
        root, _, rest = path.partition(".")
        if root == "inputs":
            return self.inputs[node.run.id]
        if root == "steps":
            return self._step_output(node, rest.partition(".")[0])
        if root == "item":
            return self.put(item_of(node), NOWHERE)
        raise InvariantError(14, f"{node.path} refers to {path}, which no recipe can write")

    def _step_output(self, node: Node, name: str) -> str | None:
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

    def _output(self, run: Run, path: str, reader: Node) -> str | None:
        if (run.id, path) not in self.ended:
            raise InvariantError(14, f"{reader.path} sees {path} before it ended")
        return self.ended[run.id, path]

    def _check_boundary(self, node: Node, seen: list[str]) -> None:
        run = node.run
        if run.parent is None:
            return
        given = self.origins[self.inputs[run.id]]
        for path in self.origin(seen):
            if path not in given and not path.startswith(f"{run.path}/"):
                raise InvariantError(14, f"{node.path} in {run.path} sees {path} beyond its inputs")

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
            yield from _HOLE.findall(value.text)


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
