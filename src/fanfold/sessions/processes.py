"""Start process trees, and end them so that no process is left.

Rules
* Every command is started through a reaper process (see `reaper`), in a session of its own, with an
  environment by allow-list and a marker that names its session. Some names here call the reaper `keeper`.
* A tree has ended when its reaper has: then none of its processes exists. `end_tree` returns only then, even
  if it is cancelled. A tree also ends when its command ends, when the caller of `run_process` is cancelled or
  times out, and when this process dies in any way.
* Output is read at once and kept up to a limit. So no process waits for this one, and none can fill its
  memory.
* Running processes are not polled and need no thread: all reports come through pipes.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from hashlib import blake2b
from typing import IO, Any, NamedTuple, TypeVar

from msgspec import Struct

from fanfold.agents.providers import key_variables
from fanfold.errors import WorldError
from fanfold.process_identity import start_time
from fanfold.sessions import fork_server_process, reaper
from fanfold.sessions.reaper import descendants_of, family_of
from fanfold.workspace.programs import launcher
from fanfold.workspace.sandbox_policy import GIVEN

# -----------------------------------------------------------------------------------------------------------
# Work that must finish even if its caller is cancelled.

_T = TypeVar("_T")


async def finish_despite_cancel(work: Coroutine[Any, Any, _T] | asyncio.Future[_T]) -> _T:
    """Await `work` until it ends. A cancellation that arrives earlier is raised after that."""
    task = asyncio.ensure_future(work)
    interrupted: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            interrupted = error
        except Exception:  # noqa: BLE001 - it is raised below, from the task itself
            break
    if interrupted is not None:
        if not task.cancelled():
            task.exception()  # mark as retrieved, so that asyncio does not warn
        raise interrupted
    return task.result()


GRACE_S = 2.0
STUBBORN_S = 10.0
"""How long to wait for the kernel to execute SIGKILL before giving up on a tree."""
MAX_OUTPUT_BYTES = 1024 * 1024
MAX_LINE_BYTES = 16 * 1024 * 1024
DRAIN_S = 1.0
PIPE_BYTES = select.PIPE_BUF
"""The number of bytes that an empty pipe always accepts at once."""
NEVER_STARTED = 127
"""The exit code of a command that could not be executed, as in a shell."""

_live: dict[str, set[Process]] = {}
"""The trees that this process started, by session; the end of a session ends all its trees."""


class ExitStatus(Struct, frozen=True):
    """How a command ended. A negative exit code is a signal number."""

    exit_code: int
    stdout: str
    stderr: str
    started: bool = True
    """False: the sandbox failed before it executed the command. Other fields then describe the sandbox."""


class ProcessTimeout(WorldError):
    """A command timed out and was ended with all its processes; `ended` contains its output."""

    def __init__(self, program: str, timeout_s: float, ended: ExitStatus) -> None:
        super().__init__("process.timeout", f"{program} did not end within {timeout_s:g} s")
        self.ended = ended


class _News(asyncio.Protocol):
    """Reads the reports of the reaper."""

    def __init__(self, over: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self.started: asyncio.Future[int] = loop.create_future()
        self.over: asyncio.Future[None] = loop.create_future()
        self.status: int | None = None
        self.executed = True
        self.keeper = 0
        self.cwd = ""
        self._on_end = over
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
            elif word == b"n":
                self.executed = False
            elif word == b"e":
                self.status = os.waitstatus_to_exitcode(int(number[0]))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio names it so
        if not self.started.done():
            self.started.set_exception(OSError("the reaper was killed before it started the command"))
        self.started.exception()  # mark as retrieved, so that asyncio does not warn
        self._on_end()
        self.over.set_result(None)


class _Sink(asyncio.Protocol):
    """Reads output of a command into a `Capture`."""

    def __init__(self, limit: int) -> None:
        self.capture = Capture(limit)
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.capture.add(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio names it so
        self.closed.set_result(None)


class Process:
    """A command and all processes it starts. Created by `start_process`."""

    def __init__(self, argv: Sequence[str], session_id: str, max_output_bytes: int) -> None:
        self.argv = tuple(argv)
        self.session_id = session_id
        self.pid = 0
        self.stdin: asyncio.StreamWriter | None = None
        """The input of an `interactive` command; None for any other. `stdout` likewise."""
        self.stdout: asyncio.StreamReader | None = None
        self._news = _News(self._forget)
        self._out = _Sink(max_output_bytes)
        self._err = _Sink(max_output_bytes)
        self._transports: list[asyncio.BaseTransport] = []
        self._life = -1

    async def wait(self) -> int:
        """Wait until the command and all its processes have ended; return the exit code of the command."""
        await asyncio.shield(self._news.over)
        kept = (self._out, self._err) if self.stdout is None else (self._err,)
        sinks = [sink.closed for sink in kept if not sink.closed.done()]
        if sinks:
            await asyncio.wait(sinks, timeout=DRAIN_S)
        for transport in self._transports:
            transport.close()
        if self._news.status is None and self._news.started.exception() is not None:
            return NEVER_STARTED
        if self._news.status is None:  # the reaper was killed before the tree ended
            await asyncio.to_thread(sweep_stragglers, [self.session_id])
            return -9
        return self._news.status

    async def end(self, grace_s: float = GRACE_S) -> None:
        """Ask all processes to end, kill the rest after the grace period, return when none is left."""
        if not self._news.over.done():
            try:
                os.write(self._life, b"t %d\n" % round(grace_s * 1_000))
            except BrokenPipeError:
                pass  # the reaper has ended already; its last report will still arrive
            await asyncio.wait({self._news.over}, timeout=grace_s + STUBBORN_S)
        if not self._news.over.done():
            message = f"{self.argv[0]} (session {self.session_id}) cannot be killed"
            raise WorldError("process.left_alive", message, hint="it waits for a device, or root owns it")
        await self.wait()

    def said(self) -> tuple[str, str]:
        """Return the kept part of stdout and stderr so far."""
        return self._out.capture.text(), self._err.capture.text()

    def stderr_after(self, position: int) -> tuple[bytes, int]:
        """Return what arrived on stderr after a position, as far as it was kept, and the new position."""
        return self._err.capture.after(position)

    @property
    def started(self) -> bool:
        """Whether the command was executed; valid after the process ended."""
        return self._news.executed

    @property
    def keeper(self) -> int:
        """The pid of the reaper of the tree."""
        return self._news.keeper

    def launch(self, cwd: str, environment: Mapping[str, str]) -> tuple[IO[bytes], ...]:
        """Start the reaper; return this process's ends of its pipes: stdin, stdout, stderr and NEWS."""
        self._news.cwd = cwd
        life, self._life = os.pipe()
        ends = [os.pipe() for _ in range(4)]
        (stdin, feed), (out, stdout), (err, stderr), (news, report_end) = ends
        theirs = (stdin, stdout, stderr, life, report_end)
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
        return os.fdopen(feed, "wb", 0), *(os.fdopen(end, "rb", 0) for end in (out, err, news))

    async def connect(self, pipes: tuple[IO[bytes], ...], stdin: bytes | None, interactive: bool) -> None:
        """Connect the pipes and wait until the command runs. Raises OSError if it cannot be executed."""
        loop = asyncio.get_running_loop()
        feed, stdout, stderr, news = pipes
        await self._read(lambda: self._news, news)
        await self._read(lambda: self._err, stderr)
        if interactive:
            self.stdout = reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
            await self._read(lambda: asyncio.StreamReaderProtocol(reader), stdout)
            pipe, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, feed)
            self.stdin = asyncio.StreamWriter(pipe, protocol, None, loop)
            self._transports.append(pipe)
        else:
            await self._read(lambda: self._out, stdout)
            await self._feed(feed, stdin or b"")
        self.pid = await asyncio.shield(self._news.started)

    async def _feed(self, pipe: IO[bytes], data: bytes) -> None:
        """Write the whole input of the command and close the pipe."""
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
                pass  # the command closed its input

    async def _read(self, make: Callable[[], asyncio.BaseProtocol], pipe: IO[bytes]) -> None:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(make, pipe)
        self._transports.append(transport)

    def _forget(self) -> None:
        """Remove the tree of a reaper that has closed its reports."""
        os.close(self._life)  # first: a reaper that has not ended yet ends because of this
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
    """Start a command. Raises OSError (`FileNotFoundError` …) if it cannot be executed.

    `env` is added to the variables of the allow-list. `named` are the keys in it that the user named for this
    program. For an `interactive` process, the caller uses its `stdin` and `stdout`. For any other process,
    `stdin` is the whole input, and the output is kept.
    """
    process = Process(argv, session_id, max_output_bytes)
    pipes = process.launch(cwd, child_environment(session_id, env, named=named))
    try:
        # Without all connections, reports of the reaper would be lost; connecting takes a few milliseconds.
        await finish_despite_cancel(process.connect(pipes, stdin, interactive))
    except BaseException:
        await finish_despite_cancel(process.end(0.0))
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
) -> ExitStatus:
    """Run a command until it ends. On cancellation or timeout, all its processes are ended."""
    process = await start_process(
        argv, cwd=cwd, session_id=session_id, env=env, named=named, max_output_bytes=max_output_bytes
    )
    return await see_out(process, argv[0], timeout_s=timeout_s, grace_s=grace_s)


