"""Completion offers what the commands declare and what the project holds, and never an error."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fanfold.cli.main import COMMANDS


def offered(fanfold, *typed: str) -> list[str]:
    result = fanfold("completion", "bash", "--words", "--", *typed)
    assert (result.status, result.err) == (0, "")
    words: list[str] = result.out.split()
    return words


def test_commands_options_choices_and_names_are_offered(fanfold, project):
    (project / "one.yaml").write_text(
        "name: one\ninputs: {topic: {}}\nsteps: [{id: a, run: [echo, hello]}]\n"
    )
    (project / "broken.yaml").write_text("name: broken\nsteps: []\n")
    assert fanfold("run", "one.yaml", "--yes").status == 0
    run = fanfold("runs", "--json").json()[0]["run_id"]
    assert offered(fanfold) == list(COMMANDS)
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


def test_a_project_that_cannot_be_read_offers_nothing(fanfold, project):
    (project / ".fanfold").write_text("no folder")
    assert offered(fanfold, "inspect", "") == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
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
