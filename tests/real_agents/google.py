"""The same provider for Gemini CLI, which speaks a format of Google's that no model back end of ours does."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from tests.provider import Call, Fault, RecordedRequest, Reply, RequestMessage

Answer = Callable[[RecordedRequest], Any]


def _heard(body: dict[str, Any]) -> list[RequestMessage]:
    found: list[RequestMessage] = []
    for content in body.get("contents", ()):
        parts = content.get("parts", ())
        calls = [one["functionCall"] for one in parts if "functionCall" in one]
        results = [one["functionResponse"] for one in parts if "functionResponse" in one]
        found.append(
            RequestMessage(
                role="assistant" if content.get("role") == "model" else "user",
                text="".join(one.get("text", "") for one in parts),
                calls=tuple(Call(one["name"], one.get("args", {})) for one in calls),
                results=tuple((one["name"], json.dumps(one.get("response"))) for one in results),
            )
        )
    return found


def _document(reply: Reply) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"text": reply.text}] if reply.text else []
    parts += [{"functionCall": {"name": call.tool, "args": call.args}} for call in reply.calls]
    usage = {"promptTokenCount": reply.input_tokens, "candidatesTokenCount": reply.output_tokens}
    total = {"totalTokenCount": reply.input_tokens + reply.output_tokens}
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
    return {"candidates": [candidate], "usageMetadata": {**usage, **total}, "modelVersion": "scripted"}


async def serve_google(answer: Answer) -> int:
    """Listen on loopback; the port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await _one(reader, writer, answer)
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1024 * 1024)
    port: int = server.sockets[0].getsockname()[1]
    return port


async def _one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    lines = head.lower().split("\r\n")
    size = next((int(line[15:]) for line in lines if line.startswith("content-length:")), 0)
    body = json.loads(await reader.readexactly(size) or b"{}")
    tools = [one["name"] for tool in body.get("tools", ()) for one in tool.get("functionDeclarations", ())]
    asked = RecordedRequest(1, "google", "scripted", tuple(_heard(body)), tuple(tools), "", body)
    streamed = "streamgeneratecontent" in lines[0]
    given = await answer(asked)
    if isinstance(given, Fault):
        if given.kind == "hang_up":
            raise ConnectionAbortedError
        text = json.dumps(given.body)
        kind = "content-type: application/json\r\ncontent-length"
        writer.write(f"HTTP/1.1 {given.status} Scripted\r\n{kind}: {len(text)}\r\n\r\n{text}".encode())
        await writer.drain()
        return
    data = json.dumps(_document(given))
    kind = "text/event-stream" if streamed else "application/json"
    text = f"data: {data}\r\n\r\n" if streamed else data
    writer.write(
        f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode()
    )
    await writer.drain()
