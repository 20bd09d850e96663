"""Writers in the project itself: what they change beyond their write-set is noticed and put to them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fanfold.api.result import Result
from fanfold.api.run_options import Options
from fanfold.steps.step_workspace import Watching
from tests.levels import finds_what_strayed
from tests.runtime.running import client, run
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

# Registered once for the whole process, so they are told where the project is.
HANDLERS = '''
import time
from pathlib import Path

import fanfold


@fanfold.function("shared-put")
def put(path):
    Path(path).write_text("x")
    return "put"


@fanfold.function("shared-put-after")
def put_after(path, other):
    """Write when another step has."""
    await_file(other)
    return put(path)


@fanfold.function("shared-put-wait")
def put_and_wait(path, other):
    """Write, and stay until another step has."""
    put(path)
    await_file(other)
    return "put"


def await_file(path):
    until = time.monotonic() + 300
    while not Path(path).exists():
        assert time.monotonic() < until
        time.sleep(0.005)
'''


@pytest.fixture
def project(tmp_path: Path) -> Path:
    tmp_path = tmp_path / "project"
    (tmp_path / "src").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "src" / "a.py").write_text("x = 1\n")
    (tmp_path / "README.md").write_text("read me\n")
    (tmp_path / "handlers.py").write_text(HANDLERS)
    return tmp_path


def shared(line: str, write_set: str = "src/**") -> str:
    command = json.dumps(["bash", "-c", line])
    return f"""
name: shared
steps:
  - {{id: w, run: {command}, write_set: ["{write_set}"], workspace_mode: shared}}
"""


def told(folder: Path, run_id: str, *words: str) -> list[dict[str, Any]]:
    opened = client(folder)
    try:
        events = [e.data for e in opened.project.store.tree(run_id) if e.type == "workspace_event"]
        return [fact for fact in events if fact["what"] in words]
    finally:
        opened.project.close()


def strays(result: Result, step: str = "w") -> list[str]:
    error = result.steps[step].error
    assert error is not None
    assert (error.kind, error.code) == ("violation", "workspace.violation")
    named = str(error.message).partition(": ")[2].partition(";")[0].split(", ")
    return [one.partition(" (")[0] for one in named]  # without the reason


def test_changes_inside_the_write_set_are_no_violation(project: Path) -> None:
    result = run(project, shared("echo y >> src/a.py; mkdir src/new; touch src/new/b.py"))
    assert result.status == "completed"
    assert told(project, result.run_id, "violation", "violation_warning") == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("echo more >> README.md; echo y >> src/a.py", ["README.md"]),
        ("touch new.txt", ["new.txt"]),
        ("rm README.md", ["README.md"]),
        ("mkdir hollow", ["hollow"]),
        ("chmod +x README.md; touch docs/b.md", ["README.md", "docs/b.md"]),
    ],
)
@finds_what_strayed
def test_a_command_that_strays_fails_with_the_list_and_its_changes_are_still_there(
    project: Path, line: str, found: list[str]
) -> None:
    result = run(project, shared(line))
    assert strays(result) == found
    (fact,) = told(project, result.run_id, "violation")
    assert [row["path"] for row in fact["paths"]] == found
    assert "these changes are there" in str(result.steps["w"].error)


@finds_what_strayed
def test_an_agent_that_strays_by_a_command_fails_too(project: Path) -> None:
    recipe = """
name: shared
steps:
  - {id: w, agent: worker, prompt: x, write_set: ["src/**"], workspace_mode: shared}
"""
    call = {"tool": "run_command", "args": {"argv": ["touch", "outside.txt"]}}
    script = json.dumps({"steps": {"w": {"output": "ok", "tool_calls": [call]}}})
    assert strays(run(project, recipe, script)) == ["outside.txt"]


def test_a_function_with_a_write_set_is_held_to_it(project: Path) -> None:
    recipe = """
name: functions
steps:
  - {id: ok, handler: shared-put, write_set: ["src/**"], inputs: {path: ./src/b.py}}
  - {id: w, handler: shared-put, inputs: {path: ./docs/b.md}, write_set: ["src/**"], depends_on: [ok]}
  - {id: free, handler: shared-put, inputs: {path: ./docs/c.md}, depends_on: [ok]}
"""
    result = run(project, recipe.replace("./", f"{project}/"))
    assert {path: step.status for path, step in result.steps.items()} == {
        "ok": "completed",
        "w": "failed",
        "free": "completed",
    }
    assert strays(result) == ["docs/b.md"]


@finds_what_strayed
def test_a_step_that_failed_anyway_keeps_its_own_failure(project: Path) -> None:
    result = run(project, shared("touch new.txt; exit 3"))
    error = result.steps["w"].error
    assert error is not None
    assert error.code == "command.failed"
    assert [fact["what"] for fact in told(project, result.run_id, "violation")] == ["violation"]


@pytest.mark.parametrize("end", ["exit 3", "sleep 60"], ids=["failed", "timed out"])
@finds_what_strayed
def test_a_violation_of_an_attempt_is_not_forgotten_by_the_next(project: Path, end: str) -> None:
    retry = "timeout: 5s, retry: {attempts: 3, on: [agent, timeout], backoff: 1ms}"
    recipe = shared(f"test -e new.txt && exit 0; touch new.txt; {end}")
    step = run(project, recipe.replace("workspace_mode", f"{retry}, workspace_mode")).steps["w"]
    assert step.error is not None
    assert "changed forbidden paths: new.txt" in step.error.message


def test_a_violation_beside_another_shared_writer_is_a_warning(project: Path) -> None:
    recipe = """
