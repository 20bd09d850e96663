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
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from fanfold.agents.toolbox.schemas import ALIASES, BY_NAME
from fanfold.text.diagnostics import Span
from fanfold.text.notes import Notes
from fanfold.text.spelling import nearest
from fanfold.text.trees import tree
from fanfold.text.trees.tree import Node, Scalar

_SERVED = "mcp__"
_WHOLE = ("", "*", "**")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_NAME = re.compile(r"[^,(]+(?:\([^)]*\)?)?")
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


class _Word(NamedTuple):
    """A tool as a file names it, and where."""

    text: str
    span: Span


def toml_tools(tools: Sequence[Scalar], notes: Notes) -> list[str] | None:
    """Of a list of tools those that are here; None when all are meant."""
    return _here([_Word(tool.text, (tool.start, tool.end)) for tool in tools], notes, ours=True)


def claude_tools(
    tools: Node | None, disallowed: Node | None, servers: Iterable[str], notes: Notes
) -> list[str] | None:
    """The tools of a Claude Code agent: what it allows, less what it disallows; None: all there are."""
    allowed = None if tools is None else _here(_split(tools), notes, ours=False)
    if disallowed is None:
        return allowed
    everything = [*BY_NAME, *(f"{_SERVED}{name}" for name in servers)]
    return _without(everything if allowed is None else allowed, _split(disallowed), notes)


def only_reads(tools: Sequence[str] | None) -> bool:
    """Whether a list of tools has none that may change something."""
    if tools is None:
        return False
    return not any(name.startswith(_SERVED) or _changes(ALIASES.get(name, name)) for name in tools)


def _changes(name: str) -> bool:
    return name in BY_NAME and BY_NAME[name].mutates


def _split(node: Node) -> list[_Word]:
    """Names with their patterns, in which commas may stand too, also between the items of a list."""
    items = node.items if isinstance(node, tree.Sequence) else [node]
    scalars = [item for item in items if isinstance(item, Scalar)]
    text = ",".join(scalar.text for scalar in scalars)
    begins = [0, *accumulate(len(scalar.text) + 1 for scalar in scalars)]
    words = []
    for found in _NAME.finditer(text):
        word = found[0].strip()
        if word:
            at = found.start() + len(found[0]) - len(found[0].lstrip())
            number = bisect_right(begins, at) - 1
            start = at - begins[number]
            words.append(_Word(word, scalars[number].span(start, start + len(word))))
    return words


def _here(words: Sequence[_Word], notes: Notes, *, ours: bool) -> list[str] | None:
    """Those of the named tools that are here; None when all are meant."""
    kept: list[str] = []
    for word in words:
        name, pattern = _parts(word.text)
        if name == "*":
            return None
        if not _is_known(name):
            _tell_unknown(name, word, notes, ours=ours)
        elif pattern not in _WHOLE:
            message = f'"{word.text}" narrows a tool, which cannot be done here: the role does without {name}'
            notes.note("role.note", message, word.span)
        else:
            kept.append(name)
    return kept


def _without(allowed: list[str], words: Sequence[_Word], notes: Notes) -> list[str]:
    left = allowed
    for word in words:
        name, pattern = _parts(word.text)
        if name == "*":
            return []
        if not _is_known(name):
            _tell_unknown(name, word, notes, ours=False)
            continue
        taken = [tool for tool in left if _is_taken(tool, name)]
        left = [tool for tool in left if tool not in taken]
        more = pattern not in _WHOLE or any(_plain(name).startswith(f"{_plain(tool)}__") for tool in taken)
        if more and taken:
            message = f'"{word.text}" is part of a tool, and only all of it can go: the role does without '
            notes.note("role.note", message + ", ".join(taken), word.span)
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


def _parts(word: str) -> tuple[str, str]:
    name, _, pattern = word.partition("(")
    return name.strip(), pattern.removesuffix(")").strip()


def _plain(name: str) -> str:
    return _UNSAFE.sub("_", name.removesuffix("__*"))


def _is_known(name: str) -> bool:
    return name in BY_NAME or name in ALIASES or name.startswith(_SERVED)


def _tell_unknown(name: str, word: _Word, notes: Notes, *, ours: bool) -> None:
    """Typing mistakes are warnings; tools of other programs are as they should be, and only noted."""
    shown = name[:MAX_WORD]
    near = None if name in _ELSEWHERE else nearest(shown, (*ALIASES, *BY_NAME))
    if near is not None:
        message = f'there is no tool "{shown}"; did you mean "{near}"?'
        notes.warning("role.unknown_tool", message, word.span)
    elif ours and name not in _ELSEWHERE:
        notes.warning("role.unknown_tool", f'there is no tool "{shown}"', word.span)
    else:
        notes.note("role.note", f'"{shown}" is a tool of another program, and not here', word.span)
