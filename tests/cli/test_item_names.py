"""Items have names wherever a person meets them, and lines tell what happened and no more."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Result

pytestmark = pytest.mark.full

PIPE = """\
name: pipe
inputs: {files: {type: array, default: [a.txt, b.txt, c.txt]}}
steps:
  - id: file
    for_each: inputs.files
    steps:
      - {id: read, agent: explorer, prompt: "What is in {{item}}?"}
      - {id: port, agent: worker, depends_on: read, write_set: ["{{item}}"], prompt: "Port it."}
      - {id: doubt, agent: critic, depends_on: port, prompt: "What is wrong?"}
output: "{{steps.file.output}}"
"""
TIRED = """\
default: fine
steps:
  "file[1]/port": {output: ported, writes: {b.txt: "new\\n"}}
  "file[1]/doubt": {fail: {class: agent, message: no idea}}
"""


@pytest.fixture
def failed(fanfold: Callable[..., Result], project: Path) -> Result:
    (project / "pipe.yaml").write_text(PIPE)
    (project / "tired.yaml").write_text(TIRED)
    (project / "fine.yaml").write_text("default: fine\n")
    result = fanfold("run", "pipe.yaml", "--script", "tired.yaml", "--yes")
    assert result.status == 1
    return result


def test_lines_summary_report_explanation_and_patch_name_the_item_of_a_step_inside_it(
    failed: Result, fanfold: Callable[..., Result], project: Path
) -> None:
    assert "file[1]/doubt b.txt started (critic)" in failed.err
    assert "file[1]/doubt b.txt failed: no idea [script.agent]" in failed.err
    assert "file[1]/doubt b.txt failed: no idea" in fanfold("explain", "last").out
    assert "# file[1]/port b.txt: 1 file merged" in fanfold("diff", "last").out
    (report,) = project.glob(".fanfold/runs/*/report.md")
    assert "- file[1]/doubt b.txt (critic): failed" in report.read_text()
    inside = fanfold("inspect", "last", "file[1]/doubt", "--json").json()
    assert inside["item"] == "b.txt"
    item = fanfold("inspect", "last", "file[1]")
    assert item.out.startswith("file[1] b.txt  group  failed\n")
    assert "holds     file[1]/read, file[1]/port, file[1]/doubt\n" in item.out


def test_a_retry_lists_repeated_steps_and_not_reused_ones(
    failed: Result, fanfold: Callable[..., Result]
) -> None:
    told = fanfold("retry", "last", "--script", "fine.yaml").err
    lines = [line.partition(" ")[2] for line in told.splitlines() if ":" in line[:9]]
    assert [line for line in lines if line.startswith("file[")] == [
        "file[1]/doubt b.txt started (critic)",
        *(line for line in lines if line.startswith("file[1]/doubt b.txt completed")),
        *(line for line in lines if line.startswith("file[1] b.txt completed")),
    ]


def test_many_paths_of_one_map_are_reported_together(
    failed: Result, fanfold: Callable[..., Result], project: Path
) -> None:
    many = ",".join(f'"{name}.txt"' for name in "abcdefgh")
    fanfold("run", "pipe.yaml", "--script", "tired.yaml", "--yes", "-i", f"files=[{many}]")
    assert "reuses     file (23 steps)\n" in fanfold("retry", "last", "--dry-run").err


def test_only_items_in_which_something_runs_are_counted_as_running(
    fanfold: Callable[..., Result], project: Path
) -> None:
    (project / "pipe.yaml").write_text(PIPE)
    (project / "fine.yaml").write_text("default: fine\n")
    paused = fanfold("run", "pipe.yaml", "--script", "fine.yaml", "--yes", "--max-agents", "4")
    assert paused.status == 5
    assert not [line for line in paused.err.splitlines() if line.endswith("a.txt started")]
    rows = fanfold("inspect", "last").out.partition("Steps\n")[2].splitlines()
    assert [row for row in rows if "file[2] c.txt" in row]
    assert not [row for row in rows if "running" in row]


PROGRAM = """\
name: program
steps:
  - id: fix
    repeat: {until: steps.test.status == "completed", max_iterations: 3}
    steps:
      - {id: edit, agent: worker, write_set: [n.txt], prompt: "{{feedback}}"}
      - {id: test, shell: "echo first; cat long.txt n.txt; grep -q 2 n.txt", depends_on: edit}
  - {id: last, depends_on: fix, shell: "cat long.txt >&2; exit 3"}
  - {id: silent, depends_on: fix, shell: "exit 4"}
