"""Which folder a command means: the project is looked for upward from where the user stands.

Rules
* The nearest folder with a `.fanfold` that belongs to this user wins, as far up as the top of the git
  repository around and no further. Outside a repository the home folder, what lies above it and other file
  systems are never reached. Without one, the top of the repository is the project; else the folder itself.
* What somebody else made is no sign of a project: a `.fanfold` or `.git` that another user put into a folder
  above (`/tmp`) is passed over, and so is one that is a link. The user's own folder is no project either.
* No program is asked: `.git` is looked at, never read.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fanfold.errors import AuthorError


def project_folder(given: str | os.PathLike[str], said: str = "project") -> Path:
    """The folder that somebody names as a project; `said` is how whoever names it calls that."""
    named: object = given  # programs may say anything
    if isinstance(named, str | os.PathLike) and "\0" not in str(named) and os.path.isdir(named):
        return Path(named)
    hint = "name the folder that holds, or will hold, .fanfold"
    raise AuthorError("usage.bad_project", f"{said} {given} is not a folder", hint=hint)


def find_project(start: Path, *, home: Path, own_folder: Path) -> Path:
    """The project that a command given in `start` is about; `own_folder` holds the user's own files."""
    here = Path(os.path.realpath(start))
    reachable = _reachable(here)
    top = next((folder for folder in reachable if _is_ours(folder / ".git", file_too=True)), None)
    if top is not None:
        reachable = reachable[: reachable.index(top) + 1]
    else:
        above_home = {Path(os.path.realpath(home)), *Path(os.path.realpath(home)).parents}
        reachable = [folder for folder in reachable if folder == here or folder not in above_home]
    own = os.path.realpath(own_folder)
    for folder in reachable:
        state = folder / ".fanfold"
        if _is_ours(state) and os.path.realpath(state) != own:
            return folder
    return top or here


def folders_above(project: Path) -> list[Path]:
    """The folders above a project up to the top of the git repository around it, the nearest first.

    They came with the same checkout. Empty where the project is that top, or in no repository of this user.
    """
    here = Path(os.path.realpath(project))
    reachable = _reachable(here)
    top = next((folder for folder in reachable if _is_ours(folder / ".git", file_too=True)), None)
    return [] if top is None else reachable[1 : reachable.index(top) + 1]


def _reachable(here: Path) -> list[Path]:
    """A folder and those above it on the same file system."""
    try:
        device = os.stat(here).st_dev
    except OSError:
        return []  # it is still to be made
    found = []
    for folder in (here, *here.parents):
        try:
            if os.stat(folder).st_dev != device:
                break
        except OSError:
            break
        found.append(folder)
    return found


def _is_ours(path: Path, *, file_too: bool = False) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    right_kind = stat.S_ISDIR(found.st_mode) or (file_too and stat.S_ISREG(found.st_mode))
    return right_kind and found.st_uid == os.geteuid()
