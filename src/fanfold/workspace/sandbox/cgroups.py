"""Cgroups for what limits of a process cannot do: how many processes and how much memory a whole tree has.

Only root may make them, and only where the controllers are mounted; elsewhere `make` says so by an empty
group. A group is removed when its last process is gone, by `remove` or by the next `sweep`. Its name says in
which pid namespace its maker lives: seen from another, everybody seems dead.
"""

from __future__ import annotations

import os
from pathlib import Path

_TOP = Path("/sys/fs/cgroup")
_PREFIX = "fanfold-"


class Group:
    """The cgroup folders of one launch; none where there are no cgroups."""

    def __init__(self, folders: list[Path]) -> None:
        self.folders = folders

    @property
    def entrances(self) -> list[str]:
        """What a process writes `0` into to join."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    def remove(self) -> bool:
        """Remove the folders; whether none is left."""
        left = []
        for folder in self.folders:
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                pass
            except OSError:
                left.append(folder)  # a process is still ending
        self.folders = left
        return not left


def make(max_processes: int, max_memory_bytes: int) -> Group:
    """A group with these limits, as far as this machine gives them."""
    made: list[Path] = []
    for parent, limits in _places(max_processes, max_memory_bytes):
        folder = parent / f"{_prefix()}{os.getpid()}-{os.urandom(4).hex()}"
        try:
            os.mkdir(folder)
        except OSError:
            continue
        try:
            for file, value in limits.items():
                _set(f"{folder}/{file}", b"%d" % value)
            made.append(folder)
        except OSError:
            os.rmdir(folder)
    return Group(made)


def _set(file: str, value: bytes) -> None:
    handle = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, value)
    finally:
        os.close(handle)


def limits_processes() -> bool:
    """Whether a group can be made that limits processes."""
    group = make(64, 0)
    useful = any((folder / "pids.max").exists() for folder in group.folders)
    group.remove()
    return useful


def sweep() -> None:
    """Remove empty groups that dead processes left."""
    for parent, _ in _places(1, 1):
        for folder in parent.glob(f"{_prefix()}*"):
            pid = folder.name.removeprefix(_prefix()).partition("-")[0]
            if pid.isdigit() and not Path(f"/proc/{pid}").exists():
                Group([folder]).remove()


def _prefix() -> str:
    return f"{_PREFIX}{os.stat('/proc/self/ns/pid').st_ino}-"


def _places(max_processes: int, max_memory_bytes: int) -> list[tuple[Path, dict[str, int]]]:
    """Where groups are made, by controller; the unified hierarchy has them all in one."""
    if os.geteuid() != 0:
        return []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    pids = {"pids.max": max_processes}
    found: list[tuple[Path, dict[str, int]]] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "pids" in controllers.split(","):
            found.append((_TOP / "pids" / path.lstrip("/"), pids))
        elif "memory" in controllers.split(",") and max_memory_bytes:
            limits = {"memory.limit_in_bytes": max_memory_bytes}
            found.append((_TOP / "memory" / path.lstrip("/"), limits))
        elif not controllers and not found and (_TOP / "cgroup.controllers").exists():
            place = _TOP / path.lstrip("/")
            found.append((place, pids | ({"memory.max": max_memory_bytes} if max_memory_bytes else {})))
    return found
