"""How a contender is started and what it answers. The standard library alone: peers import this too.

    python -m bench.contenders.CONTENDER GRAPH FOLDER LIMIT_S

GRAPH is a JSON file: for each step the numbers of the steps it depends on. FOLDER is empty and on the disk
that is measured. BENCH_VARIANT, in the environment, chooses between ways to set a contender up. With
BENCH_WARM the write-ahead log has its full size before the clock starts (`WARM_COMMITS`): until its first
checkpoint every commit also makes the file longer, which here doubles what a commit costs. A step
does nothing and answers a kilobyte that nobody said before, so what is measured is what it costs to run and
remember it. The contender prints one line of JSON.

The clock starts when everything is loaded, opened and built, and stops when the last step's result is on
the disk. A contender that would take longer than LIMIT_S gives up in the middle and says how far it came.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time

WORDS = ("lorem ipsum dolor sit amet " * 40)[:1_000]
CONCURRENCY = 16
WARM_COMMITS = 3_000 if os.environ.get("BENCH_WARM") else 0
"""More than either of ours needs to reach its first checkpoint; peers are never asked to be warm."""


class OutOfTime(BaseException):
    """Raised inside a step; not an `Exception`, so that no retry policy catches it."""


class Clock:
    """Counts steps and gives up when the time is over."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.steps = 0
        self.is_over = False
        self.servers: list[int] = []
        """Processes that work for the contender: what they use is its own."""
        self.begin = self.drive_begin = perf_counter()
        self.wall_s = self.driven_s = 0.0
        self.writes = self.written_bytes = 0
        """To the disk, where somebody counted."""
        self.cpu_begin = self.cpu_s = process_time()

    def start(self) -> None:
        self.begin = self.drive_begin = perf_counter()
        self.cpu_begin = self._cpu_s()

    def tick(self) -> str:
        """What every step does."""
        self.steps += 1
        if perf_counter() - self.begin > self.limit_s:
            self.is_over = True
            raise OutOfTime
        return f"{self.steps} {WORDS}"

    def drive(self) -> None:
        """The run is recorded; from here on its steps are driven."""
        self.drive_begin = perf_counter()

    def stop(self) -> None:
        """The last step's result is on the disk."""
        now = perf_counter()
        self.wall_s, self.driven_s = now - self.begin, now - self.drive_begin
        self.cpu_s = self._cpu_s() - self.cpu_begin

    def _cpu_s(self) -> float:
        return process_time() + sum(cpu_s(pid) for pid in self.servers)


def cpu_s(pid: int) -> float:
    """What a process and its threads have used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


Contender = Callable[[list[list[int]], Path, Clock], dict[str, str]]


def contend(run: Contender) -> None:
    """Run a contender as the command line asks and print its line."""
    graph: list[list[int]] = json.loads(Path(sys.argv[1]).read_text())
    clock = Clock(float(sys.argv[3]))
    facts = run(graph, Path(sys.argv[2]), clock)
    if clock.steps < len(graph) and not clock.is_over:
        raise RuntimeError(f"only {clock.steps} of {len(graph)} steps ran")
    line: dict[str, object] = {
        "steps": clock.steps,
        "wall_s": clock.wall_s,
        "driven_s": clock.driven_s,
        "cpu_s": clock.cpu_s,
    }
    line |= {"writes": clock.writes, "written_bytes": clock.written_bytes, "facts": facts}
    print("\n" + json.dumps(line))


def levels(graph: list[list[int]]) -> list[list[int]]:
    """Steps by their longest way from the start: all of a level may run at once."""
    depth: list[int] = []
    for needs in graph:
        depth.append(1 + max((depth[i] for i in needs), default=-1))
    found: list[list[int]] = [[] for _ in range(max(depth) + 1)]
    for step, level in enumerate(depth):
        found[level].append(step)
    return found


def groups(graph: list[list[int]]) -> list[list[int]]:
    """Levels cut into as many steps as may run at once."""
    return [level[i : i + CONCURRENCY] for level in levels(graph) for i in range(0, len(level), CONCURRENCY)]