name: two
steps:
  - id: a
    handler: shared-put-wait
    read_set: [src]
    write_set: ["src/**"]
    inputs: {path: ./src/b, other: ./new.txt}
  - id: b
    handler: shared-put-after
    read_set: [docs]
    write_set: ["docs/**"]
    inputs: {path: ./new.txt, other: ./src/b}
"""
    result = run(project, recipe.replace("./", f"{project}/"))
    assert result.status == "completed", result.steps
    facts = told(project, result.run_id, "violation", "violation_warning")
    assert {fact["what"] for fact in facts} == {"violation_warning"}
    assert {row["path"] for fact in facts for row in fact["paths"]} == {"new.txt"}


def test_merges_of_an_isolated_step_are_no_violation_of_a_shared_one(project: Path) -> None:
    recipe = """
name: beside
steps:
  - {id: a, agent: worker, prompt: x, read_set: ["docs/**"], write_set: ["docs/**"]}
  - id: w
    handler: shared-put-after
    read_set: [src]
    write_set: ["src/**"]
    inputs: {path: ./src/b, other: ./docs/n.md}
"""
    script = 'steps: {a: {output: ok, writes: {"docs/n.md": "new\\n"}}}'
    result = run(project, recipe.replace("./", f"{project}/"), script)
    assert result.status == "completed", result.steps
    assert told(project, result.run_id, "violation", "violation_warning") == []


def test_a_step_that_began_later_has_its_set_too(project: Path) -> None:
    recipe = """
name: later
steps:
  - id: w
    handler: shared-put-after
    read_set: [src]
    write_set: ["src/**"]
    inputs: {path: ./src/b, other: ./docs/n.md}
  - {id: first, handler: shared-put, read_set: [tests.md], write_set: [tests.md], inputs: {path: ./tests.md}}
  - {id: a, agent: worker, prompt: x, read_set: ["docs/**"], write_set: ["docs/**"], depends_on: [first]}
"""
    script = 'steps: {a: {output: ok, writes: {"docs/n.md": "new\\n"}}}'
    result = run(project, recipe.replace("./", f"{project}/"), script)
    assert result.status == "completed", result.steps
    assert told(project, result.run_id, "violation") == []


MERGES = """
name: merges
steps:
  - {id: a, agent: worker, prompt: x, write_set: ["docs/**"]}
"""
MERGED = 'steps: {a: {output: ok, writes: {"docs/new/n.md": "new\\n"}}}'


def run_elsewhere(project: Path, began: Path) -> subprocess.Popen[bytes]:
    """A run of another process that merges what its isolated step wrote, once a step here has begun."""
    until = time.monotonic() + PATIENCE_S
    while not began.exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    (project.parent / "merges.yaml").write_text(MERGES)
    (project.parent / "script.yaml").write_text(MERGED)
    call = [sys.executable, "-m", "fanfold.cli.main", "run", f"{project.parent}/merges.yaml", "--yes"]
    environment = {**os.environ, "HOME": str(project.parent)}
    return subprocess.Popen(
        [*call, "--script", f"{project.parent}/script.yaml"], cwd=project, env=environment
    )


@pytest.mark.parametrize(("more", "found"), [("", []), ("; touch docs/mine.md", ["docs/mine.md"])])
def test_merges_of_another_process_are_no_violation_of_a_shared_step(
    project: Path, more: str, found: list[str]
) -> None:
    wait = "touch src/began; until test -e docs/new/n.md; do sleep 0.02; done"

    async def both() -> Result:
        async with client(project) as opened:
            options = Options(permission="auto", script="default: x")
            handle = await opened.start(shared(wait + more), options=options)
            other = await asyncio.to_thread(run_elsewhere, project, project / "src" / "began")
            result = await asyncio.wait_for(handle.result(), PATIENCE_S)
            assert await asyncio.to_thread(other.wait, 60) == 0
            return result

    result = asyncio.run(both())
    if found:
        assert strays(result) == found
    else:
        assert result.status == "completed", result.steps
        assert told(project, result.run_id, "violation", "violation_warning") == []


def test_steps_without_sets_or_with_all_files_are_not_limited(project: Path) -> None:
    recipe = """
name: unwatched
steps:
  - {id: r, agent: explorer, prompt: x}
  - {id: w, agent: worker, prompt: x, workspace_mode: shared}
  - {id: f, handler: shared-put, write_set: ["**/*"], inputs: {path: ./new.txt}}
  - {id: g, handler: shared-put, inputs: {path: ./new.txt}}
  - {id: i, agent: worker, prompt: x, write_set: ["src/**"]}
"""
    result = run(project, recipe.replace("./", f"{project}/"))
    assert result.status == "completed", result.steps
    assert told(project, result.run_id, "violation", "violation_warning") == []


def test_watching_ends_with_the_step(project: Path) -> None:
    async def work() -> Watching:
        async with client(project) as opened:
            options = Options(permission="auto", script="default: x")
            for recipe in (shared("touch src/b.py"), shared("touch new.txt"), shared("sleep 60")):
                handle = await opened.start(recipe, options=options)
                if "60" in recipe:
                    await asyncio.sleep(0.3)
                    await handle.cancel()
                await handle.result()
            return opened.project.isolation._watching

    watching = asyncio.run(work())
    assert (watching._sets, watching._sharing, watching.watched) == ({}, set(), {})
