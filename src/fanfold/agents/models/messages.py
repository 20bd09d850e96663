"""Conversion between the entries of a session and the messages of a model.

Rules
* An entry is for people and for Fanfold: the message (`text`), the calls (`tool_calls`) and the cost. In
  `message` it keeps the rest of the provider's response unchanged.
* Messages are rebuilt from entries alone. The same function serves a session after a crash and a child
  session that gets a new prompt. Calls without a result before a new prompt get the result "interrupted".
* A compaction is billed like a response. Its text, if there is any, replaces everything before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from fanfold.agents.backend import SessionRequest
from fanfold.agents.entries import (
    Compaction,
    Entry,
    FailedRequest,
    Output,
    RequestedCall,
    Response,
    ToolCall,
    ToolResult,
    UserInput,
    UserMessage,
)
from fanfold.kernel.events import NOTHING_SPENT, Usage
from fanfold.kernel.plan import JSON
from fanfold.language.json_text import misfits, read_json, whole_text

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelRequestPart, ModelResponse, ToolCallPart
    from pydantic_ai.models import ModelRequestParameters

# -----------------------------------------------------------------------------------------------------------
# The answer of a session: text, or a value that matches the step's schema and output names.
#
# Rules
# * A typed answer is requested in the best form for the model (an output tool or a response format). It is
#   validated here with the step's own schema, whatever the provider guarantees.
# * An invalid answer is returned to the model with the validator's message, at most `MAX_COMPLAINTS` times.
#   It is never repaired: no fences are removed, no types converted, no missing names filled in.
# * Providers require an object at the top. Any other schema is wrapped in an object for the request, and the
#   value is unwrapped again.

OUTPUT_TOOL = "final_output"
EMPTY = "Your answer is empty. Finish the task, then give the answer."
MAX_COMPLAINTS = 3
_WRAPPER = "result"
_DESCRIPTION = (
    "Hand in the final answer. Call it once, when everything else is done; it ends your work on the task."
)


class Judgement(Struct, frozen=True):
    """The result of the check of a response: an answer, a complaint, or neither while tools are called."""

    final: bool = False
    value: JSON = None
    complaint: str = ""
    call_id: str | None = None
    """The call that submitted the answer, if it came as a call."""


class Contract:
    """The required form of a session's answer."""

    def __init__(self, schema: JSON, outputs: tuple[str, ...], bounded: bool = False) -> None:
        if schema is None and outputs:
            schema = {
                "type": "object",
                "properties": {name: {} for name in outputs},
                "required": list(outputs),
                "additionalProperties": False,
            }
        self._schema = schema
        self._names = outputs
        self._bounded = bounded
        is_object = isinstance(schema, Mapping) and (schema.get("type") == "object" or "properties" in schema)
        self._wrapped = schema is not None and not is_object

    @classmethod
    def of(cls, request: SessionRequest) -> Contract:
        return cls(request.output_schema, request.outputs, request.max_output_tokens is not None)

    @property
    def typed(self) -> bool:
        """Whether the answer must be a value and not text."""
        return self._schema is not None

    @property
    def text(self) -> str:
        """The schema as JSON text, for an agent that gets it in its prompt."""
        return msgspec.json.encode(self._schema).decode()

    @property
    def wire(self) -> Any:
        """The schema with an object at the top, as providers and programs require it.

        Any other schema is the only property of an object; its definitions move to the top for references.
        """
        if not self._wrapped:
            return self._schema
        inner = dict(self._schema) if isinstance(self._schema, Mapping) else self._schema
        shared: dict[str, Any] = {}
        if isinstance(inner, dict):
            shared = {key: inner.pop(key) for key in ("$defs", "definitions") if key in inner}
        return {
            "type": "object",
            "properties": {_WRAPPER: inner},
            "required": [_WRAPPER],
            "additionalProperties": False,
            **shared,
        }

    def judge_answer(self, text: str, value: Output = UNSET, *, by_wire: bool = False) -> Judgement:
        """Check the last text of a program, or the value that it submitted.

        With `by_wire`, the program received the schema in the form of `wire`.
        """
        if not self.typed:
            complaint = "" if text.strip() else EMPTY
            return Judgement(final=not complaint, value=text, complaint=complaint)
        if isinstance(value, UnsetType):
            try:
                value = read_json(text, "the answer")
            except ValueError as error:
                return Judgement(complaint=f"The answer must be one JSON value and nothing else: {error}.")
        return self._judge_value(value, None, wrapped=self._wrapped and by_wire)

    def parameters(self, parameters: ModelRequestParameters) -> ModelRequestParameters:
        """Return the request parameters with the form of the answer added."""
        if not self.typed:
            return parameters
        from dataclasses import replace

        from pydantic_ai.output import OutputObjectDefinition
        from pydantic_ai.tools import ToolDefinition

        wire = self.wire
        tool = ToolDefinition(
            name=OUTPUT_TOOL,
            description=_DESCRIPTION,
            parameters_json_schema=wire,
            kind="output",
            strict=False,
        )
        form = OutputObjectDefinition(json_schema=wire, name=OUTPUT_TOOL, description=_DESCRIPTION)
        return replace(
            parameters, output_mode="auto", output_tools=[tool], output_object=form, allow_text_output=False
        )

    def judge(self, response: ModelResponse) -> Judgement:
        """Check whether a response is the answer; pure, so that it can be repeated after a crash."""
        from pydantic_ai.messages import ToolCallPart

        calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
        for call in calls if self.typed else ():
            if call.tool_name != OUTPUT_TOOL:
                continue
            value, call_id = call.args or {}, call.tool_call_id
            if isinstance(value, str):
                try:
                    value = read_json(value, "the answer")
                except ValueError as error:
                    is_cut = response.finish_reason == "length"
                    cut = " It was cut off at the limit of tokens: be shorter." if is_cut else ""
                    return Judgement(
                        complaint=f"The answer is not valid JSON: {error}.{cut}", call_id=call_id
                    )
            return self._judge_value(value, call_id, wrapped=self._wrapped)
        if calls:
            return Judgement()
        text = response.text or ""
        if response.finish_reason == "length" and not (self._bounded and not self.typed and text.strip()):
            return Judgement(complaint="Your answer was cut off at the limit of tokens: be shorter.")
        if not text.strip():
            return Judgement(complaint=EMPTY)
        return self.judge_answer(text, by_wire=True)

    def _judge_value(self, value: JSON, call_id: str | None, *, wrapped: bool) -> Judgement:
        if wrapped:
            if not isinstance(value, Mapping) or value.keys() != {_WRAPPER}:
                complaint = f'The answer must be an object with "{_WRAPPER}" alone.'
                return Judgement(complaint=complaint, call_id=call_id)
            value = value[_WRAPPER]
        problem = misfits(self._schema, value)
        if not problem and self._names and not isinstance(value, Mapping):
            problem = f"it must be an object with {', '.join(self._names)}"
        elif not problem and (missing := [name for name in self._names if name not in value]):
            problem = f"it lacks {', '.join(missing)}"
        if problem:
            return Judgement(complaint=f"The answer does not fit: {problem}. Correct it.", call_id=call_id)
        return Judgement(True, value, "", call_id)


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
    """Return the entry that records a response."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ToolCallPart

    (message,) = ModelMessagesTypeAdapter.dump_python([response], mode="json", exclude_none=True)
    for name in _DROPPED:
        message.pop(name, None)
    calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
    for part in message["parts"]:
        if part["part_kind"] == "tool-call":
            part.pop("args", None)  # stored once, in `tool_calls`
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


def storable(response: ModelResponse) -> ModelResponse:
    """Return the response with texts and numbers that can be stored; raise ValueError for a wrong type."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse

    used = response.usage
    used.details = {}
    for name in ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"):
        setattr(used, name, Usage(getattr(used, name)).bounded().input_tokens)
    plain = ModelMessagesTypeAdapter.dump_python([response], exclude_none=True, warnings=False)
    (made,) = ModelMessagesTypeAdapter.validate_python(_whole(plain))
    assert isinstance(made, ModelResponse), "it was one"
    return made


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, list | tuple):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {_whole(key): _whole(one) for key, one in value.items()}
    return value


