"""The files that profiles are in: those that come with Fanfold, and the user's own.

Rules
* Ours are in `profiles/`; the user's are in `~/.fanfold/backends/`, where a file named like one of ours
  changes the keys it has and leaves the others. A project cannot bring any.
* A file that cannot be used takes no other profile away: it is told to whoever names it, and by `doctor`.
* What a user writes is checked when it is read (see `profile_checks`): a word that means nothing is an agent
  that was never told its task.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from fanfold.agents.command.own_files import read_own
from fanfold.agents.command.profile import OF_ROLES, Profile
from fanfold.agents.command.profile_names import OURS, TAKEN, own_profiles
from fanfold.errors import AuthorError

MAX_PROFILE_BYTES = 256 * 1024
_OWN = (
    "name",
    "title",
    "like",
    "named",
    "file",
    "options",
    "events",
    "output",
    "acp",
    "call",
    "kept",
    "counts_all",
    "errors",
    "priced",
)
"""What is never taken from another profile: its name, how it is called and how it speaks."""


class Profiles(NamedTuple):
    """Every profile that can be used, by name, and what is wrong with the user's other files."""

    found: dict[str, Profile]
    problems: list[AuthorError]


def load_profiles(home: Path) -> Profiles:
    found: dict[str, Profile] = {}
    problems: list[AuthorError] = []
    for name in sorted({*_built_in(), *(file.stem for file in own_profiles(home))}):
        try:
            profile = _load(name, home)
        except AuthorError as error:
            problems.append(error)
            continue
        if profile is not None:
            found[name] = profile
    return Profiles(found, problems)


def find_profile(name: str, home: Path) -> Profile | None:
    """The profile of a back end that is a program, None for any other; `AuthorError` for a file that cannot
    be used.
    """
    return OF_ROLES.get(name) or _load(name, home)


@cache
def _built_in() -> dict[str, Profile]:
    said = {file.stem: _read(file) for file in sorted(OURS.glob("*.toml"))}
    return {
        name: msgspec.convert({**_alike(said.get(one.get("like", ""), {})), **one, "name": name}, Profile)
        for name, one in said.items()
    }


def _alike(other: dict[str, Any]) -> dict[str, Any]:
    """What a profile leaves to the one it is like."""
    return {key: value for key, value in other.items() if key not in _OWN}


def _load(name: str, home: Path, after: Collection[str] = ()) -> Profile | None:
    """A profile by name; `after` are those that are like it."""
    file = home / "backends" / f"{name}.toml"
    ours = _built_in().get(name)
    if file not in own_profiles(home):
        return None if ours is None else structs.replace(ours, file=str(file))
    try:
        return _own(file, ours, home, after)
    except (OSError, ValueError) as error:  # what decoding and validation raise, too
        message = f"{file} cannot be used: {error}"
        raise AuthorError("backend.bad_profile", message, hint="docs/agents.md lists its keys") from None


def _own(file: Path, ours: Profile | None, home: Path, after: Collection[str]) -> Profile:
    """What a file of the user's makes of one of ours, or of the one it is like, or of nothing."""
    from fanfold.agents.command.profile_checks import check_profile

    name = file.stem
    if name in TAKEN:
        raise ValueError(f'"{name}" is a back end that comes with Fanfold; call the file otherwise')
    said = _read(file)
    below = _alike(_other(said, home, (*after, name))) if ours is None else msgspec.to_builtins(ours)
    merged = {**_over(below, said), "name": name, "named": "credentials" in said, "file": str(file)}
    merged["title"] = merged.get("title") or name
    profile = msgspec.convert(merged, Profile)
    check_profile(profile)
    return profile


def _other(said: dict[str, Any], home: Path, after: Collection[str]) -> dict[str, Any]:
    """The profile that one says it is like, as data."""
    like = said.get("like")
    if not like:
        return {}
    if like in after:
        raise ValueError(f'"{like}" would be like itself')
    other = _load(like, home, after) if isinstance(like, str) and like not in TAKEN else None
    if other is None:
        raise ValueError(f'there is no profile "{like}" that it could be like')
    return dict(msgspec.to_builtins(other))


def _over(below: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    """The user's keys over ours; tables key by key, anything else whole."""
    merged = dict(below)
    for key, value in said.items():
        inner = below.get(key)
        merged[key] = _over(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged


def _read(file: Path) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(read_own(file, MAX_PROFILE_BYTES).decode())
