"""Scans a tree, without following links and without leaving it.

Rules
* Each folder is opened through the handle of its parent. A file that is replaced meanwhile is either seen or
  not.
* Names decide which files are included (see `ignored`). Git is asked once for all of them. If there is a
  manifest to compare with, `rescan` asks only about new names.
* Limits are enforced during the scan: a tree that is too large is refused with the path that exceeded the
  limit.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from fanfold.errors import WorldError
from fanfold.kernel.claims import FOLDERS, OWNERS, is_protected, plain_name
from fanfold.project_files import Closing
from fanfold.workspace.beneath import (
    GRAIN_NS,
    MAX_PATH_BYTES,
    FileEntry,
    Manifest,
    PathProblem,
    clock_ns,
    left_out_name,
    open_folder,
    open_top,
    set_mode,
    spot_beneath,
)
from fanfold.workspace.ignored import BUILT, CACHES, DEPENDENCIES, MAKERS, MARKS, GitView, Ignoring, is_built
from fanfold.workspace.layout import OWN_FOLDER

_MARKED = frozenset(MARKS)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class SnapshotLimits(msgspec.Struct, frozen=True):
    """The maximum size of a snapshot."""

    max_files: int = 200_000
    max_bytes: int = 8 * 1024**3
    max_file_bytes: int = 2 * 1024**3
    max_depth: int = 100
    max_path_bytes: int = 3_000


_Place: TypeAlias = Literal["keep", "leave", "point"]


class _IgnoreRules:
    """Decides by git's list; folders that git does not mention are doubtful."""

    def __init__(self, belonging: GitView, in_git: bool) -> None:
        self.belonging = belonging
        self._in_git = in_git
        self.allowed: set[str] = set()
        self.doubtful: list[str] = []

    def place_of(self, path: str, name: str, beside: list[str]) -> _Place:
        if not self._in_git and is_built(name, beside):
            return "leave"
        if path in self.belonging.folders or path in self.allowed:
            return "keep"
        if name in DEPENDENCIES:
            return "point"
        if name not in CACHES:
            self.doubtful.append(path)
        return "leave"


class _ScanWalk:
    def __init__(self, rules: _IgnoreRules, limits: SnapshotLimits, tracked: set[str], asked_ns: int) -> None:
        self.found = Manifest()
        self.found.taken_ns, self.found.clock_ns = time.time_ns(), clock_ns()
        self._rules = rules
        self._limits = limits
        self._tracked = tracked
        self._asked_ns = asked_ns
        self._bytes = 0

    def folder(self, handle: int, path: str, depth: int) -> None:
        """Scan one open folder and everything below it."""
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
            elif (status := entry_of(entry)) is None:
                continue  # gone since it was listed
            elif self._rules.belonging.holds(where):
                self._file(status, where)
            elif status.ctime_ns < self._asked_ns - GRAIN_NS:  # not created after git was asked
                self.found.left_out.add(left_out_name(where, status.mode))
        for name in below:
            self._enter(handle, name, prefix + name, depth)

    def _is_marked(self, path: str, names: list[str]) -> bool:
        """Return whether an untracked marker file shows that a tool created this folder."""
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

    def note_ignored(self, top: int, path: str) -> None:
        """Record an ignored folder; with a marker file it still counts as a dependency."""
        for mark, depends in MARKS.items():
            if depends and _is_there(top, f"{path}/{mark}"):
                self.found.left_out.discard(path + "/")
                self.found.marked[path] = mark
                self.found.points[path] = True

    def _is_own(self, entry: os.DirEntry[str], where: str, depth: int) -> bool:
        """Return whether this belongs to git or Fanfold, and is mounted from the project instead."""
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

    def _file(self, status: FileEntry, where: str) -> None:
        if not (stat.S_ISREG(status.mode) or stat.S_ISLNK(status.mode)):
            self.found.left_out.add(where + "//")  # a pipe, a socket or a device cannot be copied
            return
        limits = self._limits
        self._bytes += status.size
        self.found.files[where] = status
        if status.size > limits.max_file_bytes:
            raise _too_much("large", where, f"{status.size:,} bytes, at most {limits.max_file_bytes:,}")
        if len(where) * 4 > limits.max_path_bytes and len(os.fsencode(where)) > limits.max_path_bytes:
            shown = where[:80] + "…"
            raise _too_much("long", shown, f"its path is over {limits.max_path_bytes:,} bytes long")
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
        with Closing(below) as inner:
            self.folder(inner, where, depth + 1)


