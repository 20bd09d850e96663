"""Step workspaces: the workspace of one step, a layer over a base.

Rules
* The fastest available method is used: a visible overlay (root), an overlay in a user namespace, cloned
  files, copied files. This process does not retry a method that failed once. The method is reported.
* The folder of a step workspace contains everything needed to find it again: base, method, access, write-set,
  owner.
* A process that continues a session owns its workspace from then on, even if the previous owner is alive.
  That one was stopped for so long that it lost its run. When it wakes up, it no longer touches the workspace.
* `path` is the path of the files for this process. In a user namespace it is a handle of this process.
  Programs are started through the sandbox, which joins the namespace.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from fanfold.errors import NotFoundError, WorldError
from fanfold.kernel.claims import is_protected
from fanfold.process_identity import ProcessIdentity, this_process
from fanfold.project_files import Closing, write_whole
from fanfold.workspace import changes as overlay
from fanfold.workspace import layout
from fanfold.workspace.bases import Base, Bases, copy_files, make_places
from fanfold.workspace.beneath import (
    Copier,
    FileEntry,
    Manifest,
    PathProblem,
    decode,
    encode,
    open_top,
    spot_beneath,
)
from fanfold.workspace.changes import Change, FoundChanges, TouchedPaths, judge
from fanfold.workspace.ignored import Ignoring
from fanfold.workspace.layout import Layout, read_kept

Method: TypeAlias = Literal["overlay", "overlay-userns", "reflink", "copy"]
LINKS = "links"
"""The folder of a step workspace with links to what the sandbox cannot mount; a layer over its base."""
_failed: set[str] = set()


class SnapshotRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The stored record of a step workspace."""

    session: str
    base: str
    method: Method = "copy"
    read_only: bool
    write_set: tuple[str, ...] | None
    owner: str
    kept: str = ""
    """The reason why it was kept after its step."""
    origin: str = ""
    """Its purpose, as named by the caller that created it."""
    epoch: int = 0
    """The epoch of its owner; a later owner has a higher one."""
    prepared: str = ""
    """The folder of ignored files that the user's setup command made for its base."""
    prepares: bool = False
    """Whether the setup command runs in it."""

    @property
    def maker(self) -> ProcessIdentity | None:
        """The process that owns it; None for an invalid record."""
        return ProcessIdentity.parse(self.owner)

    @property
    def has_live_owner(self) -> bool:
        return self.maker is not None and self.maker.is_alive()


class Child:
    """One open step workspace."""

    def __init__(
        self,
        folder: Path,
        record: SnapshotRecord,
        base: Base,
        ignoring: Ignoring,
        entrance: overlay.Entrance | None,
    ) -> None:
        self.session_id = record.session
        self.folder = folder
        self.record = record
        self.base = base
        self.entrance = entrance
        self._ignoring = ignoring
        self._found: FoundChanges | None = None

    @property
    def method(self) -> Method:
        """The method that created it."""
        return self.record.method

    @property
    def read_only(self) -> bool:
        return self.record.read_only

    @property
    def place(self) -> Path:
        """The folder where it is mounted or copied to; looks empty if the overlay is in a namespace."""
        return self.folder / "workspace"

    @property
    def path(self) -> Path:
        """The path of its files for this process."""
        return self.entrance.path if self.entrance else self.place

    @property
    def points(self) -> dict[str, bool]:
        """The paths of the project tree to mount: without dependencies that the setup command provides."""
        return _points(self.base, self.record)

    def changes(self) -> list[Change]:
        """Return the differences to the base, sorted by path. Its programs must have ended."""
        touched = TouchedPaths(self.base.manifest)
        with Closing(open_top(self.path)) as child:
            if self.method.startswith("overlay"):
                with Closing(open_top(self.folder / "upper")) as upper:
                    touched.add(upper, None)
            else:
                file = self.folder / "copied"
                touched.add(child, decode(read_kept(file), file)[0].files)
                touched.missing(child)
            with self.base.opened() as base:
                self._found = judge(touched, base, child, self._ignoring, self.record.write_set or ())
            return self._found.changes

    def found(self) -> FoundChanges:
        """Return the last result of `changes`, including ignored files."""
        if self._found is None:
            self.changes()
        assert self._found is not None, "looking at the changes finds them"
        return self._found

    def is_held(self) -> bool:
        """Return whether this process still owns it. The result is valid while the workspace lock is held."""
        try:
            now = read_record(self.folder)
        except WorldError:
            return False
        return (now.owner, now.epoch) == (self.record.owner, self.record.epoch)

    def require_held(self) -> None:
        """Raise `workspace.taken_over` if another process continues it."""
        if not self.is_held():
            raise taken_over(self.session_id)

    def detach(self, *, held: bool = True) -> None:
        """Unmount the layer and keep its files. If not `held`, only close this process's handles."""
        if self.entrance is not None:
            self.entrance.close()
        if not held:
            return
        if self.entrance is None and self.method == "overlay":
            overlay.lift(self.place)
        layout.let_be_removed(self.folder / "upper" if self.method.startswith("overlay") else self.place)


