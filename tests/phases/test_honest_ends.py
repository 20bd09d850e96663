"""What cannot be judged, done or summed up ends in the status that says so, with an explanation."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fanfold.api.explain import explain_run
from fanfold.api.history import transcript
from fanfold.api.report import executive_report
from fanfold.api.result import Result
from fanfold.api.run_options import Options
from fanfold.steps.values import FEEDBACK_CHARS
from fanfold.wiring import wire
from tests.runtime.running import client, run
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

GATE = """
name: gated
phases:
  - id: work
    tasks: [{id: a, agent: explorer, prompt: x}, {id: b, agent: explorer, prompt: y}]
    verify: {gate: command, run: [%s]}
  - {id: after, tasks: [{id: t, agent: explorer, prompt: z}]}
"""


def told(folder: Path, result: Result) -> tuple[str, str]:
    """The report, and why the run is where it is."""
    project = wire(folder)
    try:
        reason = explain_run(project, result.run_id).reason
        return executive_report(project.view(result.run_id)), str(reason)
    finally:
        project.close()


def test_a_gate_command_that_does_not_exist_never_passes(tmp_path: Path):
    result = run(tmp_path, GATE % "no-such-program", "default: ok")
    assert (result.status, result.steps["work"].status) == ("partial", "failed")
    assert result.steps["after"].status == "skipped"
    report, reason = told(tmp_path, result)
    assert "no-such-program" in report
    assert report.startswith("# gated: partial")
    assert reason


def test_all_agents_of_a_phase_failing_is_no_result(tmp_path: Path):
    broken: dict[str, Any] = {"fail": {"class": "agent", "message": "gave up"}}
    steps = {f"work#*/{name}": broken for name in "ab"}
    result = run(tmp_path, GATE % "true", json.dumps({"default": "ok", "steps": steps}))
    assert result.status in ("failed", "partial")
    assert result.steps["after"].status == "skipped"
    assert result.output is None
    report, reason = told(tmp_path, result)
    wrong = report.partition("## What went wrong")[2]
    named = [line.split("**")[1] for line in wrong.splitlines() if line.startswith("- **")]
    assert named == ["work", "work#1/a", "work#1/b", "work#2/a", "work#2/b"], "what failed first hand, once"
    assert report.count("gave up") >= 2
    assert reason


def test_the_cap_reached_in_the_middle_pauses_with_everything_kept(tmp_path: Path):
    result = run(tmp_path, GATE % "true", "default: ok", options={"max_agents": 2})
    assert result.status == "paused"
    assert result.steps["work#1/a"].status == "completed"
    report, reason = told(tmp_path, result)
    assert report.startswith("# gated: paused")
    assert reason == "budget"
    command = [sys.executable, "-m", "fanfold.cli.main", "resume", result.run_id, "--max-agents", "9"]
    resumed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert resumed.returncode == 0, resumed.stderr


@pytest.mark.parametrize("gate", ["tests", "lint"])
def test_a_gate_for_which_the_project_says_nothing_is_refused_by_check(tmp_path: Path, gate: str):
    (tmp_path / "r.yaml").write_text((GATE % "true").replace("command, run: [true]", gate))
    command = [sys.executable, "-m", "fanfold.cli.main", "check", "r.yaml"]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert checked.returncode == 2
    assert f"this project does not define how to run its {gate}" in checked.stdout + checked.stderr


def test_the_output_of_the_gate_reaches_a_prompt_without_a_placeholder(tmp_path: Path):
    result = run(tmp_path, GATE % "sh, -c, 'echo the roof leaks; exit 3'", "default: ok")
    assert result.steps["work"].status == "failed"
    project = wire(tmp_path)
    said = msgspec.json.encode(transcript(project, result.run_id, "work#2/a", None)).decode()
    project.close()
    assert "the roof leaks" in said
    assert "did not pass" in said


NOISY = "sh, -c, 'echo the roof leaks; seq 9000 >&2; echo no more >&2; exit 3'"


def test_the_last_output_of_a_gate_is_part_of_the_failure(tmp_path: Path):
    (tmp_path / "r.yaml").write_text(GATE % NOISY)
    (tmp_path / "s.yaml").write_text("default: ok")
    command = [sys.executable, "-m", "fanfold.cli.main", "run", "r.yaml", "--script", "s.yaml", "--yes"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    report = next(tmp_path.glob(".fanfold/runs/*/report.md")).read_text()
    for told_by in (done.stderr, report.partition("## What went wrong")[2]):
        assert told_by.index("did not pass its gate in 2 iterations") < told_by.index("exit status 3")
        assert "no more" in told_by
    explained = subprocess.run(
        [*command[:3], "explain", "last"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "work did not pass its gate in 2 iterations: exit status 3" in explained.stdout


TWO = """\
name: x
limits: {timeout: %s}
steps: [{id: a, agent: explorer, prompt: x}, {id: b, agent: explorer, prompt: x}]
"""


def test_a_report_says_what_to_do_about_a_run_in_which_no_step_failed(tmp_path: Path):
    cases = {
        "late": ("run.timeout", "## What went wrong", "Raise `timeout` under the recipe's `limits`"),
        "held": ("run.paused", "## What holds it", "the run is paused: max_agents reached"),
    }
    for name, (code, heading, told) in cases.items():
        folder = tmp_path / name
        folder.mkdir()
        late = name == "late"
        (folder / "r.yaml").write_text(TWO % ("10ms" if late else "30m"))
        (folder / "s.yaml").write_text(f"default: {{output: x, delay_ms: {3_600_000 if late else 0}}}\n")
        command = [sys.executable, "-m", "fanfold.cli.main", "run", "r.yaml", "--script", "s.yaml"]
        flags = [] if late else ["--max-agents", "1"]
        done = subprocess.run([*command, *flags], cwd=folder, capture_output=True, text=True, check=False)
        report = next(folder.glob(".fanfold/runs/*/report.md")).read_text()
        wrong = report.partition(heading)[2]
        assert f"(`{code}`). " in wrong, (done.stderr, report)
        assert told in wrong
        assert late == (f"[{code}]" in done.stderr)
        assert late or "paused (a limit is reached)" in done.stderr


def feedback_of(folder: Path, result: Result, step: str) -> str:
    project = wire(folder)
    try:
        tree = project.view(result.run_id)
        return str(tree.values.at(tree.root.nodes[step])["feedback"])
    finally:
        project.close()


def test_errors_leave_room_for_the_output_of_a_gate_in_the_feedback(tmp_path: Path):
    said = feedback_of(tmp_path, run(tmp_path, GATE % NOISY, "default: ok"), "work#2/a")
    assert said.startswith("exit status 3\nthe roof leaks\n…")
    assert said.endswith("no more")
    assert len(said) < 5_000


def test_feedback_on_many_failures_is_limited_to_what_fits_a_prompt(tmp_path: Path):
    recipe = (GATE % "true").replace("- id: work", '- id: work\n    for_each: "[1, 2, 3, 4, 5, 6, 7, 8]"')
    broken = {"fail": {"class": "agent", "message": "gave up " * 1_000}}
    script = json.dumps({"default": "ok", "steps": {"work#1/a[*]": broken}})
    result = run(tmp_path, recipe, script)
    assert result.status == "completed"
    said = feedback_of(tmp_path, result, "work#2/a[0]")
    assert "gave up" in said
    assert "characters left out" in said
    assert len(said) < FEEDBACK_CHARS + 100


def test_objections_of_a_person_reach_the_next_round(tmp_path: Path):
    recipe = (GATE % "true").replace("gate: command, run: [true]", "gate: approval")

    async def work() -> Result:
        async with client(tmp_path) as opened:
            handle = await opened.start(recipe, options=Options(permission="auto", script="default: ok"))
            async for event in handle.events():
                if event.data.get("status") == "waiting" and event.data["step"] == "work#1/verify":
                    await handle.reject("work#1/verify", comment="the colour is wrong")
                elif event.data.get("status") == "waiting":
                    await handle.approve(event.data["step"], choice="approve")
            return await handle.result()

    result = asyncio.run(asyncio.wait_for(work(), PATIENCE_S))
    assert result.status == "completed"
    said = feedback_of(tmp_path, result, "work#2/a")
    assert said == "A person answered reject: the colour is wrong"
    report, _ = told(tmp_path, result)
    assert "did not pass (answered reject: the colour is wrong)" in report
