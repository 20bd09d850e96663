"""What a scripted agent does in one attempt, and how a script's text says it.

Rules
* A list under a path holds one answer per attempt.
* A mapping that uses one of the words of an answer is an answer with instructions; any other value is what
  the agent says.
* A mistake is reported at its place, all mistakes of a file together: a test that silently gets another
  answer than the one written proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from fanfold.kernel.events import FAILURE_CLASSES, NOTHING_SPENT, Failure, Usage
from fanfold.text.json_value import JSON
from fanfold.text.notes import Notes, quoted
from fanfold.text.patterns import regex
from fanfold.text.refusal import FileRefused
from fanfold.text.tables.entries import Entries, read_entries
from fanfold.text.tables.shapes import Key, shape
from fanfold.text.trees import tree
from fanfold.text.trees.tree import Node, Scalar, plain
from fanfold.text.trees.yaml import TextFormat, parse_yaml

MAX_DELAY_MS = 24 * 60 * 60 * 1000
MAX_TOKENS = 10**12
MAX_USD = 10**6

FORMAT = TextFormat(
    name="script",
    max_bytes=8 * 1024 * 1024,
    max_depth=32,
    max_values=500_000,
    clean_values=False,  # an agent may say anything
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
    Key("input_tokens", "integer", "Tokens read.", low=0, high=MAX_TOKENS),
    Key("output_tokens", "integer", "Tokens written.", low=0, high=MAX_TOKENS),
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
_PATH = regex(r"[\w.-]+(?:\[(?:\d+|\*)\]|#(?:\d+|\*))*(?:/[\w.-]+(?:\[(?:\d+|\*)\]|#(?:\d+|\*))*)*\Z")


class ScriptedCall(Struct, frozen=True):
    """One use of a tool that the script asks for."""

    tool: str
    args: dict[str, Any]


class Answer(Struct, frozen=True, kw_only=True):
    """What a scripted agent does in one attempt: wait, use tools, then speak or fail."""

    output: JSON = None
    speaks: bool = True
    """False when the script gives no output: then the default's words are used, else none."""
    delay_ms: int = 0
    usage: Usage = NOTHING_SPENT
    fail: Failure | None = None
    calls: tuple[ScriptedCall, ...] = ()


def read_script(data: bytes, file: str) -> tuple[Mapping[str, tuple[Answer, ...]], tuple[Answer, ...]]:
    """The answers by path, and the default's; raises `FileRefused`."""
    found, source, report = parse_yaml(data, file, FORMAT)
    reader = _AnswerReader(Notes(report, source))
    entries = read_entries(found, SCRIPT, reader.notes) if found is not None else None
    steps = {} if entries is None else reader.steps(entries)
    default = reader.answers(entries.nodes["default"]) if entries and "default" in entries.nodes else ()
    if not report.ok:
        raise FileRefused(report.diagnostics, {file: source})
    return steps, default


class _AnswerReader:
    """Turns nodes into answers, or says what is wrong and where."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    def steps(self, entries: Entries) -> dict[str, tuple[Answer, ...]]:
        for path, _ in entries.pairs("steps"):
            if not _PATH.match(path.text):
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
        return Answer(
            output=None if output is None else plain(output),
            speaks=entries.has("output"),
            delay_ms=entries.integer("delay_ms") or 0,
            usage=self._usage(entries.nodes.get("usage")),
            fail=self._failure(entries.nodes.get("fail")),
            calls=(*self._calls(entries), *self._writes(entries), *self._deletes(entries)),
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

    def _calls(self, entries: Entries) -> list[ScriptedCall]:
        calls = []
        for item in entries.items("tool_calls"):
            call = read_entries(item, CALL, self.notes)
            if call is not None:
                calls.append(
                    ScriptedCall(call.text("tool") or "", {k.text: plain(v) for k, v in call.pairs("args")})
                )
        return calls

    def _writes(self, entries: Entries) -> list[ScriptedCall]:
        calls = []
        for path, text in entries.pairs("writes"):
            if not isinstance(text, Scalar) or not isinstance(text.value, str):
                hint = 'write `writes: {"src/a.py": "x = 1\\n"}`'
                self.notes.error("script.bad_type", "the new content of a file must be text", text, hint)
            else:
                calls.append(ScriptedCall("write_file", {"path": path.text, "content": text.text}))
        return calls

    def _deletes(self, entries: Entries) -> list[ScriptedCall]:
        return [ScriptedCall("delete_file", {"path": path.text}) for path in entries.scalars("deletes")]
