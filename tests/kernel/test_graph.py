"""Rings, compared with what a slow and obvious search says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.kernel.plan import find_rings

GRAPHS = st.integers(1, 7).flatmap(
    lambda size: st.fixed_dictionaries(
        {f"n{i}": st.lists(st.integers(0, size - 1).map("n{}".format), max_size=4) for i in range(size)}
    )
)


def reachable(graph: dict[str, list[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for target in graph[waiting.pop()]:
            if target not in seen:
                seen.add(target)
                waiting.append(target)
    return seen


@pytest.mark.full
@given(GRAPHS)
def test_every_knot_has_one_ring_through_its_first_node(graph: dict[str, list[str]]):
    reach = {node: reachable(graph, node) for node in graph}
    knots = {frozenset(m for m in graph if m in reach[n] and n in reach[m]) for n in graph if n in reach[n]}
    place = list(graph).index
    firsts = sorted((min(knot, key=place) for knot in knots), key=place)
    rings = find_rings(graph)
    assert [ring[0] for ring in rings] == firsts
    for ring in rings:
        assert len(set(ring)) == len(ring)
        for node, following in zip(ring, [*ring[1:], ring[0]], strict=True):
            assert following in graph[node]


@pytest.mark.full
def test_a_ring_of_a_hundred_thousand_is_found():
    size = 100_000
    graph = {str(i): [str((i + 1) % size)] for i in range(size)}
    assert len(find_rings(graph)[0]) == size
