"""Runs of adopted state carry no permission of this user: going on with one, or forking it, asks again."""

import json
import shutil
from pathlib import Path

import pytest

from tests.hostile.test_state import World

RECIPE = """\
name: ask
steps:
  - {id: ok, approve: go on?}
  - {id: c, run: [sh, -c, "echo made > made.txt"], write_set: [made.txt], depends_on: [ok]}
"""


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A project whose state, with a run that somebody else permitted, was adopted."""
    (tmp_path / "elsewhere").mkdir()
    theirs = World(tmp_path / "elsewhere")
    (theirs.project / "ask.yaml").write_text(RECIPE)
    flags = ("--yes", "--permission", "auto", "--unsafe-no-sandbox")
    assert theirs.fanfold("run", "ask.yaml", *flags).returncode == 3
    made = World(tmp_path)
    shutil.copytree(theirs.project / ".fanfold", made.project / ".fanfold", symlinks=True)
    assert made.fanfold("state", "adopt", "--yes").returncode == 0
    return made


def test_an_adopted_run_goes_on_only_when_it_was_permitted_again(world: World):
    refused = world.fanfold("approve", "last", "ok")
    assert "error[run.adopted]" in refused.stderr
    assert refused.returncode == 4
    asked = world.fanfold("resume", "last", "--json")
    assert asked.returncode == 4
    needs = json.loads(asked.stdout)["error"]["details"]["needs"]
    assert any("echo made > made.txt" in line for line in needs)
    assert "its agents run programs without asking" in needs
    assert "its programs run without a sandbox where there is none" in needs
    assert not (world.project / "made.txt").exists()
    permitted = world.fanfold("resume", "last", "--yes")
    assert permitted.returncode == 0, permitted.stderr
    assert (world.project / "made.txt").read_text() == "made\n"


def test_a_fork_of_an_adopted_run_asks_whatever_that_was_permitted(world: World):
    refused = world.fanfold("fork", "last", "--from", "ok")
    assert "error[permission_denied]" in refused.stderr
    assert "somebody else" in refused.stderr


def test_an_adopted_run_can_be_cancelled_and_looked_at(world: World):
    assert world.fanfold("inspect", "last").returncode == 0
    assert world.fanfold("cancel", "last").returncode in (0, 7)
    assert not (world.project / "made.txt").exists()


def test_what_is_started_after_the_adoption_needs_no_more_than_ever(world: World):
    (world.project / "ask.yaml").write_text(RECIPE)
    assert world.fanfold("run", "ask.yaml", "--yes").returncode == 3
    assert world.fanfold("resume", "last").returncode == 3
