"""A small process that removes the mounts of a Fanfold process after its death.

Visible overlays would stay after `kill -9`, and the folders around them could not be deleted. So with the
first overlay, this module starts itself as a detached program (`python -I -S unmounter.py`). It reads mount
points from a pipe. When the Fanfold process closes its end, it unmounts the remaining ones. Another process
may have taken over a step workspace by then and mounted it in the same place. So it acquires the workspace
lock and checks that the record still names the dead process.
"""

from __future__ import annotations

import os
import sys
from threading import Lock

MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8

_guard = Lock()
_pipe: tuple[int, int] | None = None
"""The process that started it (a fork must not use its parent's), and the pipe to it."""


def watch(point: str, owner: str) -> None:
    """Register a mount to be removed if this process dies, recorded as `owner`."""
    _tell(b"+", point, owner)


def forget(point: str) -> None:
    """Unregister a mount that was removed normally."""
    _tell(b"-", point)


def _tell(what: bytes, point: str, owner: str = "") -> None:
    global _pipe  # noqa: PLW0603 - one for the whole process
    with _guard:
        if _pipe is None or _pipe[0] != os.getpid():
            if what == b"-":
                return
            _pipe = os.getpid(), _start(owner)
        try:
            os.write(_pipe[1], what + os.fsencode(point) + b"\0")
        except OSError:
            pass  # the unmounter was killed; `recover` finds the remaining mounts


def _start(owner: str) -> int:
    reading, writing = os.pipe()
    try:
        actions = [(os.POSIX_SPAWN_DUP2, reading, 0)]
        command = [sys.executable, "-I", "-S", __file__, owner]
        pid = os.posix_spawn(sys.executable, command, {}, file_actions=actions, setsid=True)
    finally:
        os.close(reading)
    os.waitpid(pid, 0)  # it forks at once, so that this process has no unexpected child process
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
            pass  # the project was deleted, and the mount with it


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
            ours = True  # the process died while it created the workspace
        if ours:
            ctypes.CDLL(None).umount2(point, MNT_DETACH | UMOUNT_NOFOLLOW)
    finally:
        os.close(lock)


if __name__ == "__main__":
    main(os.fsencode(sys.argv[1]))
    os._exit(0)
