"""Scripts: what a scripted agent says and does at each step, written down beforehand.

Rules
* An answer belongs to a tree path. `*` stands for any index or iteration (`pages[*]/check`, `heal#*/fix`);
  among patterns that fit, the one with the fewest stars wins, then the one whose stars come later.
* A list under a path holds one answer per attempt, and its last serves all further attempts. The attempt
  alone chooses: running again after a crash is the same attempt, so it gets the same answer.
* A mapping that uses one of the words below is an answer with instructions; any other value is what the
  agent says. `{{step}}` in text is the path of the step that is answering; nothing else is replaced.
* A mistake in a script is an `AuthorError` that points at its line: a test that silently gets another
  answer than the one written proves nothing.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from fanfold.agents.scripts.text import Places, Way, read_text
from fanfold.errors import AuthorError
from fanfold.kernel.events import FAILURE_CLASSES, Failure, Usage
from fanfold.kernel.plan import JSON

MAX_DELAY_MS = 24 * 60 * 60 * 1000
MAX_TOKENS = 10**12
MAX_USD = 10**6

ANSWER_WORDS = ("output", "delay_ms", "usage", "fail", "writes", "deletes", "tool_calls")
_TOP_WORDS = ("default", "steps")
_FAIL_WORDS = ("class", "code", "message", "hint", "retryable")
_USAGE_WORDS = ("input_tokens", "output_tokens", "cost_usd")
_CALL_WORDS = ("tool", "args")

_SLOT = re.compile(r"\[(\d+|\*)\]|#(\d+|\*)")
_PATH = re.compile(r"[\w.-]+(?:\[(?:\d+|\*)\]|#(?:\d+|\*))*(?:/[\w.-]+(?:\[(?:\d+|\*)\]|#(?:\d+|\*))*)*\Z")
_STEP = re.compile(r"\{\{\s*step\s*\}\}")


class ToolCall(Struct, frozen=True):
    """One use of a tool that the script asks for."""

    tool: str
    args: dict[str, Any]


class Answer(Struct, frozen=True, kw_only=True):
    """What a scripted agent does in one attempt: wait, use tools, then speak or fail."""

    output: JSON = None
    speaks: bool = True
    """False when the script gives no output: then the default's words are used, else none."""
    delay_ms: int = 0
    usage: Usage = Usage(micro_usd=0)
    fail: Failure | None = None
    calls: tuple[ToolCall, ...] = ()


class Script:
    """Answers by path. `source` is the text it was read from, for whoever freezes a run's settings."""

    def __init__(
        self, steps: Mapping[str, Sequence[Answer]], default: Sequence[Answer] = (), source: str = ""
    ) -> None:
        self.source = source
        self._default = tuple(default)
        self._exact = {path: tuple(answers) for path, answers in steps.items()}
        # A path and every pattern that may fit it have the same shape: the path with a star in each slot.
        self._patterns: dict[str, list[str]] = {}
        for path in steps:
            if "*" in path:
                self._patterns.setdefault(_shape(path), []).append(path)
        for patterns in self._patterns.values():
            patterns.sort(key=lambda path: (path.count("*"), [slot == "*" for slot in _slots(path)]))

    @classmethod
    def load(cls, text: str | bytes, file: str = "script") -> Script:
        """Read a script; raises AuthorError.

        >>> script = Script.load("default: OK from {{step}}", "script.yaml")
        >>> script.answer("kids[0]/up", 1).output
        'OK from kids[0]/up'
        """
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        value, places = read_text(data, file)
        steps, default = _Checker(places).script(value)
        return cls(steps, default, data.decode("utf-8"))

    def answer(self, path: str, attempt: int) -> Answer | None:
        """What the agent at `path` does in this attempt; None when the script does not say."""
        answers = self._find(path)
        chosen = _of_attempt(answers or self._default, attempt)
        if chosen is None:
            return None
        if not chosen.speaks and chosen.fail is None:
            words = _of_attempt(self._default, attempt)
            output = words.output if answers and words is not None and words.speaks else ""
        else:
            output = chosen.output
        return Answer(
            output=_fill(output, path),
            delay_ms=chosen.delay_ms,
            usage=chosen.usage,
            fail=chosen.fail,
            calls=chosen.calls,
        )

    def hint(self, path: str) -> str:
        """How to give `path` an answer, with the path as it has to be written."""
        hint = f'add "{path}" under steps:, or a default:'
        unnumbered = _SLOT.sub("", path)
        if unnumbered != path and unnumbered in self._exact:
            hint += f'; "{unnumbered}" does not answer for it, "{_shape(path)}" would'
        return hint

    def _find(self, path: str) -> tuple[Answer, ...] | None:
        exact = self._exact.get(path)
        if exact is not None:
            return exact
        slots = _slots(path)
        for pattern in self._patterns.get(_shape(path), ()):
            wanted = _slots(pattern)
            if all(want in ("*", slot) for want, slot in zip(wanted, slots, strict=True)):
                return self._exact[pattern]
        return None


