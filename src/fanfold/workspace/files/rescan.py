"""Walking a tree again: what is different from a manifest, found in one walk that asks about new names only.

Rules
* Every file is looked at. What a name meant before it means again, as long as nothing changed that decides
  about names: rules, marks, repositories inside, what stands where a folder stood.
* Git is asked about new names, and only about those. Where one of them could change what others mean, or a
  limit is near, there is *doubt*: then the whole tree is scanned as if nothing were known.
* A file is doubtful when its entry is another one, or is not settled; who has its earlier content compares.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

from fanfold.kernel.sets.protected import plain_name
from fanfold.workspace.files.beneath import open_top
from fanfold.workspace.files.ignored import BUILT, CACHES, DEPENDENCIES, MAKERS, MARKS, Ignoring
from fanfold.workspace.files.layout import OWN_FOLDER
from fanfold.workspace.files.manifest import FileEntry, Manifest, clock_ns, left_out_name
from fanfold.workspace.files.scan import SnapshotLimits, entry_of, scan_asking

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TOOLS = DEPENDENCIES | CACHES
_TELLING = frozenset({".gitignore", *MARKS, *MAKERS})
"""Files whose coming or going changes what other names mean."""


class _Doubt(Exception):  # a signal between the functions of this module
    """What is known is not enough to say what belongs to the tree."""


class Rescan:
    """What a tree is now, beside what it was: the very manifest that was given when nothing is different."""

    def __init__(self, now: Manifest, differs: set[str]) -> None:
        self.now = now
        self.differs = differs
        """New files, and known ones whose entry is another one or not settled."""


class _Rewalk:
    def __init__(self, known: Manifest, max_depth: int) -> None:
        self.known = known
        self.max_depth = max_depth
        self.settled_ns = known.settled_ns()
        self.taken_ns, self.clock_ns = time.time_ns(), clock_ns()
        self.entries: dict[str, FileEntry] = {}
        """Of files that differ, and of new ones."""
        self.new_files: dict[str, FileEntry] = {}
        self.new_folders: list[str] = []
        self.files: list[str] = []
        self.folders: list[str] = []
        self.others: set[str] = set()
        """What was left out or bound in, and still is there."""

    def folder(self, handle: int, prefix: str) -> None:
        """Look at an open folder that is known, and at everything below it."""
        files, folders, settled_ns = self.known.files, self.known.folders, self.settled_ns
        seen = self.files
        below: list[str] = []
        with os.scandir(handle) as listing:
            for entry in listing:
                where = prefix + entry.name
                before = files.get(where)
                if before is not None:
                    now = entry.stat(follow_symlinks=False)
                    times = (now.st_mtime_ns, now.st_ctime_ns, now.st_ino)
                    if (now.st_mode, now.st_size, *times) != before or before[3] >= settled_ns:
                        self._differs(where, entry.name, now)
                    seen.append(where)
                elif where in folders:
                    below.append(entry.name)
                else:
                    self._other(handle, entry, where, prefix)
        self.folders += [prefix + name for name in below]
        for name in below:
            self._enter(handle, name, f"{prefix}{name}/")

    def _enter(self, handle: int, name: str, prefix: str) -> None:
        inner = os.open(name, _FOLDER, dir_fd=handle)
        try:
            self.folder(inner, prefix)
        finally:
            os.close(inner)

    def _differs(self, where: str, name: str, now: os.stat_result) -> None:
        if name == ".gitignore" or not (stat.S_ISREG(now.st_mode) or stat.S_ISLNK(now.st_mode)):
            raise _Doubt
        self.entries[where] = FileEntry.of(now)

    def _other(self, handle: int, entry: os.DirEntry[str], where: str, prefix: str) -> None:
        """Something that is no file and no folder of the known tree."""
        name, known = entry.name, self.known
        is_folder = entry.is_dir(follow_symlinks=False)
        is_file = entry.is_file(follow_symlinks=False)
        if where in known.points and (is_file or is_folder) and known.points[where] is is_folder:
            self.others.add(where)
            return
        plain = plain_name(name) if name[0] == "." or "~" in name else name
        own = plain == ".git" or (not prefix and plain == OWN_FOLDER)
        kept = is_file or (entry.is_symlink() and not own)
        left = where + ("/" if is_folder else "" if kept else "//")
        if left in known.left_out:
            if name == ".gitignore" and entry_of(entry) != known.rules.get(where):
                raise _Doubt
            self.others.add(left)
        elif own or name in _TELLING:
            raise _Doubt
        elif is_folder:
            self._new_folder(handle, name, where)
        elif (status := entry_of(entry)) is not None:
            self.new_files[where] = status

    def _new_folder(self, handle: int, name: str, where: str) -> None:
        if name in _TOOLS or name in BUILT or where.count("/") >= self.max_depth:
            raise _Doubt
        self.new_folders.append(where)
        self._enter(handle, name, where + "/")


def rescan(top: int, known: Manifest, ignoring: Ignoring, limits: SnapshotLimits) -> Rescan | None:
    """The tree as it is now, beside what a manifest says of it; None when there is doubt."""
    walk = _Rewalk(known, limits.max_depth)
    try:
        _check_rules(walk, ignoring, known)
        walk.folder(top, "")
        _check_marks(top, known)
        return _judge(walk, ignoring, limits)
    except (_Doubt, OSError):  # something moved while we looked; the careful walk will say what
        return None


def look(folder: Path, known: Manifest | None, ignoring: Ignoring, limits: SnapshotLimits) -> Manifest:
    """A tree as it is now, by what a manifest knows of it where that is enough."""
    top = open_top(folder)
    try:
        again = rescan(top, known, ignoring, limits) if known else None
        return again.now if again else scan_asking(top, ignoring, limits)
    finally:
        os.close(top)


def _check_rules(walk: _Rewalk, ignoring: Ignoring, known: Manifest) -> None:
    """The files outside that decide about ignoring have to be those that were obeyed, and settled."""
    for name, entry in ignoring.sources().items():
        if known.rules.get(name, _NEVER) != entry or (entry and entry.ctime_ns >= walk.settled_ns):
            raise _Doubt


_NEVER = FileEntry(-1, -1, -1, -1, -1)


def _check_marks(top: int, known: Manifest) -> None:
    """Folders that tools made still say so, by the mark that counts first; nobody looked into them."""
    for folder, mark in known.marked.items():
        order = list(MARKS)
        if any(_is_there(top, f"{folder}/{before}") for before in order[: order.index(mark)]):
            raise _Doubt
        os.stat(f"{folder}/{mark}", dir_fd=top, follow_symlinks=False)


def _is_there(top: int, path: str) -> bool:
    try:
        os.stat(path, dir_fd=top, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _judge(walk: _Rewalk, ignoring: Ignoring, limits: SnapshotLimits) -> Rescan:
    known = walk.known
    gone = known.files.keys() - walk.files if len(walk.files) < len(known.files) else set[str]()
    gone_folders = known.folders.difference(walk.folders)
    if any(path.rpartition("/")[2] in _TELLING for path in gone):
        raise _Doubt
    if any(point not in walk.others for point in known.points):
        raise _Doubt  # a repository inside, or what a tool made: others' places depend on it
    now = Manifest()
    now.taken_ns, now.clock_ns = walk.taken_ns, walk.clock_ns
    now.points, now.rules, now.marked = dict(known.points), dict(known.rules), dict(known.marked)
    now.left_out = known.left_out & walk.others
    now.folders = (known.folders - gone_folders).union(walk.new_folders)
    new = _ask(walk, ignoring, now)
    changed = walk.entries | new
    now.files = known.files | changed
    for path in gone:
        del now.files[path]
    _check_limits(changed, now, limits)
    same = not (changed or gone or walk.new_folders or gone_folders) and now.left_out == known.left_out
    return Rescan(known if same else now, set(changed))


def _ask(walk: _Rewalk, ignoring: Ignoring, now: Manifest) -> dict[str, FileEntry]:
    """Which of the new files belong to the tree; the others are noted as left out."""
    if not walk.new_files and not walk.new_folders:
        return {}
    names = [*walk.new_files, *(folder + "/" for folder in walk.new_folders)]
    if any(not _TOOLS.isdisjoint(name.split("/")) for name in names):
        raise _Doubt
    nested = [point.removesuffix("/.git") for point in now.points if point.endswith("/.git")]
    ignored = ignoring.ignored(names, nested)
    if any(folder + "/" in ignored for folder in walk.new_folders):
        raise _Doubt  # something in it may be tracked all the same
    found: dict[str, FileEntry] = {}
    for path, entry in walk.new_files.items():
        if path not in ignored and (stat.S_ISREG(entry.mode) or entry.is_link):
            found[path] = entry
        else:
            now.left_out.add(left_out_name(path, entry.mode))
    return found


def _check_limits(changed: dict[str, FileEntry], now: Manifest, limits: SnapshotLimits) -> None:
    """Doubt where a limit may be passed: the careful walk says which, and where."""
    if not changed:
        return
    for path, entry in changed.items():
        if entry.size > limits.max_file_bytes or len(os.fsencode(path)) > limits.max_path_bytes:
            raise _Doubt
    if len(now.files) > limits.max_files or sum(entry[1] for entry in now.files.values()) > limits.max_bytes:
        raise _Doubt
