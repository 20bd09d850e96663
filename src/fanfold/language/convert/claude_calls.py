"""Calls in a workflow script: prompts and options of agents, for single, parallel and mapped calls."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from msgspec import Struct

from fanfold.language.convert.javascript import (
    NO_LITERAL,
    RESERVED,
    Locals,
    ScriptWords,
    Span,
    constant_text,
    holes_of,
    is_plain_name,
    listed_path,
    literal,
    parameters,
    read_path,
    unescaped,
    words_of,
)
from fanfold.language.convert.source import UNWRITTEN, is_refused, not_for_agents, step_id
from fanfold.language.template import in_expression
from fanfold.language.template import literal as escaped

_HINTS = {
    "agentType": "name a role that is known here",
    "isolation": "writers work in snapshots by themselves",
    "schema": "write it as output_schema",
    "label": "a step has one id, and its instances are identified by their items",
}
_ROLES = {"Explore": "explorer", "Plan": "planner", "general-purpose": "default"}
"""The built-in roles of Claude Code, and our equivalents."""


_DECIDES = frozenset({"schema", "model", "effort", "agentType"})
"""Options without which an agent would do something else."""
_ASSIGNS = frozenset("= += -= *= /= %= ++ --".split())
_CHANGES = frozenset("push pop shift unshift splice sort reverse fill set add delete clear".split())
"""Methods that change a list, a map or a set."""
_MAX_PATH = 40
"""Maximum number of tokens in a path."""


class ScriptCall(Struct, kw_only=True):
    """Agents of one call."""

    steps: list[dict[str, Any]]
    items: str | None = None
    changed: bool = False
    """Whether JavaScript changes what the agents return."""


class _Function(NamedTuple):
    """The parameters of a function, its call, and the tokens around it."""

    names: list[str]
    call: int
    words: list[Span]
    over: Span | None = None
    """The list over whose items the call runs, and the name of an item."""
    each: str | None = None
    changes: bool = False
    """Whether code after the call changes what it returns."""


class Calls:
    def __init__(self, script: ScriptWords) -> None:
        self.script = script
        self.names: dict[str, str] = {}
        """Variables, and their paths in a recipe."""
        self.inputs: dict[str, Any] = {}
        self._clear = True
        """Whether the last prompt was converted completely."""
        self._named: list[Span] = []
        """The declarations of the constants in the last data."""
        self._kept: dict[str, tuple[Any, list[Span]]] = {}
        """Constants that are plain data; their tokens are marked when they are used."""

    def pattern(self, names: Span) -> bool:
        """Return whether these tokens are a name, or names in brackets."""
        start, end = names
        if end - start == 1:
            return self.script.is_name(start)
        return end > start and all(
            part[1] - part[0] == 1 and self.script.is_name(part[0]) for part in self.script.parts(start)
        )

    def listed(self, names: Span) -> list[int]:
        """Return the tokens of the names in a list of them."""
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
                name = self.script.source_of(part)
                self.names[name] = f"{path}[{number}]" if is_list else f"{path}.{name}"
                if path == "inputs":
                    self.inputs.setdefault(name, {})

    def forget(self, names: Span) -> None:
        """Forget variables with values that only JavaScript knows, so that their uses are not converted."""
        for word in self.script.words[names[0] : names[1]]:
            self.names.pop(word.text, None)
            self._kept.pop(word.text, None)

    def forget_changed(self, at: int) -> None:
        """Forget the variable at a token if it is assigned or changed there."""
        script = self.script
        if not script.is_name(at) or script.says(at - 1, "."):
            return
        end, method = at + 1, ""
        while end + 1 < len(script.words) and script.words[end].text in (".", "["):
            if script.says(end, "["):
                end, method = script.partner[end] + 1, ""
            else:
                end, method = end + 2, script.words[end + 1].text
        end += end + 1 < len(script.words) and script.words[end].text in ("||", "&&", "??")
        sign = script.words[end].text if end < len(script.words) else ""
        if sign in _ASSIGNS or (sign == "(" and method in _CHANGES):
            self.forget((at, at + 1))

    def keep(self, names: Span, value: Any, words: Span) -> None:
        if names[1] - names[0] == 1:
            self._kept[self.script.source_of(names)] = (value, [words, *self._named])

    def data(self, at: int) -> tuple[Any, int]:
        """Return the plain data at a token, including constants, and the index after it.

        `use` marks the tokens of these constants when the data is in the recipe.
        """
        self._named = []
        return literal(self.script.text, self.script.words, at, self.constant)

    def constant(self, words: list[str]) -> Any:
        """Return the value of a constant, or a field of it."""
        if not words or words[0] not in self._kept or words[1::2] != ["."] * (len(words) // 2):
            return NO_LITERAL
        value, declared = self._kept[words[0]]
        for field in words[2::2]:
            if not isinstance(value, dict) or field not in value:
                return NO_LITERAL
            value = value[field]
        self._named += declared
        return value

    def use(self) -> None:
        """Mark the constants in the last data, which is in the recipe now."""
        self.script.take(*self._named)

    def _constant(self, at: int, end: int, kind: type) -> Any:
        """Return the plain data of a kind in these tokens."""
        value, behind = self.data(at)
        if behind != end or not isinstance(value, kind):
            return NO_LITERAL
        self.use()
        return value

    def path(self, at: int, local: Locals, end: int | None = None) -> tuple[str | None, int]:
        """Return the path in a recipe for the tokens from `at`, and the index after it."""
        last = at + _MAX_PATH if end is None else min(end, at + _MAX_PATH)
        return read_path(
            self.names, self.inputs, [word.text for word in self.script.words[at:last]], at, local
        )

    def fields(self, at: int) -> dict[str, Any] | None:
        """Return an object of names and paths, as the output of a recipe."""
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

    def read(self, at: int, name: str, names: Span) -> ScriptCall | None:
        """Return the call at a token; None, with nothing marked, if it is not understood."""
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
        for span in parts[1:]:
            self._options(span, step)
        self._clear = True
        prompt = self._prompt(parts[0], local).strip() if parts else ""
        for words, why in not_for_agents(prompt):
            script.lose(at, words, why)
        clear = self._clear and UNWRITTEN not in step and not is_refused(prompt)
        step["prompt" if clear else UNWRITTEN] = prompt or "Continue."
        return step

    def _parallel(self, parts: list[Span], name: str, names: Span) -> ScriptCall | None:
        script = self.script
        start, end = parts[0]
        if script.says(start, "[") and script.partner[start] == end - 1:
            listed, changed = self.listed(names), False
            found: list[dict[str, Any]] = []
            for number, span in enumerate(script.parts(start)):
                thunk = self._function(span, nested=False)
                own = script.words[listed[number]].text if number < len(listed) else f"{name}{number + 1}"
                if thunk is None or thunk.names:  # its tokens are listed
                    found.append({"id": step_id(own), UNWRITTEN: script.source_of(span)})
                    continue
                script.take(*thunk.words)
                changed = changed or thunk.changes
                found.append(self._agent(thunk.call, own, {}))
            if not found:
                return None
            script.take((start, start + 1), (end - 1, end))
            return ScriptCall(steps=found, changed=changed)
        found_map = self._mapped(start, end)
        items = self._items((start, found_map[0])) if found_map is not None else None
        if found_map is None or items is None:
            return None
        mapped, thunk = found_map
        script.take((start, mapped + 3), (end - 1, end), *thunk.words)
        local = parameters(thunk.names, ("item", "index"))
        steps = [self._agent(thunk.call, name, local)]
        return ScriptCall(steps=steps, items=items, changed=thunk.changes)

    def _pipeline(self, parts: list[Span], name: str) -> ScriptCall | None:
        stages = [self._function(span, nested=False) or self._fan(span) for span in parts[1:]]
        understood = [stage for stage in stages if stage is not None]
        if not understood or len(understood) < len(stages):
            return None
        items = self._items(parts[0])
        if items is None:
            return None
        self.script.take(parts[0])
        steps: list[dict[str, Any]] = []
        changed = False
        for number, stage in enumerate(understood):
            self.script.take(*stage.words)
            last = f"steps.{steps[-1]['id']}.output" if steps else "item"
            local = parameters(stage.names, (last, "item", "index"))
            if changed and stage.names:
                del local[stage.names[0]]
            changed = stage.changes
            step: dict[str, Any] = {"id": f"{step_id(name)}-{number + 1}"}
            if stage.over is not None:
                over, _ = self.path(stage.over[0], local, stage.over[1])
                each = stage.each or "one"
                step |= {"for_each": in_expression(over or "[]"), "as": each}
                local |= {each: each}
            step = self._agent(stage.call, f"stage{number + 1}", local) | step
            if steps:
                step["depends_on"] = [steps[-1]["id"]]
            steps.append(step)
        return ScriptCall(steps=steps, items=items, changed=changed)

    def _fan(self, span: Span) -> _Function | None:
        """Return a function that calls `parallel` for each result of the previous stage.

        Authors write that list with a fallback for an empty list: `(found?.list ?? []).map(…)`.
        """
        script = self.script
        head = self._head(span)
        if head is None:
            return None
        names, at = head
        at += script.says(at, "await")
        if not script.says(at, "parallel", "(") or script.partner[at + 1] != span[1] - 1:
            return None
        start, end = at + 2, span[1] - 1
        end -= script.says(end - 1, ",")
        found_map = self._mapped(start, end)
        if found_map is None:
            return None
        mapped, thunk = found_map
        over = listed_path(script, (start, mapped))
        known = parameters(names, ("steps.x.output", "item", "index"))
        if over is None or self.path(over[0], known, over[1])[1] != over[1]:
            return None
        each = thunk.names[0] if thunk.names and thunk.names[0] not in RESERVED else None
        if len(thunk.names) > 1 or (thunk.names and each is None):
            return None
        words = [(span[0], mapped + 3), (end - 1, span[1]), *thunk.words]
        return _Function(names, thunk.call, words, over, each, thunk.changes)

    def _mapped(self, start: int, end: int) -> tuple[int, _Function] | None:
        """Return the position of a final `.map(` in these tokens, and the function in it."""
        script = self.script
        at = next((one for one in range(start, end) if script.says(one, ".", "map", "(")), None)
        if at is None or script.partner[at + 2] != end - 1:
            return None
        thunk = self._function((at + 3, end - 1), nested=True)
        return None if thunk is None else (at, thunk)

    def _items(self, span: Span) -> str | None:
        """Return the list of a map as an expression."""
        path, behind = self.path(span[0], {}, span[1])
        if path is not None and behind == span[1]:
            return in_expression(path)
        value = self._constant(*span, list)
        return None if value is NO_LITERAL else json.dumps(value, ensure_ascii=False)

    def _function(self, span: Span, *, nested: bool) -> _Function | None:
        """Return a function that only calls `agent`; `nested`: a function that returns such a function."""
        script = self.script
        first, end = span
        head = self._head(span)
        if head is None:
            return None
        names, at = head
        if nested:
            inner = self._function((at, end), nested=False)
            if inner is None or inner.names:
                return None
            return inner._replace(names=names, words=[(first, at), *inner.words])
        if script.says(at, "{", "return") and script.partner[at] == end - 1:
            at, end = at + 2, end - 1
            end -= script.says(end - 1, ";")
        at += script.says(at, "await")
        if not script.says(at, "agent", "(") or not script.parts(at + 1):
            return None
        behind = script.partner[at + 1] + 1
        if behind != end and not script.says(behind, ".", "then", "("):
            return None  # code that processes the answer is listed
        return _Function(names, at, [(first, at), (end, span[1])], changes=behind != end)

    def _head(self, span: Span) -> tuple[list[str], int] | None:
        """Return the parameters of a function, and where its body starts."""
        script = self.script
        at = span[0] + script.says(span[0], "async")
        names: list[str] = []
        if script.says(at, "("):
            names = [script.source_of(part) for part in script.parts(at)]
            at = script.partner[at] + 1
        elif script.is_name(at):
            names, at = [script.words[at].text], at + 1
        if not script.says(at, "=>") or not all(map(is_plain_name, names)):
            return None
        return names, at + 1

    def _prompt(self, span: Span, local: Locals) -> str:
        """Return the joined texts, templates and values; anything else stays as it is and is listed."""
        script = self.script
        texts: list[str] = []
        at, end = span
        while at < end:
            word = script.words[at]
            if word.kind == "text":
                texts.append(escaped(unescaped(word.text[1:-1])))
                at += 1
            elif word.kind == "template":
                texts.append(self._template(at, local))
                at += 1
            else:
                value, behind = self.data(at)
                path = None
                if isinstance(value, bool) or not isinstance(value, str | int | float):
                    path, behind = self.path(at, local)
                    if path is None:
                        break
                else:
                    self.use()
                texts.append(escaped(str(value)) if path is None else f"{{{{{path}}}}}")
                at = behind
            if at < end and not script.says(at, "+"):
                break
            at += at < end
        else:
            if not (end > span[0] and script.says(end - 1, "+")):
                script.take(span)
                return "".join(texts)
        self._clear = False
        return f"({escaped(script.source_of(span))})"

    def _template(self, at: int, local: Locals) -> str:
        script = self.script
        parts: list[str] = []
        for part in holes_of(script.text, script.words[at]):
            if isinstance(part, str):
                parts.append(escaped(part))
                continue
            source = script.text[part[0] : part[1]]
            words = [word.text for word in words_of(source)]
            self._named = []
            inlined = constant_text(source, self.constant)
            if isinstance(inlined, str):
                self.use()
                parts.append(escaped(inlined))
                continue
            path, behind = read_path(self.names, self.inputs, words, 0, local)
            if path is None or behind != len(words):
                self._clear = False
                line = script.line_of(part[0])
                shown = " ".join(source.split())[:100]
                script.source.lose(line, f"${{{shown}}}", "templates name values, and no more")
                parts.append(f"(${{{escaped(source)}}})")
            else:
                parts.append(f"{{{{{path}}}}}")
        return "".join(parts)

    def _options(self, span: Span, step: dict[str, Any]) -> None:
        script = self.script
        start, end = span
        if not script.says(start, "{") or script.partner[start] != end - 1:
            step[UNWRITTEN] = ""  # its tokens are listed
            return
        script.take((start, start + 1), (end - 1, end))
        seen: set[str] = set()
        for first, last in script.parts(start):
            key = (
                script.words[first].text.strip("'\"") if script.words[first].kind in ("name", "text") else ""
            )
            if key in seen or not key or not (script.says(first + 1, ":") or last == first + 1):
                script.lose(first, script.source_of((first, last)), "an option is a name and a value, once")
                step[UNWRITTEN] = ""
            elif not self._option(key, (first + 2 if last > first + 1 else first, last), step):
                script.lose(
                    first, script.source_of((first, last)), _HINTS.get(key, "recipes have nothing like it")
                )
                if key in _DECIDES and (key != "agentType" or "agent" not in step):
                    step[UNWRITTEN] = ""
            seen.add(key)
            script.take((first, last))

    def _option(self, key: str, value: Span, step: dict[str, Any]) -> bool:
        if key == "schema":
            found = self._constant(*value, dict)
            if found is NO_LITERAL or not found:
                return False
            step["output_schema"] = found
            return True
        if key not in ("label", "model", "phase", "effort", "agentType"):
            return False
        text = self._constant(*value, str)
        if text is NO_LITERAL or not text.strip():
            return False
        role = text if text in self.script.source.roles else _ROLES.get(text)
        if key == "agentType" and role is None:
            step["agent"] = text  # `check` refuses it until there is such a role
            return False
        if key == "label":
            step["id"] = step_id(text)
        elif key == "agentType":
            step["agent"] = role
        else:
            step[{"phase": "description", "effort": "reasoning_effort"}.get(key, key)] = text
        return True
