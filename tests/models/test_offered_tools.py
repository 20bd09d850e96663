"""Tools reach a provider the same way in every session."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.sessions import MODELS, play, request
from tests.provider import Reply


@pytest.mark.full
def test_a_second_session_offers_the_same_tools() -> None:
    async def scene(here: Any) -> None:
        for _ in range(2):
            await here.run(request(model=MODELS[0]))
        first, second = (asked.body["tools"] for asked in here.provider.asked)
        assert first == second
        assert len({tool["function"]["name"] for tool in first}) == len(first) > 1

    play([Reply(text="done")] * 2, scene)
