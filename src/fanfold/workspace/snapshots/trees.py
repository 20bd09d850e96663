"""Trees of ours, as they are filled: copied from the parent, linked from what we have, compared with it."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from fanfold.workspace.files.beneath import PathProblem, open_folder
from fanfold.workspace.files.copies import Copier, same_content
from fanfold.workspace.files.manifest import FileEntry, Manifest, OpenLayers
from fanfold.workspace.snapshots.deltas import make_places

COPY_THREADS = 2
_MANY = 64
_NOT_SHARED = (errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP)


class _Folder:
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


def _by_folder(paths: Iterable[str]) -> list[tuple[str, list[str]]]:
    groups: dict[str, list[str]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        groups.setdefault(folder, []).append(name)
    return list(groups.items())


def make_folders(tree: int, manifest: Manifest) -> None:
    """Make every folder of a manifest below an open one, and the places where others are bound in."""
    make_places(tree, manifest.folders, manifest.points)


def copy_files(
    source: int, target: int, paths: Collection[str], copier: Copier | None = None
) -> tuple[dict[str, FileEntry], list[str]]:
    """Copy these paths between two open trees whose folders exist; their entries, and what is gone."""
    copier = copier or Copier()

    def one_folder(group: tuple[str, list[str]]) -> tuple[dict[str, FileEntry], list[str]]:
        path, names = group
        copied: dict[str, FileEntry] = {}
        gone: list[str] = []
        with _Folder(source, path) as here, _Folder(target, path) as there:
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


def link_files(source: OpenLayers, target: int, paths: Iterable[str]) -> list[str]:
    """Share files of a base with an open tree whose folders exist; those that cannot be are to be copied."""
    rest: list[str] = []
    for tree, members in source.split(paths):
        for path, names in _by_folder(members):
            with _Folder(tree, path) as here, _Folder(target, path) as there:
                assert here.handle is not None, "a base holds what its manifest says"
                assert there.handle is not None, "folders are made before files"
                for name in names:
                    try:
                        os.link(
                            name, name, src_dir_fd=here.handle, dst_dir_fd=there.handle, follow_symlinks=False
                        )
                    except OSError as error:
                        if error.errno not in _NOT_SHARED:
                            raise
                        rest.append(f"{path}/{name}" if path else name)
    return rest


def same_files(top: int, ours: OpenLayers, paths: Iterable[str], now: Manifest, before: Manifest) -> set[str]:
    """Those of these paths at which an open tree still holds what a base of ours does."""
    same: set[str] = set()
    asked: list[str] = []
    for path in paths:
        was, entry = before.files.get(path), now.files[path]
        if was is not None and was.git_mode == entry.git_mode and (was.size == entry.size or entry.is_link):
            asked.append(path)
    for tree, members in ours.split(asked):
        for path, names in _by_folder(members):
            with _Folder(top, path) as theirs, _Folder(tree, path) as kept:
                if theirs.handle is None or kept.handle is None:
                    continue
                for name in names:
                    if same_content(theirs.handle, kept.handle, name):
                        same.add(f"{path}/{name}" if path else name)
    return same
