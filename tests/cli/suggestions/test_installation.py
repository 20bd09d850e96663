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
from fanfold.agents.command.verdict import CallEnd, judge
from fanfold.runtime.operations.system.smoke_scenarios import ADVICE
from tests.cli.suggestions.following import USAGE, Fanfold, Follow, commands
from tests.cli.suggestions.places import filled, suggested


@suggested(
    "cli/failures.py: did you mean",
    "cli/failures.py: fanfold --help lists",
    "failures.py: options of a command",
)
def test_of_words_that_are_no_commands(fanfold: Fanfold, follow: Follow) -> None:
    assert follow(fanfold("lsit")) == ["list"]
    assert follow(fanfold("quite-another-thing")) == ["--help"]
    assert follow(fanfold("--quite-another-thing")) == ["--help"]


@suggested(
    "recipes/checked.py: other role",
    "system/doctor.py: fanfold agents lists",
    "operations/agents/roles.py: fanfold agents",
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


@suggested("recipes/convert.py: fanfold list")
def test_of_what_cannot_be_converted(fanfold: Fanfold, follow: Follow, project: Path) -> None:
    (project / "graph.py").write_text("graph = StateGraph(dict)\n")
    refused = fanfold("convert", "graph.py")
    assert (refused.status, "graph.py is a program" in refused.err) == (USAGE, True)
    assert follow(refused, may=(0,)) == ["list"]
    (project / "crew").mkdir()
    assert "hint: name the file of the workflow in it" in fanfold("convert", "crew").err
    (project / "tasks.yaml").write_text("t: {description: Look., expected_output: words, agent: a}\n")
    for folder in (".", "crew", str(project.parent)):
        told = fanfold("convert", "tasks.yaml", "-o", folder)
        assert (
            told.err
            == f"error[usage.bad_file]: {folder} cannot be written: it is a folder\nhint: name a file in it\n"
        )


@suggested("system/doctor.py: fanfold models says")
def test_of_a_machine_without_a_model(fanfold: Fanfold, follow: Follow) -> None:
    told = fanfold("doctor").out
    assert "warning model    no model: " in told
    assert follow(told[told.index("fanfold models") :].splitlines()[0], may=(0,)) == ["models"]


@suggested("agents/command/verdict.py: fanfold doctor", "steps/programs/sandboxed.py: fanfold doctor")
def test_of_programs_that_do_not_work_here(follow: Follow, tmp_path: Path) -> None:
    """The words of an agent's program that broke off or reached nobody, and of a sandbox that refused."""
    profile = load_profiles(tmp_path).found["claude"]
    broken, unreached = CallEnd(), CallEnd()
    broken.exit_code = unreached.exit_code = 0
    unreached.stopped = "trouble"
    for ending in (broken, unreached):
        failure = judge(profile, ending)
        assert failure is not None
        assert follow(failure.hint) == ["doctor"]
    for part in ("says more", "says what this machine gives"):
        assert follow(filled(f"steps/programs/sandboxed.py: fanfold doctor {part}")) == ["doctor"]


def test_an_agent_s_program_is_given_more_in_the_file_that_is_really_read(tmp_path: Path) -> None:
    profile = load_profiles(tmp_path / "my home").found["claude"]
    ending = CallEnd()
    ending.exit_code, ending.stderr = 1, "Incorrect API key provided"
    failure = judge(profile, ending)
    assert failure is not None
    assert str(tmp_path / "my home" / "backends" / "claude.toml") in failure.hint


@suggested("system/smoke_scenarios.py: fanfold models", "system/smoke_scenarios.py: fanfold doctor")
def test_of_a_smoke_test_that_fails(follow: Follow) -> None:
    assert follow(ADVICE["permission"]) == ["models"]
    assert follow(ADVICE["tool"]) == ["doctor"]


@suggested("database/faults.py: fanfold verify", "history/whatif.py: fanfold runs")
def test_of_logs(fanfold: Fanfold, follow: Follow, agents: Path) -> None:
    fanfold("run", "my agents.yaml", "--script", "ok.yaml")
    assert follow(filled("database/faults.py: fanfold verify")) == ["verify"]
    fanfold("spawn", "explorer", "Look", "--script", "ok.yaml", "--wait")
    asked = fanfold("whatif", "hand", "--max-concurrency", "2")
    assert asked.status == USAGE
    assert follow(asked) == ["runs"]


@suggested("cli/system/completion.py: fanfold completion")
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


@suggested("operations/system/init.py: Try it without any model")
def test_of_the_first_recipe(fanfold: Fanfold, follow: Follow, project: Path) -> None:
    fanfold("init")
    (recipe,) = (project / ".fanfold/workflows").glob("*/recipe.yaml")
    assert follow(recipe.read_text()) == ["run"]


@suggested("operations/project.py: fanfold check", "runs/typed_output.py: fanfold inspect")
def test_of_a_program_of_ours(follow: Follow, agents: Path) -> None:
    (agents / "bad.yaml").write_text("name: bad\nsteps: [{id: a, agent: nobody-here, prompt: x}]\n")
    with pytest.raises(library.FanfoldError) as refused:
        library.run_sync("bad.yaml")
    assert follow(refused.value.hint, may=(USAGE,)) == ["check"]
    options = library.Options(script="default: words")
    with pytest.raises(library.FanfoldError) as unfit:
        asyncio.run(library.run("my agents.yaml", options=options, output=int))
    assert follow(unfit.value.hint) == ["inspect"]
    assert commands(unfit.value.hint)[0][0] == "inspect"
