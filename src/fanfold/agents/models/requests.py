"""One request to a model, until there is a response: streaming, retries and fallbacks.

Rules
* Only a complete response counts. A response that breaks off is discarded and requested again. No partial
  response is recorded or acted upon. Its cost is recorded: providers charge for what they sent. Tokens that
  the server did not count are estimated.
* Temporary errors are retried up to `MAX_TRIES` times. The wait is the one that the provider requested, or
  doubles each time with a random part. A wait longer than `MAX_WAIT_S` fails the step. The back-off of the
  step then applies, so that the session does not occupy a slot meanwhile.
* If a model cannot respond, the next fallback is used. The session stays with the model that responded.
* Text is shown as it arrives, split between words. A secret contains no spaces, so redaction sees it
  complete.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from fanfold.agents.backend import TRACE, Progress, SessionFailed, SessionRequest, is_cancelled
from fanfold.agents.entries import AskingFor, Fallback, TextDelta
from fanfold.agents.models.connections import CHARS_PER_TOKEN, Connections, ModelConnection, OnWait
from fanfold.agents.models.failures import (
    Problem,
    WrongResponse,
    broken_off,
    decoding,
    fault_of,
    stopped,
    understand,
)
from fanfold.agents.models.messages import storable
from fanfold.agents.providers import Rate
from fanfold.agents.redaction import Redactor, without_key_parts
from fanfold.agents.spending import NO_NEED, USUAL_OUTPUT_TOKENS, OpenRequest, OutOfBudget, RequestNeed
from fanfold.kernel.events import Failure, Usage
from fanfold.language.json_text import whole_text

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import ModelRequestParameters, StreamedResponse
    from pydantic_ai.settings import ModelSettings

MAX_TRIES = 5
BROKEN_TRIES = 2
"""Maximum number of tries for a response that stopped in the middle; one if the server sent nothing."""
MAX_WAIT_S = 90.0
BACKOFF_S = 0.5
MAX_SHOWN_CHARS = 2_000
TRIAL_TOKENS = 1_000
"""The output limit of a trial; a model that reasons needs some of it before it answers."""
EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
SILENCE_S = 20.0
"""After so much time without a part of a response, the silence of the server is recorded."""
_chance = random.SystemRandom()
Bill = Callable[["ModelResponse | None", Problem, int, float | None], Awaitable[None]]
"""Records a request without a usable response: its cost, and the seconds until its retry."""


async def _not_recorded(*_: object) -> None:
    return None


class TooLong(BaseException):
    """The conversation does not fit the model; `problem` is the failure if nothing can be left out."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.failure.message)
        self.problem = problem


class Patience(Struct, frozen=True, kw_only=True):
    """The limits for retries."""

    tries: int = MAX_TRIES
    backoff_s: float = BACKOFF_S
    max_wait_s: float = MAX_WAIT_S


