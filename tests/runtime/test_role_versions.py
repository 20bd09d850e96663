"""Versions of a role side by side: a step gets what its own version may do, whatever another one may."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fanfold.agents.role import Role
from fanfold.agents.roles import Registry
from fanfold.api.result import Result
from fanfold.api.run_handle import RunHandle
from fanfold.api.run_options import Options
from fanfold.api.start import create
from fanfold.kernel.plan import Plan
from fanfold.language.compile import compile_recipe
from fanfold.wiring import wire
from tests.work import PATIENCE_S

ROLE = """\
name = "auditor"
description = "Looks at things"
version = "{version}"
developer_instructions = "Look."
sandbox_mode = "{mode}"
{more}
"""
WRITES = """\
steps:
  w:
    output: done
    tool_calls: [{tool: write_file, args: {path: a.txt, content: changed}}]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    agents = folder / ".fanfold/agents"
    agents.mkdir(parents=True)
    reads = ROLE.format(version=1, mode="read-only", more='tools = ["read_file"]')
    (agents / "auditor-1.toml").write_text(reads)
    (agents / "auditor-2.toml").write_text(ROLE.format(version=2, mode="workspace-write", more=""))
    (folder / "a.txt").write_text("a\n")
    return folder


def recipe(agent: str, more: str = "") -> str:
    return f"name: audit\nsteps: [{{id: w, agent: {agent}, prompt: x{more}}}]\n"


def compiled(folder: Path, text: str, believed: Registry | None = None) -> tuple[Any, Any]:
    around = wire(folder).compile_context()
    if believed is not None:
        around = msgspec.structs.replace(around, roles=believed)
    made = compile_recipe(text.encode(), str(folder / "test.yaml"), around)
    return made.plan, [note.message for note in made.report.diagnostics]


def run(folder: Path, plan: Plan) -> Result:
    async def work() -> Result:
        project = wire(folder)
        owned = create(project, plan, {}, Options(permission="auto", script=WRITES))
        result = await asyncio.wait_for(RunHandle(owned).result(), PATIENCE_S)
        project.close()
        return result

    return asyncio.run(work())


@pytest.mark.parametrize(
    ("agent", "posture"),
    [("auditor@1", "read_only"), ("auditor@v1", "read_only"), ("auditor@2", "writer"), ("auditor", "writer")],
)
def test_the_posture_is_that_of_the_version(project: Path, agent: str, posture: str) -> None:
    plan, _ = compiled(project, recipe(agent))
    assert plan.steps[0].posture == posture


def test_a_default_with_a_version_counts_too(project: Path) -> None:
    plan, _ = compiled(project, "name: a\ndefaults: {agent: auditor@1}\nsteps: [{id: w, prompt: x}]\n")
    assert plan.steps[0].posture == "read_only"


def test_tools_are_those_of_the_version(project: Path) -> None:
    assert compiled(project, recipe("auditor@2", ", tools: [write_file]"))[1] == []
    plan, said = compiled(project, recipe("auditor@1", ", tools: [write_file]"))
    assert plan is None
    assert said == ['the role has no tool "write_file"']


def test_a_write_set_needs_a_version_that_writes(project: Path) -> None:
    plan, said = compiled(project, recipe("auditor@1", ", write_set: [a.txt]"))
    assert plan is None
    assert "is read-only" in said[0]


@pytest.mark.full
@pytest.mark.parametrize("tools", ["", ", tools: [write_file, read_file]"], ids=["all", "named"])
def test_a_plan_that_took_a_role_for_a_writer_gives_it_no_more_than_it_has(project: Path, tools: str) -> None:
    believed = Registry([Role(name="auditor", description="", version="1")], aliases={}, notices=())
    plan, _ = compiled(project, recipe("auditor@1", tools), believed)
    assert plan.steps[0].posture == "writer"
    result = run(project, plan)
    assert result.status == "failed"
    assert (project / "a.txt").read_text() == "a\n"
