"""Workspaces: making a child and merging it back, beside `cp -a` and `git worktree add` on the same disk.

Times are wall clock in milliseconds, the best of several rounds, since noise only ever adds. Nothing is
deleted before the end: on common file systems, making files right after deleting many is slow for minutes.
Trees are forced to disk before a round, so that nobody pays for writing back somebody else's files. Merges of
the same kind are measured in a small and in a large tree by turns: what differs is the tree, not the moment.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from fanfold.workspace import changes
from fanfold.workspace.children import Child
from fanfold.workspace.workspaces import Workspaces

Table = dict[str, dict[str, float]]

FILES, BYTES = 5_000, 100_000_000
LARGE = 50_000
FOLDER = 25
"""Files in each folder of a tree."""
MAX_ROUNDS = 3
MAX_FIRST = 1.3
MAX_AGAIN_MS = 50.0
MAX_GROWTH = 2.0
"""How much longer the same merge may take in a tree ten times as large."""
PREFIX = "fanfold-bench"
TEXT = "".join(f"line {number} of a file that somebody wrote\n" for number in range(25))
_NOBODY = {
    "GIT_AUTHOR_NAME": "bench", "GIT_AUTHOR_EMAIL": "bench@localhost", "GIT_COMMITTER_NAME": "bench",
    "GIT_COMMITTER_EMAIL": "bench@localhost", "GIT_CONFIG_GLOBAL": "/dev/null",
}  # fmt: skip

facts: dict[str, dict[str, str]] = {}
"""Versions of the peers, and how children were made."""


def measure(rounds: int) -> Table:
    """Milliseconds by what is done."""
    facts["peers"] = {"git": _version("git"), "cp": _version("cp")}
    with _scratch() as folder:
        return {**_children(folder, min(rounds, MAX_ROUNDS)), **_merges(folder)}


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder of our own that is gone afterwards, with whatever a bench that was killed left behind."""
    place = Path(tempfile.gettempdir())
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}-{os.getpid()}-"))
    try:
        yield folder
    finally:
        left = [one for one in place.glob(f"{PREFIX}-*-*") if not _is_alive(one.name.split("-")[2])]
        for one in (folder, *left):
            for point in changes.mounts_below(one):
                changes.lift(Path(point))
            shutil.rmtree(one, ignore_errors=True)


def _is_alive(pid: str) -> bool:
    return not pid.isdigit() or Path("/proc", pid).exists()


def _version(program: str) -> str:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return said.splitlines()[0].split()[-1]


def plant(top: Path, count: int, content: Callable[[], bytes]) -> list[str]:
    """A repository with that many files, in folders of equal size; their paths."""
    paths = [f"d{n // FOLDER % 20}/s{n // FOLDER // 20}/f{n}.txt" for n in range(count)]
    for path in paths:
        if not (top / path).parent.exists():
            (top / path).parent.mkdir(parents=True)
        (top / path).write_bytes(content())
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "begin"]):
        subprocess.run(["git", "-C", str(top), *command], check=True, env=os.environ | _NOBODY)
    return paths


def timed_ms(work: Callable[..., object], *arguments: object) -> float:
    begin = perf_counter()
    work(*arguments)
    return (perf_counter() - begin) * 1_000


# ------------------------------------------------------------------------------------------ making children


