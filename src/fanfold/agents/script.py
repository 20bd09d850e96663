"""Scripts: the prepared output and actions of a scripted agent at each step.

Rules
* An answer belongs to a tree path. `*` stands for any index or iteration (`pages[*]/check`, `heal#*/fix`).
  Among matching patterns, the one with the fewest stars is used, then the one whose stars come later.
* Only the attempt number chooses among the answers of a path, and the last answer serves all further
  attempts. A new execution after a crash is the same attempt, so it gets the same answer.
* `{{step}}` in text is the path of the step that answers. Nothing else is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fanfold.kernel.events import FAILURE_CLASSES, MOST_SPENT, NOTHING_SPENT, Failure, Usage
from fanfold.language import tree
from fanfold.language.diagnostics import FileRefused
from fanfold.language.json_text import JSON
from fanfold.language.tables import Entries, Key, Notes, quoted, read_entries, shape
from fanfold.language.tree import Node, Scalar, plain
from fanfold.language.yaml_text import TextFormat, parse_yaml

# -----------------------------------------------------------------------------------------------------------
# The actions of a scripted agent in one attempt, and their format in a script.
#
# Rules
# * A list under a path has one answer per attempt.
# * A mapping with one of the keys of an answer is an answer with instructions. Any other value is the output.
# * All mistakes of a file are reported together, with their positions, because a test with an unintended
#   answer proves nothing.

MAX_DELAY_MS = 24 * 60 * 60 * 1000
MAX_USD = 10**6

FORMAT = TextFormat(
    name="script",
    max_bytes=8 * 1024 * 1024,
    max_depth=32,
    max_values=500_000,
    clean_values=False,  # an agent can output anything
    begin_with="begin with default: or steps:",
    too_large="split the run, or answer more steps by default",
)
SCRIPT = shape(
    "script",
    "What scripted agents say and do.",
    Key("default", "json", "The answer of every step that is not named."),
    Key("steps", "free", "Answers by the path of the step."),
    hint="write `default: an answer`, or `steps: {gather: an answer}`",
)
ANSWER = shape(
    "answer",
    "What one agent does in one attempt.",
    Key("output", "json", "What it says."),
    Key("delay_ms", "integer", "How long it takes.", low=0, high=MAX_DELAY_MS),
    Key("usage", "object", "What it spends.", of="record of usage"),
    Key("fail", "object", "How it fails.", of="failure"),
    Key("writes", "free", "Files and their new text."),
    Key("deletes", "texts", "Files that go."),
    Key("tool_calls", "objects", "Tools it uses.", of="tool call"),
    hint="a value goes under `output:`",
)
FAILURE = shape(
    "failure",
    "How an attempt fails.",
    Key("class", "word", "Class of the failure.", words=FAILURE_CLASSES, required=True),
    Key("code", "text", "Its code."),
    Key("message", "text", "Its message."),
    Key("hint", "text", "Its hint."),
    Key("retryable", "boolean", "Whether trying again may help."),
    hint="write `fail: {class: transport, message: …}`",
)
USAGE = shape(
    "record of usage",
    "What an attempt spends.",
    Key("input_tokens", "integer", "Tokens read.", low=0, high=MOST_SPENT),
    Key("output_tokens", "integer", "Tokens written.", low=0, high=MOST_SPENT),
    Key("cost_usd", "number", "Their price."),
    hint="write `usage: {input_tokens: 10, output_tokens: 5}`",
)
CALL = shape(
    "tool call",
    "One use of a tool.",
    Key("tool", "text", "Its name.", required=True),
    Key("args", "free", "Its arguments."),
    hint="write `tool_calls: [{tool: read_file, args: {path: README.md}}]`",
)
_PATH = r"[\w.-]+(?:\[(?:\d+|\*)\]|#(?:\d+|\*))*(?:/[\w.-]+(?:\[(?:\d+|\*)\]|#(?:\d+|\*))*)*\Z"


class ScriptedCall(Struct, frozen=True):
    """One tool call that the script requests."""

    tool: str
    args: dict[str, Any]


class Answer(Struct, frozen=True, kw_only=True):
    """The actions of a scripted agent in one attempt: wait, call tools, then return an output or fail."""

    output: JSON = None
    speaks: bool = True
    """False if the script has no output: then the output of the default is used, or none."""
    delay_ms: int = 0
    usage: Usage = NOTHING_SPENT
    fail: Failure | None = None
    calls: tuple[ScriptedCall, ...] = ()


def read_script(data: bytes, file: str) -> tuple[Mapping[str, tuple[Answer, ...]], tuple[Answer, ...]]:
    """Return the answers by path, and those of the default; raises `FileRefused`."""
    found, source, report = parse_yaml(data, file, FORMAT)
    reader = _AnswerReader(Notes(report, source))
    entries = read_entries(found, SCRIPT, reader.notes) if found is not None else None
    steps = {} if entries is None else reader.steps(entries)
    default = reader.answers(entries.nodes["default"]) if entries and "default" in entries.nodes else ()
    if not report.ok:
        raise FileRefused(report.diagnostics, {file: source})
    return steps, default


class _AnswerReader:
    """Converts nodes to answers, or reports each problem with its position."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    def steps(self, entries: Entries) -> dict[str, tuple[Answer, ...]]:
        for path, _ in entries.pairs("steps"):
            if not re.match(_PATH, path.text):
                hint = "write it as the log does; * stands for a number only: pages[*]/check, heal#*"
                self.notes.error("script.bad_path", f"{quoted(path.text)} is not a path of steps", path, hint)
        return {path.text: self.answers(given) for path, given in entries.pairs("steps")}

    def answers(self, node: Node) -> tuple[Answer, ...]:
        if not isinstance(node, tree.Sequence):
            return (self._answer(node),)
        if not node.items:
            hint = "write one answer per attempt; a list as the output goes under `output:`"
            self.notes.error("script.bad_value", "the list of answers is empty", node, hint)
        return tuple(map(self._answer, node.items))

    def _answer(self, node: Node) -> Answer:
        if not isinstance(node, tree.Mapping) or not any(node.key(word) for word in ANSWER.keys):
            return Answer(output=plain(node))
        entries = read_entries(node, ANSWER, self.notes)
        assert entries is not None, "it is a mapping"
        if entries.has("fail") and entries.has("output"):
            message, hint = "an answer cannot both fail and have an output", "keep one of them"
            self.notes.error("script.bad_value", message, entries.keys["fail"], hint)
        output = entries.nodes.get("output")
        calls: list[ScriptedCall] = []
        for item in entries.items("tool_calls"):
            if (call := read_entries(item, CALL, self.notes)) is not None:
                args = {key.text: plain(value) for key, value in call.pairs("args")}
                calls.append(ScriptedCall(call.text("tool") or "", args))
        for path, text in entries.pairs("writes"):
            if not isinstance(text, Scalar) or not isinstance(text.value, str):
                hint = 'write `writes: {"src/a.py": "x = 1\\n"}`'
                self.notes.error("script.bad_type", "the new content of a file must be text", text, hint)
            else:
                calls.append(ScriptedCall("write_file", {"path": path.text, "content": text.text}))
        calls += [ScriptedCall("delete_file", {"path": path.text}) for path in entries.scalars("deletes")]
        return Answer(
            output=None if output is None else plain(output),
            speaks=entries.has("output"),
            delay_ms=entries.integer("delay_ms") or 0,
            usage=self._usage(entries.nodes.get("usage")),
            fail=self._failure(entries.nodes.get("fail")),
            calls=tuple(calls),
        )

    def _failure(self, node: Node | None) -> Failure | None:
        entries = None if node is None else read_entries(node, FAILURE, self.notes)
        if entries is None:
            return None
        kind = entries.text("class") or "agent"
        message = entries.text("message") or f"the script says: {kind}"
        code = entries.text("code") or f"script.{kind}"
        retryable = entries.flag("retryable") or not entries.has("retryable")
        return Failure(kind, code, message, entries.text("hint") or "", retryable)

    def _usage(self, node: Node | None) -> Usage:
        entries = None if node is None else read_entries(node, USAGE, self.notes)
        if entries is None:
            return NOTHING_SPENT
        cost = entries.nodes.get("cost_usd")
        amount = cost.value if isinstance(cost, Scalar) and isinstance(cost.value, int | float) else 0
        if cost is not None and not 0 <= amount <= MAX_USD:
            self.notes.error("script.limit", f'"cost_usd" must be from 0 to {MAX_USD:,}', cost)
        read, written = entries.integer("input_tokens"), entries.integer("output_tokens")
        return Usage(read or 0, written or 0, round(amount * 1_000_000))


