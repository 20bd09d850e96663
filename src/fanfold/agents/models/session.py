"""One session of a model: ask, do what it calls for, ask again, until there is an answer.

The loop is ours, on top of pydantic-ai's model layer, and not its agent loop. Ours has to stop at any point
and go on in another process: each response is recorded before anything is done about it, each mutating call
before it runs, each result before the model hears of it, and where the conversation stands is read from those
entries alone. An agent loop that keeps its state in memory has no place to put that.

Rules
* What was paid for is not asked for again: a response that was recorded is never requested a second time.
* Calls that only read run side by side; one that changes something runs alone, in its place in the order.
* A call that may have happened before a crash is not repeated: the model is told that its outcome is unknown.
* What tools cannot do is news for the model, not the end of the session. The session fails when the model
  cannot be reached, does not end within its turns, or does not give a fitting answer when told what is wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from fanfold.agents.backend import Progress, Record, SessionFailed, SessionRequest, SessionResult
from fanfold.agents.entries import (
    Compacting,
    Compaction,
    Entry,
    Response,
    Spent,
    ToolCall,
    ToolError,
    ToolResult,
    calling,
    redacted,
)
from fanfold.agents.models.answers import MAX_COMPLAINTS, OUTPUT_TOOL, Contract, Judgement
from fanfold.agents.models.compaction import FULL, INSTRUCTIONS, MAX_COMPACTIONS, PIECE_CHARS, transcript
from fanfold.agents.models.messages import (
    TWICE,
    WITHHELD,
    Conversation,
    outcome_of,
    readable,
    response_entry,
    result_text,
    tell_apart,
)
from fanfold.agents.models.prices import usage_of
from fanfold.agents.models.questions import Asker, TooLong, check_effort
from fanfold.agents.redaction import Redactor
from fanfold.agents.toolbox import ToolFailed
from fanfold.agents.toolbox.catalogue import Tools, use, wrong_call
from fanfold.kernel.events import Failure
from fanfold.kernel.plan import JSON

if TYPE_CHECKING:
    from pydantic_ai.messages import ToolCallPart
    from pydantic_ai.models import ModelRequestParameters

MAX_TURNS = 100
NOT_ACCEPTED = "Not accepted: another call of the same response failed. Look at it, then answer again."


class SessionParts(Struct, frozen=True, kw_only=True):
    """What a session works with."""

    asker: Asker
    tools: Tools
    redactor: Redactor
    instructions: str


class ModelSession:
    """Runs one request to its end."""

    def __init__(
        self, request: SessionRequest, parts: SessionParts, record: Record, progress: Progress
    ) -> None:
        self._request = request
        self._asker = parts.asker
        self._tools = parts.tools
        self._redactor = parts.redactor
        self._instructions = parts.instructions
        self._record_raw = record
        self._progress = progress
        self._contract = Contract.of(request)
        self._talk = Conversation(request.prompt, request.entries)
        self._max_turns = request.role.max_turns or MAX_TURNS
        self._parameters = self._contract.parameters(self._offer())
        self._used = 0
        """Tokens of the last request and its response."""

    async def run(self) -> SessionResult:
        """The answer; raises `SessionFailed` with what was spent."""
        try:
            bad = check_effort(self._request.role.reasoning_effort)
            if bad is not None:
                raise self._failed("agent", "model.bad_effort", bad["message"], bad["hint"])
            while True:
                if self._talk.final is not None:  # everything was said before the crash
                    return self._result(self._talk.final.output)
                if self._talk.last is not None:
                    judgement = self._contract.judge(self._talk.last)
                    output = await self._act(judgement)
                    if output is not None:
                        return self._result(output.value)
                await self._turn()
        except SessionFailed as failed:
            failed.usage = self._talk.usage
            raise

    # ---------------------------------------------------------------------------------- the model

    async def _turn(self) -> None:
        """Ask for the next response and record it."""
        if self._talk.turns >= self._max_turns:
            message = f"no answer within {self._max_turns} turns"
            raise self._failed("agent", "session.max_turns", message, "raise max_turns, or split the task")
        if self._is_full():
            await self._compact(None)
        try:
            response = await self._asker.ask(
                self._talk.ready(), self._parameters, self._request.role.reasoning_effort
            )
        except TooLong as too_long:
            await self._compact(too_long)
            return
        tell_apart(response)
        usage = usage_of(response, self._asker.prices)
        judgement = self._contract.judge(response)
        entry = response_entry(self._asker.model, response, usage)
        clean = redacted(entry, self._redactor.json)
        if clean is not entry:
            clean = structs.replace(clean, withheld=_changed(entry, clean))
        if judgement.final and len(entry.tool_calls) == (judgement.call_id is not None):
            # Nothing is left to do: this entry ends the session. It was paid for, so it is not held back for
            # the end of the step: merging what a worker changed may take long, and the process may die in it.
            clean = structs.replace(clean, output=self._redactor.json(judgement.value))
        await self._record_raw(clean)
        self._talk.say(response, usage)
        self._progress(Spent(self._talk.usage.tokens))
        self._used = response.usage.input_tokens + response.usage.output_tokens

    def _offer(self) -> ModelRequestParameters:
        from pydantic_ai.messages import InstructionPart
        from pydantic_ai.models import ModelRequestParameters
        from pydantic_ai.tools import ToolDefinition

        offered = [
            ToolDefinition(
                name=tool.name,
                description=tool.description,
                parameters_json_schema=tool.schema,
                strict=False,
            )
            for tool in self._tools.offered()
        ]
        instructions = [InstructionPart(content=self._instructions)] if self._instructions else None
        return ModelRequestParameters(function_tools=offered, instruction_parts=instructions)

    # ------------------------------------------------------------------------------ what it wants

    async def _act(self, judgement: Judgement) -> Judgement | None:
        """Do what the last response calls for; the answer when that was it."""
        talk = self._talk
        if judgement.final and not talk.pending:
            return judgement
        alone = judgement.final and list(talk.pending) == [judgement.call_id]
        if not alone:
            await self._do_calls()
        if judgement.final and talk.failed_calls == 0:
            if not alone:
                value = self._redactor.json(judgement.value)
                end = ToolResult(id=_name(judgement), tool=OUTPUT_TOOL, result="accepted", output=value)
                await self._record_raw(end)
            return judgement
        if judgement.final:
            error = ToolError("output.not_accepted", NOT_ACCEPTED)
            await self._note(ToolResult(id=_name(judgement), tool=OUTPUT_TOOL, error=error))
        elif judgement.complaint:
            await self._complain(judgement)
        for call in tuple(talk.pending.values()):  # a second hand-in beside the first
            error = ToolError("output.twice", TWICE)
            await self._note(ToolResult(id=call.tool_call_id, tool=call.tool_name, error=error))
        talk.settle()
        return None

    async def _complain(self, judgement: Judgement) -> None:
        if self._talk.complaints >= MAX_COMPLAINTS:
            message = f"no valid answer after {MAX_COMPLAINTS} corrections: {judgement.complaint}"
            hint = "loosen the step's output schema, or use a stronger model"
            raise self._failed("invalid_output", "output.invalid", self._redactor.text(message), hint, True)
        await self._record(ToolResult(id=_name(judgement), tool=OUTPUT_TOOL, complaint=judgement.complaint))
        self._talk.complain(judgement.complaint, judgement.call_id)

    async def _do_calls(self) -> None:
        """Carry out the calls that have no result yet, readers side by side, changes one by one."""
        calls = [call for call in self._talk.pending.values() if call.tool_name != OUTPUT_TOOL]
        side_by_side: list[ToolCallPart] = []
        for call in calls:
            if self._tools.mutates(call.tool_name):
                await self._do_all(side_by_side)
                side_by_side = []
                await self._do(call)
            else:
                side_by_side.append(call)
        await self._do_all(side_by_side)

    async def _do_all(self, calls: Sequence[ToolCallPart]) -> None:
        if len(calls) == 1:
            await self._do(calls[0])
        elif calls:
            try:
                async with asyncio.TaskGroup() as group:
                    for call in calls:
                        group.create_task(self._do(call))
            except BaseExceptionGroup as several:
                raise several.exceptions[0] from None  # whoever catches it expects one

    async def _do(self, call: ToolCallPart) -> None:
        await self._note(await self._result_of(call))

    async def _result_of(self, call: ToolCallPart) -> ToolResult:
        """Make a call; what is known of it afterwards, without our own keys."""
        name, tool = call.tool_call_id, call.tool_name
        mutates = self._tools.mutates(tool)
        if mutates and name in self._talk.begun:
            return ToolResult(id=name, tool=tool, outcome="unknown")
        if name in self._talk.withheld:
            return ToolResult(id=name, tool=tool, error=ToolError("tool.withheld", WITHHELD))
        args = readable(call)
        problem = wrong_call(self._tools, tool, args)
        if problem:
            return ToolResult(id=name, tool=tool, error=ToolError("invalid_args", problem))
        if mutates:
            await self._record(ToolCall(id=name, tool=tool, args=args))
        self._progress(calling(tool, args, self._redactor.text))
        known = self._redactor.known
        try:
            result = await use(self._tools, tool, args)
        except ToolFailed as failed:
            error = ToolError(known(failed.code), known(failed.message), known(failed.hint))
            return ToolResult(id=name, tool=tool, error=error)
        return ToolResult(id=name, tool=tool, result=self._redactor.json(result, shapes=False))

    async def _note(self, entry: ToolResult) -> None:
        """Record what came of a call, then tell the model."""
        await self._record(entry)
        self._talk.answer(entry.id, entry.tool, result_text(entry), outcome_of(entry))

    # --------------------------------------------------------------------------------- compaction

    def _is_full(self) -> bool:
        """Whether the next request would hardly fit."""
        if not self._used or self._talk.compactions >= MAX_COMPACTIONS:
            return False
        window = self._asker.window
        return window is not None and self._used >= FULL * window

    async def _compact(self, too_long: TooLong | None) -> None:
        if too_long is not None and (self._talk.turns == 0 or self._talk.compactions >= MAX_COMPACTIONS):
            raise SessionFailed(too_long.problem.failure) from too_long
        from pydantic_ai.messages import InstructionPart, ModelRequest
        from pydantic_ai.models import ModelRequestParameters

        parameters = ModelRequestParameters(instruction_parts=[InstructionPart(content=INSTRUCTIONS)])
        self._progress(Compacting())
        for piece_chars in PIECE_CHARS:
            asked = [ModelRequest.user_text_prompt(transcript(self._talk.ready(), piece_chars))]
            try:
                response = await self._asker.ask(asked, parameters, None)
            except TooLong as again:
                too_long = again
                continue
            usage = usage_of(response, self._asker.prices)
            await self._record(Compaction(model=self._asker.model, text=response.text or "", usage=usage))
            if self._talk.compact(response.text or "", usage):
                self._used = 0
                return
        if too_long is not None:
            raise SessionFailed(too_long.problem.failure) from too_long
        message = "the work so far hardly fits the model any more, and it would not sum it up"
        raise self._failed(
            "agent", "session.no_summary", message, "use another model, or split the task", True
        )

    # ------------------------------------------------------------------------------------ the end

    async def _record(self, entry: Entry) -> None:
        await self._record_raw(redacted(entry, self._redactor.json))

    def _result(self, output: JSON) -> SessionResult:
        output = self._redactor.json(output)
        talk = self._talk
        trace: dict[str, Any] = {
            "backend": "model",
            "model": self._asker.model,
            "turns": talk.turns,
            "tool_calls": talk.calls,
            "continued": talk.continued,
            "retries": self._asker.retries,
        }
        if self._asker.passed_over:
            trace["passed_over"] = self._asker.passed_over
        if talk.compactions:
            trace["compactions"] = talk.compactions
        return SessionResult(output=output, usage=talk.usage, trace=trace)

    def _failed(
        self, kind: str, code: str, message: str, hint: str, retryable: bool = False
    ) -> SessionFailed:
        request = self._request
        return SessionFailed(
            Failure(kind, code, f"{request.step}: {message}", hint, retryable, request.step, request.attempt)
        )


def _name(judgement: Judgement) -> str:
    """The call by which an answer was handed in, if any was."""
    return judgement.call_id or ""


def _changed(entry: Response, clean: Response) -> tuple[str, ...]:
    """The calls whose arguments redaction changed: what is recorded of them cannot be carried out."""
    pairs = zip(entry.tool_calls, clean.tool_calls, strict=True)
    return tuple(before.id for before, after in pairs if before.args != after.args)
