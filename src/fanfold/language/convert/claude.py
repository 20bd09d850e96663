"""Converts workflow scripts of Claude Code: calls of `agent`, `parallel` and `pipeline`, in their order.

Nothing is run. Converted tokens are marked (`ScriptWords`). All others are listed by line, including logic in
JavaScript (conditions, loops, code between the calls).
"""

from __future__ import annotations

import re
from typing import Any

from fanfold.errors import AuthorError
from fanfold.language.convert.claude_calls import Calls, ScriptCall
from fanfold.language.convert.javascript import NO_LITERAL, ScriptWords, Span, is_plain_name, literal
from fanfold.language.convert.source import UNWRITTEN, ConversionResult, ForeignFile, slug, step_id
from fanfold.language.template import in_expression

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
        if script.is_name(at) and script.says(at + 1, "=") and not script.says(at - 1, "."):
            found = self._assigned(at, (at, at + 1), at + 2)
            if found is not None:
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

    def _is_sure(self, at: int) -> bool:
        """Return whether a call runs exactly once."""
        declared = self.script.says(at - 1, "=") or self.script.says(at - 1, "return")
        return self._is_outside(at) and (declared or self._begins(at))

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
        found = self._assigned(at, names, value)
        if found is not None:
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
            end = self._call(begun, (at, begun), (at, at))
            if end is not None and self._ends(end):
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
        sure = self._is_sure(before[0]) and not self.may_have_ended
        call = self.calls.read(at, name or kind, names)
        if call is None:
            return None
        if not sure:
            for step in call.steps:
                prompt = step.pop("prompt", "") or step.get(UNWRITTEN)
                step[UNWRITTEN] = f"JavaScript decides when and how often: {prompt}"
        self.script.take(before, (at, at + 2), (end - 1, end))
        if kind == "parallel" and call.items is None:
            self._together(call, last, names, name)
        elif kind == "pipeline":
            self._pipeline(call, last, names, name)
        else:
            (step,) = call.steps
            more = {} if call.items is None else {"for_each": call.items, "on_failure": "inline"}
            self._add(step | more, last, names)
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

    def _pipeline(self, call: ScriptCall, last: list[str], names: Span, name: str) -> None:
        group = {
            "id": name or "pipeline",
            "for_each": call.items,
            "on_failure": "inline",
            "steps": call.steps,
        }
        self._add(group, last, names)

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