_SLOT = r"\[(\d+|\*)\]|#(\d+|\*)"
_STEP = r"\{\{\s*step\s*\}\}"


class Script:
    """Answers by path; `source` is the text it was read from, for the stored settings of a run."""

    def __init__(
        self, steps: Mapping[str, Sequence[Answer]], default: Sequence[Answer] = (), source: str = ""
    ) -> None:
        self.source = source
        self._default = tuple(default)
        self._exact = {path: tuple(answers) for path, answers in steps.items()}
        # A path and every pattern that may match it have the same shape: the path with a star in each slot.
        self._patterns: dict[str, list[str]] = {}
        for path in steps:
            if "*" in path:
                self._patterns.setdefault(_shape(path), []).append(path)
        for patterns in self._patterns.values():
            patterns.sort(key=lambda path: (path.count("*"), [slot == "*" for slot in _slots(path)]))

    @classmethod
    def load(cls, text: str | bytes, file: str = "script") -> Script:
        """Read a script; raises `RequestRefused`.

        >>> script = Script.load("default: OK from {{step}}", "script.yaml")
        >>> script.answer("kids[0]/up", 1).output
        'OK from kids[0]/up'
        """
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        steps, default = read_script(data, file)
        return cls(steps, default, data.decode("utf-8"))

    def answer(self, path: str, attempt: int) -> Answer | None:
        """Return the actions of the agent at `path` in this attempt; None if the script has none."""
        answers = self._exact.get(path)
        if answers is None and self._patterns:
            slots = _slots(path)
            for pattern in self._patterns.get(_shape(path), ()):
                pairs = zip(_slots(pattern), slots, strict=True)
                if all(wanted in ("*", slot) for wanted, slot in pairs):
                    answers = self._exact[pattern]
                    break
        chosen = _of_attempt(answers or self._default, attempt)
        if chosen is None:
            return None
        if not chosen.speaks and chosen.fail is None:
            words = _of_attempt(self._default, attempt)
            output = words.output if answers and words is not None and words.speaks else ""
        else:
            output = chosen.output
        return replace(chosen, output=_fill(output, path), speaks=True)

    def hint(self, path: str) -> str:
        """Return how to add an answer for `path`, with the path in the required form."""
        hint = f'add "{path}" under steps:, or a default:'
        unnumbered = re.sub(_SLOT, "", path)
        if unnumbered != path and unnumbered in self._exact:
            hint += f'; "{unnumbered}" does not answer for it, "{_shape(path)}" would'
        return hint


def _slots(path: str) -> list[str]:
    return [index or iteration for index, iteration in re.findall(_SLOT, path)]


def _shape(path: str) -> str:
    return re.sub(_SLOT, lambda slot: "[*]" if slot[0][0] == "[" else "#*", path)


def _of_attempt(answers: Sequence[Answer], attempt: int) -> Answer | None:
    return answers[min(max(attempt, 1), len(answers)) - 1] if answers else None


def _fill(value: JSON, path: str) -> JSON:
    """Return the value with `{{step}}` replaced in its texts."""
    if isinstance(value, str):
        return re.sub(_STEP, lambda _: path, value) if "{{" in value else value
    if isinstance(value, list):
        return [_fill(item, path) for item in value]
    if isinstance(value, dict):
        return {key: _fill(item, path) for key, item in value.items()}
    return value
