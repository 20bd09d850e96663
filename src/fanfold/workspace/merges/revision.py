"""A revision: what a child made of its base, path by path, with where the content is to be had.

A state is git's mode and hash, so a revision can be compared, merged, kept as a proposal and applied later
without its child. Content comes from the child's tree while there is one, else from the private store.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

import msgspec

from fanfold.errors import WorldError
from fanfold.workspace.files.beneath import PathProblem, open_folder, spot_beneath
from fanfold.workspace.files.manifest import OpenLayers, git_mode
from fanfold.workspace.merges.objects import FileState, Objects, hash_bytes, hash_file
from fanfold.workspace.snapshots.changes import Change

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
CHUNK = 1024 * 1024


class Revised(msgspec.Struct, frozen=True):
    """One path before and after; None where there is nothing."""

    path: str
    before: FileState | None
    after: FileState | None


class Revision(msgspec.Struct, frozen=True):
    """Everything a child changed."""

    files: tuple[Revised, ...]
    folders_made: tuple[str, ...] = ()
    """Empty folders that are there afterwards: new ones, and those that lost their last file."""
    folders_gone: tuple[str, ...] = ()


class Content(Protocol):
    """Where the bytes of a state are."""

    def stage(self, path: str, state: FileState, folder: int, name: str, /) -> None:
        """Write the content as a new file or link into an open folder; raises when it is not that content."""
        ...

    def keep(self, path: str, state: FileState, objects: Objects, /, most: int | None = None) -> None:
        """See that the store has it, unless it holds more bytes than `most`."""
        ...


def state_at(top: int, path: str) -> FileState | None:
    """What is at a path beneath an open tree; None for nothing, a folder, or something special."""
    try:
        with spot_beneath(top, path) as spot:
            status = spot.status()
            if status is None:
                return None
            if stat.S_ISLNK(status.st_mode):
                target = os.readlink(spot.name, dir_fd=spot.folder)
                return FileState(0o120000, hash_bytes(os.fsencode(target)))
            if not stat.S_ISREG(status.st_mode):
                return None
            handle = os.open(spot.name, _READ, dir_fd=spot.folder)
            try:
                return FileState(git_mode(os.fstat(handle).st_mode), hash_file(handle))
            finally:
                os.close(handle)
    except (FileNotFoundError, PathProblem):
        return None


def revise(changes: Iterable[Change], base: OpenLayers, child: int) -> Revision:
    """The revision that these changes are, from their base and the open tree they were made in."""
    files: list[Revised] = []
    made: set[str] = set()
    gone: set[str] = set()
    for change in changes:
        if change.kind == "deleted":
            kept = _nearest(child, change.path, gone)
            if kept and _is_empty(child, kept):
                made.add(kept)
        if change.what == "folder":
            (made if change.kind == "added" else gone).add(change.path)
            continue
        before = state_at(base.at(change.path), change.path) if change.kind != "added" else None
        after = state_at(child, change.path) if change.kind != "deleted" else None
        if change.kind != "deleted" and after is None:
            raise _moving(change.path)
        files.append(Revised(change.path, before, after))
    return Revision(tuple(files), tuple(sorted(made)), tuple(sorted(gone)))


def _nearest(tree: int, path: str, gone: set[str]) -> str:
    """The nearest folder around a path that an open tree still has; those it has not are added to `gone`."""
    folder = path.rpartition("/")[0]
    while folder and folder not in gone:
        with suppress(FileNotFoundError, PathProblem):
            os.close(open_folder(tree, folder))
            return folder
        gone.add(folder)
        folder = folder.rpartition("/")[0]
    return ""


def _is_empty(tree: int, path: str) -> bool:
    handle = open_folder(tree, path)
    try:
        with os.scandir(handle) as entries:
            return next(entries, None) is None
    finally:
        os.close(handle)


class TreeContent:
    """Content in an open tree: a child's, or the parent's."""

    def __init__(self, tree: int) -> None:
        self._tree = tree

    def _at(self, _path: str) -> int:
        return self._tree

    def stage(self, path: str, state: FileState, folder: int, name: str) -> None:
        with spot_beneath(self._at(path), path) as spot:
            if state.mode == 0o120000:
                target = os.readlink(spot.name, dir_fd=spot.folder)
                if hash_bytes(os.fsencode(target)) != state.oid:
                    raise _moving(path)
                os.symlink(target, name, dir_fd=folder)
                return
            handle = os.open(spot.name, _READ, dir_fd=spot.folder)
            try:
                made = os.open(name, os.O_RDWR | _MAKE & ~os.O_WRONLY, 0o600, dir_fd=folder)
                try:
                    while data := os.read(handle, CHUNK):
                        _write(made, data)
                    if hash_file(made) != state.oid:
                        raise _moving(path)
                finally:
                    os.close(made)
            finally:
                os.close(handle)

    def keep(self, path: str, state: FileState, objects: Objects, most: int | None = None) -> None:
        with spot_beneath(self._at(path), path) as spot:
            if state.mode == 0o120000:
                kept = objects.put("blob", os.fsencode(os.readlink(spot.name, dir_fd=spot.folder)))
            else:
                handle = os.open(spot.name, _READ, dir_fd=spot.folder)
                try:
                    if most is not None and os.fstat(handle).st_size > most:
                        return
                    kept = objects.put_file(handle)
                finally:
                    os.close(handle)
        if kept != state.oid:
            raise _moving(path)


class LayeredContent(TreeContent):
    """Content in a base."""

    def __init__(self, base: OpenLayers) -> None:
        self._base = base

    def _at(self, path: str) -> int:
        return self._base.at(path)


class StoredContent:
    """Content in the private store."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def stage(self, _path: str, state: FileState, folder: int, name: str) -> None:
        data = self._objects.get(state.oid)
        if state.mode == 0o120000:
            os.symlink(os.fsdecode(data), name, dir_fd=folder)
            return
        made = os.open(name, _MAKE, 0o600, dir_fd=folder)
        try:
            _write(made, data)
        finally:
            os.close(made)

    def keep(self, _path: str, state: FileState, objects: Objects, most: int | None = None) -> None:
        if most is None:
            objects.get(state.oid)  # it is there already; reading it proves that it is whole


def _write(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def _moving(path: str) -> WorldError:
    hint = "something of the step is still running"
    return WorldError("workspace.changing", f'"{path}" changes while it is merged', hint=hint)
