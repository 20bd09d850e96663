"""Growth: what a step costs in a run of 10,000, beside the same in runs of 1,000.

Contenders, disk and clock are those of `durable`. Ours are compared on a write-ahead log that has its size
already. A new log is extended by every commit until its first checkpoint, which doubles what a commit costs,
so a short run would look dear and growth would hide behind it. Ten runs of 1,000 steps are compared with one
of 10,000. The bare loop goes through the same: what it shows as growth is the disk's. Peers begin with
whatever they make new, once with each number of steps.
"""

from __future__ import annotations

from collections import defaultdict

from bench.durable import SHAPES, Best, Facts, graphs, interpreters, run

SMALL, LARGE = 1_000, 10_000
ROUNDS = 2
OURS = ("fanfold", "fanfold, agents", "bare loop")
MAX_GROWTH = 1.2
STEADY = 1.25
"""The bare loop has nothing that could grow. Where it changes by more, either way, the disk did, and what
was measured beside it says nothing about growth: that counts as missed, not as passed."""

facts: Facts = {}
"""Versions and settings, as each contender told them."""


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """A row for each shape and contender."""
    best: dict[tuple[str, str, int], Best] = defaultdict(Best)
    pythons = interpreters(facts)
    for number in range(min(rounds, ROUNDS)):
        for steps in (SMALL, LARGE):
            with graphs(steps) as drawn:
                for shape, graph in drawn.items():
                    for name, python in pythons.items():
                        ours = name in OURS
                        if ours or number == 0:
                            turns = LARGE // steps if ours else 1
                            done = [run(name, python, graph, facts, warm=ours) for _ in range(turns)]
                            best[shape, name, steps].keep(*done)
    return {f"{shape}: {name}": _row(best, shape, name) for shape in SHAPES for name in pythons}


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
        disk = table[f"{shape}: bare loop"]["growth"]
        if not 1 / STEADY <= disk <= STEADY:
            missed.append(f"{shape}: growth cannot be told, the bare loop itself changed by {disk:.2f}")
            continue
        for name in ("fanfold", "fanfold, agents"):
            growth = table[f"{shape}: {name}"]["growth"]
            if growth > MAX_GROWTH:
                missed.append(f"{shape}: {name}: growth {growth:.2f}, allowed {MAX_GROWTH}")
    return missed
