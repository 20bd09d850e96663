"""Private home folders of agents that are programs, where each agent stores its conversation.

Rules
* A session has one home, which is found again after a crash. A session that continues the conversation of
  another session gets a copy, so the original stays unchanged.
* A home is kept as long as its run, so that the run can be continued. It is deleted together with the run.
* Its files were written by a program: links are copied as links, and never followed or executed.
* A credential that is lent to an agent is recorded outside of its home, before it is put there. If the
  process that lent it is dead, the next process that opens the project removes it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from fanfold.errors import WorldError
from fanfold.process_identity import ProcessIdentity, this_process
from fanfold.project_files import Closing, write_whole
from fanfold.workspace import layout as trash
from fanfold.workspace.beneath import Copier
from fanfold.workspace.children import Child
from fanfold.workspace.ignored import own_environment
from fanfold.workspace.layout import Layout, read_kept
from fanfold.workspace.repository import find_repository
from fanfold.workspace.sandbox_policy import ExtraMounts, Policy, ProcessLimits

MAX_DEPTH = 64
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILES = "home"
ORIGIN = "origin"
LENT = "lent"
"""The folder next to all homes that records lent credentials, by the name of the home."""


class LentCredentials(msgspec.Struct, frozen=True):
    """Credentials in a home while its agent runs, and the process that will remove them."""

    lender: str
    places: tuple[str, ...]


def open_home(layout: Layout, session_id: str, origin: str, earlier: str = "") -> Path:
    """Return the home folder of a session's agent; `origin` is its run."""
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
    made.mkdir(mode=0o700)
    if before is not None:
        with Closing(os.open(before, _FOLDER)) as source, Closing(os.open(made, _FOLDER)) as target:
            _copy_folder(source, target, Copier(), MAX_DEPTH)
        for mark in before.parent.iterdir():  # records about the home that are next to its files
            if mark.is_file() and not (folder / mark.name).exists():
                shutil.copyfile(mark, folder / mark.name)
    made.rename(files)  # atomic: this process may die during the copy
    return files


def all_homes(layout: Layout) -> Iterator[tuple[Path, str, float]]:
    """Iterate over all homes, with the run of each and the time of its last start."""
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


def _copy_folder(source: int, target: int, copier: Copier, depth: int) -> None:
    """Copy the content of an open folder, without sockets, pipes, denied files and folders too deep."""
    for name in os.listdir(source):
        try:
            below = os.open(name, _FOLDER, dir_fd=source)
        except PermissionError:
            continue
        except OSError:  # not a folder
            with suppress(WorldError):
                copier.copy(source, name, target, name)
            continue
        with Closing(below) as folder:
            if depth > 0:
                os.mkdir(name, 0o700, dir_fd=target)
                with Closing(os.open(name, _FOLDER, dir_fd=target)) as inner:
                    _copy_folder(folder, inner, copier, depth - 1)


# Lent credentials


def note_lent(home: Path, places: Sequence[str]) -> None:
    """Record that credentials are about to be lent to the agent of a home."""
    mark = _mark(home)
    mark.parent.mkdir(mode=0o700, exist_ok=True)
    write_whole(mark, msgspec.json.encode(LentCredentials(str(this_process()), tuple(places))))


def is_lent_by_another(home: Path) -> bool:
    """Return whether another live process has lent credentials to this home and continues its agent."""
    try:
        lent = msgspec.json.decode(read_kept(_mark(home)), type=LentCredentials)
    except (FileNotFoundError, msgspec.DecodeError):
        return False
    lender = ProcessIdentity.parse(lent.lender)
    return lender is not None and lender != this_process() and lender.is_alive()


def forget_lent(home: Path) -> None:
    """Delete the record after the credentials were removed."""
    _mark(home).unlink(missing_ok=True)


def take_back_abandoned(layout: Layout) -> None:
    """Remove the credentials that dead processes lent."""
    try:
        marks = list(layout.lent.iterdir())
    except FileNotFoundError:
        return
    for mark in marks:
        try:
            lent = msgspec.json.decode(read_kept(mark), type=LentCredentials)
        except (OSError, msgspec.DecodeError):
            continue  # removed meanwhile, or being written
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
    """Write a file below a home, without following links that an agent may have created."""
    opened, name = _folder_of(home, place, make=True)
    with Closing(opened) as folder:
        write_whole(name, data, folder=folder)


def remove_beneath(home: Path, place: str) -> None:
    """Delete a file below a home, without following links."""
    with suppress(OSError):  # does not exist, or is not a file
        opened, name = _folder_of(home, place, make=False)
        with Closing(opened) as folder:
            os.unlink(name, dir_fd=folder)


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


# -----------------------------------------------------------------------------------------------------------
# Sandbox policies of commands


def make_policy(
    layout: Layout,
    child: Child | None,
    points: Mapping[str, bool],
    *,
    read_only: bool,
    network: bool,
    environment: Mapping[str, str],
    limits: ProcessLimits,
    rooms: ExtraMounts,
) -> Policy:
    """Return the sandbox policy of a command in a step workspace, or in the shared workspace without one.

    Dependency folders are read-only in both. The environment that Fanfold itself runs from is read-only too,
    because files written there would run outside the sandbox.
    """
    project = layout.project
    own = own_environment(project)
    points = {**points, own: True} if own else points
    entrance = child.entrance if child else None
    repository = find_repository(project)
    outside: list[Path] = []
    if repository is not None and repository.top == project:  # git folders of this work tree outside of it
        folders = dict.fromkeys((repository.common, repository.folder))
        outside = [folder for folder in folders if not folder.is_relative_to(project)]
    return Policy(
        project=project,
        workspace=child.path if child else project,
        place=child.place if child else project,
        scratch=layout.scratch,
        namespaces=entrance.namespaces if entrance else None,
        read_only=read_only or (child is not None and child.read_only),
        network=network,
        environment=dict(environment),
        points=dict(points),
        repositories=tuple(map(str, outside)),
        path=os.environ.get("PATH", os.defpath),
        home=Path.home(),
        rooms=rooms,
        limits=limits,
    )
