"""What is suggested about this machine, this installation, and words that are no commands."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fanfold as library
from fanfold.agents.command.profile_files import load_profiles
from fanfold.agents.command.transcript_events import CallEnd, judge
from fanfold.api.smoke import ADVICE
from tests.cli.suggestions.following import USAGE, Fanfold, Follow, commands
from tests.cli.suggestions.places import filled, suggested


@suggested(
    "cli/command.py: did you mean",
    "cli/command.py: fanfold --help lists",
    "cli/command.py: options of a command",
)
def test_of_words_that_are_no_commands(fanfold: Fanfold, follow: Follow) -> None:
    assert follow(fanfold("lsit")) == ["list"]
    assert follow(fanfold("quite-another-thing")) == ["--help"]
    assert follow(fanfold("--quite-another-thing")) == ["--help"]


@pytest.mark.full
@suggested(
    "api/recipes.py: other role",
    "api/system.py: fanfold agents lists",
    "api/agents.py: fanfold agents",
)
def test_of_roles_with_mistakes(fanfold: Fanfold, follow: Follow, project: Path) -> None:
    assert follow(fanfold("agents", "@9.9")) == ["agents"]
    (project / ".fanfold/agents").mkdir(parents=True)
    for number in range(20):
        (project / f".fanfold/agents/broken{number}.toml").write_text("name = \n")
    (project / "a.yaml").write_text("name: a\nsteps: [{id: a, agent: explorer, prompt: x}]\n")
    assert follow(fanfold("check", "a.yaml")) == ["agents"]
    told = fanfold("doctor").out
    assert follow(told[told.index("fanfold agents") :].splitlines()[0]) == ["agents"]


@suggested("api/authoring.py: fanfold list")
def test_of_what_cannot_be_converted(fanfold: Fanfold, follow: Follow, project: Path) -> None:
    (project / "graph.py").write_text("graph = StateGraph(dict)\n")
    refused = fanfold("convert", "graph.py")
    assert (refused.status, "graph.py is a program" in refused.err) == (USAGE, True)
    assert follow(refused, may=(0,)) == ["list"]
    (project / "crew").mkdir()
    assert "hint: name the workflow file in the folder" in fanfold("convert", "crew").err
    (project / "tasks.yaml").write_text("t: {description: Look., expected_output: words, agent: a}\n")
    for folder in (".", "crew", str(project.parent)):
        told = fanfold("convert", "tasks.yaml", "-o", folder)
        assert (
            told.err
            == f"error[usage.bad_file]: {folder} cannot be written: it is a folder\nhint: name a file in it\n"
        )


@pytest.mark.full
@suggested("api/system.py: fanfold models says")
def test_of_a_machine_without_a_model(fanfold: Fanfold, follow: Follow) -> None:
    told = fanfold("doctor").out
    assert "warning model    no model: " in told
    assert follow(told[told.index("fanfold models") :].splitlines()[0], may=(0,)) == ["models"]


@pytest.mark.full
@suggested("agents/command/transcript_events.py: fanfold doctor", "steps/programs.py: fanfold doctor")
def test_of_programs_that_do_not_work_here(follow: Follow, tmp_path: Path) -> None:
    """The words of an agent's program that broke off or reached nobody, and of a sandbox that refused."""
    profile = load_profiles(tmp_path).found["claude"]
    broken, unreached, at_gate = CallEnd(), CallEnd(), CallEnd()
    broken.exit_code = unreached.exit_code = at_gate.exit_code = 0
    unreached.stopped = at_gate.stopped = "trouble"
    at_gate.unreached = ("api.example.com:443",)
    for ending in (broken, unreached, at_gate):
        failure = judge(profile, ending)
        assert failure is not None
        assert follow(failure.hint) == ["doctor"]
    refused = filled("steps/programs.py: fanfold doctor shows what this machine can confine")
    assert follow(refused) == ["doctor"]


