"""The private homes of agents that are programs: where each keeps its own conversation.

Rules
* A session has one home, found again after a crash. Who goes on with a conversation of another session gets a
  copy: what was said there stays as it was.
* A home is kept as long as its run, for who goes on; then it is thrown away with it.
* What is in it was written by a program: links are copied as links, and nothing of it is followed or run.
* A credential that is lent to the agent of a home is noted outside of it, before it is put there. Where the
  process that lent it is gone, whoever opens the project next takes it back.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from fanfold.errors import WorldError
from fanfold.process_identity import ProcessIdentity, this_process
from fanfold.trust.project_files import write_whole
from fanfold.workspace.files import trash
from fanfold.workspace.files.copies import Copier
from fanfold.workspace.files.layout import Layout, read_kept

MAX_DEPTH = 64
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILES = "home"
ORIGIN = "origin"
LENT = "lent"
"""Beside all homes: what is lent, by the name of the home."""


class Lent(msgspec.Struct, frozen=True):
    """What was put into a home for the time that its agent runs, and who will take it out."""

    lender: str
    places: tuple[str, ...]


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
        _copy_home(before, made)
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
            yield folder, read_kept(file).decode(errors="replace"), file.stat().st_mtime
        except OSError:
            yield folder, "", 0.0


def throw_away(layout: Layout, folder: Path) -> None:
    trash.throw_away(folder, layout.trash)


def _folder(layout: Layout, session_id: str) -> Path:
    return layout.homes / layout.child(session_id).name


def _copy_home(before: Path, made: Path) -> None:
    made.mkdir(mode=0o700)
    source, target = os.open(before, _FOLDER), os.open(made, _FOLDER)
    try:
        _copy_folder(source, target, Copier(), MAX_DEPTH)
    finally:
        os.close(source)
        os.close(target)


def _copy_folder(source: int, target: int, copier: Copier, depth: int) -> None:
    """Copy what is in an open folder. What a program made so that nobody can copy it is left out: sockets and
    pipes, what is closed to us, folders within folders without end.
    """
    for name in os.listdir(source):
        try:
            below = os.open(name, _FOLDER, dir_fd=source)
        except PermissionError:
            continue
        except OSError:  # no folder
            with suppress(WorldError):
                copier.copy(source, name, target, name)
            continue
        try:
            if depth > 0:
                os.mkdir(name, 0o700, dir_fd=target)
                inner = os.open(name, _FOLDER, dir_fd=target)
                try:
                    _copy_folder(below, inner, copier, depth - 1)
                finally:
                    os.close(inner)
        finally:
            os.close(below)


# What is lent


def note_lent(home: Path, places: Sequence[str]) -> None:
    """Say that something is about to be lent to the agent of a home."""
    mark = _mark(home)
    mark.parent.mkdir(mode=0o700, exist_ok=True)
    write_whole(mark, msgspec.json.encode(Lent(str(this_process()), tuple(places))))


def is_lent_by_another(home: Path) -> bool:
    """Whether a process that lives has lent something there since: it goes on with the agent of this home."""
    try:
        lent = msgspec.json.decode(read_kept(_mark(home)), type=Lent)
    except (FileNotFoundError, msgspec.DecodeError):
        return False
    lender = ProcessIdentity.parse(lent.lender)
    return lender is not None and lender != this_process() and lender.is_alive()


def forget_lent(home: Path) -> None:
    """Say that it was taken back."""
    _mark(home).unlink(missing_ok=True)


def take_back_abandoned(layout: Layout) -> None:
    """Take out of homes what processes lent that are gone."""
    try:
        marks = list(layout.lent.iterdir())
    except FileNotFoundError:
        return
    for mark in marks:
        try:
            lent = msgspec.json.decode(read_kept(mark), type=Lent)
        except (OSError, msgspec.DecodeError):
            continue  # taken back meanwhile, or being written
        lender = ProcessIdentity.parse(lent.lender)
        if lender is not None and lender.is_alive():
            continue
        for place in lent.places:
            remove_beneath(layout.homes / mark.name / FILES, place)
        mark.unlink(missing_ok=True)


def _mark(home: Path) -> Path:
    folder = home.parent
    return folder.parent.parent / LENT / folder.name


def write_beneath(home: Path, place: str, data: bytes) -> None:
    """Put a file below a home, following no link that an agent may have put on the way."""
    folder, name = _folder_of(home, place, make=True)
    try:
        write_whole(name, data, folder=folder)
    finally:
        os.close(folder)


def remove_beneath(home: Path, place: str) -> None:
    """Delete a file below a home, in the same way."""
    try:
        folder, name = _folder_of(home, place, make=False)
    except OSError:
        return  # not there
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        pass  # not there, or something that is no file of ours
    finally:
        os.close(folder)


def _folder_of(home: Path, place: str, *, make: bool) -> tuple[int, str]:
    *folders, name = place.split("/")
    handle = os.open(home, _FOLDER)
    try:
        for folder in folders:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(folder, 0o700, dir_fd=handle)
            below = os.open(folder, _FOLDER, dir_fd=handle)
            os.close(handle)
            handle = below
    except OSError:
        os.close(handle)
        raise
    return handle, name
