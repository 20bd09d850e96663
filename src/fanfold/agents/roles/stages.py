"""Stages: what a role's `pipeline` may say, read and checked before anything runs.

A pipeline is the strategy of a role: stages that run one after the other within one session. Each is one of
* `model`: a model loop. `true` or `"default"` means the model that the session has anyway.
* `tool`: one call of one of the session's tools, with `args`.
* `agent`: a model loop in another role, with that role's instructions, model and tools.

Rules
* Texts may hold `{{prompt}}` (the task), `{{previous}}` and `{{stages.NAME}}` (what stages before put out),
  with `.field` and `[0]` into values. A string of `args` that is one such hole and nothing else keeps the
  type of the value. Holes are filled once: what a value contains stays text. `\\{{` is a literal.
* Every name is checked here, so a pipeline that was read never fails for a name. What cannot be known
  before is whether a value has a field.
* Roles named by `agent` stages are looked up by whoever has them. They may have no pipeline of their own:
  stages do not nest, so no pipeline runs for ever.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from msgspec import Struct

from fanfold.agents.toolbox.schemas import ALIASES, BY_NAME
from fanfold.kernel.plan import JSON
from fanfold.text.json_schema import schema_problem
from fanfold.text.json_value import as_text

MAX_STAGES = 16
MAX_TURNS = 10_000
MAX_DEPTH = 20
DEFAULT = "default"
_NAME = re.compile(r"[A-Za-z0-9][\w-]{0,63}\Z", re.ASCII)
_HOLE = re.compile(r"\\\{\{|\{\{([^{}]*)\}\}")
_PATH = re.compile(
    r"\s*(prompt|previous|stages\.([A-Za-z0-9][\w-]*))((?:\.[A-Za-z_][\w-]*|\[\d{1,6}\])*)\s*\Z", re.ASCII
)
_PART = re.compile(r"\.([\w-]+)|\[(\d+)\]")
_KINDS = ("model", "tool", "agent")
_KEYS = {
    "model": {"name", "model", "prompt", "instructions", "tools", "max_turns", "output_schema"},
    "tool": {"name", "tool", "args"},
    "agent": {"name", "agent", "prompt", "output_schema"},
}


class StageProblem(Exception):
    """A pipeline that cannot be used: `stage` counts from 1 (0: all of it), `key` is the word to point at."""

    def __init__(self, stage: int, key: str, message: str) -> None:
        super().__init__(message)
        self.stage = stage
        self.key = key
        self.message = message


class Unresolved(Exception):
    """A text asks for a field that the value before it does not have."""


class Stage(Struct, frozen=True, kw_only=True):
    """One stage, checked. Exactly one of `model`, `tool` and `agent` is set."""

    name: str = ""
    model: str | None = None
    """`default` or a model's name."""
    tool: str | None = None
    agent: str | None = None
    prompt: str = "{{prompt}}"
    instructions: str | None = None
    """None: the role's."""
    tools: tuple[str, ...] | None = None
    max_turns: int | None = None
    output_schema: JSON = None
    args: dict[str, Any] = {}

    @property
    def kind(self) -> str:
        return "model" if self.model is not None else "tool" if self.tool is not None else "agent"


class StageBounds(Struct, frozen=True, kw_only=True):
    """What the role around a pipeline allows."""

    tools: Sequence[str] | None = None
    read_only: bool = False
    network: bool = False
    own_tools: bool = False
    """It has tools of MCP servers, whose names are not known before they run."""


def read_stages(raw: object, bounds: StageBounds | None = None) -> tuple[Stage, ...]:
    """The stages of a pipeline as a role's file has them; raises `StageProblem`.

    With `bounds`, tools are checked too: when a file is read, not when its stages run.

    >>> read_stages([{"tool": "list_files"}, {"model": True, "prompt": "Sort {{previous}}"}])[1].model
    'default'
    """
    if not isinstance(raw, list | tuple) or not raw:
        raise StageProblem(0, "pipeline", '"pipeline" must be a list of stages, each a [[pipeline]] table')
    if len(raw) > MAX_STAGES:
        raise StageProblem(MAX_STAGES + 1, "", f"a pipeline has at most {MAX_STAGES} stages")
    names: list[str] = []
    stages: list[Stage] = []
    for number, table in enumerate(raw, 1):
        stage = _StageReader(number, table, names).read(bounds)
        stages.append(stage)
        names.append(stage.name)
    return tuple(stages)


