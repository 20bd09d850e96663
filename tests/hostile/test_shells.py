"""Completion in real shells: whatever a checkout's files are called, Tab puts nothing there that runs."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from tools.screen import Screen

pytestmark = pytest.mark.full

RECIPE = "name: x\nsteps: [{id: a, agent: explorer, prompt: p}]\n"
NAMES = [
    ("a pattern that other files fit", ["x[;]t*.yaml", "x;touch ran;1.yaml", "x;touch ran;2.yaml"]),
    ("a pattern that one other file fits", ["x?*.yaml", "x;touch ran;.yaml"]),
    ("a class that other names fit", ["x[;]touch ran.yaml", "x;touch ran.yaml"]),
    ("one name with a command", ["x$(touch ran).yaml"]),
    ("two names with a command", ["x$(touch ran)1.yaml", "x$(touch ran)2.yaml"]),
    ("backquotes", ["x`touch ran`.yaml"]),
    ("an end of the command", ["x;touch ran;.yaml"]),
    ("a background command", ["x&touch ran&.yaml"]),
    ("quotes that close", ["x';touch ran;'.yaml"]),
    ("double quotes that close", ['x";touch ran;".yaml']),
    ("a name on two lines", ["x\ntouch ran\n.yaml"]),
    ("a home folder", ["~x.yaml", "x~.yaml"]),
]


class ShellScreen(Screen):
    """A shell of its own at a terminal."""


def start(shell: str, project: Path, environment: dict[str, str]) -> Screen:
    home = Path(environment["HOME"])
    if shell == "bash":
        (home / "rc").write_text("source <(fanfold completion bash); PS1='ready>'\n")
        ShellScreen.program = ("bash", "--rcfile", str(home / "rc"), "-i")
    elif shell == "zsh":
        setup = "autoload -Uz compinit; compinit -u; source <(fanfold completion zsh); PS1='ready>'\n"
        (home / ".zshrc").write_text(setup)
        ShellScreen.program = ("zsh", "-i")
    else:
        (home / ".config/fish").mkdir(parents=True)
        setup = "fanfold completion fish | source; function fish_prompt; echo 'ready>'; end\n"
        (home / ".config/fish/config.fish").write_text(setup)
        ShellScreen.program = ("fish", "-i")
    return ShellScreen(100, 40, project, **environment)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize("files", [row[1] for row in NAMES], ids=[row[0] for row in NAMES])
def test_text_inserted_by_tab_does_not_run(shell: str, files: list[str], tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}: apt-get install {shell}")
    project, home, programs = tmp_path / "project", tmp_path / "home", tmp_path / "bin"
    for folder in (project, home, programs):
        folder.mkdir()
    for number, name in enumerate(files):
        # Of a pattern alone a recipe: the files that it fits are not offered by themselves.
        (project / name).write_text("" if number and set(files[0]) & set("*?[") else RECIPE)
    # It completes as the real one does, and runs nothing: what the shell itself does is all that counts.
    program = programs / "fanfold"
    real = f'exec {sys.executable} -m fanfold.cli.main "$@"'
    program.write_text(f"#!/bin/sh\ncase $1 in completion) {real};; esac\necho started\n")
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(home)}
    screen = start(shell, project, {**environment, "ZDOTDIR": str(home), "TERM": "dumb"})
    try:
        screen.until("ready>")
        screen.type("fanfold run x\t")
        screen.type("\x01true \recho o''ver\r")  # typed ahead: it is read when the word was completed
        screen.until("over")
    finally:
        screen.close()
    assert not (project / "ran").exists()
