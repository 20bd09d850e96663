"""What a change reaches in a run that was: the steps that have to run again, and what is kept of the others.

A step is reached when somebody names it, when what it says has changed, or when it depends on a step that is
reached. What holds a reached step ends differently too: its followers are reached, and later iterations.
"""

from __future__ import annotations

from msgspec import Struct

from fanfold.kernel.events import NOTHING_SPENT, Failure, Usage
from fanfold.kernel.fold.tolerance import is_tolerated
from fanfold.kernel.lifecycle import COMPLETED, SKIPPED, UNSUCCESSFUL
from fanfold.kernel.nodes import LEAF, LOOP, Composite, Node, Order
from fanfold.runtime.hosting.run_tree import RunTree


class KeptResults(Struct, frozen=True, kw_only=True):
    """What a new run takes over from another one, and what it does again; all by tree path."""

    outputs: dict[str, str]
    """Steps whose output is reused, with its blob."""
    failures: dict[str, Failure]
    """Steps whose failure was tolerated: it is what the steps after them were given, so it stays."""
    again: tuple[str, ...]
    agents: int
    """Sessions among those that run again."""
    spent: Usage
    """What these took last time."""
    merged: dict[str, int]
    """Files that steps which run again had put into the project, where they stay."""


class Reached:
    """The nodes a change reaches, closed under dependencies and containment."""

    def __init__(self, tree: RunTree) -> None:
        self._tree = tree
        self._nodes: dict[int, Node] = {}
        self._queue: list[Node] = []

    def add(self, node: Node) -> None:
        if id(node) not in self._nodes:
            self._nodes[id(node)] = node
            self._queue.append(node)

    def holds(self, node: Node) -> bool:
        return id(node) in self._nodes

    def spread(self) -> None:
        while self._queue:
            node = self._queue.pop()
            for dependent in node.dependents:
                self.add(dependent)
            if isinstance(node, Composite):
                for child in node.children:
                    self.add(child)
            self._climb(node)

    def _climb(self, node: Node) -> None:
        outer = node.parent
        while outer is not None:
            if outer.kind == LOOP:
                for later in outer.children:
                    if later.order > node.order:
                        self.add(later)
            for dependent in outer.dependents:
                self.add(dependent)
            node, outer = outer, outer.parent

    def settle(self) -> KeptResults:
        """What is kept and what runs again, now that everything reached is known."""
        outputs: dict[str, str] = {}
        failures: dict[str, Failure] = {}
        again: list[Node] = []
        for node in leaves(self._tree):
            path = node.run.tree_path(node.path)
            if self.holds(node):
                again.append(node)
            elif node.status == COMPLETED and node.output is not None:
                outputs[path] = node.output
            elif node.status in UNSUCCESSFUL and node.error is not None and is_tolerated(node):
                failures[path] = node.error
            elif not is_left_out(node):
                again.append(node)
        return KeptResults(
            outputs=outputs,
            failures=failures,
            again=tuple(node.run.tree_path(node.path) for node in again),
            agents=sum(node.step.traits.role is not None for node in again),
            spent=_spent(self._tree, again),
            merged=_merged(self._tree, again),
        )


def leaves(tree: RunTree) -> list[Node]:
    """Every instance that is work, of the run and of the runs below it, in plan order."""
    found = (node for run in tree.state.runs.values() for node in run.nodes.values() if node.kind == LEAF)
    return sorted(found, key=_place)


def _place(node: Node) -> tuple[Order, ...]:
    """Where an instance stands in the plans around it, outermost first."""
    places = [node.order]
    while (call := node.run.call) is not None:
        node = call
        places.append(node.order)
    return tuple(reversed(places))


def is_left_out(node: Node) -> bool:
    """Whether a step had no part in its run, and not because something failed."""
    return node.status == SKIPPED and (node.reason != "failure" or is_tolerated(node))


def _spent(tree: RunTree, nodes: list[Node]) -> Usage:
    known = [tree.memory.usage.get((node.run.id, node.path)) for node in nodes]
    spent = [usage for usage in known if usage is not None]
    return sum(spent, NOTHING_SPENT) if spent else Usage()


def _merged(tree: RunTree, nodes: list[Node]) -> dict[str, int]:
    found: dict[str, int] = {}
    for node in nodes:
        rows = tree.memory.changes.get(node.run.id, [])
        count = sum(row.step == node.path and row.state in ("merged", "applied") for row in rows)
        if count:
            found[node.run.tree_path(node.path)] = count
    return found