def _points(base: Base, record: SnapshotRecord) -> dict[str, bool]:
    def is_provided(path: str) -> bool:
        if is_protected(path) or not (record.prepares or record.prepared):
            return False
        with suppress(OSError):
            return record.prepares or bool(os.listdir(Path(record.prepared, path)))
        return False

    return {path: kind for path, kind in base.manifest.points.items() if not is_provided(path)}


def make(
    folder: Path, record: SnapshotRecord, base: Base, ignoring: Ignoring, linked: Path | None = None
) -> Child:
    """Create a step workspace in a new folder. The method of its record is chosen here.

    `linked` is the project if the sandbox mounts nothing: its git and dependency folders become links, which
    Landlock keeps read-only.
    """
    folder.mkdir(mode=0o700)
    for name in ("upper", "work", "workspace"):
        (folder / name).mkdir(mode=0o755)
    if linked is not None:
        for path in _points(base, record).keys() - {layout.OWN_FOLDER}:
            (folder / LINKS / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / LINKS / path).symlink_to(linked / path)
    entrance = None
    overlays: tuple[Method, ...] = ("overlay", "overlay-userns")
    for method in overlays:
        if method in _failed:
            continue
        try:
            entrance = _mount(method, folder, base, record.read_only, record.prepared)
            break
        except OSError:
            _failed.add(method)
    else:
        method = _copy(folder, base, record.prepared)
    record = msgspec.structs.replace(record, method=method)
    write_whole(folder / "child.json", msgspec.json.encode(record))
    return Child(folder, record, base, ignoring, entrance)


def _unlink(folder: Path, record: SnapshotRecord, base: Base) -> None:
    """Make mount points of links, since bubblewrap was allowed meanwhile."""
    shutil.rmtree(folder / LINKS)
    if record.method.startswith("overlay"):
        return
    with Closing(open_top(folder / "workspace")) as top:
        for path, is_folder in _points(base, record).items():
            with suppress(OSError, PathProblem), spot_beneath(top, path) as spot:
                os.readlink(spot.name, dir_fd=spot.folder)  # raises for what is no link
                os.unlink(spot.name, dir_fd=spot.folder)
                make_places(spot.folder, (), {spot.name: is_folder})


def _added(folder: Path, prepared: str) -> list[Path]:
    """The folders that are laid over the base of a step workspace."""
    return [Path(one) for one in (folder / LINKS, prepared) if one and os.path.isdir(one)]


def _mount(
    method: Method, folder: Path, base: Base, read_only: bool, prepared: str
) -> overlay.Entrance | None:
    layers = (
        (*_added(folder, prepared), *base.trees),
        folder / "upper",
        folder / "work",
        folder / "workspace",
    )
    if method == "overlay-userns":
        return overlay.lay_in_namespace(*layers, read_only=read_only)
    overlay.lay(*layers, read_only=read_only)
    return None


def _copy(folder: Path, base: Base, prepared: str) -> Method:
    for name in ("upper", "work"):
        os.rmdir(folder / name)
    with Closing(open_top(folder / "workspace")) as target:
        copier = Copier()
        points = base.manifest.points.items()
        kept = {path: kind for path, kind in points if not (folder / LINKS / path).is_symlink()}
        make_places(target, base.manifest.folders, kept)
        copied = Manifest()
        with base.opened() as source:
            for tree, paths in source.split(base.manifest.files):
                _, gone = copy_files(tree, target, paths, copier)
                if gone:
                    raise WorldError("workspace.damaged", f'base {base.id} no longer contains "{gone[0]}"')
        for added in _added(folder, prepared):
            with Closing(open_top(added)) as made:
                ignored = Manifest()
                _describe(made, "", ignored.files)
                folders = {str(parent) for path in ignored.files for parent in Path(path).parents} - {"."}
                for path in sorted(folders):
                    with suppress(FileExistsError, PathProblem), spot_beneath(target, path) as spot:
                        os.mkdir(spot.name, 0o755, dir_fd=spot.folder)
                copy_files(made, target, ignored.files, copier)
        # Read the entries again, from the place where they will be compared.
        _describe(target, "", copied.files)
        write_whole(folder / "copied", encode(copied))
        return "reflink" if copier.clones else "copy"


