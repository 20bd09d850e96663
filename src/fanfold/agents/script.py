"""Scripts: the prepared output and actions of a scripted agent at each step.

Rules
* An answer belongs to a tree path. `*` stands for any index or iteration (`pages[*]/check`, `heal#*/fix`).
  Among matching patterns, the one with the fewest stars is used, then the one whose stars come later.
* Only the attempt number chooses among the answers of a path, and the last answer serves all further
  attempts. A new execution after a crash is the same attempt, so it gets the same answer.
* `{{step}}` in text is the path of the step that answers. Nothing else is replaced.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Struct, structs
from msgspec.structs import replace

from fanfold.agents.backend import (
    Progress,
    Record,
    SessionFailed,
    SessionRequest,
    SessionResult,
    ToolFailed,
    Tools,
    use,
    wrong_call,
)
from fanfold.agents.backend_registry import SCRIPTED, BackendSetup
from fanfold.agents.entries import (
    Entry,
    RequestedCall,
    Response,
    ToolCall,
    ToolError,
    ToolResult,
    calling,
    since_last_input,
)
from fanfold.errors import AuthorError
from fanfold.kernel.events import FAILURE_CLASSES, MOST_SPENT, NOTHING_SPENT, Failure, Usage
from fanfold.language import tree
from fanfold.language.diagnostics import FileRefused
from fanfold.language.json_text import JSON, aside
from fanfold.language.tables import Entries, Key, Notes, quoted, read_entries, shape
from fanfold.language.tree import Node, Scalar, plain
from fanfold.language.yaml_text import TextFormat, parse_yaml

if TYPE_CHECKING:
    from fanfold.agents.backend import Tools

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
                self.notes.error(
                    "script.bad_path", f"{quoted(path.text)} is not the path of a step", path, hint
                )
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


# -----------------------------------------------------------------------------------------------------------
# The tool calls of a scripted answer.
#
# Rules
# * The tools are the real ones. A script can do no more than an agent.
# * A mutating call whose outcome was lost in a crash is not simply repeated. Its outcome is recorded as
#   unknown. The writes of a script define the content of a file, so they are repeated only if the file
#   differs.


async def make_calls(
    calls: Sequence[ScriptedCall], toolbox: Tools, request: SessionRequest, record: Record, progress: Progress
) -> None:
    """Run the remaining calls of an answer, some of which may have run before a crash."""
    turn = since_last_input(request.entries)
    begun = {entry.id for entry in turn if isinstance(entry, ToolCall)}
    ended = {entry.id: entry for entry in turn if isinstance(entry, ToolResult)}
    session = _Calls(toolbox, begun, ended, record, progress)
    try:
        await toolbox.open()
        if not any(isinstance(entry, Response) for entry in turn):
            asked = tuple(RequestedCall(str(i), call.tool, call.args) for i, call in enumerate(calls, 1))
            await record(Response(tool_calls=asked))
        for number, call in enumerate(calls, 1):
            name, known = str(number), ended.get(str(number))
            lost = known is None or known.outcome == "unknown"
            if lost and name in begun and toolbox.mutates(call.tool):
                # A lost call of a mutating tool is recorded as unknown. If it is repeated, it gets a new id.
                if known is None:
                    await record(ToolResult(id=name, tool=call.tool, outcome="unknown"))
                if await session.is_done(call):
                    continue
                name = str(len(calls) + number)
            await session.call(name, call)
    finally:
        await toolbox.aclose()


class _Calls:
    """The tool calls of one answer, some of which may have run before a crash."""

    def __init__(
        self,
        toolbox: Tools,
        begun: set[str],
        ended: Mapping[str, ToolResult],
        record: Record,
        progress: Progress,
    ) -> None:
        self._toolbox = toolbox
        self._begun = begun
        self._ended = ended
        self._record = record
        self._progress = progress

    async def call(self, name: str, call: ScriptedCall) -> None:
        """Run one call and record its result, unless an earlier execution did."""
        known = self._ended.get(name)
        if known is not None and known.error is None:
            return
        problem = await aside(self._wrong_arguments, call)
        if known is not None and problem:
            return  # it got this error and continued
        if problem and name not in self._begun:
            error = ToolError("invalid_args", problem)
            await self._record(ToolResult(id=name, tool=call.tool, error=error))
            return
        mutates = self._toolbox.mutates(call.tool)
        if known is None:
            if mutates and name not in self._begun:
                await self._record(ToolCall(id=name, tool=call.tool, args=call.args))
            self._progress(calling(call.tool, call.args))
        try:
            result = await use(self._toolbox, call.tool, call.args)
        except ToolFailed as failed:
            if known is None:
                error = ToolError(failed.code, failed.message, failed.hint, failed.failure.kind)
                await self._record(ToolResult(id=name, tool=call.tool, error=error))
            if failed.refused or mutates:
                raise
            return
        if known is None:  # else it was refused, and only the failure was lost in the crash
            await self._record(ToolResult(id=name, tool=call.tool, result=result))

    def _wrong_arguments(self, call: ScriptedCall) -> str:
        """Return the problem with the arguments, as for a model; empty for a tool that the role lacks."""
        offered = any(offered_tool.name == call.tool for offered_tool in self._toolbox.offered())
        return wrong_call(self._toolbox, call.tool, call.args) if offered else ""

    async def is_done(self, call: ScriptedCall) -> bool:
        """Return whether a lost write or delete happened; other calls count as done and stay `unknown`."""
        if call.tool not in ("write_file", "delete_file"):
            return True
        try:
            found = await self._toolbox.call("read_file", {"path": call.args["path"]})
        except ToolFailed:
            return call.tool == "delete_file"
        return call.tool == "write_file" and found["text"] == call.args["content"]


# -----------------------------------------------------------------------------------------------------------
# The scripted back end: agents that answer from a script, for tests and demonstrations.
#
# Rules
# * It behaves like a paid back end: each answer, tool call and tool result is recorded as it happens. A
#   session that runs again after a crash continues after the last recorded entry.
# * One line per answered request is appended to `calls_file` in one write. Tests that kill the process use it
#   to count the requests to an agent.

CALLS_VARIABLE = "FANFOLD_SCRIPT_CALLS"


class ScriptedBackend:
    """Answers every session from a script; `calls_file` defaults to $FANFOLD_SCRIPT_CALLS."""

    name = SCRIPTED

    def __init__(
        self,
        script: Script,
        calls_file: str | Path | None = None,
        toolbox: Callable[[SessionRequest], Tools] | None = None,
    ) -> None:
        self._script = script
        self._calls_file = calls_file or os.environ.get(CALLS_VARIABLE) or None
        self._toolbox = toolbox

    async def run(self, request: SessionRequest, record: Record, progress: Progress) -> SessionResult:
        turn = since_last_input(request.entries)
        for entry in turn:
            if isinstance(entry, Response) and entry.output is not UNSET:  # it finished before the crash
                return _result(entry.output, entry.usage or Usage(), turn)
        answer = self._script.answer(request.step, request.attempt)
        if self._calls_file is not None:
            line = f"{request.step} {request.attempt} {request.execution}\n".encode()
            handle = os.open(self._calls_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                os.write(handle, line)
            finally:
                os.close(handle)
        if answer is None:
            message = f"the script has no answer for {request.step}"
            failure = Failure("agent", "script.no_answer", message, self._script.hint(request.step), False)
            raise SessionFailed(structs.replace(failure, step=request.step, attempt=request.attempt))
        if answer.delay_ms:
            await asyncio.sleep(answer.delay_ms / 1_000)
        if answer.calls:
            from fanfold.agents.tools.toolbox import SessionTools  # it loads every tool

            tools = (self._toolbox or SessionTools)(request)
            await make_calls(answer.calls, tools, request, record, progress)
        if answer.fail is not None:
            failure = structs.replace(answer.fail, step=request.step, attempt=request.attempt)
            raise SessionFailed(failure, answer.usage)
        text = answer.output if isinstance(answer.output, str) else ""
        await record(Response(text=text, usage=answer.usage, output=answer.output), may_wait=True)
        return _result(answer.output, answer.usage, turn)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to release."""


def make(setup: BackendSetup) -> ScriptedBackend:
    """Return the back end with the script of the run; `AuthorError` if there is none."""
    if setup.script is None:
        raise AuthorError(
            "backend.no_script", "scripted agents need a script", hint="give one: --script FILE"
        )
    return ScriptedBackend(Script.load(setup.script, setup.script_file or "script"), toolbox=setup.toolbox)


def _result(output: JSON, usage: Usage, turn: Sequence[Entry]) -> SessionResult:
    trace = {"backend": ScriptedBackend.name, "continued": bool(turn)}
    return SessionResult(output=output, usage=usage, trace=trace)
