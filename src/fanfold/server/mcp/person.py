"""The person behind an MCP client, asked through elicitation: a form that the client shows, never the model.

Two generations of the protocol, one question:
* Until 2025-11-25 the server sends a request of its own while the call is under way, and gets the answer.
* From 2026-07-28 on the call ends with `input_required`; the client calls again with the answer and with the
  state it was given. The SDK's resolvers do the same, but what they carry from round to round is answers
  alone. A call of ours has begun a run by then, which must not begin again: so the state is ours (`Rounds`),
  sealed by the SDK's boundary, and an answer counts only for the very question that was asked.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from typing import Any

import msgspec
from mcp.server.mcpserver import Context
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult
from mcp_types.version import is_version_at_least
from msgspec import Struct

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


class Rounds:
    """Calls that wait for an answer. A call that comes back twice goes on with what it began once."""

    def __init__(self) -> None:
        self._memories: OrderedDict[str, CallMemory] = OrderedDict()

    def begin(self, context: Context[Any, Any]) -> Round:
        state = RoundState(secrets.token_urlsafe(16), "", {})
        if context.request_state:
            state = msgspec.json.decode(context.request_state, type=RoundState)
        memory = self._memories.setdefault(state.token, CallMemory(run=state.run))
        while len(self._memories) > MAX_OPEN_CALLS:
            self._memories.popitem(last=False)
        return Round(state, memory)

    def end(self, round_: Round) -> None:
        """The call has its result. What it began stays known: the same answer may be sent again."""
        if not round_.memory.run:
            self._memories.pop(round_.token, None)


class Round:
    """One round of one call."""

    def __init__(self, state: RoundState, memory: CallMemory) -> None:
        self.token = state.token
        self.asked = state.asked
        self.memory = memory

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
        answered = await session.elicit_form(
            form.message, _schema(form), related_request_id=self._context.request_context.request_id
        )
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
