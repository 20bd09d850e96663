"""What a phase hands on: to those that depend on it, wherever they stand, also when nobody sums it up."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest

from fanfold.api.archives import verify
from fanfold.api.report import executive_report
from fanfold.api.result import Result
from fanfold.wiring import wire
from tests.runtime.running import run

pytestmark = pytest.mark.full

PHASES = {
    "first": "{id: first, depends_on: [], tasks: [{id: t, agent: explorer, prompt: x}]}",
    "second": "{id: second, depends_on: [first], tasks: [{id: t, agent: explorer, prompt: x}]}",
    "aside": "{id: aside, depends_on: [], tasks: [{id: t, agent: explorer, prompt: x}]}",
    "last": '{id: last, depends_on: [second], tasks: [{id: t, run: [echo, "{{digest}}"]}]}',
    "alone": '{id: alone, depends_on: [], tasks: [{id: t, run: [echo, "{{digest}}"]}]}',
}


def digests(folder: Path, order: tuple[str, ...], slow: str = "") -> tuple[str, str]:
    recipe = "name: order\nphases:\n" + "".join(f"  - {PHASES[name]}\n" for name in order)
    delay = f'steps: {{"{slow}#1/t": {{output: late, delay_ms: 60}}}}' if slow else ""
    result = run(folder, recipe, f'default: "{{{{step}}}}"\n{delay}')
    assert result.status == "completed"
    return result.steps["last#1/t"].output, result.steps["alone#1/t"].output


@pytest.mark.parametrize("order", list(permutations(PHASES))[::17])
def test_a_digest_is_what_the_phase_depends_on_in_whatever_order_phases_are_declared(
    tmp_path: Path, order: tuple[str, ...]
):
    assert digests(tmp_path, order) == ("first: first/fold\nsecond: second/fold", "")


@pytest.mark.parametrize("slow", ["first", "aside"])
def test_a_digest_does_not_depend_on_who_was_quicker(tmp_path: Path, slow: str):
    assert digests(tmp_path, tuple(PHASES), slow) == ("first: first/fold\nsecond: second/fold", "")


def test_a_phase_that_was_left_out_says_nothing_and_one_that_failed_says_so(tmp_path: Path):
    recipe = """
name: gaps
on_failure: inline
phases:
  - {id: skipped, when: "false", tasks: [{id: t, agent: explorer, prompt: x}]}
  - {id: broken, tasks: [{id: t, agent: explorer, prompt: x, on_failure: skip}]}
  - {id: use, tasks: [{id: t, run: [echo, "{{digest}}"]}]}
"""
    result = run(
        tmp_path, recipe, 'steps: {"broken#1/t": {fail: {class: agent, message: boom}}}\ndefault: ok'
    )
    told = result.steps["use#1/t"].output
    assert told.startswith("broken: [broken failed")
    assert "skipped" not in told
    assert "boom" in told


FOLDED = """
name: folded
phases:
  - {id: work, tasks: [{id: a, agent: explorer, prompt: x}, {id: b, agent: explorer, prompt: y}]}
  - {id: use, tasks: [{id: t, run: [echo, "{{digest}}"]}]}
"""


def folded(folder: Path, fold: str) -> Result:
    script = f'steps: {{"work/fold": {fold}, "work#1/a": found it, "work#1/b": mended it}}\ndefault: fine'
    return run(folder, FOLDED, script)


@pytest.mark.parametrize(
    "fold",
    [
        "{fail: {class: agent, message: no words}}",
        "{fail: {class: transport, message: no words}}",
        "{fail: {class: permission, message: no words}}",
    ],
)
def test_a_summarizer_that_fails_leaves_an_extract_and_a_warning(tmp_path: Path, fold: str):
    result = folded(tmp_path, fold)
    assert result.status == "completed"
    fold_step = result.steps["work/fold"]
    assert (fold_step.status, fold_step.error) == ("completed", None)
    assert fold_step.warning is not None
    assert (fold_step.warning.code, fold_step.warning.step) == ("fold.extract", "work/fold")
    assert "no words" in fold_step.warning.message
    for text in ("Extract", "a: found it", "b: mended it"):
        assert text in result.steps["work"].output["summary"]
        assert text in result.steps["use#1/t"].output
    project = wire(tmp_path)
    tree = project.view(result.run_id)
    assert "## Warnings" in executive_report(tree)
    assert not verify(project.store, result.run_id).violations
    project.close()


def test_a_run_pauses_where_the_account_of_the_summarizer_is_used_up(tmp_path: Path):
    result = folded(tmp_path, "{fail: {class: quota, message: no credit}}")
    assert (result.status, result.steps["work/fold"].status) == ("paused", "waiting")
    assert result.steps["work#1/a"].output == "found it"


def test_a_summarizer_is_asked_again_where_that_may_help(tmp_path: Path):
    result = folded(tmp_path, "[{fail: {class: transport, message: no words}}, summed up]")
    fold_step = result.steps["work/fold"]
    assert (result.steps["work"].output["summary"], fold_step.attempts) == ("summed up", 2)
    assert fold_step.warning is None
