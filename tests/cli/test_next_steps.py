"""`fanfold` without a command says what to do next, in commands that work as they are printed."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Result

ANSWERS = "default: ok\n"


@pytest.fixture
def suggested(fanfold: Callable[..., Result]) -> Callable[[], list[list[str]]]:
    """The commands that are suggested now."""

    def ask() -> list[list[str]]:
        told = fanfold("--json")
        assert told.status == 0, told.err
        return [shlex.split(one["command"])[1:] for one in told.json()]

    return ask


def test_an_empty_folder_is_told_how_to_begin_and_nothing_is_written(
    fanfold: Callable[..., Result], suggested: Callable[[], list[list[str]]], project: Path
) -> None:
    said = fanfold().out
    assert "fanfold init" in said
    assert "fanfold --help" in said
    assert list(project.iterdir()) == []
    for arguments in suggested():
        assert fanfold(*arguments).status == 0, arguments


def test_a_run_that_waits_one_that_failed_and_one_that_is_over_each_have_their_command(
    fanfold: Callable[..., Result], suggested: Callable[[], list[list[str]]], project: Path
) -> None:
    (project / "answers.yaml").write_text(ANSWERS)
    gate = 'name: gate\nsteps: [{id: ok, approve: "Go on?"}]\n'
    fail = 'name: fail\nsteps: [{id: no, run: ["false"]}]\n'
    fine = "name: fine\nsteps: [{id: yes, agent: explorer, prompt: x}]\n"
    for name, text in (("gate", gate), ("fail", fail), ("fine", fine)):
        (project / f"{name}.yaml").write_text(text)
        fanfold("run", f"{name}.yaml", "--script", "answers.yaml", "--yes")
    verbs = {arguments[0]: arguments for arguments in suggested()}
    assert set(verbs) >= {"approve", "explain", "inspect", "show", "check"}
    assert suggested()[0][0] == "approve"  # what waits for a person comes first
    for arguments in suggested():
        assert fanfold(*arguments).status == 0, arguments


def test_the_project_s_own_recipes_are_shown_first(
    fanfold: Callable[..., Result], suggested: Callable[[], list[list[str]]]
) -> None:
    assert fanfold("init").status == 0
    (show,) = suggested()
    assert show[0] == "show"
    assert fanfold(*show).status == 0


def test_a_run_that_reached_a_limit_is_told_with_the_flag_that_lifts_it(
    fanfold: Callable[..., Result], suggested: Callable[[], list[list[str]]], project: Path
) -> None:
    (project / "answers.yaml").write_text(ANSWERS)
    two = [f"{{id: {name}, agent: explorer, prompt: x}}" for name in "ab"]
    (project / "two.yaml").write_text(f"name: two\nsteps: [{', '.join(two)}]\n")
    assert fanfold("run", "two.yaml", "--script", "answers.yaml", "--max-agents", "1").status == 5
    resume, show = suggested()
    assert (resume[0], resume[2:]) == ("resume", ["--max-agents", "2"])
    assert f"go on with it: fanfold {' '.join(resume)}" in fanfold("inspect", "last").out
    assert show == ["show", "two.yaml"]  # it has a recipe: it need not begin with one
    assert fanfold(*resume).status == 0
    assert "go on with it" not in fanfold("inspect", "last").out


def test_a_file_whose_name_acts_on_terminals_is_not_suggested(
    fanfold: Callable[..., Result], project: Path
) -> None:
    (project / "evil\x1b[31m.yaml").write_text("name: evil\nsteps: [{id: a, agent: explorer, prompt: x}]\n")
    told = fanfold().out
    assert "\x1b" not in told
    assert "fanfold init" in told