def scan_asking(top: int, ignoring: Ignoring, limits: SnapshotLimits) -> Manifest:
    """Scan the current tree and ask git which files belong to it."""
    outside = ignoring.sources()
    asked_ns = time.time_ns()
    belonging = ignoring.ask()
    rules = _IgnoreRules(belonging, ignoring.has_git())
    walk = _ScanWalk(rules, limits, belonging.tracked, asked_ns)
    walk.folder(top, "", 0)
    while rules.doubtful:
        asked, rules.doubtful = rules.doubtful, []
        nested = [point.removesuffix("/.git") for point in walk.found.points if point.endswith("/.git")]
        ignored = ignoring.ignored([path + "/" for path in asked], nested)
        for path in asked:
            if path + "/" in ignored:
                walk.note_ignored(top, path)
                continue
            walk.found.left_out.discard(path + "/")
            rules.allowed.add(path)
            try:
                folder = open_folder(top, path)
            except (FileNotFoundError, PathProblem):
                continue
            walk.found.folders.add(path)
            with Closing(folder) as handle:
                walk.folder(handle, path, path.count("/") + 1)
    walk.found.rules |= outside
    return walk.found


def _is_there(top: int, path: str) -> bool:
    """Return whether a path exists beneath an open folder, without following links."""
    try:
        with spot_beneath(top, path) as spot:
            return spot.status() is not None
    except (OSError, PathProblem):
        return False


def entry_of(entry: os.DirEntry[str]) -> FileEntry | None:
    """Return the current entry; None if it is gone."""
    try:
        return FileEntry.of(entry.stat(follow_symlinks=False))
    except FileNotFoundError:
        return None


def _too_much(code: str, where: str, why: str) -> WorldError:
    hint = "have .gitignore name what no step needs, or run the step in the shared workspace"
    message = f'the workspace cannot be copied for a step: "{where}": {why}'
    return WorldError(f"workspace.too_{code}", message, hint=hint, details={"path": where})


# -----------------------------------------------------------------------------------------------------------
# Rescan: finds the differences to a manifest in one walk, and asks git only about new names
#
# Rules
# * The entry of every file is read. A known name is judged as before, as long as nothing changed that affects
#   it: rules, marker files, inner repositories, or the type of a path.
# * Git is asked only about new names. If a new name could affect others, or a limit is near, there is
#   *doubt*. Then the whole tree is scanned without previous knowledge.
# * A file may have changed if its entry differs or is not settled; the caller that has its earlier content
#   compares it.

_TOOLS = DEPENDENCIES | CACHES
_TELLING = frozenset({".gitignore", *MARKS, *MAKERS})
"""Files that affect other names when they are added or removed."""


class _Doubt(Exception):  # not an error: used inside this module only
    """The manifest is not enough to decide which files belong to the tree."""


class Rescan:
    """The current tree and its differences; `now` is the given manifest itself if nothing changed."""

    def __init__(self, now: Manifest, differs: set[str]) -> None:
        self.now = now
        self.differs = differs
        """New files, and known files whose entry differs or is not settled."""


