"""Putting a merge into the parent: all of it or nothing, whatever happens in between.

How
1 Everything that will be put is staged beside the journal, complete, with its final mode.
2 The plan (what must be where, what comes instead) is written and forced to disk. From here on a crash is
  undone by `recover`.
3 Each file is *exchanged* with its staged successor in one system call. What comes out is what really was
  there, whatever a program did a microsecond ago: its hash is compared with the plan, and if it differs the
  whole merge is rolled back by exchanging again. So what was there is never lost, keeps its inode, and is
  never overwritten unseen. Where the file system cannot exchange, the old file is moved away first.
4 The plan is renamed to `done`: that is the commit. Before it everything is rolled back, after it only the
  remains are thrown away.

Rolling back touches only what is still as we put it. What somebody changed after a crash stays theirs, and is
named in the report.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from fanfold.errors import WorldError
from fanfold.trust.project_files import sync_folder, write_whole
from fanfold.workspace.files import syscalls, trash
from fanfold.workspace.files.beneath import PathProblem, Spot, is_folder, open_folder, open_top, spot_beneath
from fanfold.workspace.files.copies import umask
from fanfold.workspace.files.layout import Layout, read_kept
from fanfold.workspace.merges.arrivals import Arrivals
from fanfold.workspace.merges.objects import FileState
from fanfold.workspace.merges.revision import Content, Revised, state_at
from fanfold.workspace.merges.staging import dress, manner_of, sync_staged

_CANNOT = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)


class MergeOperation(msgspec.Struct, array_like=True, frozen=True):
    """One change of the parent."""

    kind: Literal["put", "remove", "make_folder", "remove_folder"]
    path: str
    slot: str = ""
    before: FileState | None = None
    after: FileState | None = None
    inode: int = 0
    """Of the staged file, by which it is known again."""
    manner: tuple[int, int, int] | None = None
    """Mode and owner of a folder that is removed, so that it can be made again as it was; or the mode of one
    that comes back."""


class Note(msgspec.Struct, array_like=True, frozen=True):
    """What to write where once a merge is done."""

    file: str
    data: bytes


class Moved(Exception):  # a signal: the caller plans anew
    """The parent is not what the plan says at this path."""

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
        steps: tuple[Revised, ...],
        contents: Mapping[str, Content],
        folders_made: tuple[str, ...] = (),
        folders_gone: tuple[str, ...] = (),
        notes: tuple[Note, ...] = (),
        modes: Mapping[str, int] | None = None,
    ) -> None:
        """Do it all, or leave everything as it was and raise: `Moved` when the parent changed meanwhile.

        `notes` are written when it was done, by `recover` if need be: so that nobody does it twice. `modes`
        are those of files that come back; others get what is usual.
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
            if not begun:  # else it holds what `recover` needs
                trash.throw_away(folder, self._layout.trash)

    def recover(self) -> list[str]:
        """Roll back what was left half done; the paths that were not ours to put back any more.

        Whoever holds the lock may call it: what is in the journal then belongs to somebody who died or
        gave up. It costs nothing when there is nothing.
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
            plan = []  # not begun, or done
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
        steps: tuple[Revised, ...],
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
    """Say that a merge was done, if it was and anyone wanted to know."""
    if not (folder / "done").exists() or not (folder / "notes").exists():
        return
    for note in msgspec.msgpack.decode(read_kept(folder / "notes"), type=tuple[Note, ...]):
        if Path(note.file).parent.is_dir():
            write_whole(Path(note.file), note.data, durable=True)


def ancestors(paths: set[str]) -> set[str]:
    """The folders around these paths."""
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
            continue  # removed, and then its own folder is in this list
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
                    raise Moved(operation.path)
            elif operation.kind == "make_folder":
                os.mkdir(spot.name, 0o777, dir_fd=spot.folder)
                _own(spot)
                if operation.manner is not None:
                    os.chmod(spot.name, operation.manner[0], dir_fd=spot.folder)
            else:
                _remove_folder(spot)
    except (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PathProblem):
        raise Moved(operation.path) from None


def _put(operation: MergeOperation, spot: Spot, slots: int) -> None:
    if operation.before is None:
        _move(slots, operation.slot, spot.folder, spot.name)
        return
    try:
        syscalls.renameat2(slots, operation.slot, spot.folder, spot.name, syscalls.RENAME_EXCHANGE)
        old = operation.slot
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        old = operation.slot + ".old"
        _move(spot.folder, spot.name, slots, old)
        _move(slots, operation.slot, spot.folder, spot.name)
    if state_at(slots, old) != operation.before:
        raise Moved(operation.path)


def _move(source: int, name: str, target: int, new: str) -> None:
    """Rename without ever replacing anything."""
    try:
        syscalls.renameat2(source, name, target, new, syscalls.RENAME_NOREPLACE)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        try:
            os.stat(new, dir_fd=target, follow_symlinks=False)
        except FileNotFoundError:
            os.rename(name, new, src_dir_fd=source, dst_dir_fd=target)
        else:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None


def _own(spot: Spot) -> None:
    if os.geteuid() == 0:
        owner = os.fstat(spot.folder)
        os.chown(spot.name, owner.st_uid, owner.st_gid, dir_fd=spot.folder, follow_symlinks=False)


def _remove_folder(spot: Spot) -> None:
    try:
        os.rmdir(spot.name, dir_fd=spot.folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        # What the project ignores is still in it: the folder stays.


def _roll_back(plan: list[MergeOperation], top: int, slots: int) -> list[str]:
    """Undo every operation that was done; the paths that somebody else changed since."""
    left: list[str] = []
    for operation in reversed(plan):
        try:
            with spot_beneath(top, operation.path) as spot:
                if not _undo(operation, spot, top, slots):
                    left.append(operation.path)
        except FileNotFoundError:
            pass  # its folder was never made
        except PathProblem:  # a file where its folder was to be made, unless it had been done
            if _is_done(operation, slots):
                left.append(operation.path)
    return left


def _is_done(operation: MergeOperation, slots: int) -> bool:
    """Whether a file was put or removed, by what is in its slot."""
    if operation.kind == "put":
        return _inode(slots, operation.slot) != operation.inode
    return operation.kind == "remove" and _exists(slots, operation.slot)


def _undo(operation: MergeOperation, spot: Spot, top: int, slots: int) -> bool:
    here = spot.status()
    if operation.kind == "make_folder":
        try:
            os.rmdir(spot.name, dir_fd=spot.folder)
        except OSError:
            pass  # never made, or somebody put something into it
        return True
    if operation.kind == "remove_folder":
        return here is not None or _make_again(operation, spot, slots)
    if operation.kind == "remove":
        if not _exists(slots, operation.slot):
            return True
        return _put_back(slots, operation.slot, spot)
    return _undo_put(operation, spot, here, top, slots)


def _make_again(operation: MergeOperation, spot: Spot, slots: int) -> bool:
    """Put a folder back that was removed: made ready elsewhere, it is there as it was, or not at all."""
    mode, user, group = operation.manner or (0o777 & ~umask(), -1, -1)
    try:
        os.mkdir(operation.slot, dir_fd=slots)
    except FileExistsError:
        pass  # by a recovery that was interrupted
    if os.geteuid() == 0:
        os.chown(operation.slot, user, group, dir_fd=slots)
    os.chmod(operation.slot, mode, dir_fd=slots)
    return _put_back(slots, operation.slot, spot)


def _undo_put(
    operation: MergeOperation, spot: Spot, here: os.stat_result | None, top: int, slots: int
) -> bool:
    ours = here is not None and here.st_ino == operation.inode
    if operation.before is None:
        if not ours:
            return _exists(slots, operation.slot) or here is None  # not put yet, or taken away since
        if state_at(top, operation.path) != operation.after:
            return False
        _move(spot.folder, spot.name, slots, operation.slot)
        return True
    if _exists(slots, operation.slot + ".old"):  # moved away first, because it could not be exchanged
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
    syscalls.renameat2(slots, operation.slot, spot.folder, spot.name, syscalls.RENAME_EXCHANGE)
    return True


def _put_back(slots: int, slot: str, spot: Spot) -> bool:
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
