"""Applies a merge to the project tree atomically, even if the process or the machine crashes.

Procedure
1 All new files are staged next to the journal, complete and with their final mode.
2 The plan (the expected and the new state of each path) is written and forced to disk. From now on,
  `recover` reverts the merge after a crash.
3 Each file is *exchanged* with its staged successor in one system call. The hash of the old file is
  compared with the plan, so even a change a microsecond ago is detected. If it differs, the whole merge is
  rolled back by another exchange. So the old file is never lost, keeps its inode, and is never overwritten
  unnoticed. If the file system cannot exchange files, the old file is moved away first.
4 The plan is renamed to `done`. This is the commit. Before it, everything is rolled back. After it, only
  the leftover files are deleted.

A rollback changes only files that are still as the merge wrote them. Files that were changed after a crash
stay as they are, and are listed in the report.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from fanfold.errors import WorldError
from fanfold.project_files import sync_folder, write_whole
from fanfold.workspace import beneath
from fanfold.workspace import layout as trash
from fanfold.workspace.beneath import (
    PathProblem,
    ResolvedPath,
    is_folder,
    open_folder,
    open_top,
    spot_beneath,
    umask,
)
from fanfold.workspace.layout import Layout, is_kept, open_kept, read_kept
from fanfold.workspace.merge import Content, FileState, PathRevision, state_at

# -----------------------------------------------------------------------------------------------------------
# Paths of recent merges of any process, so that a watch does not attribute them to its step
#
#     .fanfold/workspace/merges.jsonl   the number of dropped bytes; then one list of paths per merge
#
# Rules
# * Paths are recorded before the merge changes them, under the workspace lock. So a merge that is rolled back
#   is recorded too, which does no harm, and an applied merge is never missing.
# * A mark is a position in all records ever written. Old lines are dropped when there are too many. A reader
#   that asks for dropped lines gets an incomplete result, marked as such.

MAX_BYTES = 1_000_000
_HEAD = 21

_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NewArrivals(NamedTuple):
    """The paths of merges since a mark; `complete` is False if some were dropped."""

    paths: frozenset[str]
    complete: bool


class Arrivals:
    """The recorded merges of one project."""

    def __init__(self, layout: Layout) -> None:
        self._file = layout.private / "merges.jsonl"

    def note(self, paths: Iterable[str]) -> None:
        """Record paths that are about to change. Called with the workspace lock held."""
        line = msgspec.json.encode(sorted(paths)) + b"\n"
        dropped, data = self._read()
        if os.path.lexists(self._file) and not is_kept(self._file):
            os.unlink(self._file)  # never write through a link or wait for a pipe
        if len(data) + len(line) > MAX_BYTES and data:
            # Cut after the end of a line; only the newer half stays.
            cut = data.find(b"\n", len(data) // 2) + 1 or len(data)
            write_whole(self._file, _head(dropped + cut) + data[cut:] + line)
            return
        # Not forced to disk: a watch does not survive a crash of the machine either.
        handle = os.open(self._file, _APPEND, 0o600)
        with os.fdopen(handle, "ab") as out:
            # A process that died while writing may have left an incomplete line, which must not damage this
            # one.
            torn = bool(data) and not data.endswith(b"\n")
            begun = os.fstat(handle).st_size
            out.write((b"\n" if torn else b"" if begun else _head(0)) + line)

    def mark(self) -> int:
        """Return the current end of the records. Called with the workspace lock held."""
        if not is_kept(self._file):
            return 0
        with open_kept(self._file) as file:
            return _dropped(file.read(_HEAD)) + max(0, os.fstat(file.fileno()).st_size - _HEAD)

    def since(self, mark: int) -> NewArrivals:
        """Return the paths that were recorded after a mark."""
        dropped, data = self._read()
        start = mark - dropped
        complete = 0 <= start <= len(data)
        found: set[str] = set()
        for line in data[start if complete else 0 :].splitlines():
            try:
                found.update(msgspec.json.decode(line, type=list[str]))
            except msgspec.DecodeError:
                continue  # an incomplete line: its merge never started
        return NewArrivals(frozenset(found), complete)

    def _read(self) -> tuple[int, bytes]:
        """Return the number of dropped bytes, and the remaining data."""
        try:
            whole = read_kept(self._file)
        except FileNotFoundError:
            return 0, b""
        return _dropped(whole[:_HEAD]), whole[_HEAD:]


def _head(dropped: int) -> bytes:
    return b"%020d\n" % dropped


def _dropped(head: bytes) -> int:
    return int(head) if len(head) == _HEAD and head.strip().isdigit() else 0


# -----------------------------------------------------------------------------------------------------------
# Staging: new files are prepared with their final mode and owner, and forced to disk

FEW = 16
"""Up to this number, staged files are forced to disk one by one; more of them all at once."""


def manner_of(top: int, path: str) -> tuple[int, int, int] | None:
    """Return mode, owner and group of a real folder beneath an open one; None if there is none."""
    try:
        handle = open_folder(top, path)
    except (OSError, PathProblem):
        return None
    try:
        status = os.fstat(handle)
        return stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid
    finally:
        os.close(handle)


def dress(slots: int, slot: str, state: FileState, top: int, path: str, known: int | None = None) -> int:
    """Give a staged file its final mode and owner; return its inode. `known` is the mode to restore."""
    if state.mode != 0o120000:
        mode, owner = _manner(top, path)
        mode = mode if known is None else known
        mode = mode | (mode & 0o444) >> 2 if state.mode & 0o111 else mode & ~0o111
        os.chmod(slot, mode, dir_fd=slots)
        if owner is not None and os.geteuid() == 0:
            os.chown(slot, *owner, dir_fd=slots)
    return os.stat(slot, dir_fd=slots, follow_symlinks=False).st_ino


def _manner(top: int, path: str) -> tuple[int, tuple[int, int] | None]:
    """Return mode and owner of the replaced file; for a new file, the defaults in the nearest folder."""
    try:
        with spot_beneath(top, path) as spot:
            status = spot.status()
            if status is not None and stat.S_ISREG(status.st_mode):
                return status.st_mode & 0o777, (status.st_uid, status.st_gid)
    except (FileNotFoundError, PathProblem):
        pass
    folder = path.rpartition("/")[0]
    while folder and not is_folder(top, folder):
        folder = folder.rpartition("/")[0]
    handle = open_folder(top, folder)
    try:
        status = os.fstat(handle)
    finally:
        os.close(handle)
    return 0o666 & ~umask(), (status.st_uid, status.st_gid)


def sync_staged(slots: int, staged: list[str]) -> None:
    """Force staged files to disk."""
    if len(staged) > FEW:
        try:
            beneath.sync_file_system(slots)
            return
        except OSError:
            pass  # fall back to one by one
    for slot in staged:
        if not stat.S_ISLNK(os.stat(slot, dir_fd=slots, follow_symlinks=False).st_mode):
            handle = os.open(slot, os.O_RDONLY | os.O_CLOEXEC, dir_fd=slots)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
    os.fsync(slots)


_CANNOT = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)


class MergeOperation(msgspec.Struct, array_like=True, frozen=True):
    """One change of the project tree."""

    kind: Literal["put", "remove", "make_folder", "remove_folder"]
    path: str
    slot: str = ""
    before: FileState | None = None
    after: FileState | None = None
    inode: int = 0
    """The inode of the staged file, which identifies it later."""
    manner: tuple[int, int, int] | None = None
    """Mode and owner of a removed folder, so that it can be restored; or the mode of a folder that is
    created."""


class Note(msgspec.Struct, array_like=True, frozen=True):
    """A file to write when a merge is applied."""

    file: str
    data: bytes


class ProjectMoved(Exception):  # not an error: the caller makes a new plan
    """The project tree does not match the plan at this path."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class MergeJournal:
    """Applies operations to one project. Called with the workspace lock held."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._arrivals = Arrivals(layout)

    def apply(
        self,
        steps: tuple[PathRevision, ...],
        contents: Mapping[str, Content],
        folders_made: tuple[str, ...] = (),
        folders_gone: tuple[str, ...] = (),
        notes: tuple[Note, ...] = (),
        modes: Mapping[str, int] | None = None,
    ) -> None:
        """Apply all operations atomically; raises `ProjectMoved` if the project tree changed meanwhile.

        `notes` are written after the merge, if necessary by `recover`, so that it is not applied twice.
        `modes` are the modes of restored files; others get default modes.
        """
        folder = self._layout.journal / os.urandom(8).hex()
        folder.mkdir(mode=0o700)
        top, slots = open_top(self._layout.project), open_top(folder)
        begun = False
        try:
            plan = self._stage(steps, contents, folders_made, folders_gone, top, slots, modes or {})
            sync_staged(slots, [operation.slot for operation in plan if operation.kind == "put"])
            if notes:
                write_whole(folder / "notes", msgspec.msgpack.encode(notes), durable=True)
            self._arrivals.note(operation.path for operation in plan)
            begun = True
            write_whole(folder / "plan", msgspec.msgpack.encode(plan), durable=True)
            sync_folder(folder.parent)
            try:
                for operation in plan:
                    _perform(operation, top, slots)
                _sync_parents(top, plan)
                os.rename(folder / "plan", folder / "done")
                sync_folder(folder)
            except BaseException:
                if not (folder / "done").exists():
                    _roll_back(plan, top, slots)
                    _sync_parents(top, plan)
                    begun = False
                raise
            _write_notes(folder)
            begun = False
        finally:
            os.close(top)
            os.close(slots)
            if not begun:  # otherwise `recover` needs its files
                trash.throw_away(folder, self._layout.trash)

    def recover(self) -> list[str]:
        """Roll back interrupted merges; return the paths that were changed since and stay as they are.

        The caller must hold the lock. So every entry in the journal belongs to a process that died or gave
        up. It costs nothing if there are no entries.
        """
        left: list[str] = []
        for name in sorted(os.listdir(self._layout.journal)):
            folder = self._layout.journal / name
            try:
                left += self._recover(folder)
            except (OSError, msgspec.DecodeError) as error:
                message = f"a merge that was interrupted cannot be undone: {error}"
                hint = f"{folder} holds the files as they were; free what is in the way and try again"
                raise WorldError("workspace.cannot_recover", message, hint=hint) from error
        return left

    def _recover(self, folder: Path) -> list[str]:
        left: list[str] = []
        try:
            plan = msgspec.msgpack.decode(read_kept(folder / "plan"), type=list[MergeOperation])
        except FileNotFoundError:
            plan = []  # not started, or finished
        except NotADirectoryError:
            return left
        if plan:
            top, slots = open_top(self._layout.project), open_top(folder)
            try:
                left = _roll_back(plan, top, slots)
                _sync_parents(top, plan)
            finally:
                os.close(top)
                os.close(slots)
        _write_notes(folder)
        trash.throw_away(folder, self._layout.trash)
        return left

    def _stage(
        self,
        steps: tuple[PathRevision, ...],
        contents: Mapping[str, Content],
        folders_made: tuple[str, ...],
        folders_gone: tuple[str, ...],
        top: int,
        slots: int,
        modes: Mapping[str, int],
    ) -> list[MergeOperation]:
        removals: list[MergeOperation] = []
        puts: list[MergeOperation] = []
        for number, step in enumerate(steps):
            slot = f"{number}"
            if step.after is None:
                removals.append(MergeOperation("remove", step.path, slot, step.before))
                continue
            contents[step.path].stage(step.path, step.after, slots, slot)
            inode = dress(slots, slot, step.after, top, step.path, modes.get(step.path))
            puts.append(MergeOperation("put", step.path, slot, step.before, step.after, inode))
        gone = {step.path for step in steps if step.after is None}
        emptied = ancestors(gone) | set(folders_gone)
        needed = ancestors(
            {step.path for step in steps if step.after} | {f"{path}/." for path in folders_made}
        )
        leave = [
            MergeOperation("remove_folder", path, f"f{number}", manner=manner)
            for number, path in enumerate(sorted(emptied - needed, reverse=True))
            if (manner := manner_of(top, path)) is not None
        ]
        come = [
            MergeOperation("make_folder", path, manner=(modes[path], -1, -1) if path in modes else None)
            for path in sorted(needed)
            if path in gone or not is_folder(top, path)
        ]
        return [*removals, *leave, *come, *puts]


def _write_notes(folder: Path) -> None:
    """Write the notes of a merge that was applied, if there are any."""
    if not (folder / "done").exists() or not (folder / "notes").exists():
        return
    for note in msgspec.msgpack.decode(read_kept(folder / "notes"), type=tuple[Note, ...]):
        if Path(note.file).parent.is_dir():
            write_whole(Path(note.file), note.data, durable=True)


def ancestors(paths: set[str]) -> set[str]:
    """Return all folders that contain these paths."""
    found: set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder and folder not in found:
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return found


def _sync_parents(top: int, plan: list[MergeOperation]) -> None:
    for folder in {operation.path.rpartition("/")[0] for operation in plan}:
        try:
            handle = open_folder(top, folder)
        except (OSError, PathProblem):
            continue  # removed; then its own folder is in this list
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _perform(operation: MergeOperation, top: int, slots: int) -> None:
    try:
        with spot_beneath(top, operation.path) as spot:
            if operation.kind == "put":
                _put(operation, spot, slots)
            elif operation.kind == "remove":
                _move(spot.folder, spot.name, slots, operation.slot)
                if state_at(slots, operation.slot) != operation.before:
                    raise ProjectMoved(operation.path)
            elif operation.kind == "make_folder":
                os.mkdir(spot.name, 0o777, dir_fd=spot.folder)
                _own(spot)
                if operation.manner is not None:
                    os.chmod(spot.name, operation.manner[0], dir_fd=spot.folder)
            else:
                _remove_folder(spot)
    except (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PathProblem):
        raise ProjectMoved(operation.path) from None


def _put(operation: MergeOperation, spot: ResolvedPath, slots: int) -> None:
    if operation.before is None:
        _move(slots, operation.slot, spot.folder, spot.name)
        return
    try:
        beneath.renameat2(slots, operation.slot, spot.folder, spot.name, beneath.RENAME_EXCHANGE)
        old = operation.slot
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        old = operation.slot + ".old"
        _move(spot.folder, spot.name, slots, old)
        _move(slots, operation.slot, spot.folder, spot.name)
    if state_at(slots, old) != operation.before:
        raise ProjectMoved(operation.path)


def _move(source: int, name: str, target: int, new: str) -> None:
    """Rename without ever replacing a file."""
    try:
        beneath.renameat2(source, name, target, new, beneath.RENAME_NOREPLACE)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        try:
            os.stat(new, dir_fd=target, follow_symlinks=False)
        except FileNotFoundError:
            os.rename(name, new, src_dir_fd=source, dst_dir_fd=target)
        else:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None


def _own(spot: ResolvedPath) -> None:
    if os.geteuid() == 0:
        owner = os.fstat(spot.folder)
        os.chown(spot.name, owner.st_uid, owner.st_gid, dir_fd=spot.folder, follow_symlinks=False)


def _remove_folder(spot: ResolvedPath) -> None:
    try:
        os.rmdir(spot.name, dir_fd=spot.folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        # It still contains ignored files, so the folder stays.


def _roll_back(plan: list[MergeOperation], top: int, slots: int) -> list[str]:
    """Revert every operation that was performed; return the paths that were changed since."""
    left: list[str] = []
    for operation in reversed(plan):
        try:
            with spot_beneath(top, operation.path) as spot:
                if not _undo(operation, spot, top, slots):
                    left.append(operation.path)
        except FileNotFoundError:
            pass  # its folder was never created
        except PathProblem:  # a file blocks the folder of this path
            if _is_done(operation, slots):
                left.append(operation.path)
    return left


def _is_done(operation: MergeOperation, slots: int) -> bool:
    """Return whether a file was written or removed, judged by the content of its slot."""
    if operation.kind == "put":
        return _inode(slots, operation.slot) != operation.inode
    return operation.kind == "remove" and _exists(slots, operation.slot)


def _undo(operation: MergeOperation, spot: ResolvedPath, top: int, slots: int) -> bool:
    here = spot.status()
    if operation.kind == "make_folder":
        try:
            os.rmdir(spot.name, dir_fd=spot.folder)
        except OSError:
            pass  # never created, or it contains new files
        return True
    if operation.kind == "remove_folder":
        return here is not None or _make_again(operation, spot, slots)
    if operation.kind == "remove":
        if not _exists(slots, operation.slot):
            return True
        return _put_back(slots, operation.slot, spot)
    return _undo_put(operation, spot, here, top, slots)


def _make_again(operation: MergeOperation, spot: ResolvedPath, slots: int) -> bool:
    """Restore a removed folder: it is prepared elsewhere, then moved into place atomically."""
    mode, user, group = operation.manner or (0o777 & ~umask(), -1, -1)
    try:
        os.mkdir(operation.slot, dir_fd=slots)
    except FileExistsError:
        pass  # left by an interrupted recovery
    if os.geteuid() == 0:
        os.chown(operation.slot, user, group, dir_fd=slots)
    os.chmod(operation.slot, mode, dir_fd=slots)
    return _put_back(slots, operation.slot, spot)


def _undo_put(
    operation: MergeOperation, spot: ResolvedPath, here: os.stat_result | None, top: int, slots: int
) -> bool:
    ours = here is not None and here.st_ino == operation.inode
    if operation.before is None:
        if not ours:
            return _exists(slots, operation.slot) or here is None  # not written yet, or removed since
        if state_at(top, operation.path) != operation.after:
            return False
        _move(spot.folder, spot.name, slots, operation.slot)
        return True
    if _exists(slots, operation.slot + ".old"):  # moved away first, because the file system cannot exchange
        if ours:
            _move(spot.folder, spot.name, slots, operation.slot)
        elif here is not None:
            return False
        return _put_back(slots, operation.slot + ".old", spot)
    staged = _inode(slots, operation.slot)
    if staged in (None, operation.inode):
        return True  # not exchanged
    if not ours or state_at(top, operation.path) != operation.after:
        return False
    beneath.renameat2(slots, operation.slot, spot.folder, spot.name, beneath.RENAME_EXCHANGE)
    return True


def _put_back(slots: int, slot: str, spot: ResolvedPath) -> bool:
    try:
        _move(slots, slot, spot.folder, spot.name)
    except FileExistsError:
        return False
    return True


def _inode(folder: int, name: str) -> int | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_ino
    except FileNotFoundError:
        return None


def _exists(folder: int, name: str) -> bool:
    return _inode(folder, name) is not None
