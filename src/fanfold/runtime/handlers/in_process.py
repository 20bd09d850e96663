"""Calls a handler that the running program registered: here, with values of its own.

An async one runs in the event loop, any other in a thread. It gets a copy of what it is given: finished
outputs and the run's inputs are kept by whoever made them.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import Any, TypeAlias

import msgspec

from fanfold.errors import AuthorError, BugError, FanfoldError
from fanfold.sessions.insist import insist
from fanfold.store.protocol import LeaseLost, StoreFault
from fanfold.text.json_value import JSON
from fanfold.text.raised import said

_Job: TypeAlias = tuple[asyncio.AbstractEventLoop, "asyncio.Future[object]", Context, Callable[[], object]]


async def call_here(
    handler: Callable[..., Any], inputs: dict[str, JSON], begin: Callable[[], None]
) -> object:
    """What the handler returns, or an Exception. In a thread, `begin` is called right before it."""
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
    """A handler may raise anything, and cancel the task it finds itself in: only who called ends the call."""

    async def settle() -> tuple[object, BaseException | None]:
        try:
            return await work, None
        except BaseException as raised:  # noqa: BLE001 - what is no Exception would end the loop, or nobody
            return None, raised

    task = asyncio.create_task(settle())
    asked: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            asked = error
            task.cancel()
    if task.cancelled():  # before its first step
        if inspect.iscoroutine(work):
            work.close()
        raise asked or asyncio.CancelledError
    value, raised = task.result()
    if raised is None:
        return value
    raise asked if asked is not None and isinstance(raised, asyncio.CancelledError) else _failure_of(raised)


def _failure_of(raised: BaseException) -> Exception:
    """The error of a call that raised this: an Exception, and never one by which a run stops its host."""
    if isinstance(raised, FanfoldError) and not isinstance(raised, (BugError, LeaseLost, StoreFault)):
        return raised
    return AuthorError("step.exception", said(raised))


class Threads:
    """Threads for functions that may block: as many as run at the same time, kept for the next ones.

    Why not the event loop's own executor
    * It has four threads more than there are processors. Sixteen functions that wait for a socket would take
      turns, whatever the run's concurrency; and one that hangs, or goes on after it was cancelled, would keep
      its thread from everybody else.
    * It waits at the end of the program until every function has returned. These threads are daemons: a
      program that ends ends them.
    * It costs more: here one queue that all threads share and one callback make the way there and back.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin without any: a fork of the process has none of its threads."""
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._busy = 0
        """Jobs that are queued or under way; never more than there are threads."""

    async def run(self, call: Callable[[], object]) -> object:
        """What `call` returns or raises, from a thread.

        A thread cannot be ended from outside. Cancelling gives up the result, and is over when `call` is:
        until then it does whatever it does, and nobody may believe otherwise.

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
        return await insist(future)

    def _work(self) -> None:
        while True:
            loop, future, context, call = self._jobs.get()
            value: object = None
            error: Exception | None = None
            try:
                value = context.run(call)
            except BaseException as raised:  # noqa: BLE001  # `sys.exit()` in a function ends it alone
                error = _as_exception(raised)
            with self._lock:
                self._busy -= 1
            try:
                loop.call_soon_threadsafe(_settle, future, value, error)
            except RuntimeError:
                pass  # the loop was closed meanwhile; nobody waits for the result
            del loop, future, context, call, value, error  # an idle thread keeps nothing alive


def _as_exception(raised: BaseException) -> Exception:
    """What may go into a future; it refuses StopIteration, and a loop dies of what is no Exception."""
    if isinstance(raised, Exception) and not isinstance(raised, StopIteration):
        return raised
    return RuntimeError(f"the function raised {said(raised)}")


def _settle(future: asyncio.Future[object], value: object, error: Exception | None) -> None:
    if future.done():
        return  # the loop is ending, and has cancelled everything
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


shared = Threads()
"""The threads of this process: a run that ended leaves its threads to the next one."""
os.register_at_fork(after_in_child=shared.forget)