class ModelClient:
    """Sends requests to the models of one session: the first, and its fallbacks in order."""

    def __init__(
        self,
        connections: Connections,
        models: Sequence[str],
        redactor: Redactor,
        patience: Patience,
        progress: Progress,
        request: SessionRequest,
        *,
        subject: str = "",
    ) -> None:
        self.bill: Bill = _not_recorded
        self.note_wait: OnWait = _not_recorded
        self._subject = subject
        self._probes = request.probe
        self._heard = False
        """Whether anything arrived for the last request."""
        self._heard_at = 0.0
        self._watch: asyncio.TimerHandle
        self._noting: asyncio.Future[None] | None = None
        self._partial: ModelResponse | None = None
        """The part of the last response that arrived before it broke off; providers charge for it."""
        self._max_output_tokens = request.max_output_tokens
        self._account = request.account
        self._forecast = InputForecast()
        self._sent: tuple[Sequence[ModelMessage], ModelRequestParameters | None] = (), None
        self._connections = connections
        self._models = models
        self.redactor = redactor
        self._patience = patience
        self._progress = progress
        self._at = 0
        self.retries = 0
        self.passed_over: list[str] = []
        """Models that could not respond, in order."""

    @property
    def model(self) -> str:
        """The model in use."""
        return self._models[self._at]

    def usage_of(self, response: ModelResponse) -> Usage:
        """Return tokens and price of a response of the model in use."""
        chars = 0 if _is_counted(response) else _chars_of(self._sent[0]) + len(repr(self._sent[1]))
        return self._connections.open(self.model).prices.usage_of(response, chars)

    @property
    def window(self) -> int | None:
        """The context window of the model in use, in tokens; None if unknown."""
        return self._connections.open(self.model).model.context_window

    async def ask(
        self, messages: Sequence[ModelMessage], parameters: ModelRequestParameters, effort: str | None
    ) -> ModelResponse:
        """Return the next response; raise `SessionFailed`, or `TooLong` if the conversation does not fit."""
        while True:
            try:
                there = self._connections.open(self.model)
                return await self._insist(there, list(messages), parameters, effort)
            except SessionFailed as failed:
                if self._at + 1 == len(self._models) or failed.failure.kind == "budget":
                    raise
                self._progress(Fallback(self.model, failed.failure.kind))
                self.passed_over.append(self.model)
                self._at += 1

    async def _insist(
        self,
        there: ModelConnection,
        messages: list[ModelMessage],
        parameters: ModelRequestParameters,
        effort: str | None,
    ) -> ModelResponse:
        tried, answered = 0, there.throttle.answered
        while True:
            response: ModelResponse | None = None
            cause: BaseException | None = None
            async with there.throttle.passing(self.note_wait):
                opened = await self._open(there, messages, parameters)
                self._sent = messages, parameters
                bounds = (self._max_output_tokens, there.bound(opened.max_output_tokens))
                bound = min((tokens for tokens in bounds if tokens is not None), default=None)
                try:
                    response = await self._once(there, messages, parameters, settings(effort, bound))
                    found = fault_of(response, there.name)
                except (Exception, asyncio.CancelledError) as error:
                    found, cause = _understood(error, there), error
                    if found is None:
                        if self._partial is not None:
                            await self.bill(self._partial, stopped(there.name), tried + 1, None)
                        raise
                finally:
                    opened.close()
                if response is not None:
                    self._forecast.learn(messages, response)
                if response is not None and found is None:
                    there.throttle.succeeded()
                    self._probes = False
                    return response
                assert found is not None, "an error was understood, or raised"
                tried += 1
                problem = self._clean(found, tried)
                backoff_s = self._patience.backoff_s * 2 ** (tried - 1) * (0.5 + _chance.random())
                wait_s = backoff_s if problem.wait_s is None else problem.wait_s
                if problem.failure.kind == "rate_limit":
                    there.throttle.slow_down(min(wait_s, self._patience.max_wait_s))
            paid = response or self._partial
            if problem.failure.code == "model.rejected" and there.lower_bound(bound):
                await self.bill(paid, problem, tried, 0.0)
                effort = None  # thinking also needs a larger limit
                continue
            if problem.terminal:
                there.throttle.open_circuit(problem.failure)
            enough = not problem.again or self._is_enough(problem, tried, wait_s)
            await self.bill(paid, problem, tried, None if enough else wait_s)
            if problem.too_long:
                raise TooLong(problem) from cause
            if enough:
                # If other requests got responses meanwhile, it is no outage: the problem is this request.
                is_out = problem.again and there.throttle.answered == answered
                raise SessionFailed(self._out(problem) if is_out else problem.failure) from cause
            self.retries += 1
            await asyncio.sleep(wait_s)

    async def _once(
        self,
        there: ModelConnection,
        messages: list[ModelMessage],
        parameters: ModelRequestParameters,
        how: ModelSettings,
    ) -> ModelResponse:
        loop = asyncio.get_running_loop()
        prepared = there.model.prepare_messages(messages, parameters)
        shown = _ShownText(self._progress, self.redactor)
        self._heard, self._partial = False, None
        async with AsyncExitStack() as stack:
            self._heard_at = loop.time()
            self._watch_silence(there, loop)
            stack.callback(lambda: self._watch.cancel())  # noqa: PLW0108 - the latest watch
            with decoding():
                opened = there.model.request_stream(prepared, how, parameters)
                stream = await stack.enter_async_context(opened)
            try:
                async with aclosing(_events(stream)) as events:
                    async for event in events:
                        self._heard, self._heard_at = True, loop.time()
                        shown.take(event)
                shown.flush()
                with decoding():
                    return storable(stream.get())
            except BaseException:
                part = _arrived(stream)
                if _is_counted(part):  # providers report the input first, and the output at the end
                    written = _chars_of([part]) // CHARS_PER_TOKEN
                    part.usage.output_tokens = max(part.usage.output_tokens, written)
                self._partial = part if self._heard or _is_counted(part) else None
                raise

    def _watch_silence(self, there: ModelConnection, loop: asyncio.AbstractEventLoop) -> None:
        """Record once if the server sends nothing for a while."""
        quiet_s, limit_s = loop.time() - self._heard_at, self._connections.stall_s
        if quiet_s < SILENCE_S:
            self._watch = loop.call_later(SILENCE_S - quiet_s, self._watch_silence, there, loop)
        elif limit_s > SILENCE_S:
            message = f"{there.name}: the server has sent nothing for {SILENCE_S:g} s"
            self._noting = asyncio.ensure_future(self.note_wait(message, limit_s - quiet_s))
            self._noting.add_done_callback(lambda noted: noted.cancelled() or noted.exception())

    async def _open(
        self, there: ModelConnection, messages: list[ModelMessage], parameters: ModelRequestParameters
    ) -> OpenRequest:
        """Reserve budget for a request; raise `SessionFailed` if the budget is used up."""
        account, need = self._account, NO_NEED
        if account.is_limited:
            need = self._forecast.of(messages, parameters, there.rate)
            need = structs.replace(need, priced=there.rate is not None or there.is_here)
        try:
            return await account.open_request(need)
        except OutOfBudget as error:
            raise SessionFailed(error.failure) from None

    def _out(self, problem: Problem) -> Failure:
        """Return the failure as an outage of the provider, which affects every other session too."""
        until = 0
        if problem.wait_s is not None and problem.wait_s > self._patience.max_wait_s:
            until = round((time.time() + problem.wait_s) * 1_000)
        return structs.replace(problem.failure, subject=self._subject, until=until if self._subject else 0)

    def _is_enough(self, problem: Problem, tried: int, wait_s: float) -> bool:
        most = self._patience.tries
        if problem.failure.kind == "timeout":  # each of these already took minutes
            most = min(BROKEN_TRIES if self._heard else 1, most)
        return self._probes or tried >= most or wait_s > self._patience.max_wait_s

    def _clean(self, problem: Problem, tried: int) -> Problem:
        """Return the problem without secrets, because providers quote keys that they reject."""
        times = f" (tried {tried} times)" if problem.again and tried > 1 else ""
        message = without_key_parts(self.redactor.text(problem.failure.message)) + times
        return structs.replace(problem, failure=structs.replace(problem.failure, message=message))


