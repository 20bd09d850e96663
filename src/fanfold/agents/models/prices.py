"""What a response cost. An unknown price is None, never 0.

Prices are those of the installed price list. It knows models by their names at the providers that made them;
what somebody else's server charges for a model of that name, it does not know.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fanfold.kernel.events import Usage

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse

CHARS_PER_TOKEN = 4
"""Roughly, where a server does not count: what is guessed must not look like nothing."""
_MICRO = Decimal(1_000_000)


OWN_HOSTS = {"openai": "api.openai.com", "anthropic": "api.anthropic.com"}
"""Where the providers whose prices are in the list can be reached."""


def is_elsewhere(provider: str, url: str | None) -> bool:
    """Whether a provider's protocol is spoken at an address of somebody else's; None is its own.

    >>> is_elsewhere("openai", "https://eu.api.openai.com/v1"), is_elsewhere("openai", "http://127.0.0.1:80/v1")
    (False, True)
    """
    if not url:
        return False
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:  # no address at all: whoever connects will say so
        return True
    own = OWN_HOSTS[provider]
    return host != own and not host.endswith(f".{own}")


def usage_of(response: ModelResponse, *, listed: bool) -> Usage:
    """Tokens and price of one response; `listed` when it came from the provider that the list is of."""
    used = response.usage
    if not used.input_tokens and not used.output_tokens:
        return Usage(0, max(1, len(response.text or "") // CHARS_PER_TOKEN), None)
    return Usage(used.input_tokens, used.output_tokens, _micro_usd(response) if listed else None)


def _micro_usd(response: ModelResponse) -> int | None:
    if response.usage.unmeasured_requests or not response.model_name:
        return None
    try:
        price = response.cost().total_price
    except (LookupError, ValueError):  # a model or provider that the list does not know
        return None
    return int((price * _MICRO).to_integral_value(ROUND_CEILING))


def list_price(model_name: str, provider: str, input_tokens: int, output_tokens: int) -> int | None:
    """What so many tokens cost at a provider, in micro-dollars; None when the list does not know."""
    from genai_prices import Usage as Counted
    from genai_prices import calc_price

    counted = Counted(input_tokens=input_tokens, output_tokens=output_tokens)
    try:
        price = calc_price(counted, model_name, provider_id=provider).total_price
    except (LookupError, ValueError):
        return None
    return int((price * _MICRO).to_integral_value(ROUND_CEILING))
