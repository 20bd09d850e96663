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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from msgspec import Struct, field
from msgspec.structs import replace

from fanfold.kernel.plan import JSON

if TYPE_CHECKING:
    import httpx2

# -----------------------------------------------------------------------------------------------------------
# How a scripted reply looks on the wire: OpenAI chat completions, OpenAI responses, Anthropic messages.
#
# Each format is two functions: what a request asked for, in words common to all three, and the reply as the
# list of server-sent events that the real service would stream. A reply that is not streamed is the same
# reply
# folded into one document, so the two can never disagree.

Body = dict[str, Any]
Event = tuple[str, Body]
"""Name of a server-sent event (empty where the format has none) and its data."""

PIECES = 3
"""Into how many deltas text and arguments are cut, so that whoever reads must put them together."""


class Call(Struct, frozen=True):
    """A tool call of a scripted reply; a text as `args` is sent as it is, well-formed or not."""

    tool: str
    args: JSON = {}
    id: str = ""
    namespace: str = ""
    """Where the tool stands in one; of the Responses protocol alone."""


class Reply(Struct, frozen=True, kw_only=True):
    """What the scripted model says in one response."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    thinking: str = ""
    input_tokens: int = 10
    output_tokens: int = 5
    cached_tokens: int = 0
    """The part of the input that the provider read from its cache."""
    counted: bool = True
    """False: the server reports no usage at all."""
    finish: str = ""
    """`length` or `content_filter` when the reply ends for another reason than being over."""
    refusal: str = ""
    """Why the model refuses, where the format has a field for it."""
    pause_s: float = 0.0
    """How long the server rests behind each event of a stream."""


class RequestMessage(Struct, frozen=True):
    """One message of a request: what was said, what was called, what came back."""

    role: str
    text: str = ""
    calls: tuple[Call, ...] = ()
    results: tuple[tuple[str, str], ...] = ()
    """Id of a call and the text of its result."""


def _pieces(text: str) -> list[str]:
    size = max(1, -(-len(text) // PIECES))
    return [text[i : i + size] for i in range(0, len(text), size)]


def _args(call: Call) -> str:
    return call.args if isinstance(call.args, str) else json.dumps(call.args)


def _parsed(text: object) -> JSON:
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return text


def _flat(content: object) -> str:
    """The text of a message's content, which may be a list of parts."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        return "".join(part if isinstance(part, str) else str(part.get("text", "")) for part in content)
    return json.dumps(content)


def ids(reply: Reply, number: int) -> Reply:
    """The reply with an id for every call, unique among all replies of a server."""
    calls = tuple(replace(c, id=c.id or f"call_{number}_{i}") for i, c in enumerate(reply.calls, 1))
    return replace(reply, calls=calls)


# -------------------------------------------------------------------------- OpenAI chat completions


def chat_heard(body: Body) -> tuple[list[RequestMessage], list[str]]:
    heard = []
    for message in body["messages"]:
        if message["role"] == "tool":
            heard.append(
                RequestMessage("tool", results=((message["tool_call_id"], _flat(message["content"])),))
            )
            continue
        calls = tuple(
            Call(c["function"]["name"], _parsed(c["function"]["arguments"]), c["id"])
            for c in message.get("tool_calls") or ()
        )
        heard.append(RequestMessage(message["role"], _flat(message.get("content")), calls))
    return heard, [tool["function"]["name"] for tool in body.get("tools") or ()]


def chat_events(reply: Reply, model: str, number: int) -> list[Event]:
    def chunk(delta: Body, finish: str | None = None) -> Event:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return "", {**_chat_head(model, number, "chat.completion.chunk"), "choices": [choice]}

    events = [chunk({"role": "assistant", "content": ""})]
    events += [chunk({"content": piece}) for piece in _pieces(reply.text)]
    events += [chunk({"refusal": piece}) for piece in _pieces(reply.refusal)]
    for i, call in enumerate(reply.calls):
        function = {"name": call.tool, "arguments": ""}
        events.append(
            chunk({"tool_calls": [{"index": i, "id": call.id, "type": "function", "function": function}]})
        )
        events += [
            chunk({"tool_calls": [{"index": i, "function": {"arguments": piece}}]})
            for piece in _pieces(_args(call))
        ]
    events.append(chunk({}, reply.finish or ("tool_calls" if reply.calls else "stop")))
    usage = {**_chat_head(model, number, "chat.completion.chunk"), "choices": [], "usage": _chat_usage(reply)}
    return [*events, ("", usage)] if reply.counted else events


