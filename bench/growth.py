"""Growth: what a step costs in a run of 10,000, beside the same in runs of 1,000.

Ours and the bare loop of `durable`, on its disk and clock, compared on a write-ahead log that has its size
already. A new log is extended by every commit until its first checkpoint, which doubles what a commit costs,
so a short run would look dear and growth would hide behind it. Some runs of 1,000 steps are compared with one
of 10,000. The bare loop goes through the same: what it shows as growth is the disk's. What others cost is
asked in `durable` alone; ten times as many steps of theirs took a quarter of an hour.
"""

from __future__ import annotations

import sys
from collections import defaultdict

from bench.durable import SHAPES, Best, Facts, graphs, run

TURNS = {1_000: 4, 10_000: 1}
"""How often each size is run; every turn fills a log first, which takes as long as the run itself."""
SMALL, LARGE = TURNS
ROUNDS = 2
OURS = ("fanfold", "fanfold, agents")
BARE = "bare loop"
MAX_GROWTH = 1.2
STEADY = 1.25
"""The bare loop has nothing that could grow. Where it changes by more, either way, the disk did, and the
clock says nothing about what was measured beside it: then CPU time is judged."""

facts: Facts = {}
"""Versions and settings, as each contender told them."""


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """A row for each shape and contender."""
    best: dict[tuple[str, str, int], Best] = defaultdict(Best)
    for _ in range(min(rounds, ROUNDS)):
        for steps, turns in TURNS.items():
            with graphs(steps) as drawn:
                for shape, graph in drawn.items():
                    for name in (*OURS, BARE):
                        done = [run(name, sys.executable, graph, facts, warm=True) for _ in range(turns)]
                        best[shape, name, steps].keep(*done)
    return {f"{shape}: {name}": _row(best, shape, name) for shape in SHAPES for name in (*OURS, BARE)}


def _row(best: dict[tuple[str, str, int], Best], shape: str, name: str) -> dict[str, float]:
    small, large = best[shape, name, SMALL], best[shape, name, LARGE]
    if not small.steps or not large.steps:
        return {}
    return {
        "us_1000": small.us,
        "us_10000": large.us,
        "growth": large.us / small.us,
        "cpu_growth": large.cpu_us / small.cpu_us,
        "reached": large.steps,
    }


def failures(table: dict[str, dict[str, float]]) -> list[str]:
    """What misses its bar."""
    missed = []
    for shape in SHAPES:
        is_steady = 1 / STEADY <= table[f"{shape}: {BARE}"]["growth"] <= STEADY
        column = "growth" if is_steady else "cpu_growth"
        for name in OURS:
            row = table[f"{shape}: {name}"]
            if not row:
                missed.append(f"{shape}: {name}: did not come to its end")
            elif row[column] > MAX_GROWTH:
                missed.append(f"{shape}: {name}: {column} {row[column]:.2f}, allowed {MAX_GROWTH}")
    return missed
