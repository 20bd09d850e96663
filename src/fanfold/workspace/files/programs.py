"""Which file a program of ours is: git, bubblewrap. Never one that somebody put into the project.

`PATH` may name folders of the project (a virtual environment that is active, `.`, an empty entry). A command
of a step may be found there, inside the sandbox; what the host itself runs may not.
"""

from __future__ import annotations

import os
from pathlib import Path


def find_program(name: str, project: Path) -> str | None:
    """The first program of this name on PATH whose folder, links resolved, lies outside the project."""
    top = os.path.realpath(project)
    for folder in os.get_exec_path():
        if not os.path.isabs(folder):
            continue
        file = os.path.join(folder, name)
        if not os.path.isfile(file) or not os.access(file, os.X_OK):
            continue
        real = os.path.realpath(file)
        if not any(_is_below(one, top) for one in (os.path.realpath(folder), real)):
            return file
    return None


def _is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")
