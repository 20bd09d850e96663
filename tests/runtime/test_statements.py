"""What surfaces state about a run and its steps is so: in every status of a run, and beside kept changes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fanfold.api.explain import KEPT, explain_run, explain_step
from fanfold.api.graph import label
from fanfold.api.overview import NEEDS, show_home
from fanfold.api.run_options import Options
from fanfold.api.step_documents import ExplainedStep
from fanfold.kernel.state import RUN_STATUSES
from tests.runtime.running import client
from tests.work import PATIENCE_S

ONE = "name: one\nsteps: [{id: a, agent: explorer, prompt: go}]"
ASKS = 'name: asks\nsteps: [{id: ok, approve: "Go?"}, {id: a, agent: explorer, prompt: go, depends_on: [ok]}]'
EACH = """name: each
steps:
  - {id: a, agent: explorer, prompt: "{{item}}", for_each: "[1, 2]"}
  - {id: b, agent: explorer, prompt: go, depends_on: [a]}
"""
LIMITED = "name: limited\nlimits: {max_agents: 1}\n" + EACH.partition("\n")[2]
SLOW = "name: slow\nlimits: {timeout: 50ms}\nsteps: [{id: a, agent: explorer, prompt: go}]"
BROKEN = "{fail: {class: agent, message: it broke}}"
RUNS = {
    "waiting": (ASKS, "default: x", "waits for your answer"),
    "paused": (LIMITED, "default: x", "is paused: max_agents reached"),
    "completed": (ONE, "default: x", "completed"),
    "partial": (EACH, f'{{default: x, steps: {{"a[0]": {BROKEN}}}}}', "partial: it broke"),
    "failed": (ONE, f"default: {BROKEN}", "failed: it broke"),
    "timed_out": (SLOW, "default: {output: x, delay_ms: 600000}", "timed out"),
}


def sentence_of(folder: Path, recipe: str, script: str) -> tuple[str, str]:
    async def work() -> tuple[str, str]:
        async with client(folder) as project:
            handle = await project.start(recipe, options=Options(permission="auto", script=script))
            handle.leave_when_waiting()
            await asyncio.wait_for(handle.wait(), PATIENCE_S)
            found = explain_run(project.project, handle.id)
            return found.status, found.message.removeprefix(f"run {handle.id} ")

    return asyncio.run(work())


@pytest.mark.parametrize("status", RUNS)
def test_the_sentence_about_a_run_is_true(tmp_path: Path, status: str) -> None:
    recipe, script, sentence = RUNS[status]
    found = sentence_of(tmp_path, recipe, script)
    assert (found[0], found[1][: len(sentence)]) == (status, sentence)


def test_a_run_is_running_until_it_is_cancelled(tmp_path: Path) -> None:
    async def work() -> list[str]:
        async with client(tmp_path) as project:
            script = "default: {output: x, delay_ms: 600000}"
            handle = await project.start(ONE, options=Options(permission="auto", script=script))
            async for event in handle.events():
                if event.type == "subagent_event":
                    break
            before = explain_run(project.project, handle.id)
            await handle.cancel()
            await asyncio.wait_for(handle.wait(), PATIENCE_S)
            found = [before, explain_run(project.project, handle.id)]
            return [one.message.removeprefix(f"run {handle.id} ").partition(";")[0] for one in found]

    assert asyncio.run(work()) == ["is running", "cancelled"]
    assert set(RUN_STATUSES) - set(RUNS) == {"running", "cancelled", "pending"}


def test_the_label_of_a_step_that_asks_is_true_before_and_after_the_answer(tmp_path: Path) -> None:
    async def work() -> str:
        async with client(tmp_path) as project:
            return label(project.plan_of(ASKS).steps[0]).subtitle

    assert asyncio.run(work()) == "a person approves"


def test_home_has_one_phrase_for_each_kind_of_open_item(tmp_path: Path) -> None:
    async def work() -> list[tuple[str, str, str]]:
        async with client(tmp_path) as project:
            for status in ("waiting", "paused", "failed"):
                recipe, script, _ = RUNS[status]
                handle = await project.start(recipe, options=Options(permission="auto", script=script))
                handle.leave_when_waiting()
                await asyncio.wait_for(handle.wait(), PATIENCE_S)
            return [(one.kind, one.recipe, one.state) for one in show_home(project.project).needs]

    found = asyncio.run(work())
    assert [kind for kind, _, _ in found] == ["approval", "paused", "failed"]
    assert all(state == NEEDS[kind] for kind, _, state in found)  # type: ignore[index]  # the kinds are literals of the mapping


@pytest.mark.full  # merges with git
def test_changes_of_a_failed_step_are_kept_and_marked_as_not_merged(tmp_path: Path) -> None:
    recipe = "name: writes\nsteps: [{id: fix, agent: worker, write_set: [a.txt], prompt: go}]"
    script = 'steps: {fix: {output: x, writes: {a.txt: "a", "../b.txt": "b"}}}'

    async def work() -> ExplainedStep:
        async with client(tmp_path) as project:
            handle = await project.start(recipe, options=Options(permission="auto", script=script))
            await asyncio.wait_for(handle.wait(), PATIENCE_S)
            return explain_step(project.project, handle.id, "fix")

    found = asyncio.run(work())
    assert found.status == "failed"
    assert found.used
    assert (found.used.writes, found.used.unmerged, found.used.unseen_writes) == (["a.txt"], KEPT, "")
