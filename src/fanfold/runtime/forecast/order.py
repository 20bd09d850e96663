"""Who must end before whom begins, by edges alone: the critical path, and which steps nothing keeps in order.

A tree of instances is walked scope by scope, dependencies first. Steps are numbered in plan order, and sets
of them are integers with a bit for each: what comes before a thousand steps that hang on the same one is then
one and the same number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fanfold.kernel.graph import in_order
from fanfold.kernel.nodes import LEAF, LOOP, SCOPE, Composite, Node


class _Chain(NamedTuple):
    """Steps that wait for one another, last first."""

    length: int
    number: int
    before: _Chain | None


_NOTHING = _Chain(0, -1, None)


class Order:
    """The order that edges give to `steps`, which are in plan order, below `top`."""

    def __init__(self, top: Composite, steps: Sequence[Node]) -> None:
        self._numbers = {node: number for number, node in enumerate(steps)}
        self._top = top
        self._before: list[int] = []
        """For each step, the set of those that end before it begins; made when somebody asks."""
        self._after: list[int] = []

    def related(self, number: int) -> int:
        """The set of steps that end before this one begins, or begin after it ended."""
        if not self._before:
            self._before, self._after = [0] * len(self._numbers), [0] * len(self._numbers)
            self._walk(self._top, 0, self._before, forward=True)
            self._walk(self._top, 0, self._after, forward=False)
        return self._before[number] | self._after[number]

    def _walk(self, node: Node, earlier: int, found: list[int], *, forward: bool) -> int:
        """Note what comes before every step inside a node, given what comes before all of it; its steps."""
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
            # Iterations, and the fold behind them, follow one another; items of a map do not.
            before = earlier | inside if node.kind == LOOP else earlier
            inside |= self._walk(child, before, found, forward=forward)
        return inside

    def critical_path(self, weigh: Callable[[int], int]) -> list[int]:
        """The heaviest chain of steps that wait for one another; ties go to the first declared."""
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


def _length(chain: _Chain) -> int:
    return chain.length


def _edges(scope: Composite, *, forward: bool) -> list[tuple[Node, list[str]]]:
    """The children of a scope, each after those it hangs on; the other way round when not `forward`."""
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
