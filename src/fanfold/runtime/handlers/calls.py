"""Answers calls in the process of a run's functions (`worker` is its program): load, call, hand back."""

from __future__ import annotations

import os
from collections.abc import Callable
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from fanfold.errors import FanfoldError
from fanfold.runtime.handlers.frames import (
    CallFailure,
    FunctionCall,
    FunctionReply,
    Permitted,
    read_frame,
    to_frame,
)
from fanfold.runtime.handlers.loading import Handlers
from fanfold.runtime.handlers.permitted import ChangedSource, PermittedImports
from fanfold.text.json_value import TooLarge, strict
from fanfold.text.raised import said, words_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable


def answer_calls(incoming: int, outgoing: int) -> None:
    """Until the other side is gone."""
    own = os.getpid()
    with os.fdopen(incoming, "rb") as calls, os.fdopen(outgoing, "wb") as replies:
        permitted = read_frame(calls, Permitted)
        if permitted is None:
            return
        imports = PermittedImports(permitted.project, permitted.files)
        loop = _Loop()
        handlers = Handlers(permitted.project, imports)
        while (call := read_frame(calls, FunctionCall)) is not None:
            reply = _answer(handlers, call, loop)
            if os.getpid() != own:
                os._exit(0)  # a handler forked, and this is the copy
            replies.write(to_frame(reply))
            replies.flush()


def _answer(handlers: Handlers, call: FunctionCall, loop: _Loop) -> FunctionReply:
    try:
        handler = handlers.find(call.handler, call.file)
        value = _call(handler, call.inputs, loop)
    except ChangedSource as error:
        return FunctionReply(error=CallFailure("permission", error.code, error.message, error.hint))
    except FanfoldError as error:
        return FunctionReply(error=CallFailure("agent", error.code, error.message, error.hint))
    except BaseException as error:  # noqa: BLE001 - a handler may raise anything; it is the call's failure
        return FunctionReply(error=CallFailure("agent", "step.exception", said(error)))
    try:
        return FunctionReply(strict(value))
    except TooLarge as error:
        return FunctionReply(error=CallFailure("invalid_output", "output.too_large", str(error)))
    except BaseException as error:  # noqa: BLE001 - reading a value may run code of its own
        return FunctionReply(error=CallFailure("invalid_output", "output.not_json", words_of(error)))


def _call(handler: Callable[..., Any], inputs: dict[str, Any], loop: _Loop) -> object:
    value = handler(**inputs)
    return loop.run(value) if isawaitable(value) else value


class _Loop:
    """One event loop for all async handlers, so that what they keep open stays usable; made when needed."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def run(self, value: Awaitable[object]) -> object:
        import asyncio

        async def wait() -> tuple[object, BaseException | None]:
            try:
                return await value, None
            except BaseException as error:  # noqa: BLE001 - what is no Exception would end the loop
                return None, error

        if self._runner is None:
            self._runner = asyncio.Runner()
        result, error = self._runner.run(wait())
        if error is not None:
            raise error
        return result
