"""What a child really changed, and what of it was not its to change.

Rules
* A change is a difference in content, in being a program, in kind or in existence; touching a file is none.
  Empty folders count, since programs look for them.
* What the project ignores, and what tools keep for themselves (dependency folders, caches), is no change: it
  was not in the snapshot and does not come back. Except an ignored file that the write-set asks for
  (`leaving`); of the others it is known that they were left out.
* Whatever the write-set says, these are violations: anything of git's, ours or of agents' (`protected`),
  under its name or where a link of that name leads, links that lead out of the workspace, pipes, sockets
  and devices, and names that are not text.
* Time is spent on what was touched: an overlay's layer lists it, a copy is compared by inodes and times.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Literal

import msgspec

from fanfold.kernel.paths import matches
from fanfold.kernel.sets.protected import LEFTOVER, holds_protected, is_protected, leads_out, plain_name
from fanfold.workspace.files.beneath import PathProblem, is_folder, open_folder
from fanfold.workspace.files.copies import same_content
from fanfold.workspace.files.ignored import CACHES, DEPENDENCIES, Ignoring
from fanfold.workspace.files.manifest import FileEntry, Manifest, OpenLayers, git_mode
from fanfold.workspace.snapshots.declared import asked_for
from fanfold.workspace.snapshots.linked import behind_links, link_at
from fanfold.workspace.snapshots.overlay import is_rewritten

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_DEPTH = 200


class Change(msgspec.Struct, frozen=True, order=True):
    """One path that differs from the base. `mode` and `before` are git's modes, 0 where there is nothing."""

    path: str
    kind: Literal["added", "modified", "deleted"]
    what: Literal["file", "link", "folder", "special"] = "file"
    mode: int = 0
    before: int = 0
    target: str = ""
    """Where a link points."""


class WriteViolation(msgspec.Struct, frozen=True, order=True):
    """A change that was not the step's to make, and why."""

    path: str
    why: Literal["outside_write_set", "read_only", "protected", "special_file", "leads_out", "bad_name"]


class FoundChanges(msgspec.Struct, frozen=True):
    """What a child changed, and what became of the new files in it that the project ignores."""

    changes: list[Change]
    asked: frozenset[str] = frozenset()
    """Ignored files that are changes all the same, because the write-set asks for them."""
    left_out: tuple[str, ...] = ()
    """Those that are none."""


def violations(
    changes: Iterable[Change], write_set: Sequence[str] | None, tree: int | None = None
) -> list[WriteViolation]:
    """What of these changes must not be merged. No write-set (None) allows everything, an empty one nothing.
    `tree` is the open folder they were made in: links are followed through what is there.

    >>> violations([Change("src/a.py", "added"), Change("README.md", "deleted")], ["src/**"])
    [Violation(path='README.md', why='outside_write_set')]
    """
    found: list[WriteViolation] = []
    changes = list(changes)
    linked = behind_links(tree) if tree is not None and changes else ()
    for change in changes:
        why = _never(change, tree, linked)
        if why is None and write_set is not None:
            if not write_set:
                why = "read_only"
            elif not matches(write_set, change.path):
                why = "outside_write_set"
        if why is not None:
            found.append(WriteViolation(change.path, why))
    return found


def _never(
    change: Change, tree: int | None, linked: Sequence[str]
) -> Literal["outside_write_set", "read_only", "protected", "special_file", "leads_out", "bad_name"] | None:
    if is_protected(change.path) or any(f"{change.path}/".startswith(f"{one}/") for one in linked):
        return "protected"
    if change.what == "special":
        return "special_file"
    if change.what == "link" and change.kind != "deleted":
        if holds_protected(change.path):
            return "protected"
        links = partial(link_at, tree)
        if leads_out(change.path, change.target, links):
            return "leads_out"
    try:
        change.path.encode()
    except UnicodeEncodeError:
        return "bad_name"
    return None


