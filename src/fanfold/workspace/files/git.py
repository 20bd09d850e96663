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
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from fanfold.errors import WorldError
from fanfold.workspace.files.programs import find_program

_PASSED = ("PATH", "HOME", "XDG_CONFIG_HOME", "TMPDIR")
_SETTINGS = {
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.untrackedCache": "false",
    "core.splitIndex": "false",
    "core.bare": "false",
    "protocol.allow": "never",
    "index.threads": "1",
}


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


def asking_environment(store: Path, index: Path | None) -> dict[str, str]:
    """`index` says which files are tracked; None when none are."""
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    quiet = {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1"}
    place = {"GIT_DIR": str(store), "GIT_ATTR_NOSYSTEM": "1", "GIT_ALLOW_PROTOCOL": ""}
    return passed | quiet | place | {"GIT_INDEX_FILE": str(index or store / "no-index")}


def private_environment(store: Path) -> dict[str, str]:
    nobody = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_ATTR_NOSYSTEM": "1"}
    who = {
        f"GIT_{role}_{what}": value
        for role in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "fanfold"), ("EMAIL", "fanfold@localhost"), ("DATE", "0 +0000"))
    }
    own = {"HOME": str(store), "XDG_CONFIG_HOME": str(store)}
    return asking_environment(store, None) | nobody | who | own


def run(
    command: Sequence[str], environment: dict[str, str], *, stdin: bytes = b"", ok: Sequence[int] = (0,)
) -> tuple[int, bytes]:
    """Run a git command to its end; its exit code and what it said."""
    ended = subprocess.run(command, env=environment, input=stdin, capture_output=True, check=False)
    if ended.returncode not in ok:
        said = ended.stderr.decode("utf-8", "replace").strip()[-500:]
        words = " ".join(word for word in command[1:] if not word.startswith("-"))
        raise WorldError("workspace.git_failed", f"git {words[:120]}: {said or ended.returncode}")
    return ended.returncode, ended.stdout
