"""Requests at every moment of a run's life: in the process that drives it and from others, when it starts and
when it goes on. Whatever comes when, the run rests or ends as asked, loses nothing, and its log is sound.

CI tries a sample; `make requests` tries every event with every request.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from fanfold.api import run_handle
from fanfold.api.archives import verify_run
from fanfold.api.client import Client
from fanfold.api.ownership import own
from fanfold.api.project import Project
from fanfold.api.run_handle import RunHandle
from fanfold.api.run_options import Options
from fanfold.api.start import create_open
from fanfold.errors import AuthorError, NotFoundError
from fanfold.kernel.state import RUN_TERMINAL
from fanfold.wiring import wire
from tests.runtime.running import client
from tests.work import PATIENCE_S

RECIPE = """
name: everything
steps:
  - {id: look, agent: explorer, prompt: a, retry: {attempts: 2, backoff: 1ms, on: [transport]}}
  - {id: write, agent: worker, prompt: b, write_set: ["a.txt"], depends_on: [look]}
  - {id: each, agent: explorer, prompt: "{{item}}", for_each: '["x", "y"]', depends_on: [write]}
  - {id: command, run: [echo, hello], depends_on: [write]}
  - {id: ask, approve: "Go on?", depends_on: [each, command]}
  - {id: end, agent: explorer, prompt: "{{steps.command.output}}", depends_on: [ask]}
"""
SCRIPT = """
default: OK from {{step}}
steps:
  look: [{fail: {class: transport, message: gone}}, seen]
  write: {output: written, writes: {a.txt: hello}}
"""
EVENTS = 34
"""About as many as the run has; a request beyond the last meets a run that rests."""
WHOLE = os.environ.get("REQUESTS") == "all"
MOMENTS = list(range(EVENTS)) if WHOLE else [0, 2, 9, 19, 31]
Ask: TypeAlias = Callable[[RunHandle, Project], Awaitable[object]]

OPTIONS = Options(permission="auto", script=SCRIPT)
HERE: dict[str, Ask] = {
    "pause": lambda run, _: run.pause(),
    "cancel": lambda run, _: run.cancel(),
    "approve": lambda run, _: run.approve("ask"),
    "reject": lambda run, _: run.reject("ask"),
}


async def interrupt(run: RunHandle, _: Project) -> None:
    """As Ctrl-C does."""
    run.interrupt()
    await run.wait()


ELSEWHERE: dict[str, Ask] = {
    "pause": lambda run, other: run_handle.pause(other, run.id),
    "cancel": lambda run, other: run_handle.cancel(other, run.id),
    "approve": lambda run, other: run_handle.answer(other, run.id, "ask", "approve"),
    "reject": lambda run, other: run_handle.answer(other, run.id, "ask", "reject"),
}
NOT_NOW = ("approval.", "run.ended", "run.not_driven")


async def ask_at(run: RunHandle, moment: int, ask: Ask, other: Project) -> None:
    """Follow the run to an event and ask there; an answer to what nobody asks yet is refused in words."""
    if moment:
        seen = 0
        async for _ in run.events():
            seen += 1
            if seen >= moment or run.status == "waiting":
                break
    refused = ""
    try:
        await ask(run, other)
    except (AuthorError, NotFoundError) as error:
        refused = error.code
    assert not refused or refused.startswith(NOT_NOW)


async def finish(project: Client, run: RunHandle) -> str:
    """Whatever became of the run: let it go on to its end."""
    status = run.status
    while status not in RUN_TERMINAL:
        if status == "paused":
            run = await project.resume(run.id)
        async for _ in run.events():
            if run.status == "waiting":
                break
        if run.status == "waiting":
            await run.approve("ask")
        status = (await run.result()).status
    return status


def check_sound(folder: Path, run: str) -> None:
    project = wire(folder)
    report = verify_run(project, run)
    project.close()
    assert report.ok, report


@pytest.mark.full
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("request_word", HERE)
@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_a_request_at_any_event_of_a_run_is_heard(
    where: str, request_word: str, moment: int, tmp_path: Path
) -> None:
    ask = (HERE if where == "here" else ELSEWHERE)[request_word]

    async def work() -> tuple[str, str, str]:
        other = wire(tmp_path)
        async with client(tmp_path) as project:
            run = await project.start(RECIPE, options=OPTIONS)
            await ask_at(run, moment, ask, other)
            then = run.status
            return run.id, then, await finish(project, run)

    run, then, at_last = asyncio.run(asyncio.wait_for(work(), PATIENCE_S))
    if request_word == "pause":
        assert then in ("paused", "completed")
    if request_word == "cancel":
        assert then == at_last == "cancelled"
    assert at_last in {"cancel": ("cancelled",), "reject": ("completed", "partial", "failed")}.get(
        request_word, ("completed",)
    )
    check_sound(tmp_path, run)


def test_an_answer_right_after_the_start_finds_what_is_asked_first(tmp_path: Path) -> None:
    recipe = "name: q\nsteps: [{id: first, approve: Go?}, {id: then, ask: What?, depends_on: [first]}]"

    async def work() -> object:
        async with client(tmp_path) as project:
            run = await project.start(recipe, options=OPTIONS)
            await run.approve("first")
            await run.answer("then", "that")
            return (await run.result()).output

    assert asyncio.run(asyncio.wait_for(work(), PATIENCE_S)) == "that"


def test_a_run_that_ended_with_its_event_loop_says_so(tmp_path: Path) -> None:
    """Its result is asked for in another loop: that it is not driven is no cancellation of who asks."""

    async def begin() -> RunHandle:
        project = client(tmp_path)
        await project.__aenter__()
        return await project.start("name: q\nsteps: [{id: ask, approve: Go?}]", options=OPTIONS)

    run = asyncio.run(begin())
    with pytest.raises(AuthorError, match="this process does not drive it"):
        asyncio.run(run.result())


@pytest.mark.full
@pytest.mark.parametrize("moment", MOMENTS[:3])
@pytest.mark.parametrize("request_word", ["pause", "cancel"])
@pytest.mark.parametrize("where", ["here", "elsewhere", "signal"])
def test_a_request_while_a_run_is_taken_up_again_is_heard(
    where: str, request_word: str, moment: int, tmp_path: Path
) -> None:
    ask = {"here": HERE, "elsewhere": ELSEWHERE, "signal": {**HERE, "pause": interrupt}}[where][request_word]

    async def work() -> tuple[str, str, str]:
        other = wire(tmp_path)
        async with client(tmp_path) as project:
            run = await project.start(RECIPE, options=OPTIONS)
            await ask_at(run, 9, HERE["pause"], other)
            assert run.status == "paused"
            recorded = len([event async for event in run.events()])
            again = await project.resume(run.id)
            await ask_at(again, recorded + moment if moment else 0, ask, other)
            then = again.status
            return run.id, then, await finish(project, again)

    run, then, at_last = asyncio.run(asyncio.wait_for(work(), PATIENCE_S))
    assert then in {"pause": ("paused", "completed"), "cancel": ("cancelled",)}[request_word]
    assert at_last == {"pause": "completed", "cancel": "cancelled"}[request_word]
    check_sound(tmp_path, run)


def test_a_run_that_only_more_can_be_added_to_gives_what_there_is(tmp_path: Path) -> None:
    async def work() -> str:
        project = wire(tmp_path)
        create_open(project, "hand")
        run = RunHandle(own(project, "hand"), resumed=True)
        status = (await run.result()).status
        await run.cancel()
        return status

    assert asyncio.run(asyncio.wait_for(work(), PATIENCE_S)) == "waiting"
