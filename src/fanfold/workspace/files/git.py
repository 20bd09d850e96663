"""How git is called: on the user's repository only to ask, on our private one with nobody's settings.

Rules
* The user's index, refs, configuration and hooks are never written, and nothing configured there is run: no
  file-system monitor, no optional locks, no prompts, none of the variables a hook may have left us.
* In the private store neither global nor system configuration counts, so a merge is the same everywhere.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from fanfold.errors import WorldError

_PASSED = ("PATH", "HOME", "XDG_CONFIG_HOME", "TMPDIR")
_QUIET = ["-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"]


@cache
def program() -> str:
    """Where git is; a clear error where it is not."""
    found = shutil.which("git")
    if found is None:
        message = "git is not installed; isolated workspaces need it to see what is ignored and to merge"
        raise WorldError("workspace.no_git", message, hint="install git 2.38 or newer")
    return found


def asking(arguments: Sequence[str], folder: Path | str) -> list[str]:
    """The command that asks the user's repository something."""
    return [program(), *_QUIET, "-C", str(folder), *arguments]


def user_environment() -> dict[str, str]:
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    return passed | {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}


def private_environment(store: Path) -> dict[str, str]:
    nobody = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_ATTR_NOSYSTEM": "1"}
    who = {
        f"GIT_{role}_{what}": value
        for role in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "fanfold"), ("EMAIL", "fanfold@localhost"), ("DATE", "0 +0000"))
    }
    own = {"HOME": str(store), "XDG_CONFIG_HOME": str(store), "GIT_DIR": str(store)}
    return user_environment() | nobody | who | own


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
