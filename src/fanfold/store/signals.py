"""Signals that wake other processes of a project to read the store, without polling or messages.

Rules
* A signal only means "read the store". All data is in the store, so a lost, repeated or late signal changes
  nothing. A waiter checks again after `RECHECK_S` at the latest. So a signal that the system cannot deliver
  (no watch left for this user, a read-only folder) costs time but never blocks a waiter.
* A signal is a read of a file below `wake/`. Waiters watch the file (inotify, kqueue). So the sender need not
  know the waiters and pays one system call. Any number of processes can wait, also in other containers.
  Nothing is written to the disk, and a process that dies leaves nothing behind.
* There are `FILES` files for each topic, for any number of runs. Two roots may share a file, so a waiter
  sometimes gets a spurious wake-up.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import sys
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

from fanfold.store.protocol import RECHECK_S

if TYPE_CHECKING:
    import asyncio

FILES = 64
MAX_IDLE = 4
"""The number of unused watches that are kept open; the system limits watches per user."""

Topic: TypeAlias = Literal["commits", "requests"]
"""`commits`: the log of a tree grew or its owner changed. `requests`: a process has a request for the owner.
"""


class Signals:
    """The signals of one project; `folder` is its `.fanfold` folder. Files are created only with `make`.

    >>> import tempfile
    >>> signals = Signals(Path(tempfile.mkdtemp()))
    >>> with signals.listen("commits", "run") as listener:
    ...     signals.give("commits", "run")
    ...     listener.wait_blocking(30), listener.wait_blocking(0)
    (True, False)
    >>> signals.close()
    """

    def __init__(self, folder: Path, *, make: bool = True) -> None:
        self._folder = folder / "wake"
        self._make = make
        self._files: dict[tuple[Topic, int], int] = {}
        self._lock = threading.Lock()
        self._idle: list[_Watch] = []
        """Watches without a listener."""
        self._closed = False
        self._process = os.getpid()

    def give(self, topic: Topic, root: str) -> None:
        """Wake all listeners. Never blocks and never fails; thread-safe."""
        key = topic, _number(root)
        with self._lock:
            file = self._files.get(key)
            if file is None:
                try:
                    file = self._files[key] = self._open(_name(*key))
                except OSError:
                    return  # then no process can listen either
            _touch(file)

    def listen(self, topic: Topic, root: str | None) -> FileSignal:
        """Return a signal for one root or for all roots; it is active until it is closed."""
        names = [_name(topic, number) for number in (range(FILES) if root is None else [_number(root)])]
        try:
            for name in names:
                os.close(self._open(name))
            watch = self._take_watch()
            try:
                watch.begin([str(self._folder / name) for name in names])
            except OSError:
                watch.close()
                raise
            return FileSignal(watch, self._keep_watch)
        except OSError:  # the file cannot be created, or the user has no watches left
            return FileSignal(None)

    def _take_watch(self) -> _Watch:
        with self._lock:
            return self._idle.pop() if self._idle else _Watch()

    def _keep_watch(self, watch: _Watch) -> None:
        """Keep a watch for the next listener.

        Closing a watch takes the kernel about ten milliseconds, which would block an event loop that drives
        other runs. A forked process only closes its file descriptor: removing the watches would remove them
        for the parent too.
        """
        if self._process == os.getpid():
            watch.end()
            with self._lock:
                if not self._closed and len(self._idle) < MAX_IDLE:
                    self._idle.append(watch)
                    return
        watch.close()

    def close(self) -> None:
        with self._lock:
            for file in self._files.values():
                os.close(file)
            self._files.clear()
            for watch in self._idle:
                watch.close()
            self._idle.clear()
            self._closed = True

    def _open(self, name: str) -> int:
        path, flags = self._folder / name, os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            return _regular(os.open(path, os.O_RDONLY | flags))
        except FileNotFoundError:
            if not self._make:
                raise
        self._folder.mkdir(mode=0o700, exist_ok=True)
        file = _regular(os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o600))
        os.pwrite(file, b"\n", 0)  # the file must have content to read
        return file


def _regular(file: int) -> int:
    """Return `file` if it is a regular file; close it and raise `OSError` if it is a pipe or a folder."""
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "not a file")
    return file


class FileSignal:
    """A subscription of one waiter; see `Signal`.

    Without a `watch`, only time wakes the waiter. `give_back` receives the watch when the signal is closed.
    """

    def __init__(self, watch: _Watch | None, give_back: Callable[[_Watch], None] | None = None) -> None:
        self._watch = watch
        self._give_back = give_back

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait in a task of an event loop."""
        import asyncio  # imported here because most commands only read and never wait

        watch = self._watch
        if watch is not None and watch.drain():
            return True
        waited_s, answer = _patience(timeout_s)
        if watch is None:
            await asyncio.sleep(waited_s)
            return answer
        loop = asyncio.get_running_loop()
        heard: asyncio.Future[None] = loop.create_future()
        loop.add_reader(watch.fileno(), _resolve, heard)
        try:
            async with asyncio.timeout(waited_s):
                await heard
        except TimeoutError:
            return answer
        finally:
            loop.remove_reader(watch.fileno())  # also if the watch was closed meanwhile and is used again
        if self._watch is watch:
            watch.drain()
        return True

    def wait_blocking(self, timeout_s: float | None = None) -> bool:
        """Wait in a separate thread, or in a command without an event loop."""
        waited_s, answer = _patience(timeout_s)
        if self._watch is None:
            time.sleep(waited_s)
            return answer
        select.select([self._watch.fileno()], [], [], waited_s)
        return self._watch.drain() or answer

    def close(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None and self._give_back is not None:
            self._give_back(watch)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _patience(timeout_s: float | None) -> tuple[float, bool]:
    """Return how long to wait, and the result if no signal arrives."""
    if timeout_s is None or timeout_s > RECHECK_S:
        return RECHECK_S, True
    return timeout_s, False


def _resolve(heard: asyncio.Future[None]) -> None:
    if not heard.done():
        heard.set_result(None)


@lru_cache(maxsize=256)
def _number(root: str) -> int:
    return blake2b(root.encode(), digest_size=1).digest()[0] % FILES


def _name(topic: Topic, number: int) -> str:
    return f"{topic}-{number:02}"


if sys.platform == "linux":
    IN_ACCESS = 1

    def _touch(file: int) -> None:
        os.pread(file, 1, 0)

    class _Watch:
        """Receives an event for every read of the watched files."""

        def __init__(self) -> None:
            import ctypes

            self._libc = ctypes.CDLL(None, use_errno=True)
            self._file: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if self._file < 0:
                raise OSError(ctypes.get_errno(), "inotify_init1")
            self._watched: list[int] = []

        def begin(self, paths: list[str]) -> None:
            import ctypes

            for path in paths:
                number = self._libc.inotify_add_watch(self._file, os.fsencode(path), IN_ACCESS)
                if number < 0:
                    raise OSError(ctypes.get_errno(), "inotify_add_watch")
                self._watched.append(number)

        def end(self) -> None:
            for number in self._watched:
                self._libc.inotify_rm_watch(self._file, number)  # fails if the file was removed
            self._watched.clear()
            self.drain()

        def fileno(self) -> int:
            return self._file

        def drain(self) -> bool:
            """Discard the pending events; return whether there were any."""
            heard = False
            try:
                while os.read(self._file, 16_384):
                    heard = True
            except BlockingIOError:
                pass
            return heard

        def close(self) -> None:
            os.close(self._file)

else:

    def _touch(file: int) -> None:
        os.utime(file)

    class _Watch:
        """Receives an event for every change of the times of the watched files."""

        def __init__(self) -> None:
            self._files: list[int] = []
            self._queue = select.kqueue()

        def begin(self, paths: list[str]) -> None:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            for path in paths:
                file = os.open(path, flags)
                self._files.append(file)
                event = select.kevent(
                    file,
                    filter=select.KQ_FILTER_VNODE,
                    flags=select.KQ_EV_ADD | select.KQ_EV_CLEAR,
                    fflags=select.KQ_NOTE_ATTRIB,
                )
                self._queue.control([event], 0)

        def end(self) -> None:
            self.drain()
            for file in self._files:
                os.close(file)  # this also removes its events
            self._files.clear()

        def fileno(self) -> int:
            return self._queue.fileno()

        def drain(self) -> bool:
            """Discard the pending events; return whether there were any."""
            return bool(self._queue.control(None, len(self._files), 0))

        def close(self) -> None:
            self.end()
            self._queue.close()
