"""The tools in a role file: which of them exist here, and the notices about the others.

Rules
* Role files are written for several programs. A tool of another program is left out with a note. A probable
  typing mistake is a warning, because the role lacks a tool that its author wanted. In a list of removed
  tools, a typing mistake refuses the role, because the role would keep a tool that its author removed.
* `Bash(git diff:*)` allows the commands of that pattern (see `toolbox.command_patterns`). No other tool here
  can be narrowed, and a role never gets more than its file allows. A tool that is allowed by pattern is left
  out. So is a tool with a disallowed pattern, as in Claude Code.
* A role that cannot write or edit files does not get the other tools that change files either.
* Case makes no difference: a file that removes `bash` means `Bash`.
"""

from __future__ import annotations

import re
import shlex
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from msgspec import Struct

from fanfold.agents.role import DEFAULT_MODEL, Stage
from fanfold.agents.tool_names import ALIASES, ANYTHING, BY_NAME, read_pattern
from fanfold.language import tree
from fanfold.language.diagnostics import Span, nearest
from fanfold.language.json_text import JSON, schema_problem
from fanfold.language.tables import Entries, Key, Notes, quoted, read_entries, shape
from fanfold.language.template import Hole, TemplateError, parse_template, render, resolve, sole_path
from fanfold.language.tree import Node, Scalar, find, plain

_SERVED = "mcp__"
_WHOLE = ("", "*", "**")
_EVERYTHING = frozenset({"*", "all", "all tools", "all available tools"})
_UNSAFE = r"[^A-Za-z0-9_-]"
_NAME = r"[^,(]+(?:\([^)]*\)?)?"
MAX_WORD = 64

