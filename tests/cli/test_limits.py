"""Hints about limits, tried as they are printed: the run goes on, and once is enough."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

MAP = """\
name: many
inputs: [{name: files, type: array, required: true}]
steps:
  - {id: each, for_each: inputs.files, agent: explorer, prompt: "{{item}}"}
  - {id: sum, agent: explorer, prompt: "Sum up.", depends_on: [each]}
"""
CHAIN = """\
name: chain
steps:
  - {id: a, agent: explorer, prompt: x}
  - {id: b, agent: explorer, prompt: x, depends_on: [a]}
  - {id: c, agent: explorer, prompt: x, depends_on: [b]}
"""


@pytest.fixture
def many(project: Path) -> str:
    (project / "many.yaml").write_text(MAP)
    (project / "chain.yaml").write_text(CHAIN)
    (project / "script.yaml").write_text(
        "default: {output: ok, usage: {input_tokens: 90, output_tokens: 10}}\n"
    )
    (project / "inputs.json").write_text(json.dumps({"files": [f"f{n}.py" for n in range(500)]}))
    return "many.yaml"


def suggested(said: str) -> list[str]:
    """The command that a message suggests."""
    found = re.search(r"raise it: fanfold (.+)", said)
    assert found is not None, said
    return shlex.split(found[1])


def test_a_map_of_500_files_pauses_once_with_a_hint_that_works(fanfold, many):
    paused = fanfold("run", many, "--inputs", "inputs.json", "--script", "script.yaml", "--yes")
    assert paused.status == 5
    done = fanfold(*suggested(paused.err), "--json")
    assert (done.status, done.json()["status"]) == (0, "completed")
    assert done.json()["usage"]["agents"] == 501


def test_a_map_of_500_files_runs_through_with_the_flag(fanfold, many):
    done = fanfold(
        "run",
        many,
        "--inputs",
        "inputs.json",
        "--script",
        "script.yaml",
        "--yes",
        "--max-agents",
        "2000",
        "--json",
    )
    assert (done.status, done.json()["status"]) == (0, "completed")
    refused = fanfold(
        "run", many, "--inputs", "inputs.json", "--script", "script.yaml", "--max-agents", "2001"
    )
    assert refused.status == 2
    assert "1 to 2000" in refused.err


@pytest.mark.parametrize("budget", ["1", "60", "150"])
def test_a_token_budget_far_below_what_is_spent_is_raised_far_enough(fanfold, many, budget: str):
    del many
    paused = fanfold("run", "chain.yaml", "--script", "script.yaml", "--budget-tokens", budget)
    for _ in range(3):
        command = suggested(paused.err)
        assert int(command[-1]) > 100
        paused = fanfold(*command)
        if paused.status == 0:
            return
    pytest.fail("three times the hint, and it still does not run through")


def test_a_budget_below_what_is_spent_is_refused_with_the_number(fanfold, many):
    del many
    fanfold("run", "chain.yaml", "--script", "script.yaml", "--budget-tokens", "60")
    refused = fanfold("resume", "last", "--budget-tokens", "99")
    assert refused.status == 2
    assert "which is 100" in refused.err


def test_held_back_names_the_steps_that_wait_for_a_limit(fanfold, many):
    del many
    fanfold("run", "chain.yaml", "--script", "script.yaml", "--budget-tokens", "60")
    assert fanfold("inspect", "last", "--state", "--json").json()["state"]["held_back"] == ["b"]


@pytest.mark.full
def test_no_run_continues_while_workflows_are_switched_off(fanfold, shell, many):
    del many
    fanfold("run", "chain.yaml", "--script", "script.yaml", "--budget-tokens", "60")
    for extra in ([], ["--detach"]):
        refused = shell("resume", "last", "--budget-tokens", "9999", *extra, FANFOLD_WORKFLOWS="off")
        assert refused.status == 4
        assert "disabled" in refused.err
    assert shell("inspect", "last", FANFOLD_WORKFLOWS="off").status == 0
    assert fanfold("runs", "--json").json()[0]["status"] == "paused"


@pytest.mark.full
def test_cancelling_a_child_leaves_a_run_that_waits_for_people_waiting(fanfold, project: Path):
    (project / "child.yaml").write_text("name: child\nsteps: [{id: ask, approve: Inside?}]\n")
    (project / "root.yaml").write_text(
        "name: root\nsteps:\n  - {id: ok, approve: Go?}\n  - {id: below, workflow: ./child.yaml}\n"
    )
    fanfold("run", "root.yaml", "--yes")
    (child,) = fanfold("inspect", "last", "--json").json()["runs"]
    assert fanfold("cancel", child["run_id"]).status == 0
    seen = fanfold("inspect", "last", "--json").json()
    assert (seen["status"], seen["runs"][0]["status"]) == ("waiting", "cancelled")


@pytest.mark.full
def test_the_reason_of_a_delay_is_still_reported_after_the_step_ran(fanfold, project: Path):
    (project / "two.yaml").write_text(
        "name: two\nsteps:\n"
        "  - {id: a, agent: worker, write_set: [x.txt], prompt: x}\n"
        "  - {id: b, agent: worker, write_set: ['*.txt'], prompt: x}\n"
        "  - {id: c, agent: explorer, prompt: x}\n"
    )
    (project / "script.yaml").write_text("default: {output: ok, delay_ms: 20}\n")
    assert fanfold("run", "two.yaml", "--script", "script.yaml", "--yes").status == 0
    held = fanfold("explain", "last", "b", "--json").json()["ran_then"]
    assert "held back: another step that uses the same files is first (a)" in held
    assert "held back" not in fanfold("explain", "last", "c", "--json").json()["ran_then"]
