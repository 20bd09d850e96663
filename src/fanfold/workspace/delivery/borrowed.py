"""How git in the private store reads a repository's objects: where they are, and where its history ends."""

from __future__ import annotations

import os
import stat

from fanfold.trust.repository import Repository


def borrow(repository: Repository) -> dict[str, str]:
    """The variables by which a git sees the repository's objects beside those of its own store.

    Quoted as git reads it: a colon in the path would end it.
    """
    path = str(repository.common / "objects").replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return {"GIT_ALTERNATE_OBJECT_DIRECTORIES": f'"{path}"', **find_shallow(repository)}


def find_shallow(repository: Repository) -> dict[str, str]:
    """Which commits a shallow clone has without their parents, as a variable of git's; else nothing."""
    file = repository.common / "shallow"
    try:
        usual = stat.S_ISREG(os.lstat(file).st_mode)
    except OSError:
        usual = False
    return {"GIT_SHALLOW_FILE": str(file)} if usual else {}
