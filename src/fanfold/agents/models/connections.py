"""Connections to models: which provider a name means, asked with which key, at which address.

Rules
* Keys and addresses come from `Access` alone.
* The SDKs never retry: whoever asks does (see `questions`), and records it.
* Everything heavy is imported when a model is first used: checking a recipe must not pay. It is imported by
  one thread, whoever asks: packages that import themselves in a circle come to nothing when two threads begin
  at once, and most recipes begin with several agents.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from fanfold.agents.backend import SessionFailed
from fanfold.agents.models.fitted_tools import fit_once
from fanfold.agents.models.throttle import Throttle
from fanfold.agents.models.wire_formats import FORMATS, Endpoint
from fanfold.agents.providers import Access, ModelName, Provider
from fanfold.kernel.events import Failure

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.models import Model

STALL_S = 300.0
CONNECT_S = 10.0
MAX_CONNECTIONS = 1_000
_importer = ThreadPoolExecutor(1, thread_name_prefix="fanfold-imports")
_imported: set[str] = set()


class ModelConnection(NamedTuple):
    """What is needed to ask one model."""

    name: str
    """As it was asked for."""
    provider: Provider
    """Whose key, whose limits and whose prices."""
    model: Model
    throttle: Throttle
    prices: str | None
    """The provider's name in the list of prices, where that list holds."""


class Connections:
    """Connects to models, with one HTTP client for all and one throttle per provider."""

    def __init__(self, access: Access, *, stall_s: float = STALL_S, max_in_flight: int = 256) -> None:
        self._access = access
        self._stall_s = stall_s
        self._max_in_flight = max_in_flight
        self._throttles: dict[str, Throttle] = {}
        self._open: dict[str, ModelConnection] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: httpx2.AsyncClient | None = None

    def open(self, name: str) -> ModelConnection:
        """The connection to a model; raises `SessionFailed` when the name or the key cannot be used."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # connections belong to the loop that opened them
            self._loop, self._client, self._open, self._throttles = loop, None, {}, {}
        if name not in self._open:
            meant = self._understand(name)
            provider = meant.provider
            throttle = self._throttles.setdefault(provider.name, Throttle(self._max_in_flight))
            prices = self._access.prices(provider)
            self._open[name] = ModelConnection(name, provider, self._model(meant), throttle, prices)
        return self._open[name]

    async def load(self, names: Sequence[str]) -> None:
        """Import what models need, in a thread: it takes seconds, and other sessions must go on meanwhile."""
        modules = {"pydantic_ai.messages"}
        for name in names:
            modules.update(FORMATS[self._understand(name).speaks].modules)
        if not modules <= _imported:  # being in `sys.modules` means no more than that somebody began
            await asyncio.get_running_loop().run_in_executor(_importer, _import_all, sorted(modules))

    async def aclose(self) -> None:
        """Close the connections of the running loop."""
        client, self._client, self._open = self._client, None, {}
        if client is not None:
            await client.aclose()

    def _understand(self, name: str) -> ModelName:
        meant = self._access.understand(name)
        if meant is None:
            hint = f"write provider:name; providers are {', '.join(self._access.words())}"
            raise _failed("agent", "model.unknown_provider", f'"{name}" names no provider known here', hint)
        return meant

    def _model(self, meant: ModelName) -> Model:
        access, provider = self._access, meant.provider
        endpoint = Endpoint(self._key(meant), access.address(provider), self._http(), access.native_json)
        return fit_once(FORMATS[meant.speaks].make(meant.name, endpoint))

    def _key(self, meant: ModelName) -> str:
        provider = meant.provider
        if provider.name in self._access.keys:
            return self._access.keys[provider.name]
        if self._access.is_imitated(provider):
            return "unused"  # servers on one's own machine mostly want none
        variable = provider.key_variable
        message = f'"{meant.name}" needs {variable}, which is not set'
        raise _failed("permission", "model.no_key", message, f"set {variable} in the environment")

    def _http(self) -> httpx2.AsyncClient:
        if self._client is None:
            import httpx2
            from pydantic_ai.models import create_async_httpx2_client

            self._client = create_async_httpx2_client(
                timeout=httpx2.Timeout(self._stall_s, connect=min(CONNECT_S, self._stall_s)),
                limits=httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=100),
            )
        return self._client


def _import_all(modules: Iterable[str]) -> None:
    for module in modules:
        importlib.import_module(module)
        _imported.add(module)


def _failed(kind: str, code: str, message: str, hint: str) -> SessionFailed:
    return SessionFailed(Failure(kind, code, message, hint, retryable=False))
