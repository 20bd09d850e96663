"""Providers of models: which one a name means, with which key, at which address.

Rules
* A model is `provider:name`. `openai:` means the responses API at OpenAI itself and chat completions at any
  other address, since that is what compatible servers speak; `openai-chat:` and `openai-responses:` insist.
  A bare name is understood when it can mean only one provider.
* Keys and addresses come from `Access` alone. The SDKs would read the environment by themselves; they are
  given every value, so what configuration says is what happens.
* The SDKs never retry: whoever asks does (see `asking`), and records it.
* Everything heavy is imported here and only when a model is first used: checking a recipe must not pay. It is
  imported by one thread, whoever asks: packages that import themselves in a circle come to nothing when two
  threads begin at once, and most recipes begin with several agents.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, convert

from fanfold.agents.backend import SessionFailed
from fanfold.agents.models.limits import Gate
from fanfold.agents.models.prices import is_elsewhere
from fanfold.kernel.events import Failure

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.models import Model

OPENAI_URL = "https://api.openai.com/v1"
ANTHROPIC_URL = "https://api.anthropic.com"
STALL_S = 300.0
CONNECT_S = 10.0
MAX_CONNECTIONS = 1_000
KINDS = ("openai", "openai-chat", "openai-responses", "anthropic")
_OPENAI_NAMES = ("gpt-", "o1", "o3", "o4", "chatgpt-", "codex-")
_MODULES = {
    "openai": ("pydantic_ai.models.openai", "pydantic_ai.providers.openai"),
    "anthropic": ("pydantic_ai.models.anthropic", "pydantic_ai.providers.anthropic"),
}
_KEY_VARIABLES = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
_importer = ThreadPoolExecutor(1, thread_name_prefix="fanfold-imports")
_imported: set[str] = set()


class Access(Struct, frozen=True, kw_only=True):
    """The keys and addresses of providers. Never printed, never stored."""

    openai_api_key: str | None = None
    openai_base_url: str | None = None
    anthropic_api_key: str | None = None
    anthropic_base_url: str | None = None
    native_json: bool = False
    """The server constrains answers to a schema itself; small models cannot hand them in by a tool call."""

    @classmethod
    def of(cls, config: Mapping[str, object]) -> Access:
        """What the configuration says, by its keys."""
        values = {name: config[f"models.{name}"] for name in cls.__struct_fields__ if name != "native_json"}
        return convert(values, cls)

    def __repr__(self) -> str:
        return "Access(…)"

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that must never be recorded."""
        return tuple(key for key in (self.openai_api_key, self.anthropic_api_key) if key)


class Line(NamedTuple):
    """An open line to one model."""

    name: str
    """As it was asked for."""
    provider: str
    """`openai` or `anthropic`: whose key and whose limits."""
    model: Model
    gate: Gate
    listed: bool
    """The provider itself answers, so its list of prices holds."""


class Providers:
    """Opens lines to models, one HTTP client and one gate per provider."""

    def __init__(self, access: Access, *, stall_s: float = STALL_S, max_in_flight: int = 256) -> None:
        self._access = access
        self._addresses = {"openai": access.openai_base_url, "anthropic": access.anthropic_base_url}
        self._stall_s = stall_s
        self._max_in_flight = max_in_flight
        self._gates: dict[str, Gate] = {}
        self._lines: dict[str, Line] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: httpx2.AsyncClient | None = None

    def open(self, name: str) -> Line:
        """The line to a model; raises `SessionFailed` when the name or the key cannot be used."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # connections belong to the loop that opened them
            self._loop, self._client, self._lines, self._gates = loop, None, {}, {}
        line = self._lines.get(name)
        if line is None:
            kind, model_name = self.parse(name)
            provider = "anthropic" if kind == "anthropic" else "openai"
            gate = self._gates.setdefault(provider, Gate(self._max_in_flight))
            listed = not is_elsewhere(provider, self._addresses[provider])
            line = Line(name, provider, self._model(kind, model_name), gate, listed)
            self._lines[name] = line
        return line

    async def load(self, names: Sequence[str]) -> None:
        """Import what models need, in a thread: it takes seconds, and other sessions must go on meanwhile."""
        modules = {"pydantic_ai.messages"}
        for name in names:
            modules.update(_MODULES[self.parse(name)[0].partition("-")[0]])
        if not modules <= _imported:  # being in `sys.modules` means no more than that somebody began
            await asyncio.get_running_loop().run_in_executor(_importer, _import_all, sorted(modules))

    def parse(self, name: str) -> tuple[str, str]:
        """Kind of provider and bare name of a model.

        >>> Providers(Access()).parse("claude-sonnet-4-5")
        ('anthropic', 'claude-sonnet-4-5')
        """
        kind, colon, rest = name.partition(":")
        if colon and kind in KINDS and rest:
            return kind, rest
        if name.startswith("claude-"):
            return "anthropic", name
        if name.startswith(_OPENAI_NAMES) or self._elsewhere:
            return "openai", name
        hint = f"write provider:name; providers are {', '.join(KINDS)}"
        raise _failed("agent", "model.unknown_provider", f'"{name}" names no provider known here', hint)

    async def aclose(self) -> None:
        """Close the connections of the running loop."""
        client, self._client, self._lines = self._client, None, {}
        if client is not None:
            await client.aclose()

    @property
    def _elsewhere(self) -> bool:
        """Whether OpenAI's protocol is spoken by somebody else."""
        return is_elsewhere("openai", self._access.openai_base_url)

    def _model(self, kind: str, name: str) -> Model:
        if kind == "anthropic":
            from pydantic_ai.models.anthropic import AnthropicModel
            from pydantic_ai.providers.anthropic import AnthropicProvider

            anthropic = AnthropicProvider(
                api_key=self._key(name, "anthropic", self._access.anthropic_api_key),
                base_url=self._access.anthropic_base_url or ANTHROPIC_URL,
                http_client=self._http(),
            )
            return AnthropicModel(name, provider=anthropic)
        from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
        from pydantic_ai.providers.openai import OpenAIProvider

        openai = OpenAIProvider(
            api_key=self._key(name, "openai", self._access.openai_api_key),
            base_url=self._access.openai_base_url or OPENAI_URL,
            http_client=self._http(),
        )
        chat = kind == "openai-chat" or (kind == "openai" and self._elsewhere)
        if chat and self._access.native_json:
            from pydantic_ai.profiles.openai import OpenAIModelProfile

            profile = OpenAIModelProfile(
                supports_json_schema_output=True, default_structured_output_mode="native"
            )
            return OpenAIChatModel(name, provider=openai, profile=profile)
        return OpenAIChatModel(name, provider=openai) if chat else OpenAIResponsesModel(name, provider=openai)

    def _key(self, model: str, provider: str, key: str | None) -> str:
        if key:
            return key
        if provider == "openai" and self._elsewhere:
            return "unused"  # servers on one's own machine mostly want none
        variable = _KEY_VARIABLES[provider]
        hint = f"set {variable} in the environment"
        raise _failed("permission", "model.no_key", f'"{model}" needs {variable}, which is not set', hint)

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