class _StageReader:
    """Checks one table; `before` holds the names of the stages before it, empty for those without."""

    def __init__(self, number: int, table: object, before: Sequence[str]) -> None:
        if not isinstance(table, Mapping):
            raise StageProblem(number, "", f"stage {number} is not a table")
        self._number = number
        self._table = table
        self._before = before

    def read(self, bounds: StageBounds | None) -> Stage:
        kinds = [kind for kind in _KINDS if kind in self._table]
        if len(kinds) != 1:
            self._bad(kinds[1] if kinds else "", 'must have exactly one of "model", "tool" and "agent"')
        kind = kinds[0]
        for key in self._table:
            if key not in _KEYS[kind]:
                known = ", ".join(sorted(_KEYS[kind]))
                self._bad(str(key), f'a {kind} stage has no "{key}"; it has {known}')
        given: dict[str, Any] = {"name": self._name(), kind: self._what(kind)}
        if kind == "tool":
            given["args"] = self._args(given["tool"], bounds)
        else:
            given |= self._loop()
        return Stage(**given)

    def _name(self) -> str:
        name = self._table.get("name", "")
        if not isinstance(name, str) or ("name" in self._table and not _NAME.match(name)):
            self._bad("name", '"name" must be letters, digits, "-" or "_", at most 64 characters')
        if name and name in self._before:
            self._bad("name", f'the name "{name}" is taken by stage {self._before.index(name) + 1}')
        return str(name)

    def _what(self, kind: str) -> str:
        what = self._table[kind]
        if kind == "model" and what is True:
            return DEFAULT
        if not isinstance(what, str) or not what.strip():
            words = 'true, "default" or the name of a model' if kind == "model" else "a name"
            self._bad(kind, f'"{kind}" must be {words}')
        return ALIASES.get(what, what) if kind == "tool" else what

    def _loop(self) -> dict[str, Any]:
        """What model and agent stages have in common, as far as it was given."""
        table, given = self._table, dict[str, Any]()
        for key in ("prompt", "instructions"):
            if key in table:
                if not isinstance(table[key], str) or not table[key].strip():
                    self._bad(key, f'"{key}" must be text')
                given[key] = table[key]
        if "prompt" in given:
            self._check_text("prompt", given["prompt"])
        elif self._before:
            self._bad("", 'needs a "prompt": what it is told, with {{previous}} for what came before')
        if "tools" in table:
            tools = table["tools"]
            if not isinstance(tools, list | tuple) or not all(isinstance(one, str) for one in tools):
                self._bad("tools", '"tools" must be a list of names')
            given["tools"] = tuple(tools)
        if "max_turns" in table:
            turns = table["max_turns"]
            if type(turns) is not int or not 1 <= turns <= MAX_TURNS:
                self._bad("max_turns", f'"max_turns" must be a whole number from 1 to {MAX_TURNS:,}')
            given["max_turns"] = turns
        if "output_schema" in table:
            given["output_schema"] = self._schema(table["output_schema"])
        return given

    def _schema(self, schema: object) -> JSON:
        self._plain("output_schema", schema)
        problem = schema_problem(schema)
        if problem is not None:
            self._bad("output_schema", f'"output_schema" is no JSON Schema: {problem.message}')
        return schema

    def _args(self, tool: str, bounds: StageBounds | None) -> dict[str, Any]:
        args = self._table.get("args", {})
        if not isinstance(args, Mapping):
            self._bad("args", '"args" must be a table')
        self._plain("args", args)
        for text in texts(args):
            self._check_text("args", text)
        if bounds is not None:
            self._check_tool(tool, args, bounds)
        return dict(args)

    def _check_tool(self, tool: str, args: Mapping[str, Any], bounds: StageBounds) -> None:
        spec = BY_NAME.get(tool)
        if spec is None:
            if not bounds.own_tools:
                self._bad("tool", f'there is no tool "{tool}"; there are {", ".join(BY_NAME)}')
            return
        if bounds.tools is not None and tool not in {ALIASES.get(name, name) for name in bounds.tools}:
            self._bad("tool", f'the role does not allow the tool "{tool}" (see its "tools")')
        if spec.mutates and bounds.read_only:
            self._bad("tool", f'the role is read-only, and "{tool}" changes things')
        if tool == "fetch_url" and not bounds.network:
            self._bad("tool", '"fetch_url" needs `network = true` in the role')
        known = spec.schema["properties"]
        for name in args:
            if name not in known:
                self._bad("args", f'"{tool}" takes no "{name}"; it takes {", ".join(known)}')
        for name in spec.schema["required"]:
            if name not in args:
                self._bad("args" if "args" in self._table else "tool", f'"{tool}" needs "{name}"')

    def _check_text(self, key: str, text: str) -> None:
        if "{{" in _HOLE.sub("", text):
            self._bad(key, 'a "{{" is not closed; write \\{{ for a literal one')
        known = ["prompt", *(["previous"] if self._before else [])]
        known += [f"stages.{name}" for name in self._before if name]
        for hole in _HOLE.finditer(text):
            if hole[1] is None:
                continue
            found = _PATH.match(hole[1])
            if found is None or found[1] not in known:
                self._bad(key, f'"{hole[0]}" means nothing here; there are {", ".join(known)}')

    def _plain(self, key: str, value: object, depth: int = 0) -> None:
        """TOML has dates and YAML has more; a call and a schema are JSON."""
        inner: list[object] = []
        if isinstance(value, Mapping):
            inner = list(value.values())
        elif isinstance(value, list):
            inner = value
        elif value is not None and not isinstance(value, str | int | float | bool):
            self._bad(key, f'"{key}" holds a {type(value).__name__}; write it as text')
        elif isinstance(value, float) and not math.isfinite(value):
            self._bad(key, f'"{key}" holds {value}, which is no number of JSON')
        if depth > MAX_DEPTH:
            self._bad(key, f'"{key}" is nested too deeply')
        for one in inner:
            self._plain(key, one, depth + 1)

    def _bad(self, key: str, message: str) -> NoReturn:
        raise StageProblem(self._number, key, f"stage {self._number} of the pipeline: {message}")


