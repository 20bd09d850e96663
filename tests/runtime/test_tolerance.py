"""Which failures a run may have had and still call itself completed; the report lists them all the same."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from fanfold.api.archives import verify
from fanfold.api.report import executive_report
from fanfold.api.result import Result
from fanfold.wiring import wire
from tests.runtime.running import run

BROKEN = "{fail: {class: agent, message: broken}}"


def ended(folder: Path, steps: str, script: str, output: str = "") -> Result:
    recipe = f"name: t\nsteps:\n{dedent(steps)}" + (f'output: "{output}"\n' if output else "")
    result = run(folder, recipe, f"default: fine\nsteps: {{{script}}}")
    project = wire(folder)
    assert not verify(project.store, result.run_id).violations
    report = executive_report(project.view(result.run_id))
    project.close()
    listed = "and was tolerated" if result.status == "completed" else "## What went wrong\n"
    assert listed in report
    assert "broken" in report
    return result


INLINE = """\
  - {id: a, agent: explorer, prompt: x, on_failure: inline}
"""
AFTER = "  - {id: z, run: [echo, done], depends_on: [a]}\n"
READER = '  - {id: z, agent: explorer, prompt: "{{steps.a.output}}"}\n'
TOLD = "  - {id: z, agent: explorer, prompt: look, depends_on: [a]}\n"
CONDITION = "  - {id: z, run: [echo, done], when: \"steps.a.status == 'failed'\"}\n"


@pytest.mark.full
@pytest.mark.parametrize(
    ("rest", "output", "status"),
    [
        (READER, "", "completed"),
        (TOLD, "", "completed"),
        (CONDITION, "", "completed"),
        (AFTER, "", "partial"),
        (AFTER, "{{steps.a.output}}", "completed"),
        (AFTER, "{{steps.z.output}}", "partial"),
    ],
)
def test_an_inline_failure_is_tolerated_when_a_completed_step_or_the_output_refers_to_it(
    tmp_path: Path, rest: str, output: str, status: str
):
    assert ended(tmp_path, INLINE + rest, f"a: {BROKEN}", output).status == status


def test_an_inline_failure_read_only_by_a_step_that_failed_is_not_tolerated(tmp_path: Path):
    other = "  - {id: other, agent: explorer, prompt: x}\n"
    assert ended(tmp_path, INLINE + READER + other, f"a: {BROKEN}, z: {BROKEN}").status == "partial"


def test_failures_inside_an_inline_group_that_is_read_are_tolerated(tmp_path: Path):
    steps = """\
      - id: g
        on_failure: inline
        steps:
          - {id: a, agent: explorer, prompt: x}
          - {id: b, agent: explorer, prompt: x, depends_on: [a]}
      - {id: z, agent: explorer, prompt: "{{steps.g.output}}"}
    """
    result = ended(tmp_path, steps, f"g/a: {BROKEN}")
    assert (result.status, result.steps["g"].status, result.steps["g/b"].status) == (
        "completed", "failed", "skipped",
    )  # fmt: skip


def test_a_run_in_which_nothing_completed_failed_whatever_is_inline(tmp_path: Path):
    assert ended(tmp_path, INLINE, f"a: {BROKEN}", "{{steps.a.output}}").status == "failed"


LOOP = """\
  - id: l
    agent: explorer
    prompt: "{{feedback}}"
    repeat: {until: 'output == "good"', max_iterations: 3%s}
  - {id: z, agent: explorer, prompt: x}