def chat_document(reply: Reply, model: str, number: int) -> Body:
    message: Body = {"role": "assistant", "content": reply.text or None}
    if reply.calls:
        message["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.tool, "arguments": _args(c)}}
            for c in reply.calls
        ]
    finish = reply.finish or ("tool_calls" if reply.calls else "stop")
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {
        **_chat_head(model, number, "chat.completion"),
        "choices": [choice],
        "usage": _chat_usage(reply),
    }


def _chat_head(model: str, number: int, kind: str) -> Body:
    return {"id": f"chatcmpl-{number}", "object": kind, "created": 1_700_000_000, "model": model}


def _chat_usage(reply: Reply) -> Body:
    total = reply.input_tokens + reply.output_tokens
    return {
        "prompt_tokens": reply.input_tokens,
        "completion_tokens": reply.output_tokens,
        "total_tokens": total,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
    }


# --------------------------------------------------------------------------------- OpenAI responses


def responses_heard(body: Body) -> tuple[list[RequestMessage], list[str]]:
    heard = []
    if body.get("instructions"):
        heard.append(RequestMessage("system", body["instructions"]))
    given = body["input"]
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        kind = item.get("type", "message")
        if kind == "function_call":
            call = Call(item["name"], _parsed(item["arguments"]), item["call_id"])
            heard.append(RequestMessage("assistant", calls=(call,)))
        elif kind == "function_call_output":
            heard.append(RequestMessage("tool", results=((item["call_id"], _flat(item["output"])),)))
        elif kind == "message":
            heard.append(RequestMessage(item["role"], _flat(item.get("content"))))
    return heard, [tool["name"] for tool in body.get("tools") or () if tool.get("type") == "function"]


def responses_events(reply: Reply, model: str, number: int) -> list[Event]:
    document = responses_document(reply, model, number)
    open_document = {**document, "status": "in_progress", "output": [], "usage": None}
    events: list[Event] = [("response.created", {"response": open_document})]
    for i, item in enumerate(document["output"]):
        place = {"output_index": i, "item_id": item["id"]}
        empty = {**item, "status": "in_progress"}
        if item["type"] == "message":
            text = item["content"][0]["text"]
            part = {"type": "output_text", "text": "", "annotations": []}
            events += [
                ("response.output_item.added", {"output_index": i, "item": {**empty, "content": []}}),
                ("response.content_part.added", {**place, "content_index": 0, "part": part}),
            ]
            events += [
                ("response.output_text.delta", {**place, "content_index": 0, "delta": piece, "logprobs": []})
                for piece in _pieces(text)
            ]
            events += [
                ("response.output_text.done", {**place, "content_index": 0, "text": text, "logprobs": []}),
                ("response.content_part.done", {**place, "content_index": 0, "part": item["content"][0]}),
            ]
        else:
            args = item["arguments"]
            events.append(
                ("response.output_item.added", {"output_index": i, "item": {**empty, "arguments": ""}})
            )
            events += [
                ("response.function_call_arguments.delta", {**place, "delta": piece})
                for piece in _pieces(args)
            ]
            events.append(
                ("response.function_call_arguments.done", {**place, "name": item["name"], "arguments": args})
            )
        events.append(("response.output_item.done", {"output_index": i, "item": item}))
    last = "response.incomplete" if reply.finish else "response.completed"
    events.append((last, {"response": document}))
    return [(name, {"type": name, "sequence_number": i, **data}) for i, (name, data) in enumerate(events)]