def test_an_agent_s_program_is_given_more_in_the_file_that_is_really_read(tmp_path: Path) -> None:
    profile = load_profiles(tmp_path / "my home").found["claude"]
    ending = CallEnd()
    ending.exit_code, ending.stderr = 1, "Incorrect API key provided"
    failure = judge(profile, ending)
    assert failure is not None
    assert str(tmp_path / "my home" / "backends" / "claude.toml") in failure.hint


@pytest.mark.full
@suggested("api/system.py: to list the runs: fanfold verify --all")
def test_of_a_database_that_was_removed(fanfold: Fanfold, agents: Path, follow: Follow) -> None:
    fanfold("run", "my agents.yaml", "--script", "ok.yaml")
    for file in (agents / ".fanfold").glob("fanfold.db*"):
        file.unlink()
    hint = next(line for line in fanfold("doctor").out.splitlines() if "restore .fanfold" in line)
    assert follow(hint, may=(1,)) == ["verify"]


@pytest.mark.full
@suggested("api/smoke.py: fanfold models", "api/smoke.py: fanfold doctor")
def test_of_a_smoke_test_that_fails(follow: Follow) -> None:
    assert follow(ADVICE["permission"]) == ["models"]
    assert follow(ADVICE["tool"]) == ["doctor"]


@pytest.mark.full
@suggested("store/database.py: fanfold verify", "api/explain.py: fanfold runs")
def test_of_logs(fanfold: Fanfold, follow: Follow, agents: Path) -> None:
    fanfold("run", "my agents.yaml", "--script", "ok.yaml")
    assert follow(filled("store/database.py: fanfold verify")) == ["verify"]
    fanfold("spawn", "explorer", "Look", "--script", "ok.yaml", "--wait")
    asked = fanfold("whatif", "hand", "--max-concurrency", "2")
    assert asked.status == USAGE
    assert follow(asked) == ["runs"]


@pytest.mark.full
@suggested("cli/completion.py: fanfold completion")
def test_of_completion(fanfold: Fanfold, follow: Follow, tmp_path: Path) -> None:
    """The lines of the help page are given to a shell whole: nothing breaks them."""
    _, _, setup = fanfold("completion", "--help").out.partition("Set up with one of these:\n")
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for line, shell in zip(setup.strip().splitlines(), ("bash", "zsh", "fish"), strict=True):
        around = {**os.environ, "HOME": str(tmp_path / shell), "PATH": programs}
        subprocess.run(["sh", "-c", line], env=around, check=True)
        (made,) = [one for one in (tmp_path / shell).rglob("*") if one.is_file()]
        assert made.read_text() == fanfold("completion", shell).out
        assert f"fanfold completion {shell} --words -- " in made.read_text()
        assert fanfold("completion", shell, "--words", "--", "ru").out.split() == ["run", "runs"]
        follow.did(made.read_text())
    follow.did(setup)


@pytest.mark.full
@suggested("first_files/recipe.yaml: Try it without any model")
def test_of_the_first_recipe(fanfold: Fanfold, follow: Follow, project: Path) -> None:
    fanfold("init")
    (recipe,) = (project / ".fanfold/workflows").glob("*/recipe.yaml")
    assert follow(recipe.read_text()) == ["run"]


@suggested("api/project.py: fanfold check", "api/result.py: fanfold inspect")
def test_of_a_program_of_ours(follow: Follow, agents: Path) -> None:
    (agents / "bad.yaml").write_text("name: bad\nsteps: [{id: a, agent: nobody-here, prompt: x}]\n")
    with pytest.raises(library.FanfoldError) as refused:
        library.run_sync("bad.yaml")
    assert follow(refused.value.hint, may=(USAGE,)) == ["check"]
    (agents / "set.yaml").write_text("name: set\nsteps: [{id: a, set: {words: '1 + 1'}}]\n")
    with pytest.raises(library.FanfoldError) as unfit:
        asyncio.run(library.run("set.yaml", output=int))
    assert follow(unfit.value.hint) == ["inspect"]
    assert commands(unfit.value.hint)[0][0] == "inspect"
