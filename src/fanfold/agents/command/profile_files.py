"""The files of profiles: the built-in ones and the user's own.

Rules
* The built-in files are in `profiles/`, the user's in `~/.fanfold/backends/`. A user's file with the name of
  a built-in one overrides the keys it has and keeps the others. A project cannot bring profiles.
* An unusable file does not affect other profiles. It is reported when a role names it, and by `doctor`.
* A user's file is checked when it is read (see `check_profile`), because an agent with a misspelled
  placeholder would never receive its task.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, structs

from fanfold.agents.command.profile import OF_ROLES, OURS, TAKEN, Profile, own_profiles
from fanfold.agents.role import Role
from fanfold.agents.tool_names import ALIASES
from fanfold.errors import AuthorError

# -----------------------------------------------------------------------------------------------------------
# Reading the user's own files: with a size limit, and without blocking.


def read_own(file: Path, limit: int) -> bytes:
    """Return the content of a file, following links; `ValueError` if it is too long or not a regular file."""
    handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError(f"{file} is not a regular file")
        with open(handle, "rb", closefd=False) as opened:
            data = opened.read(limit + 1)
    finally:
        os.close(handle)
    if len(data) > limit:
        raise ValueError(f"{file} has more than {limit:,} bytes")
    return data


MAX_PROFILE_BYTES = 256 * 1024
_OWN = frozenset(
    "name title like named file options events output acp call kept counts_all errors priced".split()
)
"""Keys that are never taken from another profile: its name, its command line and its output format."""


class Profiles(NamedTuple):
    """Every usable profile by name, and the problems of the user's other files."""

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
    """Return the profile of a back end that is a program, else None; `AuthorError` for an unusable file."""
    return OF_ROLES.get(name) or _load(name, home)


@cache
def _built_in() -> dict[str, Profile]:
    settings = {file.stem: _read(file) for file in sorted(OURS.glob("*.toml"))}
    return {
        name: msgspec.convert({**_alike(settings.get(one.get("like", ""), {})), **one, "name": name}, Profile)
        for name, one in settings.items()
    }


def _alike(other: dict[str, Any]) -> dict[str, Any]:
    """Return the keys that a profile takes from the one in its `like`."""
    return {key: value for key, value in other.items() if key not in _OWN}


def _load(name: str, home: Path, after: Collection[str] = ()) -> Profile | None:
    """Return a profile by name; `after` are the profiles that refer to it with `like`."""
    file = home / "backends" / f"{name}.toml"
    ours = _built_in().get(name)
    if file not in own_profiles(home):
        return None if ours is None else structs.replace(ours, file=str(file))
    try:
        return _own(file, ours, home, after)
    except (OSError, ValueError) as error:  # includes errors of decoding and validation
        message = f"{file} cannot be used: {error}"
        raise AuthorError(
            "backend.bad_profile", message, hint="docs/appendix/agent-programs.md lists the keys"
        ) from None


def _own(file: Path, ours: Profile | None, home: Path, after: Collection[str]) -> Profile:
    """Return a user's file as a profile, based on the built-in one, or on its `like`, or on nothing."""
    from fanfold.agents.command.events import check_profile

    name = file.stem
    if name in TAKEN:
        raise ValueError(f'"{name}" is a built-in back end; choose another file name')
    settings = _read(file)
    below: dict[str, Any] = {} if ours is None else msgspec.to_builtins(ours)
    if ours is None and (like := settings.get("like")):
        if like in (*after, name):
            raise ValueError(f'"{like}" cannot be like itself')
        is_named = isinstance(like, str) and like not in TAKEN
        other = _load(like, home, (*after, name)) if is_named else None
        if other is None:
            raise ValueError(f'there is no profile "{like}" to be like')
        below = _alike(msgspec.to_builtins(other))
    merged = {**_over(below, settings), "name": name, "named": "credentials" in settings, "file": str(file)}
    merged["title"] = merged.get("title") or name
    profile = msgspec.convert(merged, Profile)
    check_profile(profile)
    return profile


def _over(below: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Return the user's keys merged over ours: tables key by key, other values as a whole."""
    merged = dict(below)
    for key, value in settings.items():
        inner = below.get(key)
        merged[key] = _over(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged


def _read(file: Path) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(read_own(file, MAX_PROFILE_BYTES).decode())


# -----------------------------------------------------------------------------------------------------------
# The tools that a role lists, for an agent with its own tools: enforced, or the role is refused.
#
# Rules
# * The profile maps our tools to the agent's own (`tools`) and defines how the others are disabled (`kept`):
#   with words of its command line, or in its own way. A tool that is not listed is not offered to its model.
# * An agent without such a way works only for roles that can run commands, because a command in the same
#   sandbox can do the same as its tools. It is not started for any other role.

FILE = "tools.toml"
PERMISSION = "OPENCODE_PERMISSION"
_PLACEHOLDER = "{tools}"
_COMMANDS = "run_command"
_SERVED = "mcp__"


class KeptTools(Struct, frozen=True, kw_only=True):
    """The means that limit one session to a list of tools: names for its call, a file, variables."""

    names: str = ""
    file: bytes = b""
    variables: Mapping[str, str] = {}


ALL = KeptTools()


def unkept(profile: Profile, role: Role) -> str:
    """Return the key of a role that a program would not enforce; empty if it enforces all."""
    if role.needs_our_tools:
        return role.needs_our_tools
    if role.tools is None or _COMMANDS in _listed(role):
        return ""
    if profile.name in OF_ROLES:
        return "" if any(_PLACEHOLDER in word for word in role.command) else "tools"
    # For some programs, an empty list means every tool.
    is_kept = profile.kept and (profile.kept != "words" or _own_kept_tools(profile, role))
    return "" if is_kept else "tools"


def keep_tools(profile: Profile, role: Role, servers: Sequence[str] = ()) -> KeptTools:
    """Return the means that limit a program to the tools of a role; `servers` are those it receives."""
    if role.tools is None:
        return ALL
    if profile.name in OF_ROLES:
        return KeptTools(names=",".join(sorted(_listed(role))))
    names = _own_kept_tools(profile, role)
    match profile.kept:
        case "words":
            return KeptTools(names=",".join(names))
        case "policy":
            # The rules for Gemini CLI that allow only these tools.
            text = '[[rule]]\ntoolName = "*"\ndecision = "deny"\npriority = 1\n'
            if names:
                listed = msgspec.json.encode(list(names)).decode()
                text += f'\n[[rule]]\ntoolName = {listed}\ndecision = "allow"\npriority = 2\n'
            return KeptTools(file=text.encode())
        case "opencode":
            # The sandbox controls access to files outside of its folder.
            allowed = [*names, "external_directory", *(f"{server}_*" for server in servers)]
            settings = {"*": "deny", **dict.fromkeys(allowed, "allow")}
            return KeptTools(variables={PERMISSION: msgspec.json.encode(settings).decode()})
    return ALL


def _listed(role: Role) -> set[str]:
    """Return our names of the listed tools, without those of servers, which the server setup handles."""
    return {ALIASES.get(name, name) for name in role.tools or () if not name.startswith(_SERVED)}


def _own_kept_tools(profile: Profile, role: Role) -> list[str]:
    return sorted({own for name in _listed(role) for own in profile.tools.get(name, ())})
