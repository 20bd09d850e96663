"""Base trees: one immutable copy of the parent per state it was in, under which children are layers.

Rules
* A base is made under the workspace lock, in a folder that takes its name only when it is complete. After
  that nothing writes to it. Its name is what children and proposals remember.
* A base is a whole tree (a *root*), or what differs from a root that is kept with it (`deltas`). So a base
  costs what changed. When much did, a new root is made, and what did not change in it is a hard link to the
  file of the base before (ours to ours; never to a file of the user's).
* A base of an earlier start of the machine is not built upon: it was never forced to the disk.
* Places where the parent's `.git` and dependency folders are bound in are there, empty.
* Who asked before a look at the parent began is answered by that look: it is the parent as it was after they
  asked. So many who ask at once cost one or two looks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

import msgspec

from fanfold.trust.project_files import write_whole
from fanfold.workspace.files import trash
from fanfold.workspace.files.beneath import open_top
from fanfold.workspace.files.ignored import Ignoring
from fanfold.workspace.files.layout import Layout, read_kept
from fanfold.workspace.files.manifest import (
    Manifest,
    OpenLayers,
    decode,
    differing,
    encode,
    join_names,
    split_names,
)
from fanfold.workspace.files.rescan import look, rescan
from fanfold.workspace.files.scan import SnapshotLimits, scan_asking
from fanfold.workspace.snapshots.deltas import BaseDelta, CannotHide, hide, plan_delta
from fanfold.workspace.snapshots.trees import copy_files, link_files, make_folders, same_files

DELTA = "delta"
"""Beside the manifest of a base that lies on a root: which, and what is in its own tree."""


class Base:
    """An immutable tree and what it was copied from."""

    def __init__(
        self, folder: Path, manifest: Manifest, root: Base | None = None, own: Collection[str] = ()
    ) -> None:
        self.id = folder.name
        self.folder = folder
        self.manifest = manifest
        self.root = root or self
        """The whole tree that it is, or lies on."""
        self.own = frozenset(own)
        """The files that are in its own tree, where it lies on another one."""

    @property
    def trees(self) -> tuple[Path, ...]:
        """What an overlay is laid over, the uppermost first."""
        own = self.folder / "tree"
        return (own,) if self.root is self else (own, self.root.folder / "tree")

    def opened(self) -> OpenLayers:
        """Its trees, to be read."""
        return OpenLayers(self.trees, lambda path: path in self.own or path not in self.manifest.files)

    @property
    def is_there(self) -> bool:
        return all(tree.exists() for tree in self.trees)


class _DeltaRecord(msgspec.Struct, array_like=True):
    root: str
    own: bytes


class Bases:
    """The base trees of one project. Every method is called with the workspace lock held."""

    def __init__(self, layout: Layout, ignoring: Ignoring, limits: SnapshotLimits) -> None:
        self._layout = layout
        self._ignoring = ignoring
        self._limits = limits
        self._known: dict[str, Base] = {}
        self._guard = Lock()
        self._looked_ns = 0
        """When the last look at the parent began, and what it found."""
        self._found: Base | None = None

    def current(self, asked_ns: int) -> Base:
        """The base that equals the parent as it was at some moment since then; made when there is none.

        `asked_ns` is a moment of `time.monotonic_ns`.
        """
        if self._found is not None and asked_ns < self._looked_ns and self._found.is_there:
            return self._found
        looked_ns = time.monotonic_ns()
        found = self._look_again()
        self._looked_ns, self._found = looked_ns, found
        return found

    def _look_again(self) -> Base:
        newest = self._newest()
        top = open_top(self._layout.project)
        try:
            if newest is None:
                now = scan_asking(top, self._ignoring, self._limits)
                return self._make_root(top, now, None, list(now.files))
            again = rescan(top, newest.manifest, self._ignoring, self._limits)
            if again is not None and again.now is newest.manifest:
                return newest
            now = again.now if again else scan_asking(top, self._ignoring, self._limits)
            differs = again.differs if again else differing(newest.manifest, now)
            return self._make(top, now, newest, differs)
        finally:
            os.close(top)

    def look(self, known: Manifest) -> Manifest:
        """The parent as it is now; nothing is copied."""
        return look(self._layout.project, known, self._ignoring, self._limits)

    def get(self, base_id: str) -> Base:
        """A base by its name; raises FileNotFoundError."""
        return self._read(base_id)[0]

    def _read(self, name: str) -> tuple[Base, bool]:
        """A base, and whether it was made since the machine started."""
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
            root, this_boot = self._read(kept.root)
            manifest, same_boot = decode(data, file, root.manifest)
            this_boot = this_boot and same_boot
            base = Base(folder, manifest, root, split_names(kept.own))
        if this_boot:
            self._remember(base)
        return base, this_boot

    def _kept(self, name: str) -> _DeltaRecord | None:
        try:
            data = read_kept(self._layout.bases / name / DELTA)
        except FileNotFoundError:
            return None
        return msgspec.msgpack.decode(data, type=_DeltaRecord)

    def roots(self, names: Collection[str]) -> set[str]:
        """The roots that these bases lie on."""
        return {kept.root for kept in map(self._kept, names) if kept is not None}

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
        if not changed and _same_shape(now, previous.manifest):
            return self._refresh(previous, now)
        delta = plan_delta(now, previous.root.manifest, (previous.own & now.files.keys()).union(changed))
        if delta is not None:
            try:
                return self._make_delta(top, now, previous, changed, delta)
            except CannotHide:
                pass
        return self._make_root(top, now, previous, changed)

    def _make_root(self, top: int, now: Manifest, previous: Base | None, changed: Collection[str]) -> Base:
        with self._begun() as (folder, tree):
            make_folders(tree, now)
            copied = list(changed)
            if previous is not None:
                with previous.opened() as before:
                    copied += link_files(before, tree, now.files.keys() - changed)
            entries, gone = copy_files(top, tree, copied)
            now.files.update(entries)
            for path in gone:
                del now.files[path]
            (folder / "manifest").write_bytes(encode(now))
            return self._complete(folder, now)

    def _make_delta(
        self, top: int, now: Manifest, previous: Base, changed: Collection[str], delta: BaseDelta
    ) -> Base:
        root = previous.root
        with self._begun() as (folder, tree):
            delta.make_folders(tree)
            copied = list(changed)
            with previous.opened() as before:
                copied += link_files(before, tree, delta.own.difference(changed))
            entries, gone = copy_files(top, tree, copied)
            now.files.update(entries)
            for path in gone:
                del now.files[path]
            hide(tree, delta.hidden | (root.manifest.files.keys() & gone))
            own = delta.own.difference(gone)
            (folder / "manifest").write_bytes(encode(now, root.manifest))
            (folder / DELTA).write_bytes(msgspec.msgpack.encode(_DeltaRecord(root.id, join_names(own))))
            return self._complete(folder, now, root, own)

    @contextmanager
    def _begun(self) -> Iterator[tuple[Path, int]]:
        """A new folder that has no name yet, and its tree, open; away with it when something fails."""
        folder = self._layout.bases / f".{os.urandom(8).hex()}"
        (folder / "tree").mkdir(parents=True, mode=0o700)
        tree = open_top(folder / "tree")
        try:
            yield folder, tree
        except BaseException:
            trash.throw_away(folder, self._layout.trash)
            raise
        finally:
            os.close(tree)

    def _complete(
        self, begun: Path, now: Manifest, root: Base | None = None, own: Collection[str] = ()
    ) -> Base:
        folder = begun.with_name(begun.name[1:])
        os.rename(begun, folder)
        write_whole(self._layout.bases / "current", folder.name.encode())
        base = Base(folder, now, root, own)
        self._remember(base)
        return base

    def _refresh(self, base: Base, now: Manifest) -> Base:
        """The parent was touched but holds the same: only what we know of its times is new."""
        root = None if base.root is base else base.root
        write_whole(base.folder / "manifest", encode(now, root.manifest if root else None))
        fresh = Base(base.folder, now, root, base.own)
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
            name = os.fsdecode(read_kept(self._layout.bases / "current"))
        except FileNotFoundError:
            return None
        return name if name in self.names() else None


def _same_shape(one: Manifest, other: Manifest) -> bool:
    return (
        one.files.keys() == other.files.keys() and one.folders == other.folders and one.points == other.points
    )
