"""Finds the changes of a step workspace, and the changes that its step was not allowed to make.

Rules
* A change is a difference in content, executable bit, type or existence; a new time alone is none. Empty
  folders count, because programs look for them.
* Ignored files, and files that tools keep for themselves (dependency folders, caches), are no changes. They
  were not in the snapshot and are not merged. The exception is an ignored file that the write-set asks for
  (`asked_for`); the others are reported as left out.
* These are violations, even inside the write-set: protected files of git, Fanfold or agents, by their name or
  as target of a link with that name; repositories without such a name; links that lead out of the workspace;
  pipes, sockets and devices; names that are not text.
* Only touched files cost time: an overlay's upper layer lists them, and a copy is compared by inodes and
  times.
"""

from __future__ import annotations

import os
import select
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from fanfold.errors import WorldError
from fanfold.kernel.claims import (
    LEFTOVER,
    OWNERS,
    holds_protected,
    is_protected,
    landing,
    leads_out,
    plain_name,
)
from fanfold.kernel.paths import matches, read_glob
from fanfold.process_identity import this_process
from fanfold.project_files import Closing
from fanfold.workspace import beneath
from fanfold.workspace.beneath import (
    FileEntry,
    Manifest,
    OpenLayers,
    PathProblem,
    git_mode,
    is_folder,
    open_folder,
    same_content,
    spot_beneath,
)
from fanfold.workspace.ignored import CACHES, DEPENDENCIES, Ignoring
from fanfold.workspace.programs import mounter, unmounter
from fanfold.workspace.programs.launcher import escaped, read_whole, unescaped
from fanfold.workspace.scan import is_bytecode

# -----------------------------------------------------------------------------------------------------------
# Ignored new files that are merged, because the write-set asks for them
#
# An ignored file is not part of a snapshot, and most of them are caches. But if the write-set of a step names
# one, the step is meant to write it, and its work would be lost.
#
# Rules
# * A pattern that matches everything does not ask for ignored files.
# * A pattern applies to an ignored folder only if it names it: `build/**` includes the files of an ignored
#   `build`, `src/**` none of an ignored `src/build`.
# * Bytecode is only merged if the pattern names the file, its suffix or its ignored folder: Python would load
#   it instead of source, and git would not show it.
# * A file that the project already has is never replaced unnoticed. If the pattern names the file, its suffix
#   or its ignored folder, it is a conflict. If only a wildcard matches it, it is left out. Otherwise a
#   program that compiles next to its sources could run only once.


def asked_for(
    paths: Iterable[str], write_set: Sequence[str], ignoring: Ignoring, nested: Sequence[str]
) -> set[str]:
    """Return the ignored files that the write-set asks for. `nested` are the inner repositories."""
    globs = [glob for glob in map(read_glob, write_set) if glob.exact or not glob.subtree or any(glob.head)]
    by = {path: [glob for glob in globs if matches([glob.text], path)] for path in paths}
    by = {path: found for path, found in by.items() if found}
    if not by:
        return set()
    closed = ignoring.ignored({f"{folder}/" for path in by for folder in folders_of(path)}, nested)
    asked: set[str] = set()
    for path, found in by.items():
        folder = next((one for one in folders_of(path) if one + "/" in closed), "")
        # A pattern applies to an ignored folder if it spells out the path to it.
        reaching = [glob for glob in found if f"{'/'.join(glob.head)}/".startswith(f"{folder}/")]
        reaching = reaching if folder else found
        # A pattern names a file if it has a part of the file name, not only the folder.
        named = bool(folder and reaching) or any(
            not glob.subtree and glob.text.rpartition("/")[2].strip("*") for glob in reaching
        )
        if named or (reaching and not is_bytecode(path) and not ignoring.is_there(path)):
            asked.add(path)
    return asked


