"""Runs git, always in Fanfold's private store, so that git obeys no configuration of a work tree.

Rules
* In a user's work tree, git obeys that tree's `.git/config`, which may name programs to run. So `GIT_DIR` is
  the private store in every call, also for queries about the user's files. Git reads the user's index and
  writes nothing there.
* Git runs and fetches nothing else: no hooks, no file-system monitor, no protocol, no lazy fetch, no prompts.
  Variables that a hook may have set are not passed on.
* Merges ignore global and system configuration, so a merge gives the same result everywhere. Ignore rules
  also come from the user's global configuration.
* The git program is never one inside the project, where the author of the project could choose it.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TypeAlias

from fanfold.errors import WorldError
from fanfold.workspace.repository import folders_above

# -----------------------------------------------------------------------------------------------------------
# Trusted programs: git and bubblewrap, never from the project
#
# `PATH` may contain folders of the project (an active virtual environment, `node_modules/.bin`, `.`, an empty
# entry). A step's command may come from there, inside the sandbox. A program that the host runs may not. The
# same applies to programs that it starts in turn: the interpreter in its first line, the `ssh` behind a push.
# Folders around the project in the same repository came with the same checkout, and count as the project.


def find_program(name: str, project: Path) -> str | None:
    """Return the first program of this name on PATH whose resolved folder is outside the project."""
    checkout = _checkout(project)
    for folder in _trusted_folders(checkout):
        file = os.path.join(folder, name)
        runs = os.path.isfile(file) and os.access(file, os.X_OK)
        if runs and not _is_below(os.path.realpath(file), checkout):
            return file
    return None


def search_path(project: Path) -> str:
    """Return the PATH for programs that the host runs: without folders of the project."""
    return os.pathsep.join(_trusted_folders(_checkout(project))) or os.defpath


def _checkout(project: Path) -> str:
    """Return the top folder of the project's checkout.

    A home folder that is a repository still belongs to the user.
    """
    home = os.path.realpath(os.path.expanduser("~"))
    around = [str(folder) for folder in folders_above(project) if not _is_below(home, str(folder))]
    return around[-1] if around else os.path.realpath(project)


def _trusted_folders(checkout: str) -> Iterator[str]:
    for folder in os.get_exec_path():
        if os.path.isabs(folder) and not _is_below(os.path.realpath(folder), checkout):
            yield folder


def _is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")


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
ASKING_CPU_S = 10
"""The CPU time limit of one query about ignored files. The project writes the patterns, and a few of them can
take years; a million files take seconds."""
FindObstacle: TypeAlias = Callable[[], Path | None]
"""Finds a file that git may be waiting for."""


@cache
def program(project: Path) -> str:
    """Return the path of git; raises a clear error if it is not installed."""
    found = find_program("git", project)
    if found is None:
        message = "git is not installed; isolated workspaces need it to see what is ignored and to merge"
        raise WorldError("workspace.no_git", message, hint="install git 2.38 or newer")
    return found


def asking(arguments: Sequence[str], project: Path, folder: Path, top: Path) -> list[str]:
    """Return the command for a query about files below `folder`, a part of the work tree `top`."""
    settings = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
    return [program(project), *settings, "-C", str(folder), f"--work-tree={top}", *arguments]


def passed_on(names: Sequence[str], project: Path) -> dict[str, str]:
    """Return the environment for a program of the user, with a PATH without folders of the project."""
    return {name: os.environ[name] for name in names if name in os.environ} | {"PATH": search_path(project)}


def asking_environment(project: Path, store: Path, index: Path | None) -> dict[str, str]:
    """Return the environment for queries; `index` lists the tracked files, None if there are none."""
    passed = passed_on(_PASSED, project)
    quiet = {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1"}
    place = {"GIT_DIR": str(store), "GIT_ATTR_NOSYSTEM": "1", "GIT_ALLOW_PROTOCOL": ""}
    return passed | quiet | place | {"GIT_INDEX_FILE": str(index or store / "no-index")}


def private_environment(project: Path, store: Path) -> dict[str, str]:
    isolated = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_ATTR_NOSYSTEM": "1"}
    who = {
        f"GIT_{role}_{what}": value
        for role in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "fanfold"), ("EMAIL", "fanfold@localhost"), ("DATE", "0 +0000"))
    }
    own = {"HOME": str(store), "XDG_CONFIG_HOME": str(store)}
    return asking_environment(project, store, None) | isolated | who | own


def run(
    command: Sequence[str],
    environment: dict[str, str],
    *,
    stdin: bytes = b"",
    ok: Sequence[int] = (0,),
    blocked_by: FindObstacle = lambda: None,
    cpu_s: int | None = None,
) -> tuple[int, bytes]:
    """Run a git command until it ends; return its exit code and output."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        output, complaint = hear(process, stdin, blocked_by, cpu_s)
    if process.returncode not in ok:
        why = complaint.decode("utf-8", "replace").strip()[-500:]
        raise WorldError("workspace.git_failed", f"git {_words(command)}: {why or process.returncode}")
    return process.returncode, output


def hear(
    process: subprocess.Popen[bytes], stdin: bytes | None, blocked_by: FindObstacle, cpu_s: int | None
) -> tuple[bytes, bytes]:
    """Return the output of a git process.

    Git opens files by name and blocks if one of them is a pipe. So after some time its files are checked, and
    much later it is killed. The kernel kills it after `cpu_s` seconds of CPU time; then this raises
    `workspace.costly_patterns`.
    """
    if cpu_s is not None and hasattr(resource, "prlimit"):  # only on Linux
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    output, complaint = _until_end(process, stdin, blocked_by)
    if cpu_s is not None and process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        message = f"git took more than {cpu_s} s to find out which files are ignored"
        hint = "simplify patterns with many wildcards in .gitignore files and .git/info/exclude"
        raise WorldError("workspace.costly_patterns", message, hint=hint)
    return output, complaint


def _until_end(
    process: subprocess.Popen[bytes], stdin: bytes | None, blocked_by: FindObstacle
) -> tuple[bytes, bytes]:
    waited, patience = 0.0, LOOK_AFTER_S
    while True:
        try:
            output, complaint = process.communicate(stdin, timeout=patience)
            return output, complaint or b""
        except subprocess.TimeoutExpired as late:
            stdin = None  # git already has it
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
