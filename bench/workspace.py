"""Workspaces: making a child and merging it back, beside `cp -a` and `git worktree add` on the same disk.

Times are wall clock in milliseconds, the best of several rounds, since noise only ever adds. Nothing
is deleted between rounds: on common file systems, making files right after deleting many is slow for minutes.
Trees are forced to disk before a round, so that nobody pays for writing back somebody else's files.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from fanfold.workspace.children import Child
from fanfold.workspace.workspaces import Workspaces

FILES, BYTES = 5_000, 100_000_000
LARGE = 50_000
CHANGED = (1, 50, 500)
MAX_FIRST = 1.3
MAX_AGAIN_MS = 50.0
MAX_GROWTH = 2.0
"""How much longer the same merge may take in a tree ten times as large."""
_NOBODY = {
    "GIT_AUTHOR_NAME": "bench", "GIT_AUTHOR_EMAIL": "bench@localhost", "GIT_COMMITTER_NAME": "bench",
    "GIT_COMMITTER_EMAIL": "bench@localhost", "GIT_CONFIG_GLOBAL": "/dev/null",
}  # fmt: skip


def plant(top: Path, count: int, size: int) -> None:
    """A repository with that many files."""
    random_bytes = random.Random(count)
    for number in range(count):
        folder = top / f"d{number % 20}" / f"s{number // 20 % max(10, count // 500)}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"f{number}.txt").write_bytes(random_bytes.randbytes(size))
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "begin"]):
        subprocess.run(["git", "-C", str(top), *command], check=True, env=os.environ | _NOBODY)


def timed_ms(work: Callable[..., object], *arguments: object) -> float:
    begin = perf_counter()
    work(*arguments)
    return (perf_counter() - begin) * 1_000


def measure(rounds: int = 3) -> dict[str, dict[str, float]]:
    """Milliseconds by what is done."""
    rounds = min(rounds, 3)
    folder = Path(tempfile.mkdtemp(prefix="fanfold-bench-"))
    try:
        return {**_children(folder, rounds), **_merges(folder, rounds)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _children(folder: Path, rounds: int) -> dict[str, dict[str, float]]:
    best: dict[str, float] = {}

    def note(name: str, value: float) -> None:
        best[name] = min(value, best.get(name, value))

    source = folder / "source"
    plant(source, FILES, BYTES // FILES)
    for turn in range(rounds):
        project = folder / f"project{turn}"
        shutil.copytree(source, project, symlinks=True)
        os.sync()
        bare = folder / f"plain{turn}"
        bare.mkdir()
        names = [str(source / name) for name in os.listdir(source) if name != ".git"]
        note("cp -a", timed_ms(_run, ["cp", "-a", *names, str(bare)]))
        os.sync()
        tree = ["git", "-C", str(source), "worktree", "add", "-q", "--detach", str(folder / f"tree{turn}")]
        note("git worktree add", timed_ms(_run, tree))
        os.sync()
        spaces = Workspaces(project)
        note("first child", timed_ms(spaces.open_child, "first"))
        os.sync()
        for again in range(5):
            note("child of an unchanged parent", timed_ms(spaces.open_child, f"again{again}"))
        (project / "d0/s0/f0.txt").write_text("changed")
        note("child after one changed file", timed_ms(spaces.open_child, "changed"))
        for session in ("first", "changed", *(f"again{again}" for again in range(5))):
            child = spaces.find_child(session)
            assert child is not None
            best["overlay"] = float(child.method.startswith("overlay"))
            spaces.close(child, keep=True)
    overlay = best.pop("overlay")
    rows = {name: {"ms": value, "to cp -a": value / best["cp -a"]} for name, value in best.items()}
    rows["child of an unchanged parent"]["overlay"] = overlay
    return rows


def _merges(folder: Path, rounds: int) -> dict[str, dict[str, float]]:
    rows: dict[str, dict[str, float]] = {f"merge of {count} files": {} for count in CHANGED}
    for size in (FILES, LARGE):
        project = folder / f"merge{size}"
        plant(project, size, 1_000)
        os.sync()
        spaces = Workspaces(project)
        files = [file for file in sorted(project.glob("d*/s*/*")) if file.is_file()]
        for count in CHANGED:
            best = float("inf")
            for turn in range(max(rounds, 5)):
                child = spaces.open_child(f"m{count}-{turn}")
                for number, file in enumerate(files[:count]):
                    (child.path / file.relative_to(project)).write_text(f"{count} {turn} {number}\n")
                os.sync()
                best = min(best, timed_ms(_merge, spaces, child))
                spaces.close(child)
            rows[f"merge of {count} files"][f"ms of {size}"] = best
    for row in rows.values():
        row["growth"] = row[f"ms of {LARGE}"] / row[f"ms of {FILES}"]
    return rows


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True)


def _merge(spaces: Workspaces, child: Child) -> None:
    merged = spaces.merge(child)
    assert merged.ok, merged


def failures(table: dict[str, dict[str, float]]) -> list[str]:
    """What misses its bar."""
    missed = []
    ratio = table["first child"]["to cp -a"]
    if ratio > MAX_FIRST:
        missed.append(f"first child: {ratio:.2f} times cp -a, allowed {MAX_FIRST}")
    again = table["child of an unchanged parent"]
    if again["overlay"] and again["ms"] > MAX_AGAIN_MS:
        missed.append(f"child of an unchanged parent: {again['ms']:.0f} ms, allowed {MAX_AGAIN_MS:.0f}")
    for name, row in table.items():
        if row.get("growth", 0) > MAX_GROWTH:
            missed.append(f"{name}: {row['growth']:.2f} times as long in a larger tree, allowed {MAX_GROWTH}")
    return missed
