"""The answer a session owes: text, or a value that fits the step's schema and names.

Rules
* A typed answer is asked for the way the model does it best (a tool that takes the answer, or a response
  format), and judged here by the step's own schema, whatever the provider promised.
* What does not fit is sent back with the validator's words, `MAX_COMPLAINTS` times. It is never patched up:
  no fences are stripped, no types converted, no missing names filled in.
* Providers want an object at the top. Any other schema is wrapped into one for the wire and taken out again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from fanfold.agents.backend import SessionRequest
from fanfold.agents.entries import Output
from fanfold.kernel.plan import JSON
from fanfold.text.json_schema import misfits
from fanfold.text.json_value import read_json

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import ModelRequestParameters

OUTPUT_TOOL = "final_output"
MAX_COMPLAINTS = 3
_WRAPPER = "result"
_DESCRIPTION = (
    "Hand in the final answer. Call it once, when everything else is done; it ends your work on the task."
)


class Judgement(Struct, frozen=True):
    """What is to be made of a response: an answer, a complaint, or neither while tools are being called."""

    final: bool = False
    value: JSON = None
    complaint: str = ""
    call_id: str | None = None
    """The call that handed the answer in, when it came that way."""


class Contract:
    """What one session's answer must be."""

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
        self._wrapped = isinstance(schema, bool) or (schema is not None and not _is_object(schema))

    @classmethod
    def of(cls, request: SessionRequest) -> Contract:
        return cls(request.output_schema, request.outputs, request.max_output_tokens is not None)

    @property
    def typed(self) -> bool:
        """Whether the answer must be a value, as opposed to text."""
        return self._schema is not None

    @property
    def text(self) -> str:
        """The schema itself, for an agent that has to be told."""
        return msgspec.json.encode(self._schema).decode()

    @property
    def wire(self) -> Any:
        """The schema with an object at the top, as providers and programs take it."""
        return _wrap(self._schema) if self._wrapped else self._schema

    def judge_answer(self, text: str, value: Output = UNSET, *, by_wire: bool = False) -> Judgement:
        """Whether what a program said last is the answer, or what it handed in; `by_wire`: it was given the
        schema in that form.
        """
        if not self.typed:
            complaint = "" if text.strip() else "You said nothing. Finish the task, then give the answer."
            return Judgement(final=not complaint, value=text, complaint=complaint)
        if isinstance(value, UnsetType):
            try:
                value = read_json(text, "the answer")
            except ValueError as error:
                return Judgement(complaint=f"The answer must be one JSON value and nothing else: {error}.")
        return self._judge_value(value, None, wrapped=self._wrapped and by_wire)

    def parameters(self, parameters: ModelRequestParameters) -> ModelRequestParameters:
        """The request with the form of the answer added."""
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
            parameters,
            output_mode="auto",
            output_tools=[tool],
            output_object=form,
            allow_text_output=False,
        )

    def judge(self, response: ModelResponse) -> Judgement:
        """Whether a response is the answer; pure, so that it can be asked again after a crash."""
        from pydantic_ai.messages import ToolCallPart

        calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
        handed = [call for call in calls if call.tool_name == OUTPUT_TOOL and self.typed]
        if handed:
            return self._judge_call(handed[0].args, handed[0].tool_call_id, response.finish_reason)
        if calls:
            return Judgement()
        text = response.text or ""
        if response.finish_reason == "length" and not (self._bounded and not self.typed and text.strip()):
            return Judgement(complaint="Your answer was cut off at the limit of tokens: be shorter.")
        if not text.strip():
            return Judgement(complaint="You said nothing. Finish the task, then give the answer.")
        return self._judge_text(text) if self.typed else Judgement(final=True, value=text)

    def _judge_text(self, text: str) -> Judgement:
        try:
            value = read_json(text, "the answer")
        except ValueError as error:
            return Judgement(complaint=f"The answer must be one JSON value and nothing else: {error}.")
        return self._judge_value(value, None, wrapped=self._wrapped)

    def _judge_call(self, args: object, call_id: str, finish: str | None) -> Judgement:
        if not isinstance(args, str):
            return self._judge_value(args or {}, call_id, wrapped=self._wrapped)
        try:
            value = read_json(args or "{}", "the answer")
        except ValueError as error:
            cut = " It was cut off at the limit of tokens: be shorter." if finish == "length" else ""
            return Judgement(complaint=f"The answer is not valid JSON: {error}.{cut}", call_id=call_id)
        return self._judge_value(value, call_id, wrapped=self._wrapped)

    def _judge_value(self, value: JSON, call_id: str | None, *, wrapped: bool) -> Judgement:
        if wrapped:
            if not isinstance(value, Mapping) or value.keys() != {_WRAPPER}:
                complaint = f'The answer must be an object with "{_WRAPPER}" alone.'
                return Judgement(complaint=complaint, call_id=call_id)
            value = value[_WRAPPER]
        words = misfits(self._schema, value) or self._missing(value)
        if words:
            return Judgement(complaint=f"The answer does not fit: {words}. Correct it.", call_id=call_id)
        return Judgement(True, value, "", call_id)

    def _missing(self, value: JSON) -> str:
        if not self._names:
            return ""
        if not isinstance(value, Mapping):
            return f"it must be an object with {', '.join(self._names)}"
        missing = [name for name in self._names if name not in value]
        return f"it lacks {', '.join(missing)}" if missing else ""


def _is_object(schema: JSON) -> bool:
    return isinstance(schema, Mapping) and (schema.get("type") == "object" or "properties" in schema)


def _wrap(schema: JSON) -> dict[str, Any]:
    """The schema as the one property of an object; definitions move to the top, where references look."""
    inner = dict(schema) if isinstance(schema, Mapping) else schema
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