def folders_of(path: str) -> list[str]:
    """Return the folders of a path, the outermost first."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


# -----------------------------------------------------------------------------------------------------------
# Protected links: the target of a link with a protected name is protected too
#
# Rules
# * Checked are names at the top of the project, the content of their folders a few levels down, and all links
#   that the caller knows.
# * A `.git` file contains the path of the folder of its repository.
# * Targets outside the project are never writable for a step.

MAX_DEPTH = 4
MAX_NAMES = 1_000
_BROUGHT = tuple(f".fanfold/{name}" for name in ("agents", "workflows", "config.toml"))
_PLACES = (*(name for name in OWNERS if name not in (".git", ".fanfold")), *_BROUGHT)
"""Git follows no such link. Of `.fanfold`, only the files that a project brings count."""
_GIT_FOLDER = "gitdir:"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MAX_BYTES = 4_096


def behind_links(tree: int, links: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the paths of an open tree that are targets of protected names or of these `links`."""
    found: list[str] = []
    for name in (*_PLACES, *filter(is_protected, links)):
        _look(tree, name, MAX_DEPTH, found)
    folder = _git_folder(tree)
    return tuple(sorted({*found, *([folder] if folder else [])}))


def _git_folder(tree: int) -> str:
    """Return the path of the repository that a `.git` file names; empty if it is outside the tree."""
    try:
        with spot_beneath(tree, ".git") as spot:
            handle = os.open(spot.name, _READ, dir_fd=spot.folder)
        with os.fdopen(handle, "rb") as opened:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return ""
            text = os.fsdecode(opened.read(MAX_BYTES)).rstrip("\n")
        if not text.startswith(_GIT_FOLDER):
            return ""
        target = text.removeprefix(_GIT_FOLDER).strip()
        top = os.readlink(f"/proc/self/fd/{tree}")
    except (OSError, PathProblem):
        return ""
    path = os.path.relpath(os.path.normpath(os.path.join(top, target)), top)
    landed = landing(".git", path, partial(link_at, tree))
    return landed[0] if landed is not None else ""


def link_at(tree: int | None, path: str) -> str | None:
    """Return the target of the link at a path of a tree; None if there is no link."""
    with suppress(OSError, PathProblem):
        if tree is not None:
            with spot_beneath(tree, path) as spot:
                return os.readlink(spot.name, dir_fd=spot.folder)
    return None


def _look(tree: int, path: str, depth: int, found: list[str]) -> None:
    target = link_at(tree, path)
    if target is not None:
        landed = landing(path, target, partial(link_at, tree))
        if landed is not None and landed[0]:
            found.append(landed[0])
        return
    if not depth:
        return
    try:
        opened = open_folder(tree, path)
    except (OSError, PathProblem):
        return
    with Closing(opened) as folder, os.scandir(folder) as listing:
        names = [
            entry.name
            for entry in islice(listing, MAX_NAMES)
            if entry.is_symlink() or entry.is_dir(follow_symlinks=False)
        ]
    for name in names:
        _look(tree, f"{path}/{name}", depth - 1, found)


# -----------------------------------------------------------------------------------------------------------
# Overlays: the layer of a step workspace over its base, mounted in a millisecond or two
#
# Rules
# * The lower layer is never the project itself: changes below a mounted overlay are undefined. Bases do not
#   change.
# * Root mounts the overlay visibly, at the `workspace` folder (see `unmounter`). Other users mount it in a
#   separate user namespace, which this process holds by three handles. One of them gives access to the files;
#   programs join by the other two (see `Entrance`). That overlay ends with this process.
# * A layer is not forced to disk (`volatile`). Otherwise unmounting would wait for all pending writes of the
#   machine. A merge forces its own files to disk. After a power cut, a layer is not trusted.
# * Folders are passed to the kernel as handles, so no character of a path can be parsed as an option.
# * The kernel creates folders in `work` without any permissions. They are made accessible at once, so that
#   the owner of the project can delete it, even if the overlay was never unmounted.

_START_S = 10.0
_FLAGS = beneath.MS_NOSUID | beneath.MS_NODEV
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")
_REDIRECT = ("trusted.overlay.redirect",)


class Entrance:
    """Access to an overlay in a namespace: the path of its files, and the namespaces that a program joins."""

    def __init__(self, root: int, user: int, mounts: int) -> None:
        self._handles = (root, user, mounts)

    @property
    def path(self) -> Path:
        """The path of its files, for this process and for processes that it starts as the same user."""
        return Path(f"/proc/{os.getpid()}/fd/{self._handles[0]}")

    @property
    def namespaces(self) -> tuple[str, str]:
        """The namespaces that a program joins before it is executed: user namespace, mount namespace."""
        _, user, mounts = self._handles
        return f"/proc/{os.getpid()}/fd/{user}", f"/proc/{os.getpid()}/fd/{mounts}"

    def close(self) -> None:
        handles, self._handles = self._handles, (-1, -1, -1)
        for handle in handles:
            if handle >= 0:
                os.close(handle)


