"""Calls a handler that the running program registered: here, with values of its own.

An async one runs in the event loop, any other in a thread. It gets a copy of what it is given: finished
outputs and the run's inputs are kept by whoever made them.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from fanfold.errors import AuthorError, BugError, FanfoldError
from fanfold.runtime.handlers import threads
from fanfold.store.protocol import LeaseLost, StoreFault
from fanfold.text.json_value import JSON
from fanfold.text.raised import said


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

    result = await threads.shared.run(call)
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
