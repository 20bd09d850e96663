"""Calls in a workflow script: what agents are told, with which options, once, together or for each item."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple, TypeAlias

from msgspec import Struct

from fanfold.recipe.conversion.javascript import NO_LITERAL, holes_of, literal, unescaped, words_of
from fanfold.recipe.conversion.script_words import ScriptWords, Span
from fanfold.recipe.conversion.source import step_id

Locals: TypeAlias = dict[str, str]
"""Parameters of a function, and what they are in a recipe."""

_HINTS = {
    "agentType": "name a role that is known here",
    "isolation": "writers work in snapshots by themselves",
    "schema": "write it as output_schema",
    "label": "a step has one id, and its instances are told apart by their items",
}
_NO_FIELDS = frozenset({"length", "size"})
"""What JavaScript knows of every text and list, and a path does not."""


_MAX_PATH = 40
"""Words of the longest path that is looked at."""
_INDENTED = re.compile(r", null , \d+ \)\Z")


class ScriptCall(Struct, kw_only=True):
    """Agents of one call. `numbered` says at which place of a list each stood."""

    steps: list[dict[str, Any]]
    items: str | None = None
    numbered: list[tuple[int, dict[str, Any]]] = []


class _Function(NamedTuple):
    """Its parameters, the call in it, and the words around that."""

    names: list[str]
    call: int
    words: list[Span]


class Calls:
    def __init__(self, script: ScriptWords) -> None:
        self.script = script
        self.names: dict[str, str] = {}
        """Variables, and what they are in a recipe."""
        self.inputs: dict[str, Any] = {}
        self._kept: dict[str, tuple[Any, Span]] = {}
        """Constants that are plain data; their words are taken when something uses them."""

    # Names

    def pattern(self, names: Span) -> bool:
        """Whether these words are a name, or names in brackets."""
        start, end = names
        if end - start == 1:
            return self.script.is_name(start)
        return end > start and all(
            part[1] - part[0] == 1 and self.script.is_name(part[0]) for part in self.script.parts(start)
        )

    def listed(self, names: Span) -> list[int]:
        """The words of the names in a list of them."""
        if names[1] - names[0] < 2 or not self.script.says(names[0], "["):
            return []
        return [part[0] for part in self.script.parts(names[0])]

    def bind(self, names: Span, path: str) -> None:
        start, end = names
        if end - start == 1:
            self.names[self.script.words[start].text] = path
        elif end > start:
            is_list = self.script.says(start, "[")
            for number, part in enumerate(self.script.parts(start)):
                name = self.script.said(part)
                self.names[name] = f"{path}[{number}]" if is_list else f"{path}.{name}"
                if path == "inputs":
                    self.inputs.setdefault(name, {})

    def keep(self, names: Span, value: Any, words: Span) -> None:
        if names[1] - names[0] == 1:
            self._kept[self.script.said(names)] = (value, words)

    def _constant(self, at: int, end: int, kind: type) -> Any:
        """Plain data that is written here or kept under a name."""
        script = self.script
        if end - at == 1 and script.is_name(at) and script.words[at].text in self._kept:
            value, words = self._kept[script.words[at].text]
            if isinstance(value, kind):
                script.take(words)
                return value
        value, behind = literal(script.text, script.words, at)
        return value if behind == end and isinstance(value, kind) else NO_LITERAL

    def path(self, at: int, local: Locals, end: int | None = None) -> tuple[str | None, int]:
        """The path in a recipe for what begins at a word, and the index behind it."""
        last = at + _MAX_PATH if end is None else min(end, at + _MAX_PATH)
        return _path(self, [word.text for word in self.script.words[at:last]], at, local)

    def fields(self, at: int) -> dict[str, Any] | None:
        """An object of names and paths, as the output of a recipe."""
        if not self.script.says(at, "{"):
            return None
        found: dict[str, Any] = {}
        for start, end in self.script.parts(at):
            value = start + 2 if self.script.says(start + 1, ":") else start
            path, behind = self.path(value, {})
            name = self.script.words[start].text
            if path is None or behind != end or not self.script.is_name(start) or name in found:
                return None
            found[name] = path
        return found or None

    # Calls

    def read(self, at: int, name: str, names: Span) -> ScriptCall | None:
        """The call whose name stands at a word; None, and nothing is taken, when it is not understood."""
        kind, parts = self.script.words[at].text, self.script.parts(at + 1)
        if not parts:
            return None
        if kind == "agent":
            return ScriptCall(steps=[self._agent(at, name, {})])
        if kind == "pipeline":
            return self._pipeline(parts, name)
        return self._parallel(parts, name, names) if len(parts) == 1 else None

    def _agent(self, at: int, name: str, local: Locals) -> dict[str, Any]:
        script = self.script
        parts = script.parts(at + 1)
        script.take((at, at + 2), (script.partner[at + 1], script.partner[at + 1] + 1))
        step: dict[str, Any] = {"id": step_id(name)}
        if len(parts) > 1:
            self._options(parts[1], step)
        step["prompt"] = self._prompt(parts[0], local).strip() or "Go on." if parts else "Go on."
        return step

    def _parallel(self, parts: list[Span], name: str, names: Span) -> ScriptCall | None:
        script = self.script
        start, end = parts[0]
        if script.says(start, "[") and script.partner[start] == end - 1:
            listed, found = self.listed(names), []
            for number, span in enumerate(script.parts(start)):
                thunk = self._function(span, nested=False)
                if thunk is None or thunk.names:
                    continue  # its words are listed
                own = script.words[listed[number]].text if number < len(listed) else f"{name}{number + 1}"
                script.take(*thunk.words)
                found.append((number, self._agent(thunk.call, own, {})))
            if not found:
                return None
            script.take((start, start + 1), (end - 1, end))
            return ScriptCall(steps=[step for _, step in found], numbered=found)
        mapped = next((at for at in range(start, end) if script.says(at, ".", "map", "(")), None)
        if mapped is None or script.partner[mapped + 2] != end - 1:
            return None
        thunk = self._function((mapped + 3, end - 1), nested=True)
        items = self._items((start, mapped)) if thunk is not None else None
        if thunk is None or items is None:
            return None
        script.take((start, mapped + 3), (end - 1, end), *thunk.words)
        local = _parameters(thunk.names, ("item", "index"))
        return ScriptCall(steps=[self._agent(thunk.call, name, local)], items=items)

    def _pipeline(self, parts: list[Span], name: str) -> ScriptCall | None:
        stages = [self._function(span, nested=False) for span in parts[1:]]
        understood = [stage for stage in stages if stage is not None]
        if not understood or len(understood) < len(stages):
            return None
        items = self._items(parts[0])
        if items is None:
            return None
        self.script.take(parts[0])
        steps: list[dict[str, Any]] = []
        for number, stage in enumerate(understood):
            self.script.take(*stage.words)
            last = f"steps.{steps[-1]['id']}.output" if steps else "item"
            local = _parameters(stage.names, (last, "item", "index"))
            step = self._agent(stage.call, f"stage{number + 1}", local)
            step["id"] = f"{step_id(name)}-{number + 1}"
            if steps:
                step["depends_on"] = [steps[-1]["id"]]
            steps.append(step)
        return ScriptCall(steps=steps, items=items)

    def _items(self, span: Span) -> str | None:
        """What a map runs over, as an expression."""
        path, behind = self.path(span[0], {}, span[1])
        if path is not None and behind == span[1]:
            return path.replace("-", "_")
        value = self._constant(*span, list)
        return None if value is NO_LITERAL else json.dumps(value, ensure_ascii=False)

    def _function(self, span: Span, *, nested: bool) -> _Function | None:
        """A function that only calls `agent`; `nested`: one that gives such a one."""
        script = self.script
        at, end = span
        first = at
        at += script.says(at, "async")
        names: list[str] = []
        if script.says(at, "("):
            parts = script.parts(at)
            names = [script.said(part) for part in parts]
            at = script.partner[at] + 1
        elif script.is_name(at):
            names, at = [script.words[at].text], at + 1
        if not script.says(at, "=>") or not all(map(_is_plain_name, names)):
            return None
        at += 1
        if nested:
            inner = self._function((at, end), nested=False)
            if inner is None or inner.names:
                return None
            return _Function(names, inner.call, [(first, at), *inner.words])
        if script.says(at, "{", "return") and script.partner[at] == end - 1:
            at, end = at + 2, end - 1
            end -= script.says(end - 1, ";")
        at += script.says(at, "await")
        if not script.says(at, "agent", "(") or script.partner[at + 1] != end - 1 or not script.parts(at + 1):
            return None
        return _Function(names, at, [(first, at), (end, span[1])])

    # What an agent is told

    def _prompt(self, span: Span, local: Locals) -> str:
        """Texts, templates and values, put together; anything else stays as it is written, and is listed."""
        script = self.script
        said: list[str] = []
        at, end = span
        while at < end:
            word = script.words[at]
            if word.kind == "text":
                said.append(_escaped(unescaped(word.text[1:-1])))
                at += 1
            elif word.kind == "template":
                said.append(self._template(at, local))
                at += 1
            else:
                path, behind = self.path(at, local)
                if path is None:
                    break
                said.append(f"{{{{{path}}}}}")
                at = behind
            if at < end and not script.says(at, "+"):
                break
            at += at < end
        else:
            if not (end > span[0] and script.says(end - 1, "+")):
                script.take(span)
                return "".join(said)
        return f"({_escaped(script.said(span))})"

    def _template(self, at: int, local: Locals) -> str:
        script = self.script
        parts: list[str] = []
        for part in holes_of(script.text, script.words[at]):
            if isinstance(part, str):
                parts.append(_escaped(part))
                continue
            source = script.text[part[0] : part[1]]
            words = [word.text for word in words_of(source)]
            path, behind = _path(self, words, 0, local)
            if path is None or behind != len(words):
                line = script.line_of(part[0])
                shown = " ".join(source.split())[:100]
                script.source.lose(line, f"${{{shown}}}", "templates name values, and no more")
                parts.append(f"(${{{_escaped(source)}}})")
            else:
                parts.append(f"{{{{{path}}}}}")
        return "".join(parts)

    def _options(self, span: Span, step: dict[str, Any]) -> None:
        script = self.script
        start, end = span
        if not script.says(start, "{") or script.partner[start] != end - 1:
            return
        script.take((start, start + 1), (end - 1, end))
        seen: set[str] = set()
        for first, last in script.parts(start):
            key = (
                script.words[first].text.strip("'\"") if script.words[first].kind in ("name", "text") else ""
            )
            if key in seen or not key or not (script.says(first + 1, ":") or last == first + 1):
                script.lose(first, script.said((first, last)), "an option is a name and a value, once")
            elif not self._option(key, (first + 2 if last > first + 1 else first, last), step):
                script.lose(
                    first, script.said((first, last)), _HINTS.get(key, "recipes have nothing like it")
                )
            seen.add(key)
            script.take((first, last))

    def _option(self, key: str, value: Span, step: dict[str, Any]) -> bool:
        if key == "schema":
            found = self._constant(*value, dict)
            if found is not NO_LITERAL and found:
                step["output_schema"] = found
            return "output_schema" in step
        if key not in ("label", "model", "phase"):
            return False
        said = self._constant(*value, str)
        if said is NO_LITERAL or not said.strip():
            return False
        if key == "label":
            step["id"] = step_id(said)
        else:
            step["model" if key == "model" else "description"] = said
        return True


def _path(calls: Calls, words: list[str], at: int, local: Locals) -> tuple[str | None, int]:
    """A path that begins with the first of some words, and how far it goes, counted from `at`."""
    if words[:4] == ["JSON", ".", "stringify", "("]:
        path, behind = _path(calls, words[4:], 0, local)
        rest = words[4 + behind :]
        if path is not None and rest[:1] == [")"]:
            return path, at + 4 + behind + 1
        if path is not None and _INDENTED.match(" ".join(rest[:5])):
            return path, at + 4 + behind + 5
        return None, at
    first = words[0] if words else ""
    is_input = first == "args" and first not in local and first not in calls.names
    known = "inputs" if is_input else local.get(first) or calls.names.get(first)
    if known is None:
        return None, at
    end, fields = 1, ""
    while words[end : end + 1] in (["."], ["["]):
        inner = words[end + 1] if end + 1 < len(words) else ""
        if words[end] == "." and _is_plain_name(inner) and inner not in _NO_FIELDS:
            fields, end = f"{fields}.{inner}", end + 2
        elif words[end] == "[" and re.fullmatch(r"\d{1,9}", inner) and words[end + 2 : end + 3] == ["]"]:
            fields, end = f"{fields}[{inner}]", end + 3
        else:
            return None, at
    if words[end : end + 1] in (["("], ["?."], ["`"]):
        return None, at
    if not is_input:
        return known + fields, at + end
    name = re.split(r"[.\[]", fields.removeprefix("."))[0] if fields.startswith(".") else ""
    if fields and not is_input_name(name):
        return None, at
    calls.inputs.setdefault(name or "args", {})
    return (f"inputs{fields}" if fields else "inputs.args"), at + end


def _parameters(names: list[str], meant: tuple[str, ...]) -> Locals:
    return dict(zip(names, meant, strict=False))


def _is_plain_name(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) is not None


def is_input_name(name: str) -> bool:
    return _is_plain_name(name)


def _escaped(text: str) -> str:
    return text.replace("{{", "\\{{")