def lay(lower: Sequence[Path], upper: Path, work: Path, target: Path, *, read_only: bool) -> None:
    """Mount an overlay visibly; needs the privilege to mount."""
    handles = [os.open(folder, os.O_PATH | os.O_CLOEXEC) for folder in (upper, work, *lower)]
    try:
        up, wo, *low = (f"/proc/self/fd/{handle}" for handle in handles)
        layers = f"lowerdir={':'.join(low)},upperdir={up},workdir={wo}"
        options = f"{layers},redirect_dir=on,index=off,metacopy=off,volatile"
        flags = _FLAGS | (beneath.MS_RDONLY if read_only else 0)
        beneath.mount("fanfold", str(target), "overlay", flags, options)
        unmounter.watch(str(target), str(this_process()))
        mounter.open_up(wo)
    finally:
        for handle in handles:
            os.close(handle)


def lay_in_namespace(
    lower: Sequence[Path], upper: Path, work: Path, target: Path, *, read_only: bool
) -> Entrance:
    """Mount an overlay in a separate user namespace; raises OSError if the kernel does not allow it."""
    folders = [str(folder) for folder in (upper, work, target)]
    command = [sys.executable, "-I", "-S", mounter.__file__, "1" if read_only else "0", *folders]
    command += [str(folder) for folder in lower]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={}
    ) as helper:
        assert helper.stdout is not None
        try:
            ready, _, _ = select.select([helper.stdout], [], [], _START_S)
            reply = helper.stdout.readline().decode().strip() if ready else "no answer"
            if reply != "ok":
                why = f"no overlay in a user namespace: {reply or 'refused'}"
                raise OSError(why)  # noqa: TRY301 - to be caught below, where the helper is ended
            place = f"/proc/{helper.pid}"
            with ExitStack() as opened:
                handles: list[int] = []
                for path in (f"{place}/root{target}", f"{place}/ns/user", f"{place}/ns/mnt"):
                    handles.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                    opened.callback(os.close, handles[-1])
                opened.pop_all()
            return Entrance(*handles)
        except BaseException:
            helper.kill()
            raise
        finally:
            assert helper.stdin is not None
            helper.stdin.close()


def forgive(work: Path) -> None:
    """Allow a layer to be mounted again after its process died; only a machine crash makes it untrusted."""
    os.rename(work, work.with_name(f"work.{os.urandom(4).hex()}"))
    work.mkdir(mode=0o755)


def mounts_below(folder: Path) -> list[str]:
    """Return the mount points of this namespace in a folder, innermost first."""
    try:
        table = read_whole("/proc/self/mountinfo")
    except OSError:
        return []
    below = os.fsencode(f"{folder}/")
    if escaped(below) not in table:  # the usual case; parsing the lines costs ten times as much
        return []
    points = (unescaped(line.split()[4]) for line in table.splitlines())
    return [os.fsdecode(point) for point in points if point.startswith(below)][::-1]


def lift(target: Path) -> None:
    """Unmount an overlay, if there is one."""
    for point in mounts_below(target.parent):
        if point == str(target):
            try:
                beneath.unmount(point)
                unmounter.forget(point)
            except OSError as error:
                message = f"{point} cannot be unmounted: {error.strerror}"
                raise WorldError("workspace.still_mounted", message) from error


def is_rewritten(handle: int) -> bool:
    """Return whether an open folder of a layer hides the folder below it, or shows another one's content."""
    for name in (*_OPAQUE, *_REDIRECT):
        with suppress(OSError):  # not set, or no permission to read it
            if os.getxattr(handle, name):
                return True
    return False


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
CHANGES_MAX_DEPTH = 200
_CONTENT = ("objects", "refs")
_REPOSITORY = frozenset({"HEAD", *_CONTENT, "commondir", "config", "config.worktree", "hooks"})
"""The parts of a repository that make a folder one, or that configure programs."""


class Change(msgspec.Struct, frozen=True, order=True):
    """One path that differs from the base. `mode` and `before` are git's modes, 0 if there is no file."""

    path: str
    kind: Literal["added", "modified", "deleted"]
    what: Literal["file", "link", "folder", "special"] = "file"
    mode: int = 0
    before: int = 0
    target: str = ""
    """The target of a link."""


