"""The private homes of agents that are programs: where each keeps its own conversation.

Rules
* A session has one home, found again after a crash. Who goes on with a conversation of another session gets a
  copy: what was said there stays as it was.
* A home is kept as long as its run, for who goes on; then it is thrown away with it.
* What is in it was written by a program: links are copied as links, and nothing of it is followed or run.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from fanfold.errors import WorldError
from fanfold.workspace.files import trash
from fanfold.workspace.files.layout import Layout, write_whole

FILES = "home"
ORIGIN = "origin"


def open_home(layout: Layout, session_id: str, origin: str, earlier: str = "") -> Path:
    """The folder that is the home of a session's agent; `origin` is the run that it belongs to."""
    folder = _folder(layout, session_id)
    files = folder / FILES
    if files.is_dir():
        return files
    before = _folder(layout, earlier) / FILES if earlier else None
    if earlier and (before is None or not before.is_dir()):
        message = f"what the agent of session {earlier} remembers is gone"
        raise WorldError("agent.forgotten", message, hint="run the step again from the start")
    folder.mkdir(mode=0o700, exist_ok=True)
    write_whole(folder / ORIGIN, origin.encode())
    made = folder / f".{os.urandom(4).hex()}"
    if before is not None:
        shutil.copytree(before, made, symlinks=True, ignore=_special)
        made.chmod(0o700)
        for mark in before.parent.iterdir():  # what is known of it beside the files themselves
            if mark.is_file() and not (folder / mark.name).exists():
                shutil.copyfile(mark, folder / mark.name)
    else:
        made.mkdir(mode=0o700)
    made.rename(files)  # whole, or not there: we may die while it is copied
    return files


def all_homes(layout: Layout) -> Iterator[tuple[Path, str, float]]:
    """Every home, the run it belongs to, and when it was last begun."""
    for folder in layout.homes.iterdir() if layout.homes.is_dir() else ():
        try:
            file = folder / ORIGIN
            yield folder, file.read_text(), file.stat().st_mtime
        except OSError:
            yield folder, "", 0.0


def throw_away(layout: Layout, folder: Path) -> None:
    trash.throw_away(folder, layout.trash)


def _folder(layout: Layout, session_id: str) -> Path:
    return layout.homes / layout.child(session_id).name


def _special(folder: str, names: list[str]) -> list[str]:
    """What cannot be copied: sockets, pipes, devices."""
    kinds = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)
    return [name for name in names if not any(kind(os.lstat(f"{folder}/{name}").st_mode) for kind in kinds)]
