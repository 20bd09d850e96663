"""What a client of `fanfold mcp` gets from the calls that drive workflows, over stdio."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.mcp.conftest import connected, stdio
from tests.mcp.test_session import cli, use
from tests.work import PATIENCE_S, long_enough_ms

pytestmark = pytest.mark.full

FILES = {
    "inner.yaml": "name: inner\nsteps: [{id: write, agent: worker, write_set: [a.txt], prompt: Write}]\n",
    "outer.yaml": """\
name: outer
description: Reads and writes
inputs: {who: {default: Ada}}
limits: {max_agents: 200}
phases:
  - {id: look, kind: understand, tasks: [{id: scan, agent: explorer, prompt: "Look for {{inputs.who}}"}]}
  - {id: change, tasks: [{id: sub, workflow: ./inner.yaml}]}
""",
    "slow.yaml": "name: slow\nsteps: [{id: a, agent: explorer, prompt: A}]\n",
}
ANSWERS = {
    "steps": {
        "change#1/sub/write": {"output": "written", "writes": {"a.txt": "x\n"}},
        "look/fold": "Birds were found.",
        "change/fold": "A file was written.",
    },
    "default": "a heron stands there",
}


def _server(folder: Path) -> Any:
    server = stdio(folder, "--permission", "auto")
    (folder / "script.yaml").write_text(json.dumps(ANSWERS))
    return server


def _lose(folder: Path) -> str:
    """Start a run in a process, kill the process while a step runs, and return the id of the run."""
    script = f"default: {{output: late, delay_ms: {long_enough_ms(3_000)}}}\n"
    (folder / "slow.script").write_text(script)
    command = [sys.executable, "-m", "fanfold.cli.main"]
    command += ["run", "slow.yaml", "--script", "slow.script", "--yes"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + PATIENCE_S
        while (run := cli("inspect", "last")).get("steps", {}).get("a", {}).get("status") != "running":
            assert time.monotonic() < deadline, run
        os.kill(process.pid, signal.SIGKILL)
    return str(run["run_id"])


def test_a_client_sees_caps_the_changes_of_the_tree_and_its_report(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in FILES.items():
        (project / name).write_text(text)
    monkeypatch.setenv("AGENT_WORKFLOW_MAX_AGENTS", "9")

    async def session() -> None:
        async with connected(_server(project), "legacy") as client:
            tried = await use(client, "run_workflow", name="outer.yaml", dry_run=True)
            warning = "max_agents is 9, your cap (AGENT_WORKFLOW_MAX_AGENTS), not 200 as outer says"
            assert warning in tried["forecast"]["warnings"]
            ran = (await use(client, "run_workflow", name="outer.yaml"))["run"]
            assert ran["changes"] == ["added a.txt"]
            for part in (
                "- **who**: Ada",
                "**look** (completed): Birds were found.",
                "change#1/sub/write",
            ):
                assert part in ran["report"]
            hits = (await use(client, "query_workflow", query="heron"))["hits"]
            assert [(hit["path"], hit["kind"]) for hit in hits] == [("look#1/scan", "output")]
            kept = await use(client, "save_workflow", run=ran["run_id"], name="kept")
            assert kept["recipe"].startswith("name: kept\ndescription: Reads and writes\n")

    anyio.run(session)


def test_a_client_reads_what_exists_and_gets_typos_with_their_fix(project: Path) -> None:
    wrong = "name: t\nsteps: [{id: a, agent: explorer, for_each: [x], inputs: {of: itm}}]\n"
    spelled = "name: s\nsteps: [{id: a, agent: explorer, for_each: [x], maxConcurrency: 2, prompt: Go}]\n"

    async def session() -> None:
        async with connected(_server(project), "legacy") as client:
            names = [one["name"] for one in (await use(client, "list_workflows"))["workflows"]]
            assert {"read-two", "research-and-brief"} <= set(names)
            tools = {tool.name: tool.description for tool in (await client.list_tools()).tools}
            assert "explorer: Finds things out" in tools["spawn_agent"]
            assert "- read-two" in client.instructions
            missing = await use(client, "run_workflow", name="read-tow")
            assert missing["error"]["hint"] == 'did you mean "read-two"?'
            refused = await use(client, "run_workflow", spec=wrong)
            (diagnostic,) = refused["error"]["details"]["diagnostics"]
            assert diagnostic["fix"]["text"] == "item"
            assert (await use(client, "run_workflow", spec=spelled))["run"]["status"] == "completed"

    anyio.run(session)


def test_a_client_resumes_a_run_without_a_process_also_after_its_project_moved(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in FILES.items():
        (project / name).write_text(text)
    run = _lose(project)
    moved = project.rename(project.parent / "moved")
    monkeypatch.chdir(moved)

    async def session() -> None:
        async with connected(_server(moved), "legacy") as client:
            lost = (await use(client, "workflow_status", run=run))["run"]
            assert lost["status"] == "detached"
            assert f'run_workflow(resume: "{run}")' in lost["report"]
            resumed = (await use(client, "run_workflow", resume=run))["run"]
            assert (resumed["status"], resumed["output"]) == ("completed", "late")

    anyio.run(session)
    moved.rename(project)