# -- filling in


def texts(value: JSON) -> Iterator[str]:
    """Every string inside a value, keys apart."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from texts(one)


def fill(text: str, values: Mapping[str, JSON]) -> str:
    """A text with its holes filled in.

    >>> fill("{{previous.n}} of {{prompt}}", {"prompt": "{{x}}", "previous": {"n": 3}})
    '3 of {{x}}'
    """

    def put(hole: re.Match[str]) -> str:
        return "{{" if hole[1] is None else as_text(_resolve(hole[1], values))

    return _HOLE.sub(put, text)


def fill_all(value: JSON, values: Mapping[str, JSON]) -> JSON:
    """A value with the holes of all its strings filled in; a string that is one hole becomes its value.

    >>> fill_all({"limit": "{{previous}}", "path": "a/{{previous}}"}, {"previous": 3})
    {'limit': 3, 'path': 'a/3'}
    """
    if isinstance(value, str):
        hole = _HOLE.fullmatch(value)
        return _resolve(hole[1], values) if hole and hole[1] is not None else fill(value, values)
    if isinstance(value, Mapping):
        return {key: fill_all(one, values) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [fill_all(one, values) for one in value]
    return value


def _resolve(path: str, values: Mapping[str, JSON]) -> JSON:
    found = _PATH.match(path)
    assert found is not None, "holes are checked when a pipeline is read"
    value = values["stages"][found[2]] if found[2] is not None else values[found[1]]
    for part in _PART.finditer(found[3]):
        if value is None:
            return None
        if isinstance(value, Mapping) and part[1] in value:
            value = value[part[1]]
        elif isinstance(value, list) and part[2] is not None and int(part[2]) < len(value):
            value = value[int(part[2])]
        else:
            raise Unresolved(f"{{{{{path.strip()}}}}}: there is no {part[0]}")
    return value
