"""A small process that outlives us by a moment and takes our mounts away, however we died.

Overlays in the open would stay after `kill -9`, and nobody could delete the folders around them. So with the
first of them this module starts itself as a program (`python -I -S unmounter.py`), detached from everything,
which reads the mount points it is told and, when our end of the pipe is gone, unmounts those that are left.
Another process may have taken a child over by then and mounted in the same place: so it takes the workspace
lock and looks whether the child is still recorded as ours.
"""

from __future__ import annotations

import os
import sys
from threading import Lock

MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8

_guard = Lock()
_pipe: tuple[int, int] | None = None
"""The process that started it (a fork must not use its parent's), and where it listens."""


def watch(point: str, owner: str) -> None:
    """Have a mount taken away should we die; `owner` is what its child's record calls us."""
    _tell(b"+", point, owner)


def forget(point: str) -> None:
    """It was taken away properly."""
    _tell(b"-", point)


def _tell(what: bytes, point: str, owner: str = "") -> None:
    global _pipe  # noqa: PLW0603 - one for the whole process, whoever mounts
    with _guard:
        if _pipe is None or _pipe[0] != os.getpid():
            if what == b"-":
                return
            _pipe = os.getpid(), _start(owner)
        try:
            os.write(_pipe[1], what + os.fsencode(point) + b"\0")
        except OSError:
            pass  # it was killed; opening the project again finds what is left


def _start(owner: str) -> int:
    reading, writing = os.pipe()
    try:
        actions = [(os.POSIX_SPAWN_DUP2, reading, 0)]
        command = [sys.executable, "-I", "-S", __file__, owner]
        pid = os.posix_spawn(sys.executable, command, {}, file_actions=actions, setsid=True)
    finally:
        os.close(reading)
    os.waitpid(pid, 0)  # it forks away at once, so that nobody finds a child of ours they do not know
    return writing


def main(owner: bytes) -> None:
    if os.fork():
        os._exit(0)
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    points: dict[bytes, None] = {}
    rest = b""
    while data := os.read(0, 65_536):
        *words, rest = (rest + data).split(b"\0")
        for word in words:
            if word[:1] == b"+":
                points[word[1:]] = None
            else:
                points.pop(word[1:], None)
    for point in points:
        try:
            unmount(point, owner)
        except OSError:
            pass  # the project is gone, and the mount with it


def unmount(point: bytes, owner: bytes) -> None:
    import ctypes
    import fcntl

    child = os.path.dirname(point)
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    lock = os.open(os.path.join(child, b"../../workspace/lock"), os.O_RDWR | flags)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            with os.fdopen(os.open(os.path.join(child, b"child.json"), os.O_RDONLY | flags), "rb") as record:
                ours = owner in record.read()
        except FileNotFoundError:
            ours = True  # we died while it was made
        if ours:
            ctypes.CDLL(None).umount2(point, MNT_DETACH | UMOUNT_NOFOLLOW)
    finally:
        os.close(lock)


if __name__ == "__main__":
    main(os.fsencode(sys.argv[1]))
    os._exit(0)
