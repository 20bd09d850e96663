"""Completion offers what the commands declare and what the project holds, and never an error."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fanfold.cli.main import EVERYDAY, NOUNS
from tools.screen import Screen


class ZshScreen(Screen):
    """A shell of its own at a terminal."""

    program = ("zsh", "-i")


def offered(fanfold, *typed: str) -> list[str]:
    result = fanfold("completion", "bash", "--words", "--", *typed)
    assert (result.status, result.err) == (0, "")
    return str(result.out).splitlines()


@pytest.mark.full
def test_commands_options_choices_and_names_are_offered(fanfold, project):
    (project / "one.yaml").write_text(
        "name: one\ninputs: {topic: {}}\nsteps: [{id: a, run: [echo, hello]}]\n"
    )
    (project / "broken.yaml").write_text("name: broken\nsteps: []\n")
    assert fanfold("run", "one.yaml", "--yes").status == 0
    run = fanfold("runs", "--json").json()[0]["run_id"]
    assert offered(fanfold) == [*" ".join(EVERYDAY.values()).split(), *NOUNS]
    assert offered(fanfold, "agent", "") == ["roles", "list", "spawn", "wait", "send", "close"]
    assert "explorer" in offered(fanfold, "agent", "spawn", "")
    assert offered(fanfold, "history", "fork", run, "--from", "") == ["a"]
    assert offered(fanfold, "tr") == ["transcript"]
    assert offered(fanfold, "run", "--budget") == ["--budget-usd", "--budget-tokens"]
    assert offered(fanfold, "run", "--permission", "") == ["read_only", "ask", "auto"]
    assert offered(fanfold, "completion", "") == ["bash", "zsh", "fish"]
    assert "research-and-brief" in offered(fanfold, "run", "res")
    assert offered(fanfold, "inspect", "") == ["last", run]
    assert offered(fanfold, "inspect", run, "") == offered(fanfold, "fork", run, "--from", "") == ["a"]
    assert offered(fanfold, "inspect", "--steps", run, "a") == ["a"]
    assert offered(fanfold, "inspect", run, "a", "") == []
    assert offered(fanfold, "transcript", "last", "") == ["a"]
    assert "one.yaml" in offered(fanfold, "run", "")
    assert offered(fanfold, "run", "one.yaml", "--input", "") == ["topic="]
    assert offered(fanfold, "run", "broken.yaml", "-i", "") == []
    assert offered(fanfold, "run", "--script", "") == []  # a file: for the shell to complete
    assert "explorer" in offered(fanfold, "spawn", "")
    assert offered(fanfold, "nonsense", "") == []


@pytest.mark.parametrize(
    "name",
    ["it$(touch ran)", "it`touch ran`", "it;touch ran;", "it'$(touch ran)'", 'it"', "it\n$(touch ran)",
     "it|cat", "it two", "it\x1b[31m", "it&", "it>x", "it\\"],
)  # fmt: skip
def test_no_name_is_offered_that_a_shell_would_act_on(fanfold, project, name: str):
    """Bash puts a word onto the command line as it is, and the next key may be Enter."""
    recipe = "name: x\nsteps: [{id: a, run: [echo, hello]}]\n"
    (project / ".fanfold/workflows").mkdir(parents=True)
    for file in (f"{name}.yaml", f".fanfold/workflows/{name}.yaml", "itself.yaml", "íto.yaml"):
        (project / file).write_text(recipe)
    assert offered(fanfold, "run", "it") == ["itself.yaml"]
    assert offered(fanfold, "run", "í") == ["íto.yaml"]


@pytest.mark.full
def test_items_of_steps_are_offered(fanfold, project):
    (project / "many.yaml").write_text(
        "name: many\nsteps: [{id: each, for_each: '[1, 2]', run: [echo, '{{item}}']}]\n"
    )
    assert fanfold("run", "many.yaml", "--yes").status == 0
    assert "each[1]" in offered(fanfold, "transcript", "last", "each[")


def test_a_project_that_cannot_be_read_offers_nothing(fanfold, project):
    (project / ".fanfold").write_text("no folder")
    assert offered(fanfold, "inspect", "") == []


@pytest.mark.full
def test_completion_of_answer_offers_only_waiting_steps(fanfold, project):
    (project / "two.yaml").write_text(
        "name: two\nsteps: [{id: a, run: [echo, x]}, {id: ok, approve: Go?, depends_on: a}]\n"
    )
    assert fanfold("run", "two.yaml", "--yes").status == 3
    waits = fanfold("runs", "--json").json()[0]["run_id"]
    (project / "one.yaml").write_text("name: one\nsteps: [{id: a, run: [echo, hello]}]\n")
    assert fanfold("run", "one.yaml", "--yes").status == 0
    assert offered(fanfold, "approve", "") == ["last", waits]
    assert offered(fanfold, "reject", waits, "") == ["ok"]
    assert len(offered(fanfold, "inspect", "")) == 3


@pytest.fixture
def mapped(fanfold, project: Path, tmp_path: Path) -> dict[str, str]:
    """A project with a run of items, and an environment in which shells find `fanfold`."""
    (project / "map.yaml").write_text(
        """name: map\nsteps: [{id: each, for_each: '["x", "y"]', run: [echo, "{{item}}"]}]\n"""
    )
    assert fanfold("run", "map.yaml", "--yes").status == 0
    program = tmp_path / "bin" / "fanfold"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m fanfold.cli.main "$@"\n')
    program.chmod(0o755)
    home = tmp_path / "shell-home"
    home.mkdir()
    path = f"{program.parent}:{os.environ['PATH']}"
    own = os.environ.get("FANFOLD_HOME") or str(Path.home() / ".fanfold")
    return {**os.environ, "PATH": path, "HOME": str(home), "ZDOTDIR": str(home), "FANFOLD_HOME": own}


@pytest.mark.full
@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish: apt-get install fish")
def test_fish_completes_by_the_script(mapped: dict[str, str], project: Path) -> None:
    asks = (
        "fanfold completion fish | source; complete -C 'fanfold tra'; complete -C 'fanfold inspect last eac'"
    )
    done = subprocess.run(
        ["fish", "-c", asks], env=mapped, cwd=project, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["transcript", "each", "each[0]", "each[1]"]


@pytest.mark.full
@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh: apt-get install zsh")
def test_zsh_completes_at_the_first_key_and_quotes_what_it_puts_there(
    mapped: dict[str, str], project: Path
) -> None:
    home = Path(mapped["HOME"])
    script = subprocess.run(["fanfold", "completion", "zsh"], env=mapped, capture_output=True, check=True)
    (home / "_fanfold").write_bytes(script.stdout)
    (home / ".zshrc").write_text("fpath+=$HOME; autoload -Uz compinit; compinit -u; PS1='ready>'\n")
    screen = ZshScreen(80, 10, project, **mapped)
    try:
        screen.until("ready>")
        screen.type("fanfold tra\t")
        screen.until("fanfold transcript")
        screen.type("last each\\[1\t")
        screen.until("fanfold transcript last each\\[1\\]")
    finally:
        screen.close()


@pytest.mark.full
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash: apt-get install bash")
def test_bash_completes_by_the_script(project, tmp_path: Path):
    program = tmp_path / "bin" / "fanfold"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m fanfold.cli.main "$@"\n')
    program.chmod(0o755)
    typed = "COMP_WORDS=(fanfold run --bud); COMP_CWORD=2"
    asks = f'source <(fanfold completion bash); {typed}; _fanfold; echo "${{COMPREPLY[@]}}"'
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", asks], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["--budget-usd", "--budget-tokens"]


def test_the_script_says_nothing_but_itself_in_a_sub_folder(fanfold, project, monkeypatch):
    (project / ".fanfold").mkdir()
    (project / "deep").mkdir()
    monkeypatch.chdir(project / "deep")
    assert fanfold("completion", "bash").err == ""


def test_a_file_whose_name_begins_with_a_sign_of_the_shell_is_offered_by_its_path(fanfold, project):
    for name in ("-x.yaml", "#x.yaml", "=ls.yaml"):
        (project / name).write_text("name: x\nsteps: [{id: a, run: [echo, hello]}]\n")
    found = offered(fanfold, "run", "")
    assert {"./-x.yaml", "./#x.yaml", "./=ls.yaml"} <= set(found)
    assert not {"-x.yaml", "#x.yaml", "=ls.yaml"}.intersection(found)
