"""Walking a tree: what is there, without following a link and without being led out.

Rules
* Each folder is opened from the handle of the one above it. What is swapped meanwhile is either seen or not.
* Names decide what is kept (see `ignoring`). With a manifest to compare with, names it knows need no asking;
  the first unknown name ends that walk, and git is asked once for everything.
* Limits hold while walking: a tree that is too large is refused by the name of what was too much.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import msgspec

from fanfold.errors import WorldError
from fanfold.kernel.sets.protected import plain_name
from fanfold.workspace.files.beneath import PathProblem, open_folder, open_top
from fanfold.workspace.files.ignored import CACHES, DEPENDENCIES, MARKS, GitView, Ignoring, is_built
from fanfold.workspace.files.layout import OWN_FOLDER
from fanfold.workspace.files.manifest import GRAIN_NS, FileEntry, Manifest

_MARKED = frozenset(MARKS)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class SnapshotLimits(msgspec.Struct, frozen=True):
    """How large a snapshot may be."""

    max_files: int = 200_000
    max_bytes: int = 8 * 1024**3
    max_file_bytes: int = 2 * 1024**3
    max_depth: int = 100
    max_path_bytes: int = 3_000


class UnknownName(Exception):  # a signal between two functions of this module
    """A walk by memory met something new."""


_Place: TypeAlias = Literal["keep", "leave", "point"]


class _Rules(Protocol):
    def keeps_file(self, path: str) -> bool: ...
    def place_of(self, path: str, name: str, beside: list[str], /) -> _Place: ...


class _Remembered:
    """Decides as the last manifest did."""

    def __init__(self, known: Manifest) -> None:
        self._known = known

    def keeps_file(self, path: str) -> bool:
        if path in self._known.files:
            return True
        if path in self._known.left_out:
            return False
        raise UnknownName

    def place_of(self, path: str, _name: str, _beside: list[str]) -> _Place:
        if path in self._known.folders:
            return "keep"
        if path in self._known.left_out:
            return "leave"
        if path in self._known.points:
            return "point"
        raise UnknownName


class _Asked:
    """Decides by what git said; folders that git does not mention are doubtful."""

    def __init__(self, belonging: GitView, in_git: bool) -> None:
        self._belonging = belonging
        self._in_git = in_git
        self.allowed: set[str] = set()
        self.doubtful: list[str] = []

    def keeps_file(self, path: str) -> bool:
        return self._belonging.holds(path)

    def place_of(self, path: str, name: str, beside: list[str]) -> _Place:
        if not self._in_git and is_built(name, beside):
            return "leave"
        if path in self._belonging.folders or path in self.allowed:
            return "keep"
        if name in DEPENDENCIES:
            return "point"
        if name not in CACHES:
            self.doubtful.append(path)
        return "leave"


class _ScanWalk:
    def __init__(self, rules: _Rules, limits: SnapshotLimits, tracked: set[str]) -> None:
        self.found = Manifest()
        self.found.taken_ns = time.time_ns()
        self._rules = rules
        self._limits = limits
        self._tracked = tracked
        self._bytes = 0

    def folder(self, handle: int, path: str, depth: int) -> None:
        """Take in one open folder and everything below it."""
        if depth > self._limits.max_depth:
            raise _too_much("deep", path, f"folders nest deeper than {self._limits.max_depth}")
        with os.scandir(handle) as listing:
            entries = list(listing)
        names = [entry.name for entry in entries]
        if depth and not _MARKED.isdisjoint(names) and self._is_marked(path, names):
            return
        prefix = path + "/" if path else ""
        below: list[str] = []
        for entry in entries:
            name = entry.name
            where = prefix + name
            if (name[0] == "." or "~" in name) and self._is_own(entry, where, depth):
                continue
            if entry.is_dir(follow_symlinks=False):
                place = self._rules.place_of(where, name, names)
                if place == "keep":
                    below.append(name)
                elif place == "point":
                    self.found.points[where] = True
                else:
                    self.found.left_out.add(where)
            elif self._rules.keeps_file(where):
                self._file(entry, where)
            else:
                self.found.left_out.add(where)
        for name in below:
            self._enter(handle, name, prefix + name, depth)

    def _is_marked(self, path: str, names: list[str]) -> bool:
        """Whether a tool says that it made this folder, and git does not say otherwise."""
        marks = [mark for mark in MARKS if mark in names and f"{path}/{mark}" not in self._tracked]
        if not marks:
            return False
        self.found.folders.discard(path)
        if MARKS[marks[0]]:
            self.found.points[path] = True
        else:
            self.found.left_out.add(path)
        return True

    def _is_own(self, entry: os.DirEntry[str], where: str, depth: int) -> bool:
        """Whether this is git's or ours; it is bound in from the parent, and no part of the tree."""
        if entry.name == ".gitignore":
            self.found.rules[where] = _entry_of(entry)
        plain = plain_name(entry.name)
        if plain != ".git" and (depth or plain != OWN_FOLDER):
            return False
        if entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False):
            self.found.points[where] = entry.is_dir(follow_symlinks=False)
        return True

    def _file(self, entry: os.DirEntry[str], where: str) -> None:
        status = _entry_of(entry)
        if status is None:
            return  # gone since it was listed
        if not (stat.S_ISREG(status.mode) or stat.S_ISLNK(status.mode)):
            self.found.left_out.add(where)  # a pipe, a socket, a device: nothing to copy
            return
        limits = self._limits
        self._bytes += status.size
        self.found.files[where] = status
        if status.size > limits.max_file_bytes:
            raise _too_much("large", where, f"{status.size:,} bytes, at most {limits.max_file_bytes:,}")
        if len(where) * 4 > limits.max_path_bytes and len(os.fsencode(where)) > limits.max_path_bytes:
            raise _too_much(
                "long", where[:80] + "…", f"its path is over {limits.max_path_bytes:,} bytes long"
            )
        if self._bytes > limits.max_bytes:
            raise _too_much("large", where, f"the files up to here have over {limits.max_bytes:,} bytes")
        if len(self.found.files) > limits.max_files:
            raise _too_much("many", where, f"there are over {limits.max_files:,} files")

    def _enter(self, handle: int, name: str, where: str, depth: int) -> None:
        try:
            below = os.open(name, _FOLDER, dir_fd=handle)
        except (FileNotFoundError, NotADirectoryError):
            return  # gone or replaced since it was listed
        except OSError as error:
            hint = "make it readable, or have .gitignore name it"
            message = f'"{where}" cannot be read: {error.strerror}'
            raise WorldError("workspace.unreadable", message, hint=hint) from error
        self.found.folders.add(where)
        try:
            self.folder(below, where, depth + 1)
        finally:
            os.close(below)


