"""Calls a handler that the running program registered, in this process.

An async handler runs in the event loop, any other handler in a thread. A handler gets copies of its inputs,
so that it cannot change finished outputs or the inputs of the run.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import threading
from asyncio import IncompleteReadError, StreamReader, StreamWriter
from collections.abc import Awaitable, Callable, Collection
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import Any, TypeAlias

import msgspec

from fanfold.agents.backend import TRACE
from fanfold.errors import AuthorError, BugError, FanfoldError
from fanfold.language.json_text import JSON
from fanfold.language.terminal import exception_text
from fanfold.sessions.processes import Process, end_tree, finish_despite_cancel, start_process
from fanfold.steps import function_worker
from fanfold.steps.function_calls import (
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    CallFailure,
    FunctionCall,
    FunctionReply,
    PermittedFiles,
    to_frame,
)
from fanfold.steps.run_config import Sources
from fanfold.store.protocol import LeaseLost, StoreFault

_Job: TypeAlias = tuple[asyncio.AbstractEventLoop, "asyncio.Future[object]", Context, Callable[[], object]]


async def call_here(
    handler: Callable[..., Any], inputs: dict[str, JSON], begin: Callable[[], None]
) -> object:
    """The return value of the handler. Raises its failure as an `Exception`.

    If the handler runs in a thread, `begin` is called immediately before it.
    """
    given: dict[str, JSON] = msgspec.to_builtins(inputs)
    if inspect.iscoroutinefunction(handler):
        return await _in_its_own_task(handler(**given))

    def call() -> object:
        begin()
        try:
            return handler(**given)
        except BaseException as raised:  # noqa: BLE001 - a handler may raise anything
            raise _failure_of(raised) from None

    result = await shared.run(call)
    return await _in_its_own_task(result) if inspect.isawaitable(result) else result


async def _in_its_own_task(work: Awaitable[object]) -> object:
    """Await a handler in a separate task.

    A handler may raise any exception and cancel its own task. Only the caller can cancel the call.
    """

    async def settle() -> tuple[object, BaseException | None]:
        try:
            return await work, None
        except BaseException as raised:  # noqa: BLE001 - what is no Exception would end the loop, or be lost
            return None, raised

    task = asyncio.create_task(settle())
    asked: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            asked = error
            task.cancel()
    if task.cancelled():  # cancelled before its first step
        if inspect.iscoroutine(work):
            work.close()
        raise asked or asyncio.CancelledError
    value, raised = task.result()
    if raised is None:
        return value
    raise asked if asked is not None and isinstance(raised, asyncio.CancelledError) else _failure_of(raised)


def _failure_of(raised: BaseException) -> Exception:
    """The error of a call, as an `Exception` that does not stop the host."""
    if isinstance(raised, FanfoldError) and not isinstance(raised, (BugError, LeaseLost, StoreFault)):
        return raised
    return AuthorError("step.exception", exception_text(raised))


class Threads:
    """Threads for functions that may block: one per concurrent call, reused for later calls.

    Why not the event loop's own executor
    * It has four threads more than there are processors. Sixteen functions that wait for a socket would take
      turns, whatever the run's concurrency. A function that hangs, or continues after its cancellation, would
      block one of these threads.
    * At the end of the program, it waits until every function has returned. The threads here are daemons,
      which end with the program.
    * It costs more. Here a call needs only one shared queue and one callback.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Reset to no threads, because a forked process has none of its parent's threads."""
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._busy = 0
        """The number of queued and running jobs; never more than the number of threads."""

    async def run(self, call: Callable[[], object]) -> object:
        """Run `call` in a thread, and return its value or raise its error.

        A thread cannot be ended from outside. A cancellation therefore drops the result, but waits until
        `call` has returned.

        >>> main = threading.main_thread()
        >>> asyncio.run(Threads().run(lambda: threading.current_thread() is main))
        False
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[object] = loop.create_future()
        with self._lock:
            self._busy += 1
            more = self._busy > self._threads
            self._threads += more
        if more:
            threading.Thread(target=self._work, name="fanfold function", daemon=True).start()
        self._jobs.put((loop, future, copy_context(), call))
        return await finish_despite_cancel(future)

    def _work(self) -> None:
        while True:
            loop, future, context, call = self._jobs.get()
            value: object = None
            error: Exception | None = None
            try:
                value = context.run(call)
            except BaseException as raised:  # noqa: BLE001  # `sys.exit()` in a function ends it alone
                # A future refuses `StopIteration`, and a `BaseException` would end the event loop.
                if isinstance(raised, Exception) and not isinstance(raised, StopIteration):
                    error = raised
                else:
                    error = RuntimeError(f"the function raised {exception_text(raised)}")
            with self._lock:
                self._busy -= 1
            try:
                loop.call_soon_threadsafe(_settle, future, value, error)
            except RuntimeError:
                pass  # the loop was closed meanwhile; no caller waits for the result
            del loop, future, context, call, value, error  # an idle thread keeps nothing alive


def _settle(future: asyncio.Future[object], value: object, error: Exception | None) -> None:
    if future.done():
        return  # the loop is ending, and has cancelled everything
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


shared = Threads()
"""The threads of this process. Later runs reuse the threads of finished runs."""
os.register_at_fork(after_in_child=shared.forget)

# -----------------------------------------------------------------------------------------------------------
# The processes of a run's functions: started on demand and reused for later calls
#
# Rules
# * A process handles one call at a time. There is one process per concurrent call, and idle processes end
#   after `IDLE_S`.
# * A cancelled call ends its process with all child processes, and returns when all of them have ended.
# * A process gets the short environment of every program of a run, and the variables that the user's own
#   configuration names. These never include keys of providers. It works in the project's folder.

IDLE_S = 30.0
STDERR_CHARS = 500


class FunctionProcesses:
    """The function processes of one run. `session` marks them, so that they can be found after a crash."""

    def __init__(
        self,
        project: str,
        sources: Sources,
        session: str,
        variables: Collection[str] = (),
        allowed: frozenset[str] = frozenset(),
    ) -> None:
        self._project = project
        self._sources = sources
        self._session = session
        self._variables = variables
        self._allowed = allowed
        self._idle: list[_FunctionProcess] = []
        self._all: set[_FunctionProcess] = set()

    async def call(self, handler: str, inputs: dict[str, JSON], begin: Callable[[], None]) -> FunctionReply:
        """Call a handler. `begin` is called immediately before, and may raise to prevent the call."""
        if self._idle:
            process = self._idle.pop()
            process.is_used()
        else:
            process = await self._start()
        try:
            begin()
            file = self._sources.handlers.get(handler)
            reply = await process.ask(FunctionCall(handler, file, inputs, TRACE.get()))
        except BaseException:
            await self._end(process)
            raise
        if reply is None:
            await self._end(process)
            return FunctionReply(error=process.epitaph())

        def end_idle() -> None:
            if process in self._idle:
                self._idle.remove(process)
                process.ending = asyncio.create_task(self._end(process))

        self._idle.append(process)
        process.idle_timer = asyncio.get_running_loop().call_later(IDLE_S, end_idle)
        return reply

    async def aclose(self) -> None:
        """End all processes. A later call starts new ones."""
        self._idle.clear()
        await asyncio.gather(*(self._end(process) for process in list(self._all)))

    async def _start(self) -> _FunctionProcess:
        given = {name: os.environ[name] for name in self._variables if name in os.environ}
        process = await start_process(
            [sys.executable, "-I", function_worker.__file__, *filter(os.path.isabs, sys.path)],
            cwd=self._project,
            session_id=self._session,
            env=given,
            interactive=True,
        )
        started = _FunctionProcess(process)
        started.send(PermittedFiles(self._project, self._sources.files, self._allowed))
        self._all.add(started)
        return started

    async def _end(self, process: _FunctionProcess) -> None:
        process.is_used()
        try:
            await process.end()
        finally:
            self._all.discard(process)


class _FunctionProcess:
    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._calls: StreamWriter = process.stdin
        self._replies: StreamReader = process.stdout
        self.idle_timer: asyncio.TimerHandle | None = None
        self._status = 0
        self.ending: asyncio.Task[None] | None = None

    def send(self, message: PermittedFiles | FunctionCall) -> None:
        self._calls.write(to_frame(message))

    async def ask(self, call: FunctionCall) -> FunctionReply | None:
        """The reply to a call, or None if the process has ended or the reply is invalid."""
        self.send(call)
        try:
            size = int.from_bytes(await self._replies.readexactly(HEADER_BYTES), "big")
            if size > MAX_FRAME_BYTES:
                return None
            return msgspec.json.decode(await self._replies.readexactly(size), type=FunctionReply)
        except (IncompleteReadError, ConnectionError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def is_used(self) -> None:
        if self.idle_timer is not None:
            self.idle_timer.cancel()
            self.idle_timer = None

    async def end(self) -> None:
        await end_tree(self._process)
        self._status = await self._process.wait()

    def epitaph(self) -> CallFailure:
        """The failure of a call whose process ended unexpectedly. Call it after the end of the process."""
        how = f"signal {-self._status}" if self._status < 0 else f"status {self._status}"
        stderr = self._process.said()[1].strip()[-STDERR_CHARS:]
        message = f"the process of the function ended with {how}" + (f": {stderr}" if stderr else "")
        return CallFailure("agent", "function.died", message)
