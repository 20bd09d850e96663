"""What a response cost. An unknown price is None, never 0.

Prices are those of the installed price list. It knows models by their names at the providers that made them;
what somebody else's server charges for a model of that name, it does not know.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import ROUND_CEILING, Decimal
from typing import TYPE_CHECKING

from fanfold.kernel.events import Usage

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse

CHARS_PER_TOKEN = 4
"""Roughly, where a server does not count: what is guessed must not look like nothing."""
_MICRO = Decimal(1_000_000)


def usage_of(response: ModelResponse, prices: str | None) -> Usage:
    """Tokens and price of one response; `prices` names its provider in the list, None where it is silent."""
    used = response.usage
    if not used.input_tokens and not used.output_tokens:
        return Usage(0, max(1, len(response.text or "") // CHARS_PER_TOKEN), None)
    price = None if prices is None else _micro_usd(response, prices)
    return Usage(used.input_tokens, used.output_tokens, price).bounded()


def _micro_usd(response: ModelResponse, prices: str) -> int | None:
    if response.usage.unmeasured_requests or not response.model_name:
        return None
    try:
        # The SDK names the provider whose format is spoken, which need not be the one that answers.
        price = replace(response, provider_name=prices, provider_url=None).cost().total_price
    except (LookupError, ValueError):  # a model or provider that the list does not know
        return None
    return int((price * _MICRO).to_integral_value(ROUND_CEILING))


def list_price(model_name: str, prices: str, input_tokens: int, output_tokens: int) -> int | None:
    """What so many tokens cost at a provider, in micro-dollars; None when the list does not know."""
    from genai_prices import Usage as Counted
    from genai_prices import calc_price

    counted = Counted(input_tokens=input_tokens, output_tokens=output_tokens)
    try:
        price = calc_price(counted, model_name, provider_id=prices).total_price
    except (LookupError, ValueError):
        return None
    return int((price * _MICRO).to_integral_value(ROUND_CEILING))
