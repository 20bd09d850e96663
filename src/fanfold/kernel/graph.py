"""Questions about a graph of named steps: is there a ring, what comes first.

Edges are given as `{name: names it depends on}` in declaration order. All answers are deterministic:
they follow that order, never a hash. Walks are iterative, so a chain of any length is fine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

Edges = Mapping[str, Sequence[str]]


def find_rings(edges: Edges) -> list[list[str]]:
    """Every cycle once, each starting at its first declared member and following the dependencies.

    Members of one tangle (strongly connected) are reported as one ring: the shortest way from its
    first declared member back to itself.

    >>> find_rings({"a": ["c"], "b": ["a"], "c": ["b"], "d": ["d"]})
    [['a', 'c', 'b'], ['d']]
    """
    rings = []
    rank = {name: index for index, name in enumerate(edges)}
    for tangle in _tangles(edges):
        first = min(tangle, key=rank.__getitem__)
        if len(tangle) > 1 or first in edges[first]:
            rings.append(_way_back(edges, first, frozenset(tangle)))
    return sorted(rings, key=lambda ring: rank[ring[0]])


def _tangles(edges: Edges) -> list[list[str]]:
    """Strongly connected components (Tarjan), without recursion."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: dict[str, bool] = {}
    found: list[list[str]] = []
    for root in edges:
        if root in index:
            continue
        work = [(root, iter(edges[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack[root] = True
        while work:
            name, targets = work[-1]
            for target in targets:
                if target not in edges:
                    continue
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack[target] = True
                    work.append((target, iter(edges[target])))
                    break
                if on_stack[target]:
                    low[name] = min(low[name], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == index[name]:
                    tangle: list[str] = []
                    while not tangle or tangle[-1] != name:
                        tangle.append(stack.pop())
                        on_stack[tangle[-1]] = False
                    found.append(tangle)
    return found


def _way_back(edges: Edges, start: str, inside: frozenset[str]) -> list[str]:
    """The shortest ring through `start` that stays inside its tangle."""
    came_from: dict[str, str] = {}
    queue = [start]
    for name in queue:
        for target in edges[name]:
            if target == start:
                ring = [name]
                while ring[-1] != start:
                    ring.append(came_from[ring[-1]])
                return ring[::-1]
            if target in inside and target not in came_from:
                came_from[target] = name
                queue.append(target)
    return [start]


def in_order(edges: Edges) -> list[str]:
    """Dependencies first; among those that are free, declaration order. Members of rings are left out.

    >>> in_order({"c": ["a"], "a": [], "b": []})
    ['a', 'c', 'b']
    """
    rank = {name: index for index, name in enumerate(edges)}
    names = list(edges)
    missing = {name: sum(1 for target in targets if target in edges) for name, targets in edges.items()}
    dependents: dict[str, list[str]] = {name: [] for name in names}
    for name, targets in edges.items():
        for target in targets:
            if target in dependents:
                dependents[target].append(name)
    ready = [rank[name] for name in names if missing[name] == 0]
    order: list[str] = []
    while ready:
        name = names[heappop(ready)]
        order.append(name)
        for dependent in dependents[name]:
            missing[dependent] -= 1
            if missing[dependent] == 0:
                heappush(ready, rank[dependent])
    return order