class WriteViolation(msgspec.Struct, frozen=True, order=True):
    """A change that the step was not allowed to make, and the reason."""

    path: str
    why: Literal[
        "outside_write_set", "read_only", "protected", "special_file", "leads_out", "bad_name", "set_id"
    ]


class TreeLook(NamedTuple):
    """Answers what is at a path of a tree: the target of a link, and whether there is anything."""

    link_at: Callable[[str], str | None]
    exists: Callable[[str], bool]


def look_at(tree: int | None) -> TreeLook:
    """Return the view of an open folder. Without one there are no links and no repositories."""

    def exists(path: str) -> bool:
        with suppress(OSError, PathProblem):
            if tree is not None:
                with spot_beneath(tree, path) as spot:
                    os.stat(spot.name, dir_fd=spot.folder, follow_symlinks=False)
                    return True
        return False

    return TreeLook(partial(link_at, tree), exists)


class FoundChanges(msgspec.Struct, frozen=True):
    """The changes of a step workspace, and its new ignored files."""

    changes: list[Change]
    asked: frozenset[str] = frozenset()
    """Ignored files that count as changes, because the write-set asks for them."""
    left_out: tuple[str, ...] = ()
    """The other ignored files."""


def violations(
    changes: Iterable[Change],
    write_set: Sequence[str] | None,
    tree: int | TreeLook | None = None,
    linked: Sequence[str] = (),
) -> list[WriteViolation]:
    """Return the changes that must not be merged.

    No write-set (None) allows everything, an empty one nothing. `tree` is the tree after the changes; links
    are resolved in it. `linked` are the targets of protected names of the project.

    >>> violations([Change("src/a.py", "added"), Change("README.md", "deleted")], ["src/**"])
    [WriteViolation(path='README.md', why='outside_write_set')]
    """
    found: list[WriteViolation] = []
    changes = list(changes)
    linked = (*linked, *(behind_links(tree) if isinstance(tree, int) and changes else ()))
    look = tree if isinstance(tree, TreeLook) else look_at(tree)
    for change in changes:
        why = _never(change, look, linked)
        if why is None and write_set is not None:
            if not write_set:
                why = "read_only"
            elif not matches(write_set, change.path):
                why = "outside_write_set"
        if why is not None:
            found.append(WriteViolation(change.path, why))
    return found


def _never(
    change: Change, look: TreeLook, linked: Sequence[str]
) -> Literal["outside_write_set", "read_only", "protected", "special_file", "leads_out", "bad_name"] | None:
    if is_protected(change.path) or any(f"{change.path}/".startswith(f"{target}/") for target in linked):
        return "protected"
    if change.kind != "deleted" and bare_repository(change.path, look) is not None:
        return "protected"
    if change.what == "special":
        return "special_file"
    if change.what == "link" and change.kind != "deleted":
        if holds_protected(change.path):
            return "protected"
        if leads_out(change.path, change.target, look.link_at):
            return "leads_out"
    try:
        change.path.encode()
    except UnicodeEncodeError:
        return "bad_name"
    return None


def bare_repository(path: str, look: TreeLook) -> str | None:
    """Return the unnamed repository of a path: a folder that git accepts although it is not named `.git`."""
    parts = path.split("/")
    for at, name in enumerate(parts):
        if name in _REPOSITORY:
            folder = "/".join(parts[:at])
            has = [look.exists(f"{folder}/{one}".lstrip("/")) for one in ("HEAD", "commondir")]
            if has[0] and (has[1] or all(look.exists(f"{folder}/{one}".lstrip("/")) for one in _CONTENT)):
                return folder
    return None


