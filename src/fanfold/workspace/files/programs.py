"""Which file a program of ours is: git, bubblewrap. Never one that somebody put into the project.

`PATH` may name folders of the project (a virtual environment that is active, `node_modules/.bin`, `.`, an
empty entry). A command of a step may be found there, inside the sandbox; what the host itself runs may not,
nor what such a program looks for in turn: the interpreter that its first line names, the `ssh` behind a push.
What lies around the project in the same repository came with the same checkout, and counts as the project.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from fanfold.trust.location import folders_above


def find_program(name: str, project: Path) -> str | None:
    """The first program of this name on PATH whose folder, links resolved, lies outside the project."""
    checkout = _checkout(project)
    for folder in _trusted_folders(checkout):
        file = os.path.join(folder, name)
        runs = os.path.isfile(file) and os.access(file, os.X_OK)
        if runs and not _is_below(os.path.realpath(file), checkout):
            return file
    return None


def search_path(project: Path) -> str:
    """PATH as a program that the host runs is given it: without what lies in the project."""
    return os.pathsep.join(_trusted_folders(_checkout(project))) or os.defpath


def _checkout(project: Path) -> str:
    """The top of what came with the project. A home that is a repository is the user's own all the same."""
    home = os.path.realpath(os.path.expanduser("~"))
    around = [str(folder) for folder in folders_above(project) if not _is_below(home, str(folder))]
    return around[-1] if around else os.path.realpath(project)


def _trusted_folders(checkout: str) -> Iterator[str]:
    for folder in os.get_exec_path():
        if os.path.isabs(folder) and not _is_below(os.path.realpath(folder), checkout):
            yield folder


def _is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")
