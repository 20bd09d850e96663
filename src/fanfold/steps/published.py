"""Publishes the outputs of phases as files in `.fanfold/ctx/wf/<run>/<phase>/`, for users and agents.

Rules
* A phase is published when it is folded, before later phases start. It is published again with the other
  files of the run, which are derived from the log. Outputs are complete, except for refuted findings.
* Agents read them as `ctx/wf/<run>/…` through their file tools, only those of their own run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fanfold.kernel.state import COMPLETED, Loop, Node, Run, Scope
from fanfold.project_files import Closing
from fanfold.steps.values import Piece, Values
from fanfold.store.database import private_folder

SUMMARY = "summary"


def publish_phase(memory: Path, run_id: str, phase: str, pieces: Sequence[Piece], summary: str) -> None:
    """Write the files of one phase. `memory` is the project's `.fanfold` folder."""
    from fanfold.agents.tools.files import PUBLISHED

    home = memory
    for part in (*PUBLISHED.split("/"), run_id):
        home /= part
        private_folder(home)
    written = (*pieces, Piece(SUMMARY, summary)) if summary else pieces
    write_folder(home, phase, ((f"{one.name}.md", one.text.encode("utf-8", "replace")) for one in written))


def publish_run(memory: Path, values: Values, run: Run) -> None:
    """Write the files of every folded phase of a run."""
    for phase, fold in phases_of(run):
        body = phase.children[-2] if fold is not None and len(phase.children) > 1 else None
        if fold is not None and isinstance(body, Scope):
            summary = str(values.output(fold) or "")
            publish_phase(memory, run.id, phase.path, values.pieces(body), summary)


def phases_of(run: Run) -> Iterator[tuple[Loop, Node | None]]:
    """Every phase of a run, with its fold step if that has completed."""
    for node in run.scope.children:
        if isinstance(node, Loop) and node.step.fold is not None:
            last = node.children[-1] if node.children else None
            folded = last is not None and last.step is node.step.fold and last.status == COMPLETED
            yield node, last if folded else None


def write_folder(home: Path, name: str, files: Iterable[tuple[str, bytes]]) -> None:
    """Write all files to a new folder, which then replaces the old one.

    A reader never sees a partial file. Each file costs one folder update instead of three.
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
    except OSError:  # the next owner of the run writes these files too, with newer content
        _discard(fresh)
    _discard(old)


def _discard(path: Path) -> None:
    """Remove a folder with its content, or another file at this path.

    `rmtree` would open such a file, and block if it is a pipe.
    """
    if path.is_dir() and not path.is_symlink():
        import shutil  # imported late: rarely needed

        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _make_folder(folder: str, made: set[str]) -> None:
    """Create a folder and its missing parents, without access for other users."""
    if folder not in made:
        _make_folder(os.path.dirname(folder), made)
        os.mkdir(folder, 0o700)
        made.add(folder)


def write_private(path: str, content: bytes) -> None:
    """Write a file that other users cannot read.

    Python's `open` makes extra system calls and takes half as long again, for every output of a run.
    """
    with Closing(private(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)) as file:
        left = memoryview(content)
        while left:
            left = left[os.write(file, left) :]


def private(path: str, flags: int) -> int:
    """Open a file with access for the user only, without following links."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
