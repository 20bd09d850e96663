"""The tools of a role file: which of the named ones are here, and what is said about the others.

Rules
* Role files are written for several agents. What names a tool of another program is left out and noted; what
  looks like one of ours mistyped is a warning: the role lacks a tool that its author meant it to have. One
  that is mistyped where tools are taken away refuses the role: it would have what its author took.
* `Bash(git diff:*)` allows the commands of that pattern (see `toolbox.command_patterns`). No other tool of
  ours can be narrowed, and a role never gets more than its file says: a tool allowed by pattern is left out,
  and so is one of which a pattern is disallowed, as Claude Code itself has it.
* Who may not write or edit files does not get the other tools that change them either.
* Upper and lower case make no difference: a file that takes `bash` away means `Bash`.
"""

from __future__ import annotations

import re
import shlex
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
_EVERYTHING = frozenset({"*", "all", "all tools", "all available tools"})
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_NAME = re.compile(r"[^,(]+(?:\([^)]*\)?)?")
MAX_WORD = 64

# What Claude Code and Codex have and we do not: nobody mistyped these.
_LACKED = frozenset({"NotebookEdit", "WebSearch", "web_search"})
_ELSEWHERE = _LACKED | frozenset(
    "Agent AskUserQuestion BashOutput EnterPlanMode ExitPlanMode KillBash KillShell ListMcpResourcesTool LSP"
    " NotebookRead ReadMcpResourceTool SendMessage Skill SlashCommand Task TaskCreate TaskGet"
    " TaskList TaskOutput TaskStop TaskUpdate TodoRead TodoWrite ToolSearch"
    " shell update_plan view_image".split()
)
_ELSEWHERE_SPELLED = frozenset(name.lower() for name in _ELSEWHERE)
_COMMANDS = "run_command"
_FILE_CHANGES = frozenset(name for name, spec in BY_NAME.items() if spec.mutates and name != _COMMANDS)
_NAMED_ELSEWHERE = frozenset(ALIASES.values())
_SPELLED = {name.lower(): name for name in (*BY_NAME, *ALIASES)} | {
    "list": "list_files",
    "patch": "apply_patch",
}


class _Word(NamedTuple):
    """A tool as a file names it, and where."""

    text: str
    span: Span


class GrantedTools(NamedTuple):
    """What a file lets its role use."""

    tools: list[str] | None
    """None: all there are."""
    commands: tuple[str, ...] = ()
    """Patterns of the commands that it may run; empty: any."""
    lacked: tuple[str, ...] = ()
    """What it asks for, and nobody has here."""


def toml_tools(tools: Sequence[Scalar], notes: Notes) -> GrantedTools:
    """Of a list of tools those that are here."""
    return _Reading(notes, ours=True).granted([_Word(one.text, (one.start, one.end)) for one in tools])


def _denied(permission: Node | None) -> list[_Word]:
    """The tools that a file denies by `permission`, as other programs than Claude Code have it.

    They give a list below `deny`, or a decision for each tool, or for each of its patterns; `edit` is every
    change of a file. What is allowed, or asked about, gives a role nothing that it does not have anyway.
    """
    found: list[_Word] = []
    for key, value in permission.entries if isinstance(permission, tree.Mapping) else []:
        if key.text in ("deny", "disallow"):
            found += _split(value)
        elif "deny" in (one.text for one in _scalars(value)):
            names = ("Edit", "Write") if key.text == "edit" else (key.text,)
            found += [_Word(name, (key.start, key.end)) for name in names]
    return found


def _scalars(node: Node) -> list[Scalar]:
    inner = [value for _, value in node.entries] if isinstance(node, tree.Mapping) else [node]
    return [one for one in inner if isinstance(one, Scalar)]


def claude_tools(
    tools: Node | None,
    disallowed: Node | None,
    permission: Node | None,
    servers: Iterable[str],
    notes: Notes,
) -> GrantedTools:
    """The tools of a Claude Code agent: what it allows, less what it disallows or denies."""
    reading = _Reading(notes, ours=False)
    taken = ([] if disallowed is None else _split(disallowed)) + _denied(permission)
    if isinstance(tools, tree.Mapping):  # as OpenCode has it: each tool switched on or off
        taken += [_Word(key.text, (key.start, key.end)) for key, on in tools.entries if _is_off(on, notes)]
        tools = None
    granted = GrantedTools(None) if tools is None else reading.granted(_split(tools))
    if not taken:
        return granted
    everything = [*BY_NAME, *(f"{_SERVED}{name}" for name in servers)]
    left = reading.without(everything if granted.tools is None else granted.tools, taken)
    runs = any(ALIASES.get(tool, tool) == _COMMANDS for tool in left)
    return granted._replace(tools=left, commands=granted.commands if runs else ())


def only_reads(tools: Sequence[str] | None) -> bool:
    """Whether a list of tools has none that may change something."""
    if tools is None:
        return False
    return not any(name.startswith(_SERVED) or _changes(ALIASES.get(name, name)) for name in tools)


def _changes(name: str) -> bool:
    return name in BY_NAME and BY_NAME[name].mutates


