"""The person behind an MCP client, asked through elicitation: a form that the client shows, never the model.

Two generations of the protocol, one question:
* Until 2025-11-25 the server sends a request of its own while the call is under way, and gets the answer.
* From 2026-07-28 on the call ends with `input_required`; the client calls again with the answer and with the
  state it was given. The SDK's resolvers do the same, but what they carry from round to round is answers
  alone. A call of ours has begun a run by then, which must not begin again: so the state is ours (`Rounds`),
  sealed by the SDK's boundary and bound to what the call was given, and an answer counts only for the very
  question that was asked, and once: who sends it again gets the same result again.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import msgspec
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
)
from mcp_types.version import is_version_at_least
from msgspec import Struct
from pydantic import ValidationError

from fanfold.tools.caller import CallMemory, Filled, Form

IN_ROUNDS = "2026-07-28"
"""The first protocol in which a call that needs an answer ends and is made again."""
MAX_OPEN_CALLS = 1_000


class AnswerNeeded(BaseException):
    """The call ends here, and is made again with the answer. No error: only the server catches it."""

    def __init__(self, form: Form) -> None:
        super().__init__(form.key)
        self.form = form


class RoundState(Struct, frozen=True):
    """What the client hands back with an answer."""

    token: str
    run: str
    asked: dict[str, str]
    """Key of the question to the digest of its words."""


class OpenCall:
    """A call that a client may bring back, with one more answer each time."""

    def __init__(self, state: RoundState) -> None:
        self.token = state.token
        self.memory = CallMemory(run=state.run)
        self.alone = asyncio.Lock()
        """Held while the call is worked on: the same answer may be sent twice at once."""
        self.result: CallToolResult | None = None

    def input_required(self, needed: AnswerNeeded) -> InputRequiredResult:
        """What the client is told: the question, and the state to bring back with the answer."""
        form = needed.form
        state = RoundState(self.token, self.memory.run, {form.key: _digest(form)})
        request = ElicitRequest(
            params=ElicitRequestFormParams(message=form.message, requested_schema=_schema(form))
        )
        return InputRequiredResult(
            input_requests={form.key: request}, request_state=msgspec.json.encode(state).decode()
        )


class Rounds:
    """Calls that wait for an answer, or had one and may be brought back with it again."""

    def __init__(self) -> None:
        self._calls: OrderedDict[str, OpenCall] = OrderedDict()

    def begin(self, context: Context[Any, Any]) -> tuple[OpenCall, dict[str, str]]:
        """The call, and what was asked in it the last time: nothing where it is new."""
        state = RoundState(secrets.token_urlsafe(16), "", {})
        if context.request_state:
            state = msgspec.json.decode(context.request_state, type=RoundState)
        call = self._calls.setdefault(state.token, OpenCall(state))
        while len(self._calls) > MAX_OPEN_CALLS:
            self._calls.popitem(last=False)
        return call, state.asked

    def end(self, call: OpenCall, result: CallToolResult, asked: Mapping[str, str]) -> None:
        """The call has its result. A client that was asked something may bring the answer once more."""
        if asked:
            call.result = result
        else:
            self._calls.pop(call.token, None)


class ClientPerson:
    """Whoever sits in front of the client of one call."""

    def __init__(self, context: Context[Any, Any], asked: dict[str, str]) -> None:
        self._context = context
        self._asked = asked

    async def fill_in(self, form: Form) -> Filled | None:
        if not _can_ask(self._context):
            return None
        if is_version_at_least(self._context.protocol_version or "", IN_ROUNDS):
            return self._filled(form)
        session = self._context.request_context.session
        if not session.can_send_request:
            return None
        try:
            answered = await session.elicit_form(
                form.message, _schema(form), related_request_id=self._context.request_context.request_id
            )
        except (MCPError, ValidationError):
            return None  # it says that it shows forms, and did not
        return _meant(answered)

    def _filled(self, form: Form) -> Filled:
        answer = (self._context.input_responses or {}).get(form.key)
        if not isinstance(answer, ElicitResult) or self._asked.get(form.key) != _digest(form):
            raise AnswerNeeded(form)
        return _meant(answer)


def _can_ask(context: Context[Any, Any]) -> bool:
    """Whether the client shows forms; one that names no mode shows forms alone."""
    capabilities = context.client_capabilities
    offered = None if capabilities is None else capabilities.elicitation
    return offered is not None and (offered.form is not None or offered.url is None)


def _meant(answer: ElicitResult) -> Filled:
    return Filled(dict(answer.content) if answer.action == "accept" and answer.content is not None else None)


def _schema(form: Form) -> dict[str, Any]:
    return {"type": "object", "properties": form.properties, "required": list(form.required)}


def _digest(form: Form) -> str:
    return hashlib.sha256(msgspec.json.encode([form.message, _schema(form)])).hexdigest()[:32]