class TouchedPaths:
    """Paths that may differ: single paths, new folders, and trees that are compared as a whole."""

    def __init__(self, known: Manifest) -> None:
        self.known = known
        self.paths: set[str] = set()
        self.folders: set[str] = set()
        self.trees: set[str] = set()
        self.hollow: set[str] = set()
        """Folders in those trees that were empty in the base."""

    def own(self, name: str, path: str) -> bool:
        """Return whether a folder belongs to a tool: its content is never a change."""
        return (name in DEPENDENCIES or name in CACHES) and path not in self.known.folders

    def add(self, handle: int, was: dict[str, FileEntry] | None, path: str = "", depth: int = 0) -> None:
        """Add an open folder: an upper layer of an overlay, in which everything was touched, or a copy.

        For a copied workspace, `was` are the entries of its files after the copy.
        """
        prefix = path + "/" if path else ""
        with os.scandir(handle) as listing:
            entries = list(listing)
        for entry in entries:
            where = prefix + entry.name
            if entry.is_symlink() and where not in self.known.files and self.own(entry.name, where):
                continue  # tools take what is behind it for theirs
            if not entry.is_dir(follow_symlinks=False):
                if was is None or FileEntry.of(entry.stat(follow_symlinks=False)) != was.get(where):
                    self.paths.add(where)
                if was is None and where in self.known.folders:
                    self.trees.add(where)  # deleted, or replaced by a file
                continue
            if self.own(entry.name, where):
                continue
            with Closing(os.open(entry.name, _FOLDER, dir_fd=handle)) as below:
                if _is_closed(where):
                    if os.listdir(below):
                        self.paths.add(where)
                    continue
                if where not in self.known.folders:
                    self.folders.add(where)
                    self.paths.add(where)  # a file of the base may have become this folder
                if was is None and is_rewritten(below):
                    self.trees.add(where)
                elif depth < CHANGES_MAX_DEPTH:
                    self.add(below, was, where, depth + 1)

    def missing(self, top: int) -> None:
        """Add the paths of the base that are missing in an open copied workspace."""
        seen: dict[str, set[str]] = {}
        for paths, gone in ((self.known.files, self.paths), (self.known.folders, self.trees)):
            for path in paths:
                folder, _, name = path.rpartition("/")
                if folder not in seen:
                    seen[folder] = _names_changes(top, folder)
                if name not in seen[folder]:
                    gone.add(path)

    def expand(self, child: int) -> None:
        """Replace trees by all their paths in the base and in the workspace, an open tree."""
        known = self.known
        if self.trees:
            self.paths.update(path for path in known.files if self._is_inside(path))
            inside = {path for path in known.folders if path in self.trees or self._is_inside(path)}
            used = {path.rpartition("/")[0] for path in (*known.files, *known.folders)}
            self.hollow |= inside - used
        for tree in self.trees:
            try:
                opened = open_folder(child, tree)
            except (FileNotFoundError, PathProblem):
                self.paths.add(tree)
                continue
            with Closing(opened) as handle:
                self.add(handle, {}, tree, 1)

    def _is_inside(self, path: str) -> bool:
        """Return whether a path is in one of the trees."""
        at = path.rfind("/")
        while at > 0:
            if path[:at] in self.trees:
                return True
            at = path.rfind("/", 0, at)
        return False


def judge(
    touched: TouchedPaths, base: OpenLayers, child: int, ignoring: Ignoring, write_set: Sequence[str] = ()
) -> FoundChanges:
    """Return the changes among the touched paths; `child` is an open tree."""
    touched.expand(child)
    found: list[Change] = []
    for path in touched.paths:
        change = _judge(path, touched.known, base, child)
        if change is not None and not (change.kind == "added" and LEFTOVER.match(path.rpartition("/")[2])):
            found.append(change)
    empty = [path for path in touched.folders if not _names_changes(child, path, "x")]
    found += [Change(path, "added", "folder") for path in empty]
    gone = (path for path in touched.hollow if not is_folder(child, path))
    found += [Change(path, "deleted", "folder") for path in gone]
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
        opened = open_folder(child, folder)
    except (FileNotFoundError, PathProblem):
        return _deleted(path, was)
    with Closing(opened) as theirs:
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
            with Closing(open_folder(base.at(path), folder)) as ours:
                return None if same_content(ours, theirs, name) else change
        return change


def _is_closed(path: str) -> bool:
    """Return whether a folder belongs to git or Fanfold: it is reported as one change."""
    return plain_name(path.rpartition("/")[2]) == ".git" or plain_name(path) == ".fanfold"


def _deleted(path: str, was: int) -> Change | None:
    return Change(path, "deleted", "link" if was == 0o120000 else "file", 0, was) if was else None


def _names_changes(top: int, folder: str, otherwise: str = "") -> set[str]:
    """Return the names in a folder of an open tree, or `otherwise` if it cannot be opened."""
    try:
        opened = open_folder(top, folder)
    except (OSError, PathProblem):
        return {otherwise} if otherwise else set()
    with Closing(opened) as handle:
        return set(os.listdir(handle))