class _Rewalk:
    def __init__(self, known: Manifest, max_depth: int) -> None:
        self.known = known
        self.max_depth = max_depth
        self.settled_ns = known.settled_ns()
        self.taken_ns, self.clock_ns = time.time_ns(), clock_ns()
        self.entries: dict[str, FileEntry] = {}
        """The entries of changed and new files."""
        self.new_files: dict[str, FileEntry] = {}
        self.new_folders: list[str] = []
        self.files: list[str] = []
        self.folders: list[str] = []
        self.others: set[str] = set()
        """Left-out paths and mount points that still exist."""

    def folder(self, handle: int, prefix: str) -> None:
        """Compare a known open folder and everything below it."""
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
                        usual = stat.S_ISREG(now.st_mode) or stat.S_ISLNK(now.st_mode)
                        if entry.name == ".gitignore" or not usual:
                            raise _Doubt
                        self.entries[where] = FileEntry.of(now)
                    seen.append(where)
                elif where in folders:
                    below.append(entry.name)
                else:
                    self._other(handle, entry, where, prefix)
        self.folders += [prefix + name for name in below]
        for name in below:
            self._enter(handle, name, f"{prefix}{name}/")

    def _enter(self, handle: int, name: str, prefix: str) -> None:
        with Closing(os.open(name, _FOLDER, dir_fd=handle)) as inner:
            self.folder(inner, prefix)

    def _other(self, handle: int, entry: os.DirEntry[str], where: str, prefix: str) -> None:
        """Handle an entry that is neither a file nor a folder of the known tree."""
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
            if name in _TOOLS or name in BUILT or where.count("/") >= self.max_depth:
                raise _Doubt
            self.new_folders.append(where)
            self._enter(handle, name, where + "/")
        elif (status := entry_of(entry)) is not None:
            self.new_files[where] = status


def rescan(top: int, known: Manifest, ignoring: Ignoring, limits: SnapshotLimits) -> Rescan | None:
    """Return the current tree and its differences to a manifest; None if there is doubt."""
    walk = _Rewalk(known, limits.max_depth)
    try:
        for name, entry in ignoring.sources().items():  # files outside the tree that define ignore rules
            if known.rules.get(name, _NEVER) != entry or (entry and entry.ctime_ns >= walk.settled_ns):
                return None
        walk.folder(top, "")
        order = list(MARKS)
        for folder, mark in known.marked.items():  # the content of a tool's folder is not scanned
            for before in order[: order.index(mark)]:
                with suppress(FileNotFoundError):
                    os.stat(f"{folder}/{before}", dir_fd=top, follow_symlinks=False)
                    return None
            os.stat(f"{folder}/{mark}", dir_fd=top, follow_symlinks=False)
        return _judge(walk, ignoring, limits)
    except (_Doubt, OSError):  # the tree changed meanwhile; the full scan reports the cause
        return None


def look(folder: Path, known: Manifest | None, ignoring: Ignoring, limits: SnapshotLimits) -> Manifest:
    """Return the current tree; uses a manifest if that is enough."""
    with Closing(open_top(folder)) as top:
        again = rescan(top, known, ignoring, limits) if known else None
        return again.now if again else scan_asking(top, ignoring, limits)


_NEVER = FileEntry(-1, -1, -1, -1, -1)


def _judge(walk: _Rewalk, ignoring: Ignoring, limits: SnapshotLimits) -> Rescan:
    known = walk.known
    gone = known.files.keys() - walk.files if len(walk.files) < len(known.files) else set[str]()
    gone_folders = known.folders.difference(walk.folders)
    if any(path.rpartition("/")[2] in _TELLING for path in gone):
        raise _Doubt
    if any(point not in walk.others for point in known.points):
        raise _Doubt  # an inner repository or a tool's folder is gone, which affects other paths
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
    for path, entry in changed.items():  # the full scan reports which limit may be exceeded, and where
        if entry.size > limits.max_file_bytes or len(os.fsencode(path)) > limits.max_path_bytes:
            raise _Doubt
    if changed and len(now.files) > limits.max_files:
        raise _Doubt
    if changed and sum(entry[1] for entry in now.files.values()) > limits.max_bytes:
        raise _Doubt
    same = not (changed or gone or walk.new_folders or gone_folders) and now.left_out == known.left_out
    return Rescan(known if same else now, set(changed))


