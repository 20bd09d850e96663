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

from fanfold.runtime.handlers import threads
from fanfold.text.json_value import JSON


async def call_here(
    handler: Callable[..., Any], inputs: dict[str, JSON], begin: Callable[[], None]
) -> object:
    """What the handler returns, or an Exception. In a thread, `begin` is called right before it."""
    given: dict[str, JSON] = msgspec.to_builtins(inputs)
    if inspect.iscoroutinefunction(handler):
        return await _guarded(handler(**given))

    def call() -> object:
        begin()
        return handler(**given)

    result = await threads.shared.run(call)
    return await _guarded(result) if inspect.isawaitable(result) else result


async def _guarded(work: Awaitable[object]) -> object:
    """Have only what this task was asked to do end it: a handler may raise anything."""
    try:
        return await work
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise RuntimeError("the function raised CancelledError") from None
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"the function raised {type(error).__name__}: {error}") from None
    except GeneratorExit as error:
        if asyncio._get_running_loop() is None:  # noqa: SLF001 - the public one raises; thrown in, not raised
            raise
        raise RuntimeError(f"the function raised GeneratorExit: {error}") from None
