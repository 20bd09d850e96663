"""What programs in the project itself must not make: instructions to git, to Fanfold, and role files.

The sandbox binds those that are there read-only. What is not there yet it cannot close without leaving an
empty folder in the user's project, so what appeared is found afterwards and taken out of the project.

Rules
* Only names at the top of the project are looked at: a few listings and `lstat`, no walk.
* What appeared is moved, not deleted: the user may have made it. What was there and changed is named and left
  where it is; a program that was confined cannot have done it, so then it is not even named.
* `.fanfold` is hidden from confined programs: what changes there meanwhile is the user's.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec

from fanfold.workspace.files.manifest import Entry
from fanfold.workspace.protected import ROLE_FOLDERS, plain_name

REFUSED = "refused"
"""Below `.fanfold/workspace`: what was taken out of the project."""
_OWN = ".fanfold"
_OWN_PARTS = ("agents", "workflows", "config.toml")
_GIT_PARTS = ("config", "config.worktree", "commondir", "hooks")


class Found(msgspec.Struct, frozen=True):
    """What happened to protected names: `moved` appeared and lies in `folder` now, `changed` was left."""

    moved: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    folder: str = ""


class Guard:
    """The protected names of a project as they were when a step began."""

    def __init__(self, project: Path) -> None:
        self._project = project
        self._before = _Seen(project)

    def settle(self, is_confined: Callable[[], bool]) -> Found:
        """Take out of the project what appeared since, and name what else changed."""
        before, now = self._before, _Seen(self._project)
        if (now.tops, now.parts) == (before.tops, before.parts):
            return Found()
        confined = is_confined()
        new = sorted(
            path for path in now.tops - before.tops if not (confined and path.startswith(f"{_OWN}/"))
        )
        changed: list[str] = []
        if not confined:
            inside = tuple(f"{path}/" for path in new)
            names = sorted(before.parts.keys() | now.parts.keys())
            differ = [path for path in names if before.parts.get(path) != now.parts.get(path)]
            changed = [path for path in differ if path not in new and not path.startswith(inside)]
        moved: list[str] = []
        folder = self._project / _OWN / "workspace" / REFUSED
        for path in new:
            first = path.partition("/")[0]
            # A link that came goes, and what it leads to stays.
            thing = first if first in now.links and now.links[first] != before.links.get(first) else path
            if thing not in moved:
                (moved if _move(self._project, thing, folder) else changed).append(thing)
        return Found(tuple(moved), tuple(changed), str(folder) if moved else "")


class _Seen:
    """What there is of protected names."""

    def __init__(self, project: Path) -> None:
        self._project = project
        self.tops: set[str] = set()
        """Those that are one thing, whatever is in them."""
        self.parts: dict[str, Entry | int] = {}
        """These and what in them tells programs what to do; of folders the kind, for their times change."""
        self.links: dict[str, Entry | int] = {}
        """Links where a folder that holds roles would be."""
        for name in _names(project):
            plain = plain_name(name)
            if name == _OWN:
                self._add(*(f"{name}/{part}" for part in _OWN_PARTS))
            elif plain in (".git", _OWN):
                self._add(name)
            elif any(folder.startswith(f"{plain}/") for folder in ROLE_FOLDERS):
                self._roles(name, plain)

    def _roles(self, name: str, plain: str) -> None:
        if (self._project / name).is_symlink():
            self.links[name] = self._print(name) or 0
        inner = _names(self._project / name)
        self._add(*(f"{name}/{one}" for one in inner if f"{plain}/{plain_name(one)}" in ROLE_FOLDERS))

    def _add(self, *tops: str) -> None:
        for path in tops:
            if self._note(path):
                self.tops.add(path)
                names = _GIT_PARTS if plain_name(path) == ".git" else _names(self._project / path)
                for name in names:
                    self._note(f"{path}/{name}")
                for name in _names(self._project / path / "hooks"):
                    self._note(f"{path}/hooks/{name}")

    def _note(self, path: str) -> bool:
        found = self._print(path)
        if found is not None:
            self.parts[path] = found
        return found is not None

    def _print(self, path: str) -> Entry | int | None:
        try:
            status = os.lstat(self._project / path)
        except OSError:
            return None
        return stat.S_IFDIR if stat.S_ISDIR(status.st_mode) else Entry.of(status)


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
