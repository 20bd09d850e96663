"""Models by name, the local one included: whoever asks for `local:…` gets a server on this machine.

The local server speaks like OpenAI, so the model back end does the talking; this one finds or starts the
server, before every session, because a server leaves when idle. The small built-in model cannot use tools
and is offered none: it would only be confused by them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec import structs

from fanfold.agents.backend import Backend, Progress, Record, SessionFailed, SessionRequest, SessionResult
from fanfold.agents.local.server import ensure_server
from fanfold.agents.local.weights import PROVIDER, SMOLLM2
from fanfold.errors import FanfoldError
from fanfold.kernel.events import Failure

SMALL_ANSWER_TOKENS = 320
"""The small model never stops by itself for long; on two cores this is a few seconds of talk."""
Reach = Callable[[str], Backend]


class AnyModel:
    """Sends each session to the provider its model belongs to.

    `remote` serves every provider with a key; `reach` makes a back end for the address of a local server.
    """

    name = "model"

    def __init__(self, default: str | None, remote: Backend, reach: Reach, home: Path, idle_s: float) -> None:
        self._idle_s = idle_s
        self._default = default
        self._remote = remote
        self._reach = reach
        self._home = home
        self._local: dict[str, Backend] = {}

    async def run(self, request: SessionRequest, record: Record, progress: Progress) -> SessionResult:
        role = request.role
        model = role.model or self._default
        if model is None or not model.startswith(f"{PROVIDER}:"):
            return await self._remote.run(_with_role(request, model=model), record, progress)
        if model not in (self._default, f"{PROVIDER}:{SMOLLM2}"):
            # Recipes and roles come with a checkout: weights are loaded by native code, so only the user
            # may name a file.
            hint = f"if you trust the file: FANFOLD_MODEL={model}"
            message = f"{request.step} names weights by path, which only the user may do"
            raise SessionFailed(Failure("permission", "model.not_here", message, hint, retryable=False))
        backend = await self._server(model)
        name = model.partition(":")[2]
        # The server here has one model: it would take any other name for its own.
        request = _with_role(request, model=f"openai-chat:{Path(name).stem}", fallback_models=())
        if name == SMOLLM2:
            most = request.max_output_tokens or SMALL_ANSWER_TOKENS
            request = structs.replace(_with_role(request, tools=()), max_output_tokens=most)
        return await backend.run(request, record, progress)

    async def aclose(self) -> None:
        for backend in (self._remote, *self._local.values()):
            await backend.aclose()

    async def _server(self, model: str) -> Backend:
        try:
            address = await asyncio.to_thread(partial(ensure_server, model, self._home, idle_s=self._idle_s))
        except FanfoldError as error:
            failure = Failure("transport", error.code, error.message, error.hint, retryable=False)
            raise SessionFailed(failure) from error
        if address not in self._local:
            self._local[address] = self._reach(address)
        return self._local[address]


def _with_role(request: SessionRequest, **changes: object) -> SessionRequest:
    return structs.replace(request, role=structs.replace(request.role, **changes))
