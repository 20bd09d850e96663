"""Layered layout of a directed acyclic graph, left to right.

The classic four stages (Sugiyama), each in its simplest form that looks right:

1 layer   a node is one column after the last node that it depends on
2 order   nodes of a column are sorted by the mean position of their neighbours, in both directions
3 place   each node moves to the mean height of its neighbours as far as the order allows; the exact least
          squares solution is found by pooling neighbours that collide
4 route   an edge that skips columns gets a waypoint in each, so it takes part in 2 and 3

The same input gives the same picture: ties are broken by input order, and nothing depends on hashing. Nodes
that are added one by one to a shown graph are placed between existing nodes, which keep their order. Work
grows with nodes plus waypoints. Edges beyond `MAX_WAYPOINTS` are drawn straight to save time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from graphlib import TopologicalSorter
from itertools import pairwise, product

from msgspec import Struct

MAX_WAYPOINTS = 20_000
SWEEPS = 6
FEW = 600
"""Maximum of nodes and waypoints for the slower search for a better order."""
KEPT = 64
"""Number of cached layouts; one of 2,000 nodes takes about a megabyte."""
COLUMN_GAP = 56.0
ROW_GAP = 18.0
WAYPOINT_GAP = 8.0


class GraphLayout(Struct, frozen=True):
    """Top left corner of every node, the points of every edge, and the total size."""

    at: tuple[tuple[float, float], ...]
    routes: tuple[tuple[tuple[float, float], ...], ...]
    """For each edge, in order: the points where it starts, passes and ends."""
    width: float
    height: float


class _Net:
    """Nodes and waypoints with their links between adjacent columns."""

    def __init__(self, sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]]) -> None:
        self.heights = [height for _, height in sizes]
        self.columns_of = _columns(len(sizes), edges)
        self.real = len(sizes)
        self.before: list[list[int]] = [[] for _ in sizes]
        self.after: list[list[int]] = [[] for _ in sizes]
        self.chains: list[list[int]] = []
        self.owner: dict[int, int] = {}
        """Waypoint → the node that its edge leads to."""
        for source, target in edges:
            self.chains.append(self._chain(source, target))
        count = max(self.columns_of, default=-1) + 1
        self.columns: list[list[int]] = [[] for _ in range(count)]
        for node, column in enumerate(self.columns_of):
            self.columns[column].append(node)

    def _chain(self, source: int, target: int) -> list[int]:
        span = range(self.columns_of[source] + 1, self.columns_of[target])
        chain = [source]
        if len(self.heights) - self.real + len(span) <= MAX_WAYPOINTS:
            for column in span:
                self.heights.append(0.0)
                self.columns_of.append(column)
                self.before.append([])
                self.after.append([])
                chain.append(len(self.heights) - 1)
                self.owner[chain[-1]] = target
        elif span:
            return [source, target]
        chain.append(target)
        for left, right in pairwise(chain):
            self.after[left].append(right)
            self.before[right].append(left)
        return chain

    def gap(self, upper: int, lower: int) -> float:
        return ROW_GAP if upper < self.real and lower < self.real else WAYPOINT_GAP


@lru_cache(maxsize=KEPT)
def place(
    sizes: tuple[tuple[float, float], ...], edges: tuple[tuple[int, int], ...], in_turn: bool = False
) -> GraphLayout:
    """Lay out nodes of the given sizes (width, height). Every edge is (from, to); cycles are not allowed.

    `in_turn`: nodes are added one by one, and each depends only on earlier ones. A new node is placed where
    it fits, without changing the order of existing nodes. Layouts are cached: statuses do not affect them, so
    a layout changes only when a step is added.
    """
    net = _Net(sizes, edges)
    (_order_in_turn if in_turn else _order)(net)
    middle = _heights(net)
    lefts: list[float] = []
    x = 0.0
    for column in net.columns:
        lefts.append(x)
        x += max((sizes[n][0] for n in column if n < net.real), default=0.0) + COLUMN_GAP
    width = max(x - COLUMN_GAP, 0.0)
    top = min((middle[n] - net.heights[n] / 2 for n in range(len(middle))), default=0.0)
    middle = [y - top for y in middle]
    height = max((middle[n] + net.heights[n] / 2 for n in range(len(middle))), default=0.0)
    corners = ((lefts[net.columns_of[n]], middle[n] - net.heights[n] / 2) for n in range(len(sizes)))
    at = tuple((round(x, 1), round(y, 1)) for x, y in corners)
    routes = tuple(_route(net, chain, sizes, lefts, middle) for chain in net.chains)
    return GraphLayout(at, routes, round(width, 1), round(height, 1))


def _columns(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the column of each node: one after the last node that it depends on."""
    before: dict[int, list[int]] = {node: [] for node in range(count)}
    for source, target in edges:
        before[target].append(source)
    columns = [0] * count
    for node in TopologicalSorter(before).static_order():
        columns[node] = max((columns[source] + 1 for source in before[node]), default=0)
    return columns


