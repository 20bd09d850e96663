"""The folded tree of an open run is kept between calls, so that a child costs the same in a long run."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from fanfold.api import subagents
from fanfold.api.ownership import own
from fanfold.api.run_options import Options
from fanfold.api.start import create_open
from fanfold.api.subagents import Task
from fanfold.engine.run_tree import KeptTrees
from fanfold.steps.run_config import HAND
from fanfold.wiring import wire

SCRIPTED = Options(script="default: done\n", permission="auto")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FANFOLD_HOME", str(tmp_path / "home"))
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def test_a_project_folds_its_open_run_once_and_other_runs_each_time(folder: Path):
    project = wire(folder)
    create_open(project, HAND)
    create_open(project, "other")
    assert project.view(HAND) is project.view(HAND)
    assert project.view("other") is not project.view("other")
    project.close()


def test_an_open_run_that_replaced_a_deleted_one_is_read_anew(folder: Path):
    project = wire(folder)
    create_open(project, HAND)
    before = project.view(HAND)
    project.store.delete_tree(HAND)
    create_open(project, HAND)
    assert project.view(HAND) is not before
    project.close()


def test_a_waiting_call_continues_after_a_call_with_the_same_tree_is_closed(folder: Path):
    asyncio.run(_wait_while_another_call_is_closed(folder))


async def _wait_while_another_call_is_closed(folder: Path) -> None:
    open_project = partial(wire, folder, kept=KeptTrees())
    owner = wire(folder)
    create_open(owner, HAND)
    owned = own(owner, HAND)
    driving = asyncio.create_task(owned.host(leave_when_waiting=False).resume())
    slow = Options(script="default: {output: done, delay_ms: 300}\n", permission="auto")
    first = open_project()
    child = await subagents.spawn(first, Task(role="explorer", task="wait"), slow)
    waiting = asyncio.create_task(subagents.wait(first, [child.id]))
    await asyncio.sleep(0)  # the wait has begun
    second = open_project()
    other = await subagents.spawn(second, Task(role="explorer", task="look"), SCRIPTED)
    assert [one.id for one in (await subagents.wait(second, [other.id]))["completed"]] == [other.id]
    second.close()
    assert [one.summary for one in (await waiting)["completed"]] == ["done"]
    driving.cancel()
    await asyncio.wait([driving])
    owned.let_go()
    first.close()
    owner.close()
