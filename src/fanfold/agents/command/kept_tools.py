"""The tools that a role lists, for an agent that is a program and brings its own: kept to, or refused.

Rules
* Which of its tools stand for ours is data of a profile (`tools`), and so is how it is told that it has no
  others (`kept`): by words of its call, or in its own way. What is not listed is not offered to its model.
* An agent that cannot be told works only for roles that may run commands: whatever it does with tools of its
  own it could do by a command in the same sandbox. For any other it is not started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from fanfold.agents.command.profile import OF_ROLES, Profile
from fanfold.agents.role import Role
from fanfold.agents.toolbox.schemas import ALIASES

FILE = "tools.toml"
PERMISSION = "OPENCODE_PERMISSION"
_PLACEHOLDER = "{tools}"
_COMMANDS = "run_command"
_SERVED = "mcp__"


class KeptTools(Struct, frozen=True, kw_only=True):
    """How one session is kept to a list: names for its call, a file for it, variables."""

    names: str = ""
    file: bytes = b""
    variables: Mapping[str, str] = {}


ALL = KeptTools()


def unkept(profile: Profile, role: Role) -> str:
    """The key of a role that a program would not keep to; empty when it keeps to everything."""
    if role.needs_our_tools:
        return role.needs_our_tools
    return "" if role.tools is None or _is_kept(profile, role) else "tools"


def keep_tools(profile: Profile, role: Role, servers: Sequence[str] = ()) -> KeptTools:
    """What a program is given so that it has the tools of a role alone; `servers` are those it is handed."""
    if role.tools is None:
        return ALL
    if profile.name in OF_ROLES:
        return KeptTools(names=",".join(sorted(_listed(role))))
    names = _own(profile, role)
    match profile.kept:
        case "words":
            return KeptTools(names=",".join(names))
        case "policy":
            return KeptTools(file=_policy(names))
        case "opencode":
            # That a file lies outside of its folder is the sandbox's affair.
            allowed = [*names, "external_directory", *(f"{server}_*" for server in servers)]
            said = {"*": "deny", **dict.fromkeys(allowed, "allow")}
            return KeptTools(variables={PERMISSION: msgspec.json.encode(said).decode()})
    return ALL


def _is_kept(profile: Profile, role: Role) -> bool:
    if _COMMANDS in _listed(role):
        return True
    if profile.name in OF_ROLES:
        return any(_PLACEHOLDER in word for word in role.command)
    # A list of words that is empty means every tool to some.
    return bool(profile.kept) and (profile.kept != "words" or bool(_own(profile, role)))


def _listed(role: Role) -> set[str]:
    """Our names of the listed tools; those of servers are handed over with them."""
    return {ALIASES.get(name, name) for name in role.tools or () if not name.startswith(_SERVED)}


def _own(profile: Profile, role: Role) -> list[str]:
    return sorted({own for name in _listed(role) for own in profile.tools.get(name, ())})


def _policy(names: Sequence[str]) -> bytes:
    """Rules as Gemini CLI reads them: none but these."""
    text = '[[rule]]\ntoolName = "*"\ndecision = "deny"\npriority = 1\n'
    if names:
        listed = msgspec.json.encode(list(names)).decode()
        text += f'\n[[rule]]\ntoolName = {listed}\ndecision = "allow"\npriority = 2\n'
    return text.encode()
