"""Runs of adopted state carry no permission of this user: going on with one, or forking it, asks again."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fanfold.workspace.seal import add_adopted, permitted
from tests.hostile.test_state import World

pytestmark = pytest.mark.full

RECIPE = """\
name: ask
steps:
  - {id: ok, approve: go on?}
  - {id: c, run: [sh, -c, "echo made > made.txt"], write_set: [made.txt], depends_on: [ok]}
"""


PART = """\
name: part
steps:
  - {id: ok, approve: go on?}
"""
WHOLE = """\
name: whole
steps:
  - {id: part, workflow: ./part.yaml, on_failure: inline}
  - {id: c, run: [sh, -c, "echo made > made.txt"], write_set: [made.txt], depends_on: [part]}
"""
PROPOSING = """\
name: proposing
steps:
  - {id: draft, run: [sh, -c, "echo draft > draft.txt"], write_set: [draft.txt], merge: propose}
  - {id: ok, approve: go on?, depends_on: [draft]}
"""


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A project whose state, with a run that somebody else permitted, was adopted."""
    return _adopted(tmp_path, {"ask.yaml": RECIPE})


def _adopted(folder: Path, recipes: dict[str, str]) -> World:
    """A project with the run of the last of these recipes, which somebody else permitted."""
    (folder / "elsewhere").mkdir()
    theirs = World(folder / "elsewhere")
    for name, text in recipes.items():
        (theirs.project / name).write_text(text)
    flags = ("--yes", "--permission", "auto", "--unsafe-no-sandbox")
    assert theirs.fanfold("run", list(recipes)[-1], *flags).returncode == 3
    made = World(folder)
    shutil.copytree(theirs.project / ".fanfold", made.project / ".fanfold", symlinks=True)
    assert made.fanfold("state", "adopt", "--yes").returncode == 0
    return made


def test_an_adopted_run_continues_only_with_a_new_permission(world: World):
    refused = world.fanfold("approve", "last", "ok")
    assert "error[run.adopted]" in refused.stderr
    assert refused.returncode == 4
    asked = world.fanfold("resume", "last", "--json")
    assert asked.returncode == 4
    needs = json.loads(asked.stdout)["error"]["details"]["needs"]
    assert any("echo made > made.txt" in line for line in needs)
    assert not (world.project / "made.txt").exists()
    permitted = world.fanfold("resume", "last", "--yes")
    assert permitted.returncode == 3, "an answer that was refused was taken all the same"
    assert world.fanfold("approve", "last", "ok").returncode == 0
    done = world.fanfold("watch", "last")
    assert done.returncode == 0, done.stderr
    assert (world.project / "made.txt").read_text() == "made\n"


def test_a_fork_of_an_adopted_run_asks_whatever_that_was_permitted(world: World):
    refused = world.fanfold("fork", "last", "--from", "ok")
    assert "error[permission_denied]" in refused.stderr
    assert "another user" in refused.stderr


def test_an_adopted_run_can_be_cancelled_and_looked_at(world: World):
    assert world.fanfold("inspect", "last").returncode == 0
    assert world.fanfold("cancel", "last").returncode in (0, 7)
    assert not (world.project / "made.txt").exists()


def test_runs_started_after_an_adoption_need_no_extra_permission(world: World):
    (world.project / "ask.yaml").write_text(RECIPE)
    assert world.fanfold("run", "ask.yaml", "--yes").returncode == 3
    assert world.fanfold("resume", "last").returncode == 3


def test_cancelling_a_part_of_an_adopted_run_starts_nothing_else(tmp_path: Path):
    world = _adopted(tmp_path, {"part.yaml": PART, "whole.yaml": WHOLE})
    runs = json.loads(world.fanfold("runs", "--all", "--json").stdout)
    (part,) = (run["run_id"] for run in runs if run["parent_run_id"])
    cancelled = world.fanfold("cancel", part)
    assert cancelled.returncode == 0, cancelled.stderr
    assert not (world.project / "made.txt").exists()
    assert json.loads(world.fanfold("inspect", "last", "--json").stdout)["status"] == "paused"
    assert world.fanfold("resume", "last").returncode == 4
    assert not (world.project / "made.txt").exists()
    world.fanfold("resume", "last", "--yes")
    assert (world.project / "made.txt").read_text() == "made\n"


def test_proposals_of_an_adopted_run_are_applied_and_recorded_without_permission_to_continue(tmp_path: Path):
    world = _adopted(tmp_path, {"proposing.yaml": PROPOSING})
    applied = world.fanfold("apply", "last", "draft")
    assert (applied.returncode, applied.stdout) == (0, "applied draft: 1 file\n  added draft.txt\n"), applied
    assert (world.project / "draft.txt").read_text() == "draft\n"
    seen = json.loads(world.fanfold("inspect", "last", "--json").stdout)
    assert [(one["path"], one["state"]) for one in seen["changes"]] == [("draft.txt", "applied")]
    assert seen["status"] == "waiting"


@pytest.mark.parametrize("left", ['["*"]', "{", ""])
def test_adopting_that_was_cut_short_refuses_runs_no_longer_than_until_they_are_permitted(
    world: World, left: str
):
    """The list of adopted runs says "every run" until somebody could look which there are."""
    (world.project / ".fanfold" / "adopted.json").write_text(left)
    assert world.fanfold("resume", "last").returncode == 4
    assert world.fanfold("resume", "last", "--yes").returncode == 3
    (world.project / "ask.yaml").write_text(RECIPE)
    started = world.fanfold("run", "ask.yaml", "--yes", "--detach")
    assert started.returncode == 0, started.stderr


def test_an_entry_added_while_another_is_removed_stays(tmp_path: Path):
    (tmp_path / ".fanfold").mkdir()
    names = [f"run{number}" for number in range(40)]
    for name in names:
        add_adopted(tmp_path, name)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: add_adopted(tmp_path, f"{name}-new"), names))
        off = threads.map(lambda name: permitted(tmp_path, name), names)
        list(threads.map(lambda name: add_adopted(tmp_path, f"{name}-newer"), names))
        list(off)
    listed = json.loads((tmp_path / ".fanfold" / "adopted.json").read_text())
    waiting = sorted(one for one in listed if not one.startswith("permitted:"))
    assert waiting == sorted(f"{name}-{word}" for name in names for word in ("new", "newer"))
    assert len(listed) == 3 * len(names)
