"""Converts workflow scripts of Claude Code: calls of `agent`, `parallel` and `pipeline`, in their order.

Nothing is run. Converted tokens are marked (`ScriptWords`). All others are listed by line, including logic in
JavaScript (conditions, loops, code between the calls).
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from msgspec import Struct

from fanfold.errors import AuthorError
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
from fanfold.language.convert.source import (
    UNWRITTEN,
    ConversionResult,
    ForeignFile,
    is_refused,
    not_for_agents,
    slug,
    step_id,
)
from fanfold.language.template import in_expression
from fanfold.language.template import literal as escaped

_OR_NONE = r"(?:\|\||\?\?) \{ \}"
_ALL_ARGUMENTS = (
    re.compile(
        r"\(? ?typeof args === ['\"]string['\"] ?\)? \? JSON \. parse \( args (?:\|\| ['\"]\{\}['\"] )?\) : "
        rf"(?:\( args {_OR_NONE} \)|args {_OR_NONE}|args)(?= |\Z)"
    ),
    re.compile(rf"args(?: {_OR_NONE})?(?= |\Z)"),
)
_DECIDING = frozenset("if for while switch catch with".split())
_CALLS = ("agent", "parallel", "pipeline", "workflow")


class ClaudeScript:
    def __init__(self, source: ForeignFile) -> None:
        self.source = source
        self.script = ScriptWords(source)
        self.calls = Calls(self.script)
        self.opening = {end: start for start, end in self.script.partner.items()}
        self.steps: list[dict[str, Any]] = []
        self.recipe: dict[str, Any] = {"name": "converted"}
        self.before: list[str] = []
        """The steps that the next call waits for."""
        self.taken_ids: set[str] = set()
        self.times: dict[str, int] = {}
        self.inside: list[int] = []
        """The ends of the blocks around the current statement."""
        self.phase = ""
        self.may_have_ended = False
        """Whether JavaScript before this token may have ended the script."""

    def convert(self) -> ConversionResult:
        at = 0
        while at < len(self.script.words):
            at = self._statement(at)
        if not self.steps:
            message = f"{self.source.file}: no agent is called in it: it is no workflow script of Claude Code"
            raise AuthorError("convert.unreadable", message)
        self.script.lose_rest()
        if self.calls.inputs:
            self.recipe["inputs"] = self.calls.inputs
        self.recipe["steps"] = self.steps
        if "output" in self.recipe:
            self.recipe["output"] = self.recipe.pop("output")  # at the usual position
        return ConversionResult(self.recipe, sorted(self.source.lost))

    def _statement(self, at: int) -> int:
        """Convert the statement at a token if it is understood; return the index to continue at."""
        script = self.script
        if script.says(at, "export", "const", "meta", "=", "{"):
            return self._meta(at)
        if script.words[at].text in ("const", "let", "var") and script.words[at].kind == "name":
            return self._declaration(at) or at + 1
        is_assigned = script.is_name(at) and script.says(at + 1, "=") and not script.says(at - 1, ".")
        if is_assigned and (found := self._assigned(at, (at, at + 1), at + 2)) is not None:
            return found
        self.calls.forget_changed(at)
        if script.says(at, "return") and self._is_outside(at) and self._begins(at):
            return self._return(at)
        if script.says(at, "if", "(") and (end := self._guard(at)) is not None:
            return end
        if script.words[at].text in ("return", "throw") and script.is_name(at) and not self._in_function(at):
            self.may_have_ended = True
        if script.says(at, "phase", "("):
            return self._phase(at) or at + 1
        begun = at + 1 if script.says(at, "await") else at
        if self._is_call(begun):
            return self._call(begun, (at, begun), (at, at)) or begun + 1
        head = [word.text for word in script.words[max(0, at - 12) : at]]
        is_main = "default" in head and "export" in head  # the exported function runs completely and once
        if script.says(at, "{") and not is_main:
            self.inside.append(script.partner[at])
        return at + 1

    def _is_outside(self, at: int) -> bool:
        """Return whether no condition, loop or function is around a token."""
        while self.inside and self.inside[-1] < at:
            self.inside.pop()
        return not self.inside

    def _in_function(self, at: int) -> bool:
        """Return whether a token is inside a function and does not affect the script itself."""
        words = self.script.words
        for end in self.inside:
            start = self.opening[end]
            if end < at or start == 0:
                continue
            if words[start - 1].text == "=>":
                return True
            if words[start - 1].text == ")" and words[self.opening[start - 1] - 1].text not in _DECIDING:
                return True
        return False

    def _guard(self, at: int) -> int | None:
        """Convert `if (!args.name) throw …` to a required input; return the index after it, or None."""
        script = self.script
        closing = script.partner[at + 1]
        needed, place = [], at + 2
        while place < closing and script.says(place, "!"):
            if script.says(place + 1, "args") and (place + 2 == closing or script.says(place + 2, "||")):
                place += 2
            else:
                path, place = self.calls.path(place + 1, {}, closing)
                name = (path or "").removeprefix("inputs.")
                if path == name or not is_plain_name(name):
                    return None
                needed.append(name)
            if place < closing and not script.says(place, "||"):
                return None
            place += place < closing
        body = closing + 1
        block = script.says(body, "{")
        first = body + 1 if block else body
        if place != closing or not needed or not self._is_outside(at) or first >= len(script.words):
            return None
        if script.words[first].text not in ("throw", "return", "log") or not script.is_name(first):
            return None
        end = script.partner[body] + 1 if block else self._statement_end(first)
        if any(self._is_call(one) for one in range(first, end)):
            return None
        for name in needed:
            if "default" not in self.calls.inputs.setdefault(name, {}):
                self.calls.inputs[name]["required"] = True
        script.take((at, end))
        return end

    def _statement_end(self, at: int) -> int:
        """Return the index after a statement without braces."""
        end = self.script.partner.get(at, at) + 1
        while end < len(self.script.words) and not self._ends(end):
            end = self.script.partner.get(end, end) + 1
        return end

    def _is_call(self, at: int) -> bool:
        script = self.script
        named = script.is_name(at) and script.words[at].text in _CALLS and script.says(at + 1, "(")
        return named and not script.says(at - 1, ".") and not script.says(at - 1, "function")

    def _begins(self, at: int) -> bool:
        """Return whether a statement can start here without a condition before it."""
        if at == 0 or self.script.taken[at - 1]:
            return True
        last = self.script.words[at - 1]
        if last.kind == "mark" and last.text in ")]":
            opened = self.opening.get(at - 1, 0)
            deciding = self.script.words[opened - 1].text in _DECIDING if opened else False
            return not deciding and self.script.line(at - 1) < self.script.line(at)
        if last.kind == "mark":
            return last.text in (";", "{", "}")
        return last.text != "else" and self.script.line(at - 1) < self.script.line(at)

    def _meta(self, at: int) -> int:
        script = self.script
        found, end = literal(script.text, script.words, at + 4)
        if not isinstance(found, dict):
            return at + 4
        script.take((at, end))
        for key, kind in (("name", str), ("description", str)):
            if key in found and not isinstance(found[key], kind):
                script.lose(at, f"meta: {key}", "it is no text")
                del found[key]
        if found.get("name"):
            self.recipe["name"] = slug(found.pop("name"))
        if found.get("description"):
            self.recipe["description"] = found.pop("description")
        if found:
            self.recipe["metadata"] = found
        return end

    def _declaration(self, at: int) -> int | None:
        """Convert `const NAME = …`, also with a list or an object of names."""
        script = self.script
        opening = script.words[at + 1].text if at + 1 < len(script.words) else ""
        end = script.partner[at + 1] + 1 if opening in ("[", "{") else at + 2
        names = (at + 1, end)
        if not script.says(end, "=") or not self.calls.pattern(names):
            return None
        value = end + 1
        if (found := self._assigned(at, names, value)) is not None:
            return found
        path: str | None = "inputs"
        last = self._end_of_arguments(value)
        if last is None or opening == "[" or not self._ends(last):
            path, last = self.calls.path(value, {})
            default, behind = self.calls.data(last + 1)
            if path is not None and self._is_default(last, behind, path, default):
                last = behind
        if path is not None and self._ends(last):
            script.take((at, last))
            self.calls.bind(names, path)
            return last
        kept, last = self.calls.data(value)
        if kept is not NO_LITERAL and script.says(at, "const") and self._ends(last):
            self.calls.keep(names, kept, (at, last))
            return last
        return None

    def _end_of_arguments(self, at: int) -> int | None:
        """Return the end of an expression for all of `args`, which accepts an object or text; else None."""
        if self.script.says(at, "(") and self._end_of_arguments(at + 1) == self.script.partner[at]:
            return self.script.partner[at] + 1
        words = " ".join(word.text for word in self.script.words[at : at + 40])
        found = next((one for known in _ALL_ARGUMENTS if (one := known.match(words))), None)
        return None if found is None else at + len(found[0].split())

    def _is_default(self, at: int, end: int, path: str, default: Any) -> bool:
        name = path.removeprefix("inputs.")
        given = self.script.words[at].text in ("??", "||") if at < len(self.script.words) else False
        if not given or default is NO_LITERAL or not self._ends(end) or not is_plain_name(name):
            return False
        known = self.calls.inputs.setdefault(name, {})
        return bool(known.setdefault("default", default) == default and path.startswith("inputs."))

    def _ends(self, at: int) -> bool:
        """Return whether a value ends before this token and does not continue with a mark."""
        if at >= len(self.script.words):
            return True
        word = self.script.words[at]
        if word.kind == "mark":
            return word.text in (";", "}")
        return self.script.line(at - 1) < self.script.line(at) and word.kind == "name"

    def _assigned(self, at: int, names: Span, value: int) -> int | None:
        begun = value + 1 if self.script.says(value, "await") else value
        if not self._is_call(begun) or not self.calls.pattern(names):
            return None
        return self._call(begun, (at, begun), names)

    def _phase(self, at: int) -> int | None:
        parts = self.script.parts(at + 1)
        title, end = literal(self.script.text, self.script.words, at + 2)
        if len(parts) != 1 or not isinstance(title, str) or end != parts[0][1]:
            return None
        self.phase = title
        self.script.take((at, end + 1))
        return end + 1

    def _return(self, at: int) -> int:
        """Convert `return …` to the output; one that is not understood is to be written."""
        script = self.script
        begun = at + 2 if script.says(at + 1, "await") else at + 1
        if begun >= len(script.words) or self._ends(begun):
            return at + 1
        end: int | None = None
        output: Any = f"{{{{{UNWRITTEN}}}}}"
        if self._is_call(begun):
            if (end := self._call(begun, (at, begun), (at, at))) is not None and self._ends(end):
                output = f"{{{{steps.{self.steps[-1]['id']}.output}}}}"
        else:
            path, behind = self.calls.path(begun, {})
            fields = self.calls.fields(begun)
            if path is not None and self._ends(behind):
                end, output = behind, f"{{{{{path}}}}}"
            elif fields is not None and self._ends(script.partner[begun] + 1):
                end, output = script.partner[begun] + 1, fields
            script.take((at, end or at))
        self.recipe.setdefault("output", output)
        return end or at + 1

    def _call(self, at: int, before: Span, names: Span) -> int | None:
        """Convert the call at a token; the tokens before it are marked if it is understood."""
        kind, end = self.script.words[at].text, self.script.partner[at + 1] + 1
        name = self.script.source_of(names) if names[1] - names[0] == 1 else ""
        last = self.before
        if kind == "workflow":
            written = self.script.source_of((at, end))
            self.script.lose(at, written, "call the other recipe with a `workflow` step")
            self.script.take(before, (at, end))
            self._add({"id": name or kind, UNWRITTEN: written}, last, names)
            return end
        first = before[0]
        declared = self.script.says(first - 1, "=") or self.script.says(first - 1, "return")
        once = self._is_outside(first) and (declared or self._begins(first)) and not self.may_have_ended
        if (call := self.calls.read(at, name or kind, names)) is None:
            return None
        if not once:
            for step in call.steps:
                prompt = step.pop("prompt", "") or step.get(UNWRITTEN)
                step[UNWRITTEN] = f"JavaScript decides when and how often: {prompt}"
        self.script.take(before, (at, at + 2), (end - 1, end))
        each = {"for_each": call.items, "on_failure": "inline"}
        if kind == "parallel" and call.items is None:
            self._together(call, last, names, name)
        elif kind == "pipeline":
            self._add({"id": name or "pipeline", **each, "steps": call.steps}, last, names)
        else:
            (step,) = call.steps
            self._add(step if call.items is None else step | each, last, names)
        if call.changed or not (self._ends(end) or self.script.says(end, ",")):
            self.calls.forget(names)
        return end

    def _together(self, call: ScriptCall, last: list[str], names: Span, name: str) -> None:
        listed = self.calls.listed(names)
        added: list[str] = []
        for number, step in enumerate(call.steps):
            own = listed[number] if number < len(listed) else None
            self._add(step | {"on_failure": "inline"}, last, (own, own + 1) if own is not None else (0, 0))
            added.append(self.steps[-1]["id"])
        self.before = added
        if name:
            joined = self._unique(step_id(name))
            values = ", ".join(f"steps.{in_expression(one)}.output" for one in added)
            self.steps.append({"id": joined, "depends_on": added, "set": {"all": f"[{values}]"}})
            self.calls.names[name] = f"steps.{joined}.output.all"
            self.before = [joined]

    def _add(self, step: dict[str, Any], last: list[str], names: Span) -> None:
        rest = {key: value for key, value in step.items() if key != "id"}
        made: dict[str, Any] = {"id": self._unique(step_id(step["id"]))}
        if self.phase and "description" not in rest:
            made["description"] = self.phase
        if last:
            made["depends_on"] = last
        self.steps.append(made | rest)
        self.before = [made["id"]]
        self.calls.bind(names, f"steps.{made['id']}.output")

    def _unique(self, name: str) -> str:
        wanted = name
        while in_expression(wanted) in self.taken_ids:
            self.times[name] = self.times.get(name, 1) + 1
            wanted = f"{name}-{self.times[name]}"
        self.taken_ids.add(in_expression(wanted))
        return wanted


# -----------------------------------------------------------------------------------------------------------
# Calls in a workflow script: prompts and options of agents, for single, parallel and mapped calls.

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
        words = [word.text for word in self.script.words[at:last]]
        return read_path(self.names, self.inputs, words, at, local)

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
        if (items := self._items(parts[0])) is None:
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
        if (head := self._head(span)) is None:
            return None
        names, at = head
        at += script.says(at, "await")
        if not script.says(at, "parallel", "(") or script.partner[at + 1] != span[1] - 1:
            return None
        start, end = at + 2, span[1] - 1
        end -= script.says(end - 1, ",")
        if (found_map := self._mapped(start, end)) is None:
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
        if (head := self._head(span)) is None:
            return None
        names, at = head
        if nested:
            if (inner := self._function((at, end), nested=False)) is None or inner.names:
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
            word = script.words[first]
            key = word.text.strip("'\"") if word.kind in ("name", "text") else ""
            written = script.source_of((first, last))
            if key in seen or not key or not (script.says(first + 1, ":") or last == first + 1):
                script.lose(first, written, "an option is a name and a value, once")
                step[UNWRITTEN] = ""
            elif not self._option(key, (first + 2 if last > first + 1 else first, last), step):
                script.lose(first, written, _HINTS.get(key, "recipes have no counterpart"))
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