# Tools of Claude Code and Codex that do not exist here. They are not typing mistakes.
_LACKED = frozenset({"Agent", "NotebookEdit", "Task", "WebSearch", "web_search"})
_ELSEWHERE = _LACKED | frozenset(
    "AskUserQuestion BashOutput EnterPlanMode ExitPlanMode KillBash KillShell ListMcpResourcesTool LSP"
    " NotebookRead ReadMcpResourceTool SendMessage Skill SlashCommand TaskCreate TaskGet"
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
    """The name of a tool in a file, and its position."""

    text: str
    span: Span


class GrantedTools(NamedTuple):
    """The tools that a file grants to its role."""

    tools: list[str] | None
    """None: all tools."""
    commands: tuple[str, ...] = ()
    """Patterns of the commands that the role can run; empty: any."""
    lacked: tuple[str, ...] = ()
    """Requested tools that do not exist here."""


def toml_tools(tools: Sequence[Scalar], notes: Notes) -> GrantedTools:
    """Return the tools of a list that exist here."""
    return _Reading(notes, ours=True).granted([_Word(tool.text, (tool.start, tool.end)) for tool in tools])


def claude_tools(
    tools: Node | None, disallowed: Node | None, permission: Node | None, servers: Iterable[str], notes: Notes
) -> GrantedTools:
    """Return the tools of a Claude Code agent: the allowed ones without the disallowed or denied ones."""
    reading = _Reading(notes, ours=False)
    taken = [] if disallowed is None else _split(disallowed)
    # `permission`, a key of other programs, has a list below `deny`, or a decision for each tool or for each
    # of its patterns. `edit` means every change of a file. Entries that allow or ask have no effect, because
    # the role has those tools already.
    for key, value in permission.entries if isinstance(permission, tree.Mapping) else []:
        decisions = [inner for _, inner in value.entries] if isinstance(value, tree.Mapping) else [value]
        if key.text in ("deny", "disallow"):
            taken += _split(value)
        elif any(isinstance(decision, Scalar) and decision.text == "deny" for decision in decisions):
            names = ("Edit", "Write") if key.text == "edit" else (key.text,)
            taken += [_Word(name, (key.start, key.end)) for name in names]
    if isinstance(tools, tree.Mapping):  # as in OpenCode: each tool is true or false
        for key, on in tools.entries:
            if not isinstance(on, Scalar) or not isinstance(on.value, bool):
                notes.error(".bad_type", "a tool must be true (on) or false (off)", on)
            elif on.value:
                continue
            taken.append(_Word(key.text, (key.start, key.end)))
        tools = None
    granted = GrantedTools(None) if tools is None else reading.granted(_split(tools))
    if not taken:
        return granted
    everything = [*BY_NAME, *(f"{_SERVED}{name}" for name in servers)]
    left = reading.without(everything if granted.tools is None else granted.tools, taken)
    runs = any(ALIASES.get(tool, tool) == _COMMANDS for tool in left)
    return granted._replace(tools=left, commands=granted.commands if runs else ())


def only_reads(tools: Sequence[str] | None) -> bool:
    """Return whether no tool in the list can change anything."""
    specs = (BY_NAME.get(ALIASES.get(name, name)) for name in tools or ())
    served = any(name.startswith(_SERVED) for name in tools or ())
    return tools is not None and not served and not any(spec is not None and spec.mutates for spec in specs)


def _split(node: Node) -> list[_Word]:
    """Return names with their patterns. Commas separate names, but can also be inside a pattern."""
    items = node.items if isinstance(node, tree.Sequence) else [node]
    scalars = [item for item in items if isinstance(item, Scalar)]
    text = ",".join(scalar.text for scalar in scalars)
    begins = [0, *accumulate(len(scalar.text) + 1 for scalar in scalars)]
    words = []
    for found in re.finditer(_NAME, text):
        word = found[0].strip()
        if word:
            at = found.start() + len(found[0]) - len(found[0].lstrip())
            number = bisect_right(begins, at) - 1
            start = at - begins[number]
            span = scalars[number].span(start, start + len(word))
            parts = word.split()  # some files separate names only by spaces
            spread = "(" not in word and len(parts) > 1 and all(map(_is_tool_somewhere, parts))
            words += [_Word(part, span) for part in (parts if spread else [word])]
    return words


class _Reading:
    """Reads the tool lists of one file."""

    def __init__(self, notes: Notes, *, ours: bool) -> None:
        self._notes = notes
        self._ours = ours
        self._lacked: list[str] = []

    def granted(self, words: Sequence[_Word]) -> GrantedTools:
        """Return the named tools that exist here."""
        kept: list[str] = []
        commands: list[str] | None = []
        for word in words:
            written, pattern = _parts(word.text)
            name = _canonical(written)
            if written.lower() in _EVERYTHING:
                return GrantedTools(None, lacked=tuple(self._lacked))
            if name is None:
                self._note_unknown(written, word)
            elif pattern in _WHOLE:
                kept.append(name)
                commands = None if ALIASES.get(name, name) == _COMMANDS else commands
            elif ALIASES.get(name, name) == _COMMANDS:
                if commands is not None:
                    commands += self._patterns(pattern, word)
                kept.append(name)
            else:
                message = (
                    f'"{word.text}" narrows a tool, which is not supported here: the role works without '
                )
                self._notes.note("role.note", message + name, word.span)
        return GrantedTools(list(dict.fromkeys(kept)), tuple(commands or ()), tuple(self._lacked))

    def _patterns(self, written: str, word: _Word) -> list[str]:
        found = []
        for text in list(filter(None, map(str.strip, written.split(",")))) or [""]:
            read = read_pattern(text)
            if isinstance(read, str):
                message = f'"{word.text[:MAX_WORD]}" is not supported: {read}'
                hint = "name one program with its arguments, `Bash(git diff:*)`, or leave the pattern out"
                self._notes.error(".refused", message, word.span, hint)
                continue
            # Words are quoted if necessary; a star is not quoted.
            plain = [part.replace(ANYTHING, "x") for part in read]
            shown = zip(read, plain, strict=True)
            found.append(
                " ".join(part if shlex.quote(bare) == bare else shlex.quote(part) for part, bare in shown)
            )
        return found

    def without(self, allowed: list[str], words: Sequence[_Word]) -> list[str]:
        left = allowed
        for word in words:
            written, pattern = _parts(word.text)
            name = _canonical(written)
            if written.lower() in _EVERYTHING:
                return []
            if name is None:
                self._refuse_mistyped(written, word)
                continue
            taken = [tool for tool in left if _is_taken(tool, name)]
            left = [tool for tool in left if tool not in taken]
            more = pattern not in _WHOLE or any(
                _plain(name).startswith(f"{_plain(tool)}__") for tool in taken
            )
            if more and taken:
                message = (
                    f'"{word.text}" is part of a tool, which cannot be removed alone: the role works without '
                )
                self._notes.note("role.note", message + ", ".join(taken), word.span)
        return left

    def _refuse_mistyped(self, name: str, word: _Word) -> None:
        """Refuse a name similar to one of our tools. An unknown tool needs no removal and is ignored."""
        near = None if _is_tool_somewhere(name) else nearest(name[:MAX_WORD], (*ALIASES, *BY_NAME))
        if near is not None:
            message = f'it must not have "{name[:MAX_WORD]}", and there is no such tool'
            self._notes.error(".refused", message, word.span, f'did you mean "{near}"?')

    def _note_unknown(self, name: str, word: _Word) -> None:
        """Report an unknown tool: a typing mistake as a warning, a tool of another program as a note."""
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
    """Return whether `tool` is removed if `name` is disallowed."""
    if name.startswith(_SERVED):
        mine, gone = _plain(tool), _plain(name)
        # Removing a server removes its tools. A server cannot be used without one of its tools.
        return mine == gone or mine.startswith(f"{gone}__") or gone.startswith(f"{mine}__")
    mine, gone = ALIASES.get(tool, tool), ALIASES.get(name, name)
    # Claude Code has no names for these tools. Each has the same effects as writing and editing.
    follows = gone in _FILE_CHANGES and mine in _FILE_CHANGES - _NAMED_ELSEWHERE
    return mine == gone or follows


def _parts(word: str) -> tuple[str, str]:
    name, _, pattern = word.partition("(")
    return name.strip(), pattern.removesuffix(")").strip()


def _plain(name: str) -> str:
    return re.sub(_UNSAFE, "_", name.removesuffix("__*"))


def is_tool(name: str) -> bool:
    """Return whether our agents can have a tool with that name or alias, or an MCP tool."""
    return _canonical(name) is not None


def _canonical(name: str) -> str | None:
    """Return the name of one of our tools, or of an MCP tool; None for any other name."""
    if name in BY_NAME or name in ALIASES or name.startswith(_SERVED):
        return name
    return _SPELLED.get(name.lower())


def _is_tool_somewhere(name: str) -> bool:
    """Return whether it is a tool, here or in another program."""
    return _canonical(name) is not None or name.lower() in _ELSEWHERE_SPELLED


# -----------------------------------------------------------------------------------------------------------
# Stages: a role's `pipeline` is read and checked before anything runs.
#
# A pipeline is the strategy of a role: stages that run one after the other within one session. Each stage is
# one of
# * `model`: a model loop. `true` or `"default"` means the model of the session.
# * `tool`: one call of one of the session's tools, with `args`.
# * `agent`: a model loop in another role, with that role's instructions, model and tools.
#
# Rules
# * Texts are templates. They can contain `{{prompt}}` (the task), `{{previous}}` and `{{stages.NAME}}`
#   (outputs of earlier stages), with `.field` and `[0]` to select a part. A string of `args` that is exactly
#   one placeholder keeps the type of its value.
# * Every name is checked here, so a valid pipeline never fails because of a name. Only the fields of values
#   are unknown before the run.
# * The caller looks up the roles of `agent` stages. Such roles cannot have a pipeline: stages do not nest, so
#   every pipeline ends.

MAX_STAGES = 16
MAX_TURNS = 10_000
_STAGES_NAME = r"(?a)[A-Za-z0-9][\w-]{0,63}\Z"
_NAMED = Key("name", "text", "What later stages call it.")
_PROMPT = Key("prompt", "template", "Its prompt.")
_SCHEMA = Key("output_schema", "schema", "What its output must be.")
_KINDS = {
    "model": shape(
        "model stage",
        "A model loop.",
        _NAMED,
        _PROMPT,
        _SCHEMA,
        Key("model", "json", "`true` for the session's own, or a model's name."),
        Key("instructions", "text", "In place of the role's."),
        Key("tools", "texts", "Of the role's tools, those that it may use."),
        Key("max_turns", "integer", "How often the model may be asked.", low=1, high=MAX_TURNS),
    ),
    "tool": shape(
        "tool stage",
        "One call of a tool.",
        _NAMED,
        Key("tool", "text", "Its name."),
        Key("args", "free", "What it is given."),
    ),
    "agent": shape(
        "agent stage",
        "A model loop in another role.",
        _NAMED,
        _PROMPT,
        _SCHEMA,
        Key("agent", "text", "The role."),
    ),
}


class StageBounds(Struct, frozen=True, kw_only=True):
    """The permissions of the role that has the pipeline."""

    tools: Sequence[str] | None = None
    read_only: bool = False
    network: bool = False
    own_tools: bool = False
    """Whether it has tools of MCP servers, whose names are unknown before the servers run."""


def read_stages(node: Node, notes: Notes, bounds: StageBounds) -> tuple[Stage, ...]:
    """Return the stages of a pipeline and report their problems."""
    items = node.items if isinstance(node, tree.Sequence) else []
    if not items:
        notes.error(".bad_value", '"pipeline" must be a list of stages, each a [[pipeline]] table', node)
    if len(items) > MAX_STAGES:
        notes.error(".limit", f"a pipeline has at most {MAX_STAGES} stages", items[MAX_STAGES])
        return ()
    names: list[str] = []
    stages: list[Stage] = []
    for item in items:
        stage = _StageReader(notes, bounds, names).read(item)
        names.append("" if stage is None else stage.name)
        stages += () if stage is None else (stage,)
    return tuple(stages)


class _StageReader:
    """Reads one stage; `before` has the names of the earlier stages, empty for unnamed ones."""

    def __init__(self, notes: Notes, bounds: StageBounds, before: Sequence[str]) -> None:
        self._notes = notes
        self._bounds = bounds
        self._before = before

    def read(self, node: Node) -> Stage | None:
        kinds = [kind for kind in _KINDS if isinstance(node, tree.Mapping) and node.key(kind)]
        if len(kinds) != 1:
            at = node.key(kinds[1]) if kinds and isinstance(node, tree.Mapping) else None
            message = 'a stage must have exactly one of "model", "tool" and "agent"'
            self._notes.error(".conflicting_keys" if kinds else ".missing_key", message, at or node)
            return None
        kind = kinds[0]
        entries = read_entries(node, _KINDS[kind], self._notes)
        assert entries is not None, "it is a mapping"
        model, given = None, entries.nodes.get("model")
        if kind == "model":
            model = DEFAULT_MODEL
            if isinstance(given, Scalar) and isinstance(given.value, str) and given.text.strip():
                model = given.text
            elif not isinstance(given, Scalar) or given.value is not True:
                message = '"model" must be true, "default" or the name of a model'
                self._notes.error(".bad_value", message, given or entries.head())
        wanted = entries.nodes.get("output_schema")
        schema = None if wanted is None else plain(wanted)
        problem = None if wanted is None else schema_problem(schema)
        if wanted is not None and problem is not None:
            message = f"not a JSON Schema: {problem.message}"
            self._notes.error(".bad_schema", message, find(wanted, problem.path))
        return Stage(
            prompt=self._prompt(entries, kind),
            name=self._name(entries),
            model=model,
            tool=self._tool(entries) if kind == "tool" else None,
            agent=entries.text("agent"),
            instructions=entries.text("instructions"),
            tools=tuple(tool.text for tool in entries.scalars("tools")) if entries.has("tools") else None,
            max_turns=entries.integer("max_turns"),
            output_schema=schema,
            args={key.text: plain(value) for key, value in entries.pairs("args")},
        )

    def _name(self, entries: Entries) -> str:
        node = entries.nodes.get("name")
        if not isinstance(node, Scalar):
            return ""
        if not re.match(_STAGES_NAME, node.text):
            hint = 'use letters, digits, "-" and "_", at most 64 of them'
            self._notes.error(".bad_id", f"a stage cannot be named {quoted(node.text)}", node, hint)
        if node.text in self._before:
            number = self._before.index(node.text) + 1
            message = f"the name {quoted(node.text)} is taken by stage {number}"
            self._notes.error(".duplicate_id", message, node)
        return node.text

    def _prompt(self, entries: Entries, kind: str) -> str:
        node = entries.nodes.get("prompt")
        if isinstance(node, Scalar):
            self._check_text(node)
            return node.text
        if kind != "tool" and self._before and entries.lacks("prompt"):
            message = 'a stage needs a "prompt", with {{previous}} for the output of the stage before'
            self._notes.error(".missing_key", message, entries.head())
        return "{{prompt}}"

    def _tool(self, entries: Entries) -> str:
        node = entries.nodes.get("tool")
        if not isinstance(node, Scalar):
            return ""
        tool, notes, bounds = ALIASES.get(node.text, node.text), self._notes, self._bounds
        args = entries.nodes.get("args")
        for text in _texts(args) if args is not None else ():
            self._check_text(text)
        spec = BY_NAME.get(tool)
        if spec is None:
            if not bounds.own_tools:
                message = f"there is no tool {quoted(tool)}; there are {', '.join(BY_NAME)}"
                notes.error(".bad_value", message, node)
            return tool
        if bounds.tools is not None and tool not in {ALIASES.get(name, name) for name in bounds.tools}:
            notes.error(".bad_value", f'the role does not allow the tool "{tool}" (see its "tools")', node)
        if spec.mutates and bounds.read_only:
            notes.error(".bad_value", f'the role is read-only, but "{tool}" makes changes', node)
        if tool == "fetch_url" and not bounds.network:
            notes.error(".bad_value", '"fetch_url" needs `network = true` in the role', node)
        known, given = spec.schema["properties"], {key.text: key for key, _ in entries.pairs("args")}
        for name, key in given.items():
            if name not in known:
                message = f'"{tool}" takes no {quoted(name)}; it takes {", ".join(known)}'
                notes.error(".unknown_key", message, key)
        for name in spec.schema["required"]:
            if name not in given:
                notes.error(".missing_key", f'"{tool}" needs "{name}"', entries.keys.get("args", node))
        return tool

    def _check_text(self, node: Scalar) -> None:
        """Report every placeholder whose value does not exist when the stage runs."""
        problems: list[TemplateError] = []
        holes = parse_template(node.text, problems)
        for problem in problems:
            self._notes.error(".bad_template", problem.message, node.span(problem.position, problem.end))
        known = ["prompt", *(["previous"] if self._before else [])]
        known += [f"stages.{name}" for name in self._before if name]
        for hole in holes:
            if not isinstance(hole, Hole):
                continue
            root, parts = hole.path.root, hole.path.parts
            # A placeholder refers to a whole value: `previous`, or `stages.draft` for any of its fields.
            if (f"stages.{parts[0]}" if root == "stages" and parts else root) not in known:
                message = f'"{hole.path.text}" is unknown here; there are {", ".join(known)}'
                self._notes.error(".bad_template", message, node.span(hole.start, hole.end))


def _texts(node: Node) -> Iterator[Scalar]:
    """Yield every text inside a value, without keys."""
    if isinstance(node, Scalar):
        if isinstance(node.value, str):
            yield node
        return
    for inner in node.items if isinstance(node, tree.Sequence) else [value for _, value in node.entries]:
        yield from _texts(inner)


def fill(value: JSON, values: Mapping[str, JSON]) -> JSON:
    """Return a value with the placeholders of all its strings replaced.

    A string that is exactly one placeholder becomes its value.

    >>> fill({"limit": "{{previous}}", "path": "a/{{previous}}"}, {"previous": 3})
    {'limit': 3, 'path': 'a/3'}
    """
    if isinstance(value, str):
        path = sole_path(value)
        return render(parse_template(value), values) if path is None else resolve(path, values)
    if isinstance(value, Mapping):
        return {key: fill(one, values) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [fill(item, values) for item in value]
    return value
