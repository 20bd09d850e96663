"""A sandbox that fails to start is never taken for the program that was to run in it."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from fanfold.errors import WorldError
from fanfold.steps.programs import Programs
from fanfold.steps.step_workspace import StepWorkspace
from fanfold.wiring import wire
from tests.cli.agent_world import AgentWorld, step, writing
from tests.levels import needs_bubblewrap

pytestmark = [pytest.mark.full, needs_bubblewrap]
FAILURE = "bwrap: Can't find source path /project/.venv: No such file or directory"
FAILING = """#!/bin/sh
case "$*" in *{marked}*)
  if [ "$(wc -l < {starts})" -lt {fails} ]; then
    echo >> {starts}; echo "{failure}" >&2; exit 1
  fi
esac
exec {real} "$@"
"""


@pytest.fixture
def failing(project: Path, monkeypatch: pytest.MonkeyPatch):
    """Make bubblewrap fail so many times when it starts what has a word in its command line."""

    def install(marked: str, fails: int) -> Path:
        starts = project.parent / "starts"
        starts.touch()
        bin = project.parent / "wrapped"
        bin.mkdir()
        real = shutil.which("bwrap")
        text = FAILING.format(marked=marked, fails=fails, starts=starts, failure=FAILURE, real=real)
        (bin / "bwrap").write_text(text)
        (bin / "bwrap").chmod(0o755)
        monkeypatch.setenv("PATH", f"{bin}:{os.environ['PATH']}")
        return starts

    return install


def command(project: Path, script: str) -> str:
    (project / "gate.yaml").write_text(
        f"name: gate\nsteps: [{{id: tests, shell: '{script}', outputs: [exit_code]}}]\n"
    )
    return "gate.yaml"


def test_a_sandbox_that_fails_is_started_again(fanfold, project, failing):
    starts = failing("my-tests", 2)
    done = fanfold("run", command(project, "true my-tests"), "--yes", "--json").json()
    assert done["output"] == {"exit_code": 0}
    assert len(starts.read_text().splitlines()) == 2


def test_a_sandbox_that_keeps_failing_fails_the_step_and_gives_no_exit_status(fanfold, project, failing):
    failing("my-tests", 99)
    done = fanfold("run", command(project, "true my-tests"), "--yes", "--json").json()
    assert (done["status"], done["output"]) == ("failed", None)
    error = done["steps"]["tests"]["error"]
    assert (error["class"], error["code"]) == ("transport", "sandbox.setup")
    assert "/project/.venv" in error["message"]


def test_a_program_that_prints_what_a_failing_sandbox_prints_has_run(fanfold, project):
    for status in (1, 126, 127):
        script = f'echo "{FAILURE}" >&2; echo "sandbox: refused" >&2; exit {status}'.replace("'", "")
        done = fanfold("run", command(project, script), "--yes", "--json").json()
        assert done["output"] == {"exit_code": status}


def test_a_file_that_cannot_be_executed_is_named_as_such(fanfold, project):
    (project / "notes").write_text("no program\n")
    (project / "run.yaml").write_text("name: run\nsteps: [{id: it, run: [./notes]}]\n")
    error = fanfold("run", "run.yaml", "--yes", "--json").json()["steps"]["it"]["error"]
    assert (error["code"], error["message"]) == (
        "command.not_startable",
        "./notes cannot be executed: Permission denied",
    )


def test_the_sandbox_of_an_agent_that_is_a_program_is_started_again(
    fanfold, project, tmp_path, monkeypatch, failing
):
    agents = AgentWorld(project, tmp_path / "home", monkeypatch)
    failing("stream-json", 1)
    agents.install("claude", writing("claude"))
    agents.role("coder", "claude")
    recipe = agents.recipe(step("coder", write_set=["*.txt"], retry={"attempts": 2, "backoff": 0}))
    done = fanfold("run", recipe, "--yes", "--json").json()
    assert done["status"] == "completed", done["steps"]
    assert done["steps"]["work"]["attempts"] == 2
    assert "sandbox.setup" in fanfold("logs", "last", "--json").out


def test_a_folder_that_vanished_is_not_a_missing_program(project):
    opened = wire(project)
    programs = Programs(opened.isolation)
    asyncio.run(programs.run(["true"], StepWorkspace(str(project), None), session_id="one"))
    shutil.rmtree(project)
    with pytest.raises(WorldError) as failed:
        asyncio.run(programs.run(["true"], StepWorkspace(str(project), None), session_id="two"))
    assert failed.value.code == "sandbox.setup"


def test_a_program_is_executed_once_however_many_start_together(project):
    programs = Programs(wire(project).isolation)

    async def start(number: int) -> int:
        place = StepWorkspace(str(project), None)
        script = f"echo run >> {number}; exit {number % 3}"
        ended = await programs.run(["sh", "-c", script], place, session_id=f"s{number}")
        return ended.exit_code

    async def start_all() -> list[int]:
        return await asyncio.gather(*(start(number) for number in range(24)))

    assert asyncio.run(start_all()) == [number % 3 for number in range(24)]
    assert [(project / str(number)).read_text() for number in range(24)] == ["run\n"] * 24