def _order(net: _Net) -> None:
    """Sort every column by the mean position of its neighbours, in both directions; keep the best order."""
    rank = [0.0] * len(net.heights)
    best: list[list[int]] = []
    fewest, since = -1, 0
    patience = SWEEPS if len(net.heights) > FEW else 3 * SWEEPS

    for column in net.columns:
        _number(column, rank)
    for sweep in range(2 * patience):
        crossings = _crossings(net, rank)
        since += 1
        if fewest < 0 or crossings < fewest:
            fewest, best, since = crossings, [list(column) for column in net.columns], 0
        if since > patience // 2 or crossings == 0:
            break
        forth = sweep % 2 == 0
        links = net.before if forth else net.after
        for column in net.columns if forth else reversed(net.columns):
            # Every other pair of sweeps reverses the order of equal nodes, which leads out of local optima.
            sign = 1 if sweep % 4 < 2 else -1
            key = {n: (_mean([rank[m] for m in links[n]], rank[n]), sign * rank[n]) for n in column}
            column.sort(key=key.__getitem__)
            _number(column, rank)
    net.columns = best
    if len(net.heights) <= FEW:
        _exchange(net)


def _number(column: Sequence[int], rank: list[float]) -> None:
    for position, node in enumerate(column):
        rank[node] = float(position)


def _exchange(net: _Net) -> None:
    """Swap adjacent nodes of a column while that removes crossings that sorting by means left."""
    rank = [0.0] * len(net.heights)
    for column in net.columns:
        _number(column, rank)
    for _ in range(SWEEPS):
        better = False
        for column in net.columns:
            for i in range(len(column) - 1):
                upper, lower = column[i], column[i + 1]
                both = (product(links[upper], links[lower]) for links in (net.before, net.after))
                saved = sum((rank[a] > rank[b]) - (rank[a] < rank[b]) for pairs in both for a, b in pairs)
                if saved > 0:
                    column[i], column[i + 1] = lower, upper
                    rank[upper], rank[lower] = rank[lower], rank[upper]
                    better = True
        if not better:
            return


def _order_in_turn(net: _Net) -> None:
    """Place each node and the waypoints that lead to it level with its dependencies, one by one.

    A level never changes again, so later nodes do not affect the order of earlier ones.
    """
    leading: dict[int, list[int]] = {}
    for waypoint, node in net.owner.items():
        leading.setdefault(node, []).append(waypoint)
    level: dict[int, float] = {}
    levels: list[list[float]] = [[] for _ in net.columns]
    net.columns = [[] for _ in net.columns]
    for node in range(net.real):
        for one in (*leading.get(node, ()), node):
            column = net.columns_of[one]
            level[one] = _mean([level[before] for before in net.before[one]], float(node))
            place = bisect_right(levels[column], level[one])
            levels[column].insert(place, level[one])
            net.columns[column].insert(place, one)


def _crossings(net: _Net, rank: Sequence[float]) -> int:
    """Count the crossing pairs of links, per column with a Fenwick tree."""
    total = 0
    for column in net.columns:
        ends = [int(rank[m]) for n in column for m in sorted(net.after[n], key=lambda m: rank[m])]
        size = max(ends, default=0) + 1
        tree = [0] * (size + 1)
        for seen, end in enumerate(ends):
            at, not_above = end + 1, 0
            while at:
                not_above += tree[at]
                at &= at - 1
            total += seen - not_above
            at = end + 1
            while at <= size:
                tree[at] += 1
                at += at & -at
    return total


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _heights(net: _Net) -> list[float]:
    """Return the vertical middle of every node and waypoint."""
    middle = [0.0] * len(net.heights)
    for column in net.columns:
        stacked = _spread(net, column, [0.0] * len(column))
        for node, y in zip(column, stacked, strict=True):
            middle[node] = y
    for sweep in range(SWEEPS):
        forth = sweep % 2 == 0
        links = net.before if forth else net.after
        for column in net.columns if forth else reversed(net.columns):
            wanted = [_mean([middle[m] for m in links[n]], middle[n]) for n in column]
            for node, y in zip(column, _spread(net, column, wanted), strict=True):
                middle[node] = y
    return middle


def _spread(net: _Net, column: Sequence[int], wanted: Sequence[float]) -> list[float]:
    """Return the positions nearest to `wanted` that keep order and distance: pool adjacent violators."""
    offsets = [0.0]
    for upper, lower in pairwise(column):
        offsets.append(offsets[-1] + (net.heights[upper] + net.heights[lower]) / 2 + net.gap(upper, lower))
    pools: list[tuple[float, float, int]] = []  # sum of weighted targets, weight, members
    for node, target, offset in zip(column, wanted, offsets, strict=True):
        weight = 1.0 if node < net.real else 3.0  # long edges should be straight
        total, members = (target - offset) * weight, 1
        while pools and pools[-1][0] / pools[-1][1] > total / weight:
            above = pools.pop()
            total, weight, members = total + above[0], weight + above[1], members + above[2]
        pools.append((total, weight, members))
    bases = [total / weight for total, weight, members in pools for _ in range(members)]
    return [base + offset for base, offset in zip(bases, offsets, strict=True)]


def _route(
    net: _Net, chain: list[int], sizes: Sequence[tuple[float, float]], lefts: list[float], middle: list[float]
) -> tuple[tuple[float, float], ...]:
    first, last = chain[0], chain[-1]
    points = [(lefts[net.columns_of[first]] + sizes[first][0], middle[first])]
    for node in chain[1:-1]:
        column = net.columns_of[node]
        end = lefts[column + 1] - COLUMN_GAP
        points += [(lefts[column], middle[node]), (end, middle[node])]
    points.append((lefts[net.columns_of[last]], middle[last]))
    return tuple((round(x, 1), round(y, 1)) for x, y in points)