def responses_document(reply: Reply, model: str, number: int) -> Body:
    output: list[Body] = []
    if reply.text:
        content = [{"type": "output_text", "text": reply.text, "annotations": []}]
        message = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed"}
        output.append({**message, "content": content})
    output += [
        {
            "type": "function_call",
            "id": f"fc_{number}_{i}",
            "call_id": call.id,
            "name": call.tool,
            "arguments": _args(call),
            "status": "completed",
            **({"namespace": call.namespace} if call.namespace else {}),
        }
        for i, call in enumerate(reply.calls)
    ]
    cut = "max_output_tokens" if reply.finish == "length" else reply.finish
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1_700_000_000,
        "model": model,
        "status": "incomplete" if reply.finish else "completed",
        "incomplete_details": {"reason": cut} if cut else None,
        "error": None,
        "instructions": None,
        "metadata": {},
        "output": output,
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": {
            "input_tokens": reply.input_tokens,
            "input_tokens_details": {"cached_tokens": reply.cached_tokens},
            "output_tokens": reply.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.input_tokens + reply.output_tokens,
        }
        if reply.counted
        else None,
    }


# -------------------------------------------------------------------------------- Anthropic messages


def messages_heard(body: Body) -> tuple[list[RequestMessage], list[str]]:
    heard = [RequestMessage("system", _flat(body["system"]))] if body.get("system") else []
    for message in body["messages"]:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        text = "".join(part["text"] for part in parts if part["type"] == "text")
        calls = tuple(Call(p["name"], p["input"], p["id"]) for p in parts if p["type"] == "tool_use")
        results = tuple(
            (p["tool_use_id"], _flat(p.get("content"))) for p in parts if p["type"] == "tool_result"
        )
        heard.append(RequestMessage(message["role"], text, calls, results))
    return heard, [tool["name"] for tool in body.get("tools") or ()]


def messages_events(reply: Reply, model: str, number: int) -> list[Event]:
    document = messages_document(reply, model, number)
    opened = {**document, "content": [], "stop_reason": None}
    if reply.counted:
        opened["usage"] = {**document["usage"], "output_tokens": 1}
    events: list[Event] = [("message_start", {"message": opened})]
    for i, block in enumerate(document["content"]):
        start, deltas = _block(block)
        events.append(("content_block_start", {"index": i, "content_block": start}))
        events += [("content_block_delta", {"index": i, "delta": delta}) for delta in deltas]
        events.append(("content_block_stop", {"index": i}))
    delta = {"stop_reason": document["stop_reason"], "stop_sequence": None}
    usage = {"usage": {"output_tokens": reply.output_tokens}} if reply.counted else {}
    events.append(("message_delta", {"delta": delta, **usage}))
    events.append(("message_stop", {}))
    return [(name, {"type": name, **data}) for name, data in events]


def _block(block: Body) -> tuple[Body, list[Body]]:
    if block["type"] == "text":
        return {"type": "text", "text": ""}, [
            {"type": "text_delta", "text": piece} for piece in _pieces(block["text"])
        ]
    if block["type"] == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(block["thinking"])]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
        return {"type": "thinking", "thinking": "", "signature": ""}, deltas
    said = block["input"] if isinstance(block["input"], str) else json.dumps(block["input"])
    return {**block, "input": {}}, [
        {"type": "input_json_delta", "partial_json": piece} for piece in _pieces(said)
    ]


def messages_document(reply: Reply, model: str, number: int) -> Body:
    content: list[Body] = []
    if reply.thinking:
        content.append({"type": "thinking", "thinking": reply.thinking, "signature": "signed"})
    if reply.text:
        content.append({"type": "text", "text": reply.text})
    content += [{"type": "tool_use", "id": c.id, "name": c.tool, "input": c.args} for c in reply.calls]
    reasons = {"length": "max_tokens", "content_filter": "refusal"}
    stop = reasons.get(reply.finish) or ("tool_use" if reply.calls else "end_turn")
    uncached = reply.input_tokens - reply.cached_tokens
    usage = {"input_tokens": uncached, "cache_read_input_tokens": reply.cached_tokens}
    document = {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {**usage, "output_tokens": reply.output_tokens},
    }
    return document if reply.counted else {key: one for key, one in document.items() if key != "usage"}


class Format(Struct, frozen=True):
    """One wire format."""

    name: str
    heard: Callable[[Body], tuple[list[RequestMessage], list[str]]]
    events: Callable[[Reply, str, int], list[Event]]
    document: Callable[[Reply, str, int], Body]
    ending: bytes = b""
    """What follows the last event."""


