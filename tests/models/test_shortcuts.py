"""What is left out on the way to a provider and back changes nothing that anybody sees."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from fanfold.agents.models.fitted_tools import KEPT
from fanfold.testing.provider import Reply
from tests.models.sessions import MODELS, access, play, request


def tools(*names: str, deep: int = 1) -> list[ToolDefinition]:
    schema: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "string", "title": "X"}}}
    return [ToolDefinition(name=name, parameters_json_schema=schema, strict=False) for name in names] + [
        ToolDefinition(name=f"own{n}", parameters_json_schema=json.loads(json.dumps(schema)))
        for n in range(deep)
    ]


@pytest.mark.parametrize("model", MODELS)
def test_tools_are_fitted_to_a_provider_as_if_each_request_were_the_first(model: str) -> None:
    from fanfold.agents.models.connections import Connections

    async def compare() -> None:
        fitting = Connections(access("http://127.0.0.1:9")).open(model).model
        plain = Connections(access("http://127.0.0.1:9")).open(model).model
        del plain.customize_request_parameters  # the library's own again
        for offered in (tools("a", "b"), tools("b"), tools("a", deep=KEPT + 3), []):
            asked = ModelRequestParameters(function_tools=offered)
            for _ in range(2):
                assert fitting.customize_request_parameters(asked) == plain.customize_request_parameters(
                    asked
                )

    asyncio.run(compare())


def test_a_second_session_offers_the_same_tools() -> None:
    async def scene(here: Any) -> None:
        for _ in range(2):
            await here.run(request(model=MODELS[0]))
        first, second = (asked.body["tools"] for asked in here.provider.asked)
        assert first == second
        assert len({tool["function"]["name"] for tool in first}) == len(first) > 1

    play([Reply(text="done")] * 2, scene)