def _ask(walk: _Rewalk, ignoring: Ignoring, now: Manifest) -> dict[str, FileEntry]:
    """Return the new files that belong to the tree; record the others as left out."""
    if not walk.new_files and not walk.new_folders:
        return {}
    names = [*walk.new_files, *(folder + "/" for folder in walk.new_folders)]
    if any(not _TOOLS.isdisjoint(name.split("/")) for name in names):
        raise _Doubt
    nested = [point.removesuffix("/.git") for point in now.points if point.endswith("/.git")]
    ignored = ignoring.ignored(names, nested)
    if any(folder + "/" in ignored for folder in walk.new_folders):
        raise _Doubt  # it may still contain tracked files
    found: dict[str, FileEntry] = {}
    for path, entry in walk.new_files.items():
        if path not in ignored and (stat.S_ISREG(entry.mode) or entry.is_link):
            found[path] = entry
        else:
            now.left_out.add(left_out_name(path, entry.mode))
    return found


# -----------------------------------------------------------------------------------------------------------
# Finds files in ignored folders that programs obey or load, so that a shared step cannot hide them there
#
# Rules
# * Protected names, repositories without a name, dependency folders, bytecode, links, pipes, sockets and
#   devices are found, and paths that have one of the given permission bits. Other files in ignored folders
#   are build output, and every step may change them.
# * Protected names at the top of the project are left to the guard. Everywhere, the outermost one counts.
# * In a dependency folder only repositories are found: tools install whatever packages contain.
# * Each folder is opened beneath the top, and no link is followed. A folder that cannot be read is found as
#   *closed*. If it was not closed before the step, its mode is changed. If that fails, an error is raised.
# * There is one limit for the number of names. Above it, an error is raised: names that were not read may
#   contain anything.

BYTECODE = "__pycache__"
MAX_NAMES = 2_000_000
"""The number of names in ignored folders that are searched."""
_FIRST = frozenset(char for name in OWNERS for char in (name[0], name[0].upper()))
_DEPENDENCY_MARKS = tuple(mark for mark, depends in MARKS.items() if depends)
_REPOSITORY = ({"HEAD", "objects", "refs"}, {"HEAD", "commondir"})
_Kind: TypeAlias = Literal["protected", "dependency", "bytecode", "link", "special", "closed"]
SET_ID = stat.S_ISUID | stat.S_ISGID
_USUAL = (stat.S_IFREG, stat.S_IFDIR)


class HiddenEntry(NamedTuple):
    """A file or folder in an ignored folder.

    `identity` is its inode, or the target of a link. `is_folder` is None for pipes, sockets and devices.
    """

    kind: _Kind
    identity: int | str
    is_folder: bool | None = False

    @property
    def mounted(self) -> bool:
        """Whether the sandbox can mount it read-only, so that a step cannot change it."""
        fixed = self.kind in ("protected", "dependency")
        return fixed and self.is_folder is not None and not isinstance(self.identity, str)


class Hidden(NamedTuple):
    """What a search of ignored folders found; `modes` has the paths with a bit that was asked for."""

    entries: dict[str, HiddenEntry]
    modes: dict[str, int]


def is_bytecode(name: str) -> bool:
    """Return whether Python loads a file with this name instead of source.

    >>> is_bytecode("a.pyc"), is_bytecode("a.py")
    (True, False)
    """
    return name.endswith((".pyc", ".pyo"))


def is_outermost(path: str) -> bool:
    """Return whether a path below the top of the project is protected by its own name, or as a link."""
    folder = path.rpartition("/")[0]
    return folder != "" and not is_protected(folder)


def is_dependency(name: str, inside: Collection[str]) -> bool:
    """Return whether a folder contains dependencies, by its name or by a marker file inside."""
    return name in DEPENDENCIES or any(mark in inside for mark in _DEPENDENCY_MARKS)


