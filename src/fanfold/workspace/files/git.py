"""How git is called: always in our private store, so that no configuration of any tree is obeyed.

Rules
* Git run in somebody's work tree obeys that tree's `.git/config`, which may name programs to run. `GIT_DIR`
  is our own store in every call, also where git is asked about the user's files. Of theirs it reads
  the index and writes nothing.
* Nothing is run or fetched on the way: no hooks, no file-system monitor, no protocol, no lazy fetch, no
  prompts, none of the variables that a hook may have left us.
* For merges neither global nor system configuration counts, so a merge is the same everywhere. What is
  ignored is also the user's global configuration's to say.
* The program itself is never one that lies in the project: whoever wrote the project would choose it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeAlias

from fanfold.errors import WorldError
from fanfold.workspace.files.programs import find_program, search_path

_PASSED = ("HOME", "XDG_CONFIG_HOME", "TMPDIR")
_SETTINGS = {
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.untrackedCache": "false",
    "core.splitIndex": "false",
    "core.bare": "false",
    "protocol.allow": "never",
    "index.threads": "1",
}
LOOK_AFTER_S = 3.0
GIVE_UP_AFTER_S = 1_200.0
FindObstacle: TypeAlias = Callable[[], Path | None]
"""Looks for what a git could be waiting for."""


@cache
def program(project: Path) -> str:
    """Where git is; a clear error where it is not."""
    found = find_program("git", project)
    if found is None:
        message = "git is not installed; isolated workspaces need it to see what is ignored and to merge"
        raise WorldError("workspace.no_git", message, hint="install git 2.38 or newer")
    return found


def asking(arguments: Sequence[str], project: Path, folder: Path, top: Path) -> list[str]:
    """The command that asks about files below `folder`, a part of the work tree `top`."""
    settings = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
    return [program(project), *settings, "-C", str(folder), f"--work-tree={top}", *arguments]


def passed_on(names: Sequence[str], project: Path) -> dict[str, str]:
    """What a program of the user's gets of the environment, and a PATH that leads nowhere in the project."""
    return {name: os.environ[name] for name in names if name in os.environ} | {"PATH": search_path(project)}


def asking_environment(project: Path, store: Path, index: Path | None) -> dict[str, str]:
    """`index` says which files are tracked; None when none are."""
    passed = passed_on(_PASSED, project)
    quiet = {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1"}
    place = {"GIT_DIR": str(store), "GIT_ATTR_NOSYSTEM": "1", "GIT_ALLOW_PROTOCOL": ""}
    return passed | quiet | place | {"GIT_INDEX_FILE": str(index or store / "no-index")}


def private_environment(project: Path, store: Path) -> dict[str, str]:
    nobody = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_ATTR_NOSYSTEM": "1"}
    who = {
        f"GIT_{role}_{what}": value
        for role in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "fanfold"), ("EMAIL", "fanfold@localhost"), ("DATE", "0 +0000"))
    }
    own = {"HOME": str(store), "XDG_CONFIG_HOME": str(store)}
    return asking_environment(project, store, None) | nobody | who | own


def run(
    command: Sequence[str],
    environment: dict[str, str],
    *,
    stdin: bytes = b"",
    ok: Sequence[int] = (0,),
    blocked_by: FindObstacle = lambda: None,
) -> tuple[int, bytes]:
    """Run a git command to its end; its exit code and what it said."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        said, complaint = hear(process, stdin, blocked_by)
    if process.returncode not in ok:
        why = complaint.decode("utf-8", "replace").strip()[-500:]
        raise WorldError("workspace.git_failed", f"git {_words(command)}: {why or process.returncode}")
    return process.returncode, said


def hear(
    process: subprocess.Popen[bytes], stdin: bytes | None, blocked_by: FindObstacle
) -> tuple[bytes, bytes]:
    """What a git says until it ends. It opens what is called like a file it knows, and waits where that is a
    pipe: so one that takes long has what it reads looked at, and one that takes very long is ended.
    """
    waited, patience = 0.0, LOOK_AFTER_S
    while True:
        try:
            said, complaint = process.communicate(stdin, timeout=patience)
            return said, complaint or b""
        except subprocess.TimeoutExpired as late:
            stdin = None  # it has it already
            obstacle = blocked_by()
            waited, patience = waited + patience, patience * 2
            if obstacle is None and waited < GIVE_UP_AFTER_S:
                continue
            process.kill()
            if obstacle is None:
                message = f"git {_words(late.cmd)} did not end within {waited:.0f} s"
                raise WorldError("workspace.git_failed", message) from None
            message = f"{obstacle} is no regular file, and git waits for it"
            raise WorldError("workspace.not_a_file", message, hint=f"remove {obstacle}") from None
        except BaseException:
            process.kill()
            raise


def _words(command: Sequence[str]) -> str:
    return " ".join(word for word in command[1:] if not word.startswith("-"))[:120]
