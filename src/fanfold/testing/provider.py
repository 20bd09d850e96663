"""A provider of models that says what a test tells it: a real HTTP server on loopback.

It speaks OpenAI chat completions, OpenAI responses and Anthropic messages, streamed or not, so tests use the
real SDKs over real sockets. What it answers comes from a script: a list, consumed in order, or a function of
what was asked, for sessions that run at the same time. A fault is an answer too.

    async with ScriptedProvider([Fault("rate_limit", retry_after_s=0), Reply(text="hello")]) as provider:
        ...  # provider.url, provider.asked

Every request is kept in `asked`: its number is what a provider would have charged for.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, Self

from msgspec import Struct, field

from fanfold.kernel.plan import JSON
from fanfold.testing.wire import FORMATS, MESSAGES, Body, Call, Format, Heard, Reply, ids

__all__ = ["Asked", "Call", "Fault", "Heard", "Reply", "ScriptedProvider", "answer_with"]

FaultKind = Literal[
    "rate_limit",
    "quota",
    "server_error",
    "overloaded",
    "bad_key",
    "unknown_model",
    "too_long",
    "content_filter",
    "rejected",
    "stall",
    "reset",
    "malformed",
]
MAX_BODY_BYTES = 64 * 1024 * 1024
OUTPUT_TOOL = "final_output"
KEY = "test-key"

_STATUS: dict[str, tuple[int, str, str, str]] = {
    # status, OpenAI code, OpenAI and Anthropic type, message
    "rate_limit": (429, "rate_limit_exceeded", "rate_limit_error", "Rate limit reached for requests"),
    "quota": (429, "insufficient_quota", "billing_error", "You exceeded your current quota"),
    "server_error": (500, "server_error", "api_error", "The server had an error"),
    "overloaded": (503, "overloaded", "overloaded_error", "The server is overloaded"),
    "bad_key": (401, "invalid_api_key", "authentication_error", "Incorrect API key provided"),
    "unknown_model": (404, "model_not_found", "not_found_error", "The model does not exist"),
    "too_long": (400, "context_length_exceeded", "invalid_request_error", "prompt is too long"),
    "content_filter": (400, "content_filter", "invalid_request_error", "Flagged by the content filter"),
    "rejected": (400, "invalid_value", "invalid_request_error", "Unsupported parameter"),
}


class Fault(Struct, frozen=True):
    """Something going wrong instead of a reply. `reset` and `stall` happen behind `after` events."""

    kind: FaultKind
    retry_after_s: float | None = None
    after: int = 3
    message: str = ""
    """What an error says; empty: what such an error says usually."""


class Asked(Struct, frozen=True):
    """One request as the provider saw it."""

    number: int
    format: str
    model: str
    messages: tuple[Heard, ...]
    tools: tuple[str, ...]
    key: str
    body: Body = field(default_factory=dict)

    @property
    def turns(self) -> int:
        """How many responses of the model the request carries: where the conversation stands."""
        turns, before = 0, ""
        for heard in self.messages:  # one response may be several items in a row
            if heard.role == "assistant" and before != "assistant":
                turns += 1
            before = heard.role
        return turns

    @property
    def results(self) -> dict[str, str]:
        """Results of tool calls by the call's id."""
        return {call: text for heard in self.messages for call, text in heard.results}

    @property
    def prompt(self) -> str:
        """The first thing the user said."""
        return next((heard.text for heard in self.messages if heard.role == "user"), "")


Answer = Reply | Fault
Script = Sequence[Answer] | Callable[[Asked], Answer | Awaitable[Answer]]


def answer_with(value: JSON, asked: Asked | None = None) -> Reply:
    """A structured answer: through the output tool unless the request offers none."""
    if asked is not None and OUTPUT_TOOL not in asked.tools:
        return Reply(text=json.dumps(value))
    return Reply(calls=(Call(OUTPUT_TOOL, value),))