def _slots(path: str) -> list[str]:
    return [index or iteration for index, iteration in _SLOT.findall(path)]


def _shape(path: str) -> str:
    return _SLOT.sub(lambda slot: "[*]" if slot[0][0] == "[" else "#*", path)


def _of_attempt(answers: Sequence[Answer], attempt: int) -> Answer | None:
    return answers[min(max(attempt, 1), len(answers)) - 1] if answers else None


def _fill(value: JSON, path: str) -> JSON:
    """The value with `{{step}}` replaced in its texts."""
    if isinstance(value, str):
        return _STEP.sub(lambda _: path, value) if "{{" in value else value
    if isinstance(value, list):
        return [_fill(item, path) for item in value]
    if isinstance(value, dict):
        return {key: _fill(item, path) for key, item in value.items()}
    return value


class _Checker:
    """Turns plain values into answers, or says what is wrong and where."""

    def __init__(self, places: Places) -> None:
        self._places = places

    def script(self, value: JSON) -> tuple[dict[str, tuple[Answer, ...]], tuple[Answer, ...]]:
        fields = self._mapping(value, (), _TOP_WORDS, "a script")
        steps = fields.get("steps", {})
        if steps is None:
            steps = {}
        if not isinstance(steps, dict):
            raise self._wrong("steps: must map paths to answers", ("steps",), "write `gather: an answer`")
        for path in steps:
            if not _PATH.match(path):
                hint = "write it as the log does; * stands for a number only: pages[*]/check, heal#*"
                raise self._places.error(
                    "script.bad_path", f'"{path}" is not a path of steps', ("steps", path), hint
                )
        answers = {path: self._answers(given, ("steps", path)) for path, given in steps.items()}
        default = self._answers(fields["default"], ("default",)) if "default" in fields else ()
        return answers, default

    def _answers(self, value: JSON, way: Way) -> tuple[Answer, ...]:
        if not isinstance(value, list):
            return (self._answer(value, way),)
        if not value:
            hint = "write one answer per attempt; a list as the output goes under `output:`"
            raise self._wrong("the list of answers is empty", way, hint)
        return tuple(self._answer(item, (*way, i)) for i, item in enumerate(value))

    def _answer(self, value: JSON, way: Way) -> Answer:
        if not isinstance(value, dict) or not any(word in value for word in ANSWER_WORDS):
            return Answer(output=value)
        fields = self._mapping(value, way, ANSWER_WORDS, "an answer", "a value goes under `output:`")
        if "fail" in fields and "output" in fields:
            message, hint = "an answer cannot both fail and have an output", "keep one of them"
            raise self._wrong(message, (*way, "fail"), hint)
        return Answer(
            output=fields.get("output"),
            speaks="output" in fields,
            delay_ms=self._number(fields, "delay_ms", way, MAX_DELAY_MS),
            usage=self._usage(fields.get("usage"), (*way, "usage")),
            fail=self._failure(fields["fail"], (*way, "fail")) if "fail" in fields else None,
            calls=(*self._calls(fields, way), *self._writes(fields, way), *self._deletes(fields, way)),
        )

    def _failure(self, value: JSON, way: Way) -> Failure:
        hint = "write `fail: {class: transport, message: …}`"
        fields = self._mapping(value, way, _FAIL_WORDS, "a failure", hint)
        kind = fields.get("class")
        if kind not in FAILURE_CLASSES:
            known = ", ".join(FAILURE_CLASSES)
            message = f'"{kind}" is no class of failure' if kind else "the failure has no class"
            raise self._wrong(message, (*way, "class"), f"one of {known}")
        for word in ("code", "message", "hint"):
            if not isinstance(fields.get(word, ""), str):
                raise self._wrong(f"{word}: must be text", (*way, word), "quote it")
        retryable = fields.get("retryable", True)
        if not isinstance(retryable, bool):
            raise self._wrong("retryable: must be true or false", (*way, "retryable"), hint)
        message = fields.get("message") or f"the script says: {kind}"
        code = fields.get("code") or f"script.{kind}"
        return Failure(kind, code, message, fields.get("hint", ""), retryable)

    def _usage(self, value: JSON, way: Way) -> Usage:
        if value is None:
            return Usage(micro_usd=0)
        hint = "write `usage: {input_tokens: 10, output_tokens: 5}`"
        fields = self._mapping(value, way, _USAGE_WORDS, "usage", hint)
        cost = fields.get("cost_usd", 0)
        if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 <= cost <= MAX_USD:
            raise self._wrong(f"cost_usd: must be a number from 0 to {MAX_USD:,}", (*way, "cost_usd"), hint)
        return Usage(
            self._number(fields, "input_tokens", way, MAX_TOKENS),
            self._number(fields, "output_tokens", way, MAX_TOKENS),
            round(cost * 1_000_000),
        )

    def _calls(self, fields: dict[str, JSON], way: Way) -> list[ToolCall]:
        given, way = fields.get("tool_calls", []), (*way, "tool_calls")
        hint = "write `tool_calls: [{tool: read_file, args: {path: README.md}}]`"
        if not isinstance(given, list):
            raise self._wrong("tool_calls: must be a list", way, hint)
        calls = []
        for i, item in enumerate(given):
            call = self._mapping(item, (*way, i), _CALL_WORDS, "a tool call", hint)
            tool, args = call.get("tool"), call.get("args", {})
            if not isinstance(tool, str) or not tool or not isinstance(args, dict):
                raise self._wrong("a tool call needs a tool, and args as a mapping", (*way, i), hint)
            calls.append(ToolCall(tool, args))
        return calls

    def _writes(self, fields: dict[str, JSON], way: Way) -> list[ToolCall]:
        given, way = fields.get("writes", {}), (*way, "writes")
        hint = 'write `writes: {"src/a.py": "x = 1\\n"}`'
        if not isinstance(given, dict):
            raise self._wrong("writes: must map files to their new text", way, hint)
        for path, text in given.items():
            if not isinstance(text, str) or not path:
                raise self._wrong("the new content of a file must be text", (*way, path), hint)
        return [ToolCall("write_file", {"path": path, "content": text}) for path, text in given.items()]

    def _deletes(self, fields: dict[str, JSON], way: Way) -> list[ToolCall]:
        given, way = fields.get("deletes", []), (*way, "deletes")
        hint = 'write `deletes: ["src/b.py"]`'
        if not isinstance(given, list):
            raise self._wrong("deletes: must be a list of files", way, hint)
        for i, path in enumerate(given):
            if not isinstance(path, str) or not path:
                raise self._wrong("a file is named by its path", (*way, i), hint)
        return [ToolCall("delete_file", {"path": path}) for path in given]

    def _number(self, fields: dict[str, JSON], word: str, way: Way, most: int) -> int:
        value = fields.get(word, 0)
        if type(value) is not int or not 0 <= value <= most:
            message = f"{word}: must be a whole number from 0 to {most:,}"
            raise self._wrong(message, (*way, word), "write digits only")
        return value

    def _mapping(
        self, value: JSON, way: Way, words: Sequence[str], what: str, hint: str = ""
    ) -> dict[str, JSON]:
        known = ", ".join(words)
        if not isinstance(value, dict):
            raise self._wrong(f"{what} is written with the words {known}", way, hint or f"use {known}")
        for word in value:
            if word not in words:
                near = difflib.get_close_matches(word, words, 1)
                told = f'did you mean "{near[0]}"?' if near else hint or f"use {known}"
                message = f'"{word}" is not a word of {what} ({known})'
                raise self._places.error("script.unknown_key", message, (*way, word), told)
        return value

    def _wrong(self, message: str, way: Way, hint: str) -> AuthorError:
        return self._places.error("script.bad_value", message, way, hint)
