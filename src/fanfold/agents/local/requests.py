"""Sessions on the local model: the server that answers them, and what it can be asked.

The server here speaks like OpenAI, so the model back end does the talking. It is found or started before
every session, because a server leaves when idle. The small built-in model cannot use tools and is offered
none: it would only be confused by them.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from msgspec import structs

from fanfold.agents.backend import Progress, SessionFailed, SessionRequest
from fanfold.agents.entries import Preparing
from fanfold.agents.local.server import ensure_server
from fanfold.agents.local.weights import PROVIDER, SMOLLM2, is_weights_file
from fanfold.errors import FanfoldError
from fanfold.kernel.events import Failure

SMALL_ANSWER_TOKENS = 320
"""The small model never stops by itself for long; on two cores this is a few seconds of talk."""


class LocalServers:
    """The servers of local models. `chosen` is what the user named, who alone may name weights by path."""

    def __init__(self, home: Path, idle_s: float, chosen: str | None) -> None:
        self._home = home
        self._idle_s = idle_s
        self._chosen = chosen

    async def reach(self, request: SessionRequest, model: str, progress: Progress) -> str:
        """The address of the server of a model, which is started where none runs; raises `SessionFailed`."""
        if is_weights_file(model) and model != self._chosen:
            # Recipes and roles come with a checkout, and weights are loaded by native code.
            hint = f"if you trust the file: FANFOLD_MODEL={model}"
            message = f"{request.step} names weights by path, which only the user may do"
            raise SessionFailed(Failure("permission", "model.not_here", message, hint, retryable=False))
        progress(Preparing("starts the local model"))
        try:
            return await asyncio.to_thread(partial(ensure_server, model, self._home, idle_s=self._idle_s))
        except FanfoldError as error:
            failure = Failure("transport", error.code, error.message, error.hint, retryable=False)
            raise SessionFailed(failure) from error
        finally:
            progress(Preparing())


def fitted(request: SessionRequest, model: str) -> SessionRequest:
    """The request as the server of a local model can take it."""
    name = model.removeprefix(f"{PROVIDER}:")
    # The server here has one model: it would take any other name for its own.
    role = structs.replace(request.role, model=f"openai-chat:{Path(name).stem}", fallback_models=())
    if name != SMOLLM2:
        return structs.replace(request, role=role)
    most = request.max_output_tokens or SMALL_ANSWER_TOKENS
    return structs.replace(request, role=structs.replace(role, tools=()), max_output_tokens=most)
