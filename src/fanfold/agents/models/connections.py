"""Connections to models: the provider, the key and the address for a model name.

Rules
* Keys and addresses come only from `Access`.
* The SDKs never retry. The caller does (see `requests`), and records it.
* Heavy modules are imported when a model is first used, because checking a recipe must be fast.
"""

from __future__ import annotations

import asyncio
import json
import time
import warnings
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from decimal import ROUND_CEILING, Decimal
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from fanfold.agents.backend import SessionFailed, import_in_thread
from fanfold.agents.models.failures import check_response, filter_stream
from fanfold.agents.providers import Access, ModelName, Provider, Rate, WireFormat
from fanfold.kernel.events import Failure, Usage

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model
    from pydantic_ai.providers.openai import OpenAIProvider

# -----------------------------------------------------------------------------------------------------------
# The cost of a response. An unknown price is None, never 0.
#
# The user's own configuration comes first (`[models.prices]`), then the installed price list. The list has
# models by their names at their original providers. It does not have the prices of other servers for the same
# model name.

CHARS_PER_TOKEN = 4
"""An estimate for servers that do not count tokens, so that their usage is not zero."""
_MICRO = Decimal(1_000_000)
_SAMPLE = 1_000
"""Number of tokens from which the price of one is computed; very long requests have higher prices."""


