"""The executive report: one text of at most 4,000 characters for every caller."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from fanfold.api.history import inspect
from fanfold.api.report import MAX_REPORT_CHARS, executive_report, reported_document
from fanfold.api.tools import run_report
from fanfold.wiring import wire
from tests.runtime.running import run

PHASED = """
name: phased
description: Find and repair
inputs: [{name: topic, required: true}]
phases:
  - id: look
    tasks: [{id: scan, agent: explorer, prompt: "Scan {{inputs.topic}}"}]
  - id: use
    tasks: [{id: apply, agent: explorer, prompt: "Use it"}]
"""


def test_every_caller_gets_the_same_report(tmp_path: Path):
    script = json.dumps(
        {"default": "done", "steps": {"look/fold": "Owls sleep by day.", "use/fold": "Used."}}
    )
    result = run(tmp_path, PHASED, script, topic="owls")
    project = wire(tmp_path)
    tree = project.view(result.run_id)
    file = (tmp_path / ".fanfold/runs" / result.run_id / "report.md").read_text()
    as_json = json.loads(msgspec.json.encode(reported_document(tree)))["report"]
    tool = run_report(tree).report
    inspected = inspect(project, result.run_id).report
    project.close()
    assert result.report == file == as_json == tool == inspected
    for part in (
        "Find and repair",
        "- **topic**: owls",
        "**look** (completed): Owls sleep by day.",
        "look#1/scan",
    ):
        assert part in file
    assert f'query_workflow(run: "{result.run_id}"' in file


def test_a_phase_without_a_summary_shows_an_extract_that_is_labelled(tmp_path: Path):
    broken = {"fail": {"class": "agent", "message": "no words"}}
    result = run(
        tmp_path, PHASED, json.dumps({"default": "done", "steps": {"look/fold": broken}}), topic="owls"
    )
    phase = next(line for line in result.report.splitlines() if line.startswith("**look**"))
    assert "Extract of the outputs" in phase
    assert "scan: done" in phase


def test_a_failed_phase_shows_an_extract_and_its_failure_is_listed_once(tmp_path: Path):
    fails = {"fail": {"class": "agent", "message": "lost its way"}}
    text = PHASED.replace("tasks: [", 'tasks: [{id: also, agent: explorer, prompt: "Look"}, ', 1)
    answers = {"look#1/scan": fails, "look#1/also": "two owls"}
    result = run(tmp_path, text, json.dumps({"default": "done", "steps": answers}), topic="owls")
    project = wire(tmp_path)
    report = run_report(project.view(result.run_id))
    project.close()
    assert "**look** (failed): (Extract of the outputs.) also: two owls" in report.report
    assert [one.path for one in report.failures] == ["look#1/scan"]


def test_a_long_summary_of_a_phase_is_cut_and_the_next_phase_is_still_there(tmp_path: Path):
    phases = "".join(f"  - id: p{n}\n    tasks: [{{id: t, agent: explorer, prompt: x}}]\n" for n in range(10))
    answers = {f"p{n}/fold": f"Phase {n} found " + "owls " * 300 for n in range(10)}
    result = run(
        tmp_path, f"name: ten\nphases:\n{phases}", json.dumps({"default": "x" * 900, "steps": answers})
    )
    assert len(result.report) <= MAX_REPORT_CHARS
    for number in range(10):
        assert f"**p{number}** (completed): Phase {number} found owls" in result.report


LONG = """
name: long
inputs: [{name: topic, required: true}, {name: many, type: array, required: true}]
on_failure: skip
steps:
  - {id: each, for_each: inputs.many, agent: explorer, prompt: "{{item}}"}
%s
"""


@pytest.mark.full
def test_the_report_of_a_large_run_stays_within_its_limit_and_has_every_section(tmp_path: Path):
    steps = "\n".join(
        f'  - {{id: w{n}, agent: worker, write_set: ["out/{n}/*"], prompt: x}}' for n in range(30)
    )
    answers: dict[str, object] = {
        f"w{n}": {"output": "word " * 500, "writes": {f"out/{n}/{'f' * 60}.txt": "x"}} for n in range(29)
    }
    answers["each[*]"] = {"fail": {"class": "agent", "message": "lost its way " * 50}}
    answers["w29"] = "the answer " * 1_000
    result = run(
        tmp_path,
        LONG % steps,
        json.dumps({"steps": answers}),
        options={"max_agents": 200},
        topic="owl " * 2_000,
        many=list(range(40)),
    )
    assert MAX_REPORT_CHARS - 500 < len(result.report) <= MAX_REPORT_CHARS
    for heading in ("Request", "Answer", "Steps", "Changes", "What went wrong"):
        assert f"## {heading}\n" in result.report
    assert "the answer the answer" in result.report
    assert f"`fanfold retry {result.run_id}`" in result.report
    assert "more\n" in result.report


PARENT = """
name: parent
steps: [{id: sub, workflow: ./child.yaml}]
"""
CHILD = """
name: child
steps:
  - {id: write, agent: worker, write_set: [a.txt], prompt: x}
  - {id: broken, agent: explorer, prompt: x}
"""


@pytest.mark.full
def test_changes_and_failures_of_sub_workflows_are_in_the_report_with_their_tree_path(tmp_path: Path):
    (tmp_path / "child.yaml").write_text(CHILD)
    answers = {
        "sub/write": {"output": "ok", "writes": {"a.txt": "x"}},
        "sub/broken": {"fail": {"class": "agent", "message": "lost its way"}},
    }
    result = run(tmp_path, PARENT, json.dumps({"steps": answers}))
    project = wire(tmp_path)
    report = executive_report(project.view(result.run_id))
    project.close()
    assert "a.txt (sub/write, merged)" in report
    assert "- sub (workflow): failed" in report
    assert "- sub/write (worker): completed" in report
    assert "**sub/broken** failed: lost its way" in report


def test_one_agent_is_counted_in_the_singular(tmp_path: Path):
    recipe = "name: alone\nsteps: [{id: a, agent: explorer, prompt: Look}]\n"
    result = run(tmp_path, recipe, json.dumps({"default": "done"}))
    assert result.report.splitlines()[2].startswith("1 agent, ")
