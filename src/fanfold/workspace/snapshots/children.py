"""Children: the workspace of one step, a layer over a base.

Rules
* The method is the fastest that works here: an overlay in the open (root), an overlay in a user namespace,
  cloned files, copied files. What did not work once is not tried again by this process. It is reported.
* A child's folder tells everything needed to find it again: base, method, posture, write-set, owner.
* Whoever goes on with a session has its child from then on, also when the one before it lives: it was stopped
  for so long that it lost its run. When that one wakes, it touches nothing of the child any more.
* `path` is where its files are for us. In a user namespace that is a handle of this process; programs are
  started through the sandbox, which knows how to enter.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from fanfold.errors import NotFoundError, WorldError
from fanfold.process_identity import ProcessIdentity, this_process
from fanfold.trust.project_files import write_whole
from fanfold.workspace.files import trash
from fanfold.workspace.files.beneath import open_top
from fanfold.workspace.files.copies import Copier
from fanfold.workspace.files.ignored import Ignoring
from fanfold.workspace.files.layout import read_kept
from fanfold.workspace.files.manifest import FileEntry, Manifest, decode, encode
from fanfold.workspace.snapshots import overlay
from fanfold.workspace.snapshots.bases import Base, Bases
from fanfold.workspace.snapshots.changes import Change, FoundChanges, Touched, judge
from fanfold.workspace.snapshots.trees import copy_files, make_folders

Method: TypeAlias = Literal["overlay", "overlay-userns", "reflink", "copy"]
_failed: set[str] = set()


class SnapshotRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a child on disk."""

    session: str
    base: str
    method: Method
    read_only: bool
    write_set: tuple[str, ...] | None
    owner: str
    kept: str = ""
    """Why it was kept after its end."""
    origin: str = ""
    """What it was made for, in words of whoever made it."""
    epoch: int = 0
    """Whose turn it is: who opens it later has a higher one."""

    @property
    def maker(self) -> ProcessIdentity | None:
        """The process that has it; None for a record that nobody of ours wrote."""
        return ProcessIdentity.parse(self.owner)

    @property
    def has_live_owner(self) -> bool:
        return self.maker is not None and self.maker.is_alive()


class Child:
    """One open child workspace."""

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
        """How it was made."""
        return self.record.method

    @property
    def read_only(self) -> bool:
        return self.record.read_only

    @property
    def place(self) -> Path:
        """Where it is mounted or copied to; empty to the eye when it lives in a namespace."""
        return self.folder / "workspace"

    @property
    def path(self) -> Path:
        """Where its files are, for this process."""
        return self.entrance.path if self.entrance else self.place

    def changes(self) -> list[Change]:
        """What differs from the base, sorted by path. Its programs must have ended."""
        touched = Touched(self.base.manifest)
        child = open_top(self.path)
        try:
            if self.method.startswith("overlay"):
                upper = open_top(self.folder / "upper")
                try:
                    touched.layer(upper)
                finally:
                    os.close(upper)
            else:
                file = self.folder / "copied"
                touched.compare(child, decode(read_kept(file), file)[0].files)
                touched.missing(child)
            with self.base.opened() as base:
                self._found = judge(touched, base, child, self._ignoring, self.record.write_set or ())
            return self._found.changes
        finally:
            os.close(child)

    def found(self) -> FoundChanges:
        """What `changes` last found, also of files that the project ignores."""
        if self._found is None:
            self.changes()
        assert self._found is not None, "looking at the changes finds them"
        return self._found

    def is_held(self) -> bool:
        """Whether nobody opened it since. Holds as long as the workspace lock is held."""
        try:
            now = read_record(self.folder)
        except WorldError:
            return False
        return (now.owner, now.epoch) == (self.record.owner, self.record.epoch)

    def require_held(self) -> None:
        """Raise when somebody else goes on with it."""
        if not self.is_held():
            raise taken_over(self.session_id)

    def detach(self, *, held: bool = True) -> None:
        """Take the layer away; what was written to it stays in the folder. Of a child that is not `held` any
        more, only what is in our own hands is let go.
        """
        if self.entrance is not None:
            self.entrance.close()
        if not held:
            return
        if self.entrance is None and self.method == "overlay":
            overlay.lift(self.place)
        trash.let_be_removed(self.folder / "upper" if self.method.startswith("overlay") else self.place)


