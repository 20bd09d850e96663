"""What this machine can give: which sandbox, which way to make snapshots, and what each of them lacks.

Everything is tried, not guessed: a kernel may have a feature that a container forbids.
"""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import msgspec

from fanfold.workspace.sandbox import bubblewrap, cgroups, landlock, seccomp


class Level(msgspec.Struct, frozen=True):
    """One level of the sandbox."""

    name: str
    available: bool
    why: str = ""
    """Why it is not available."""
    cannot: tuple[str, ...] = ()
    """What it does not give here although it is available."""


class Levels(msgspec.Struct, frozen=True):
    """What `doctor` prints."""

    bubblewrap: Level
    landlock: Level


@cache
def detect(project: Path) -> Levels:
    """Try what there is for this project; remembered for the life of this process."""
    return Levels(_bubblewrap(project), _landlock())


def _limits() -> list[str]:
    if os.geteuid() != 0 or cgroups.limits_processes():
        return []
    return ["a limit on processes (root needs the pids cgroup for that)"]


def _bubblewrap(project: Path) -> Level:
    found = bubblewrap.program(project)
    if found is None:
        return Level("bubblewrap", False, "bwrap is not installed")
    try:
        trial = [found, *bubblewrap.namespaces(project, False), "--ro-bind", "/", "/"]
        ended = bubblewrap.tried([*trial, "--dev", "/dev", "--proc", "/proc", "--", "/bin/sh", "-c", ":"])
    except (OSError, subprocess.TimeoutExpired) as error:
        return Level("bubblewrap", False, str(error))
    if ended.returncode:
        return Level("bubblewrap", False, ended.stderr.strip()[-200:] or f"it ends with {ended.returncode}")
    cannot = [
        *_limits(),
        "a limit on the bytes a workspace takes on disk, beyond that on each file",
        "closing sockets and pipes that lie below /usr, /etc, /opt or /var/lib",
    ]
    if not bubblewrap.takes_handles(project):
        cannot.append("binding by handle: this version is given paths, checked right before")
    if not seccomp.is_available():
        cannot.append("a filter of system calls on this processor")
    if landlock.abi() < 6:
        cannot.append("with a network: closing abstract sockets of the host")
    return Level("bubblewrap", True, cannot=tuple(cannot))


def _landlock() -> Level:
    version = landlock.abi()
    if version < landlock.MIN_ABI:
        why = (
            f"the kernel offers version {version}, {landlock.MIN_ABI} is needed"
            if version
            else "not in this kernel"
        )
        return Level("landlock", False, why)
    if not seccomp.is_available():
        return Level("landlock", False, "no filter of system calls on this processor")
    cannot = [
        *_limits(),
        "the workspace at the project's own path",
        "a pid namespace: processes outside are seen, and what escapes its parent is found by its mark",
        "chmod, chown and extended attributes inside (they are refused, since they cannot be confined)",
        "unix sockets, pairs of datagram sockets, watches on folders, and terminals inside",
        "git and dependency folders inside an isolated workspace",
        "new entries beside closed ones for a shared writer (at the top of the project)",
        "hiding that a file outside is there, how large it is and when it changed, from who knows its path",
        "keeping the times of files outside from being changed by their owner",
        "a limit on the bytes a workspace or its temporary files take on disk, beyond that on each file",
    ]
    if version < 6:
        cannot.append("keeping signals from other processes of this user")
    return Level("landlock", True, cannot=tuple(cannot))
