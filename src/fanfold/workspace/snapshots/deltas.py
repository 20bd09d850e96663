"""Deltas: a base told by what differs from a whole tree, as the lower layers of an overlay tell it.

Rules
* What is different or new is in the delta's tree; what is gone is hidden there by what overlays hide with, a
  device that is none. A folder in a delta shows what the folder below it holds.
* So a delta cannot say that a folder is there and what it held is not. That, and deltas that would cost much,
  have a new root made.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable

from fanfold.workspace.files.beneath import spot_beneath
from fanfold.workspace.files.manifest import Manifest

FEW = 256
SHARE = 32
"""A delta holds at most so many names, or that part of the tree where it is more."""


class CannotHide(Exception):  # a signal: a root is made instead
    """This machine makes no such devices."""


class BaseDelta:
    """What a delta consists of."""

    def __init__(
        self, own: frozenset[str], folders: set[str], points: dict[str, bool], hidden: set[str]
    ) -> None:
        self.own = own
        self.hidden = hidden
        self._folders = folders
        self._points = points

    def make_folders(self, tree: int) -> None:
        """Make its folders below an open one, and the places where others are bound in."""
        wanted = set(self._folders)
        for path in (*self.own, *self.hidden, *self._folders, *self._points):
            folder = path.rpartition("/")[0]
            while folder and folder not in wanted:
                wanted.add(folder)
                folder = folder.rpartition("/")[0]
        make_places(tree, wanted, self._points)


def make_places(tree: int, folders: Iterable[str], points: dict[str, bool]) -> None:
    """Make folders below an open one, and the places, empty, where others are bound in."""
    for path in sorted(folders):
        os.mkdir(path, 0o755, dir_fd=tree)
    for path, is_folder in points.items():
        if is_folder:
            os.mkdir(path, 0o755, dir_fd=tree)
        else:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=tree))


def plan_delta(now: Manifest, root: Manifest, own: Collection[str]) -> BaseDelta | None:
    """What makes a root the tree of now, `own` being the files that differ; None for a new root."""
    folders = now.folders - root.folders
    points = {path: kind for path, kind in now.points.items() if root.points.get(path) is not kind}
    gone_folders = root.folders - now.folders
    if not gone_folders.isdisjoint(points):
        return None
    gone = gone_folders | (root.files.keys() - now.files.keys()) | (root.points.keys() - now.points.keys())
    hidden = {path for path in gone if not _stands(path, now) and _has_folder(path, now)}
    if len(own) + len(hidden) + len(folders) > max(FEW, len(now.files) // SHARE):
        return None
    return BaseDelta(frozenset(own), folders, points, hidden)


def _stands(path: str, now: Manifest) -> bool:
    """Whether something else is there now, which hides what was."""
    return path in now.files or path in now.folders or path in now.points


def _has_folder(path: str, now: Manifest) -> bool:
    """Whether the folder of a path is there; what was in one that is not, is hidden with it."""
    folder = path.rpartition("/")[0]
    return not folder or folder in now.folders


def hide(tree: int, paths: Iterable[str]) -> None:
    """Hide what the tree below has at these paths; raises CannotHide."""
    for path in paths:
        with spot_beneath(tree, path) as spot:
            try:
                os.mknod(spot.name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=spot.folder)
            except PermissionError as error:
                raise CannotHide from error
