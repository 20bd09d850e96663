"""Starting process trees, and ending them so that nothing is left.

Rules
* Every process is started through a keeper (see `keeper`), in a session of its own, with an environment by
  allow-list and a mark that names the session it belongs to.
* A tree is over when its keeper is: then no process of it exists. `end_tree` returns only then, and being
  cancelled does not make it return earlier. A tree also ends when its command does, when the caller of
  `run_process` is cancelled or runs out of time, and when we die, however we die.
* Output is read as it comes and kept up to a limit, so no process ever waits for us and none can fill our
  memory.
* Nothing here polls and no thread is needed: pipes tell us everything.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import IO

from msgspec import Struct

from fanfold.errors import WorldError
from fanfold.sessions.insist import insist

GRACE_S = 2.0
STUBBORN_S = 10.0
"""How long to wait for the kernel to carry out SIGKILL before giving up on a tree."""
MAX_OUTPUT_BYTES = 1024 * 1024
MAX_LINE_BYTES = 16 * 1024 * 1024
DRAIN_S = 1.0
PIPE_BYTES = select.PIPE_BUF
"""What an empty pipe takes at once, whoever reads it."""
NEVER_STARTED = 127
"""What a shell says of a program that it could not execute."""

_live: dict[str, set[Process]] = {}
"""The trees of this process by session: whoever ends a session ends all of them."""


class Ended(Struct, frozen=True):
    """How a command ended: negative exit codes are signals."""

    exit_code: int
    stdout: str
    stderr: str


class ProcessTimeout(WorldError):
    """The command did not end in time and was ended with all it had started; `ended` is what it said."""

    def __init__(self, program: str, timeout_s: float, ended: Ended) -> None:
        super().__init__("process.timeout", f"{program} did not end within {timeout_s:g} s")
        self.ended = ended


class _Pipes(Struct, frozen=True):
    """Our ends of what a keeper and its command were given."""

    stdin: IO[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]
    news: IO[bytes]


class _News(asyncio.Protocol):
    """Hears what the keeper tells."""

    def __init__(self, over: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self.started: asyncio.Future[int] = loop.create_future()
        self.over: asyncio.Future[None] = loop.create_future()
        self.status: int | None = None
        self.keeper = 0
        self.cwd = ""
        self._tell_over = over
        self._line = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        for word, *number in map(bytes.split, lines):
            if word == b"k":
                self.keeper = int(number[0])
            elif word == b"p":
                self.started.set_result(int(number[0]))
            elif word == b"d":
                self.started.set_exception(OSError(int(number[0]), os.strerror(int(number[0])), self.cwd))
            elif word == b"x":
                self.started.set_exception(OSError(int(number[0]), os.strerror(int(number[0]))))
            elif word == b"e":
                self.status = os.waitstatus_to_exitcode(int(number[0]))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio names it so
        if not self.started.done():
            self.started.set_exception(OSError("the keeper was killed before it started anything"))
        self.started.exception()  # looked at, so that nobody warns about a start nobody waited for
        self._tell_over()
        self.over.set_result(None)


class _Sink(asyncio.Protocol):
    """Reads output into a capture."""

    def __init__(self, limit: int) -> None:
        self.capture = Capture(limit)
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.capture.add(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio names it so
        self.closed.set_result(None)


class Process:
    """A command and everything it starts. Made by `start_process`."""

    def __init__(self, argv: Sequence[str], session_id: str, max_output_bytes: int) -> None:
        self.argv = tuple(argv)
        self.session_id = session_id
        self.pid = 0
        self.stdin: asyncio.StreamWriter | None = None
        """For talking to the command, when it was started `interactive`."""
        self.stdout: asyncio.StreamReader | None = None
        self._news = _News(self._forget)
        self._out = _Sink(max_output_bytes)
        self._err = _Sink(max_output_bytes)
        self._transports: list[asyncio.BaseTransport] = []
        self._life = -1

    async def wait(self) -> int:
        """Wait until the command and all it started are gone; the command's exit code."""
        from fanfold.sessions.stragglers import sweep_stragglers

        await asyncio.shield(self._news.over)
        kept = (self._out, self._err) if self.stdout is None else (self._err,)
        sinks = [sink.closed for sink in kept if not sink.closed.done()]
        if sinks:
            await asyncio.wait(sinks, timeout=DRAIN_S)
        for transport in self._transports:
            transport.close()
        if self._news.status is None and self._news.started.exception() is not None:
            return NEVER_STARTED
        if self._news.status is None:  # the keeper was killed and could not finish its work
            await asyncio.to_thread(sweep_stragglers, [self.session_id])
            return -9
        return self._news.status

    async def end(self, grace_s: float = GRACE_S) -> None:
        """Ask everything to end, kill what has not after the grace period, return when nothing is left."""
        if not self._news.over.done():
            try:
                os.write(self._life, b"t %d\n" % round(grace_s * 1_000))
            except BrokenPipeError:
                pass  # the keeper is gone already; its last news is still on the way
            await asyncio.wait({self._news.over}, timeout=grace_s + STUBBORN_S)
        if not self._news.over.done():
            message = f"{self.argv[0]} (session {self.session_id}) cannot be killed"
            raise WorldError("process.left_alive", message, hint="it waits for a device or belongs to root")
        await self.wait()

    def said(self) -> tuple[str, str]:
        """What came on stdout and stderr so far, as far as it was kept."""
        return self._out.capture.text(), self._err.capture.text()

    @property
    def keeper(self) -> int:
        """The process that keeps the tree."""
        return self._news.keeper

    def launch(self, cwd: str, environment: Mapping[str, str]) -> _Pipes:
        """Start the keeper; our ends of its pipes."""
        from fanfold.sessions.fork_server import fork_keeper  # most runs start no program
        from fanfold.sessions.stragglers import keeper_mark

        self._news.cwd = cwd
        life, self._life = os.pipe()
        ends = [os.pipe() for _ in range(4)]
        (stdin, feed), (out, stdout), (err, stderr), (news, telling) = ends
        theirs = (stdin, stdout, stderr, life, telling)
        try:
            fork_keeper(self.argv, cwd, environment, keeper_mark(self.session_id), theirs)
        except BaseException:
            for end in (self._life, feed, out, err, news):
                os.close(end)
            raise
        finally:
            for end in theirs:
                os.close(end)
        _live.setdefault(self.session_id, set()).add(self)
        return _Pipes(os.fdopen(feed, "wb", 0), *(os.fdopen(end, "rb", 0) for end in (out, err, news)))

    async def connect(self, pipes: _Pipes, stdin: bytes | None, interactive: bool) -> None:
        """Hook the pipes up and wait until the command runs; raises OSError when it cannot."""
        loop = asyncio.get_running_loop()
        await self._read(lambda: self._news, pipes.news)
        await self._read(lambda: self._err, pipes.stderr)
        if interactive:
            self.stdout = reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
            await self._read(lambda: asyncio.StreamReaderProtocol(reader), pipes.stdout)
            pipe, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipes.stdin)
            self.stdin = asyncio.StreamWriter(pipe, protocol, None, loop)
            self._transports.append(pipe)
        else:
            await self._read(lambda: self._out, pipes.stdout)
            await self._feed(pipes.stdin, stdin or b"")
        self.pid = await asyncio.shield(self._news.started)

    async def _feed(self, pipe: IO[bytes], data: bytes) -> None:
        """Give the command all it gets to read."""
        if len(data) > PIPE_BYTES:
            feed, _ = await asyncio.get_running_loop().connect_write_pipe(asyncio.BaseProtocol, pipe)
            feed.write(data)
            feed.close()
            return
        with pipe:
            try:
                if data:
                    pipe.write(data)
            except BrokenPipeError:
                pass  # nobody is there to read it

    async def _read(self, make: Callable[[], asyncio.BaseProtocol], pipe: IO[bytes]) -> None:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(make, pipe)
        self._transports.append(transport)

    def _forget(self) -> None:
        """The keeper is gone, and with it the tree."""
        from fanfold.sessions.stragglers import wait_for_end

        os.close(self._life)  # first: a keeper that has not ended yet does so because of this
        wait_for_end(self._news.keeper)
        trees = _live[self.session_id]
        trees.discard(self)
        if not trees:
            del _live[self.session_id]