def _children(folder: Path, rounds: int) -> Table:
    best: dict[str, float] = {}

    def note(name: str, value: float) -> None:
        best[name] = min(value, best.get(name, value))

    source = folder / "source"
    chance = random.Random(FILES)
    plant(source, FILES, lambda: chance.randbytes(BYTES // FILES))
    names = [str(source / name) for name in os.listdir(source) if name != ".git"]
    by_overlay = True
    for turn in range(rounds):
        project, plain, tree = (folder / f"{what}{turn}" for what in ("project", "plain", "tree"))
        shutil.copytree(source, project, symlinks=True)
        plain.mkdir()
        os.sync()
        note("cp -a", timed_ms(_run, ["cp", "-a", *names, str(plain)]))
        os.sync()
        adding = ["git", "-C", str(source), "worktree", "add", "-q", "--detach", str(tree)]
        note("git worktree add", timed_ms(_run, adding))
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
            facts["children"] = {"method": child.method}
            by_overlay = by_overlay and child.method.startswith("overlay")
            spaces.close(child, keep=True)
    rows = {name: {"ms": value, "to cp -a": value / best["cp -a"]} for name, value in best.items()}
    rows["child of an unchanged parent"]["overlay"] = float(by_overlay)
    return rows


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True)


# ------------------------------------------------------------------------------------------------- merges


class Tree:
    """A project of one size, and what is left of its files for the next merge to change."""

    def __init__(self, project: Path, count: int) -> None:
        self.project = project
        self._paths = iter(plant(project, count, TEXT.encode))
        self.spaces = Workspaces(project)

    def take(self, count: int) -> list[str]:
        """Files that no merge has touched yet, in as few folders as they fit into."""
        return [next(self._paths) for _ in range(-(-count // FOLDER) * FOLDER)][:count]

    def edit(self, top: Path, paths: list[str], line: int, text: str) -> None:
        for path in paths:
            (top / path).write_text(TEXT.replace(f"line {line} ", f"{text} "))


def _edit(count: int) -> Callable[[Tree, Path], None]:
    return lambda tree, child: tree.edit(child, tree.take(count), 20, "theirs")


def _add(tree: Tree, child: Path) -> None:
    for path in tree.take(50):
        (child / path).with_suffix(".new").write_text(TEXT)


def _edit_both(tree: Tree, child: Path) -> None:
    paths = tree.take(50)
    tree.edit(child, paths, 20, "theirs")
    tree.edit(tree.project, paths, 2, "ours")


def _remove(tree: Tree, child: Path) -> None:
    shutil.rmtree((child / tree.take(FOLDER)[0]).parent)


MERGES: dict[str, tuple[int, Callable[[Tree, Path], None]]] = {
    "merge of 1 file": (15, _edit(1)),
    "merge of 50 files": (9, _edit(50)),
    "merge of 500 files": (5, _edit(500)),
    "merge of 50 new files": (7, _add),
    "merge of 50 files the parent changed too": (7, _edit_both),
    "merge of a removed folder": (7, _remove),
}
"""How often each kind is measured, and what the child does."""


def _merges(folder: Path) -> Table:
    trees = {size: Tree(folder / f"merge{size}", size) for size in (FILES, LARGE)}
    rows: Table = {}
    for name, (turns, change) in MERGES.items():
        best = dict.fromkeys(trees, float("inf"))
        # All children of one kind are made first: after each merge, a child would need a new base.
        opened = {(size, turn): tree.spaces.open_child(f"m{len(rows)}-{turn}")
                  for size, tree in trees.items() for turn in range(turns)}  # fmt: skip
        for turn in range(turns):
            for size, tree in trees.items():
                change(tree, opened[size, turn].path)
            os.sync()
            for size, tree in trees.items():
                best[size] = min(best[size], timed_ms(_merge, tree.spaces, opened[size, turn]))
        for (size, _), child in opened.items():
            trees[size].spaces.close(child, keep=True)
        rows[name] = {f"ms of {size}": value for size, value in best.items()}
        rows[name]["growth"] = best[LARGE] / best[FILES]
    return rows


def _merge(spaces: Workspaces, child: Child) -> None:
    merged = spaces.merge(child)
    assert merged.ok, merged.conflicts or merged.violations


def failures(table: Table) -> list[str]:
    """What misses its bar."""
    missed = []
    ratio = table["first child"]["to cp -a"]
    if ratio > MAX_FIRST:
        missed.append(f"first child: {ratio:.2f} times cp -a, allowed {MAX_FIRST}")
    again = table["child of an unchanged parent"]
    if again["overlay"] and again["ms"] > MAX_AGAIN_MS:
        missed.append(f"child of an unchanged parent: {again['ms']:.0f} ms, allowed {MAX_AGAIN_MS:.0f}")
    missed += [
        f"{name}: {row['growth']:.2f} times as long in a larger tree, allowed {MAX_GROWTH}"
        for name, row in table.items()
        if row.get("growth", 0) > MAX_GROWTH
    ]
    return missed
