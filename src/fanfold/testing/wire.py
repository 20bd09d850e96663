"""How a scripted reply looks on the wire: OpenAI chat completions, OpenAI responses, Anthropic messages.

Each format is two functions: what a request asked for, in words common to all three, and the reply as the
list of server-sent events that the real service would stream. A reply that is not streamed is the same reply
folded into one document, so the two can never disagree.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fanfold.kernel.plan import JSON

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
    finish: str = ""
    """`length` or `content_filter` when the reply ends for another reason than being over."""


class Heard(Struct, frozen=True):
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


def chat_heard(body: Body) -> tuple[list[Heard], list[str]]:
    heard = []
    for message in body["messages"]:
        if message["role"] == "tool":
            heard.append(Heard("tool", results=((message["tool_call_id"], _flat(message["content"])),)))
            continue
        calls = tuple(
            Call(c["function"]["name"], _parsed(c["function"]["arguments"]), c["id"])
            for c in message.get("tool_calls") or ()
        )
        heard.append(Heard(message["role"], _flat(message.get("content")), calls))
    return heard, [tool["function"]["name"] for tool in body.get("tools") or ()]


def chat_events(reply: Reply, model: str, number: int) -> list[Event]:
    def chunk(delta: Body, finish: str | None = None) -> Event:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return "", {**_chat_head(model, number, "chat.completion.chunk"), "choices": [choice]}

    events = [chunk({"role": "assistant", "content": ""})]
    events += [chunk({"content": piece}) for piece in _pieces(reply.text)]
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
    return [*events, ("", usage)]


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
    }


# --------------------------------------------------------------------------------- OpenAI responses


def responses_heard(body: Body) -> tuple[list[Heard], list[str]]:
    heard = []
    if body.get("instructions"):
        heard.append(Heard("system", body["instructions"]))
    given = body["input"]
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        kind = item.get("type", "message")
        if kind == "function_call":
            call = Call(item["name"], _parsed(item["arguments"]), item["call_id"])
            heard.append(Heard("assistant", calls=(call,)))
        elif kind == "function_call_output":
            heard.append(Heard("tool", results=((item["call_id"], _flat(item["output"])),)))
        elif kind == "message":
            heard.append(Heard(item["role"], _flat(item.get("content"))))
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
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": reply.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.input_tokens + reply.output_tokens,
        },
    }


# -------------------------------------------------------------------------------- Anthropic messages


def messages_heard(body: Body) -> tuple[list[Heard], list[str]]:
    heard = [Heard("system", _flat(body["system"]))] if body.get("system") else []
    for message in body["messages"]:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        text = "".join(part["text"] for part in parts if part["type"] == "text")
        calls = tuple(Call(p["name"], p["input"], p["id"]) for p in parts if p["type"] == "tool_use")
        results = tuple(
            (p["tool_use_id"], _flat(p.get("content"))) for p in parts if p["type"] == "tool_result"
        )
        heard.append(Heard(message["role"], text, calls, results))
    return heard, [tool["name"] for tool in body.get("tools") or ()]


def messages_events(reply: Reply, model: str, number: int) -> list[Event]:
    document = messages_document(reply, model, number)
    first_usage = {"input_tokens": reply.input_tokens, "output_tokens": 1}
    opened = {**document, "content": [], "stop_reason": None, "usage": first_usage}
    events: list[Event] = [("message_start", {"message": opened})]
    for i, block in enumerate(document["content"]):
        start, deltas = _block(block)
        events.append(("content_block_start", {"index": i, "content_block": start}))
        events += [("content_block_delta", {"index": i, "delta": delta}) for delta in deltas]
        events.append(("content_block_stop", {"index": i}))
    delta = {"stop_reason": document["stop_reason"], "stop_sequence": None}
    events.append(("message_delta", {"delta": delta, "usage": {"output_tokens": reply.output_tokens}}))
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
    usage = {"input_tokens": reply.input_tokens, "output_tokens": reply.output_tokens}
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": usage,
    }


class Format(Struct, frozen=True):
    """One wire format."""

    name: str
    heard: Callable[[Body], tuple[list[Heard], list[str]]]
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
