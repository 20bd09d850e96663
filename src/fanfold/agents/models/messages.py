"""A session's entries and a model's messages, each made from the other.

Rules
* An entry is for people and for us: what was said (`text`), what was called (`tool_calls`), what it cost.
  Beside it, `message` keeps the rest of the provider's response as it came.
* Messages are rebuilt from entries alone: the same function serves a session that was killed and a child that
  was spoken to again. Calls that nobody answered before somebody spoke again are answered as interrupted.
* A compaction was paid for like a response. Its text, if it has any, replaces everything before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from fanfold.agents.entries import Compaction, Entry, RequestedCall, Response, ToolCall, ToolResult, UserInput
from fanfold.agents.models.answers import OUTPUT_TOOL
from fanfold.kernel.events import NOTHING_SPENT, Usage
from fanfold.kernel.plan import JSON
from fanfold.text.json_value import read_json

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelRequestPart, ModelResponse, ToolCallPart

INTERRUPTED = "The session was interrupted before this call had a result."
UNKNOWN = (
    "The outcome of this call is unknown: the process died while it ran. It may have happened, wholly or in"
    " part. Look at the state of things before you decide whether to do it again."
)
WITHHELD = (
    "This call was not made: the process died before it, and its arguments held a secret that is not kept."
    " Make it again if it is still needed."
)
TWICE = "Hand the answer in once."
COMPACTED = "Your earlier work on this task did not fit any more. This is your own summary of it:"
_DROPPED = ("usage", "timestamp", "kind", "run_id", "conversation_id", "metadata", "workspace_ref")


def response_entry(model: str, response: ModelResponse, usage: Usage) -> Response:
    """A response as it is recorded."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ToolCallPart

    (message,) = ModelMessagesTypeAdapter.dump_python([response], mode="json", exclude_none=True)
    for name in _DROPPED:
        message.pop(name, None)
    calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
    for part in message["parts"]:
        if part["part_kind"] == "tool-call":
            part.pop("args", None)  # kept once, in `tool_calls`
    if response.text:
        texts = [part for part in message["parts"] if part["part_kind"] == "text"]
        if len(texts) == 1:
            del texts[0]["content"]
    return Response(
        model=model,
        text=response.text or "",
        tool_calls=tuple(RequestedCall(call.tool_call_id, call.tool_name, readable(call)) for call in calls),
        usage=usage,
        message=message,
    )


def tell_apart(response: ModelResponse) -> None:
    """Give calls of one response different ids: some servers number them all alike."""
    from pydantic_ai.messages import ToolCallPart

    seen: set[str] = set()
    for i, part in enumerate(response.parts):
        if isinstance(part, ToolCallPart):
            if part.tool_call_id in seen:
                part.tool_call_id = f"{part.tool_call_id}_{i}"
            seen.add(part.tool_call_id)


def readable(call: ToolCallPart) -> JSON:
    """The arguments of a call as a value, or as the text they came as when that is no JSON."""
    if not isinstance(call.args, str):
        return call.args or {}
    try:
        return read_json(call.args or "{}")
    except ValueError:
        return call.args


def _response(entry: Response) -> ModelResponse:
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse

    assert entry.message is not None, "a model's response is kept whole"
    args = {call.id: call.args for call in entry.tool_calls}
    parts = []
    for part in entry.message["parts"]:
        if part["part_kind"] == "tool-call":
            given = args.get(part["tool_call_id"], {})
            text = given if isinstance(given, str | dict) else msgspec.json.encode(given).decode()
            parts.append({**part, "args": text})
        elif part["part_kind"] == "text":
            parts.append({"content": entry.text, **part})
        else:
            parts.append(part)
    message = {**entry.message, "parts": parts, "kind": "response"}
    (response,) = ModelMessagesTypeAdapter.validate_python([message])
    assert isinstance(response, ModelResponse), "an entry of a response holds one"
    return response


def result_text(entry: ToolResult) -> JSON:
    """What a model is told about a call."""
    if entry.outcome == "unknown":
        return UNKNOWN
    if entry.error is not None:
        return msgspec.to_builtins(entry.error)
    return None if entry.result is UNSET else entry.result


def outcome_of(entry: ToolResult) -> str:
    """How a call went, in the words of a provider's protocol."""
    if entry.outcome == "unknown":
        return "interrupted"
    return "failed" if entry.error is not None else "success"


