"""`feedback` in a loop: null before there is any, with all its fields, in templates and in expressions."""

from __future__ import annotations

from pathlib import Path

from tests.runtime.running import run

RECIPE = """\
name: rounds
steps:
  - id: round
    repeat: {until: steps.judge.output.ok, max_iterations: 3}
    steps:
      - id: work
        agent: explorer
        when: feedback == null || feedback.why != "never"
        prompt: "Do it.{{feedback.why}}{{feedback.where.file}}"
      - id: seen
        set:
          why: feedback.why
          deep: feedback.where.file
          chosen: "feedback == null ? 'first' : feedback.why"
          asked: "has(feedback.why) ? feedback.why : 'nobody said'"
      - id: judge
        depends_on: [work, seen]
        agent: explorer
        prompt: Judge it.
        inputs: {before: "{{feedback.why}}"}
        output_schema: {type: object}
    output: {seen: steps.seen.output, ok: steps.judge.output.ok, why: steps.judge.output.why,
             where: steps.judge.output.where}
"""


def test_every_reference_to_feedback_is_null_in_the_first_round(tmp_path: Path) -> None:
    script = """\
default: done
steps:
  round#1/judge: {output: {ok: false, why: too short, where: {file: a.txt}}}
  round#2/judge: {output: {ok: true, why: fine, where: {file: a.txt}}}
"""
    result = run(tmp_path, RECIPE, script)
    assert result.status == "completed", result.error
    assert result.steps["round#1/seen"].output == {
        "why": None,
        "deep": None,
        "chosen": "first",
        "asked": "nobody said",
    }
    assert result.steps["round#2/seen"].output == {
        "why": "too short",
        "deep": "a.txt",
        "chosen": "too short",
        "asked": "too short",
    }


def test_a_round_that_only_failed_leaves_words_and_no_fields(tmp_path: Path) -> None:
    script = """\
default: done
steps:
  round#1/judge: {fail: {class: agent, message: no idea}}
  round#2/judge: {output: {ok: true, why: fine, where: {file: a.txt}}}
"""
    result = run(tmp_path, RECIPE, script)
    assert result.status == "completed", result.error
    seen = result.steps["round#2/seen"].output
    assert seen == {"why": None, "deep": None, "chosen": None, "asked": "nobody said"}
