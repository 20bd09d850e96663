"""Rings in a graph: groups of nodes that wait for each other, found in time linear in nodes and edges."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

Graph = Mapping[str, Sequence[str]]
"""Each node with those it waits for; every node is a key."""


def find_rings(graph: Graph) -> list[list[str]]:
    """For each knot of nodes that wait for each other, a shortest ring through its first node.

    First means first in `graph`. Rings are ordered by their first node.

    >>> find_rings({"a": ["c"], "b": ["a"], "c": ["b"], "d": ["d"], "e": ["a"]})
    [['a', 'c', 'b'], ['d']]
    """
    place = {node: i for i, node in enumerate(graph)}
    knots = [sorted(knot, key=place.__getitem__) for knot in _knots(graph)]
    knotted = [knot for knot in knots if len(knot) > 1 or knot[0] in graph[knot[0]]]
    return [_shortest_ring(knot[0], set(knot), graph) for knot in sorted(knotted, key=lambda k: place[k[0]])]


def _knots(graph: Graph) -> list[list[str]]:
    """Strongly connected components, by two walks (Kosaraju): no recursion, plans may be deep."""
    reverse: dict[str, list[str]] = {node: [] for node in graph}
    for node, targets in graph.items():
        for target in targets:
            reverse[target].append(node)
    seen: set[str] = set()
    found: list[list[str]] = []
    for root in reversed(_by_end_of_visit(graph)):
        if root in seen:
            continue
        seen.add(root)
        knot = [root]
        for node in knot:
            fresh = [other for other in dict.fromkeys(reverse[node]) if other not in seen]
            seen.update(fresh)
            knot.extend(fresh)
        found.append(knot)
    return found


def _by_end_of_visit(graph: Graph) -> list[str]:
    """Nodes in the order a depth-first walk leaves them."""
    seen: set[str] = set()
    left: list[str] = []
    for root in graph:
        if root in seen:
            continue
        seen.add(root)
        way = [(root, iter(graph[root]))]
        while way:
            node, targets = way[-1]
            target = next((one for one in targets if one not in seen), None)
            if target is None:
                left.append(node)
                way.pop()
            else:
                seen.add(target)
                way.append((target, iter(graph[target])))
    return left


def _shortest_ring(first: str, knot: set[str], graph: Graph) -> list[str]:
    """A shortest ring through `first` that stays in its knot, beginning with it."""
    came_from: dict[str, str] = {}
    queue = deque([first])
    while queue:
        node = queue.popleft()
        for target in graph[node]:
            if target == first:
                ring = [node]
                while ring[-1] != first:
                    ring.append(came_from[ring[-1]])
                return ring[::-1]
            if target in knot and target not in came_from:
                came_from[target] = node
                queue.append(target)
    raise AssertionError("a node of a knot is on a ring")
