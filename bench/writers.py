"""Isolated writers in a project of 50,000 files: one after another, many at once, and what they leave behind.

Whole runs of scripted agents that each write one file, through the command line: what a run of one writer
costs is taken off, the rest is divided by the writers that were added. Milliseconds of CPU of the run and all
it started, the best of the rounds, since noise only ever adds; wall clock beside it. `git status` on the same
tree is there to compare with.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from bench.startup import compile_package, cpu_ms
from bench.workspace import LARGE, TEXT, plant

Table = dict[str, dict[str, float]]

CHAIN, AT_ONCE, RUNS = 8, 32, 7
BARS = {
    f"{CHAIN} one after another": ("cpu_ms", 400.0),
    f"{AT_ONCE} at once": ("cpu_ms", 100.0),
    f"left after {RUNS} runs": ("files_per_writer", 50.0),
}
"""What is left counts above one copy of the tree: a base tree that the next snapshot is made from."""


def measure(rounds: int) -> Table:
    """Milliseconds for each writer, and files for each."""
    compile_package()
    folder = Path(tempfile.mkdtemp(prefix="fanfold-writers."))
    best: dict[str, tuple[float, float]] = {}

    def note(name: str, cpu: float, wall: float) -> None:
        known = best.get(name, (cpu, wall))
        best[name] = min(cpu, known[0]), min(wall, known[1])

    try:
        paths = plant(folder, LARGE, TEXT.encode)
        _prepare(folder, paths)
        _run(folder, "one")  # the first child copies the tree
        count = 1
        for _ in range(min(rounds, 3)):
            note("git status", *_timed(["git", "status", "--porcelain"], folder))
            first = _run(folder, "one")
            for name, recipe, writers in (
                (f"{CHAIN} one after another", "chain", CHAIN),
                (f"{AT_ONCE} at once", "wave", AT_ONCE),
            ):
                spent = _run(folder, recipe)
                each = [(now - then) / (writers - 1) for now, then in zip(spent, first, strict=True)]
                note(name, *each)
                count += writers
            count += 1
        for _ in range(RUNS):
            _run(folder, "chain")
            count += CHAIN
        rows = {name: {"cpu_ms": cpu, "wall_ms": wall} for name, (cpu, wall) in best.items()}
        left = sum(1 for one in (folder / ".fanfold").rglob("*") if not one.is_dir())
        rows[f"left after {RUNS} runs"] = {"files": left, "files_per_writer": (left - LARGE) / count}
        return rows
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _prepare(folder: Path, paths: list[str]) -> None:
    """Recipes whose writers write a file each, in folders of their own, and a script that plays them."""
    (folder / ".gitignore").write_text("*.yaml\n")
    apart = paths[:: len(paths) // AT_ONCE][:AT_ONCE]
    for name, count, chained in (("one", 1, False), ("chain", CHAIN, True), ("wave", AT_ONCE, False)):
        steps = []
        for number in range(count):
            after = f", depends_on: [w{number - 1}]" if chained and number else ""
            wanted = f'["{apart[number]}"]'
            steps.append(f"  - {{id: w{number}, agent: worker, prompt: x, write_set: {wanted}{after}}}")
        (folder / f"{name}.yaml").write_text("\n".join([f"name: {name}", "steps:", *steps, ""]))
    answers = ["steps:"]
    for number, path in enumerate(apart):
        answers.append(f'  w{number}: {{output: done, writes: {{"{path}": "written by w{number}\\n"}}}}')
    (folder / "answers.yaml").write_text("\n".join([*answers, ""]))


def _run(folder: Path, recipe: str) -> tuple[float, float]:
    for number, path in enumerate((folder / "answers.yaml").read_text().split('{"')[1:]):
        (folder / path.split('"')[0]).write_text(f"{TEXT}{recipe} {number} {perf_counter()}\n")
    fanfold = shutil.which("fanfold", path=str(Path(sys.executable).parent)) or "fanfold"
    flags = ["--yes", "--script", "answers.yaml", "--max-concurrency", "16"]
    return _timed([fanfold, "run", f"{recipe}.yaml", *flags], folder)


def _timed(command: list[str], folder: Path) -> tuple[float, float]:
    subprocess.run(["sync", "-f", str(folder)], check=True)
    begin = perf_counter()
    spent = cpu_ms(command, str(folder))
    return spent, (perf_counter() - begin) * 1_000


def failures(table: Table) -> list[str]:
    """What misses its bar."""
    return [
        f"{name}: {table[name][column]:.0f} {column}, allowed {bar:g}"
        for name, (column, bar) in BARS.items()
        if table[name][column] > bar
    ]
