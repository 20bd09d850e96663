"""Walking a tree: what is there, without following a link and without being led out.

Rules
* Each folder is opened from the handle of the one above it. What is swapped meanwhile is either seen or not.
* Names decide what is kept (see `ignored`): git is asked once for everything. Where a manifest is there to
  compare with, `rescan` asks about new names only.
* Limits hold while walking: a tree that is too large is refused by the name of what was too much.
"""

from __future__ import annotations

import os
import stat
import time
from typing import Literal, TypeAlias

import msgspec

from fanfold.errors import WorldError
from fanfold.kernel.sets.protected import plain_name
from fanfold.workspace.files.beneath import PathProblem, open_folder
from fanfold.workspace.files.ignored import CACHES, DEPENDENCIES, MARKS, GitView, Ignoring, is_built
from fanfold.workspace.files.layout import OWN_FOLDER
from fanfold.workspace.files.manifest import GRAIN_NS, FileEntry, Manifest, clock_ns, left_out_name

_MARKED = frozenset(MARKS)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class SnapshotLimits(msgspec.Struct, frozen=True):
    """How large a snapshot may be."""

    max_files: int = 200_000
    max_bytes: int = 8 * 1024**3
    max_file_bytes: int = 2 * 1024**3
    max_depth: int = 100
    max_path_bytes: int = 3_000


_Place: TypeAlias = Literal["keep", "leave", "point"]


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
    def __init__(self, rules: _Asked, limits: SnapshotLimits, tracked: set[str], asked_ns: int) -> None:
        self.found = Manifest()
        self.found.taken_ns, self.found.clock_ns = time.time_ns(), clock_ns()
        self._rules = rules
        self._limits = limits
        self._tracked = tracked
        self._asked_ns = asked_ns
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
                    self.found.left_out.add(where + "/")
            elif self._rules.keeps_file(where):
                self._file(entry, where)
            else:
                self._leave_out(entry, where)
        for name in below:
            self._enter(handle, name, prefix + name, depth)

    def _leave_out(self, entry: os.DirEntry[str], where: str) -> None:
        """Git did not name a file. One that came after git was asked is not remembered as ignored."""
        status = entry_of(entry)
        if status is not None and status.ctime_ns < self._asked_ns - GRAIN_NS:
            self.found.left_out.add(left_out_name(where, status.mode))

    def _is_marked(self, path: str, names: list[str]) -> bool:
        """Whether a tool says that it made this folder, and git does not say otherwise."""
        marks = [mark for mark in MARKS if mark in names and f"{path}/{mark}" not in self._tracked]
        if not marks:
            return False
        self.found.folders.discard(path)
        self.found.marked[path] = marks[0]
        if MARKS[marks[0]]:
            self.found.points[path] = True
        else:
            self.found.left_out.add(path + "/")
        return True

    def _is_own(self, entry: os.DirEntry[str], where: str, depth: int) -> bool:
        """Whether this is git's or ours; it is bound in from the parent, and no part of the tree."""
        if entry.name == ".gitignore":
            self.found.rules[where] = entry_of(entry)
        plain = plain_name(entry.name)
        if plain != ".git" and (depth or plain != OWN_FOLDER):
            return False
        if entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False):
            self.found.points[where] = entry.is_dir(follow_symlinks=False)
        else:
            self.found.left_out.add(where + "//")
        return True

    def _file(self, entry: os.DirEntry[str], where: str) -> None:
        status = entry_of(entry)
        if status is None:
            return  # gone since it was listed
        if not (stat.S_ISREG(status.mode) or stat.S_ISLNK(status.mode)):
            self.found.left_out.add(where + "//")  # a pipe, a socket, a device: nothing to copy
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


def scan_asking(top: int, ignoring: Ignoring, limits: SnapshotLimits) -> Manifest:
    """The tree as it is now, with git asked what belongs to it."""
    outside = ignoring.sources()
    asked_ns = time.time_ns()
    belonging = ignoring.ask()
    rules = _Asked(belonging, ignoring.has_git())
    walk = _ScanWalk(rules, limits, belonging.tracked, asked_ns)
    walk.folder(top, "", 0)
    while rules.doubtful:
        asked, rules.doubtful = rules.doubtful, []
        nested = [point.removesuffix("/.git") for point in walk.found.points if point.endswith("/.git")]
        ignored = ignoring.ignored([path + "/" for path in asked], nested)
        for path in asked:
            if path + "/" in ignored:
                continue
            walk.found.left_out.discard(path + "/")
            rules.allowed.add(path)
            _walk_into(walk, top, path)
    walk.found.rules |= outside
    return walk.found


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


def entry_of(entry: os.DirEntry[str]) -> FileEntry | None:
    """What is there now; None when it is gone."""
    try:
        return FileEntry.of(entry.stat(follow_symlinks=False))
    except FileNotFoundError:
        return None


def _too_much(code: str, where: str, why: str) -> WorldError:
    hint = "have .gitignore name what no step needs, or run the step in the shared workspace"
    message = f'the workspace cannot be copied for a step: "{where}": {why}'
    return WorldError(f"workspace.too_{code}", message, hint=hint, details={"path": where})
