"""Which agents that are programs are here, which version of each, whether it answers, what it may have.

Rules
* Only those on PATH are told of: nobody wants a list of what they do not use.
* A program is asked for its version in a home of its own, which is thrown away, and within a short time; all
  of them at once.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from msgspec import Struct

from fanfold.agents.command.belongings import Belongings
from fanfold.agents.command.profile import Profile, load_profiles
from fanfold.workspace.files.programs import find_program, search_path

ANSWER_S = 5.0


class InstalledAgent(Struct, frozen=True, kw_only=True):
    """One agent that is on PATH."""

    names: tuple[str, ...]
    """The back ends that it is behind."""
    title: str
    program: str
    version: str
    """Empty where it did not say within the time."""
    credentials: tuple[str, ...]
    unnamed: tuple[str, ...]
    """What it could have, and the user has said nothing about."""


def find_agents(home: Path, project: Path) -> list[InstalledAgent]:
    """Those that are here; `AuthorError` for a profile of the user's that cannot be read."""
    by_program: dict[str, list[Profile]] = {}
    for profile in load_profiles(home).values():
        found = find_program(profile.program, project) if profile.program else None
        if found is not None:
            by_program.setdefault(found, []).append(profile)
    with ThreadPoolExecutor(max_workers=8) as pool:
        versions = list(pool.map(partial(_version, search_path(project)), by_program))
    return [
        _agent(program, profiles, version, os.environ)
        for (program, profiles), version in zip(by_program.items(), versions, strict=True)
    ]


def _agent(
    program: str, profiles: list[Profile], version: str, environment: Mapping[str, str]
) -> InstalledAgent:
    first = min(profiles, key=lambda one: one.acp)
    unnamed = () if first.named else tuple(Belongings(first, environment).offered())
    return InstalledAgent(
        names=tuple(sorted(one.name for one in profiles)),
        title=first.title or first.name,
        program=program,
        version=version,
        credentials=first.credentials,
        unnamed=unnamed,
    )


def _version(path: str, program: str) -> str:
    with tempfile.TemporaryDirectory(prefix="fanfold-") as home:
        environment = {"PATH": path, "HOME": home, "LANG": "C.UTF-8"}
        try:
            done = subprocess.run(
                [program, "--version"],
                cwd=home,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=ANSWER_S,
                check=False,
                start_new_session=True,
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
    number = re.search(r"\d+(?:\.\d+)+[\w.+-]*", done.stdout)
    return number[0][:40] if number else ""
