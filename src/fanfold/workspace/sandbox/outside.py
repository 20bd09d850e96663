"""What of the machine a confined program sees, whatever level carries it out.

Rules
* Of the machine only the system's own folders are seen. Homes, temporary and run-time folders, data and
  everything else at the top is hidden: files there are not ours to show, and sockets and pipes lead to
  programs outside whatever the mount says.
* What is seen is a list of names, and what is not on it is not there: a folder that somebody makes at the top
  right after we looked is hidden. So it is enough to look again when the top or /var has changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

import msgspec

SYSTEM = frozenset("bin boot dev etc gnu lib lib32 lib64 libx32 nix opt proc sbin snap sys usr var".split())
"""What a system keeps at the top; all other folders there are hidden."""
VARIABLE = frozenset(("cache", "lib"))
"""What of /var is seen: certificates, fonts and package databases that programs look for."""
_MADE_ANEW = frozenset(("/dev", "/proc", "/var"))
"""What the sandbox has of its own, or is looked into."""
_SCRATCH = ("/home", "/root", "/tmp", "/var/tmp", "/run")  # noqa: S108 - hidden, not used


class Outside(msgspec.Struct, frozen=True):
    """Absolute paths, sorted."""

    seen: tuple[str, ...]
    """The system's own folders, and files that lie beside them."""
    links: tuple[tuple[str, str], ...]
    """Links that lie beside them, and where they lead."""
    hidden: tuple[str, ...]
    """All other folders there, without those inside another of them."""
    scratch: tuple[str, ...]
    """Hidden ones where programs expect to be able to write: homes, temporary and run-time ones."""

    def around(self, project: Path) -> list[str]:
        """What is seen, where the project has a place of its own."""
        return [path for one in self.seen for path in around(one, [str(project)])]


def look_outside(home: Path) -> Outside:
    """The machine as it is now, for a user with this home."""
    wanted = (str(home), os.environ.get("TMPDIR", "/tmp"))  # noqa: S108 - hidden, not used
    return _look(tuple(os.path.realpath(name) for name in wanted if name), tuple(map(_stamp, ("/", "/var"))))


def _stamp(folder: str) -> tuple[int, ...]:
    """Changes when an entry of a folder appears, goes away or is replaced."""
    try:
        now = os.stat(folder)
    except OSError:
        return ()
    return now.st_dev, now.st_ino, now.st_mtime_ns, now.st_ctime_ns


@lru_cache(maxsize=4)
def _look(own: tuple[str, ...], stamps: tuple[tuple[int, ...], ...]) -> Outside:  # noqa: ARG001 - says when
    seen: list[str] = []
    links: list[tuple[str, str]] = []
    wanted = list(own)
    for top, shown in (("/", SYSTEM), ("/var", VARIABLE)):
        at_its_place = not os.path.islink(top)
        for entry in _entries(top):
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name not in shown:
                wanted.append(entry.path)
            if at_its_place and entry.is_symlink():
                links.append((entry.path, os.readlink(entry.path)))
            elif at_its_place and (entry.name in shown if is_folder else entry.is_file()):
                seen.append(entry.path)
    hidden = tuple(_outermost(os.path.realpath(name) for name in wanted if os.path.isdir(name)))
    real = {*own, *map(os.path.realpath, _SCRATCH)}
    scratch = tuple(folder for folder in hidden if any(is_within(name, folder) for name in real))
    return Outside(tuple(sorted({*seen} - _MADE_ANEW)), tuple(sorted(links)), hidden, scratch)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as listing:
            return list(listing)
    except FileNotFoundError:
        return []


def _outermost(folders: Iterable[str]) -> Iterator[str]:
    last = ""
    for name in sorted({*folders}, key=lambda name: name.split("/")):
        if name == "/" or (last and is_within(name, last)) or _is_system(name):
            continue  # a link at the top may lead to one of the system's
        last = name
        yield name


def is_within(path: str, folder: str) -> bool:
    """Whether a path is a folder or lies below it; both are absolute and normal.

    >>> is_within("/var/tmp", "/var"), is_within("/var", "/var"), is_within("/variable", "/var")
    (True, True, False)
    """
    return path == folder or path.startswith(folder if folder == "/" else f"{folder}/")


def _is_system(folder: str) -> bool:
    """Whether hiding this folder would hide what programs are made of.

    >>> _is_system("/usr/lib"), _is_system("/home"), _is_system("/var/tmp")
    (True, False, False)
    """
    names = folder.split("/")[1:]
    if names[0] == "var":
        return len(names) == 1 or names[1] in VARIABLE
    return names[0] in SYSTEM


def around(top: str, closed: list[str]) -> list[str]:
    """The entries below `top` that together hold everything but the closed ones.

    Folders on the way to something closed are opened up into their entries.
    """
    shut = [path for path in closed if is_within(path, top)]
    if not shut:
        return [top]
    found: list[str] = []
    try:
        with os.scandir(top) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except OSError:
        return []
    for entry in entries:
        path = entry.path
        if path in shut or entry.is_symlink():
            continue  # a link needs no rule: what it leads to has its own, or none
        found += around(path, shut)
    return found
