"""`fanfold` without a command says what to do next, in commands that work as they are printed."""

import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.cli.suggestions.following import Fanfold, Follow, commands
from tests.cli.suggestions.places import filled, suggested
from tests.work import PATIENCE_S

Told: TypeAlias = Callable[[], list[list[str]]]
ANSWERS = "default: ok\n"


@pytest.fixture
def told(fanfold: Fanfold) -> Told:
    """The commands that are suggested now."""

    def ask() -> list[list[str]]:
        said = fanfold("--json")
        assert said.status == 0, said.err
        return [shlex.split(one["command"])[1:] for one in said.json()]

    return ask


@suggested(
    "cli/system.py: fanfold init",
    "cli/system.py: fanfold run {} -i topic",
    "cli/system.py: fanfold --help",
)
def test_an_empty_folder_gets_a_hint_how_to_start_and_nothing_is_written(
    fanfold: Fanfold, told: Told, follow: Follow, project: Path
) -> None:
    said = fanfold().out
    assert "fanfold init" in said
    assert "fanfold --help" in said
    assert list(project.iterdir()) == []
    assert follow(said, may=(0,)) == ["init", "run", "--help"]


@pytest.mark.full
@suggested(
    "cli/system.py: fanfold {} {}",
    "cli/system.py: fanfold explain {}",
    "cli/system.py: fanfold show",
    "cli/system.py: fanfold check",
)
def test_waiting_failed_and_finished_runs_each_suggest_their_command(
    fanfold: Fanfold, told: Told, follow: Follow, project: Path
) -> None:
    (project / "answers.yaml").write_text(ANSWERS)
    gate = 'name: gate\nsteps: [{id: ok, approve: "Go on?"}]\n'
    fail = 'name: fail\nsteps: [{id: no, run: ["false"]}]\n'
    fine = "name: fine\nsteps: [{id: yes, agent: explorer, prompt: x}]\n"
    for name, text in (("gate", gate), ("fail", fail), ("fine", fine)):
        (project / f"{name}.yaml").write_text(text)
        fanfold("run", f"{name}.yaml", "--script", "answers.yaml", "--yes")
    verbs = {arguments[0]: arguments for arguments in told()}
    assert set(verbs) >= {"approve", "explain", "inspect", "show", "check"}
    assert told()[0][0] == "approve"  # what waits for a person comes first
    said, failed = fanfold(), verbs["explain"][1]
    follow(said, may=(0,))
    follow(filled("cli/system.py: fanfold explain", failed))


@pytest.mark.full
def test_failures_followed_by_success_and_older_successes_are_not_notified(
    fanfold: Fanfold, told: Told, project: Path
) -> None:
    (project / "answers.yaml").write_text(ANSWERS)
    for steps in ('{id: no, run: ["false"]}', '{id: no, run: ["true"]}'):
        (project / "mend.yaml").write_text(f"name: mend\nsteps: [{steps}]\n")
        fanfold("run", "mend.yaml", "--yes")
    (project / "other.yaml").write_text("name: other\nsteps: [{id: yes, run: [echo, x]}]\n")
    fanfold("run", "other.yaml", "--yes")
    last = fanfold("runs", "--json").json()[0]["run_id"]
    assert [words for words in told() if words[0] not in ("show", "check")] == [["inspect", last]]


def test_the_project_s_own_recipes_are_shown_first(fanfold: Fanfold, told: Told) -> None:
    assert fanfold("init").status == 0
    (show,) = told()
    assert show[0] == "show"
    assert fanfold(*show).status == 0


def test_a_run_that_reached_a_limit_names_the_option_that_raises_it(
    fanfold: Fanfold, told: Told, project: Path
) -> None:
    (project / "answers.yaml").write_text(ANSWERS)
    two = [f"{{id: {name}, agent: explorer, prompt: x}}" for name in "ab"]
    (project / "two.yaml").write_text(f"name: two\nsteps: [{', '.join(two)}]\n")
    assert fanfold("run", "two.yaml", "--script", "answers.yaml", "--max-agents", "1").status == 5
    resume, show = told()
    assert (resume[0], resume[2:]) == ("resume", ["--max-agents", "2"])
    assert f"continue it: fanfold {' '.join(resume)}" in fanfold("inspect", "last").out
    assert show == ["show", "two.yaml"]  # it has a recipe: it need not begin with one
    assert fanfold(*resume).status == 0
    assert "go on with it" not in fanfold("inspect", "last").out


def test_a_file_whose_name_acts_on_terminals_is_not_suggested(fanfold: Fanfold, project: Path) -> None:
    (project / "evil\x1b[31m.yaml").write_text("name: evil\nsteps: [{id: a, agent: explorer, prompt: x}]\n")
    said = fanfold().out
    assert "\x1b" not in said
    assert "fanfold init" in said


@pytest.mark.full
@suggested(
    "cli/system.py: fanfold ps --all",
    "steps/run_config.py: fanfold chat --resume {}",
)
def test_open_runs_are_listed_as_open_after_those_that_need_a_user(
    fanfold: Fanfold, told: Told, follow: Follow, project: Path
) -> None:
    (project / "answers.yaml").write_text(ANSWERS)
    (project / "gate.yaml").write_text('name: gate\nsteps: [{id: ok, approve: "Go on?"}]\n')
    assert fanfold("run", "gate.yaml", "--script", "answers.yaml", "--yes").status == 3
    assert fanfold("spawn", "explorer", "Look", "--wait", "--script", "answers.yaml").status == 0
    assert fanfold("chat", "Hello", "--script", "answers.yaml").status == 0
    said = fanfold().out
    assert "hand, the run of subagents that are spawned by hand, is open; nothing runs in it" in said
    assert ", a chat, was left" in said
    assert [words[0] for words in told()][:3] == ["approve", "chat", "ps"]
    for words in commands(said):
        more = ["Go on"] if words[0] == "chat" else []  # nobody is at a terminal to say something
        assert fanfold(*words, *more).status == 0
    follow.did(said)


@pytest.mark.full
@suggested("steps/run_config.py: fanfold resume {}")
def test_a_question_that_time_has_answered_meanwhile_is_not_to_be_answered(
    fanfold: Fanfold, told: Told, follow: Follow, project: Path
) -> None:
    (project / "q.yaml").write_text(
        'name: q\nsteps: [{id: ask, ask: "Which?", timeout: 3s, default: blue}, {id: nap, wait: 1ms}]\n'
    )
    assert fanfold("run", "q.yaml", "--yes").status == 3
    run = fanfold("runs", "--json").json()[0]["run_id"]
    assert told()[0] == ["answer", run, "ask", "…"]
    deadline = time.monotonic() + PATIENCE_S
    while told()[0] != ["resume", run]:
        assert time.monotonic() < deadline, "the time of the question is over"
    follow(fanfold("inspect", run), may=(0,))
    assert fanfold("inspect", run, "--json").json()["steps"]["ask"]["output"] == "blue"


@suggested("api/suites.py: record a run first: fanfold record last")
def test_before_the_first_recording(fanfold: Fanfold, agents: Path, follow: Follow) -> None:
    fanfold("run", "my agents.yaml", "--script", "ok.yaml")
    assert follow(fanfold("test")) == ["record"]
    assert fanfold("test").status == 0


@suggested("cli/cassettes.py: replay it: fanfold test")
def test_after_a_recording(fanfold: Fanfold, agents: Path, follow: Follow) -> None:
    fanfold("run", "my agents.yaml", "--script", "ok.yaml")
    assert follow(fanfold("record", "last", "-o", "my tests/a case.yaml")) == ["test"]
