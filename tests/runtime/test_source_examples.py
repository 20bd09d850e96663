"""The formats that Fanfold promises to take, in the words of their own documents: they check and run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fanfold.api.planning import judge
from fanfold.cli.main import main
from fanfold.engine.config import Config

# The examples stand as they were published.
# ruff: noqa: E501, RUF001

RESEARCH = """\
name: research-and-brief # unique slug
description: Research a topic and write a cited brief
version: 1
inputs:
  - name: topic
    required: true
  - name: depth
    default: deep
steps:
  - id: gather
    subagent: researcher # a SUBAGENT_REGISTRY key
    prompt: "Research {{inputs.topic}} ({{inputs.depth}}). Find 3–5 strong sources."
  - id: angles
    subagent: researcher
    depends_on: [gather]
    prompt: "From this research, list the 3 key angles:\\n{{steps.gather.output}}"
  - id: brief
    subagent: researcher
    depends_on: [gather, angles]
    prompt: "Write a cited brief on {{inputs.topic}}.\\nResearch:\\n{{steps.gather.output}}\\nAngles:\\n{{steps.angles.output}}"
output: "{{steps.brief.output}}" # optional; default = last step's output
"""

COMPOSITION = """\
steps:
  - id: prepare
    type: function
    handler: prepare_data
    outputs: [extracted_data]
  - id: analyze
    type: workflow
    workflow: specialist_workflow@v2
    inputs:
      data: steps.prepare.extracted_data
    outputs: [results, metrics]
  - id: summarize
    type: agent
    agent: summarizer
    inputs:
      analysis: steps.analyze.results
"""
SPECIALIST = """\
name: specialist_workflow
version: 2
inputs: [{name: data, required: true}]
steps: [{id: look, agent: explorer, prompt: "Analyze {{inputs.data}}"}]
output: {results: steps.look.output, metrics: 3}
"""
HANDLERS = """\
import fanfold

@fanfold.function
def prepare_data():
    return {"extracted_data": [1, 2]}
"""

DELEGATED = {
    "name": "two-readers-and-a-writer",
    "max_concurrency": 2,
    "steps": [
        {"id": "map", "task": "Map the packages", "agent": "explorer", "read_set": ["src/**"]},
        {"id": "tests", "task": "Map the tests", "agent": "explorer"},
        {
            "id": "fix",
            "task": "Fix what was found",
            "agent": "worker",
            "depends_on": ["map", "tests"],
            "write_set": ["src/**"],
            "workspace_mode": "isolated",
        },
    ],
}

PHASES = """\
phases:
  - id: map
    goal: Map each package and list candidates
    kind: understand
    tasks: [{id: list, agent: explorer, prompt: List candidates}]
  - id: confirm
    tasks:
      - {id: one, agent: explorer, prompt: Confirm and propose fixes}
      - {id: two, agent: explorer, prompt: Confirm and propose fixes}
    maxConcurrency: 2
  - id: apply
    tasks: [{id: fix, agent: worker, write_set: ["src/**"], prompt: Apply fixes}]
    verify: {gate: run_tests}
    converge: {maxIterations: 3}
  - id: tidy
    tasks: [{id: style, agent: explorer, prompt: Judge the style}]
    verify: {gate: run_lint}
"""
TASK = (
    "Audit every package for unhandled promise rejections. Phase 1: map each package and list candidates. Phase 2"
    " (parallel per package): confirm and propose fixes. Phase 3: apply fixes and run tests; iterate until green."
    " Return a summary table of what changed."
)

ROLE = """\
name = "auditor"
description = "Reads code and reports risks"
developer_instructions = "Report risks with file and line."
model = "openai:gpt-5-mini"
model_reasoning_effort = "low"
sandbox_mode = "read-only"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.yaml").write_text("default: done\n")
    return tmp_path