class Conversation:
    """The messages of a session so far, and where it stands."""

    def __init__(self, prompt: str, entries: Sequence[Entry]) -> None:
        self.messages: list[ModelMessage] = []
        self._parts: list[ModelRequestPart] = []
        self.pending: dict[str, ToolCallPart] = {}
        """Calls of the last response that have no result yet, in order."""
        self.begun: set[str] = set()
        """Calls that were recorded before they ran."""
        self.withheld: set[str] = set()
        """Calls whose recorded arguments are not the ones the model gave."""
        self.failed_calls = 0
        """Calls of the last response that did not do what was asked."""
        self.last: ModelResponse | None = None
        """The last response, while nothing was said behind it."""
        self.final: Response | ToolResult | None = None
        """The entry that ended the turn, if one did."""
        self.usage = NOTHING_SPENT
        self.turns = 0
        self.calls = 0
        self.complaints = 0
        self.compactions = 0
        self.prompts: list[str] = []
        if not any(isinstance(entry, UserInput) for entry in entries):
            self.hear(prompt)
        for entry in entries:
            self._take(entry)
        self.continued = self.turns > 0

    def ready(self) -> list[ModelMessage]:
        """The messages to send: what was heard since the last response closes them."""
        from pydantic_ai.messages import ModelRequest

        if self._parts:
            self.messages.append(ModelRequest(parts=self._parts))
            self._parts = []
        return self.messages

    def hear(self, text: str) -> None:
        """Somebody said something: a new turn begins."""
        from pydantic_ai.messages import UserPromptPart

        for call in tuple(self.pending.values()):
            self.answer(call.tool_call_id, call.tool_name, INTERRUPTED, "interrupted")
        self.prompts.append(text)
        self._parts.append(UserPromptPart(content=text))
        self.last, self.final = None, None
        self.turns = self.complaints = self.calls = 0
        self.usage = NOTHING_SPENT

    def say(self, response: ModelResponse, usage: Usage, withheld: Iterable[str] = ()) -> None:
        """The model said something."""
        from pydantic_ai.messages import ToolCallPart

        self.ready().append(response)
        self.last = response
        self.pending = {p.tool_call_id: p for p in response.parts if isinstance(p, ToolCallPart)}
        self.begun = set()
        self.withheld = set(withheld)
        self.failed_calls = 0
        self.turns += 1
        self.usage += usage

    def answer(self, call_id: str, tool: str, content: JSON, outcome: Any = "success") -> None:
        """A call has a result."""
        from pydantic_ai.messages import ToolReturnPart

        if self.pending.pop(call_id, None) is None:
            return
        self._parts.append(ToolReturnPart(tool, content, call_id, outcome=outcome))
        if tool != OUTPUT_TOOL:
            self.calls += 1
            self.failed_calls += outcome != "success"

    def complain(self, words: str, call_id: str | None) -> None:
        """The answer did not fit."""
        from pydantic_ai.messages import UserPromptPart

        self.complaints += 1
        if call_id is not None:
            self.answer(call_id, OUTPUT_TOOL, words, "retried")
            for call in tuple(self.pending.values()):
                self.answer(call.tool_call_id, call.tool_name, TWICE, "failed")
        else:
            self._parts.append(UserPromptPart(content=words))
        self.last = None

    def settle(self) -> None:
        """Every call of the last response has its result: it is the model's turn."""
        self.last = None

    def compact(self, summary: str, usage: Usage) -> bool:
        """Replace everything said so far by the task and a summary; false when the summary says nothing."""
        from pydantic_ai.messages import UserPromptPart

        self.usage += usage
        if not summary.strip():  # all of the work would be gone
            return False
        self.messages = []
        self.pending = {}
        task = "\n\n".join(self.prompts)
        self._parts = [UserPromptPart(content=f"{task}\n\n{COMPACTED}\n\n{summary}\n\nGo on from there.")]
        self.last = None
        self.compactions += 1
        return True

    def _take(self, entry: Entry) -> None:
        match entry:
            case UserInput():
                self.hear(entry.text)
            case Compaction():
                self.compact(entry.text, entry.usage or Usage())
            case Response() if entry.message is not None:
                self.say(_response(entry), entry.usage or Usage(), entry.withheld)
                if entry.output is not UNSET:
                    self.final = entry
            case ToolCall():
                self.begun.add(entry.id)
            case ToolResult() if entry.complaint:
                self.complain(entry.complaint, entry.id or None)
            case ToolResult():
                self.answer(entry.id, entry.tool, result_text(entry), outcome_of(entry))
                if entry.output is not UNSET:
                    self.final = entry
