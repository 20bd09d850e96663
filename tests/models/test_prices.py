"""What sessions cost: known, or None."""

import asyncio
import json

import pytest
from msgspec.structs import replace

from fanfold.agents.backend import SessionFailed
from fanfold.agents.entries import FailedRequest
from fanfold.agents.models.connections import list_price
from fanfold.agents.providers import PROVIDERS, Rate
from fanfold.kernel.events import Usage
from tests.models.sessions import MODELS, play, request
from tests.provider import Call, Reply


@pytest.mark.full
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


@pytest.mark.full
@pytest.mark.parametrize("model", [*MODELS, "openai-chat:gpt-4o"])
def test_the_price_of_a_known_model_at_another_server_is_unknown(model):
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


@pytest.mark.full
def test_an_unknown_models_price_is_none_and_never_zero():
    async def scene(here):
        result = await here.run(request(model="openai-chat:homemade-7b"))
        assert result.usage == Usage(10, 5, None)

    play([Reply(text="ok")], scene)


def test_one_unknown_price_makes_the_sum_unknown():
    assert Usage(1, 1, 5) + Usage(1, 1, 7) == Usage(2, 2, 12)
    assert Usage(1, 1, 5) + Usage(1, 1, None) == Usage(2, 2, None)


def test_whether_a_price_is_known_can_be_asked_before_anything_is_spent():
    assert list_price("gpt-5", "openai", Usage(1, 1)) is not None
    assert list_price("homemade-7b", "openai", Usage(1, 1)) is None


@pytest.mark.full
@pytest.mark.parametrize("model", MODELS)
def test_cached_input_is_counted_apart_and_costs_what_the_provider_charges_for_it(model):
    here = tuple(replace(row, address="http://127.0.0.1") for row in PROVIDERS)
    costs = []

    async def scene(world):
        costs.extend([(await world.run(request(model=model))).usage for _ in range(2)])

    replies = [Reply(text="ok", input_tokens=100_000, cached_tokens=cached) for cached in (0, 90_000)]
    play(replies, scene, providers=here)
    fresh, cached = costs
    assert (fresh.tokens, cached.tokens) == (100_005, 10_005)
    assert cached.input_tokens == 100_000
    assert 0 < cached.micro_usd < fresh.micro_usd / 2


@pytest.mark.full
def test_the_user_s_own_prices_hold_on_any_server():
    rates = {"homemade-7b": Rate(2.0, 10.0, 0.5)}

    async def scene(here):
        usage = (await here.run(request(model="openai-chat:homemade-7b"))).usage
        assert usage == Usage(1_000, 100, 400 * 2 + 600 // 2 + 100 * 10, 600)

    play([Reply(text="ok", input_tokens=1_000, output_tokens=100, cached_tokens=600)], scene, prices=rates)


@pytest.mark.full
@pytest.mark.parametrize("model", MODELS)
def test_an_answer_without_usage_is_taken_and_what_it_cost_is_estimated(model):
    async def scene(here):
        result = await here.run(request(model=model, prompt="a" * 400))
        assert result.output == "b" * 80
        whole = len(json.dumps(here.provider.asked[0].body))  # instructions and tools are input too
        assert whole / 8 < result.usage.input_tokens < whole / 2
        assert (result.usage.output_tokens, result.usage.micro_usd) == (20, None)

    play([Reply(text="b" * 80, counted=False)], scene)


@pytest.mark.full
@pytest.mark.parametrize("model", MODELS)
def test_a_refused_response_keeps_what_it_cost(model):
    async def scene(here):
        with pytest.raises(SessionFailed) as failed:
            await here.run(request(model=model))
        assert failed.value.usage == Usage(10, 5, None)
        (billed,) = here.recorder.of(FailedRequest)
        assert (billed.code, billed.usage) == ("model.content_filter", Usage(10, 5, None))

    play([Reply(text="no", finish="content_filter")], scene)


@pytest.mark.full
@pytest.mark.parametrize("model", MODELS)
def test_half_a_character_in_an_answer_is_replaced_and_nothing_is_lost(model):
    half = chr(0xD83D)

    async def scene(here):
        result = await here.run(request(model=model))
        assert result.output == "a \ufffd b"
        assert result.usage == Usage(20, 10, None)

    play([Reply(calls=(Call("list_files", {"path": half}),)), Reply(text=f"a {half} b")], scene)


@pytest.mark.full
@pytest.mark.parametrize("model", MODELS)
def test_a_request_that_is_stopped_in_the_middle_of_its_response_keeps_what_it_cost(model):
    async def scene(here):
        begun = asyncio.Event()
        work = here.backend.run(request(model=model), here.recorder.record, lambda _words: begun.set())
        running = asyncio.create_task(work)
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        (stopped,) = here.recorder.of(FailedRequest)
        assert (stopped.kind, stopped.code, stopped.next_at) == ("cancelled", "model.stopped", 0)
        assert stopped.usage is not None
        if model.startswith("anthropic:"):  # reports its input at the start
            assert stopped.usage.input_tokens == 10
        else:
            assert stopped.usage.input_tokens > 100

    play([Reply(text="some words and more", pause_s=0.3)], scene)
