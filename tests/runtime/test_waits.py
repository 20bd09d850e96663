"""Outages and usage limits: the run waits, visibly and durably, and continues without a person."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fanfold.api.result import Result
from fanfold.api.run_options import Options
from fanfold.kernel.events import Envelope
from tests.fast_clock import FastClock
from tests.provider import KEY, Fault, RecordedRequest, Reply, ScriptedProvider
from tests.runtime.running import client

MODEL = "openai-chat:gpt-5"
ITEMS = """
name: items
limits: {{max_concurrency: 8, max_agents: 500{more}}}
steps:
  - {{id: each, agent: explorer, for_each: "{items}", prompt: "Item {{{{item}}}}."}}
"""


def items(count: int, more: str = "") -> str:
    return ITEMS.format(items=list(range(count)), more=more)


@pytest.fixture
def clock() -> Iterator[FastClock]:
    with FastClock() as fast:
        yield fast


class World:
    """A project whose provider this test scripts, with the events and requests of its runs."""

    def __init__(
        self, folder: Path, clock: FastClock, script: Callable[[RecordedRequest], Reply | Fault]
    ) -> None:
        self.folder, self.clock, self.script = folder, clock, script
        self.asked: list[tuple[float, str]] = []
        self.run_id = ""
        self.events: list[Envelope] = []
        """What the log of the last run has."""

    def _answer(self, asked: RecordedRequest) -> Reply | Fault:
        self.asked.append((self.clock.time(), asked.prompt))
        return self.script(asked)

    def run(self, recipe: str, resume: str = "", **more: Any) -> Result:
        async def work() -> Result:
            async with ScriptedProvider(self._answer) as provider:
                environment = {
                    "HOME": str(self.folder),
                    "FANFOLD_HOME": str(self.folder / ".home"),
                    "OPENAI_BASE_URL": f"{provider.url}/v1",
                    "OPENAI_API_KEY": KEY,
                    "FANFOLD_MODEL": MODEL,
                }
                (self.folder / "project").mkdir(exist_ok=True)
                async with client(self.folder / "project", environment) as opened:
                    if resume:
                        handle = await opened.resume(resume, **more)
                    else:
                        handle = await opened.start(recipe, options=Options(permission="auto"), **more)
                    self.run_id = handle.id
                    result = await handle.result()
                    self.events = opened.logs(handle.id)
                    return result

        return self.clock.run(work())


@pytest.mark.full
def test_a_run_of_fifty_items_survives_an_outage_of_ten_minutes(tmp_path: Path, clock: FastClock) -> None:
    began = clock.time()

    def script(_: RecordedRequest) -> Reply | Fault:
        return Fault("overloaded") if 1 < clock.time() - began < 600 else Reply(text="done")

    world = World(tmp_path, clock, script)
    done = world.run(items(50))
    assert done.status == "completed"
    assert done.output == ["done"] * 50
    assert done.usage.agents == 50
    assert clock.time() - began < 900


@pytest.mark.full
def test_steps_that_meet_an_outage_together_open_one_wait(tmp_path: Path, clock: FastClock) -> None:
    def script(_: RecordedRequest) -> Reply | Fault:
        return Fault("silent") if len(world.asked) <= 8 else Reply(text="done")

    world = World(tmp_path, clock, script)
    done = world.run(items(8))
    assert done.status == "completed"
    waits = [event.data for event in world.events if event.data.get("kind") == "wait_opened"]
    assert [wait["subject"] for wait in waits] == ["openai"]