"""


def test_a_failed_program_shows_one_line_its_last_lines_in_details_and_all_on_request(
    fanfold: Callable[..., Result], project: Path
) -> None:
    (project / "program.yaml").write_text(PROGRAM)
    (project / "long.txt").write_text("".join(f"line {n} of what it says\n" for n in range(20)))
    script = 'steps:\n  "fix#1/edit": {output: a, writes: {n.txt: "1\\n"}}\n'
    script += '  "fix#*/edit": {output: b, writes: {n.txt: "2\\n"}}\n'
    (project / "agents.yaml").write_text(script)
    told = fanfold("run", "program.yaml", "--script", "agents.yaml", "--yes").err
    assert "fix#1/test failed" in told
    assert "sh ended with status 1: … 1\n" in told
    assert "fix#1 did not pass" not in told  # it was told that it failed
    summary = told.partition("\npartial ")[2]
    assert "  last failed: sh ended with status 3: … line 19 of what it says [command.failed]\n" in summary
    assert "  silent failed: sh ended with status 4 [command.failed]\n" in summary
    assert "    │ line 18 of what it says\n    │ line 19 of what it says\n" in summary
    assert max(map(len, summary.splitlines())) < 120
    for short in (fanfold("explain", "last").out, fanfold("inspect", "last").out.partition("Steps\n")[0]):
        assert "sh ended with status 3: … line 19 of what it says" in short
        assert "line 18" not in short
    whole = fanfold("inspect", "last", "last").out
    assert "\n            line 1 of what it says\n" in whole


def test_a_round_is_reported_once_with_its_outcome(fanfold, project):
    (project / "loop.yaml").write_text(
        "name: loop\nsteps:\n"
        "  - id: fix\n    repeat: {until: \"steps.test.output == 'good'\", max_iterations: 3}\n"
        "    steps: [{id: test, agent: explorer, prompt: x}]\n"
        "  - {id: say, agent: explorer, prompt: x, repeat: {until: \"output == 'good'\"}, depends_on: fix}\n"
    )
    (project / "s.yaml").write_text("{default: good, steps: {'fix#1/test': bad, 'say#1': bad}}\n")
    told = fanfold("run", "loop.yaml", "--script", "s.yaml")
    assert told.status == 0
    ends = [line.split()[1:-2] for line in told.err.splitlines() if "#" in line and "started" not in line]
    assert [" ".join(words) for words in ends] == [
        "fix#1/test completed", "fix#1 did not pass", "fix#2/test completed", "fix#2 completed",
        "say#1 did not pass", "say#2 completed",
    ]  # fmt: skip


def test_a_step_that_calls_a_workflow_fails_with_the_last_line_of_its_program(
    fanfold: Callable[..., Result], project: Path
) -> None:
    (project / "inner.yaml").write_text(
        "name: inner\nsteps: [{id: bad, shell: 'seq -f line-%g 90; exit 3'}]\n"
    )
    for name, called in (("middle", "inner"), ("outer", "middle")):
        (project / f"{name}.yaml").write_text(
            f"name: {name}\nsteps: [{{id: sub, workflow: ./{called}.yaml}}]\n"
        )
    told = fanfold("run", "outer.yaml", "--yes").err
    for text in (told, fanfold("inspect", "last").out, fanfold("explain", "last").out):
        lines = [line for line in text.splitlines() if "child run" in line]
        assert lines
        assert [line for line in lines if "ended with status 3: … line-" not in line] == []


GRUMBLES = """\
name: grumbles
steps:
  - id: fix
    repeat: {until: steps.test.status == "completed", max_iterations: 2}
    steps:
      - {id: edit, agent: worker, write_set: [n.txt], prompt: "Mend this: {{feedback}}"}
      - id: test
        depends_on: edit
        shell: "seq -f 'test_%g failed' 500; echo an old flag >&2; grep -q 2 n.txt"
"""


def test_a_program_that_reports_on_one_stream_and_grumbles_on_the_other_is_heard_on_both(
    fanfold: Callable[..., Result], project: Path
) -> None:
    (project / "grumbles.yaml").write_text(GRUMBLES)
    script = 'steps:\n  "fix#1/edit": {output: a, writes: {n.txt: "1\\n"}}\n'
    script += '  "fix#2/edit": {output: b, writes: {n.txt: "2\\n"}}\n'
    (project / "agents.yaml").write_text(script)
    assert fanfold("run", "grumbles.yaml", "--script", "agents.yaml", "--yes").status == 0
    told = fanfold("transcript", "last", "fix#2/edit").out
    for words in ("test_1 failed", "characters left out", "test_500 failed\n> an old flag"):
        assert words in told
    assert "test_100 failed" not in told


def test_a_timed_out_step_names_its_time_limit(fanfold: Callable[..., Result], project: Path) -> None:
    (project / "t.yaml").write_text("name: t\nsteps: [{id: t, agent: explorer, prompt: x, timeout: 100ms}]\n")
    (project / "late.yaml").write_text("default: {output: late, delay_ms: 3600000}\n")
    late = fanfold("run", "t.yaml", "--script", "late.yaml")
    assert "  t timed out: its timeout is 0.1 s [step.timeout]\n" in late.err
