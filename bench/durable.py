"""Durable steps: microseconds a step on this disk with `synchronous=FULL`, ours and others in one run.

Every contender runs the same graphs with a step that does nothing but say a kilobyte, up to 16 at once, in a
process of its own that counts from the first step to the last result on disk. What each is asked to do is
told at the head of its file in `bench/contenders`. They take turns, the disk is whatever is left of a shared
one, and the best of each is kept: noise only ever adds. A slow contender is not repeated once it had its
share of time, and one that does not finish in the time allowed is reported with the steps it did, whose
average is then in its favour. `cpu` columns tell what is the contender and what is the disk; what others do
on a shared machine changes them least.

Ours are counted twice: as a whole (`us`), and while they are driven (`driven`), which leaves out that the run
itself is recorded first. How often SQLite writes and how much (`writes` and `kb` a step) is counted in a turn
of its own, which is not timed. Section `growth` does the same with ten times as many steps.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Struct

from bench.graphs import chain, fan_out, layered
from bench.peers import interpreter
from fanfold.kernel.plan import Plan

HERE = Path(__file__).parent
WORK = HERE / ".work"
SHAPES: dict[str, Callable[[int], Plan]] = {"chain": chain, "fan-out": fan_out, "layered": layered}
STEPS = 1_000
LIMIT_S = 25.0
"""What one attempt of one contender may take."""
SHARE_S = 40.0
"""After so much time a contender is not repeated."""


class Contender(Struct, frozen=True, kw_only=True):
    module: str
    peer: str = ""
    variant: str = ""


CONTENDERS = {
    "fanfold": Contender(module="ours"),
    "fanfold, plain def": Contender(module="ours", variant="plain"),
    "fanfold, agents": Contender(module="ours", variant="agents"),
    "bare loop": Contender(module="bare"),
    "dbos": Contender(module="dbos_peer", peer="dbos"),
    "dbos, made wal": Contender(module="dbos_peer", peer="dbos", variant="wal"),
    "langgraph": Contender(module="langgraph_peer", peer="langgraph"),
    "restate": Contender(module="restate_peer", peer="restate"),
    "temporal, local": Contender(module="temporal_peer", peer="temporal"),
}

MAX_OF_BARE = {"chain": 1.5, "fan-out": 3.5, "layered": 3.5}
"""While driving, functions and agents alike."""
MAX_WRITES, MAX_KB = 13.0, 30.0
"""Of an agent step in a chain."""
COUNTED = ("fanfold", "fanfold, agents", "bare loop")
MIN_FASTER = {"chain": 3.0, "fan-out": 8.0, "layered": 8.0}
"""Than each peer as it is shipped."""
COMPARED = ("dbos", "langgraph", "restate", "temporal, local")

Facts: TypeAlias = dict[str, dict[str, str]]

facts: Facts = {}
"""Versions and settings, as each contender told them."""


class Turn(Struct, frozen=True, kw_only=True):
    """What a contender did in one process."""

    steps: int
    wall_s: float
    driven_s: float
    cpu_s: float
    writes: int = 0
    written_bytes: int = 0
    facts: dict[str, str] = {}


class Best:
    """The best of a contender's turns at one shape and size."""

    def __init__(self) -> None:
        self.us = self.driven_us = self.cpu_us = float("inf")
        self.steps = 0
        self.spent_s = 0.0

    def keep(self, *runs: Turn) -> None:
        """Count runs as one turn."""
        steps = sum(run.steps for run in runs)
        wall_s = sum(run.wall_s for run in runs)
        self.spent_s += wall_s
        if steps:
            self.us = min(self.us, wall_s * 1e6 / steps)
            self.driven_us = min(self.driven_us, sum(run.driven_s for run in runs) * 1e6 / steps)
            self.cpu_us = min(self.cpu_us, sum(run.cpu_s for run in runs) * 1e6 / steps)
            self.steps = max(self.steps, runs[0].steps)

    @property
    def has_had_its_share(self) -> bool:
        return self.spent_s > SHARE_S


Key: TypeAlias = tuple[str, str]
"""Shape and contender."""


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """A row for each shape and contender."""
    best: dict[Key, Best] = defaultdict(Best)
    with graphs(STEPS) as drawn:
        pythons = interpreters(facts)
        # Rounds are the outer loop: a disk that is busy for minutes is then busy for everybody.
        for _ in range(rounds):
            for shape, graph in drawn.items():
                for name, python in pythons.items():
                    if not best[shape, name].has_had_its_share:
                        best[shape, name].keep(run(name, python, graph, facts))
        counts = {
            (shape, name): run(name, sys.executable, graph, facts, counted=True)
            for shape, graph in drawn.items()
            for name in COUNTED
        }
    return _table(best, counts)


