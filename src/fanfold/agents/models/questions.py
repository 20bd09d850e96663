"""One question to a model, until there is an answer: streaming, trying again, falling back.

Rules
* A response counts when it is whole. One that breaks off is thrown away and asked for again; nothing half
  is ever recorded or acted upon.
* What passes by itself is tried `MAX_TRIES` times, waiting what the provider asked for, or twice as long each
  time with some chance in it. A wait longer than `MAX_WAIT_S` is not ours: the step fails and its own
  back-off takes over, so that a place among the running sessions is not held for nothing.
* When a model cannot answer, the next of the fallbacks is asked, and the session stays with whoever answered.
* Text is shown as it arrives, cut between words: a secret has no spaces in it and is seen whole by redaction.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from fanfold.agents.backend import Progress, SessionFailed
from fanfold.agents.entries import AskingFor, Fallback, Retrying, TextDelta
from fanfold.agents.models.connections import Connections, ModelConnection
from fanfold.agents.models.failures import Problem, fault_of, understand
from fanfold.agents.redaction import Redactor

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.settings import ModelSettings

MAX_TRIES = 5
TIMEOUT_TRIES = 2
MAX_WAIT_S = 90.0
BACKOFF_S = 0.5
MAX_SHOWN_CHARS = 2_000
EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
_chance = random.SystemRandom()


class TooLong(BaseException):
    """The conversation does not fit the model; `problem` is what to say when nothing can be left out."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.failure.message)
        self.problem = problem


class Patience(Struct, frozen=True, kw_only=True):
    """How long to go on trying."""

    tries: int = MAX_TRIES
    backoff_s: float = BACKOFF_S
    max_wait_s: float = MAX_WAIT_S


class Asker:
    """Asks the models of one session: the first, and its fallbacks in order."""

    def __init__(
        self,
        connections: Connections,
        models: Sequence[str],
        redactor: Redactor,
        patience: Patience,
        progress: Progress,
        max_output_tokens: int | None = None,
    ) -> None:
        self._max_output_tokens = max_output_tokens
        self._connections = connections
        self._models = models
        self._redactor = redactor
        self._patience = patience
        self._progress = progress
        self._at = 0
        self.retries = 0
        self.passed_over: list[str] = []
        """Models that could not answer, in order."""

    @property
    def model(self) -> str:
        """The model that is asked at present."""
        return self._models[self._at]

    @property
    def prices(self) -> str | None:
        """The present model's provider in the list of prices, where that holds."""
        return self._connections.open(self.model).prices

    @property
    def window(self) -> int | None:
        """How many tokens the present model holds, where that is known."""
        return self._connections.open(self.model).model.context_window

    async def ask(
        self, messages: Sequence[ModelMessage], parameters: ModelRequestParameters, effort: str | None
    ) -> ModelResponse:
        """The next response. Raises `SessionFailed`, or `TooLong` when the conversation does not fit."""
        while True:
            try:
                there = self._connections.open(self.model)
                return await self._insist(there, list(messages), parameters, effort)
            except SessionFailed as failed:
                if self._at + 1 == len(self._models):
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
        tried = 0
        while True:
            response: ModelResponse | None = None
            cause: Exception | None = None
            async with there.throttle.passing():
                try:
                    response = await self._once(there, messages, parameters, effort)
                    found = fault_of(response, there.name)
                except Exception as error:
                    found, cause = understand(error, there.name, there.provider.key_variable), error
                    if found is None:
                        raise
                if response is not None and found is None:
                    there.throttle.succeeded()
                    return response
                assert found is not None, "an error was understood, or raised"
                tried += 1
                problem = self._clean(found, tried)
                wait_s = self._wait_s(problem, tried)
                if problem.failure.kind == "rate_limit":
                    there.throttle.slow_down(min(wait_s, self._patience.max_wait_s))
            if problem.too_long:
                raise TooLong(problem) from cause
            if problem.terminal:
                there.throttle.open_circuit(problem.failure)
            if not problem.again or self._is_enough(problem, tried, wait_s):
                raise SessionFailed(problem.failure) from cause
            self.retries += 1
            self._progress(Retrying(problem.failure.kind, round(wait_s, 3)))
            await asyncio.sleep(wait_s)

    async def _once(
        self,
        there: ModelConnection,
        messages: list[ModelMessage],
        parameters: ModelRequestParameters,
        effort: str | None,
    ) -> ModelResponse:
        prepared = there.model.prepare_messages(messages, parameters)
        shown = _ShownText(self._progress, self._redactor)
        how = settings(effort, self._max_output_tokens)
        async with there.model.request_stream(prepared, how, parameters) as stream:
            async with aclosing(stream.__aiter__()) as events:  # type: ignore[type-var]  # it is a generator
                async for event in events:
                    shown.take(event)
            shown.flush()
            return stream.get()

    def _wait_s(self, problem: Problem, tried: int) -> float:
        if problem.wait_s is not None:
            return problem.wait_s
        return float(self._patience.backoff_s * 2 ** (tried - 1) * (0.5 + _chance.random()))

    def _is_enough(self, problem: Problem, tried: int, wait_s: float) -> bool:
        slow = problem.failure.kind == "timeout"  # each of these took minutes already
        most = min(TIMEOUT_TRIES, self._patience.tries) if slow else self._patience.tries
        return tried >= most or wait_s > self._patience.max_wait_s

    def _clean(self, problem: Problem, tried: int) -> Problem:
        """The problem without secrets: providers quote keys that they refuse."""
        times = f" (tried {tried} times)" if problem.again and tried > 1 else ""
        message = self._redactor.text(problem.failure.message) + times
        return structs.replace(problem, failure=structs.replace(problem.failure, message=message))


def settings(effort: str | None, max_tokens: int | None = None) -> ModelSettings:
    """How requests are made: with prompts cached, and thinking as hard as asked for."""
    made: dict[str, Any] = {"cache": True}
    if max_tokens is not None:
        made["max_tokens"] = max_tokens
    if effort is not None:
        made["thinking"] = False if effort == "none" else effort
    return made  # type: ignore[return-value]  # a TypedDict whose keys are chosen above


class _ShownText:
    """Shows a response to whoever watches, as it arrives."""

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
            self._add(event.part.content)
        elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
            self._add(event.delta.content_delta)
        elif isinstance(event, PartEndEvent) and isinstance(event.part, ToolCallPart):
            self.flush()
            self._progress(AskingFor(event.part.tool_name))

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
        self._progress(TextDelta(self._redactor.text(text)))


def check_effort(effort: str | None) -> Mapping[str, str] | None:
    """What is wrong with a reasoning effort; None when it can be asked for."""
    if effort is None or effort == "none" or effort in EFFORTS:
        return None
    return {"message": f'there is no reasoning effort "{effort}"', "hint": f"none, {', '.join(EFFORTS)}"}
