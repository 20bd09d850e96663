"""Protected names of a project that are links: what they lead to is read under their name, and protected too.

Rules
* Only names at the top of the project are looked at, and what is in their folders a few levels down.
* What leads out of the project is no step's to change anyway.
"""

from __future__ import annotations

import os
from functools import partial
from itertools import islice

from fanfold.kernel.sets.protected import OWNERS, landing
from fanfold.workspace.files.beneath import PathProblem, open_folder, spot_beneath

MAX_DEPTH = 4
MAX_NAMES = 1_000
_PROGRAMS = tuple(name for name in OWNERS if name not in (".git", ".fanfold"))
"""Git follows no link of ours, and of our own folder no step sees anything."""


def behind_links(tree: int) -> tuple[str, ...]:
    """Paths of an open tree to which a protected name leads."""
    found: list[str] = []
    for name in _PROGRAMS:
        _look(tree, name, MAX_DEPTH, found)
    return tuple(sorted({*found}))


def link_at(tree: int | None, path: str) -> str | None:
    """Where the link at a path of a tree points; None for what is no link, or not there."""
    if tree is None:
        return None
    try:
        with spot_beneath(tree, path) as spot:
            return os.readlink(spot.name, dir_fd=spot.folder)
    except (OSError, PathProblem):
        return None


def _look(tree: int, path: str, depth: int, found: list[str]) -> None:
    target = link_at(tree, path)
    if target is not None:
        landed = landing(path, target, partial(link_at, tree))
        if landed is not None and landed[0]:
            found.append(landed[0])
        return
    for name in _inside(tree, path) if depth else ():
        _look(tree, f"{path}/{name}", depth - 1, found)


def _inside(tree: int, path: str) -> list[str]:
    """Links and folders in a folder."""
    try:
        folder = open_folder(tree, path)
    except (OSError, PathProblem):
        return []
    try:
        with os.scandir(folder) as entries:
            return [
                one.name
                for one in islice(entries, MAX_NAMES)
                if one.is_symlink() or one.is_dir(follow_symlinks=False)
            ]
    finally:
        os.close(folder)