async def see_out(
    process: Process, program: str, *, timeout_s: float | None = None, grace_s: float = GRACE_S
) -> ExitStatus:
    """Wait for a process; return how it ended. On cancellation or timeout, all its processes are ended."""
    try:
        exit_code = await asyncio.wait_for(process.wait(), timeout_s)
    except TimeoutError:
        await finish_despite_cancel(process.end(grace_s))
        assert timeout_s is not None
        raise ProcessTimeout(program, timeout_s, ExitStatus(await process.wait(), *process.said())) from None
    except BaseException:
        await finish_despite_cancel(process.end(grace_s))
        raise
    return ExitStatus(exit_code, *process.said(), process.started)


async def end_tree(process: Process, *, grace_s: float = GRACE_S) -> None:
    """End one tree, even if the caller is cancelled; see `Process.end`."""
    await finish_despite_cancel(process.end(grace_s))


def has_processes(session_id: str) -> bool:
    """Whether a session has any process tree."""
    return session_id in _live


async def end_session(session_id: str, *, grace_s: float = GRACE_S) -> None:
    """End every tree of a session; return when none of its processes is left."""
    while trees := _live.get(session_id):
        await asyncio.gather(*(tree.end(grace_s) for tree in tuple(trees)))


class Capture:
    """Accepts any number of bytes and keeps at most `limit` of them: the beginning and the end.

    The important part is mostly at the end (the error) and sometimes at the beginning (the command). So the
    middle is dropped, and a note in the text gives its size.

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
        """Append bytes."""
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

    def after(self, position: int) -> tuple[bytes, int]:
        """Return the bytes after a position, as far as they are kept, and the position of the end.

        >>> capture = Capture(8)
        >>> capture.add(b"0123456789abcdef")
        >>> capture.after(2), capture.after(14)
        ((b'23cdef', 16), (b'ef', 16))
        """
        tail = b"".join(self._tail)[-self._tail_limit :] if self._tail else b""
        kept = self._head[position:] + tail[max(0, position - self._seen + len(tail)) :]
        return bytes(kept), self._seen

    def text(self) -> str:
        """Return the kept bytes as text."""
        tail = b"".join(self._tail)[-self._tail_limit :] if self._tail else b""
        left_out = self._seen - len(self._head) - len(tail)
        if left_out == 0:
            return (bytes(self._head) + tail).decode("utf-8", "replace")
        note = f"\n[… {left_out:,} bytes left out …]\n"
        return self._head.decode("utf-8", "replace") + note + tail.decode("utf-8", "replace")


# -----------------------------------------------------------------------------------------------------------
# The environment of started processes: a short allow-list of our variables, and those that the step adds.
#
# Provider keys stay in this process. A step cannot pass one on, even under another name, because the author
# of a recipe need not know the keys of the engine. Only an agent for which the user named a key in their own
# configuration gets that key.

MARKER = "FANFOLD_SESSION"
"""The variable that names the session of a process; it identifies stragglers after a crash."""
ALLOWED = frozenset(("PATH", "HOME", "LANG", "TERM", "TMPDIR", "TZ")) | {
    f"LC_{name}" for name in ("ALL", "COLLATE", "CTYPE", "MESSAGES", "MONETARY", "NUMERIC", "TIME")
}
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


def child_environment(
    session_id: str,
    given: Mapping[str, str] | None = None,
    ours: Mapping[str, str] | None = None,
    named: Collection[str] = (),
) -> dict[str, str]:
    """Return the environment for a process of a session; `ours` defaults to this process's environment.

    `named` are variables of `given` that the user named for this program. They may contain provider keys.
    """
    ours = os.environ if ours is None else ours
    passed = {name: ours[name] for name in ALLOWED if name in ours}
    keys = key_variables()
    secrets = {ours[name] for name in keys if ours.get(name)}
    passed |= {
        name: text
        for name, text in (given or {}).items()
        if name.removeprefix(GIVEN) in named or (name.removeprefix(GIVEN) not in keys and text not in secrets)
    }
    passed.setdefault("PATH", DEFAULT_PATH)
    passed[MARKER] = session_id
    return passed


# -----------------------------------------------------------------------------------------------------------
# The fork server: one small process per Fanfold process, which forks a reaper for each command.
#
# Rules
# * It starts with the first command and ends with this process. It gets only the allow-listed environment
#   variables and keeps no data of a command after the fork. If it was killed, the next command starts a new
#   one.
# * It receives only handles and text. The fork sets up the sandbox itself, with the same launcher.

_AT_ONCE = {"LD_BIND_NOW": "1"}
"""Resolves library functions at the start of the server; otherwise each fork would do it again."""
_lock = threading.Lock()


class _Server(NamedTuple):
    owner: int
    """The pid of the process that uses the server. A fork of that process starts a server of its own."""
    line: socket.socket
    process: subprocess.Popen[bytes]


_server: _Server | None = None


def fork_keeper(
    argv: Sequence[str], cwd: str, environment: Mapping[str, str], mark: str, handles: Sequence[int]
) -> None:
    """Start a reaper for a command. It gets copies of `handles`: stdin, stdout, stderr, LIFE and NEWS."""
    asked = {"argv": list(argv), "cwd": cwd, "environment": dict(environment), "mark": mark}
    body = json.dumps(asked).encode()
    head = len(body).to_bytes(fork_server_process.HEAD_BYTES, "big")
    sys.audit("fanfold.fork_keeper", argv)
    with _lock:
        for attempt in (1, 2):
            try:
                line = _connect().line
                socket.send_fds(line, [head], list(handles))
                line.sendall(body)
            except OSError:
                _forget()
                if attempt == 2:
                    raise
            else:
                return


def _connect() -> _Server:
    global _server  # noqa: PLW0603 - one per process, as the processes it starts
    if _server is not None and _server.owner == os.getpid() and _server.process.poll() is None:
        return _server
    _forget()
    atexit.register(_forget)
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-I", "-S", fork_server_process.__file__, str(theirs.fileno())]
        process = subprocess.Popen(
            [*command, reaper.__file__, launcher.__file__],
            cwd="/",
            env={name: text for name, text in os.environ.items() if name in ALLOWED} | _AT_ONCE,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    _server = _Server(os.getpid(), ours, process)
    return _server


def _forget() -> None:
    global _server  # noqa: PLW0603 - as above
    if _server is not None and _server.owner == os.getpid():
        _server.line.close()
        _server.process.wait()
    _server = None


# -----------------------------------------------------------------------------------------------------------
# Stragglers: processes of sessions whose owner process has ended. The marker in their environment identifies
# them; reapers are identified by their process name.
#
# A reaper ends its tree when its owner dies, so normally there are no stragglers. They exist if the reaper
# was killed, too: marked processes and their descendants. A process with an empty environment whose marked
# ancestors have all ended cannot be identified.

LIMIT_S = 5.0
KEEPERS_S = 1.5
LOOK_S = 0.005
KEEPER = "keep-"


def find_stragglers(session_ids: Collection[str]) -> dict[int, str]:
    """Return pid and start time of the live marked processes of these sessions and their descendants."""
    marks = frozenset(f"{MARKER}={session_id}".encode() for session_id in session_ids)
    keepers = frozenset(keeper_mark(session_id).encode() for session_id in session_ids)
    # This process and its ancestors are spared: a session may have started this process.
    spared: set[int] = set()
    ancestor = os.getpid()
    while ancestor > 0 and ancestor not in spared:
        spared.add(ancestor)
        ancestor = family_of(ancestor)[0]
    found: dict[int, str] = {}
    for name in os.listdir("/proc") if marks and os.path.isdir("/proc") else ():
        if not name.isdigit() or not (_name_of(name) in keepers or _is_marked(name, marks)):
            continue
        for pid in (int(name), *(pid for pid, _ in descendants_of(int(name)))):
            if pid not in spared and (started := start_time(pid)):
                found[pid] = started
    return found


def sweep_stragglers(session_ids: Collection[str]) -> list[int]:
    """Kill every process of these sessions; return the pids that were killed.

    Called before a run is continued: processes of its last owner must not write at the same time. Reapers may
    finish first, because only they find unmarked descendants; after `KEEPERS_S` they are killed, too.
    """
    killed: set[int] = set()
    began = time.monotonic()
    while (found := find_stragglers(session_ids)) and (waited := time.monotonic() - began) < LIMIT_S:
        for pid, started in found.items():
            is_reaper = _name_of(str(pid)).startswith(KEEPER.encode())
            if (waited > KEEPERS_S or not is_reaper) and _kill(pid, started):
                killed.add(pid)
        _until_one_ends(found)
    return sorted(killed)


def _until_one_ends(pids: Collection[int]) -> None:
    """Return when one of these processes has ended, or after `LOOK_S`, because there may be new ones."""
    ends = select.poll()
    handles: list[int] = []
    try:
        for pid in pids:
            try:
                handles.append(os.pidfd_open(pid))
            except OSError:
                return  # it has ended
            ends.register(handles[-1], select.POLLIN)
        ends.poll(LOOK_S * 1_000)
    finally:
        for handle in handles:
            os.close(handle)


def wait_for_end(pid: int) -> None:
    """Wait until a process that is about to end has ended, at most `LIMIT_S`."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return  # it has ended
    try:
        select.select([handle], [], [], LIMIT_S)
    finally:
        os.close(handle)


def _kill(pid: int, started: str) -> bool:
    """Kill a process if the pid still means the same process; return whether it was signalled."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if start_time(pid) == started:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            return True
    except OSError:
        pass  # it ended in between, or we have no permission to signal it
    finally:
        os.close(handle)
    return False


def keeper_mark(session_id: str) -> str:
    """Return the process name of the reapers of a session, short enough for the kernel."""
    return KEEPER + blake2b(session_id.encode("utf-8", "surrogateescape"), digest_size=5).hexdigest()


def _name_of(pid: str) -> bytes:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read().rstrip(b"\n")
    except OSError:
        return b""  # it has ended


def _is_marked(pid: str, marks: Collection[bytes]) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return any(variable in marks for variable in file.read().split(b"\0"))
    except OSError:
        return False  # it has ended, or we have no permission to read it
