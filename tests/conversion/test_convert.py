"""Workflows of other systems, converted by reading, checked, and run on scripted agents to their end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fanfold.cli.main import main
from tests.conversion.workflows import ALL, PROTOAGENT


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return folder


def put(project: Path, name: str, text: str) -> None:
    file = project / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def fanfold(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    status = main([*words, "--json"])
    return status, json.loads(capsys.readouterr().out)


REFUSED = {
    "conductor-others",
    "conductor-together",
    "archon-command",
    "archon-scripts",
    "claude-audit",
    "crewai-human",
}
"""Those with parts that no recipe can say: `check` refuses them until somebody has written these."""
REFUSALS = {"recipe.unknown_key", "recipe.unknown_workflow", "recipe.bad_expression"}


def test_there_are_twenty_of_them() -> None:
    assert len(ALL) >= 20


@pytest.mark.full
@pytest.mark.parametrize("name", ALL)
def test_a_workflow_of_another_system_runs_to_its_end(
    name: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    system, workflow = ALL[name]
    put(project, workflow.file, workflow.text)
    for other, text in workflow.others.items():
        put(project, other, text)
    status, made = fanfold(capsys, "convert", workflow.file)
    assert made["system"] == system
    assert sorted(one["line"] for one in made["lost"]) == sorted(workflow.lost), made["lost"]
    if name in REFUSED:
        assert status == 2
        assert {one["code"] for one in made["diagnostics"]} <= REFUSALS
        return
    assert (status, made["diagnostics"]) == (0, []), made["text"]
    (project / "recipe.yaml").write_text(made["text"])
    (project / "script.yaml").write_text(json.dumps({"default": "ok", "steps": dict(workflow.script)}))
    inputs = [word for key, value in workflow.inputs.items() for word in ("-i", f"{key}={value}")]
    if "files" in workflow.inputs:  # not declared as a list: as text it would be one item
        (project / "in.json").write_text(f'{{"files": {workflow.inputs["files"]}}}')
        inputs = ["--inputs", "in.json"]
    status, run = fanfold(capsys, "run", "recipe.yaml", "--script", "script.yaml", "--yes", *inputs)
    if run["status"] == "waiting":  # a question with a default, whose time is over
        status, run = fanfold(capsys, "resume", "last")
    assert run["status"] == "completed", run
    done = {path for path, step in run["steps"].items() if step["status"] == "completed"}
    assert set(workflow.steps) <= done, run["steps"]


@pytest.mark.parametrize("name", PROTOAGENT)
def test_a_recipe_of_protoagent_is_one_of_ours_as_it_is(
    name: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workflow = PROTOAGENT[name]
    put(project, workflow.file, workflow.text)
    _, made = fanfold(capsys, "convert", workflow.file)
    inline = "" if "on_failure" in workflow.text.split("steps:")[0] else "on_failure: inline\n"
    assert made["text"] == workflow.text.rstrip() + "\n" + inline
    _, checked = fanfold(capsys, "check", workflow.file)
    assert [one for one in checked["diagnostics"] if one["severity"] == "error"] == []


def test_keys_that_are_not_converted_are_reported_with_their_line(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(project, "w.yaml", "name: x\nprovider: codex\nnodes:\n  - {id: a, prompt: Go., odd: 1}\n")
    assert main(["convert", "w.yaml", "-o", "recipe.yaml"]) == 0
    told = capsys.readouterr().err
    assert "w.yaml:2: not carried over: workflow: provider" in told
    assert "w.yaml:4: not carried over: node a: odd: recipes have no counterpart" in told
    assert main(["check", "recipe.yaml"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("just: text\n", "--from"),
        ("a: [1\n", "w.yaml:"),
        ("- 1\n", "not a map"),
        ("a: &x 1\nb: *x\n", "w.yaml:"),
    ],
)
def test_a_file_that_is_no_workflow_is_refused(
    text: str, words: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(project, "w.yaml", text)
    assert main(["convert", "w.yaml"]) == 2
    assert words in capsys.readouterr().err


def test_words_that_our_reader_would_take_for_a_number_stay_words(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(project, "flow.yaml", 'name: f\nnodes:\n- {id: a, prompt: "1e3"}\n')
    status, made = fanfold(capsys, "convert", "flow.yaml", "--from", "archon")
    assert (status, made["diagnostics"]) == (0, [])


def test_a_role_that_is_known_here_does_the_step_that_names_it(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(
        project,
        ".claude/agents/r.md",
        "---\nname: reviewer\ndescription: Reviews\ntools: Read\n---\nReview.\n",
    )
    calls = [f"await agent('{name}', {{agentType: '{name}'}})" for name in ("reviewer", "Plan", "nobody")]
    put(project, "w.js", "\n".join(calls) + "\n")
    status, made = fanfold(capsys, "convert", "w.js")
    assert (status, [one["message"] for one in made["diagnostics"]]) == (2, ['there is no role "nobody"'])
    assert [line.strip() for line in made["text"].splitlines() if "agent:" in line] == [
        "agent: reviewer",
        "agent: planner",
        "agent: nobody",
    ]
    assert [(one["line"], one["what"]) for one in made["lost"]] == [(3, "agentType: 'nobody'")]
