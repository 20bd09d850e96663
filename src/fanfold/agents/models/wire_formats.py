"""Wire formats: what providers speak, each with what it needs imported and how its models are made.

Whatever differs between two formats stands here. Everything is imported when a model is first used: the SDKs
take seconds. They would read keys and addresses from the environment by themselves; they are given every
value, so what configuration says is what happens. They would also try again by themselves, which `questions`
does; clients are told so once, because a request that says it makes a client of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from fanfold.agents.providers import WireFormat

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.models import Model
    from pydantic_ai.providers.openai import OpenAIProvider


class Endpoint(NamedTuple):
    """Where a model is asked, and with what."""

    key: str
    address: str
    client: httpx2.AsyncClient
    native_json: bool
    """See `Access.native_json`."""


class WireSpec(NamedTuple):
    modules: tuple[str, ...]
    """What must be imported before `make` is called."""
    make: Callable[[str, Endpoint], Model]


def _chat(name: str, endpoint: Endpoint) -> Model:
    from fanfold.agents.models.chat_model import ChatModel

    if not endpoint.native_json:
        return ChatModel(name, provider=_openai(endpoint))
    from pydantic_ai.profiles.openai import OpenAIModelProfile

    profile = OpenAIModelProfile(supports_json_schema_output=True, default_structured_output_mode="native")
    return ChatModel(name, provider=_openai(endpoint), profile=profile)


def _responses(name: str, endpoint: Endpoint) -> Model:
    from pydantic_ai.models.openai import OpenAIResponsesModel

    return OpenAIResponsesModel(name, provider=_openai(endpoint))


def _openai(endpoint: Endpoint) -> OpenAIProvider:
    from pydantic_ai.providers.openai import OpenAIProvider

    from fanfold.agents.models.plain_requests import ask_plainly

    provider = OpenAIProvider(api_key=endpoint.key, base_url=endpoint.address, http_client=endpoint.client)
    provider.client.max_retries = 0
    ask_plainly(provider.client)
    return provider


def _anthropic(name: str, endpoint: Endpoint) -> Model:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    provider = AnthropicProvider(api_key=endpoint.key, base_url=endpoint.address, http_client=endpoint.client)
    provider.client.max_retries = 0
    return AnthropicModel(name, provider=provider)


_OPENAI = (
    "pydantic_ai.models.openai",
    "pydantic_ai.providers.openai",
    "fanfold.agents.models.chat_model",
    "fanfold.agents.models.plain_requests",
)
_ANTHROPIC = ("pydantic_ai.models.anthropic", "pydantic_ai.providers.anthropic")
FORMATS: dict[WireFormat, WireSpec] = {
    "openai-chat": WireSpec(_OPENAI, _chat),
    "openai-responses": WireSpec(_OPENAI, _responses),
    "anthropic": WireSpec(_ANTHROPIC, _anthropic),
}
