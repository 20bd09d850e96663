"""What sessions cost: known, or None."""

from fanfold.agents.models.prices import add, is_priced
from fanfold.kernel.events import Usage
from fanfold.testing.provider import Reply
from tests.models.sessions import MODELS, play, request


def test_a_known_models_price_is_counted_in_millionths_of_a_dollar():
    async def scene(here):
        for model in MODELS:
            result = await here.run(request(model=model))
            assert result.usage.micro_usd is not None
            assert result.usage.micro_usd > 1_000

    play(lambda asked: Reply(text="ok", input_tokens=1_000_000, output_tokens=1_000), scene)


def test_an_unknown_models_price_is_none_and_never_zero():
    async def scene(here):
        result = await here.run(request(model="openai-chat:homemade-7b"))
        assert result.usage == Usage(10, 5, None)

    play([Reply(text="ok")], scene)


def test_one_unknown_price_makes_the_sum_unknown():
    assert add(Usage(1, 1, 5), Usage(1, 1, 7)) == Usage(2, 2, 12)
    assert add(Usage(1, 1, 5), Usage(1, 1, None)) == Usage(2, 2, None)


def test_whether_a_price_is_known_can_be_asked_before_anything_is_spent():
    assert is_priced("gpt-5", "openai")
    assert not is_priced("homemade-7b", "openai")