def find_hidden(
    top: int, left_out: Collection[str], bits: int, known: Mapping[str, HiddenEntry] | None = None
) -> Hidden:
    """Return the entries in all paths that a scan left out; folders end in a slash.

    `bits` are the permission bits of interest; of a file, set-id bits are too. `known` are the entries from
    before the step. Without it, closed folders are accepted.
    """
    search = _HiddenSearch(top, known, bits)
    names: dict[str, list[str]] = {}
    for path in sorted(left_out):
        is_folder = path.endswith("/") and not path.endswith("//")
        if is_folder and not is_protected(path[:-1]):
            search.folder(path[:-1])
        else:
            folder, _, name = path.rstrip("/").rpartition("/")
            names.setdefault(folder, []).append(name)
    for folder, inside in names.items():
        search.files(folder, inside)
    return Hidden(search.found, search.modes)


def find_planted(top: int, path: str, is_named: bool) -> Iterator[str]:
    """Iterate over forbidden paths below a new dependency folder.

    These are repositories. Behind a marker file (not `is_named`) they are also other protected names, pipes,
    sockets and devices: only tools use the names, but any program can create a marker file.
    """
    search = _HiddenSearch(top, {}, 0)
    pending = [path]
    while pending:
        path = pending.pop()
        with search.opened(path) as handle:
            for entry in search.entries(handle):
                where = f"{path}/{entry.name}"
                is_folder = entry.is_dir(follow_symlinks=False)
                if plain_name(entry.name) == ".git" or (not is_named and is_protected(where)):
                    yield where
                elif is_folder:
                    pending.append(where)
                elif not is_named and not entry.is_symlink() and not entry.is_file(follow_symlinks=False):
                    yield where


