"""One session of a model: send a request, run its tool calls and repeat, until there is an answer.

The loop is our own, on top of the model layer of pydantic-ai. It must be able to stop at any point and
continue in another process, which an agent loop with state in memory cannot do. Each response is recorded
before anything acts on it. Each mutating call is recorded before it runs, and each result before the model
receives it. The state of the conversation is read from those entries alone.

Rules
* A paid request is not repeated: a recorded response is never requested a second time.
* Calls that only read run in parallel. A call that changes something runs alone, in its place in the order.
* A call that may have happened before a crash is not repeated. The model is informed that its outcome is
  unknown.
* A failed tool call is a result for the model, not the end of the session. The session fails if the model
  cannot be reached, does not finish within its turns, or gives no valid answer after corrections.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, structs

from fanfold.agents.backend import (
    Progress,
    Record,
    SessionFailed,
    SessionRequest,
    SessionResult,
    Tools,
    UserQuestion,
    is_cancelled,
)
from fanfold.agents.backend_registry import MODEL, BackendSetup
from fanfold.agents.entries import (
    WARNING,
    AgentBegin,
    CallLoops,
    Compacting,
    Compaction,
    Ending,
    Entry,
    FailedRequest,
    QueuedRequest,
    ToolCall,
    ToolError,
    ToolResult,
    UsageUpdate,
    UserMessage,
    redacted,
    since_last_input,
)
from fanfold.agents.instructions import ProjectInstructions, compose, instructions_for
from fanfold.agents.local.server import LocalServers, fitted
from fanfold.agents.local.weights import PROVIDER
from fanfold.agents.models.connections import Connections
from fanfold.agents.models.failures import Problem
from fanfold.agents.models.messages import (
    EMPTY,
    MAX_COMPLAINTS,
    OUTPUT_TOOL,
    TWICE,
    WITHHELD,
    Contract,
    Conversation,
    Judgement,
    give_distinct_ids,
    outcome_of,
    readable,
    response_entry,
    result_text,
)
from fanfold.agents.models.requests import ModelClient, Patience, TooLong, check_effort
from fanfold.agents.providers import OPENAI, Access
from fanfold.agents.redaction import Redactor
from fanfold.agents.role import Role
from fanfold.agents.tools.toolbox import InstructedTools, SessionTools, run_call
from fanfold.kernel.events import Failure
from fanfold.kernel.plan import JSON
from fanfold.language.json_text import aside
from fanfold.language.terminal import shorten_middle

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart

# -----------------------------------------------------------------------------------------------------------
# Compaction: when a conversation outgrows the model, the model summarizes its work and continues from there.
#
# Rules
# * Only whole conversations are summarized, and no part is dropped silently. The model has seen everything
#   that its summary leaves out. Long results are cut in the middle, with a note of the length.
# * The summary is recorded as a response, because it was paid for. A session continues after it when its
#   process was killed.
# * An empty summary does not count. It is requested again from a shorter record, and then the session fails.
# * A conversation with nothing to leave out, or with too many compactions, fails with a hint.

MAX_COMPACTIONS = 8
FULL = 0.85
"""The fraction of the context window at which a conversation is summarized before it overflows."""
PIECE_CHARS = (4_000, 1_000, 250)
"""Maximum length of each text in the record for the summary. The next value is used if that does not fit."""

INSTRUCTIONS = """\
You are given the record of your own work on a task so far. It no longer fits, so you will continue from a
summary that you write now. Write down everything you need to finish: what the task demands, what you did and
changed (with paths), what you found out (with paths, line numbers, names, numbers), what failed and why, and
what is left to do. Quote exactly what you will need exactly. No preamble."""


def transcript(messages: Sequence[ModelMessage], piece_chars: int) -> str:
    """Return the conversation as text, with each part shortened."""
    from pydantic_ai.messages import TextPart, ToolCallPart, ToolReturnPart, UserPromptPart

    lines: list[str] = []
    for message in messages:
        for part in message.parts:
            if isinstance(part, UserPromptPart):
                lines.append(f"TASK: {_written(part.content, 4 * piece_chars)}")
            elif isinstance(part, TextPart):
                lines.append(f"YOU SAID: {_written(part.content, piece_chars)}")
            elif isinstance(part, ToolCallPart):
                lines.append(f"YOU CALLED {part.tool_name}: {_written(part.args, piece_chars)}")
            elif isinstance(part, ToolReturnPart):
                lines.append(f"{part.tool_name} GAVE: {_written(part.content, piece_chars)}")
    return "\n\n".join(lines)


def _written(value: JSON, limit: int) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()
    return shorten_middle(text, limit, tail=1 / 2)


MAX_TURNS = 100
ASK_TOOL = "ask_user"
ASK_DESCRIPTION = (
    "Ask the user one question and wait for the answer, which may take days. Use it only if you cannot "
    "decide yourself and a wrong guess would be costly."
)
ASK_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "question": {"type": "string", "description": "One question that can be read alone."},
        "context": {"type": "string", "description": "What the user has to see to answer."},
    },
    "required": ["question"],
}
MAX_QUESTION_CHARS = 8_000
FROM_PERSON = "Message from {by}, who watches your work:"
SPLIT_TASK = "read its transcript; then split the task into smaller steps, or make the prompt more precise"
NOT_ACCEPTED = "Not accepted: another call of the same response failed. Look at it, then answer again."


class ModelSession:
    """Runs one session request to its end."""

    def __init__(
        self,
        request: SessionRequest,
        asker: ModelClient,
        tools: Tools,
        instructions: str,
        record: Record,
        progress: Progress,
    ) -> None:
        self._request = request
        self._asker = asker
        self._asker.bill = self._bill
        self._asker.note_wait = self._note_wait
        self._tools = tools
        self._redactor = asker.redactor
        self._record_raw = record
        self._progress = progress
        self._contract = Contract.of(request)
        self._talk = Conversation(request.prompt, request.entries)
        self._max_turns = request.role.max_turns or MAX_TURNS
        from pydantic_ai.messages import InstructionPart
        from pydantic_ai.models import ModelRequestParameters
        from pydantic_ai.tools import ToolDefinition

        offered = [
            ToolDefinition(
                name=tool.name, description=tool.description, parameters_json_schema=tool.schema, strict=False
            )
            for tool in self._tools.offered()
        ]
        if self._request.role.may_ask:
            asking = ToolDefinition(
                name=ASK_TOOL, description=ASK_DESCRIPTION, parameters_json_schema=ASK_SCHEMA, strict=False
            )
            offered.append(asking)
        parts = [InstructionPart(content=instructions)] if instructions else None
        self._parameters = self._contract.parameters(
            ModelRequestParameters(function_tools=offered, instruction_parts=parts)
        )
        self._loops = CallLoops(since_last_input(request.entries))
        self._used = 0
        """Tokens of the last request and its response."""
        self._judgement: Judgement | None = None
        """The check of the last response; None if an earlier process received it."""
        known = (entry.number for entry in request.entries if isinstance(entry, UserMessage))
        self._seen = max(known, default=0)
        """How many of the texts that people sent are part of the conversation."""

    async def run(self) -> SessionResult:
        """Return the result, or a question for a person; raise `SessionFailed` with the usage so far."""
        try:
            bad = check_effort(self._request.role.reasoning_effort)
            if bad is not None:
                raise self._failed("agent", "model.bad_effort", bad["message"], bad["hint"])
            while True:
                if self._talk.final is not None:  # the session finished before the crash
                    return self._result(self._talk.final.output)
                if self._talk.last is not None:
                    judgement = self._judgement
                    if judgement is None:
                        judgement = await aside(self._contract.judge, self._talk.last)
                    output = await self._act(judgement)
                    if output is not None:
                        return self._result(output.value)
                    if (question := self._question()) is not None:
                        return structs.replace(self._result(None), asks=question)
                    self._talk.last = None  # every call is answered: the model is next
                # Messages of people that arrived since the last turn are recorded and shown to the model.
                texts = self._request.texts()
                for number in range(self._seen + 1, len(texts) + 1):
                    sent = texts[number - 1]
                    if not sent.call:
                        text = self._redactor.known(f"{FROM_PERSON.format(by=sent.by)}\n{sent.text}")
                        await self._record(UserMessage(text=text, by=sent.by, number=number))
                        self._talk.read(text)
                self._seen = max(self._seen, len(texts))
                await self._turn()
        except SessionFailed as failed:
            failed.usage = self._talk.usage
            raise

    async def _turn(self) -> None:
        """Request the next response and record it."""
        if self._talk.turns >= self._max_turns:
            message = f"no answer within {self._max_turns} turns"
            raise self._failed("agent", "session.max_turns", message, SPLIT_TASK)
        window = self._asker.window if self._used and self._talk.compactions < MAX_COMPACTIONS else None
        if window is not None and self._used >= FULL * window:  # the next request would hardly fit
            await self._compact(None)
        try:
            response = await self._asker.ask(
                self._talk.ready(), self._parameters, self._request.role.reasoning_effort
            )
        except TooLong as too_long:
            await self._compact(too_long)
            return
        give_distinct_ids(response)
        usage = self._asker.usage_of(response)
        judgement = self._judgement = self._contract.judge(response)
        entry = response_entry(self._asker.model, response, usage)
        clean = redacted(entry, self._redactor.json)
        if clean is not entry:
            # The calls whose arguments redaction changed; their recorded form cannot be run.
            pairs = zip(entry.tool_calls, clean.tool_calls, strict=True)
            clean = structs.replace(
                clean, withheld=tuple(before.id for before, after in pairs if before.args != after.args)
            )
        if judgement.final and len(entry.tool_calls) == (judgement.call_id is not None):
            # Nothing is left to do: this entry ends the session. It was paid for, so it is recorded now and
            # not at the end of the step. Merging the changes of a worker can take long, and the process may
            # die meanwhile.
            clean = structs.replace(clean, output=self._redactor.json(judgement.value))
        await self._record_raw(clean)
        self._loops.observe(clean)
        self._talk.say(response, usage)
        self._progress(UsageUpdate(self._talk.usage.tokens))
        self._used = response.usage.input_tokens + response.usage.output_tokens

    async def _bill(
        self, response: ModelResponse | None, problem: Problem, tried: int, wait_s: float | None
    ) -> None:
        """Record a request without a usable response: its cost, and when it is retried (None: never)."""
        usage, failure = None, problem.failure
        if response is not None:
            usage = self._asker.usage_of(response)
            self._talk.usage += usage
        failed = FailedRequest(
            model=self._asker.model,
            kind=failure.kind,
            code=failure.code,
            message=failure.message,
            count=tried,
            next_at=0 if wait_s is None else round((time.time() + wait_s) * 1_000),
            usage=usage,
        )
        may_wait = usage is None or failure.kind == "cancelled"  # the end of the step is recorded at once
        await self._record_raw(redacted(failed, self._redactor.json), may_wait=may_wait)

    async def _note_wait(self, message: str, wait_s: float) -> None:
        next_at = round((time.time() + wait_s) * 1_000) if wait_s else 0
        entry = QueuedRequest(model=self._asker.model, message=message, next_at=next_at)
        await self._record_raw(entry, may_wait=True)

    async def _act(self, judgement: Judgement) -> Judgement | None:
        """Run the calls of the last response; return the judgement if it is the final answer."""
        talk = self._talk
        if judgement.final and not talk.pending:
            return judgement
        alone = judgement.final and list(talk.pending) == [judgement.call_id]
        if not alone:
            # Run the calls without a result: those that only read in parallel, the others one by one.
            own = (OUTPUT_TOOL, ASK_TOOL) if self._request.role.may_ask else (OUTPUT_TOOL,)
            calls = [call for call in self._talk.pending.values() if call.tool_name not in own]
            side_by_side: list[ToolCallPart] = []
            for call in calls:
                if self._tools.mutates(call.tool_name):
                    await self._do_all(side_by_side)
                    side_by_side = []
                    await self._do(call)
                else:
                    side_by_side.append(call)
            await self._do_all(side_by_side)
            await self._take_answers()
        if any(call.tool_name == ASK_TOOL for call in talk.pending.values()) and self._request.role.may_ask:
            return None
        if judgement.final and talk.failed_calls == 0:
            if not alone:
                value = self._redactor.json(judgement.value)
                end = ToolResult(
                    id=judgement.call_id or "", tool=OUTPUT_TOOL, result="accepted", output=value
                )
                await self._record_raw(end)
            return judgement
        if judgement.final:
            error = ToolError("output.not_accepted", NOT_ACCEPTED)
            await self._note(ToolResult(id=judgement.call_id or "", tool=OUTPUT_TOOL, error=error))
        elif judgement.complaint:
            await self._complain(judgement)
        for call in tuple(talk.pending.values()):  # a second submission next to the first
            error = ToolError("output.twice", TWICE)
            await self._note(ToolResult(id=call.tool_call_id, tool=call.tool_name, error=error))
        return None

    async def _take_answers(self) -> None:
        """Pass on the answers of people to the calls of `ask_user`, and refuse calls without a question."""
        answers = {sent.call: sent for sent in self._request.texts() if sent.call}
        for call in [call for call in self._talk.pending.values() if call.tool_name == ASK_TOOL]:
            name, args = call.tool_call_id, readable(call)
            asked = args.get("question") if isinstance(args, dict) else None
            if not isinstance(asked, str) or not asked.strip():
                error = ToolError("invalid_args", "`question` is missing: write what you need to know")
                await self._note(ToolResult(id=name, tool=ASK_TOOL, error=error))
            elif name in answers:
                sent = answers[name]
                result = {"answer": self._redactor.known(sent.text), "by": sent.by}
                await self._note(ToolResult(id=name, tool=ASK_TOOL, result=result))

    def _question(self) -> UserQuestion | None:
        """The first question of the last response that a person has not answered."""
        if not self._request.role.may_ask:
            return None
        for call in self._talk.pending.values():
            args = readable(call)
            if call.tool_name == ASK_TOOL and isinstance(args, dict):
                question, show = str(args.get("question")), str(args.get("context") or "")
                return UserQuestion(
                    self._redactor.text(question)[:MAX_QUESTION_CHARS],
                    self._redactor.text(show)[:MAX_QUESTION_CHARS],
                    call.tool_call_id,
                )
        return None

    async def _complain(self, judgement: Judgement) -> None:
        if self._talk.complaints >= MAX_COMPLAINTS:
            message = f"no valid answer after {MAX_COMPLAINTS} corrections: {judgement.complaint}"
            if judgement.complaint == EMPTY:
                message = f"the answer is empty, also after {MAX_COMPLAINTS} corrections"
            hint = "relax the step's output schema, or use a stronger model"
            if not self._contract.typed:
                hint = "read its transcript; then use another model, or make the prompt more precise"
            raise self._failed("invalid_output", "output.invalid", self._redactor.text(message), hint, True)
        await self._record(
            ToolResult(id=judgement.call_id or "", tool=OUTPUT_TOOL, complaint=judgement.complaint)
        )
        self._talk.complain(judgement.complaint, judgement.call_id)

    async def _do_all(self, calls: Sequence[ToolCallPart]) -> None:
        if len(calls) == 1:
            await self._do(calls[0])
        elif calls:
            try:
                async with asyncio.TaskGroup() as group:
                    for call in calls:
                        group.create_task(self._do(call))
            except BaseExceptionGroup as several:
                raise several.exceptions[0] from None  # callers expect a single exception

    async def _do(self, call: ToolCallPart) -> None:
        await self._note(await self._result_of(call))

    async def _result_of(self, call: ToolCallPart) -> ToolResult:
        """Run a call and return its result, without our own keys."""
        name, tool = call.tool_call_id, call.tool_name
        if self._tools.mutates(tool) and name in self._talk.begun:
            return ToolResult(id=name, tool=tool, outcome="unknown")
        if name in self._talk.withheld:
            return ToolResult(id=name, tool=tool, error=ToolError("tool.withheld", WITHHELD))
        about = ToolCall(id=name, tool=tool, args=readable(call))
        try:
            result = await run_call(self._tools, about, self._record, self._progress, self._redactor.text)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            error = ToolError("tool.broken_off", "the connection broke; the tool may have done its work")
            return ToolResult(id=name, tool=tool, error=error)
        return redacted(result, partial(self._redactor.json, shapes=False))

    async def _note(self, entry: ToolResult) -> None:
        """Record the result of a call and pass it to the model; fail if it repeats calls endlessly."""
        verdict = self._loops.observe(entry)
        if verdict == "warn":
            entry = structs.replace(entry, note=WARNING)
        await self._record(entry)
        self._talk.answer(entry.id, entry.tool, result_text(entry), outcome_of(entry))
        if verdict == "stop":
            failed = self._loops.failure()
            raise self._failed(failed.kind, failed.code, failed.message, failed.hint)

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
            usage = self._asker.usage_of(response)
            await self._record(Compaction(model=self._asker.model, text=response.text or "", usage=usage))
            if self._talk.compact(response.text or "", usage):
                self._used = 0
                return
        if too_long is not None:
            raise SessionFailed(too_long.problem.failure) from too_long
        message = "the conversation is too long for the model, and it did not summarize it"
        raise self._failed(
            "agent", "session.no_summary", message, "use another model, or split the task", True
        )

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


# -----------------------------------------------------------------------------------------------------------
# The model back end: agents that are models, of providers or on this machine.
#
# Rules
# * One back end serves a whole process. It has the connections, limits and circuits of providers, and no
#   state of any session. Sessions have no state outside their entries.
# * Keys are sent only to the address of their provider. Everything that the back end records or returns
#   passes through the redactor first.
# * Importing this module is cheap. The first session that uses a model loads the SDKs.


class ModelBackend:
    """Runs sessions with models.

    `model` is the default for sessions without a model. `toolbox` creates the tools of a session.
    `instructions` are the project's instructions for its agents. `local` starts the servers of models on this
    machine.
    """

    name = MODEL

    def __init__(
        self,
        access: Access,
        *,
        model: str | None = None,
        redactor: Redactor | None = None,
        toolbox: Callable[[SessionRequest], Tools] = SessionTools,
        instructions: ProjectInstructions | None = None,
        local: LocalServers | None = None,
        patience: Patience | None = None,
        connections: Connections | None = None,
    ) -> None:
        self._model = model
        self._redactor = redactor or Redactor(access.secrets)
        self._toolbox = toolbox
        self._instructions = instructions or ProjectInstructions()
        self._local = local
        self._local_connections: dict[str, Connections] = {}
        self._patience = patience or Patience()
        self._connections = connections or Connections(access)

    def subject(self, role: Role) -> str:
        """Return the providers of the role's models. The role can work while one of them responds."""
        models = [one for one in (role.model or self._model, *role.fallback_models) if one]
        if any(model.startswith(f"{PROVIDER}:") for model in models):
            return ""
        return " or ".join(dict.fromkeys(map(self._connections.provider_of, models)))

    async def run(self, request: SessionRequest, record: Record, progress: Progress) -> SessionResult:
        role, redactor, connections = request.role, self._redactor, self._connections
        model = role.model or self._model
        if model is None:
            hint = "set FANFOLD_MODEL, pass --model, or write `model:` in the step or role"
            message = f"{request.step}: no model is configured"
            raise SessionFailed(Failure("agent", "model.none", message, hint, retryable=False))
        if any(isinstance(entry, AgentBegin) for entry in request.entries):  # a program worked on it before
            request = structs.replace(request, entries=())
        subject = self.subject(role)
        if self._local is not None and model.startswith(f"{PROVIDER}:"):
            address, subject = await self._local.reach(request, model, progress), ""
            if address not in self._local_connections:
                access = Access(addresses={OPENAI.name: address}, native_json=True)
                self._local_connections[address] = Connections(access)
            connections = self._local_connections[address]
            request = fitted(request, model)
            model, role = request.role.model or model, request.role
        models = [model, *(other for other in role.fallback_models if other != model)]
        await connections.load(models)
        # A prompt that was made from a file may contain one of our keys.
        known = partial(redactor.json, shapes=False)
        request = structs.replace(
            request,
            prompt=redactor.known(request.prompt),
            role=structs.replace(role, instructions=redactor.known(role.instructions)),
            entries=[redacted(entry, known) for entry in request.entries],
        )
        tools, project = self._toolbox(request), self._instructions
        nested = instructions_for(project.below, (*request.read_set, *request.write_set))
        if project.below:
            tools = InstructedTools(tools, project.below, nested)
        asker = ModelClient(connections, models, redactor, self._patience, progress, request, subject=subject)
        instructions = compose(request.described(), project.top, nested)
        try:
            last = request.entries[-1] if request.entries else None
            if not (isinstance(last, Ending) and last.output is not UNSET):
                await tools.open()
            return await ModelSession(request, asker, tools, instructions, record, progress).run()
        finally:
            await tools.aclose()

    async def aclose(self) -> None:
        """Close the connections to providers."""
        for connections in (self._connections, *self._local_connections.values()):
            await connections.aclose()


def make(setup: BackendSetup) -> ModelBackend:
    """Create the back end with the keys and addresses of this machine's configuration."""
    config, default = setup.machine.config, setup.model or setup.default_model
    idle_s, silence_s = config["models.local_idle_s"], config["models.silence_s"]
    assert isinstance(idle_s, int) and isinstance(silence_s, int)
    access = Access.of(config, setup.machine.providers)
    return ModelBackend(
        access,
        connections=Connections(access, stall_s=silence_s),
        model=default,
        redactor=setup.machine.redactor,
        toolbox=setup.toolbox,
        instructions=setup.instructions,
        local=LocalServers(setup.machine.home, idle_s, default),
    )
