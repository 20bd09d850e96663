"""A session's entries and a model's messages, each made from the other.

Rules
* An entry is for people and for us: what was said (`text`), what was called (`tool_calls`), what it cost.
  Beside it, `message` keeps the rest of the provider's response as it came (ids, signatures of reasoning),
  because a provider wants its own words back unchanged when the conversation goes on.
* Messages are rebuilt from entries alone: the same function serves a session that was killed and a child that
  was spoken to again. Calls that nobody answered before somebody spoke again are answered as interrupted.
* A compaction is a response too: it was paid for. Its text, if it has any, replaces everything before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from fanfold.agents.backend import Entry
from fanfold.agents.models.answers import OUTPUT_TOOL
from fanfold.kernel.events import NOTHING_SPENT, Usage
from fanfold.kernel.plan import JSON

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


def response_entry(model: str, response: ModelResponse, usage: Usage) -> dict[str, Any]:
    """A response as it is recorded."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ToolCallPart

    (message,) = ModelMessagesTypeAdapter.dump_python([response], mode="json", exclude_none=True)
    for name in _DROPPED:
        message.pop(name, None)
    calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
    for part in message["parts"]:
        if part["part_kind"] == "tool-call":
            part.pop("args", None)  # kept once, in `tool_calls`
    entry: dict[str, Any] = {"kind": "response", "model": model}
    if response.text:
        entry["text"] = response.text
        texts = [part for part in message["parts"] if part["part_kind"] == "text"]
        if len(texts) == 1:
            del texts[0]["content"]
    if calls:
        entry["tool_calls"] = [
            {"id": call.tool_call_id, "tool": call.tool_name, "args": readable(call)} for call in calls
        ]
    return {**entry, "usage": msgspec.to_builtins(usage), "message": message}


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
        return msgspec.json.decode(call.args or "{}")
    except msgspec.DecodeError:
        return call.args


def _response(entry: Entry) -> ModelResponse:
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse

    args = {call["id"]: call["args"] for call in entry.get("tool_calls", ())}
    parts = []
    for part in entry["message"]["parts"]:
        if part["part_kind"] == "tool-call":
            given = args.get(part["tool_call_id"], {})
            text = given if isinstance(given, str | dict) else msgspec.json.encode(given).decode()
            parts.append({**part, "args": text})
        elif part["part_kind"] == "text":
            parts.append({"content": entry.get("text", ""), **part})
        else:
            parts.append(part)
    message = {**entry["message"], "parts": parts, "kind": "response"}
    (response,) = ModelMessagesTypeAdapter.validate_python([message])
    assert isinstance(response, ModelResponse), "an entry of a response holds one"
    return response


def result_text(entry: Entry) -> JSON:
    """What a model is told about a call."""
    if entry.get("outcome") == "unknown":
        return UNKNOWN
    if "error" in entry:
        return entry["error"]
    return entry.get("result")


def outcome_of(entry: Entry) -> str:
    """How a call went, in the words of a provider's protocol."""
    if entry.get("outcome") == "unknown":
        return "interrupted"
    return "failed" if "error" in entry else "success"


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
        self.final: Entry | None = None
        """The entry that ended the turn, if one did."""
        self.usage = NOTHING_SPENT
        self.turns = 0
        self.calls = 0
        self.complaints = 0
        self.compactions = 0
        self.prompts: list[str] = []
        if not any(entry.get("kind") == "input" for entry in entries):
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
        match entry.get("kind"):
            case "input":
                self.hear(str(entry["text"]))
            case "response" if entry.get("compaction"):
                self.compact(entry["text"], _usage(entry))
            case "response" if "message" in entry:
                self.say(_response(entry), _usage(entry), entry.get("withheld", ()))
                if "output" in entry:
                    self.final = entry
            case "tool_call":
                self.begun.add(entry["id"])
            case "tool_result" if "complaint" in entry:
                self.complain(entry["complaint"], entry["id"] or None)
            case "tool_result":
                self.answer(entry["id"], entry["tool"], result_text(entry), outcome_of(entry))
                if "output" in entry:
                    self.final = entry


def _usage(entry: Mapping[str, Any]) -> Usage:
    return msgspec.convert(entry.get("usage", {}), Usage)