def give_distinct_ids(response: ModelResponse) -> None:
    """Give the calls of one response different ids, because some servers use one id for all."""
    from pydantic_ai.messages import ToolCallPart

    seen: set[str] = set()
    for i, part in enumerate(response.parts):
        if isinstance(part, ToolCallPart):
            if part.tool_call_id in seen:
                part.tool_call_id = f"{part.tool_call_id}_{i}"
            seen.add(part.tool_call_id)


def readable(call: ToolCallPart) -> JSON:
    """Return the arguments of a call as a value, or as the original text if that is not JSON."""
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
    """Return the result of a call as the model receives it."""
    if entry.outcome == "unknown":
        return UNKNOWN
    if entry.error is not None:
        error = msgspec.to_builtins(entry.error)
        return {**error, "note": entry.note} if entry.note else error
    result = None if entry.result is UNSET else entry.result
    if not entry.note:
        return result
    return f"{result}\n\n{entry.note}" if isinstance(result, str) else {"result": result, "note": entry.note}


def outcome_of(entry: ToolResult) -> str:
    """Return the outcome of a call as the provider's protocol names it."""
    if entry.outcome == "unknown":
        return "interrupted"
    return "failed" if entry.error is not None else "success"


class Conversation:
    """The messages of a session so far, and its state."""

    def __init__(self, prompt: str, entries: Sequence[Entry]) -> None:
        self.messages: list[ModelMessage] = []
        self._parts: list[ModelRequestPart] = []
        self.pending: dict[str, ToolCallPart] = {}
        """Calls of the last response without a result, in order."""
        self.begun: set[str] = set()
        """Calls that were recorded before they ran."""
        self.withheld: set[str] = set()
        """Calls whose recorded arguments differ from the model's arguments."""
        self.failed_calls = 0
        """Calls of the last response that failed."""
        self.last: ModelResponse | None = None
        """The last response, until a message follows it."""
        self.final: Response | ToolResult | None = None
        """The entry that ended the turn, if there is one."""
        self.usage = NOTHING_SPENT
        self.turns = 0
        self.calls = 0
        self.complaints = 0
        self.compactions = 0
        self.prompts: list[str] = []
        if not any(isinstance(entry, UserInput) for entry in entries):
            self.hear(prompt)
        for entry in entries:
            match entry:
                case UserInput() | UserMessage():
                    (self.hear if isinstance(entry, UserInput) else self.read)(entry.text)
                case Compaction():
                    self.compact(entry.text, entry.usage or Usage())
                case Response() if entry.message is not None:
                    self.say(_response(entry), entry.usage or Usage(), entry.withheld)
                    if entry.output is not UNSET:
                        self.final = entry
                case FailedRequest():
                    self.usage += entry.usage or NOTHING_SPENT
                case ToolCall():
                    self.begun.add(entry.id)
                case ToolResult() if entry.complaint:
                    self.complain(entry.complaint, entry.id or None)
                case ToolResult():
                    self.answer(entry.id, entry.tool, result_text(entry), outcome_of(entry))
                    if entry.output is not UNSET:
                        self.final = entry
        self.continued = self.turns > 0

    def ready(self) -> list[ModelMessage]:
        """Return the messages to send, ending with the parts that arrived since the last response."""
        from pydantic_ai.messages import ModelRequest

        if self._parts:
            self.messages.append(ModelRequest(parts=self._parts))
            self._parts = []
        return self.messages

    def hear(self, text: str) -> None:
        """Add a prompt, which starts a new turn."""
        for call in tuple(self.pending.values()):
            self.answer(call.tool_call_id, call.tool_name, INTERRUPTED, "interrupted")
        self.read(text)
        self.turns = self.complaints = self.calls = 0
        self.usage = NOTHING_SPENT

    def read(self, text: str) -> None:
        """Add a message of a person, which is part of the current turn."""
        from pydantic_ai.messages import UserPromptPart

        self.prompts.append(text)
        self._parts.append(UserPromptPart(content=text))
        self.last, self.final = None, None

    def say(self, response: ModelResponse, usage: Usage, withheld: Iterable[str] = ()) -> None:
        """Add a response of the model."""
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
        """Add the result of a call."""
        from pydantic_ai.messages import ToolReturnPart

        if self.pending.pop(call_id, None) is None:
            return
        self._parts.append(ToolReturnPart(tool, content, call_id, outcome=outcome))
        if tool != OUTPUT_TOOL:
            self.calls += 1
            self.failed_calls += outcome != "success"

    def complain(self, words: str, call_id: str | None) -> None:
        """Add a complaint about an invalid answer."""
        from pydantic_ai.messages import UserPromptPart

        self.complaints += 1
        if call_id is not None:
            self.answer(call_id, OUTPUT_TOOL, words, "retried")
            for call in tuple(self.pending.values()):
                self.answer(call.tool_call_id, call.tool_name, TWICE, "failed")
        else:
            self._parts.append(UserPromptPart(content=words))
        self.last = None

    def compact(self, summary: str, usage: Usage) -> bool:
        """Replace all messages by the task and a summary; return False if the summary is empty."""
        from pydantic_ai.messages import UserPromptPart

        self.usage += usage
        if not summary.strip():  # an empty summary would lose all of the work
            return False
        self.messages = []
        self.pending = {}
        task = "\n\n".join(self.prompts)
        self._parts = [UserPromptPart(content=f"{task}\n\n{COMPACTED}\n\n{summary}\n\nGo on from there.")]
        self.last = None
        self.compactions += 1
        return True