CHAT = Format("chat", chat_heard, chat_events, chat_document, b"data: [DONE]\n\n")
RESPONSES = Format("responses", responses_heard, responses_events, responses_document)
MESSAGES = Format("messages", messages_heard, messages_events, messages_document)

FORMATS: Mapping[str, Format] = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
}

__all__ = [
    "Answer",
    "Call",
    "Fault",
    "Raw",
    "RecordedRequest",
    "Reply",
    "RequestMessage",
    "ScriptedProvider",
    "answer_with",
]

FaultKind = Literal[
    "rate_limit",
    "quota",
    "server_error",
    "overloaded",
    "overloaded_529",
    "gateway",
    "bad_key",
    "forbidden",
    "unpaid",
    "unknown_model",
    "too_long",
    "content_filter",
    "rejected",
    "stall",
    "reset",
    "cut",
    "truncated",
    "hang_up",
    "silent",
    "malformed",
]
_BROKEN = frozenset({"stall", "reset", "cut", "truncated", "hang_up", "silent", "malformed"})
"""Faults of the connection; the others are responses with an error in them."""
MAX_BODY_BYTES = 64 * 1024 * 1024
OUTPUT_TOOL = "final_output"
JSON_TYPE = {"content-type": "application/json"}
KEY = "test-key"

_STATUS: dict[str, tuple[int, str, str, str]] = {
    # status, OpenAI code, OpenAI and Anthropic type, message
    "rate_limit": (429, "rate_limit_exceeded", "rate_limit_error", "Rate limit reached for requests"),
    "quota": (429, "insufficient_quota", "billing_error", "You exceeded your current quota"),
    "server_error": (500, "server_error", "api_error", "The server had an error"),
    "overloaded": (503, "overloaded", "overloaded_error", "The server is overloaded"),
    "overloaded_529": (529, "overloaded", "overloaded_error", "Overloaded"),
    "gateway": (502, "bad_gateway", "api_error", "Bad gateway"),
    "bad_key": (401, "invalid_api_key", "authentication_error", "Incorrect API key provided"),
    "forbidden": (403, "permission_denied", "permission_error", "Your key may not use this resource"),
    "unpaid": (402, "billing_hard_limit_reached", "billing_error", "Your credit balance is too low"),
    "unknown_model": (404, "model_not_found", "not_found_error", "The model does not exist"),
    "too_long": (400, "context_length_exceeded", "invalid_request_error", "prompt is too long"),
    "content_filter": (400, "content_filter", "invalid_request_error", "Flagged by the content filter"),
    "rejected": (400, "invalid_value", "invalid_request_error", "Unsupported parameter"),
}


class Fault(Struct, frozen=True):
    """Something going wrong instead of a reply.

    `silent` and `hang_up` send nothing, not even a status. Behind `after` events `stall` sends no more,
    `reset` breaks the connection, `cut` breaks it within the next event, `truncated` ends the stream as if it
    were whole, and `malformed` sends what is no JSON.
    """

    kind: FaultKind
    retry_after_s: float | None = None
    after: int = 3
    message: str = ""
    """What an error says; empty: what such an error says usually."""
    headers: dict[str, str] = {}
    status: int = 0
    """Of an error, where it is not the usual one."""
    body: Body | None = None
    """All of an error, where it is not the usual one."""