"""


def test_a_failed_round_is_tolerated_when_a_later_one_converges(tmp_path: Path):
    result = ended(tmp_path, LOOP % "", f'"l#1": {BROKEN}, "l#2": bad, "l#3": good')
    assert (result.status, result.steps["l"].output) == ("completed", "good")
    assert [result.steps[f"l#{n}"].status for n in (1, 2, 3)] == ["failed", "completed", "completed"]


def test_a_loop_whose_rounds_all_fail_did_not_converge(tmp_path: Path):
    result = ended(tmp_path, LOOP % "", f'"l#*": {BROKEN}')
    error = result.steps["l"].error
    assert error is not None
    assert (result.status, error.code) == ("partial", "step.not_converged")
    assert "broken" in error.message


INSIDE = LOOP % ", on_exhausted: continue"
BESIDE = LOOP.replace("    repeat:", "    on_exhausted: continue\n    repeat:") % ""


@pytest.mark.parametrize("steps", [INSIDE, BESIDE], ids=["inside repeat", "beside repeat"])
@pytest.mark.parametrize(("last", "output"), [("bad", "bad"), (BROKEN, None)])
def test_a_loop_may_let_the_run_continue_without_convergence(
    tmp_path: Path, steps: str, last: str, output: str | None
):
    result = ended(tmp_path, steps, f'"l#1": {BROKEN}, "l#2": bad, "l#3": {last}')
    assert (result.status, result.steps["l"].output) == ("completed", output)


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "rounds"),
    [("agent", 3), ("tool", 3), ("invalid_output", 3), ("conflict", 1), ("budget", 1), ("internal", 1)],
)
def test_only_failures_that_another_try_may_change_leave_the_loop_to_the_next_round(
    tmp_path: Path, kind: str, rounds: int
):
    result = ended(tmp_path, LOOP % "", f'"l#*": {{fail: {{class: {kind}, message: broken}}}}')
    assert sum(path.startswith("l#") for path in result.steps) == rounds


@pytest.mark.full
def test_a_time_out_makes_a_round_false(tmp_path: Path):
    steps = LOOP.replace("agent: explorer\n", "agent: explorer\n    timeout: 2s\n", 1) % ""
    result = ended(tmp_path, steps, '"l#1": {output: good, delay_ms: 3600000}, "l#2": good, z: ' + BROKEN)
    assert (result.steps["l#1"].status, result.steps["l"].output) == ("timed_out", "good")


def test_a_step_that_stops_the_run_ends_its_loop(tmp_path: Path):
    steps = LOOP.replace("agent: explorer\n", "agent: explorer\n    on_failure: stop\n", 1) % ""
    result = ended(tmp_path, steps, f'"l#*": {BROKEN}')
    assert (result.status, "l#2" in result.steps) == ("failed", False)


GROUP = """\
  - id: g
    repeat: {until: steps.b.output == "good", max_iterations: 50}
    steps:
      - {id: a, agent: explorer, prompt: "said: {{feedback}}"}
      - {id: b, agent: explorer, prompt: x, depends_on: [a]}
  - {id: z, agent: explorer, prompt: x}
"""


def test_a_failure_inside_a_group_makes_its_round_false_and_is_the_feedback_of_the_next(tmp_path: Path):
    script = f'"g#1/a": {BROKEN}, "g#2/b": bad, "g#3/b": good'
    result = ended(tmp_path, GROUP, script)
    assert (result.status, result.steps["g"].output) == ("completed", "good")
    project = wire(tmp_path)
    tasks = {path: task for (_, path), task in project.view(result.run_id).memory.tasks.items()}
    project.close()
    assert (tasks["g#1/a"], tasks["g#3/a"]) == ("said: ", "said: bad")
    assert tasks["g#2/a"].startswith("said: [g#1/a failed: ")
    assert tasks["g#2/a"].endswith("broken")


@pytest.mark.full
def test_feedback_is_null_in_the_first_round(tmp_path: Path):
    steps = """\
      - id: l
        repeat: {until: "iteration == 2"}
        steps:
          - {id: later, agent: explorer, prompt: x, when: feedback != null}
          - {id: first, run: [echo, first], when: feedback == null}
      - {id: broken, agent: explorer, prompt: x}
    """
    result = ended(tmp_path, steps, f"broken: {BROKEN}")
    seen = {path: step.status for path, step in result.steps.items() if "#" in path and "/" in path}
    assert seen == {
        "l#1/first": "completed", "l#1/later": "skipped", "l#2/first": "skipped", "l#2/later": "completed",
    }  # fmt: skip
