"""Telling other processes of a project to look into the store now: no polling, nothing to deliver.

Rules
* A signal says nothing but "look". What happened stands in the store; a signal that is lost, doubled or late
  changes nothing. Whoever waits looks again after `RECHECK_S` at the latest, signal or not, so a signal that
  the system could not carry (no watch left for this user, a folder that may only be read) costs time and
  never hangs anybody.
* A signal is a file below `wake/` that is read; who waits watches the file (inotify, kqueue). So the giver
  knows nobody and pays one system call, any number of processes wait, in other containers too, nothing is
  written to the disk, and a process that dies leaves nothing behind.
* There are `FILES` files for each topic, whatever the number of runs: two roots may share one, and then a
  waiter is woken for nothing now and then.
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
"""How many watches that nobody uses are kept open; a user has few of them."""

Topic: TypeAlias = Literal["commits", "requests"]
"""`commits`: a tree's log grew or its owner changed. `requests`: somebody asks its owner for something."""


class Signals:
    """The signals of one project; `folder` is its `.fanfold` folder. Files are made only with `make`.

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
        """Those that nobody listens with any more."""
        self._closed = False
        self._process = os.getpid()

    def give(self, topic: Topic, root: str) -> None:
        """Have everybody who listens look. Never blocks and never fails; any thread may."""
        key = topic, _number(root)
        with self._lock:
            file = self._files.get(key)
            if file is None:
                try:
                    file = self._files[key] = self._open(_name(*key))
                except OSError:
                    return  # nobody can listen either
            _touch(file)

    def listen(self, topic: Topic, root: str | None) -> FileSignal:
        """Be told from now until closed: about one root, or about all of them."""
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
        except OSError:  # it cannot be made, or the user has no watches left
            return FileSignal(None)

    def _take_watch(self) -> _Watch:
        with self._lock:
            return self._idle.pop() if self._idle else _Watch()

    def _keep_watch(self, watch: _Watch) -> None:
        """For whoever listens next: to close one takes the kernel about ten milliseconds, and an event loop
        that drives other runs would stand still meanwhile. A fork only lets go of it: what it ended would end
        for the process too that still listens.
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
        os.pwrite(file, b"\n", 0)  # there must be something to read
        return file


def _regular(file: int) -> int:
    """What somebody put in the place of a signal, a pipe or a folder, is none."""
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "not a file")
    return file


class FileSignal:
    """What one waiter has heard; see `Signal`. `watch` is None where only time can tell; `give_back` takes it
    when nobody waits any more.
    """

    def __init__(self, watch: _Watch | None, give_back: Callable[[_Watch], None] | None = None) -> None:
        self._watch = watch
        self._give_back = give_back

    async def wait(self, timeout_s: float | None = None) -> bool:
        """For a task of an event loop."""
        import asyncio  # here alone: most commands only read, and never wait

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
            loop.remove_reader(watch.fileno())  # also of one that was closed meanwhile, and is used again
        if self._watch is watch:
            watch.drain()
        return True

    def wait_blocking(self, timeout_s: float | None = None) -> bool:
        """For a thread of its own, or a command without an event loop."""
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
    """How long to wait, and what to answer when nothing was heard."""
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
        """Hears of every reading of one of some files."""

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
                self._libc.inotify_rm_watch(self._file, number)  # fails where the file went, and its watch
            self._watched.clear()
            self.drain()

        def fileno(self) -> int:
            return self._file

        def drain(self) -> bool:
            """Forget what was heard so far; whether it was anything."""
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
        """Hears of every change of the times of one of some files."""

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
                os.close(file)  # and with it what was to be heard of it
            self._files.clear()

        def fileno(self) -> int:
            return self._queue.fileno()

        def drain(self) -> bool:
            """Forget what was heard so far; whether it was anything."""
            return bool(self._queue.control(None, len(self._files), 0))

        def close(self) -> None:
            self.end()
            self._queue.close()