class Trial(Struct, frozen=True):
    """The response of a model to one small request."""

    text: str
    called_tool: bool
    usage: Usage
    seconds: float


async def try_model(connections: Connections, name: str, redactor: Redactor) -> Trial:
    """Ask a model once to call a tool, streamed and without retries; raise `SessionFailed`."""
    await connections.load([name])
    from pydantic_ai.messages import ModelRequest, UserPromptPart
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

    there = connections.open(name)
    schema = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
    tool = ToolDefinition(
        name="ready", description="Report that you are ready.", parameters_json_schema=schema
    )
    parameters = ModelRequestParameters(function_tools=[tool])
    messages: list[ModelMessage] = [
        ModelRequest(parts=[UserPromptPart('Call the tool "ready" with the word "ok". Write nothing else.')])
    ]
    began = time.monotonic()
    try:
        prepared, how = there.model.prepare_messages(messages, parameters), settings(None, TRIAL_TOKENS)
        with decoding():
            async with there.model.request_stream(prepared, how, parameters) as stream:
                async for _ in stream:
                    pass
                response = storable(stream.get())
    except (Exception, asyncio.CancelledError) as error:
        problem = _understood(error, there)
        if problem is None:
            raise
        message = without_key_parts(redactor.text(problem.failure.message))
        raise SessionFailed(structs.replace(problem.failure, message=message)) from error
    usage = there.prices.usage_of(response, _chars_of(messages))
    called = any(part.part_kind == "tool-call" for part in response.parts)
    return Trial(redactor.text(response.text or ""), called, usage, round(time.monotonic() - began, 2))


def _understood(error: BaseException, there: ModelConnection) -> Problem | None:
    """Return the problem behind an error of a request; None if it is no error of the provider."""
    if isinstance(error, Exception):
        return understand(error, there.name, there.provider.key_variable)
    return None if is_cancelled() else broken_off(there.name, "the connection was given up")


