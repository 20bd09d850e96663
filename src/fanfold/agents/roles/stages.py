"""Stages: what a role's `pipeline` may say, read and checked before anything runs.

A pipeline is the strategy of a role: stages that run one after the other within one session. Each is one of
* `model`: a model loop. `true` or `"default"` means the model that the session has anyway.
* `tool`: one call of one of the session's tools, with `args`.
* `agent`: a model loop in another role, with that role's instructions, model and tools.

Rules
* Texts are templates that may hold `{{prompt}}` (the task), `{{previous}}` and `{{stages.NAME}}` (what stages
  before put out), with `.field` and `[0]` into values. A string of `args` that is one such hole and nothing
  else keeps the type of the value.
* Every name is checked here, so a pipeline that was read never fails for a name. What cannot be known
  before is whether a value has a field.
* Roles named by `agent` stages are looked up by whoever has them. They may have no pipeline of their own:
  stages do not nest, so no pipeline runs for ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from fanfold.agents.role import DEFAULT_MODEL, Stage
from fanfold.agents.toolbox.schemas import ALIASES, BY_NAME, ToolSpec
from fanfold.text.json_schema import schema_problem
from fanfold.text.json_value import JSON
from fanfold.text.notes import Notes, quoted
from fanfold.text.tables.entries import Entries, read_entries
from fanfold.text.tables.shapes import Key, shape
from fanfold.text.template import Hole, Path, TemplateError, parse_template, render, resolve, sole_path
from fanfold.text.trees import tree
from fanfold.text.trees.tree import Node, Scalar, find, plain

MAX_STAGES = 16
MAX_TURNS = 10_000
_NAME = re.compile(r"[A-Za-z0-9][\w-]{0,63}\Z", re.ASCII)
_NAMED = Key("name", "text", "What later stages call it.")
_PROMPT = Key("prompt", "template", "What it is told.")
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
    """What the role around a pipeline allows."""

    tools: Sequence[str] | None = None
    read_only: bool = False
    network: bool = False
    own_tools: bool = False
    """It has tools of MCP servers, whose names are not known before they run."""


def read_stages(node: Node, notes: Notes, bounds: StageBounds) -> tuple[Stage, ...]:
    """The stages of a pipeline; what is wrong with them is reported."""
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
    """Reads one stage; `before` holds the names of the stages before it, empty for those without."""

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
        entries = read_entries(node, _KINDS[kinds[0]], self._notes)
        assert entries is not None, "it is a mapping"
        kind = kinds[0]
        prompt = self._prompt(entries, kind)
        tools = entries.scalars("tools")
        return Stage(
            name=self._name(entries),
            model=self._model(entries) if kind == "model" else None,
            tool=self._tool(entries) if kind == "tool" else None,
            agent=entries.text("agent"),
            prompt=prompt,
            instructions=entries.text("instructions"),
            tools=tuple(one.text for one in tools) if entries.has("tools") else None,
            max_turns=entries.integer("max_turns"),
            output_schema=self._schema(entries),
            args={key.text: plain(value) for key, value in entries.pairs("args")},
        )

    def _name(self, entries: Entries) -> str:
        node = entries.nodes.get("name")
        if not isinstance(node, Scalar):
            return ""
        if not _NAME.match(node.text):
            hint = 'use letters, digits, "-" and "_", at most 64 of them'
            self._notes.error(".bad_id", f"a stage cannot be named {quoted(node.text)}", node, hint)
        if node.text in self._before:
            number = self._before.index(node.text) + 1
            message = f"the name {quoted(node.text)} is taken by stage {number}"
            self._notes.error(".duplicate_id", message, node)
        return node.text

    def _model(self, entries: Entries) -> str:
        node = entries.nodes.get("model")
        if isinstance(node, Scalar) and node.value is True:
            return DEFAULT_MODEL
        if isinstance(node, Scalar) and isinstance(node.value, str) and node.text.strip():
            return node.text
        message = '"model" must be true, "default" or the name of a model'
        self._notes.error(".bad_value", message, node or entries.head())
        return DEFAULT_MODEL

    def _prompt(self, entries: Entries, kind: str) -> str:
        node = entries.nodes.get("prompt")
        if isinstance(node, Scalar):
            self._check_text(node)
            return node.text
        if kind != "tool" and self._before and entries.lacks("prompt"):
            message = 'a stage needs a "prompt": what it is told, with {{previous}} for what came before'
            self._notes.error(".missing_key", message, entries.head())
        return "{{prompt}}"

    def _schema(self, entries: Entries) -> JSON:
        node = entries.nodes.get("output_schema")
        if node is None:
            return None
        schema = plain(node)
        problem = schema_problem(schema)
        if problem is not None:
            message = f"not a JSON Schema: {problem.message}"
            self._notes.error(".bad_schema", message, find(node, problem.path))
        return schema

    def _tool(self, entries: Entries) -> str:
        node = entries.nodes.get("tool")
        if not isinstance(node, Scalar):
            return ""
        tool = ALIASES.get(node.text, node.text)
        for _, value in entries.pairs("args"):
            for text in _texts(value):
                self._check_text(text)
        spec = BY_NAME.get(tool)
        if spec is not None:
            self._check_power(spec, node)
            self._check_args(spec, node, entries)
        elif not self._bounds.own_tools:
            message = f"there is no tool {quoted(tool)}; there are {', '.join(BY_NAME)}"
            self._notes.error(".bad_value", message, node)
        return tool

    def _check_power(self, spec: ToolSpec, node: Scalar) -> None:
        tool, bounds = spec.name, self._bounds
        if bounds.tools is not None and tool not in {ALIASES.get(name, name) for name in bounds.tools}:
            message = f'the role does not allow the tool "{tool}" (see its "tools")'
            self._notes.error(".bad_value", message, node)
        if spec.mutates and bounds.read_only:
            message = f'the role is read-only, and "{tool}" changes things'
            self._notes.error(".bad_value", message, node)
        if tool == "fetch_url" and not bounds.network:
            self._notes.error(".bad_value", '"fetch_url" needs `network = true` in the role', node)

    def _check_args(self, spec: ToolSpec, node: Scalar, entries: Entries) -> None:
        known, given = spec.schema["properties"], [key for key, _ in entries.pairs("args")]
        for key in given:
            if key.text not in known:
                message = f'"{spec.name}" takes no {quoted(key.text)}; it takes {", ".join(known)}'
                self._notes.error(".unknown_key", message, key)
        for name in spec.schema["required"]:
            if all(key.text != name for key in given):
                at = entries.keys.get("args", node)
                self._notes.error(".missing_key", f'"{spec.name}" needs "{name}"', at)

    def _check_text(self, node: Scalar) -> None:
        """Every hole of a text names something that is there when the stage runs."""
        problems: list[TemplateError] = []
        parts = parse_template(node.text, problems)
        for problem in problems:
            self._notes.error(".bad_template", problem.message, node.span(problem.position, problem.end))
        known = ["prompt", *(["previous"] if self._before else [])]
        known += [f"stages.{name}" for name in self._before if name]
        for hole in parts:
            if isinstance(hole, Hole) and _names(hole.path) not in known:
                message = f'"{hole.path.text}" means nothing here; there are {", ".join(known)}'
                self._notes.error(".bad_template", message, node.span(hole.start, hole.end))


def _names(path: Path) -> str:
    """What a hole is about: `previous`, or `stages.draft` whatever field of it."""
    return f"stages.{path.parts[0]}" if path.root == "stages" and path.parts else path.root


def _texts(node: Node) -> Iterator[Scalar]:
    """Every text inside a value, keys apart."""
    if isinstance(node, Scalar):
        if isinstance(node.value, str):
            yield node
        return
    for inner in node.items if isinstance(node, tree.Sequence) else [value for _, value in node.entries]:
        yield from _texts(inner)


def fill(value: JSON, values: Mapping[str, JSON]) -> JSON:
    """A value with the holes of all its strings filled in; a string that is one hole becomes its value.

    >>> fill({"limit": "{{previous}}", "path": "a/{{previous}}"}, {"previous": 3})
    {'limit': 3, 'path': 'a/3'}
    """
    if isinstance(value, str):
        path = sole_path(value)
        return render(parse_template(value), values) if path is None else resolve(path, values)
    if isinstance(value, Mapping):
        return {key: fill(one, values) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [fill(one, values) for one in value]
    return value
