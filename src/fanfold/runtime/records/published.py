"""What phases gave, as files under `.fanfold/ctx/wf/<run>/<phase>/`: for people and the run's own agents.

Rules
* A phase is published when it is folded, before later phases begin, and again with the run's other files:
  they follow from the log. What is there is whole: outputs as they were given, but for refuted findings.
* Agents read them as `ctx/wf/<run>/…` through their file tools, those of their own run alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fanfold.kernel.lifecycle import COMPLETED
from fanfold.kernel.nodes import Loop, Run, Scope
from fanfold.runtime.records.values import Piece, Values
from fanfold.store.database.folder import private_folder

SUMMARY = "summary"


def publish_phase(memory: Path, run_id: str, phase: str, pieces: Sequence[Piece], summary: str) -> None:
    """Write the files of one phase; `memory` is the project's `.fanfold`."""
    from fanfold.agents.toolbox.published import PUBLISHED

    home = memory
    for part in (*PUBLISHED.split("/"), run_id):
        home /= part
        private_folder(home)
    told = (*pieces, Piece(SUMMARY, summary)) if summary else pieces
    write_folder(home, phase, ((f"{one.name}.md", one.text.encode("utf-8", "replace")) for one in told))


def publish_run(memory: Path, values: Values, run: Run) -> None:
    """Write the files of every phase of a run that was folded."""
    for phase, pieces, summary in folded_phases(values, run):
        publish_phase(memory, run.id, phase, pieces, summary)


def folded_phases(values: Values, run: Run) -> Iterator[tuple[str, list[Piece], str]]:
    """The phases of a run that were summed up: name, what they gave, summary."""
    for node in run.scope.children:
        if not isinstance(node, Loop) or node.step.fold is None or len(node.children) < 2:
            continue
        body, fold = node.children[-2], node.children[-1]
        if isinstance(body, Scope) and fold.step is node.step.fold and fold.status == COMPLETED:
            yield node.path, values.pieces(body), str(values.output(fold) or "")


def write_folder(home: Path, name: str, files: Iterable[tuple[str, bytes]]) -> None:
    """All files into a new folder, which then takes the place of the old one.

    A reader never sees half a file, and a file costs one change of a folder instead of three.
    """
    fresh = home / f".{name}.{os.getpid()}"
    _discard(fresh)
    fresh.mkdir(mode=0o700)
    made = {str(fresh)}
    for path, content in files:
        target = f"{fresh}/{path}"
        _make_folder(os.path.dirname(target), made)
        write_private(target, content)
    old = home / f".{name}.{os.getpid()}.old"
    try:
        if os.path.lexists(home / name):
            (home / name).rename(old)
        fresh.rename(home / name)
    except OSError:  # the run's next owner is writing them too, and knows more
        _discard(fresh)
    _discard(old)


def _discard(path: Path) -> None:
    """A folder with all in it, or what stands in its place: that `rmtree` would open, and wait for a pipe."""
    if path.is_dir() and not path.is_symlink():
        import shutil  # there seldom is one

        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _make_folder(folder: str, made: set[str]) -> None:
    """A folder and those above it, closed to others whatever the umask."""
    if folder not in made:
        _make_folder(os.path.dirname(folder), made)
        os.mkdir(folder, 0o700)
        made.add(folder)


def write_private(path: str, content: bytes) -> None:
    """A file for nobody else. Python's own would look at it, ask whether it is a terminal, and take half as
    long again, for every output of a run.
    """
    file = private(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(file, left) :]
    finally:
        os.close(file)


def private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