@contextmanager
def graphs(steps: int) -> Iterator[dict[str, Path]]:
    """A file for each shape, in a folder that is gone afterwards with all that was measured there."""
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir()
    drawn = {shape: WORK / f"{shape}-{steps}.json" for shape in SHAPES}
    for shape, file in drawn.items():
        file.write_text(json.dumps(plain_graph(SHAPES[shape](steps))))
    yield drawn
    shutil.rmtree(WORK, ignore_errors=True)


def interpreters(told: Facts) -> dict[str, str]:
    """What runs each contender; one that cannot be installed is left out, and told of."""
    found = {name: interpreter(one.peer) if one.peer else sys.executable for name, one in CONTENDERS.items()}
    told |= {name: {"missing": "cannot be installed"} for name, python in found.items() if not python}
    return {name: python for name, python in found.items() if python}


def plain_graph(plan: Plan) -> list[list[int]]:
    numbers = {step.id: number for number, step in enumerate(plan.steps)}
    return [[numbers[name] for name in step.depends_on] for step in plan.steps]


def run(
    name: str, python: str, graph: Path, told: Facts, *, warm: bool = False, counted: bool = False
) -> Turn:
    """Let a contender run once. One that fails, or does not do one step in time, is not asked again."""
    contender = CONTENDERS[name]
    folder = tempfile.mkdtemp(dir=WORK)
    command = [python, "-m", f"bench.contenders.{contender.module}", str(graph), folder, str(LIMIT_S)]
    environment = {**os.environ, "BENCH_VARIANT": contender.variant, "BENCH_WARM": "1" if warm else ""}
    environment["BENCH_COUNTED"] = "1" if counted else ""
    noted = told.setdefault(name, {})
    nothing = Turn(steps=0, wall_s=float("inf"), driven_s=float("inf"), cpu_s=0.0)
    try:
        done = subprocess.run(
            command,
            cwd=HERE.parent,
            env=environment,
            capture_output=True,
            text=True,
            timeout=2 * LIMIT_S + 60,
            check=True,
        )
    except subprocess.TimeoutExpired:
        noted[graph.stem] = "did not end in the time allowed, nor say how far it came"
        return nothing
    except subprocess.CalledProcessError as error:
        noted[graph.stem] = "failed"
        print(f"{name} failed at {graph.stem}:\n{error.stderr[-2_000:]}", file=sys.stderr)
        return nothing
    finally:
        shutil.rmtree(folder)
    turn = msgspec.json.decode(done.stdout.rstrip().rpartition("\n")[2], type=Turn)
    noted |= turn.facts
    return turn


def _table(best: dict[Key, Best], counts: dict[Key, Turn]) -> dict[str, dict[str, float]]:
    table: dict[str, dict[str, float]] = {}
    for shape in SHAPES:
        ours, bare = best[shape, "fanfold"], best[shape, "bare loop"]
        for name in CONTENDERS:
            own = best[shape, name]
            row: dict[str, float] = {}
            if own.steps:
                row |= {"us": own.us, "of_fanfold": own.us / ours.us}
                row |= {"driven": own.driven_us, "driven_of_bare": own.driven_us / bare.driven_us}
                row |= {"cpu_us": own.cpu_us, "cpu_of_bare": own.cpu_us / bare.cpu_us, "reached": own.steps}
            counted = counts.get((shape, name))
            if counted is not None and counted.steps:
                row["writes"] = counted.writes / counted.steps
                row["kb"] = counted.written_bytes / counted.steps / 1_000
            table[f"{shape}: {name}"] = row
    return table


def failures(table: dict[str, dict[str, float]]) -> list[str]:
    """What misses its bar. A peer that could not be measured is no reason to fail, nor to pass."""
    missed = []
    for shape in SHAPES:
        for name in ("fanfold", "fanfold, agents"):
            missed += _failures_of(table, shape, name)
    agents = table["chain: fanfold, agents"]
    if agents["writes"] > MAX_WRITES or agents["kb"] > MAX_KB:
        written = f"{agents['writes']:.1f} writes and {agents['kb']:.1f} kB"
        missed.append(f"chain: an agent step takes {written}, allowed {MAX_WRITES} and {MAX_KB}")
    return missed


def _failures_of(table: dict[str, dict[str, float]], shape: str, name: str) -> list[str]:
    missed = []
    ours = table[f"{shape}: {name}"]
    if ours["driven_of_bare"] > MAX_OF_BARE[shape]:
        times = f"{ours['driven_of_bare']:.2f} times the bare loop"
        missed.append(f"{shape}: {name}: {times} while driving, allowed {MAX_OF_BARE[shape]}")
    for peer in COMPARED:
        theirs = table[f"{shape}: {peer}"].get("driven")
        if theirs is not None and theirs / ours["driven"] < MIN_FASTER[shape]:
            times = f"{theirs / ours['driven']:.2f} times faster than {peer}"
            missed.append(f"{shape}: {name}: {times} while driving, asked {MIN_FASTER[shape]}")
    return missed