async def start_process(
    argv: Sequence[str],
    *,
    cwd: str,
    session_id: str,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    interactive: bool = False,
    named: Collection[str] = (),
    max_output_bytes: int = MAX_OUTPUT_BYTES,
) -> Process:
    """Start a command; raises OSError (`FileNotFoundError` …) when it cannot be executed.

    `env` is added to what the allow-list passes on; `named` are keys in it that the user named for this very
    program. An `interactive` process is talked to through its
    `stdin` and `stdout`; of any other, output is kept and `stdin` is all it gets to read.
    """
    from fanfold.sessions.environment import child_environment

    process = Process(argv, session_id, max_output_bytes)
    pipes = process.launch(cwd, child_environment(session_id, env, named=named))
    try:
        # Half connected, nobody would hear the keeper; it takes a few milliseconds, cancelled or not.
        await insist(process.connect(pipes, stdin, interactive))
    except BaseException:
        await insist(process.end(0.0))
        raise
    return process


async def run_process(
    argv: Sequence[str],
    *,
    cwd: str,
    session_id: str,
    env: Mapping[str, str] | None = None,
    named: Collection[str] = (),
    timeout_s: float | None = None,
    grace_s: float = GRACE_S,
    max_output_bytes: int = MAX_OUTPUT_BYTES,
) -> Ended:
    """Run a command to its end. Cancelled or out of time, it is ended with everything it started."""
    process = await start_process(
        argv, cwd=cwd, session_id=session_id, env=env, named=named, max_output_bytes=max_output_bytes
    )
    return await see_out(process, argv[0], timeout_s=timeout_s, grace_s=grace_s)


