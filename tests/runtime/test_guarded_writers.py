"""Shared writers leave no instructions to other programs in the project, whatever their write-set says."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fanfold.api.result import Result
from fanfold.api.run_options import Options
from fanfold.workspace.sandbox import detect
from tests.runtime.running import client, run
from tests.work import PATIENCE_S
from tools.tidy import ROOT

pytestmark = pytest.mark.full

EVIL = {
    ".git": "git init -q . && git config core.fsmonitor evil",
    ".codex": "mkdir -p .codex/agents; echo x > .codex/agents/x.toml",
    ".claude": "mkdir -p .claude/agents; echo x > .claude/agents/y.md",
}
SETS = ["**/*", "src/**"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    if not detect(ROOT).bubblewrap.available:
        pytest.skip("needs bubblewrap: apt-get install bubblewrap")
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "src/a.py").write_text("x = 1\n")
    return folder


def command(line: str, write_set: str, more: str = "") -> str:
    argv = json.dumps(["bash", "-c", line])
    step = f'{{id: w, run: {argv}, write_set: ["{write_set}"], workspace_mode: shared{more}}}'
    return f"name: shared\nsteps:\n  - {step}\n"


def violation(result: Result) -> str:
    error = result.steps["w"].error
    assert error is not None
    assert (error.kind, error.code) == ("violation", "workspace.violation"), error
    return str(error.message)


def told(folder: Path, run_id: str) -> list[dict[str, Any]]:
    opened = client(folder)
    try:
        events = [e.data for e in opened.project.store.tree(run_id) if e.type == "workspace_event"]
        return [row for fact in events if fact["what"] == "violation" for row in fact["paths"]]
    finally:
        opened.project.close()


@pytest.mark.parametrize("write_set", SETS)
@pytest.mark.parametrize("path", EVIL)
def test_a_command_that_makes_one_fails_and_it_is_gone(project: Path, path: str, write_set: str) -> None:
    result = run(project, command(EVIL[path], write_set))
    assert f"{path} did not stay in the project" in violation(result)
    assert {"path": path, "why": "protected"} in told(project, result.run_id)
    assert not os.path.lexists(project / path)


@pytest.mark.parametrize("write_set", SETS)
def test_a_broken_repository_is_a_violation_and_the_project_stays_usable(
    project: Path, write_set: str
) -> None:
    result = run(project, command("echo 'gitdir: /nowhere' > .git", write_set))
    assert ".git" in violation(result)
    assert run(project, command("touch src/b.py", write_set)).status == "completed"


@pytest.mark.parametrize("write_set", SETS)
def test_an_agent_that_makes_one_by_a_command_fails_too(project: Path, write_set: str) -> None:
    step = f'{{id: w, agent: worker, prompt: x, write_set: ["{write_set}"], workspace_mode: shared}}'
    call = {"tool": "run_command", "args": {"argv": ["bash", "-c", EVIL[".codex"]]}}
    script = json.dumps({"steps": {"w": {"output": "ok", "tool_calls": [call]}}})
    violation(run(project, f"name: shared\nsteps:\n  - {step}\n", script))
    assert not (project / ".codex").exists()


@pytest.mark.parametrize("way", ["timeout", "cancel", "failure"])
def test_it_is_gone_too_when_the_step_does_not_come_to_its_end(project: Path, way: str) -> None:
    more = ", timeout: 1500ms" if way == "timeout" else ""
    end = "exit 3" if way == "failure" else "touch src/made; sleep 60"
    recipe = command(f"{EVIL['.git']}; {end}", "**/*", more)

    async def work() -> Result:
        async with client(project) as opened:
            handle = await opened.start(recipe, options=Options(permission="auto", script="default: x"))
            while way == "cancel" and not (project / "src/made").exists():  # noqa: ASYNC110 - a program outside makes it
                await asyncio.sleep(0.01)
            if way == "cancel":
                await handle.cancel()
            return await asyncio.wait_for(handle.result(), PATIENCE_S)

    assert asyncio.run(work()).status in ("failed", "cancelled")
    assert not (project / ".git").exists()


@pytest.mark.parametrize("write_set", SETS)
def test_work_beside_what_was_there_is_no_violation(project: Path, write_set: str) -> None:
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    (project / ".codex/agents").mkdir(parents=True)
    (project / ".claude").mkdir()
    line = "echo y >> src/a.py; git status --short"
    assert run(project, command(line, write_set)).status == "completed"
    assert (project / ".git/config").exists()
