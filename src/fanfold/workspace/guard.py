"""What programs in the project itself must not make: instructions to git, to Fanfold, to agent programs.

The sandbox binds those that are there read-only. What is not there yet it cannot close without leaving an
empty folder in the user's project, so what appeared is found afterwards and taken out of the project.

Rules
* Only names at the top of the project are looked at, and those in a folder there of which a part is
  protected: a few listings and `lstat`, no walk.
* What appeared is moved, not deleted: the user may have made it. What was there and changed is named and left
  where it is; a program that was confined cannot have done it, so then it is not even named.
* `.fanfold` is hidden from confined programs: what changes there meanwhile is the user's.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from fanfold.kernel.sets.protected import FOLDERS, OWNERS, plain_name
from fanfold.workspace.files.manifest import FileEntry

REFUSED = "refused"
"""Below `.fanfold/workspace`: what was taken out of the project."""
_OWN = ".fanfold"
_PARTS = {
    ".git": ("config", "config.worktree", "commondir", "hooks"),
    _OWN: ("agents", "workflows", "config.toml"),
}
"""What in a folder tells programs what to do; the rest changes all the time. In others that is everything."""


class GuardFindings(msgspec.Struct, frozen=True):
    """What happened to protected names: `moved` appeared and lies in `folder` now, `changed` was left."""

    moved: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    folder: str = ""


class Guard:
    """The protected names of a project as they were when a step began."""

    def __init__(self, project: Path) -> None:
        self._project = project
        self._before = _look(project)

    def settle(self, is_confined: Callable[[Path], bool]) -> GuardFindings:
        """Take out of the project what appeared since, and name what else changed."""
        before, now = self._before, _look(self._project)
        if now == before:
            return GuardFindings()
        confined = is_confined(self._project)
        differ = [path for path in sorted(before | now) if before.get(path) != now.get(path)]
        folder = self._project / _OWN / "workspace" / REFUSED
        moved: list[str] = []
        changed: list[str] = []
        for path in differ:
            if path.startswith(tuple(f"{one}/" for one in moved)):
                continue
            place = _place(path)
            rest = path[len(place) + 1 :]
            if confined and plain_name(place) == _OWN:
                continue
            whole = not rest or ("/" not in rest and plain_name(place) not in _PARTS and not confined)
            if whole and path not in before and _move(self._project, path, folder):
                moved.append(path)
            elif not confined:
                changed.append(path)
        return GuardFindings(tuple(moved), tuple(changed), str(folder) if moved else "")


def _look(project: Path) -> dict[str, FileEntry | int]:
    """Protected names at the top, and what in them tells programs what to do, two levels down.

    Of folders only that they are there, for their times change.
    """
    found: dict[str, FileEntry | int] = {}

    def note(path: str) -> bool:
        try:
            status = os.lstat(project / path)
        except OSError:
            return False
        folder = stat.S_ISDIR(status.st_mode)
        found[path] = stat.S_IFDIR if folder else FileEntry.of(status)
        return folder

    for place in _places(project):
        if not note(place):
            continue
        for name in _PARTS.get(plain_name(place)) or _names(project / place):
            if note(f"{place}/{name}"):
                for inner in _names(project / place / name):
                    note(f"{place}/{name}/{inner}")
    found.pop(_OWN, None)
    return found


def _places(project: Path) -> Iterator[str]:
    """What is protected as a whole; a folder of which a part is, where it is a link."""
    for top in _names(project):
        plain = plain_name(top)
        if plain in OWNERS or (plain in FOLDERS and (project / top).is_symlink()):
            yield top
        elif plain in FOLDERS:
            yield from (
                f"{top}/{name}" for name in _names(project / top) if f"{plain}/{plain_name(name)}" in OWNERS
            )


def _place(path: str) -> str:
    """The one of these that a path lies in."""
    top, _, rest = path.partition("/")
    return f"{top}/{rest.partition('/')[0]}" if plain_name(top) in FOLDERS and rest else top


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _move(project: Path, path: str, folder: Path) -> bool:
    """Take something out of the project; whether that was possible."""
    thing = project / path
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if stat.S_ISDIR(os.lstat(thing).st_mode):
            os.chmod(thing, 0o700)  # a folder that nobody may write cannot be moved elsewhere
        os.rename(thing, folder / f"{path.replace('/', '-')}.{os.urandom(6).hex()}")
    except OSError:
        return False
    return True
