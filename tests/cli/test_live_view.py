"""The live view on a real terminal of several sizes: what a person sees, cell by cell."""

import asyncio
import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanfold.agents.entries import Preparing
from fanfold.api.run_options import Options
from fanfold.api.start import create
from fanfold.cli import progress
from fanfold.wiring import wire
from tools.screen import Screen

pytestmark = pytest.mark.full

RECIPE = """\
name: a-recipe-with-a-name-that-no-narrow-terminal-has-room-for
steps:
  - id: per_file
    agent: explorer
    on_failure: inline
    for_each: lists.range(300).map(i, "src/a/folder/with/many/others/module_" + string(i) + ".py")
    max_concurrency: 8
    prompt: Look at {{item}}
  - id: a_step_whose_name_goes_on_and_on_and_on_until_it_is_cut
    agent: worker
    write_set: [src/**]
    prompt: Change things.
limits: {max_agents: 400, max_concurrency: 9}
"""
SCRIPT = """\
default: {output: fine, delay_ms: 30}
steps:
  "per_file[3]": {fail: {class: agent, message: "this file is not there, say words that are cut"}}
  "per_file[5]": {fail: {class: agent, message: "nor is this"}}
  "per_file[40]": {output: fine, delay_ms: 600000}
  "per_file[41]": {output: fine, delay_ms: 600000}
  "per_file[42]": {output: fine, delay_ms: 600000}
  "per_file[43]": {output: fine, delay_ms: 600000}
  "per_file[44]": {output: fine, delay_ms: 600000}
  "per_file[45]": {output: fine, delay_ms: 600000}
  "per_file[46]": {output: fine, delay_ms: 600000}
  "per_file[47]": {output: fine, delay_ms: 600000}
  a_step_whose_name_goes_on_and_on_and_on_until_it_is_cut:
    output: changed
    tool_calls: [{tool: run_command, args: {argv: [sh, -c, "echo 漢字; sleep 600"]}}]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(RECIPE)
    (tmp_path / "script.yaml").write_text(SCRIPT)
    return tmp_path


@pytest.fixture(params=[(40, 20), (80, 24), (140, 40)], ids=["40", "80", "140"])
def screen(request: pytest.FixtureRequest, project: Path) -> Iterator[Screen]:
    arguments = ("run", "job.yaml", "--script", "script.yaml", "--permission", "auto")
    columns, lines = request.param
    opened = Screen(columns, lines, project, *arguments)
    yield opened
    opened.close()


def test_running_and_failed_steps_are_on_the_screen_once_at_any_width(screen: Screen) -> None:
    running = [f"per_file[{i}]" for i in range(40, 48)]
    rows = screen.until("→ run_command", *running, "per_file[3]", "this file", "per_file[5]", "nor is this")
    assert sum("a-recipe" in row for row in rows) == 1, rows
    assert sum(row.lstrip().startswith("✗ per_file[3]") for row in rows) == 1, rows
    assert rows[0].startswith("a-recipe"), rows
    assert "running" in rows[0], rows
    for i in (3, 5, *range(40, 48)):  # items of a long path are told apart by its end
        assert any(f"per_file[{i}] src/" in row and f"_{i}.py " in row for row in rows), rows


def test_a_terminal_that_becomes_narrow_shows_one_whole_frame_again(project: Path) -> None:
    screen = Screen(120, 30, project, "run", "job.yaml", "--script", "script.yaml", "--permission", "auto")
    try:
        screen.until("→ run_command")
        screen.resize(40, 30)
        rows = screen.until("→ run_command", "per_file[40]")
        assert sum("→ run_command" in row for row in rows) == 1, rows
    finally:
        screen.close()


def test_nested_steps_are_indented_at_any_depth(project: Path) -> None:
    (project / "deep.yaml").write_text(
        "name: deep\nsteps:\n  - id: go\n    repeat: {until: 'true'}\n    steps:\n"
        "      - {id: do, for_each: '[1]', steps: [{id: it, agent: explorer, prompt: x}]}\n"
    )
    (project / "script.yaml").write_text("default: {output: fine, delay_ms: 600000}\n")
    screen = Screen(80, 24, project, "run", "deep.yaml", "--script", "script.yaml")
    try:
        rows = screen.until(" it ")
        depths = [len(row) - len(row.lstrip()) for row in rows[1:6]]
        assert depths == [0, 2, 4, 6, 8], rows
    finally:
        screen.close()


def test_lines_say_what_keeps_an_agent_from_its_work_when_it_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PATIENCE_S", 0.01)
    (tmp_path / "job.yaml").write_text("name: one\nsteps: [{id: look, agent: explorer, prompt: x}]\n")
    project = wire(tmp_path, {"HOME": str(tmp_path)})
    owned = create(project, project.plan_of(tmp_path / "job.yaml"), {}, Options(script="default: ok"))
    said = io.StringIO()

    async def wait_for_a_snapshot() -> None:
        lines = progress.Lines(said, colour=False)
        lines.update([], owned.tree)
        lines.hear(owned.tree.root.id, "look", Preparing("opens its workspace"))
        lines.hear(owned.tree.root.id, "look", Preparing())
        await asyncio.sleep(0.05)
        assert said.getvalue() == ""  # it was quick
        lines.hear(owned.tree.root.id, "look", Preparing("opens its workspace"))
        await asyncio.sleep(0.05)
        lines.close()

    asyncio.run(wait_for_a_snapshot())
    owned.done()
    project.close()
    assert said.getvalue().split(" ", 1)[1] == "look opens its workspace …\n"


@pytest.mark.parametrize("columns", [40, 80])
def test_a_question_and_the_tree_never_share_a_line(tmp_path: Path, columns: int) -> None:
    """The tree is removed before a question is printed, and drawn again after the answer."""
    recipe = (
        "steps: [{id: look, agent: explorer, prompt: go}, {id: ok, approve: Ship it?, depends_on: [look]}]\n"
    )
    (tmp_path / "ask.yaml").write_text(f"name: ask\n{recipe}")
    (tmp_path / "script.yaml").write_text("default: {output: fine, delay_ms: 100}\n")
    arguments = ("run", "ask.yaml", "--script", "script.yaml", "--permission", "auto")
    screen = Screen(columns, 24, tmp_path, *arguments)
    rows = screen.until("Ship it?", ">")
    asked = next(i for i, row in enumerate(rows) if "Ship it?" in row)
    assert all("look" not in row for row in rows[asked:]), rows
    assert sum("ok: Ship it?" in row for row in rows) == 1, rows
    screen.close()


def test_lists_of_runs_fit_a_terminal_of_80_columns(tmp_path: Path) -> None:
    recipe = "name: a-recipe-with-a-long-name\nsteps: [{id: a, agent: explorer, prompt: go}]\n"
    (tmp_path / "job.yaml").write_text(recipe)
    spent = "{output: fine, usage: {input_tokens: 1234567, output_tokens: 1234567, cost_usd: 1.25}}"
    (tmp_path / "script.yaml").write_text(f"default: {spent}\n")
    first = Screen(80, 24, tmp_path, "run", "job.yaml", "--script", "script.yaml")
    first.until("completed")
    first.close()
    screen = Screen(80, 24, tmp_path, "runs")
    rows = [row for row in screen.until("a-recipe-with-a-long-name@1") if row.strip()]
    assert len(rows) == 1, "one line for the run"
    screen.close()


def test_a_cause_is_on_the_screen_once_and_answers_break_at_words(tmp_path: Path) -> None:
    recipe = (
        "steps:\n  - {id: good, agent: explorer, prompt: go}\n  - {id: bad, agent: explorer, prompt: go}\n"
    )
    (tmp_path / "job.yaml").write_text(f'name: job\noutput: "{{{{steps.good.output}}}}"\n{recipe}')
    answer = "a long answer whose words are never cut at the end of a row, however narrow the terminal may be"
    failure = "{fail: {class: agent, message: the disk is full}}"
    (tmp_path / "script.yaml").write_text(f"steps: {{good: {answer!r}, bad: {failure}}}\n")
    screen = Screen(80, 24, tmp_path, "run", "job.yaml", "--script", "script.yaml")
    rows = screen.until("fanfold retry")
    assert sum("the disk is full" in row for row in rows) == 1, rows
    [first] = [row.rstrip() for row in rows if row.startswith("a long answer")]
    assert answer[len(first)] == " ", rows
    screen.close()
    screen = Screen(80, 24, tmp_path, "inspect", "last")
    rows = screen.until("fanfold retry")
    assert [row.strip() for row in rows if "the disk is full" in row] == [
        "because   bad: the disk is full [script.agent]"
    ]
    facts = [
        row.split()[0] for row in rows if row.startswith("  ") and row.split()[0] in ("because", "created")
    ]
    assert facts == ["because", "created"], "the cause comes first"
    screen.close()


def test_the_warnings_of_a_dry_run_break_at_words(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        "name: job\nsteps:\n  - {id: list, agent: explorer, prompt: x, output_schema: {type: object}}\n"
        '  - {id: every_file, agent: explorer, for_each: steps.list.output.files, prompt: "{{item}}"}\n'
    )
    screen = Screen(80, 40, tmp_path, "run", "job.yaml", "--dry-run")
    rows = [row.rstrip() for row in screen.until("are shown with one item")]
    [at] = [at for at, row in enumerate(rows) if row.startswith("warning: lists that are known")]
    assert rows[at].endswith("are shown with one item:"), rows
    assert rows[at + 1] == "  every_file"
    screen.close()
