"""The names of profiles, and so which back ends start a program: no profile is read for that.

Every run asks for them, and few have an agent that is a program; so little is imported here.
"""

from __future__ import annotations

import os
from pathlib import Path

from fanfold.agents.role import COMMAND, SPOKEN

OURS = Path(__file__).parent / "profiles"
NAMED_BY_ROLES = (COMMAND, SPOKEN)
"""Back ends for programs that roles name."""
TAKEN = frozenset(("model", "local", "scripted", *NAMED_BY_ROLES))
"""Back ends that are no profiles: a file of such a name would never be used."""

_programs: set[str] = set()


def profile_names(home: Path) -> list[str]:
    """The names alone, without reading any; from now on they are known to mean programs."""
    ours = (file for file in os.listdir(OURS) if file.endswith(".toml"))  # to glob compiles a pattern
    names = {os.path.splitext(file)[0] for file in (*ours, *(own.name for own in own_profiles(home)))} - TAKEN
    _programs.update(names)
    return sorted(names)


def is_program(backend: str) -> bool:
    """Whether a back end starts a program; one that a program of somebody else's brings is its own affair."""
    return backend in NAMED_BY_ROLES or backend in _programs or (OURS / f"{backend}.toml").is_file()


def own_profiles(home: Path) -> list[Path]:
    """The user's own files."""
    folder = home / "backends"
    return sorted(folder.glob("*.toml")) if folder.is_dir() else []
