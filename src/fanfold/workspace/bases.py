"""Base trees: one immutable copy of the project tree per state, used as the lower layer of step workspaces.

Rules
* A base is created under the workspace lock, in a folder that gets its name only when it is complete. After
  that, it is never written. Step workspaces and proposals refer to it by name.
* A base is a whole tree (a *root*), or a *delta* to a root that is kept with it. So a base costs only what
  changed. If much has changed, a new root is created. Its unchanged files are hard links to the files of the
  previous base, never to files of the user.
* A base from an earlier boot of the machine is not reused, because it was never forced to disk.
* It contains empty mount points for `.git` and the dependency folders of the project tree.
* A scan of the project tree serves all callers that asked before the scan started, because it shows a state
  after their request. So many concurrent requests cost one or two scans.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

import msgspec

from fanfold.project_files import Closing, write_whole
from fanfold.workspace import layout as trash
from fanfold.workspace.beneath import (
    Copier,
    FileEntry,
    Manifest,
    OpenLayers,
    PathProblem,
    decode,
    differing,
    encode,
    join_names,
    open_folder,
    open_top,
    same_content,
    split_names,
    spot_beneath,
)
from fanfold.workspace.ignored import Ignoring
from fanfold.workspace.layout import Layout, read_kept
from fanfold.workspace.scan import SnapshotLimits, look, rescan, scan_asking

# -----------------------------------------------------------------------------------------------------------
# Deltas: the differences between a base and a whole tree, as layers of an overlay
#
# Rules
# * Changed and new files are in the delta's tree. Removed files are hidden by an overlay whiteout, a special
#   device file. A folder in a delta also shows the content of the folder below it.
# * So a delta cannot express that a folder exists without its earlier content. In this case, or if a delta
#   would be large, a new root is created.

FEW = 256
SHARE = 32
"""A delta has at most `FEW` names, or 1/`SHARE` of the tree if that is more."""


class CannotHide(Exception):  # not an error: a root is created instead
    """This machine cannot create whiteout devices."""


class BaseDelta:
    """The content of a delta."""

    def __init__(
        self, own: frozenset[str], folders: set[str], points: dict[str, bool], hidden: set[str]
    ) -> None:
        self.own = own
        self.hidden = hidden
        self._folders = folders
        self._points = points

    def make_folders(self, tree: int) -> None:
        """Create its folders below an open one, and its mount points."""
        wanted = set(self._folders)
        for path in (*self.own, *self.hidden, *self._folders, *self._points):
            folder = path.rpartition("/")[0]
            while folder and folder not in wanted:
                wanted.add(folder)
                folder = folder.rpartition("/")[0]
        make_places(tree, wanted, self._points)


def make_places(tree: int, folders: Iterable[str], points: dict[str, bool]) -> None:
    """Create folders and empty mount points below an open folder."""
    for path in sorted(folders):
        os.mkdir(path, 0o755, dir_fd=tree)
    for path, is_folder in points.items():
        if is_folder:
            os.mkdir(path, 0o755, dir_fd=tree)
        else:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=tree))


def plan_delta(now: Manifest, root: Manifest, own: Collection[str]) -> BaseDelta | None:
    """Return the delta from a root to this tree, or None for a new root; `own` are files that differ."""
    folders = now.folders - root.folders
    points = {path: kind for path, kind in now.points.items() if root.points.get(path) is not kind}
    gone_folders = root.folders - now.folders
    if not gone_folders.isdisjoint(points):
        return None
    gone = gone_folders | (root.files.keys() - now.files.keys()) | (root.points.keys() - now.points.keys())
    # An existing path hides the earlier file, and files of a missing folder are hidden with it.
    hidden = {
        path
        for path in gone.difference(now.files, now.folders, now.points)
        if "/" not in path or path.rpartition("/")[0] in now.folders
    }
    if len(own) + len(hidden) + len(folders) > max(FEW, len(now.files) // SHARE):
        return None
    return BaseDelta(frozenset(own), folders, points, hidden)


def hide(tree: int, paths: Iterable[str]) -> None:
    """Hide these paths of the tree below; raises CannotHide."""
    for path in paths:
        with spot_beneath(tree, path) as spot:
            try:
                os.mknod(spot.name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=spot.folder)
            except PermissionError as error:
                raise CannotHide from error


# -----------------------------------------------------------------------------------------------------------
# Filling trees: copy files from the project tree, link files of a base, compare both

COPY_THREADS = 2
_MANY = 64
_NOT_SHARED = (errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP)


@contextmanager
def _opened(top: int, path: str) -> Iterator[int | None]:
    """Open a folder beneath an open one; None if it is gone."""
    try:
        handle = open_folder(top, path)
    except (FileNotFoundError, PathProblem):
        yield None
        return
    with Closing(handle):
        yield handle


def _by_folder(paths: Iterable[str]) -> list[tuple[str, list[str]]]:
    groups: dict[str, list[str]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        groups.setdefault(folder, []).append(name)
    return list(groups.items())


def make_folders(tree: int, manifest: Manifest) -> None:
    """Create all folders and mount points of a manifest below an open folder."""
    make_places(tree, manifest.folders, manifest.points)


def copy_files(
    source: int, target: int, paths: Collection[str], copier: Copier | None = None
) -> tuple[dict[str, FileEntry], list[str]]:
    """Copy paths between two open trees whose folders exist; return their entries, and the missing paths."""
    copier = copier or Copier()

    def one_folder(group: tuple[str, list[str]]) -> tuple[dict[str, FileEntry], list[str]]:
        path, names = group
        copied: dict[str, FileEntry] = {}
        gone: list[str] = []
        with _opened(source, path) as here, _opened(target, path) as there:
            for name in names:
                where = f"{path}/{name}" if path else name
                entry = None
                if here is not None and there is not None:
                    entry = copier.copy(here, name, there, where)
                if entry is None:
                    gone.append(where)
                else:
                    copied[where] = entry
        return copied, gone

    groups = _by_folder(paths)
    entries: dict[str, FileEntry] = {}
    missing: list[str] = []
    if len(paths) < _MANY:
        results = [one_folder(group) for group in groups]
    else:
        with ThreadPoolExecutor(COPY_THREADS) as pool:
            results = list(pool.map(one_folder, groups))
    for copied, gone in results:
        entries |= copied
        missing += gone
    return entries, missing


def link_files(source: OpenLayers, target: int, paths: Iterable[str]) -> list[str]:
    """Hard-link files of a base into an open tree; return the paths that must be copied."""
    rest: list[str] = []
    for tree, members in source.split(paths):
        for path, names in _by_folder(members):
            with _opened(tree, path) as here, _opened(target, path) as there:
                assert here is not None, "a base holds what its manifest says"
                assert there is not None, "folders are made before files"
                for name in names:
                    try:
                        os.link(name, name, src_dir_fd=here, dst_dir_fd=there, follow_symlinks=False)
                    except OSError as error:
                        if error.errno not in _NOT_SHARED:
                            raise
                        rest.append(f"{path}/{name}" if path else name)
    return rest


def same_files(top: int, ours: OpenLayers, paths: Iterable[str], now: Manifest, before: Manifest) -> set[str]:
    """Return the paths whose content in an open tree is still the same as in a base."""
    same: set[str] = set()
    asked: list[str] = []
    for path in paths:
        was, entry = before.files.get(path), now.files[path]
        if was is not None and was.git_mode == entry.git_mode and (was.size == entry.size or entry.is_link):
            asked.append(path)
    for tree, members in ours.split(asked):
        for path, names in _by_folder(members):
            with _opened(top, path) as theirs, _opened(tree, path) as kept:
                for name in names:
                    if theirs is not None and kept is not None and same_content(theirs, kept, name):
                        same.add(f"{path}/{name}" if path else name)
    return same


DELTA = "delta"
"""The file of a delta next to its manifest: the name of its root, and the files in its own tree."""


class Base:
    """An immutable copy of the project tree, with its manifest."""

    def __init__(
        self, folder: Path, manifest: Manifest, root: Base | None = None, own: Collection[str] = ()
    ) -> None:
        self.id = folder.name
        self.folder = folder
        self.manifest = manifest
        self.root = root or self
        """The base itself, or the root below it."""
        self.own = frozenset(own)
        """The files in its own tree, if it is a delta."""

    @property
    def trees(self) -> tuple[Path, ...]:
        """The lower layers of an overlay, the uppermost first."""
        own = self.folder / "tree"
        return (own,) if self.root is self else (own, self.root.folder / "tree")

    def opened(self) -> OpenLayers:
        """Open its trees for reading."""
        return OpenLayers(self.trees, lambda path: path in self.own or path not in self.manifest.files)

    @property
    def is_there(self) -> bool:
        return all(tree.exists() for tree in self.trees)


class Bases:
    """The base trees of one project. Every method is called with the workspace lock held."""

    def __init__(self, layout: Layout, ignoring: Ignoring, limits: SnapshotLimits) -> None:
        self._layout = layout
        self._ignoring = ignoring
        self._limits = limits
        self._known: dict[str, Base] = {}
        self._guard = Lock()
        self._looked_ns = 0
        """The start time of the last scan of the project tree; `_found` is its result."""
        self._found: Base | None = None

    def current(self, asked_ns: int) -> Base:
        """Return a base that equals the project tree at some time since `asked_ns` (monotonic)."""
        if self._found is not None and asked_ns < self._looked_ns and self._found.is_there:
            return self._found
        looked_ns = time.monotonic_ns()
        newest = self._newest()
        with Closing(open_top(self._layout.project)) as top:
            again = rescan(top, newest.manifest, self._ignoring, self._limits) if newest else None
            now = again.now if again else scan_asking(top, self._ignoring, self._limits)
            if newest is None:
                base = self._make_root(top, now, None, list(now.files))
            elif again is not None and again.now is newest.manifest:
                base = newest
            else:
                differs = again.differs if again else differing(newest.manifest, now)
                base = self._make(top, now, newest, differs)
        self._looked_ns, self._found = looked_ns, base
        return base

    def look(self, known: Manifest) -> Manifest:
        """Scan the current project tree; nothing is copied."""
        return look(self._layout.project, known, self._ignoring, self._limits)

    def get(self, base_id: str) -> Base:
        """Return a base by its name; raises FileNotFoundError."""
        return self._read(base_id)[0]

    def _read(self, name: str) -> tuple[Base, bool]:
        """Return a base, and whether it was created since the machine booted."""
        with self._guard:
            known = self._known.get(name)
        if known is not None and known.is_there:
            return known, True
        folder = self._layout.bases / name
        file = folder / "manifest"
        data, kept = read_kept(file), self._kept(name)
        if kept is None:
            manifest, this_boot = decode(data, file)
            base = Base(folder, manifest)
        else:
            root, this_boot = self._read(kept[0])
            manifest, same_boot = decode(data, file, root.manifest)
            this_boot = this_boot and same_boot
            base = Base(folder, manifest, root, split_names(kept[1]))
        if this_boot:
            self._remember(base)
        return base, this_boot

    def _kept(self, name: str) -> tuple[str, bytes] | None:
        """Return the name of the root of a delta, and the joined names of its own files."""
        try:
            data = read_kept(self._layout.bases / name / DELTA)
        except FileNotFoundError:
            return None
        return msgspec.msgpack.decode(data, type=tuple[str, bytes])

    def roots(self, names: Collection[str]) -> set[str]:
        """Return the roots of these bases."""
        return {kept[0] for kept in map(self._kept, names) if kept is not None}

    def _remember(self, base: Base) -> None:
        with self._guard:
            self._known.pop(base.id, None)
            self._known[base.id] = base
            while len(self._known) > 4:
                self._known.pop(next(iter(self._known)))

    def _newest(self) -> Base | None:
        name = self.newest_name()
        if name is None:
            return None
        try:
            base, this_boot = self._read(name)
        except FileNotFoundError:
            return None
        return base if this_boot else None

    def _make(self, top: int, now: Manifest, previous: Base, differs: Collection[str]) -> Base:
        with previous.opened() as before:
            same = same_files(top, before, differs, now, previous.manifest)
        changed = [path for path in differs if path not in same]
        known = previous.manifest
        same_names = known.files.keys() == now.files.keys() and known.folders == now.folders
        if not changed and same_names and known.points == now.points:  # only times differ
            root = None if previous.root is previous else previous.root
            write_whole(previous.folder / "manifest", encode(now, root.manifest if root else None))
            fresh = Base(previous.folder, now, root, previous.own)
            self._remember(fresh)
            return fresh
        delta = plan_delta(now, previous.root.manifest, (previous.own & now.files.keys()).union(changed))
        if delta is not None:
            with suppress(CannotHide):
                return self._make_delta(top, now, previous, changed, delta)
        return self._make_root(top, now, previous, changed)

    def _make_root(self, top: int, now: Manifest, previous: Base | None, changed: Collection[str]) -> Base:
        with self._begun() as (folder, tree):
            make_folders(tree, now)
            _fill(top, tree, now, previous, changed, now.files.keys() - changed)
            write_whole(folder / "manifest", encode(now))
            return self._complete(folder, now)

    def _make_delta(
        self, top: int, now: Manifest, previous: Base, changed: Collection[str], delta: BaseDelta
    ) -> Base:
        root = previous.root
        with self._begun() as (folder, tree):
            delta.make_folders(tree)
            gone = _fill(top, tree, now, previous, changed, delta.own.difference(changed))
            hide(tree, delta.hidden | (root.manifest.files.keys() & gone))
            own = delta.own.difference(gone)
            write_whole(folder / "manifest", encode(now, root.manifest))
            write_whole(folder / DELTA, msgspec.msgpack.encode((root.id, join_names(own))))
            return self._complete(folder, now, root, own)

    @contextmanager
    def _begun(self) -> Iterator[tuple[Path, int]]:
        """Create a temporary folder for a base and open its tree; delete it if anything fails."""
        folder = self._layout.bases / f".{os.urandom(8).hex()}"
        for made in (folder, folder / "tree"):
            made.mkdir(mode=0o700)
        with Closing(open_top(folder / "tree")) as tree:
            try:
                yield folder, tree
            except BaseException:
                trash.throw_away(folder, self._layout.trash)
                raise

    def _complete(
        self, begun: Path, now: Manifest, root: Base | None = None, own: Collection[str] = ()
    ) -> Base:
        folder = begun.with_name(begun.name[1:])
        os.rename(begun, folder)
        write_whole(self._layout.bases / "current", folder.name.encode())
        base = Base(folder, now, root, own)
        self._remember(base)
        return base

    def names(self) -> list[str]:
        """Return the names of all complete bases."""
        return [
            name for name in os.listdir(self._layout.bases) if not name.startswith(".") and name != "current"
        ]

    def newest_name(self) -> str | None:
        """Return the name of the newest base; None if there is no valid one."""
        try:
            name = os.fsdecode(read_kept(self._layout.bases / "current"))
        except FileNotFoundError:
            return None
        return name if name in self.names() else None


def _fill(
    top: int,
    tree: int,
    now: Manifest,
    previous: Base | None,
    changed: Collection[str],
    linked: Collection[str],
) -> list[str]:
    """Copy changed files into a new base and link the others; return files that are gone since the scan."""
    copied = list(changed)
    if previous is not None:
        with previous.opened() as before:
            copied += link_files(before, tree, linked)
    entries, gone = copy_files(top, tree, copied)
    now.files.update(entries)
    for path in gone:
        del now.files[path]
    return gone