class ModelPrices(Struct, frozen=True):
    """The sources for the prices of one model."""

    listed: str | None = None
    """Its provider in the price list; None: the list does not apply."""
    own: Rate | None = None
    """The price in the user's configuration."""

    def usage_of(self, response: ModelResponse, asked_chars: int = 0) -> Usage:
        """Return tokens and price of one response; `asked_chars` is the length of the request."""
        used = response.usage
        if not used.input_tokens and not used.output_tokens:
            guess = Usage(asked_chars // CHARS_PER_TOKEN, max(1, len(response.text or "") // CHARS_PER_TOKEN))
            return guess if self.own is None else replace_price(guess, self.own)
        usage = Usage(used.input_tokens, used.output_tokens, None, used.cache_read_tokens).bounded()
        if self.own is not None:
            return replace_price(usage, self.own)
        price = None if self.listed is None else _micro_usd(response, self.listed)
        return Usage(usage.input_tokens, usage.output_tokens, price, usage.cached_tokens).bounded()

    def rate(self, model_name: str) -> Rate | None:
        """Return the price of one token; None if unknown."""
        if self.own is not None or self.listed is None:
            return self.own
        read = list_price(model_name, self.listed, Usage(_SAMPLE))
        written = list_price(model_name, self.listed, Usage(0, _SAMPLE))
        cached = list_price(model_name, self.listed, Usage(_SAMPLE, cached_tokens=_SAMPLE))
        if read is None or written is None or cached is None:
            return None
        return Rate(read / _SAMPLE, written / _SAMPLE, cached / _SAMPLE)


def replace_price(usage: Usage, rate: Rate) -> Usage:
    """Return the same usage at the user's own price."""
    uncached = usage.input_tokens - usage.cached_tokens
    price = uncached * rate.input + usage.cached_tokens * rate.cached + usage.output_tokens * rate.output
    return Usage(usage.input_tokens, usage.output_tokens, ceil(price), usage.cached_tokens).bounded()


def _micro_usd(response: ModelResponse, prices: str) -> int | None:
    if response.usage.unmeasured_requests or not response.model_name:
        return None
    try:
        # The SDK names the provider of the wire format, which may differ from the provider that responds.
        price = replace(response, provider_name=prices, provider_url=None).cost().total_price
    except (LookupError, ValueError):  # the list does not have the model or provider
        return None
    return int((price * _MICRO).to_integral_value(ROUND_CEILING))


def list_price(model_name: str, prices: str, usage: Usage) -> int | None:
    """Return the cost of a usage at a provider in micro-dollars; None if the list does not have it."""
    from genai_prices import Usage as Counted
    from genai_prices import calc_price

    counted = Counted(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cached_tokens,
    )
    try:
        price = calc_price(counted, model_name, provider_id=prices).total_price
    except (LookupError, ValueError):
        return None
    return int((price * _MICRO).to_integral_value(ROUND_CEILING))


# -----------------------------------------------------------------------------------------------------------
# Limits for requests to one provider: how many at once, and when.
#
# Rules
# * When a provider reports too many requests, all requests wait until the time it named, not only the
#   rejected one. Then half as many run at once, and one more after each full round of successes.
# * An error that a retry cannot fix (no quota, a refused key) opens the circuit. For a while every request
#   fails at once with the same message, without a call. Then one request is allowed to try.
# * A wait of `NOTED_S` or more is reported to the session, which shows and records it.
# * Requests wait in order. A request that is cancelled while it waits does not block the others.

OPEN_S = 60.0
"""How long an open circuit refuses requests before one is allowed to try."""


NOTED_S = 1.0
OnWait = Callable[[str, float], Awaitable[None]]
"""Called with the reason why a request waits, and the seconds until its next attempt (0: unknown)."""


class Throttle:
    """Limits how many requests to one provider run at once, and when they start."""

    def __init__(
        self, most: int = 256, *, open_s: float = OPEN_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self.allowed = most
        """How many requests can run at once, according to the provider's responses so far."""
        self._in_flight = 0
        self._successes = 0
        self.answered = 0
        """Number of requests with a response."""
        self._not_before = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._failure: Failure | None = None
        self._refuse_until = 0.0
        self._open_s = open_s
        self._clock = clock

    @asynccontextmanager
    async def passing(self, on_wait: OnWait | None = None) -> AsyncIterator[None]:
        """Acquire a slot for one request; raise `SessionFailed` while the circuit is open."""
        while True:
            if self._failure is not None and self._clock() < self._refuse_until:
                raise SessionFailed(self._failure)
            if self._failure is not None:
                self._refuse_until = self._clock() + self._open_s  # this request tries; the others still fail
            wait_s = self._not_before - self._clock()
            if wait_s >= NOTED_S and on_wait is not None:
                await on_wait(f"waits {wait_s:.0f} s for the provider's rate limit", wait_s)
                on_wait = None
            elif wait_s > 0:
                await asyncio.sleep(wait_s)
            elif self._in_flight < self.allowed:
                break
            else:
                await self._wait(on_wait)
                on_wait = None
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            self._wake()

    def slow_down(self, wait_s: float) -> None:
        """Reduce the rate after the provider reported too many requests."""
        self._not_before = max(self._not_before, self._clock() + wait_s)
        self.allowed = max(1, min(self.allowed, self._in_flight or 1) // 2)
        self._successes = 0

    def succeeded(self) -> None:
        """Count a request that got its response."""
        self._failure = None
        self.answered += 1
        self._successes += 1
        if self._successes >= self.allowed and self.allowed < self._most:
            self.allowed += 1
            self._successes = 0
            self._wake()

    def open_circuit(self, failure: Failure) -> None:
        """Refuse requests after an error that a retry cannot fix."""
        self._failure = failure
        self._refuse_until = self._clock() + self._open_s

    async def _wait(self, on_wait: OnWait | None) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            if on_wait is not None:
                await asyncio.wait((place,), timeout=NOTED_S)
                if not place.done():
                    ahead = self._in_flight + self._waiting.index(place)
                    await on_wait(f"waits for a slot of the provider, {ahead} requests ahead", 0.0)
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._wake()  # its turn had come: wake the next request
            elif place in self._waiting:  # another request may have removed it already
                self._waiting.remove(place)
            raise

    def _wake(self) -> None:
        free = self.allowed - self._in_flight
        while free > 0 and self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                free -= 1


# -----------------------------------------------------------------------------------------------------------
# Wire formats of providers, each with the modules to import and a function that creates a model.
#
# All differences between two formats are here. Modules are imported when a model is first used, because the
# SDKs take seconds to load. The SDKs get every key and address explicitly, so that they read none from the
# environment. Their own retries are disabled on the client, because `requests` retries. Disabling them per
# request would create a client for each request.


class Endpoint(NamedTuple):
    """The address, key and client for requests to a model."""

    key: str
    address: str
    client: httpx2.AsyncClient
    native_json: bool
    """See `Access.native_json`."""


class WireSpec(NamedTuple):
    modules: tuple[str, ...]
    """Modules to import before `make` is called."""
    make: Callable[[str, Endpoint], Model]


def _chat(name: str, endpoint: Endpoint) -> Model:
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIChatModelSettings
    from pydantic_ai.profiles.openai import OpenAIModelProfile

    # Some servers report the sum so far in each event, unasked. Others refuse a request that asks for it.
    body = {"stream_options": {"include_usage": True}}
    settings = OpenAIChatModelSettings(openai_continuous_usage_stats=True, extra_body=body)
    native = OpenAIModelProfile(supports_json_schema_output=True, default_structured_output_mode="native")
    profile = native if endpoint.native_json else None
    return OpenAIChatModel(name, provider=_openai(endpoint), profile=profile, settings=settings)


def _responses(name: str, endpoint: Endpoint) -> Model:
    from pydantic_ai.models.openai import OpenAIResponsesModel

    return OpenAIResponsesModel(name, provider=_openai(endpoint))


def _openai(endpoint: Endpoint) -> OpenAIProvider:
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(api_key=endpoint.key, base_url=endpoint.address, http_client=endpoint.client)
    provider.client.max_retries = 0
    return provider


def _anthropic(name: str, endpoint: Endpoint) -> Model:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    provider = AnthropicProvider(api_key=endpoint.key, base_url=endpoint.address, http_client=endpoint.client)
    provider.client.max_retries = 0
    return AnthropicModel(name, provider=provider)


async def add_missing_usage(response: httpx2.Response) -> None:
    """Add an empty usage to events of Anthropic that lack one; a hook of the HTTP client.

    Some compatible servers report none, and the library requires it. The cost is then an estimate.
    """
    kind = response.headers.get("content-type", "")
    if not response.url.path.endswith("/messages") or not kind.startswith("text/event-stream"):
        return

    async def completed(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        unfinished: list[bytes] = []
        async for data in chunks:
            if b"\n" not in data:
                unfinished.append(data)
                continue
            *lines, rest = b"".join((*unfinished, data)).split(b"\n")
            unfinished = [rest]
            yield b"".join(_with_usage(line) + b"\n" for line in lines)
        yield _with_usage(b"".join(unfinished))

    filter_stream(response, completed)


def _with_usage(line: bytes) -> bytes:
    if not line.startswith(b"data:") or b'"usage"' in line or b'"message_' not in line:
        return line
    try:
        event = json.loads(line[5:])
    except ValueError:
        return line
    if isinstance(event, dict) and event.get("type") == "message_delta":
        event["usage"] = {"output_tokens": 0}
    elif (
        isinstance(event, dict)
        and event.get("type") == "message_start"
        and isinstance(event.get("message"), dict)
    ):
        event["message"]["usage"] = {"input_tokens": 0, "output_tokens": 0}
    return b"data: " + json.dumps(event).encode()


_OPENAI = ("pydantic_ai.models.openai", "pydantic_ai.providers.openai")
_ANTHROPIC = ("pydantic_ai.models.anthropic", "pydantic_ai.providers.anthropic")
FORMATS: dict[WireFormat, WireSpec] = {
    "openai-chat": WireSpec(_OPENAI, _chat),
    "openai-responses": WireSpec(_OPENAI, _responses),
    "anthropic": WireSpec(_ANTHROPIC, _anthropic),
}

ASSUMED_OUTPUT_TOKENS = 32_000
"""The assumed maximum output of a model whose maximum is unknown."""
ACCEPTED_OUTPUT_TOKENS = 4_096
STALL_S = 120.0
"""How long a server can send nothing, by default; `models.silence_s`."""
CONNECT_S = 10.0
MAX_CONNECTIONS = 1_000


class ModelConnection:
    """Everything for requests to one model."""

    def __init__(
        self,
        name: str,
        provider: Provider,
        model: Model,
        throttle: Throttle,
        prices: ModelPrices,
        is_here: bool = False,
    ) -> None:
        self.name = name
        """The name as the user wrote it."""
        self.provider = provider
        self.model = model
        self.throttle = throttle
        self.prices = prices
        self.is_here = is_here
        """Whether the model runs on this machine, where it costs nothing."""
        self._refused_bound = False

    @cached_property
    def rate(self) -> Rate | None:
        """The price of a token; None if unknown."""
        return self.prices.rate(self.model.model_name)

    def bound(self, room: int | None) -> int | None:
        """Return the output limit for a budget of `room` tokens; None: the model's own maximum.

        Providers refuse limits above the maximum of a model, so no larger limit is requested.
        """
        known = self.model.profile.get("anthropic_max_output_tokens")
        if room is None or room >= (known if isinstance(known, int) else ASSUMED_OUTPUT_TOKENS):
            return None
        return min(room, ACCEPTED_OUTPUT_TOKENS) if self._refused_bound else room

    def lower_bound(self, bound: int | None) -> bool:
        """Use a limit that every model accepts from now on; return False if `bound` was no larger."""
        if bound is None or bound <= ACCEPTED_OUTPUT_TOKENS or self._refused_bound:
            return False
        self._refused_bound = True
        return True


class Connections:
    """Connects to models, with one HTTP client for all and one throttle per provider."""

    def __init__(
        self,
        access: Access,
        *,
        stall_s: float = STALL_S,
        max_in_flight: int = 256,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """Create without connecting; `transport` replaces the network."""
        self._access = access
        self._transport = transport
        self.stall_s = stall_s
        self._max_in_flight = max_in_flight
        self._throttles: dict[str, Throttle] = {}
        self._open: dict[str, ModelConnection] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: httpx2.AsyncClient | None = None

    def open(self, name: str) -> ModelConnection:
        """Return the connection to a model; raise `SessionFailed` if the name or the key is unusable."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # connections belong to the loop that opened them
            self._loop, self._client, self._open, self._throttles = loop, None, {}, {}
        if name in self._open:
            return self._open[name]
        access, meant = self._access, self._understand(name)
        provider = meant.provider
        throttle = self._throttles.setdefault(provider.name, Throttle(self._max_in_flight))
        prices = ModelPrices(access.prices(provider), access.own_rate(provider, name, meant.name))
        key = self._key(meant)
        if self._client is None:
            import httpx2
            from pydantic_ai.models import create_async_httpx2_client

            self._client = create_async_httpx2_client(
                timeout=httpx2.Timeout(self.stall_s, connect=min(CONNECT_S, self.stall_s)),
                limits=httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=100),
                transport=self._transport,
            )
            self._client.headers["accept-encoding"] = "identity"
            self._client.event_hooks["response"] += [check_response, add_missing_usage]
        endpoint = Endpoint(key, access.address(provider), self._client, access.native_json)
        model = FORMATS[meant.speaks].make(meant.name, endpoint)
        self._open[name] = ModelConnection(name, provider, model, throttle, prices, access.native_json)
        return self._open[name]

    def provider_of(self, name: str) -> str:
        """Return the name of a model's provider; the name of the model if the provider is unknown."""
        meant = self._access.understand(name)
        return name if meant is None else meant.provider.name

    async def load(self, names: Sequence[str]) -> None:
        """Import the modules of models, which takes seconds."""
        modules = {"pydantic_ai.messages"}
        for name in names:
            modules.update(FORMATS[self._understand(name).speaks].modules)
        await import_in_thread(modules)
        warnings.filterwarnings("ignore", module="pydantic")  # they quote odd values of a response

    async def aclose(self) -> None:
        """Close the connections of the running loop."""
        client, self._client, self._open = self._client, None, {}
        if client is not None:
            await client.aclose()

    def _understand(self, name: str) -> ModelName:
        meant = self._access.understand(name)
        if meant is None:
            hint = f"write provider:name; providers are {', '.join(self._access.words())}"
            raise _failed("agent", "model.unknown_provider", f'"{name}" names an unknown provider', hint)
        return meant

    def _key(self, meant: ModelName) -> str:
        provider = meant.provider
        if provider.name in self._access.keys:
            return self._access.keys[provider.name]
        if self._access.is_imitated(provider) or self._access.is_usable(provider):
            return "unused"  # servers on the user's own machine mostly need none
        message, hint = self._access.why_unusable(provider, meant.name)
        raise _failed("permission", "model.no_key", message, hint)


def _failed(kind: str, code: str, message: str, hint: str) -> SessionFailed:
    return SessionFailed(Failure(kind, code, message, hint, retryable=False))
