"""What sessions cost: known, or None."""

import pytest
from msgspec.structs import replace

from fanfold.agents.models.prices import list_price
from fanfold.agents.providers import PROVIDERS
from fanfold.kernel.events import Usage
from fanfold.testing.provider import Reply
from tests.models.sessions import MODELS, play, request


def test_a_known_models_price_is_counted_in_millionths_of_a_dollar():
    async def scene(here):
        for model in MODELS:
            result = await here.run(request(model=model))
            assert result.usage.micro_usd is not None
            assert result.usage.micro_usd > 1_000

    here = tuple(
        replace(row, address="http://127.0.0.1") for row in PROVIDERS
    )  # the scripted one stands for both
    answer = Reply(text="ok", input_tokens=1_000_000, output_tokens=1_000)
    play(lambda asked: answer, scene, providers=here)


@pytest.mark.parametrize("model", [*MODELS, "openai-chat:gpt-4o"])
def test_what_somebody_else_s_server_charges_for_a_known_name_is_unknown(model):
    async def scene(here):
        assert (await here.run(request(model=model))).usage == Usage(10, 5, None)

    play([Reply(text="ok")], scene)


@pytest.mark.parametrize(
    ("provider", "url", "elsewhere"),
    [
        ("openai", None, False),
        ("openai", "https://api.openai.com/v1", False),
        ("openai", "https://eu.api.openai.com/v1", False),
        ("openai", "http://127.0.0.1:8000/v1", True),
        ("openai", "https://proxy.example/api.openai.com/v1", True),
        ("openai", "https://api.openai.com.evil.example/v1", True),
        ("openai", "https://notapi.openai.com", True),
        ("openai", "http://[bad", True),
        ("anthropic", None, False),
        ("anthropic", "https://api.anthropic.com", False),
        ("anthropic", "https://gateway.example", True),
    ],
)
def test_list_prices_hold_at_the_provider_s_own_address_alone(provider, url, elsewhere):
    rows = {row.name: row for row in PROVIDERS}
    assert rows[provider].is_at(url) != elsewhere


def test_an_unknown_models_price_is_none_and_never_zero():
    async def scene(here):
        result = await here.run(request(model="openai-chat:homemade-7b"))
        assert result.usage == Usage(10, 5, None)

    play([Reply(text="ok")], scene)


def test_one_unknown_price_makes_the_sum_unknown():
    assert Usage(1, 1, 5) + Usage(1, 1, 7) == Usage(2, 2, 12)
    assert Usage(1, 1, 5) + Usage(1, 1, None) == Usage(2, 2, None)


def test_whether_a_price_is_known_can_be_asked_before_anything_is_spent():
    assert list_price("gpt-5", "openai", 1, 1) is not None
    assert list_price("homemade-7b", "openai", 1, 1) is None