def run(name: str, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    """Check and run a file; the document of the run, which completed."""
    assert main(["check", name]) == 0, capsys.readouterr().out
    capsys.readouterr()
    status = main(["run", name, "--script", "script.yaml", "--yes", "--json", *more])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (status, document["status"]) == (0, "completed"), document
    return document


def test_a_recipe_of_subagents_with_inputs_and_outputs_of_earlier_steps(folder: Path, capsys):
    (folder / "brief.yaml").write_text(RESEARCH)
    answers = {"gather": "three sources", "angles": "a, b, c", "brief": "the brief"}
    (folder / "script.yaml").write_text(json.dumps({"steps": answers}))
    document = run("brief.yaml", capsys, "-i", "topic=owls")
    assert (document["output"], document["recipe"]) == ("the brief", "research-and-brief")
    assert main(["transcript", document["run_id"], "brief"]) == 0
    prompt = capsys.readouterr().out
    assert "Write a cited brief on owls.\n" in prompt
    assert "three sources" in prompt
    assert "a, b, c" in prompt
    assert main(["transcript", document["run_id"], "gather"]) == 0
    assert "Research owls (deep)." in capsys.readouterr().out


@pytest.mark.full
def test_functions_sub_workflows_and_agents_with_state_paths_in_a_file_without_a_name(folder: Path, capsys):
    (folder / "composition.yaml").write_text(COMPOSITION)
    (folder / ".fanfold" / "workflows").mkdir(parents=True)
    (folder / ".fanfold" / "workflows" / "specialist_workflow@2.yaml").write_text(SPECIALIST)
    (folder / "handlers.py").write_text(HANDLERS)
    document = run("composition.yaml", capsys)
    assert document["recipe"] == "composition"
    assert document["steps"]["analyze"]["output"] == {"results": "done", "metrics": 3}


@pytest.mark.full
def test_steps_with_task_agent_edges_sets_and_workspace_mode(folder: Path, capsys):
    (folder / "delegated.yaml").write_text(json.dumps(DELEGATED))
    assert set(run("delegated.yaml", capsys)["steps"]) == {"map", "tests", "fix"}


@pytest.mark.full
def test_phases_with_the_gates_run_tests_and_run_lint_and_max_iterations(folder: Path, capsys):
    (folder / "audit.yaml").write_text(PHASES)
    (folder / "Makefile").write_text("test:\n\ttrue\nlint:\n\ttrue\n")
    document = run("audit.yaml", capsys)
    assert document["steps"]["apply#1/verify"]["output"]["exit_code"] == 0
    assert main(["check", "--fix", "audit.yaml"]) == 0
    repaired = (folder / "audit.yaml").read_text()
    for word in ("gate: tests", "gate: lint", "max_iterations: 3", "max_concurrency: 2"):
        assert word in repaired


def test_the_example_prompt_of_dynamic_workflows_is_work_for_a_workflow():
    assert judge(TASK).suitable


@pytest.mark.full
def test_the_example_prompt_of_dynamic_workflows_is_planned_and_runs_in_phases(folder: Path, capsys):
    (folder / "Makefile").write_text("test:\n\ttrue\n")
    assert main(["plan", TASK, "--no-model"]) == 0
    (folder / "planned.yaml").write_text(capsys.readouterr().out)
    vote = {"holds": True, "reason": "seen", "evidence": []}
    votes = [{"claim": f"repair[{number}]", **vote} for number in (0, 1)]
    answers = {
        "survey#1/list": {"output": {"parts": ["src", "lib"]}},
        "audit#1/scan[*]": {"output": {"findings": []}},
        "fix#1/repair[0]": {"output": "fixed", "writes": {"src/a.js": "a\n"}},
        "fix#1/repair[1]": {"output": "fixed", "writes": {"lib/b.js": "b\n"}},
        "fix#1/review[*]": {"output": {"verdicts": votes}},
        "report#1/write": "| what | changed |",
    }
    (folder / "script.yaml").write_text(json.dumps({"steps": answers, "default": "done"}))
    document = run("planned.yaml", capsys)
    assert document["output"] == "| what | changed |"
    assert {one["path"] for one in document["changes"]} == {"src/a.js", "lib/b.js"}


VARIABLES = {
    "AGENT_WORKFLOWS": ("on", "workflows.enabled", True),
    "AGENT_WORKFLOW_MAX_CONCURRENT": ("4", "workflows.max_concurrent", 4),
    "AGENT_WORKFLOW_MAX_AGENTS": ("64", "workflows.max_agents", 64),
    "AGENT_WORKFLOW_TIMEOUT_MS": ("1800000", "workflows.timeout_ms", 1_800_000),
    "AGENT_WORKFLOW_MODEL": ("openai:gpt-5-mini", "workflows.model", "openai:gpt-5-mini"),
}


def test_the_variables_of_dynamic_workflows_are_settings_of_the_user(folder: Path):
    environment = {name: value for name, (value, _, _) in VARIABLES.items()}
    config = Config.read(folder, {"FANFOLD_HOME": str(folder / "home"), **environment})
    assert {key: config.values[key] for _, key, _ in VARIABLES.values()} == {
        key: value for _, key, value in VARIABLES.values()
    }


def test_the_bounds_of_subagents_in_the_other_configuration_are_settings(folder: Path):
    (folder / "home").mkdir()
    (folder / "home" / "config.toml").write_text("[agents]\nmax_threads = 5\nmax_depth = 1\n")
    config = Config.read(folder, {"FANFOLD_HOME": str(folder / "home")})
    assert (config.integer("sessions.max_threads"), config.integer("sessions.max_depth")) == (5, 1)


@pytest.mark.full
@pytest.mark.parametrize("more", [[], ["--real", "--dry-run"], ["--dry-run"]])
def test_the_smoke_commands_of_deterministic_workflows_succeed_offline(folder: Path, capsys, more: list[str]):
    assert main(["smoke", *more, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is True
    scenarios = ["micro_parallel", "dependency", "writer_controlled"] if "--real" in more else []
    for scenario in scenarios:
        assert main(["smoke", "--real", "--dry-run", "--scenario", scenario, "--json"]) == 0
        capsys.readouterr()


def test_an_agent_file_of_the_other_format_is_a_role(folder: Path, capsys):
    (folder / ".codex" / "agents").mkdir(parents=True)
    (folder / ".codex" / "agents" / "auditor.toml").write_text(ROLE)
    (folder / "audit.yaml").write_text("steps: [{id: audit, agent: auditor, prompt: Audit it}]\n")
    assert run("audit.yaml", capsys)["output"] == "done"
