"""Detects and removes new files in the project that configure git, Fanfold or agent programs.

The sandbox mounts existing ones read-only. It cannot block a path that does not exist without leaving an
empty folder in the user's project. So new ones are found after the step and moved out of the project.

Rules
* Only names at the top of the project are checked, and names in top-level folders with a protected part. This
  needs a few listings and no walk. The watch of the step finds new names further down and passes them to
  `settle`.
* New files are moved, not deleted, because the user may have created them. An existing file that was moved
  within the project is moved back if its old path is free. An existing file that was changed is reported and
  stays in its place. A sandboxed program cannot have changed it, so after one it is not even reported.
* Every name is looked up through the handle of its folder, and no link is followed. If a name cannot be
  listed or moved, even after a change of its mode, an error is raised and the step fails.
* `.fanfold` is hidden from sandboxed programs, so changes there come from the user.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import msgspec

from fanfold.errors import WorldError
from fanfold.kernel.claims import FOLDERS, OWNERS, is_protected, plain_name
from fanfold.kernel.paths import matches
from fanfold.project_files import Closing
from fanfold.workspace.beneath import (
    GRAIN_NS,
    MAX_PATH_BYTES,
    FileEntry,
    PathProblem,
    git_mode,
    open_folder,
    open_readable,
    same_content,
    set_mode,
    umask,
)
from fanfold.workspace.changes import (
    Change,
    WriteViolation,
    bare_repository,
    behind_links,
    look_at,
    violations,
)
from fanfold.workspace.ignored import CACHES, DEPENDENCIES, PATTERNS, may_change_dependency
from fanfold.workspace.layout import OWN_FOLDER, make_folder
from fanfold.workspace.merge_journal import Arrivals, NewArrivals
from fanfold.workspace.scan import (
    BYTECODE,
    SET_ID,
    Hidden,
    find_hidden,
    find_planted,
    is_bytecode,
    is_dependency,
    is_outermost,
    look,
    suppress_gone,
)

if TYPE_CHECKING:
    from fanfold.workspace.bases import Base
    from fanfold.workspace.beneath import Manifest
    from fanfold.workspace.ignored import Ignoring
    from fanfold.workspace.layout import Layout
    from fanfold.workspace.scan import SnapshotLimits

REFUSED = "refused"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
"""The folder below `.fanfold/workspace` for files that were moved out of the project."""
_PARTS = {
    ".git": ("config", "config.worktree", "commondir", "hooks"),
    OWN_FOLDER: ("agents", "workflows", "config.toml"),
}
"""The parts of a folder that configure programs; other parts change all the time. In other folders, all parts
count."""


class GuardFindings(msgspec.Struct, frozen=True):
    """The result of a check: `moved` are new names, now in `folder`; `changed` names stay in their place."""

    moved: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    folder: str = ""


class Guard:
    """The protected names of a project as they were when a step started."""

    def __init__(self, project: Path) -> None:
        self._project = project
        self._before = _look(project)

    def settle(
        self,
        is_confined: Callable[[Path], bool],
        appeared: Iterable[str] = (),
        homes: Mapping[int, str] = MappingProxyType({}),
    ) -> GuardFindings:
        """Move new protected names out of the project, and report other changes.

        `appeared` are new paths with a protected name that the watch found. `homes` maps the inode of a moved
        file to its original path.
        """
        before, now = self._before, _look(self._project)
        paths = sorted({_protected_part(path) for path in appeared})
        if now == before and not paths:
            return GuardFindings()
        confined = is_confined(self._project)
        differ = [path for path in sorted(before | now) if before.get(path) != now.get(path)]
        folder = self._project / OWN_FOLDER / "workspace" / REFUSED
        moved: list[str] = []
        changed: list[str] = []
        for path in differ:
            if path.startswith(tuple(f"{one}/" for one in moved)):
                continue
            top, _, rest = path.partition("/")
            place = f"{top}/{rest.partition('/')[0]}" if plain_name(top) in FOLDERS and rest else top
            rest = path[len(place) + 1 :]
            if confined and plain_name(place) == OWN_FOLDER:
                continue
            whole = not rest or ("/" not in rest and plain_name(place) not in _PARTS and not confined)
            if whole and path not in before:
                _move(self._project, path, folder)
                moved.append(path)
            elif not confined:
                changed.append(path)
        strayed: list[tuple[str, str]] = []
        for path in paths:
            if not path.startswith(tuple(f"{one}/" for one in moved)) and path not in moved:
                strayed.append((path, _move(self._project, path, folder)))
                moved.append(path)
        for path, name in strayed:
            if name and _put_back(self._project, folder, name, homes):
                moved.remove(path)
                changed.append(path)
        return GuardFindings(tuple(moved), tuple(changed), str(folder) if moved else "")


def _protected_part(path: str) -> str:
    """Return the outermost protected part of a path.

    >>> _protected_part("a/.git/hooks/x")
    'a/.git'
    """
    names = path.split("/")
    parts = ("/".join(names[:count]) for count in range(1, len(names)))
    return next((part for part in parts if is_protected(part)), path)


def _look(project: Path) -> dict[str, FileEntry | int]:
    """Return the protected names at the top, and their parts that configure programs, two levels down.

    Folders are only recorded as existing, because their times change.
    """
    found: dict[str, FileEntry | int] = {}

    def note(folder: int, name: str, path: str) -> bool:
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        is_folder = stat.S_ISDIR(status.st_mode)
        found[path] = stat.S_IFDIR if is_folder else FileEntry.of(status)
        return is_folder

    with Closing(open_readable(project)) as top:
        for place in _places(top):
            above, _, last = place.rpartition("/")
            with _inside(top, above) as outer:
                if outer is None or not note(outer, last, place):
                    continue
                with _inside(outer, last) as folder:
                    for name in _PARTS.get(plain_name(place)) or _names(folder):
                        if folder is not None and note(folder, name, f"{place}/{name}"):
                            with _inside(folder, name) as inner:
                                for one in _names(inner):
                                    note(inner or -1, one, f"{place}/{name}/{one}")
    found.pop(OWN_FOLDER, None)
    return found


def _places(top: int) -> Iterator[str]:
    """Iterate over names that are protected as a whole, and links in place of partly protected folders."""
    for name in _names(top):
        plain = plain_name(name)
        is_link = plain in FOLDERS and stat.S_ISLNK(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode)
        if plain in OWNERS or is_link:
            yield name
        elif plain in FOLDERS:
            with _inside(top, name) as folder:
                inner = _names(folder)
            yield from (f"{name}/{one}" for one in inner if f"{plain}/{plain_name(one)}" in OWNERS)


@contextmanager
def _inside(top: int, path: str) -> Iterator[int | None]:
    """Open a folder and make it readable if needed; None if it is gone or not a folder."""
    try:
        handle = open_folder(top, path)
    except PermissionError:
        _allow(top, path)
        handle = open_folder(top, path)
    except (FileNotFoundError, NotADirectoryError, PathProblem):
        yield None
        return
    with Closing(handle):
        yield handle


def _names(folder: int | None) -> list[str]:
    return [] if folder is None else sorted(os.listdir(folder))


def _allow(top: int, path: str) -> None:
    """Give the owner all permissions on a folder beneath an open one."""
    above, _, name = path.rpartition("/")
    with _inside(top, above) as folder:
        if folder is None:
            return
        mode = os.stat(name or ".", dir_fd=folder, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            set_mode(folder, name or ".", stat.S_IMODE(mode) | 0o700)


def _move(project: Path, path: str, folder: Path) -> str:
    """Move a path out of the project and return its name in `folder`; raises if that is not possible."""
    above, _, name = path.rpartition("/")
    target = f"{path.replace('/', '-')}.{os.urandom(6).hex()}"[-255:]
    for made in (folder.parents[1], folder.parent, folder):
        make_folder(made)
    try:
        with (
            Closing(open_readable(project)) as top,
            Closing(open_readable(folder)) as refused,
            _inside(top, above) as source,
        ):
            if source is None:
                return ""
            _allow(source, name)  # a folder without write permission cannot be moved
            try:
                os.rename(name, target, src_dir_fd=source, dst_dir_fd=refused)
            except PermissionError:
                _allow(source, "")
                os.rename(name, target, src_dir_fd=source, dst_dir_fd=refused)
    except FileNotFoundError:
        return ""
    except OSError as error:
        message = f"{path} appeared in the project and cannot be moved out of it: {error.strerror}"
        hint = "look at it and remove it before you run any program in the project"
        raise WorldError("workspace.guard_blocked", message, hint=hint) from error
    return target


def _put_back(project: Path, folder: Path, name: str, homes: Mapping[int, str]) -> bool:
    """Move a file back to its original path in the project, if that is free; return whether it was."""
    try:
        with Closing(open_readable(project)) as top, Closing(open_readable(folder)) as refused:
            home = homes.get(os.stat(name, dir_fd=refused, follow_symlinks=False).st_ino)
            if home is None:
                return False
            above, _, last = home.rpartition("/")
            with _inside(top, above) as place:
                if place is None or last in os.listdir(place):
                    return False
                os.rename(name, last, src_dir_fd=refused, dst_dir_fd=place)
    except OSError:
        return False
    return True


# -----------------------------------------------------------------------------------------------------------
# Shared mode: changes in the project itself while a step works there
#
# Both states are described by names, inodes, modes and times, which costs a walk and no copy. A file that was
# rewritten with the same content is not a change if a base has its earlier content. Otherwise it counts as
# changed.
#
# Rules
# * Only the state from before the step excuses a change: ignore rules, dependency folders and caches as the
#   watch found them. If the step changed a `.gitignore`, new files below it are treated as not ignored.
# * A new folder with the name or a marker file of a dependency folder (`node_modules`, `pyvenv.cfg`) is one
#   change, even if it is ignored. If the write-set contains it, its content is accepted, except repositories.
# * Protected names are found at any depth, also in ignored folders (see `hidden`). Existing repositories and
#   dependency folders are identified by their inode. Another one in the same place is a change. The same
#   applies to protected names in a folder that replaced another one.
# * A new ignored link must not lead out of the project or to a protected name. Other ignored files are build
#   output: every step may change them.
# * Permission bits of files and folders count. Outside the write-set, the mode of a folder is restored. A
#   set-user-id or set-group-id bit is always removed, even inside the write-set. So is a new permission of
#   others to write that the umask takes from new files, also in ignored folders.
# * New bytecode (`__pycache__`, ignored `.pyc` files), new caches outside the write-set, and new pipes and
#   sockets in ignored folders are removed. An isolated step would not merge them either.
# * A new link with the name of a dependency folder is judged like such a folder.
# * Every folder is opened through the handle of its parent, and no link is followed. If a folder cannot be
#   read, even after its mode was restored, an error is raised.

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_HIDDEN_POINTS = 500
"""The number of repositories and dependency folders in ignored folders that the sandbox protects."""
_FILES = frozenset(name.rpartition("/")[2] for name in OWNERS)
MAX_FILES = 2_000_000
"""The number of files that a watch compares; it copies none of them."""


class WorkspaceWatch:
    """Detects changes of the project since the watch started."""

    def __init__(self, layout: Layout, ignoring: Ignoring, limits: SnapshotLimits, base: Base | None) -> None:
        most = max(limits.max_files, MAX_FILES)
        self._limits = msgspec.structs.replace(
            limits, max_files=most, max_bytes=1 << 62, max_file_bytes=1 << 62
        )
        self._layout, self._ignoring, self._base = layout, ignoring, base
        self._arrivals = Arrivals(layout)
        self._mark = self._arrivals.mark()
        self._began_ns = time.time_ns() - GRAIN_NS
        known = base.manifest if base else None
        self._before = look(layout.project, known, ignoring, self._limits)
        self._modes: dict[str, int] = {}
        self._inodes: dict[str, int] = {}
        """The inodes of folders, and of protected names and dependency folders."""
        self._hidden = Hidden({}, {})
        self._bits = umask() & _OTHERS_WRITE
        with Closing(open_readable(self._layout.project)) as top:
            for path in ("", *self._before.folders, *self._before.points):
                with suppress_gone():
                    status = os.stat(path or ".", dir_fd=top, follow_symlinks=False)
                    self._inodes[path] = status.st_ino
                    if path not in self._before.points:
                        self._modes[path] = stat.S_IMODE(status.st_mode)
            self._hidden = find_hidden(top, self._before.left_out, self._bits)
            links = [path for path, entry in self._before.files.items() if entry.is_link]
            links += [path for path, entry in self._hidden.entries.items() if isinstance(entry.identity, str)]
            self._linked = behind_links(top, links)

    @property
    def points(self) -> dict[str, bool]:
        """The paths of protected names and dependency folders when the watch started; True for folders."""
        mounted = (
            (path, bool(entry.is_folder)) for path, entry in self._hidden.entries.items() if entry.mounted
        )
        known = {*self._before.folders, *self._before.files}
        return {
            **dict(islice(mounted, MAX_HIDDEN_POINTS)),
            **{path: True for path in self._before.folders if is_protected(path) and is_outermost(path)},
            **{
                path: False
                for path, entry in self._before.files.items()
                if path.rpartition("/")[2].lower() in _FILES
                and not entry.is_link
                and is_protected(path)
                and is_outermost(path)
            },
            **{path: path in self._before.folders for path in self._linked if path in known},
            **self._before.points,
        }

    @property
    def homes(self) -> dict[int, str]:
        """The original paths of protected files and folders, by inode."""
        found = {entry.inode: path for path, entry in self._before.files.items() if is_protected(path)}
        found |= {inode: path for path, inode in self._inodes.items() if is_protected(path)}
        return found | {
            entry.identity: path
            for path, entry in self._hidden.entries.items()
            if entry.kind == "protected" and isinstance(entry.identity, int)
        }

    def changes(self, write_set: Sequence[str] = ("**",)) -> list[Change]:
        """Return the sorted changes since the start, without files of tools inside `write_set`."""
        with Closing(open_readable(self._layout.project)) as top:
            return self._compare(top, write_set).changes()

    def settle(self, write_set: Sequence[str]) -> tuple[list[WriteViolation], list[str]]:
        """Return the violations of `write_set` since the start, and new protected names, which a guard moves.

        Other files that must not stay are removed.
        """
        with Closing(open_readable(self._layout.project)) as top:
            found = self._compare(top, write_set)
            changes = found.changes()
            rows = violations(changes, write_set, top, self._linked)
            rows += [
                WriteViolation(path, "outside_write_set")
                for path in found.exchanged
                if not may_change_dependency(self._layout.project, path, write_set)
            ]
            ignored = [_seen_from_top(one, self._layout.project) for one in found.ignored]
            strict = violations(ignored, None, top, self._linked)
            rows += [row for row in strict if row.why in ("protected", "leads_out")]
            bare = {path for one in (*changes, *ignored) if (path := self._became_repository(one, top))}
            found.clean()
        stripped = {path for path, _ in found.set_id}
        rows = [row for row in rows if row.path not in stripped]
        appeared = [
            change.path for change in changes if change.kind == "added" and self._is_kept(change.path)
        ]
        appeared += [*sorted(bare), *found.bare]
        return sorted({*rows, *(WriteViolation(path, "set_id") for path in stripped)}), [
            *appeared,
            *found.replaced,
            *filter(self._is_kept, found.others),
        ]

    def _became_repository(self, change: Change, top: int) -> str | None:
        """Return what to move so that no folder above a change is an unnamed repository: it or its `HEAD`."""
        folder = bare_repository(change.path, look_at(top)) if change.kind == "added" else None
        files, folders = self._before.files, self._before.folders
        known = {*files, *folders} if folder else set()
        was = {f"{folder}/HEAD", f"{folder}/objects", f"{folder}/refs"} <= known
        if not folder or was or {f"{folder}/HEAD", f"{folder}/commondir"} <= known:
            return None
        return f"{folder}/HEAD" if folder in folders else folder

    def _is_kept(self, path: str) -> bool:
        """Return whether a path is protected by its name, or is the target of a protected link."""
        return is_protected(path) or f"{path}/".startswith(tuple(f"{target}/" for target in self._linked))

    def arrived(self) -> NewArrivals:
        """Return the paths that merges of any process wrote since; call it after `settle`."""
        return self._arrivals.since(self._mark)

    def _compare(self, top: int, write_set: Sequence[str]) -> _Comparison:
        found = _Comparison(
            self._before, self._modes, self._inodes, write_set, self._began_ns, self._limits.max_depth, top
        )
        found.bits = self._bits
        found.folder(top, "", 0)
        left_out = self._before.left_out
        found.hidden(find_hidden(top, left_out, self._bits, self._hidden.entries), self._hidden)
        found.ask(self._ignoring)
        changed = [(path, row) for path, row in found.modified.items() if not self._is_rewritten(path, row)]
        found.modified = dict(changed)
        return found

    def _is_rewritten(self, path: str, change: Change) -> bool:
        """Return whether a file has the same content as before, if a base can show it."""
        before = self._before.files.get(path)
        if change.what == "folder" or before is None or self._base is None:
            return False
        if self._base.manifest.files.get(path) != before:
            return False
        folder, _, name = path.rpartition("/")
        try:
            with (
                self._base.opened() as base,
                Closing(open_readable(self._layout.project)) as top,
                Closing(open_folder(top, folder)) as project,
                Closing(open_folder(base.at(path), folder)) as earlier,
            ):
                now = os.stat(name, dir_fd=project, follow_symlinks=False).st_mode
                return not (now ^ before.mode) & 0o7777 and same_content(project, earlier, name)
        except (OSError, PathProblem):  # an unused base is deleted when there is a newer one
            return False


class _Comparison:
    """Compares the current project with its known state, in one walk."""

    def __init__(
        self,
        known: Manifest,
        modes: dict[str, int],
        inodes: dict[str, int],
        write_set: Sequence[str],
        began_ns: int,
        depth: int,
        top: int,
    ) -> None:
        self._known, self._modes, self._inodes, self._write_set = known, modes, inodes, write_set
        self._began_ns, self._max_depth, self._top = began_ns, depth, top
        self.modified: dict[str, Change] = {}
        self.bits = 0
        """The permission bits that the umask takes from new files, of those that let others write."""
        self.set_id: list[tuple[str, int]] = []
        """Files with a new set-user-id or set-group-id bit, and their mode without it."""
        self.wide: list[tuple[str, int]] = []
        """Files and folders with a new one of `bits`, and their mode without it."""
        self.repositories: list[str] = []
        self.others: list[str] = []
        """Files that changed in a folder that replaced another one."""
        self.replaced: list[str] = []
        """Protected paths that now contain another file or folder."""
        self.exchanged: list[str] = []
        """Dependency folders that were replaced by another one."""
        self.bare: list[str] = []
        """Ignored folders that became repositories."""
        self.ignored: list[Change] = []
        """New ignored files and links."""
        self._new: dict[str, Change] = {}
        self._seen: set[str] = set()
        self._caches: list[str] = []
        self._rules_changed: list[str] = []
        """Folders whose ignore rules changed."""

    def hidden(self, now: Hidden, before: Hidden) -> None:
        """Compare the entries in ignored folders with those from before the step."""
        for path, mode in now.modes.items():
            self._narrow(path, mode, before.modes.get(path, 0))
        for path, entry in now.entries.items():
            was = before.entries.get(path)
            if entry.kind == "bytecode":
                self._caches.append(path)
            elif entry == was:
                continue
            elif entry.kind == "special":
                self._caches.append(path)
            elif entry.kind == "link":
                link = Change(path, "added", "link", 0o120000, 0, str(entry.identity))
                self.ignored.append(link)
                if self._replaces_dependency(path):
                    self.modified[path] = link
            elif was is not None and was.kind == entry.kind:
                (self.replaced if entry.kind == "protected" else self.exchanged).append(path)
            elif entry.kind == "dependency":
                self._new_dependency(path)
            else:
                (self.repositories if is_protected(path) else self.bare).append(path)

    def _narrow(self, path: str, mode: int, before: int) -> None:
        """Note the new bits of a mode that must not stay. A new folder may inherit a set-group-id bit."""
        set_id = SET_ID if stat.S_ISREG(mode) else 0
        if new := mode & (set_id | self.bits) & ~before:
            (self.set_id if new & set_id else self.wide).append((path, stat.S_IMODE(mode) & ~new))

    def folder(self, handle: int, path: str, depth: int, is_other: bool = False) -> None:
        """Compare an open folder and everything below it. `is_other`: a folder above it was replaced."""
        if depth > self._max_depth or len(os.fsencode(path)) > MAX_PATH_BYTES:
            problem = f"folders nest deeper than {self._max_depth}, or the path is too long"
            raise WorldError("workspace.too_deep", f'"{path[:200]}": {problem}')
        known, prefix = self._known, f"{path}/" if path else ""
        below: list[str] = []
        self._check_mode(handle, path)
        is_other = is_other or self._is_other(os.fstat(handle), path)
        with os.scandir(handle) as listing:
            for entry in listing:
                where = prefix + entry.name
                if entry.name == PATTERNS:
                    with suppress_gone():
                        if FileEntry.of(entry.stat(follow_symlinks=False)) != known.rules.get(where):
                            self._rules_changed.append(prefix)
                before = known.files.get(where)
                if before is not None and not entry.is_dir(follow_symlinks=False):
                    self._seen.add(where)
                    if self._file(entry, where, before) and is_other:
                        self.others.append(where)
                elif where in known.folders and entry.is_dir(follow_symlinks=False):
                    self._seen.add(where)
                    below.append(entry.name)
                elif self._was_other(entry, where):
                    self._other(handle, entry.name, where)
                elif entry.is_dir(follow_symlinks=False):
                    self._new_folder(handle, entry.name, where, depth)
                else:
                    self._file(entry, where, None)
        for name in below:
            with self._opened(handle, name, prefix + name) as inner:
                if inner is not None:
                    self.folder(inner, prefix + name, depth + 1, is_other)

    def _other(self, folder: int, name: str, where: str) -> None:
        """Compare an entry that was ignored or protected before, and still is."""
        self._seen.add(where)
        if name == BYTECODE:
            self._caches.append(where)
        if where in self._known.points and where != OWN_FOLDER:
            with suppress_gone():
                if self._is_other(os.stat(name, dir_fd=folder, follow_symlinks=False), where):
                    (self.replaced if is_protected(where) else self.exchanged).append(where)

    def _is_other(self, status: os.stat_result, path: str) -> bool:
        """Return whether the file at a path was replaced."""
        return self._inodes.get(path, status.st_ino) != status.st_ino

    @contextmanager
    def _opened(self, above: int, name: str, path: str) -> Iterator[int | None]:
        """Open a folder, and make it readable if a step left it unreadable; None if it is gone."""
        try:
            handle = os.open(name, _FOLDER, dir_fd=above)
        except (FileNotFoundError, NotADirectoryError):
            handle = None
        except PermissionError:
            if path in self._modes:
                self.modified[path] = Change(path, "modified", "folder")
            try:
                set_mode(above, name, self._modes.get(path, 0) | 0o700)
                handle = os.open(name, _FOLDER, dir_fd=above)
            except OSError as error:
                message = f'"{path}" cannot be read: {error.strerror}'
                raise WorldError("workspace.unreadable", message, hint="make it readable") from error
        try:
            yield handle
        finally:
            if handle is not None:
                os.close(handle)

    def _check_mode(self, handle: int, path: str) -> None:
        before, mode = self._modes.get(path), os.fstat(handle).st_mode
        if before == stat.S_IMODE(mode):
            return
        if before is None or (path and matches(self._write_set, path)):
            self._narrow(path, mode, before or 0)
        else:
            os.fchmod(handle, before)
        if before is None:
            return
        self.modified[path or "."] = Change(path or ".", "modified", "folder")

    def _was_other(self, entry: os.DirEntry[str], where: str) -> bool:
        """Return whether an entry was ignored or protected before, and has the same type."""
        known = self._known
        is_folder = entry.is_dir(follow_symlinks=False)
        if where in known.points:
            return known.points[where] is is_folder and not entry.is_symlink()
        if is_folder:
            return where + "/" in known.left_out
        return (
            where if entry.is_file(follow_symlinks=False) or entry.is_symlink() else where + "//"
        ) in known.left_out

    def _file(self, entry: os.DirEntry[str], where: str, before: FileEntry | None) -> bool:
        """Compare a file or link, new if `before` is None; return whether it differs."""
        with suppress_gone():
            status = entry.stat(follow_symlinks=False)
            if FileEntry.of(status) == before:
                return False
            mode, was = status.st_mode, before.git_mode if before else 0
            kind: Literal["added", "modified"] = "modified" if before else "added"
            if stat.S_ISREG(mode):
                self._narrow(where, mode, before.mode if before else 0)
            if stat.S_ISLNK(mode):
                if before is None and entry.name == BYTECODE:  # Python would load the files behind it
                    self._caches.append(where)
                    return True
                change = Change(where, kind, "link", 0o120000, was, _target(self._top, where))
                if before is None and self._replaces_dependency(where):
                    self.modified[where] = change
                    return True
            elif stat.S_ISREG(mode):
                change = Change(where, kind, "file", git_mode(mode), was)
            else:
                change = Change(where, kind, "special", 0, was)
            (self.modified if before else self._new)[where] = change
            return True
        return False

    def _new_folder(self, above: int, name: str, where: str, depth: int) -> None:
        if is_protected(where):
            self._new[where] = Change(where, "added", "folder")
            return
        claimed = matches(self._write_set, f"{where}/x")
        if name == BYTECODE or (name in CACHES and not claimed):
            self._caches.append(where)
            return
        with self._opened(above, name, where) as handle:
            if handle is None:
                return
            names = os.listdir(handle)
            if is_dependency(name, names):
                self._new_dependency(where)
                return
            if not names:
                self._new[where] = Change(where, "added", "folder")
            self.folder(handle, where, depth + 1)

    def _new_dependency(self, path: str) -> None:
        for planted in find_planted(self._top, path, path.rpartition("/")[2] in DEPENDENCIES):
            if is_protected(planted):
                self.repositories.append(planted)
            else:
                self.modified[planted] = Change(planted, "added", "special")
        if not matches(self._write_set, f"{path}/x"):
            self.modified[path] = Change(path, "added", "folder")

    def _replaces_dependency(self, link: str) -> bool:
        """Return whether tools take what is behind a new link for dependencies, outside the write-set."""
        return link.rpartition("/")[2] in DEPENDENCIES and not matches(self._write_set, f"{link}/x")

    def ask(self, ignoring: Ignoring) -> None:
        """Drop new paths that the ignore rules from before the step exclude."""
        if not self._new:
            return
        nested = [point.removesuffix("/.git") for point in self._known.points if point.endswith("/.git")]
        judged = {
            path: path + "/" if row.what == "folder" else path
            for path, row in self._new.items()
            if not is_protected(path) and not path.startswith(tuple(self._rules_changed))
        }
        if not judged:
            return
        ignored = ignoring.ignored(judged.values(), nested)
        for path, asked in judged.items():
            if asked in ignored:
                self.ignored.append(self._new.pop(path))
                if is_bytecode(path) or self.ignored[-1].what == "special":
                    self._caches.append(path)

    def changes(self) -> list[Change]:
        known, found = self._known, {**self._new, **self.modified}
        found |= {path: Change(path, "added", "folder") for path in self.repositories}
        for path in known.files.keys() - self._seen:
            was = known.files[path]
            found.setdefault(
                path, Change(path, "deleted", "link" if was.is_link else "file", 0, was.git_mode)
            )
        used = {path.rpartition("/")[0] for path in (*known.files, *known.folders)}
        for path in (*(known.folders - used - self._seen), *(known.points.keys() - self._seen)):
            found.setdefault(path, Change(path, "deleted", "folder"))
        found.pop(".fanfold", None)
        return sorted(found.values())

    def clean(self) -> None:
        """Remove bits that must not stay, new bytecode, new caches, and new pipes in ignored folders."""
        for path, mode in (*self.set_id, *self.wide):
            folder, _, name = path.rpartition("/")
            with suppress_gone(), Closing(open_folder(self._top, folder)) as handle:
                set_mode(handle, name, mode)
        for path in self._caches:
            folder, _, name = path.rpartition("/")
            with suppress_gone(), Closing(open_folder(self._top, folder)) as above:
                _remove_fresh(above, name, self._began_ns)


def _remove_fresh(above: int, name: str, since_ns: int) -> None:
    """Delete a file, or the files of a cache, that changed since then, and empty folders."""
    status = os.stat(name, dir_fd=above, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode):
        if status.st_ctime_ns >= since_ns:
            os.unlink(name, dir_fd=above)
        return
    with Closing(open_folder(above, name)) as handle:
        for inner in os.listdir(handle):
            _remove_fresh(handle, inner, since_ns)
        empty = not os.listdir(handle)
    if empty:
        os.rmdir(name, dir_fd=above)


def _seen_from_top(change: Change, project: Path) -> Change:
    """Return the change of a link whose absolute target is in the project with a relative target."""
    if not change.target.startswith(f"{project}/"):
        return change
    up = "../" * change.path.count("/")
    return msgspec.structs.replace(change, target=up + change.target.removeprefix(f"{project}/"))


def _target(top: int, path: str) -> str:
    folder, _, name = path.rpartition("/")
    with suppress_gone(), Closing(open_folder(top, folder)) as handle:
        return os.readlink(name, dir_fd=handle)
    return ""
