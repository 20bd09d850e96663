"""The tools of a role file: which of the named ones are here, and what is said about the others.

Rules
* Role files are written for several agents. What names a tool of another program is left out and noted; what
  looks like one of ours mistyped is a warning: the role lacks a tool that its author meant it to have.
* A pattern (`Bash(git diff:*)`) narrows a tool. Ours cannot be narrowed, and a role never gets more than its
  file says: a tool allowed by pattern is left out, and so is one of which a pattern is disallowed.
* Who may not write or edit files does not get the other tools that change them either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from fanfold.agents.toolbox.schemas import ALIASES, BY_NAME

_SERVED = "mcp__"
_WHOLE = ("", "*", "**")
_NOTHING = ("", "~", "null")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_NAME = re.compile(r"[^,(]+(?:\([^)]*\)?)?")
_NEAR = 0.75
MAX_WORD = 64

# What Claude Code and Codex have and we do not: nobody mistyped these.
_ELSEWHERE = frozenset(
    "Agent AskUserQuestion BashOutput EnterPlanMode ExitPlanMode KillBash KillShell ListMcpResourcesTool LSP"
    " NotebookEdit NotebookRead ReadMcpResourceTool SendMessage Skill SlashCommand Task TaskCreate TaskGet"
    " TaskList TaskOutput TaskStop TaskUpdate TodoRead TodoWrite ToolSearch WebSearch"
    " shell update_plan view_image web_search".split()
)
_COMMANDS = "run_command"
_FILE_CHANGES = frozenset(name for name, spec in BY_NAME.items() if spec.mutates and name != _COMMANDS)
_NAMED_ELSEWHERE = frozenset(ALIASES.values())


class Remark(Struct, frozen=True):
    """Something to say about a key of a role file, at the line where `word` stands."""

    message: str
    key: str
    word: str
    warning: bool = False


def toml_tools(values: dict[str, object], said: list[Remark]) -> None:
    """Keep of a list of tools those that are here."""
    tools = values.get("tools")
    if isinstance(tools, list) and all(isinstance(tool, str) for tool in tools):
        values["tools"] = _here([str(tool) for tool in tools], said, ours=True)


def claude_tools(values: dict[str, object], said: list[Remark]) -> None:
    """The tools of a Claude Code agent: what it allows, less what it disallows."""
    disallowed = values.pop("disallowedTools", None)
    if "tools" in values:
        tools = values["tools"]
        if isinstance(tools, str | list):
            # A key without a value narrows nothing; an empty list says that there are none.
            values["tools"] = None if tools in _NOTHING else _here(_split(tools), said, ours=False)
    if disallowed is not None and disallowed not in _NOTHING:
        tools = values.get("tools")
        allowed = [str(tool) for tool in tools] if isinstance(tools, list) else _everything(values)
        values["tools"] = _without(allowed, _split(disallowed), said)


def only_reads(tools: object) -> bool:
    """Whether a list of tools has none that may change something."""
    if not isinstance(tools, list):
        return False
    names = [str(tool) for tool in tools]
    return not any(name.startswith(_SERVED) or _changes(ALIASES.get(name, name)) for name in names)


def _changes(name: str) -> bool:
    return name in BY_NAME and BY_NAME[name].mutates


def _split(tools: object) -> list[str]:
    """Names with their patterns, in which commas may stand too."""
    text = ",".join(map(str, tools)) if isinstance(tools, list) else str(tools)
    return [word for found in _NAME.findall(text) if (word := found.strip())]


def _here(words: list[str], said: list[Remark], *, ours: bool) -> list[str] | None:
    """Those of the named tools that are here; None when all are meant."""
    kept: list[str] = []
    for word in words:
        name, pattern = _parts(word)
        if name == "*":
            return None
        if not _is_known(name):
            said.append(_unknown(name, "tools", ours=ours))
        elif pattern not in _WHOLE:
            message = f'"{word}" narrows a tool, which cannot be done here: the role does without {name}'
            said.append(Remark(message, "tools", word))
        else:
            kept.append(name)
    return kept


def _without(allowed: list[str], words: list[str], said: list[Remark]) -> list[str]:
    left = allowed
    for word in words:
        name, pattern = _parts(word)
        if name == "*":
            return []
        if not _is_known(name):
            said.append(_unknown(name, "disallowedTools", ours=False))
            continue
        taken = [tool for tool in left if _is_taken(tool, name)]
        left = [tool for tool in left if tool not in taken]
        more = pattern not in _WHOLE or any(_plain(name).startswith(f"{_plain(tool)}__") for tool in taken)
        if more and taken:
            message = f'"{word}" is part of a tool, and only all of it can go: the role does without '
            said.append(Remark(message + ", ".join(taken), "disallowedTools", word))
    return left


def _is_taken(tool: str, name: str) -> bool:
    """Whether a tool goes when `name` is disallowed."""
    if name.startswith(_SERVED):
        mine, gone = _plain(tool), _plain(name)
        # A server as a whole takes its tools along, and cannot be had without one of them.
        return mine == gone or mine.startswith(f"{gone}__") or gone.startswith(f"{mine}__")
    mine, gone = ALIASES.get(tool, tool), ALIASES.get(name, name)
    # Claude Code has no names for these, and each of them does what writing and editing do.
    follows = gone in _FILE_CHANGES and mine in _FILE_CHANGES - _NAMED_ELSEWHERE
    return mine == gone or follows


def _everything(values: Mapping[str, object]) -> list[str]:
    servers = values.get("mcp_servers")
    return [*BY_NAME, *(f"{_SERVED}{name}" for name in (servers if isinstance(servers, dict) else {}))]


def _parts(word: str) -> tuple[str, str]:
    name, _, pattern = word.partition("(")
    return name.strip(), pattern.removesuffix(")").strip()


def _plain(name: str) -> str:
    return _UNSAFE.sub("_", name.removesuffix("__*"))


def _is_known(name: str) -> bool:
    return name in BY_NAME or name in ALIASES or name.startswith(_SERVED)


def _unknown(name: str, key: str, *, ours: bool) -> Remark:
    """Typing mistakes are warnings; tools of other programs are as they should be, and only noted."""
    shown = name[:MAX_WORD]
    near = None if name in _ELSEWHERE else _nearest(shown)
    if near is not None:
        return Remark(f'there is no tool "{shown}"; did you mean "{near}"?', key, name, warning=True)
    if ours and name not in _ELSEWHERE:
        return Remark(f'there is no tool "{shown}"', key, name, warning=True)
    return Remark(f'"{shown}" is a tool of another program, and not here', key, name)


def _nearest(name: str) -> str | None:
    from difflib import get_close_matches  # most role files have no mistakes in them

    lowered = {known.lower(): known for known in (*ALIASES, *BY_NAME)}
    found = get_close_matches(name.lower(), lowered, 1, _NEAR)
    return lowered[found[0]] if found else None
