"""What a response cost. An unknown price is None, never 0, and one unknown makes a sum unknown."""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal
from typing import TYPE_CHECKING

from fanfold.kernel.events import Usage

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse

_MICRO = Decimal(1_000_000)


def usage_of(response: ModelResponse) -> Usage:
    """Tokens and price of one response. Prices are those known to the installed price list."""
    used = response.usage
    return Usage(used.input_tokens, used.output_tokens, _micro_usd(response))


def _micro_usd(response: ModelResponse) -> int | None:
    if response.usage.unmeasured_requests or not response.model_name:
        return None
    try:
        price = response.cost().total_price
    except (LookupError, ValueError):  # a model or provider that the list does not know
        return None
    return int((price * _MICRO).to_integral_value(ROUND_CEILING))


def is_priced(model_name: str, provider: str) -> bool:
    """Whether the price of a model is known before anything is asked of it."""
    from genai_prices import Usage as Counted
    from genai_prices import calc_price

    try:
        calc_price(Counted(input_tokens=1, output_tokens=1), model_name, provider_id=provider)
    except (LookupError, ValueError):
        return False
    return True


def add(one: Usage, other: Usage) -> Usage:
    """The sum of two usages.

    >>> add(Usage(1, 2, None), Usage(1, 2, 10)).micro_usd is None
    True
    """
    unknown = one.micro_usd is None or other.micro_usd is None
    price = None if unknown else (one.micro_usd or 0) + (other.micro_usd or 0)
    return Usage(one.input_tokens + other.input_tokens, one.output_tokens + other.output_tokens, price)