def is_still(top: int, known: Manifest, ignoring: Ignoring) -> bool:
    """Whether the tree is certainly what the manifest says. Made for speed: the usual answer is yes."""
    if any(known.rules.get(name) != entry for name, entry in ignoring.sources().items()):
        return False
    files, folders, left_out, points = known.files, known.folders, known.left_out, known.points
    settled_ns = known.taken_ns - GRAIN_NS
    seen = 0

    def same(handle: int, prefix: str) -> bool:
        nonlocal seen
        below: list[str] = []
        with os.scandir(handle) as listing:
            for entry in listing:
                where = prefix + entry.name
                before = files.get(where)
                if before is not None:
                    now = entry.stat(follow_symlinks=False)
                    times = (now.st_mtime_ns, now.st_ctime_ns, now.st_ino)
                    if (now.st_mode, now.st_size, *times) != before or before[3] >= settled_ns:
                        return False
                    seen += 1
                elif where in folders:
                    below.append(entry.name)
                elif (where not in left_out and where not in points) or (
                    entry.name == ".gitignore" and _entry_of(entry) != known.rules.get(where)
                ):
                    return False
        seen += len(below)
        for name in below:
            inner = os.open(name, _FOLDER, dir_fd=handle)
            try:
                if not same(inner, f"{prefix}{name}/"):
                    return False
            finally:
                os.close(inner)
        return True

    try:
        return same(top, "") and seen == len(files) + len(folders)
    except OSError:
        return False  # something moved while we looked; the careful walk will say what


def scan_known(top: int, known: Manifest, ignoring: Ignoring, limits: SnapshotLimits) -> Manifest | None:
    """The tree as it is now, by the names a manifest knows; None when git has to be asked."""
    outside = ignoring.sources()
    if any(known.rules.get(name) != entry for name, entry in outside.items()):
        return None
    walk = _ScanWalk(
        _Remembered(known), limits, {path for path in known.files if path.endswith(tuple(_MARKED))}
    )
    try:
        walk.folder(top, "", 0)
    except UnknownName:
        return None
    walk.found.rules |= outside
    return walk.found if walk.found.rules == known.rules else None


def scan_asking(top: int, ignoring: Ignoring, limits: SnapshotLimits) -> Manifest:
    """The tree as it is now, with git asked what belongs to it."""
    outside = ignoring.sources()
    belonging = ignoring.ask()
    rules = _Asked(belonging, ignoring.has_git())
    walk = _ScanWalk(rules, limits, belonging.tracked)
    walk.folder(top, "", 0)
    while rules.doubtful:
        asked, rules.doubtful = rules.doubtful, []
        nested = [point.removesuffix("/.git") for point in walk.found.points if point.endswith("/.git")]
        ignored = ignoring.ignored([path + "/" for path in asked], nested)
        for path in asked:
            if path + "/" in ignored:
                continue
            walk.found.left_out.discard(path)
            rules.allowed.add(path)
            _walk_into(walk, top, path)
    walk.found.rules |= outside
    return walk.found


def look(folder: Path, known: Manifest | None, ignoring: Ignoring, limits: SnapshotLimits) -> Manifest:
    """A tree as it is now, by the names a manifest knows where they are enough."""
    top = open_top(folder)
    try:
        now = scan_known(top, known, ignoring, limits) if known else None
        return now or scan_asking(top, ignoring, limits)
    finally:
        os.close(top)


def _walk_into(walk: _ScanWalk, top: int, path: str) -> None:
    try:
        handle = open_folder(top, path)
    except (FileNotFoundError, PathProblem):
        return
    walk.found.folders.add(path)
    try:
        walk.folder(handle, path, path.count("/") + 1)
    finally:
        os.close(handle)


def _entry_of(entry: os.DirEntry[str]) -> FileEntry | None:
    try:
        return FileEntry.of(entry.stat(follow_symlinks=False))
    except FileNotFoundError:
        return None


def _too_much(code: str, where: str, why: str) -> WorldError:
    hint = "have .gitignore name what no step needs, or run the step in the shared workspace"
    message = f'the workspace cannot be copied for a step: "{where}": {why}'
    return WorldError(f"workspace.too_{code}", message, hint=hint, details={"path": where})
