"""Pairs of steps that no edge orders and that the scheduler would still hold apart, for what they touch.

Overlap is asked of the scheduler's own index of claims, pattern by pattern; which steps hold a pattern is a
set of bits. So ten thousand writers that have one file in common cost one question, not fifty million.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from msgspec import Struct

from fanfold.kernel.nodes import Node, is_shared_writer
from fanfold.kernel.paths import overlaps, witness
from fanfold.kernel.sets.claims import ClaimIndex
from fanfold.runtime.forecast.order import Order

MAX_LISTED = 1_000
MAX_OVERLAPS = 50_000
"""Pairs of overlapping patterns that are looked at. Thousands of steps may have patterns of their own that
all overlap; the scheduler never has to ask about all of them, and we must not either."""


class Pair(Struct, frozen=True):
    """Two steps by number, and a path that both want."""

    a: int
    b: int
    on: str


class Conflicts(Struct, frozen=True):
    listed: list[Pair]
    total: int
    complete: bool
    """False when there are too many different sets to count them all."""


def find_conflicts(steps: Sequence[Node], order: Order) -> Conflicts:
    """Of these steps, in plan order; those that are never queued claim nothing."""
    claims = _Claims(steps)
    listed: list[Pair] = []
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
            listed.append(Pair(number, other, _on(node, steps[other])))
    return Conflicts(listed, twice // 2, claims.complete)


def _writes(node: Node) -> tuple[str, ...]:
    return node.write_set if node.step.posture == "writer" else ()


class _Claims:
    """Who writes and who reads what, by pattern."""

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
        return all(one.complete for one in (self._writers, self._sharers, self._readers))

    def rivals(self, node: Node) -> int:
        """The set of steps that may not run together with this one, itself included."""
        if node.step.traits.workspace == "none":
            return 0
        shared = is_shared_writer(node)
        facts = (_writes(node), node.read_set, shared)
        if facts not in self._known:
            found = self._writers.meeting(_writes(node)) | self._sharers.meeting(node.read_set)
            self._known[facts] = found | self._readers.meeting(_writes(node)) if shared else found
        return self._known[facts]


class _Patterns:
    """Which steps hold each pattern, and which patterns overlap."""

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
        """The steps that hold a pattern which overlaps one of these."""
        found = 0
        for pattern in patterns if self._names else ():
            if pattern not in self._met:
                held = 0
                for other in self._overlapping(pattern):
                    held |= self._holders[other]
                self._met[pattern] = held
            found |= self._met[pattern]
        return found

    def _overlapping(self, pattern: str) -> Iterator[str]:
        below: int | None = None
        while self._left:
            below = self._index.latest((pattern,), below)
            if below is None:
                return
            self._left -= 1
            yield self._names[below]
        self.complete = False


def _on(a: Node, b: Node) -> str:
    """A path that both claim."""
    for one, other in collisions(a, b):
        for left, right in product(one, other):
            found = witness(left, right)
            if found is not None:
                return found
    return ""


def collisions(a: Node, b: Node) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The sets of two steps that overlap and must not: both write, or one writes where the other reads."""
    pairs = [(_writes(a), _writes(b))]
    if is_shared_writer(a):
        pairs.append((_writes(a), b.read_set))
    if is_shared_writer(b):
        pairs.append((_writes(b), a.read_set))
    return (pair for pair in pairs if overlaps(*pair))
