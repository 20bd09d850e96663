"""Finds files in ignored folders that programs obey or load, so that a shared step cannot hide them there.

Rules
* Protected names, repositories without a name, dependency folders, bytecode and links are found. Other files
  in ignored folders are build output, and every step may change them.
* Protected names at the top of the project are left to the guard. Everywhere, the outermost one counts.
* In a dependency folder only repositories are found: tools install whatever packages contain.
* Each folder is opened beneath the top, and no link is followed. A folder that cannot be read is found as
  *closed*. If it was not closed before the step, its mode is changed. If that fails, an error is raised.
* There is one limit for the number of names. Above it, an error is raised: names that were not read may
  contain anything.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Literal, NamedTuple, TypeAlias

from fanfold.errors import WorldError
from fanfold.kernel.claims import FOLDERS, OWNERS, is_protected, plain_name
from fanfold.workspace.beneath import MAX_PATH_BYTES, PathProblem, open_folder, set_mode
from fanfold.workspace.ignored import DEPENDENCIES, MARKS

BYTECODE = "__pycache__"
MAX_NAMES = 2_000_000
"""The number of names in ignored folders that are searched."""
_FIRST = frozenset(char for name in OWNERS for char in (name[0], name[0].upper()))
_DEPENDENCY_MARKS = tuple(mark for mark, depends in MARKS.items() if depends)
_REPOSITORY = ({"HEAD", "objects", "refs"}, {"HEAD", "commondir"})
_Kind: TypeAlias = Literal["protected", "dependency", "bytecode", "link", "closed"]


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
    top: int, left_out: Collection[str], known: Mapping[str, HiddenEntry] | None = None
) -> dict[str, HiddenEntry]:
    """Return the entries in all paths that a scan left out; folders end in a slash.

    `known` are those from before the step. Without it, closed folders are accepted.
    """
    search = _HiddenSearch(top, known)
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
    return search.found


def find_planted(top: int, path: str, is_named: bool) -> Iterator[str]:
    """Iterate over forbidden paths below a new dependency folder.

    These are repositories. Behind a marker file (not `is_named`) they are also other protected names, pipes,
    sockets and devices: only tools use the names, but any program can create a marker file.
    """
    search = _HiddenSearch(top, {})
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
    def __init__(self, top: int, known: Mapping[str, HiddenEntry] | None) -> None:
        self._top, self._known = top, known
        self._names = 0
        self.found: dict[str, HiddenEntry] = {}

    def files(self, folder: str, names: list[str]) -> None:
        """Judge the ignored files of a folder that is not ignored."""
        with self.opened(folder) as handle:
            for name in names if handle is not None else ():
                with suppress_gone():
                    mode = os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode
                    self._judge(handle or 0, f"{folder}/{name}" if folder else name, name, mode)

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
                partly = plain_name(path.rpartition("/")[2]) in FOLDERS
                for entry in entries:
                    name = entry.name
                    is_folder = entry.is_dir(follow_symlinks=False)
                    if (
                        (partly or name[0] in _FIRST or "~" in name or not name.isascii())
                        or (not depends and (entry.is_symlink() or name == BYTECODE or is_bytecode(name)))
                    ) and self._is_final(handle, entry, f"{path}/{name}", depends):
                        continue
                    if is_folder:
                        pending.append((f"{path}/{name}", depends))

    def _is_final(self, handle: int, entry: os.DirEntry[str], where: str, depends: bool) -> bool:
        """Add an entry that counts; return whether it need not be searched."""
        name = entry.name
        with suppress_gone():
            if depends:
                is_repository = plain_name(name) == ".git"
                if is_repository:
                    self._add(where, "protected", handle, name)
                return is_repository
            mode = stat.S_IFDIR if entry.is_dir(follow_symlinks=False) else 0
            return self._judge(handle, where, name, stat.S_IFLNK if entry.is_symlink() else mode)
        return True

    def _judge(self, handle: int, where: str, name: str, mode: int) -> bool:
        is_link = stat.S_ISLNK(mode)
        if is_protected(where) or (is_link and plain_name(name) in FOLDERS):
            if is_outermost(where):
                self._add(where, "protected", handle, name)
        elif is_link:
            self._add(where, "link", handle, name)
        elif name == BYTECODE or (is_bytecode(name) and not stat.S_ISDIR(mode)):
            self._add(where, "bytecode", handle, name)
            return False
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
        try:
            yield handle
        finally:
            if handle is not None:
                os.close(handle)

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