def _is_off(value: Node, notes: Notes) -> bool:
    if isinstance(value, Scalar) and isinstance(value.value, bool):
        return not value.value
    notes.error(".bad_type", "a tool is switched on or off by true or false", value)
    return True


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
            words += _spread(_Word(word, scalars[number].span(start, start + len(word))))
    return words


def _spread(word: _Word) -> list[_Word]:
    """Several tools with nothing but spaces between them; anything else is one word."""
    parts = word.text.split()
    if "(" in word.text or len(parts) < 2 or not all(_is_tool_somewhere(part) for part in parts):
        return [word]
    return [_Word(part, word.span) for part in parts]


class _Reading:
    """One file's lists of tools."""

    def __init__(self, notes: Notes, *, ours: bool) -> None:
        self._notes = notes
        self._ours = ours
        self._lacked: list[str] = []

    def granted(self, words: Sequence[_Word]) -> GrantedTools:
        """Those of the named tools that are here."""
        kept: list[str] = []
        commands: list[str] | None = []
        for word in words:
            said, pattern = _parts(word.text)
            name = _canonical(said)
            if said.lower() in _EVERYTHING:
                return GrantedTools(None, lacked=tuple(self._lacked))
            if name is None:
                self._tell_unknown(said, word)
            elif pattern in _WHOLE:
                kept.append(name)
                commands = None if ALIASES.get(name, name) == _COMMANDS else commands
            elif ALIASES.get(name, name) == _COMMANDS:
                if commands is not None:
                    commands += self._patterns(pattern, word)
                kept.append(name)
            else:
                message = f'"{word.text}" narrows a tool, which cannot be done here: the role does without '
                self._notes.note("role.note", message + name, word.span)
        return GrantedTools(list(dict.fromkeys(kept)), tuple(commands or ()), tuple(self._lacked))

    def _patterns(self, written: str, word: _Word) -> list[str]:
        from fanfold.agents.toolbox.command_patterns import read_pattern

        found = []
        for one in list(filter(None, map(str.strip, written.split(",")))) or [""]:
            read = read_pattern(one)
            if isinstance(read, str):
                message = f'"{word.text[:MAX_WORD]}" cannot be kept: {read}'
                hint = "name one program with its arguments, `Bash(git diff:*)`, or leave the pattern out"
                self._notes.error(".refused", message, word.span, hint)
            else:
                found.append(" ".join(map(_shown, read)))
        return found

    def without(self, allowed: list[str], words: Sequence[_Word]) -> list[str]:
        left = allowed
        for word in words:
            said, pattern = _parts(word.text)
            name = _canonical(said)
            if said.lower() in _EVERYTHING:
                return []
            if name is None:
                self._refuse_mistyped(said, word)
                continue
            taken = [tool for tool in left if _is_taken(tool, name)]
            left = [tool for tool in left if tool not in taken]
            more = pattern not in _WHOLE or any(
                _plain(name).startswith(f"{_plain(tool)}__") for tool in taken
            )
            if more and taken:
                message = (
                    f'"{word.text}" is part of a tool, and only all of it can go: the role does without '
                )
                self._notes.note("role.note", message + ", ".join(taken), word.span)
        return left

    def _refuse_mistyped(self, name: str, word: _Word) -> None:
        """Without a tool that nobody has it lacks nothing; what nearly names one of ours is not guessed."""
        near = None if _is_tool_somewhere(name) else nearest(name[:MAX_WORD], (*ALIASES, *BY_NAME))
        if near is not None:
            message = f'it is not to have "{name[:MAX_WORD]}", and there is no such tool'
            self._notes.error(".refused", message, word.span, f'did you mean "{near}"?')

    def _tell_unknown(self, name: str, word: _Word) -> None:
        """Typing mistakes are warnings; tools of other programs are as they should be, and only noted."""
        shown = name[:MAX_WORD]
        elsewhere = _is_tool_somewhere(name)
        near = None if elsewhere else nearest(shown, (*ALIASES, *BY_NAME))
        if name in _LACKED:
            self._lacked.append(name)
        elif near is not None:
            message = f'there is no tool "{shown}"; did you mean "{near}"?'
            self._notes.warning("role.unknown_tool", message, word.span)
        elif self._ours and not elsewhere:
            self._notes.warning("role.unknown_tool", f'there is no tool "{shown}"', word.span)
        else:
            self._notes.note("role.note", f'"{shown}" is a tool of another program, and not here', word.span)


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


def _shown(word: str) -> str:
    """A word of a pattern, quoted where it has to be; a star stays a star."""
    from fanfold.agents.toolbox.command_patterns import ANYTHING

    plain = word.replace(ANYTHING, "x")
    return word if shlex.quote(plain) == plain else shlex.quote(word)


def is_tool(name: str) -> bool:
    """Whether agents of ours may have a tool of that name: ours, under any of its names, or a server's."""
    return _canonical(name) is not None


def _canonical(name: str) -> str | None:
    """A tool of ours as the table has it, or one of a server; None for any other."""
    if name in BY_NAME or name in ALIASES or name.startswith(_SERVED):
        return name
    return _SPELLED.get(name.lower())


def _is_tool_somewhere(name: str) -> bool:
    """Whether it is a tool, here or in another program."""
    return _canonical(name) is not None or name.lower() in _ELSEWHERE_SPELLED