def settings(effort: str | None, max_tokens: int | None = None) -> ModelSettings:
    """Return the settings of a request: cached prompts, the reasoning effort and the token limit."""
    made: dict[str, Any] = {"cache": True}
    if max_tokens is not None:
        made["max_tokens"] = max_tokens
    if effort is not None:
        made["thinking"] = False if effort == "none" else effort
    if trace := TRACE.get():
        made["extra_headers"] = {"traceparent": trace}
    return made  # type: ignore[return-value]  # a TypedDict whose keys are chosen above


class InputForecast:
    """Estimates the input of a conversation's next request from the last one."""

    def __init__(self) -> None:
        self._sent = 0
        """Number of messages in the last request."""
        self._read = self._written = self._cached = 0
        """Tokens of the last request and its response. `_cached` are those in the provider's cache."""

    def of(
        self, messages: Sequence[ModelMessage], parameters: ModelRequestParameters, rate: Rate | None
    ) -> RequestNeed:
        output = max(self._written, USUAL_OUTPUT_TOKENS)
        if not 0 < self._sent < len(messages):  # another conversation, or its first request
            chars = _chars_of(messages) + len(repr(parameters))
            return RequestNeed(uncached_tokens=chars // CHARS_PER_TOKEN, output_tokens=output, rate=rate)
        new = self._written + _chars_of(messages[self._sent + 1 :]) // CHARS_PER_TOKEN
        cached = self._read if self._cached else 0
        uncached = new + self._read - cached
        return RequestNeed(uncached_tokens=uncached, cached_tokens=cached, output_tokens=output, rate=rate)

    def learn(self, messages: Sequence[ModelMessage], response: ModelResponse) -> None:
        self._sent = len(messages)
        used = response.usage
        self._read, self._written = used.input_tokens, used.output_tokens
        self._cached = used.cache_read_tokens + used.cache_write_tokens


async def _events(stream: StreamedResponse) -> AsyncGenerator[object]:
    with decoding():
        async for event in stream:
            yield event


def _arrived(stream: StreamedResponse) -> ModelResponse:
    """Return what arrived of a response; an empty one, whose usage is estimated, if it cannot be read."""
    from pydantic_ai.messages import ModelResponse

    try:
        with decoding():
            return storable(stream.get())
    except WrongResponse:
        return ModelResponse(parts=[])


def _is_counted(response: ModelResponse) -> bool:
    """Return whether the server reported the tokens of a response; otherwise they are estimated."""
    return bool(response.usage.input_tokens or response.usage.output_tokens)


def _chars_of(messages: Sequence[ModelMessage]) -> int:
    """Return the approximate length of messages in a request."""
    total = 0
    for message in messages:
        for part in message.parts:
            content = getattr(part, "content", None) or getattr(part, "args", None) or ""
            total += len(content) if isinstance(content, str) else len(repr(content))
    return total


class _ShownText:
    """Reports the text of a response as it arrives."""

    def __init__(self, progress: Progress, redactor: Redactor) -> None:
        self._progress = progress
        self._redactor = redactor
        self._text = ""

    def take(self, event: object) -> None:
        from pydantic_ai.messages import (
            PartDeltaEvent,
            PartEndEvent,
            PartStartEvent,
            TextPart,
            TextPartDelta,
            ToolCallPart,
        )

        if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
            self._add(str(event.part.content))
        elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
            self._add(str(event.delta.content_delta))
        elif isinstance(event, PartEndEvent) and isinstance(event.part, ToolCallPart):
            self.flush()
            self._progress(AskingFor(str(event.part.tool_name)))

    def _add(self, text: str) -> None:
        self._text += text
        cut = max(self._text.rfind(" "), self._text.rfind("\n")) + 1
        if len(self._text) - cut > MAX_SHOWN_CHARS:
            cut = len(self._text)
        if cut:
            self._show(self._text[:cut])
            self._text = self._text[cut:]

    def flush(self) -> None:
        if self._text:
            self._show(self._text)
            self._text = ""

    def _show(self, text: str) -> None:
        self._progress(TextDelta(self._redactor.text(whole_text(text))))


def check_effort(effort: str | None) -> Mapping[str, str] | None:
    """Return the problem with a reasoning effort; None if it is valid."""
    if effort is None or effort == "none" or effort in EFFORTS:
        return None
    return {"message": f'there is no reasoning effort "{effort}"', "hint": f"none, {', '.join(EFFORTS)}"}