class Raw(Struct, frozen=True):
    """A response that is no answer of a model: any status, any body."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "application/json"})


class RecordedRequest(Struct, frozen=True):
    """One request as the provider saw it."""

    number: int
    format: str
    model: str
    messages: tuple[RequestMessage, ...]
    tools: tuple[str, ...]
    key: str
    body: Body = field(default_factory=dict)
    traceparent: str = ""

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


Answer = Reply | Fault | Raw
Script = Sequence[Answer] | Callable[[RecordedRequest], Answer | Awaitable[Answer]]


def answer_with(value: JSON, asked: RecordedRequest | None = None) -> Reply:
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
        self.asked: list[RecordedRequest] = []
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

    def transport(self) -> httpx2.AsyncBaseTransport:
        """The same provider without a socket, for clients in this process; a fault breaks the connection."""
        import httpx2

        async def answer(request: httpx2.Request) -> httpx2.Response:
            form = FORMATS[request.url.path]
            asked = self._note(form, dict(request.headers), json.loads(request.content))
            given = await self._next(asked)
            if isinstance(given, Raw):
                return httpx2.Response(given.status, headers=given.headers, content=given.body)
            if isinstance(given, Fault):
                raise httpx2.ReadError(given.kind, request=request)
            events = form.events(ids(given, asked.number), asked.model, asked.number)
            lines = (f"event: {name}\ndata: {json.dumps(data)}\n\n".encode() for name, data in events)
            body = b"".join((*lines, form.ending))
            stream = httpx2.ByteStream(body)
            return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=stream)

        return httpx2.MockTransport(answer)

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
            await _send(writer, 404, _json(_error(MESSAGES, "unknown_model")), JSON_TYPE)
            return
        asked = self._note(form, headers, body)
        given = Fault("bad_key") if self._key not in (None, asked.key) else await self._next(asked)
        if isinstance(given, Reply):
            await _reply(writer, form, ids(given, asked.number), asked, None)
        elif isinstance(given, Raw):
            await _send(writer, given.status, given.body, given.headers)
        elif given.kind in _BROKEN:
            await _reply(writer, form, Reply(text="this will never be whole"), asked, given)
        else:
            wait = (
                {} if given.retry_after_s is None else {"retry-after-ms": f"{given.retry_after_s * 1_000:g}"}
            )
            said = given.body or _error(form, given.kind, given.message)
            status = given.status or _STATUS[given.kind][0]
            await _send(writer, status, _json(said), JSON_TYPE | wait | given.headers)

    def _note(self, form: Format, headers: dict[str, str], body: Body) -> RecordedRequest:
        messages, tools = form.heard(body)
        key = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        number, trace = len(self.asked) + 1, headers.get("traceparent", "")
        asked = RecordedRequest(
            number, form.name, body["model"], tuple(messages), tuple(tools), key, body, trace
        )
        self.asked.append(asked)
        self._news.set()
        return asked

    async def _next(self, asked: RecordedRequest) -> Answer:
        if callable(self._script):
            said = self._script(asked)
            return said if isinstance(said, Reply | Fault | Raw) else await said
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


def _json(body: Body) -> bytes:
    return json.dumps(body).encode()


async def _send(writer: asyncio.StreamWriter, status: int, data: bytes, headers: dict[str, str]) -> None:
    extra = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"HTTP/1.1 {status} Scripted\r\n{extra}content-length: {len(data)}\r\n\r\n".encode() + data)
    await writer.drain()


async def _reply(
    writer: asyncio.StreamWriter, form: Format, reply: Reply, asked: RecordedRequest, fault: Fault | None
) -> None:
    is_streamed = bool(asked.body.get("stream"))
    if fault is not None and (fault.kind in ("silent", "hang_up") or not is_streamed):
        if fault.kind in ("silent", "stall"):
            await asyncio.Event().wait()
        writer.transport.abort()
        return
    if not is_streamed:
        await _send(writer, 200, _json(form.document(reply, asked.model, asked.number)), JSON_TYPE)
        return
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    for sent, (name, data) in enumerate(form.events(reply, asked.model, asked.number)):
        event = f"event: {name}\n" if name else ""
        line = f"{event}data: {json.dumps(data)}\n\n".encode()
        if fault is not None and sent == fault.after:
            await _break_off(writer, fault, line)
            return
        _chunk(writer, line)
        await writer.drain()
        if reply.pause_s:
            await asyncio.sleep(reply.pause_s)
    _chunk(writer, form.ending)
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def _break_off(writer: asyncio.StreamWriter, fault: Fault, next_event: bytes) -> None:
    if fault.kind == "stall":
        await asyncio.Event().wait()
    if fault.kind == "cut":
        _chunk(writer, next_event[: len(next_event) // 2])
        await writer.drain()
    if fault.kind in ("malformed", "truncated"):
        _chunk(writer, b'data: {"this is": not JSON\n\n' if fault.kind == "malformed" else b"")
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
