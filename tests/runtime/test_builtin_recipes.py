"""Every built-in recipe runs: to its end, and along its failures to an honest one."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from fanfold.api.archives import verify
from fanfold.api.client import Client
from fanfold.api.report import executive_report
from fanfold.api.result import Result
from fanfold.api.run_options import Options
from fanfold.kernel.plan import GroupAction, Plan, Step, WorkflowAction
from fanfold.language.compile import compile_recipe
from fanfold.wiring import BUILT_IN_RECIPES, wire
from tests.recipe.known import surroundings
from tests.work import PATIENCE_S

INPUTS: dict[str, dict[str, Any]] = {
    "audit-fix-verify": {"packages": ["src", "lib"]},
    "build-components": {"brief": "a shop", "components": ["cart", "list"]},
    "code-review": {"base": "HEAD~1"},
    "migrate-files": {"goal": "use tabs", "files": ["src/a.py", "lib/b.py"]},
    "release-notes": {"since": "HEAD~1", "update_file": True},
    "research-and-brief": {"topic": "owls"},
    "research-debate-write": {"question": "Do owls sleep?"},
    "summarize-changes": {"since": "HEAD~1"},
}
WRITES = {
    "build-components": {
        "component[0]#*/build": "src/components/cart/a.py",
        "component[1]#*/build": "src/components/list/a.py",
    },
    "migrate-files": {"file[0]/edit#*/change": "src/a.py", "file[1]/edit#*/change": "lib/b.py"},
}
"""What agents write whose steps require changes: script path to file."""
NAMES = sorted(INPUTS)
TESTS = "import unittest\n\n\nclass T(unittest.TestCase):\n    def test_a(self):\n        {}\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A small project with a history and tests that pass."""
    for name, text in {
        "src/a.py": "def one():\n    return 1\n",
        "lib/b.py": "x = 2\n",
        "tests/test_a.py": TESTS.format("pass"),
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    for message in ("First", "Second"):
        (tmp_path / "README.md").write_text(message)
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-qm", message], check=True)
    return tmp_path


def plan_of(name: str) -> Plan:
    file = BUILT_IN_RECIPES / f"{name}.yaml"
    compiled = compile_recipe(file.read_bytes(), str(file), surroundings(BUILT_IN_RECIPES))
    assert compiled.plan is not None
    return compiled.plan


def agents(
    plan: Plan, steps: tuple[Step, ...], prefix: str = "", tolerant: bool = False
) -> Iterator[tuple[str, Step, bool]]:
    """Every agent step with its path in scripts, and whether a failure there is read by somebody."""
    for step in steps:
        each = "[*]" if step.for_each is not None else ""
        path = f"{prefix}{step.id}{each}" + ("#*" if step.repeat is not None else "")
        inline = tolerant or bool(step.on_failure == "inline" and step.read_by)
        if step.fold is not None:
            yield f"{prefix}{step.id}{each}/fold", step.fold, True
        if isinstance(step.action, GroupAction):
            yield from agents(plan, step.action.steps, f"{path}/", inline)
        elif isinstance(step.action, WorkflowAction):
            called = plan.workflows[step.action.workflow]
            yield from agents(plan, called.steps, f"{path}/", inline)
        elif step.traits.role is not None:
            yield path, step, inline


def sample(schema: Any) -> Any:
    """The smallest value that fits; what can be true is."""
    if not isinstance(schema, dict):
        return "text"
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "string")
    if kind == "object":
        return {name: sample(inner) for name, inner in schema.get("properties", {}).items()}
    if kind == "array":
        return [sample(schema.get("items"))] * max(1, schema.get("minItems", 1))
    return {"boolean": True, "integer": 1, "number": 1, "null": None}.get(kind, "text")


def _pattern(path: str) -> str:
    """The same path for `fnmatch`, where brackets have another meaning."""
    return path.replace("[*]", "?*?").replace("#*", "#?*")


def run_recipe(folder: Path, name: str, failing: str = "") -> Result:
    plan = plan_of(name)
    answers = {
        path: sample(step.output_schema) for path, step, _ in agents(plan, plan.steps) if step.output_schema
    }
    if name == "audit-fix-verify":
        answers["fix#*/review[*]"] = {
            "verdicts": [
                {"claim": f"repair[{index}]", "holds": True, "reason": "looked", "evidence": []}
                for index in range(2)
            ]
        }
    for path, file in WRITES.get(name, {}).items():
        answers[path] = {"output": "done", "writes": {file: f"{path}\n"}}
    if failing:
        answers = {path: said for path, said in answers.items() if not fnmatchcase(path, _pattern(failing))}
        answers[failing] = {"fail": {"class": "agent", "message": "broken"}}
    answers = {
        path: said if isinstance(said, dict) and {"fail", "writes"} & {*said} else {"output": said}
        for path, said in answers.items()
    }

    async def work() -> Result:
        async with Client(wire(folder)) as opened:
            script = json.dumps({"default": "done", "steps": answers})
            options = Options(permission="auto", script=script)
            handle = await opened.start(name, options=options, inputs=INPUTS[name])
            return await asyncio.wait_for(handle.result(), PATIENCE_S)

    result = asyncio.run(work())
    project = wire(folder)
    assert not verify(project.store, result.run_id).violations
    report = executive_report(project.view(result.run_id))
    project.close()
    assert not failing or "broken" in report
    return result


def test_every_built_in_recipe_is_tried_here():
    assert sorted(file.stem for file in BUILT_IN_RECIPES.glob("*.yaml")) == NAMES


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_it_runs_to_completed(repository: Path, name: str):
    result = run_recipe(repository, name)
    failed = {path: step.error for path, step in result.steps.items() if step.error is not None}
    assert (result.status, failed) == ("completed", {})
    assert result.output


FAILURES = [
    (name, path, inline) for name in NAMES for path, _, inline in agents(plan_of(name), plan_of(name).steps)
]


@pytest.mark.full
@pytest.mark.parametrize(("name", "path", "inline"), FAILURES)
def test_it_ends_honestly_when_a_step_fails(repository: Path, name: str, path: str, inline: bool):
    result = run_recipe(repository, name, path)
    if inline and name in WRITES:  # whose last step fails when an item was left unfinished
        assert (result.status, result.steps["all_finished"].status) == ("partial", "failed")
        assert result.output
    else:
        assert result.status == "completed" if inline else result.status in ("partial", "failed")


@pytest.mark.full
def test_tests_that_fail_reach_the_next_round_and_never_count_as_passed(repository: Path):
    """The gate runs what the project says: here its tests, which no agent mends."""
    (repository / "tests/test_a.py").write_text(TESTS.format("self.fail('still wrong')"))
    result = run_recipe(repository, "audit-fix-verify")
    assert (result.status, result.steps["fix"].status) == ("partial", "failed")
    error = result.steps["fix"].error
    assert error is not None
    assert error.code == "step.not_converged"
    assert "still wrong" in result.steps["fix#1/verify"].output["stderr"]
    project = wire(repository)
    tree = project.view(result.run_id)
    names = tree.values.at(tree.root.nodes["fix#2/repair[0]"])
    project.close()
    assert "still wrong" in names["feedback"]


def test_a_project_without_a_test_command_is_reported_before_a_run(tmp_path: Path):
    project = wire(tmp_path)
    try:
        found = project.compile_context().own_command("tests")
    finally:
        project.close()
    assert found is None
    assert surroundings().own_command("tests") is not None
