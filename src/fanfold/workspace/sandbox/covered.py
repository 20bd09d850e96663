"""What of a project a program does not see: files by which a repository would tell an agent what to run.

Many agents start what a file in the folder they work in names: servers, hooks, plugins. Where a repository
brought such a file nobody chose it, and the agent has its user's credentials. So what is there is covered, a
file by one that says nothing, a folder by an empty one. Only a mount can do that, and nothing can be mounted
on a link: where it cannot be done the agent is not started.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fanfold.errors import WorldError
from fanfold.trust.project_files import write_whole
from fanfold.workspace.sandbox.policy import Policy


def covers(policy: Policy) -> dict[str, bool]:
    """What has to be covered and is there, True for folders; raises where it is a link or nothing usual."""
    found: dict[str, bool] = {}
    for name in policy.rooms.covered:
        kind = _kind(policy.workspace, name)
        if kind is not None:
            found[name] = kind
    return found


def check_level(level: str, policy: Policy) -> None:
    """Refuse to start a program that would see what has to be covered."""
    there = list(covers(policy))
    if there and level != "bubblewrap":
        message = (
            f"this project brings {', '.join(there)}, which the agent would obey and {level} cannot hide"
        )
        hint = f"install bubblewrap, or if you trust what is in there: {ALLOW}"
        raise WorldError("sandbox.insufficient", message, hint=hint)


def words(policy: Policy, sized: list[str]) -> list[str]:
    """The words of bubblewrap's command line for it; `sized` bounds what can be put into a folder.

    Some agents put things into a folder that is there, and give up where they cannot; it is gone afterwards.
    """
    found: list[str] = []
    for name, is_folder in covers(policy).items():
        inside = str(policy.project / name)
        if is_folder:
            found += [*sized, "--tmpfs", inside]
        else:
            found += ["--ro-bind", str(_nothing(policy, name)), inside]
    return found


def _nothing(policy: Policy, name: str) -> Path:
    """A file that says nothing, in the form that a name promises."""
    data = b"{}\n" if name.endswith((".json", ".jsonc")) else b""
    file = policy.scratch / f"nothing-{len(data)}"
    if not file.exists():
        write_whole(file, data)
    return file


ALLOW = (
    "write brought = [] below [state] into the agent's file in the folder backends of FANFOLD_HOME"
    " (~/.fanfold where that is not set)"
)


def _kind(top: Path, path: str) -> bool | None:
    """Whether a folder, a file or (None) nothing is at a path, no link on the way."""
    here = top
    names = path.split("/")
    for number, name in enumerate(names, 1):
        here /= name
        try:
            mode = os.lstat(here).st_mode
        except OSError:
            return None
        if stat.S_ISDIR(mode):
            continue
        if stat.S_ISREG(mode) and number == len(names):
            return False
        if stat.S_ISREG(mode):
            return None  # a file where a folder would have to be
        message = f"{path} of this project is a link, and the agent would obey what is behind it"
        hint = f"remove it, or if you trust what is in there: {ALLOW}"
        raise WorldError("agent.brought_link", message, hint=hint)
    return True