def make(
    folder: Path,
    session: str,
    base: Base,
    ignoring: Ignoring,
    *,
    read_only: bool,
    write_set: tuple[str, ...] | None,
    origin: str = "",
    epoch: int = 0,
) -> Child:
    """Make a child in a new folder."""
    folder.mkdir(mode=0o700)
    for name in ("upper", "work", "workspace"):
        (folder / name).mkdir(mode=0o755)
    method, entrance = _lay(folder, base, read_only)
    record = SnapshotRecord(
        session=session,
        base=base.id,
        method=method or _copy(folder, base),
        read_only=read_only,
        write_set=write_set,
        owner=str(this_process()),
        origin=origin,
        epoch=epoch,
    )
    write_whole(folder / "child.json", msgspec.json.encode(record))
    return Child(folder, record, base, ignoring, entrance)


def _lay(folder: Path, base: Base, read_only: bool) -> tuple[Method | None, overlay.Entrance | None]:
    layers = (base.trees, folder / "upper", folder / "work", folder / "workspace")
    if "overlay" not in _failed:
        try:
            overlay.lay(*layers, read_only=read_only)
            return "overlay", None
        except OSError:
            _failed.add("overlay")
    if "overlay-userns" not in _failed:
        try:
            return "overlay-userns", overlay.lay_in_namespace(*layers, read_only=read_only)
        except OSError:
            _failed.add("overlay-userns")
    return None, None


def _copy(folder: Path, base: Base) -> Method:
    for name in ("upper", "work"):
        os.rmdir(folder / name)
    target = open_top(folder / "workspace")
    try:
        copier = Copier()
        make_folders(target, base.manifest)
        copied = Manifest()
        with base.opened() as source:
            for tree, paths in source.split(base.manifest.files):
                _, gone = copy_files(tree, target, paths, copier)
                if gone:
                    raise WorldError("workspace.damaged", f'base {base.id} has lost "{gone[0]}"')
        # What was copied is looked at once more, in the place where it will be compared.
        _describe(target, "", copied.files)
        (folder / "copied").write_bytes(encode(copied))
        return "reflink" if copier.clones else "copy"
    finally:
        os.close(target)


def _describe(handle: int, prefix: str, found: dict[str, FileEntry]) -> None:
    with os.scandir(handle) as listing:
        entries = list(listing)
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False):
            found[prefix + entry.name] = FileEntry.of(entry.stat(follow_symlinks=False))
            continue
        below = os.open(
            entry.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle
        )
        try:
            _describe(below, f"{prefix}{entry.name}/", found)
        finally:
            os.close(below)


def read_record(folder: Path) -> SnapshotRecord:
    """What a child's folder says of it."""
    try:
        return msgspec.json.decode(read_kept(folder / "child.json"), type=SnapshotRecord)
    except FileNotFoundError:
        raise NotFoundError("workspace.no_child", f"there is no workspace {folder.name}") from None
    except msgspec.DecodeError as error:
        raise WorldError("workspace.damaged", f"{folder}/child.json is damaged: {error}") from error


def find(folder: Path, bases: Bases) -> tuple[SnapshotRecord, Base] | None:
    """What is known of the child in a folder; None when it, or the base it lies on, is not there."""
    try:
        record = read_record(folder)
        return record, bases.get(record.base)
    except (NotFoundError, FileNotFoundError):
        return None


def check_turn(folder: Path, epoch: int) -> None:
    """Raise when a process that lives has opened the child in a folder later than we may."""
    try:
        record = read_record(folder)
    except WorldError:
        return  # nobody can go on with it
    if record.epoch > epoch and record.has_live_owner:
        raise taken_over(record.session)


def taken_over(session: str) -> WorldError:
    return WorldError("workspace.taken_over", f"another process goes on with the workspace of {session}")


def attach(folder: Path, record: SnapshotRecord, base: Base, ignoring: Ignoring, epoch: int) -> Child:
    """Take up a child that another process left behind."""
    child = lay_again(folder, record, base, ignoring)
    child.record = msgspec.structs.replace(record, owner=str(this_process()), kept="", epoch=epoch)
    write_whole(folder / "child.json", msgspec.json.encode(child.record))
    return child


def lay_again(folder: Path, record: SnapshotRecord, base: Base, ignoring: Ignoring) -> Child:
    """Open a child that another process left behind, without making it ours."""
    entrance = None
    if record.method.startswith("overlay"):
        overlay.lift(folder / "workspace")
        overlay.forgive(folder / "work")
        layers = (base.trees, folder / "upper", folder / "work", folder / "workspace")
        try:
            if record.method == "overlay":
                overlay.lay(*layers, read_only=record.read_only)
            else:
                entrance = overlay.lay_in_namespace(*layers, read_only=record.read_only)
        except OSError as error:
            message = f"the workspace of {record.session} cannot be laid again: {error}"
            raise WorldError("workspace.no_overlay", message) from error
    return Child(folder, record, base, ignoring, entrance)