def _describe(handle: int, prefix: str, found: dict[str, FileEntry]) -> None:
    with os.scandir(handle) as listing:
        entries = list(listing)
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False):
            found[prefix + entry.name] = FileEntry.of(entry.stat(follow_symlinks=False))
            continue
        with Closing(
            os.open(entry.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
        ) as below:
            _describe(below, f"{prefix}{entry.name}/", found)


def read_record(folder: Path) -> SnapshotRecord:
    """Return the record in the folder of a step workspace."""
    try:
        return msgspec.json.decode(read_kept(folder / "child.json"), type=SnapshotRecord)
    except FileNotFoundError:
        raise NotFoundError("workspace.no_child", f"there is no workspace {folder.name}") from None
    except msgspec.DecodeError as error:
        raise WorldError("workspace.damaged", f"{folder}/child.json is damaged: {error}") from error


def find(folder: Path, bases: Bases) -> tuple[SnapshotRecord, Base] | None:
    """Return the record and the base of the workspace in a folder; None if either is missing."""
    try:
        record = read_record(folder)
        return record, bases.get(record.base)
    except (NotFoundError, FileNotFoundError):
        return None


def check_turn(folder: Path, epoch: int) -> None:
    """Raise `workspace.taken_over` if a live process opened the workspace with a higher epoch."""
    try:
        record = read_record(folder)
    except WorldError:
        return  # no process can continue it
    if record.epoch > epoch and record.has_live_owner:
        raise taken_over(record.session)


def taken_over(session: str) -> WorldError:
    return WorldError("workspace.taken_over", f"another process continues in the workspace of {session}")


def attach(
    folder: Path, record: SnapshotRecord, base: Base, ignoring: Ignoring, epoch: int, linked: Path | None
) -> Child:
    """Open a workspace that another process left, and become its owner."""
    if linked is None and os.path.isdir(folder / LINKS):
        _unlink(folder, record, base)
    child = lay_again(folder, record, base, ignoring)
    child.record = msgspec.structs.replace(record, owner=str(this_process()), kept="", epoch=epoch)
    write_whole(folder / "child.json", msgspec.json.encode(child.record))
    return child


def lay_again(folder: Path, record: SnapshotRecord, base: Base, ignoring: Ignoring) -> Child:
    """Open a workspace that another process left, without becoming its owner."""
    entrance = None
    if record.method.startswith("overlay"):
        overlay.lift(folder / "workspace")
        overlay.forgive(folder / "work")
        try:
            entrance = _mount(record.method, folder, base, record.read_only, record.prepared)
        except OSError as error:
            message = f"the workspace of {record.session} cannot be laid again: {error}"
            raise WorldError("workspace.no_overlay", message) from error
    return Child(folder, record, base, ignoring, entrance)


# -----------------------------------------------------------------------------------------------------------
# Private home folders of agents that are programs, where each agent stores its conversation
#
# Rules
# * A session has one home, which is found again after a crash. A session that continues the conversation of
#   another session gets a copy, so the original stays unchanged.
# * A home is kept as long as its run, so that the run can be continued. It is deleted together with the run.
# * Its files were written by a program: links are copied as links, and never followed or executed.
# * A credential that is lent to an agent is recorded outside of its home, before it is put there. If the
#   process that lent it is dead, the next process that opens the project removes it.

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
    folder = _home_folder(layout, session_id)
    files = folder / FILES
    if files.is_dir():
        return files
    before = _home_folder(layout, earlier) / FILES if earlier else None
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


def _home_folder(layout: Layout, session_id: str) -> Path:
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
    lent = _read_lent(_mark(home))
    lender = None if lent is None else ProcessIdentity.parse(lent.lender)
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
        lent = _read_lent(mark)
        lender = None if lent is None else ProcessIdentity.parse(lent.lender)
        if lent is None or (lender is not None and lender.is_alive()):
            continue
        for place in lent.places:
            remove_beneath(layout.homes / mark.name / FILES, place)
        mark.unlink(missing_ok=True)


def _read_lent(mark: Path) -> LentCredentials | None:
    """Return a record; None if it does not exist, was removed meanwhile, or is being written."""
    try:
        return msgspec.json.decode(read_kept(mark), type=LentCredentials)
    except (OSError, msgspec.DecodeError):
        return None


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
