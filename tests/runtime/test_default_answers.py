"""A time-out's default is an answer like a person's: the same word, the same end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fanfold.api.result import Result
from fanfold.api.run_options import Options
from tests.runtime.running import client, run
from tests.work import PATIENCE_S

ASKED = """\
name: asked
steps:
  - {{id: ok, approve: "Go?", timeout: {timeout}, {more}}}
  - {{id: go, agent: explorer, prompt: x, depends_on: [ok]}}
  - {{id: aside, agent: explorer, prompt: y}}
output: "{{{{steps.go.output}}}}"
"""


def answered_by_time(folder: Path, more: str) -> Result:
    return run(folder, ASKED.format(timeout="20ms", more=more))


def answered_by_a_person(folder: Path, more: str, decision: str) -> Result:
    async def work() -> Result:
        async with client(folder) as opened:
            options = Options(permission="auto", script="default: ok")
            handle = await opened.start(ASKED.format(timeout="1h", more=more), options=options, inputs={})
            async for event in handle.events():
                if event.data.get("status") == "waiting":
                    if decision == "reject":
                        await handle.reject("ok")
                    else:
                        await handle.approve("ok", choice=decision)
            return await asyncio.wait_for(handle.result(), PATIENCE_S)

    return asyncio.run(work())


def seen(result: Result) -> tuple[str, dict[str, str], str, str]:
    steps = {path: step.status for path, step in result.steps.items()}
    error = result.steps["ok"].error
    return result.status, steps, result.steps["ok"].output["decision"], "" if error is None else error.code


def test_a_default_of_reject_fails_the_step_and_its_dependents_are_skipped(tmp_path: Path):
    result = answered_by_time(tmp_path, "default: reject")
    steps = {"ok": "failed", "go": "skipped", "aside": "completed"}
    assert seen(result) == ("partial", steps, "reject", "approval.rejected")
    assert result.steps["ok"].output["by"] == "default"
    assert "ok was not answered in time" in str(result.steps["ok"].error)


@pytest.mark.parametrize(
    ("more", "decision"),
    [
        ("default: reject", "reject"),
        ("default: approve", "approve"),
        ("choices: [reject, ship], default: reject", "reject"),
        ("choices: [hold, ship], default: hold", "hold"),
    ],
)
def test_the_same_word_means_the_same_whether_a_person_or_the_time_says_it(
    tmp_path: Path, more: str, decision: str
):
    by_time = seen(answered_by_time(tmp_path / "a", more))
    assert by_time == seen(answered_by_a_person(tmp_path / "b", more, decision))
    assert by_time[0] == ("partial" if by_time[3] else "completed")


def test_a_continuing_process_prints_no_answer_of_a_person(tmp_path: Path):
    async def work() -> str:
        async with client(tmp_path) as opened:
            options = Options(permission="auto", script="default: ok")
            run = await opened.start(ASKED.format(timeout="20ms", more="default: approve"), options=options)
            await asyncio.wait_for(run.wait(), PATIENCE_S)
            return run.transcript("go").entries[0].text

    assert "No person answered in time, which means approve" in asyncio.run(work())
