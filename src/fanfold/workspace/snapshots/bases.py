"""Base trees: one immutable copy of the parent per state it was in, under which children are layers.

Rules
* A base is made under the workspace lock, in a folder that takes its name only when it is complete. After
  that nothing writes to it. Its name is what children and proposals remember.
* What did not change since the previous base is a hard link to that base's file (ours to ours; never to a
  file of the user's). So a base costs what changed, and names.
* A base of an earlier start of the machine is not built upon: it was never forced to the disk.
* Places where the parent's `.git` and dependency folders are bound in are there, empty.
"""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Self

from fanfold.workspace.files import trash
from fanfold.workspace.files.beneath import PathProblem, open_folder, open_top
from fanfold.workspace.files.copies import Copier, same_content
from fanfold.workspace.files.ignored import Ignoring
from fanfold.workspace.files.layout import Layout, write_whole
from fanfold.workspace.files.manifest import FileEntry, Manifest, decode, encode
from fanfold.workspace.files.scan import SnapshotLimits, is_still, look, scan_asking, scan_known

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
COPY_THREADS = 2
_MANY = 64


class Base:
    """An immutable tree and what it was copied from."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.id = folder.name
        self.tree = folder / "tree"
        self.manifest = manifest


class Bases:
    """The base trees of one project. Every method is called with the workspace lock held."""

    def __init__(self, layout: Layout, ignoring: Ignoring, limits: SnapshotLimits) -> None:
        self._layout = layout
        self._ignoring = ignoring
        self._limits = limits
        self._known: dict[str, Base] = {}
        self._guard = Lock()

    def current(self) -> Base:
        """The base that equals the parent as it is now; made when there is none."""
        newest = self._newest()
        top = open_top(self._layout.project)
        try:
            if newest is None:
                return self._make(top, scan_asking(top, self._ignoring, self._limits), None)
            if is_still(top, newest.manifest, self._ignoring):
                return newest
            now = scan_known(top, newest.manifest, self._ignoring, self._limits)
            now = now or scan_asking(top, self._ignoring, self._limits)
            return self._make(top, now, newest)
        finally:
            os.close(top)

    def look(self, known: Manifest) -> Manifest:
        """The parent as it is now; nothing is copied."""
        return look(self._layout.project, known, self._ignoring, self._limits)

    def get(self, base_id: str) -> Base:
        """A base by its name; raises FileNotFoundError."""
        with self._guard:
            known = self._known.get(base_id)
        if known is not None and known.tree.exists():
            return known
        folder = self._layout.bases / base_id
        file = folder / "manifest"
        base = Base(folder, decode(file.read_bytes(), file)[0])
        self._remember(base)
        return base

    def _remember(self, base: Base) -> None:
        with self._guard:
            self._known[base.id] = base
            while len(self._known) > 4:
                self._known.pop(next(iter(self._known)))

    def _newest(self) -> Base | None:
        name = self.newest_name()
        if name is None:
            return None
        file = self._layout.bases / name / "manifest"
        with self._guard:
            known = self._known.get(name)
        if known is not None and known.tree.exists():
            return known
        try:
            manifest, this_boot = decode(file.read_bytes(), file)
        except FileNotFoundError:
            return None
        return Base(file.parent, manifest) if this_boot else None

    def _make(self, top: int, now: Manifest, previous: Base | None) -> Base:
        changed, shared = _compare(top, now, previous)
        if previous is not None and not changed and _same_shape(now, previous.manifest):
            return self._refresh(previous, now)
        name = os.urandom(8).hex()
        begun = self._layout.bases / f".{name}"
        (begun / "tree").mkdir(parents=True, mode=0o700)
        try:
            _fill(begun / "tree", top, now, previous, changed, shared)
            (begun / "manifest").write_bytes(encode(now))
        except BaseException:
            trash.throw_away(begun, self._layout.trash)
            raise
        folder = self._layout.bases / name
        os.rename(begun, folder)
        write_whole(self._layout.bases / "current", name.encode())
        base = Base(folder, now)
        self._remember(base)
        return base

    def _refresh(self, base: Base, now: Manifest) -> Base:
        """The parent was touched but holds the same: only what we know of its times is new."""
        now.points = dict(base.manifest.points)  # what has no place in the tree cannot be bound in
        write_whole(base.tree.parent / "manifest", encode(now))
        fresh = Base(base.tree.parent, now)
        self._remember(fresh)
        return fresh

    def names(self) -> list[str]:
        """Every complete base."""
        return [
            name for name in os.listdir(self._layout.bases) if not name.startswith(".") and name != "current"
        ]

    def newest_name(self) -> str | None:
        """The base that was made last; None when what is written there names none."""
        try:
            name = os.fsdecode((self._layout.bases / "current").read_bytes())
        except FileNotFoundError:
            return None
        return name if name in self.names() else None


def _same_shape(one: Manifest, other: Manifest) -> bool:
    return one.files.keys() == other.files.keys() and one.folders == other.folders


def _compare(top: int, now: Manifest, previous: Base | None) -> tuple[list[str], list[str]]:
    """What has to be copied, and what the previous base has already."""
    if previous is None:
        return list(now.files), []
    changed: list[str] = []
    shared: list[str] = []
    doubtful: list[str] = []
    before = previous.manifest
    for path, entry in now.files.items():
        old = before.files.get(path)
        if old is None:
            changed.append(path)
        elif old == entry and before.settled(entry):
            shared.append(path)
        elif old.git_mode == entry.git_mode and (old.size == entry.size or entry.is_link):
            doubtful.append(path)
        else:
            changed.append(path)
    if doubtful:
        tree = open_top(previous.tree)
        try:
            for path, folders in _by_folder(doubtful):
                with _Folders(top, path) as parent, _Folders(tree, path) as ours:
                    for name in folders:
                        where = f"{path}/{name}" if path else name
                        same = parent.handle is not None and ours.handle is not None
                        if same and same_content(parent.handle or 0, ours.handle or 0, name):
                            shared.append(where)
                        else:
                            changed.append(where)
        finally:
            os.close(tree)
    return changed, shared


class _Folders:
    """A folder beneath an open one, or None when it is gone."""

    def __init__(self, top: int, path: str) -> None:
        self._top, self._path = top, path
        self.handle: int | None = None

    def __enter__(self) -> Self:
        try:
            self.handle = open_folder(self._top, self._path)
        except (FileNotFoundError, PathProblem):
            self.handle = None
        return self

    def __exit__(self, *_: object) -> None:
        if self.handle is not None:
            os.close(self.handle)


def _by_folder(paths: list[str]) -> list[tuple[str, list[str]]]:
    groups: dict[str, list[str]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        groups.setdefault(folder, []).append(name)
    return list(groups.items())


def make_folders(tree: int, manifest: Manifest) -> None:
    """Make every folder of a manifest below an open one, and the places where others are bound in."""
    for path in sorted(manifest.folders):
        os.mkdir(path, 0o755, dir_fd=tree)
    for path, is_folder in manifest.points.items():
        if is_folder:
            os.mkdir(path, 0o755, dir_fd=tree)
        else:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=tree))


def copy_files(
    source: int, target: int, paths: list[str], copier: Copier
) -> tuple[dict[str, FileEntry], list[str]]:
    """Copy these paths between two open trees whose folders exist; their entries, and what is gone."""

    def one_folder(group: tuple[str, list[str]]) -> tuple[dict[str, FileEntry], list[str]]:
        path, names = group
        copied: dict[str, FileEntry] = {}
        gone: list[str] = []
        with _Folders(source, path) as here, _Folders(target, path) as there:
            for name in names:
                where = f"{path}/{name}" if path else name
                entry = None
                if here.handle is not None and there.handle is not None:
                    entry = copier.copy(here.handle, name, there.handle, where)
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


def _fill(
    tree: Path, top: int, now: Manifest, previous: Base | None, changed: list[str], shared: list[str]
) -> None:
    target = open_top(tree)
    try:
        make_folders(target, now)
        if previous is not None:
            changed += _link(previous, target, shared)
        entries, gone = copy_files(top, target, changed, Copier())
        now.files.update(entries)
        for path in gone:
            del now.files[path]
    finally:
        os.close(target)


def _link(previous: Base, target: int, paths: list[str]) -> list[str]:
    """Share the previous base's files; those that cannot be shared are to be copied."""
    rest: list[str] = []
    source = open_top(previous.tree)
    try:
        for path, names in _by_folder(paths):
            with _Folders(source, path) as here, _Folders(target, path) as there:
                assert here.handle is not None, "a base holds what its manifest says"
                assert there.handle is not None, "folders are made before files"
                for name in names:
                    try:
                        os.link(
                            name, name, src_dir_fd=here.handle, dst_dir_fd=there.handle, follow_symlinks=False
                        )
                    except OSError as error:
                        if error.errno not in (errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP):
                            raise
                        rest.append(f"{path}/{name}" if path else name)
    finally:
        os.close(source)
    return rest
