"""Which agents that are programs are here, which version of each, whether it answers, what it may have.

Rules
* Only those on PATH are told of: nobody wants a list of what they do not use.
* A program is asked for its version in a home of its own, which is thrown away, and within a short time; all
  of them at once. What it says is kept up to a limit, and whatever it starts ends with the question.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from fanfold.agents.command.belongings import Belongings
from fanfold.agents.command.profile import Profile
from fanfold.agents.command.profile_files import load_profiles
from fanfold.errors import AuthorError, FanfoldError
from fanfold.sessions.processes import ProcessTimeout, run_process
from fanfold.workspace.files.programs import find_program, search_path

ANSWER_S = 5.0
MAX_ANSWER_BYTES = 64 * 1024
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9}){1,9}[\w.+-]{0,20}")


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


class InstalledAgents(NamedTuple):
    """Those that are here, and what is wrong with profiles of the user's."""

    found: list[InstalledAgent]
    problems: list[AuthorError]


def find_agents(home: Path, project: Path) -> InstalledAgents:
    by_program: dict[str, list[Profile]] = {}
    profiles, problems = load_profiles(home)
    for profile in profiles.values():
        program = find_program(profile.program, project) if profile.program else None
        if program is not None:
            by_program.setdefault(program, []).append(profile)
    versions = asyncio.run(_versions(by_program, search_path(project))) if by_program else []
    found = [
        _agent(program, behind, version, os.environ)
        for (program, behind), version in zip(by_program.items(), versions, strict=True)
    ]
    return InstalledAgents(found, problems)


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


async def _versions(programs: Iterable[str], path: str) -> list[str]:
    return await asyncio.gather(*(_version(program, path) for program in programs))


async def _version(program: str, path: str) -> str:
    with tempfile.TemporaryDirectory(prefix="fanfold-") as home:
        own = {"PATH": path, "HOME": home, "LANG": "C.UTF-8"}
        asked = run_process(
            [program, "--version"],
            cwd=home,
            session_id=f"doctor-{uuid.uuid4().hex}",
            env=own,
            timeout_s=ANSWER_S,
            grace_s=0.0,
            max_output_bytes=MAX_ANSWER_BYTES,
        )
        try:
            said = (await asked).stdout
        except ProcessTimeout as late:  # what it said may be enough
            said = late.ended.stdout
        except (OSError, FanfoldError):
            return ""
    number = _NUMBER.search(said)
    return number[0] if number else ""