class ScriptedProvider:
    """The server. `key` is the only API key it accepts; None accepts any."""

    def __init__(self, script: Script, *, key: str | None = KEY) -> None:
        self._script = script
        self._key = key
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._news = asyncio.Event()
        self.asked: list[Asked] = []
        self.port = 0

    @property
    def url(self) -> str:
        """Where it listens, without a path: what Anthropic's SDK takes; OpenAI's takes it with `/v1`."""
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=1_024)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None, "entered before it is left"
        self._server.close()
        for writer in tuple(self._open):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def until_asked(self, times: int = 1) -> None:
        """Return once that many requests have come."""
        while len(self.asked) < times:
            self._news.clear()
            await self._news.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while (request := await _read(reader)) is not None:
                await self._answer(writer, *request)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the other side went away, or the test is over
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _answer(
        self, writer: asyncio.StreamWriter, path: str, headers: dict[str, str], body: Body
    ) -> None:
        form = FORMATS.get(path.partition("?")[0])
        if form is None:
            await _send(writer, 404, _error(MESSAGES, "unknown_model"), {})
            return
        asked = self._note(form, headers, body)
        given = Fault("bad_key") if self._key not in (None, asked.key) else await self._next(asked)
        if isinstance(given, Reply):
            await _reply(writer, form, ids(given, asked.number), asked, None)
        elif given.kind in ("stall", "reset", "malformed"):
            await _reply(writer, form, Reply(text="this will never be whole"), asked, given)
        else:
            wait = (
                {} if given.retry_after_s is None else {"retry-after-ms": f"{given.retry_after_s * 1_000:g}"}
            )
            await _send(writer, _STATUS[given.kind][0], _error(form, given.kind, given.message), wait)

    def _note(self, form: Format, headers: dict[str, str], body: Body) -> Asked:
        messages, tools = form.heard(body)
        key = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        asked = Asked(len(self.asked) + 1, form.name, body["model"], tuple(messages), tuple(tools), key, body)
        self.asked.append(asked)
        self._news.set()
        return asked

    async def _next(self, asked: Asked) -> Answer:
        if callable(self._script):
            said = self._script(asked)
            return said if isinstance(said, Reply | Fault) else await said
        if asked.number > len(self._script):
            return Fault("rejected")  # a test that asks more often than it said fails at once
        return self._script[asked.number - 1]


async def _read(reader: asyncio.StreamReader) -> tuple[str, dict[str, str], Any] | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    size = min(int(headers.get("content-length", "0")), MAX_BODY_BYTES)
    body = json.loads(await reader.readexactly(size)) if size else {}
    return first.split(" ")[1], headers, body


async def _send(writer: asyncio.StreamWriter, status: int, body: Body, headers: dict[str, str]) -> None:
    data = json.dumps(body).encode()
    extra = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status} Scripted\r\ncontent-type: application/json\r\n{extra}"
    writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    await writer.drain()


async def _reply(
    writer: asyncio.StreamWriter, form: Format, reply: Reply, asked: Asked, fault: Fault | None
) -> None:
    if not asked.body.get("stream"):
        if fault is not None and fault.kind == "stall":
            await asyncio.Event().wait()
        if fault is not None:
            writer.transport.abort()
            return
        await _send(writer, 200, form.document(reply, asked.model, asked.number), {})
        return
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    for sent, (name, data) in enumerate(form.events(reply, asked.model, asked.number)):
        if fault is not None and sent == fault.after:
            await _break_off(writer, fault)
            return
        event = f"event: {name}\n" if name else ""
        _chunk(writer, f"{event}data: {json.dumps(data)}\n\n".encode())
        await writer.drain()
    _chunk(writer, form.ending)
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def _break_off(writer: asyncio.StreamWriter, fault: Fault) -> None:
    if fault.kind == "stall":
        await asyncio.Event().wait()
    if fault.kind == "malformed":
        _chunk(writer, b'data: {"this is": not JSON\n\n')
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return
    await asyncio.sleep(0.01)  # let what was sent arrive: an abort throws unread data away
    writer.transport.abort()


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    if data:
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def _error(form: Format, kind: str, said: str = "") -> Body:
    _, code, type_name, usual = _STATUS[kind]
    message = said or usual
    if form is MESSAGES:
        return {"type": "error", "error": {"type": type_name, "message": message}}
    return {"error": {"message": message, "type": type_name, "param": None, "code": code}}