class Touched:
    """What may differ: single paths, folders that are new, and trees to be compared whole."""

    def __init__(self, known: Manifest) -> None:
        self.known = known
        self.paths: set[str] = set()
        self.folders: set[str] = set()
        self.trees: set[str] = set()
        self.hollow: set[str] = set()
        """Folders in those trees that were empty in the base."""

    def own(self, name: str, path: str) -> bool:
        """Whether a folder is a tool's: whatever is inside is no change."""
        return (name in DEPENDENCIES or name in CACHES) and path not in self.known.folders

    def layer(self, upper: int) -> None:
        """Take in an open upper layer of an overlay: everything in it was touched."""
        self._walk(upper, None, "", 0)

    def compare(self, handle: int, was: dict[str, FileEntry], path: str = "", depth: int = 0) -> None:
        """Take in an open folder of a copied child, whose files were `was` when it was made."""
        self._walk(handle, was, path, depth)

    def _walk(self, handle: int, was: dict[str, FileEntry] | None, path: str, depth: int) -> None:
        prefix = path + "/" if path else ""
        with os.scandir(handle) as listing:
            entries = list(listing)
        for entry in entries:
            where = prefix + entry.name
            if not entry.is_dir(follow_symlinks=False):
                if was is None or FileEntry.of(entry.stat(follow_symlinks=False)) != was.get(where):
                    self.paths.add(where)
                if was is None and where in self.known.folders:
                    self.trees.add(where)  # deleted, or a file by now
                continue
            if self.own(entry.name, where):
                continue
            below = os.open(entry.name, _FOLDER, dir_fd=handle)
            try:
                if _is_closed(where):
                    if os.listdir(below):
                        self.paths.add(where)
                    continue
                if where not in self.known.folders:
                    self.folders.add(where)
                    self.paths.add(where)  # a file of the base may have become this folder
                if was is None and is_rewritten(below):
                    self.trees.add(where)
                elif depth < MAX_DEPTH:
                    self._walk(below, was, where, depth + 1)
            finally:
                os.close(below)

    def missing(self, top: int) -> None:
        """Add what the base has and an open copied child has not."""
        seen: dict[str, set[str]] = {}
        for path in self.known.files:
            folder, _, name = path.rpartition("/")
            if folder not in seen:
                seen[folder] = _names(top, folder)
            if name not in seen[folder]:
                self.paths.add(path)
        for folder in self.known.folders:
            parent, _, name = folder.rpartition("/")
            if parent not in seen:
                seen[parent] = _names(top, parent)
            if name not in seen[parent]:
                self.trees.add(folder)

    def expand(self, child: int) -> None:
        """Replace trees by every path the base or the child, an open tree, has in them."""
        if self.trees:
            self._take_whole()
        for tree in self.trees:
            try:
                handle = open_folder(child, tree)
            except (FileNotFoundError, PathProblem):
                self.paths.add(tree)
                continue
            try:
                self.compare(handle, {}, tree, 1)
            finally:
                os.close(handle)

    def _take_whole(self) -> None:
        """Take in what the base has in these trees."""
        known = self.known
        self.paths.update(path for path in known.files if self._is_inside(path))
        inside = {path for path in known.folders if path in self.trees or self._is_inside(path)}
        used = {path.rpartition("/")[0] for path in (*known.files, *known.folders)}
        self.hollow |= inside - used

    def _is_inside(self, path: str) -> bool:
        """Whether a path lies in one of the trees."""
        at = path.rfind("/")
        while at > 0:
            if path[:at] in self.trees:
                return True
            at = path.rfind("/", 0, at)
        return False


def judge(
    touched: Touched, base: OpenLayers, child: int, ignoring: Ignoring, write_set: Sequence[str] = ()
) -> FoundChanges:
    """The changes among what was touched; `child` is an open tree."""
    touched.expand(child)
    found: list[Change] = []
    for path in touched.paths:
        change = _judge(path, touched.known, base, child)
        if change is not None and not (change.kind == "added" and LEFTOVER.match(path.rpartition("/")[2])):
            found.append(change)
    found += _folders(touched, child)
    new = [
        change.path + ("/" if change.what == "folder" else "") for change in found if change.kind == "added"
    ]
    if not new:
        return FoundChanges(sorted(found))
    nested = [point.removesuffix("/.git") for point in touched.known.points if point.endswith("/.git")]
    names = ignoring.ignored(new, nested)
    ignored = [
        change
        for change in found
        if change.kind == "added"
        and (change.path in names or change.path + "/" in names)
        and not is_protected(change.path)
    ]
    files = [change.path for change in ignored if change.what in ("file", "link")]
    asked = asked_for(files, write_set, ignoring, nested) if files and write_set else set()
    dropped = {change.path for change in ignored} - asked
    kept = sorted(change for change in found if change.path not in dropped)
    return FoundChanges(kept, frozenset(asked), tuple(sorted(set(files) - asked)))


def _judge(path: str, known: Manifest, base: OpenLayers, child: int) -> Change | None:
    before = known.files.get(path)
    was = before.git_mode if before else 0
    folder, _, name = path.rpartition("/")
    try:
        theirs = open_folder(child, folder)
    except (FileNotFoundError, PathProblem):
        return _deleted(path, was)
    try:
        try:
            now = os.stat(name, dir_fd=theirs, follow_symlinks=False)
        except FileNotFoundError:
            return _deleted(path, was)
        if stat.S_ISDIR(now.st_mode):
            if _is_closed(path):
                return Change(path, "modified", "special")
            return _deleted(path, was)
        kind: Literal["added", "modified"] = "modified" if was else "added"
        if stat.S_ISLNK(now.st_mode):
            change = Change(path, kind, "link", 0o120000, was, os.readlink(name, dir_fd=theirs))
        elif stat.S_ISREG(now.st_mode):
            change = Change(path, kind, "file", git_mode(now.st_mode), was)
        else:
            return Change(path, kind, "special", 0, was)
        if was:
            ours = open_folder(base.at(path), folder)
            try:
                return None if same_content(ours, theirs, name) else change
            finally:
                os.close(ours)
        return change
    finally:
        os.close(theirs)


def _is_closed(path: str) -> bool:
    """Whether a folder is git's or ours: reported as one thing, whatever is in it."""
    return plain_name(path.rpartition("/")[2]) == ".git" or plain_name(path) == ".fanfold"


def _deleted(path: str, was: int) -> Change | None:
    return Change(path, "deleted", "link" if was == 0o120000 else "file", 0, was) if was else None


def _folders(touched: Touched, child: int) -> list[Change]:
    """Empty folders that came, and folders that were empty and went."""
    found = [Change(path, "added", "folder") for path in touched.folders if not _names(child, path, "x")]
    gone = (path for path in touched.hollow if not is_folder(child, path))
    return found + [Change(path, "deleted", "folder") for path in gone]


def _names(top: int, folder: str, otherwise: str = "") -> set[str]:
    try:
        handle = open_folder(top, folder)
    except (OSError, PathProblem):
        return {otherwise} if otherwise else set()
    try:
        return set(os.listdir(handle))
    finally:
        os.close(handle)