class _HiddenSearch:
    def __init__(self, top: int, known: Mapping[str, HiddenEntry] | None, bits: int) -> None:
        self._top, self._known = top, known
        self._bits, self._file_bits = bits, bits | SET_ID
        self._names = 0
        self.found: dict[str, HiddenEntry] = {}
        self.modes: dict[str, int] = {}

    def files(self, folder: str, names: list[str]) -> None:
        """Judge the ignored files of a folder that is not ignored."""
        with self.opened(folder) as handle:
            for name in names if handle is not None else ():
                with suppress_gone():
                    mode = os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode
                    where = f"{folder}/{name}" if folder else name
                    self._note_mode(where, mode)
                    self._judge(handle or 0, where, name, mode)

    def folder(self, path: str) -> None:
        """Search an ignored folder that is not protected as a whole."""
        pending = [(path, False)]
        while pending:
            path, depends = pending.pop()
            with self.opened(path) as handle:
                if handle is None:
                    continue
                entries = self.entries(handle)
                names = {entry.name for entry in entries}
                if not depends and is_dependency(path.rpartition("/")[2], names):
                    depends = True
                    self._add(path, "dependency", handle, ".")
                elif (
                    not depends and "HEAD" in names and ({"objects", "refs"} <= names or "commondir" in names)
                ):
                    self._add(path, "protected", handle, ".")
                    continue
                self._note_mode(path, os.fstat(handle).st_mode)
                partly = plain_name(path.rpartition("/")[2]) in FOLDERS
                for entry in entries:
                    name = entry.name
                    if entry.is_dir(follow_symlinks=False):
                        mode = stat.S_IFDIR
                    elif depends:
                        mode = stat.S_IFREG
                    else:
                        try:
                            mode = entry.stat(follow_symlinks=False).st_mode
                        except FileNotFoundError:
                            continue
                        if mode & self._file_bits:
                            self._note_mode(f"{path}/{name}", mode)
                    if (
                        partly
                        or name[0] in _FIRST
                        or "~" in name
                        or not name.isascii()
                        or (
                            not depends
                            and (stat.S_IFMT(mode) not in _USUAL or name == BYTECODE or is_bytecode(name))
                        )
                    ) and self._is_final(handle, f"{path}/{name}", name, mode, depends):
                        continue
                    if mode == stat.S_IFDIR:
                        pending.append((f"{path}/{name}", depends))

    def _note_mode(self, path: str, mode: int) -> None:
        if mode & (self._file_bits if stat.S_ISREG(mode) else self._bits) and not stat.S_ISLNK(mode):
            self.modes[path] = mode

    def _is_final(self, handle: int, where: str, name: str, mode: int, depends: bool) -> bool:
        """Add an entry that counts; return whether it need not be searched."""
        with suppress_gone():
            if depends:
                is_repository = plain_name(name) == ".git"
                if is_repository:
                    self._add(where, "protected", handle, name)
                return is_repository
            return self._judge(handle, where, name, mode)
        return True

    def _judge(self, handle: int, where: str, name: str, mode: int) -> bool:
        is_link = stat.S_ISLNK(mode)
        if is_protected(where) or (is_link and plain_name(name) in FOLDERS):
            if is_outermost(where):
                self._add(where, "protected", handle, name)
        elif name == BYTECODE or (is_bytecode(name) and not stat.S_ISDIR(mode)):
            self._add(where, "bytecode", handle, name)
            return False
        elif is_link:
            self._add(where, "link", handle, name)
        elif stat.S_IFMT(mode) not in _USUAL:
            self._add(where, "special", handle, name)
        else:
            return False
        return True

    def _add(self, path: str, kind: _Kind, handle: int, name: str) -> None:
        status = os.stat(name, dir_fd=handle, follow_symlinks=False)
        mode = status.st_mode
        if stat.S_ISLNK(mode):
            self.found[path] = HiddenEntry(kind, os.readlink(name, dir_fd=handle))
        else:
            special = not (stat.S_ISDIR(mode) or stat.S_ISREG(mode))
            self.found[path] = HiddenEntry(kind, status.st_ino, None if special else stat.S_ISDIR(mode))

    def entries(self, handle: int | None) -> list[os.DirEntry[str]]:
        """List an open folder; raises if there are too many names in all of them."""
        if handle is None:
            return []
        with os.scandir(handle) as listing:
            found = list(listing)
        self._names += len(found)
        if self._names > MAX_NAMES:
            message = f"the ignored folders of the project contain more than {MAX_NAMES:,} names"
            hint = "remove what no program needs, or use workspace_mode: isolated"
            raise WorldError("workspace.too_many", message, hint=hint)
        return found

    @contextmanager
    def opened(self, path: str) -> Iterator[int | None]:
        """Open a folder beneath the top; None if it is gone, or closed as before the step."""
        handle = None
        with suppress_gone():
            try:
                handle = _open(self._top, path)
            except (FileNotFoundError, NotADirectoryError):
                raise
            except OSError as error:
                handle = self._reopen(path, error)
        if handle is None:
            yield None
            return
        with Closing(handle):
            yield handle

    def _reopen(self, path: str, error: OSError) -> int | None:
        """Make a folder readable that the step closed; None if it was closed before the step."""
        above, _, name = path.rpartition("/")
        try:
            outer = _open(self._top, above)
        except OSError:
            outer = None
        try:
            status = os.stat(name, dir_fd=outer, follow_symlinks=False) if outer is not None else None
            closed = HiddenEntry("closed", status.st_ino if status else 0, True)
            if self._known is None or self._known.get(path) == closed:
                self.found[path] = closed
                return None
            if outer is not None and status is not None:
                with suppress(OSError):
                    set_mode(outer, name, stat.S_IMODE(status.st_mode) | 0o700)
                    return open_folder(outer, name)
        finally:
            if outer is not None:
                os.close(outer)
        message = f'"{path[:200]}" cannot be read: {error.strerror}'
        raise WorldError("workspace.unreadable", message, hint="make it readable") from error


def _open(top: int, path: str) -> int:
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    return open_folder(top, path)


def suppress_gone() -> suppress:
    """Suppress errors for files that another process removed or replaced since they were listed."""
    return suppress(FileNotFoundError, NotADirectoryError, PathProblem)
