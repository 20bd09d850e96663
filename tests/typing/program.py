"""A program that uses Fanfold with types: `test_typing.py` has two type checkers read it, and runs it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import assert_type

import msgspec
import pydantic
import pytest

import fanfold


class Brief(msgspec.Struct):
    title: str
    points: list[str]


@dataclass
class BriefData:
    title: str
    points: list[str]


class BriefModel(pydantic.BaseModel):
    title: str
    points: list[str]


RECIPE = fanfold.Recipe(
    name="brief",
    steps=[
        {
            "id": "write",
            "agent": "explorer",
            "prompt": "Write",
            "output_schema": {"type": "object", "required": ["title", "points"]},
        }
    ],
)
OPTIONS = fanfold.Options(script="default: {output: {title: Owls, points: [quiet, at night]}}", max_agents=3)


async def work() -> None:
    plain = await fanfold.run(RECIPE, options=OPTIONS)
    assert_type(plain, fanfold.Result)
    result = await fanfold.run(RECIPE, options=OPTIONS, output=Brief)
    assert_type(result, fanfold.TypedResult[Brief])
    assert_type(result.output, Brief | None)
    assert_type(result.expect(), Brief)
    assert result.expect().points[0].upper() == "QUIET"
    async with fanfold.open(".") as ff:
        run = await ff.start(RECIPE, options=OPTIONS)
        assert_type(run, fanfold.RunHandle)
        async for event in run.events():
            assert_type(event, fanfold.Envelope)
        assert_type(ff.runs(), list[fanfold.RunRow])
        assert_type(await run.result(BriefModel), fanfold.TypedResult[BriefModel])
        assert_type((await ff.run(RECIPE, output=BriefData, options=OPTIONS)).expect().title, str)
        status: str = plain.steps["write"].status
        assert status == "completed"


def main() -> None:
    asyncio.run(work())
    assert fanfold.run_sync(RECIPE, output=BriefModel, options=OPTIONS).expect().title == "Owls"
    assert_type(fanfold.run_sync(RECIPE, output=BriefData, options=OPTIONS).expect(), BriefData)
    with fanfold.open_sync(".") as ff:
        assert_type(ff.run(RECIPE, output=Brief, options=OPTIONS).expect().points, list[str])
        assert ff.start(RECIPE, options=OPTIONS).result(dict[str, object]).expect()["title"] == "Owls"
        with pytest.raises(fanfold.AuthorError, match="is no int"):
            ff.run(RECIPE, output=int, options=OPTIONS)


if __name__ == "__main__":
    main()