async def see_out(
    process: Process, program: str, *, timeout_s: float | None = None, grace_s: float = GRACE_S
) -> Ended:
    """How a process ends. Cancelled or out of time, it is ended with everything it started."""
    try:
        exit_code = await asyncio.wait_for(process.wait(), timeout_s)
    except TimeoutError:
        await insist(process.end(grace_s))
        assert timeout_s is not None
        raise ProcessTimeout(program, timeout_s, Ended(await process.wait(), *process.said())) from None
    except BaseException:
        await insist(process.end(grace_s))
        raise
    return Ended(exit_code, *process.said())


async def end_tree(process: Process, *, grace_s: float = GRACE_S) -> None:
    """End one tree; see `Process.end`."""
    await insist(process.end(grace_s))


def has_processes(session_id: str) -> bool:
    """Whether any tree of a session is left."""
    return session_id in _live


async def end_session(session_id: str, *, grace_s: float = GRACE_S) -> None:
    """End every tree of a session; returns when no process of it is left."""
    while trees := _live.get(session_id):
        await asyncio.gather(*(tree.end(grace_s) for tree in tuple(trees)))


class Capture:
    """Takes any number of bytes, keeps at most `limit` of them: the beginning and the end.

    What matters is mostly at the end (the error) and sometimes at the beginning (what was run), so the middle
    is what goes when there is too much. A note says how much.

    >>> capture = Capture(8)
    >>> capture.add(b"0123456789abcdef")
    >>> capture.text()
    '0123\\n[… 8 bytes left out …]\\ncdef'
    """

    __slots__ = ("_head", "_head_limit", "_seen", "_tail", "_tail_bytes", "_tail_limit")

    def __init__(self, limit: int) -> None:
        self._head = bytearray()
        self._head_limit = limit // 2
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._tail_limit = limit - limit // 2
        self._seen = 0

    def add(self, data: bytes) -> None:
        """Take what came."""
        self._seen += len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        self._tail.append(data[-self._tail_limit :])
        self._tail_bytes += len(self._tail[-1])
        while self._tail_bytes - len(self._tail[0]) >= self._tail_limit:
            self._tail_bytes -= len(self._tail.popleft())

    def text(self) -> str:
        """What was kept, as text."""
        tail = b"".join(self._tail)[-self._tail_limit :] if self._tail else b""
        left_out = self._seen - len(self._head) - len(tail)
        if left_out == 0:
            return (bytes(self._head) + tail).decode("utf-8", "replace")
        note = f"\n[… {left_out:,} bytes left out …]\n"
        return self._head.decode("utf-8", "replace") + note + tail.decode("utf-8", "replace")
