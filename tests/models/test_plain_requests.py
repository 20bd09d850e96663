"""Chat completions that leave the SDK's detours out: the same is asked, and the same is heard."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import anyio
import httpx2
import pytest
from openai import APIError, AsyncOpenAI
from openai._streaming import SSEDecoder
from openai.resources.chat.completions import AsyncCompletions
from pydantic_ai.exceptions import ModelAPIError, UnexpectedModelBehavior
from pydantic_ai.messages import ModelRequest, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from fanfold.agents.models import plain_requests
from fanfold.agents.models.chat_model import ChatModel
from fanfold.agents.models.event_lines import EventLines
from fanfold.agents.models.plain_requests import PlainCompletions, ask_plainly

ADDRESS = "https://models.example/v1"
QUESTION: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "Größe? 🙂"}],
    "stream": True,
    "stream_options": {"include_usage": True},
}


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"} | {
        "choices": [choice],
        **more,
    }


def call(index: int, arguments: str, **more: Any) -> dict[str, Any]:
    named = {"id": f"call_{index}", "type": "function"} if "name" in more else {}
    return {"index": index, **named, "function": {"arguments": arguments, **more}}


END = chunk({}, "stop")
USAGE = chunk(
    choices=[],
    usage={
        "prompt_tokens": 7,
        "completion_tokens": 5,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 2},
    },
)
TEXT = [chunk({"role": "assistant", "content": ""}), chunk({"content": "one "}), chunk({"content": "two"})]
ANSWERS: dict[str, list[Any]] = {
    "text": [*TEXT, END, USAGE],
    "text without a price": [*TEXT, END],
    "text that is cut off": TEXT,
    "text without names": [{"choices": one["choices"]} for one in (*TEXT, END)],
    "text in parts": [chunk({"content": [{"type": "text", "text": "parts"}]}), END, USAGE],
    "thoughts": [chunk({"reasoning_content": "hm "}), chunk({"reasoning": "hm"}), *TEXT, END, USAGE],
    "thoughts in tags": [*(chunk({"content": one}) for one in ("<think>", "hm", "</think>", "so")), END],
    "calls": [
        chunk({"content": "Looking."}),
        chunk({"tool_calls": [call(0, "", name="read"), call(1, "", name="list")]}),
        chunk({"tool_calls": [call(0, '{"path":')]}),
        chunk({"tool_calls": [call(0, '"a"}')]}),
        chunk({"tool_calls": [call(1, "{}")]}),
        chunk({}, "tool_calls"),
        USAGE,
    ],
    "a refusal": [chunk({"refusal": "I "}), chunk({"refusal": "won't"}), END, USAGE],
    "citations": [
        *TEXT,
        chunk(
            {
                "annotations": [
                    {
                        "type": "url_citation",
                        "url_citation": {"start_index": 0, "end_index": 3, "title": "t", "url": "https://e"},
                    }
                ]
            }
        ),
        END,
    ],
    "more than is known": [chunk({"content": "a", "mood": "good"}, thoughts=3), END, USAGE],
    "an end nobody knows": [*TEXT, chunk({}, "tired"), USAGE],
    "an end with the last words": [chunk({"content": "all"}, "length"), USAGE],
    "null for a list": [*TEXT, chunk(choices=None), END],
    "null for a delta": [*TEXT, chunk(None), END],
    "text for a number": [chunk({"content": "a"}, created="yesterday"), END],
    "half of a pair": [b'{"choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}', END],
    "the price again and again": [chunk({"content": "a"}, usage=USAGE["usage"]), *TEXT, END, USAGE],
    "an error": [*TEXT, {"error": {"message": "overloaded", "code": "server_error"}}],
    "an error without words": [*TEXT, {"error": "no"}],
    "an error that is none": [chunk({"content": "a"}, error=None), *TEXT, END],
    "no JSON": [*TEXT, b"{not JSON"],
    "no text": [*TEXT, b'{"id":"\xff"}'],
    "nothing": [],
}


class Served(httpx2.AsyncByteStream):
    """An answer in the pieces it is cut into."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


def events(answer: list[Any], line_end: bytes = b"\n", done: bool = True) -> bytes:
    said = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in answer]
    ends = line_end * 2
    return b"".join(b"data: " + one + ends for one in [*said, *([b"[DONE]"] if done else [])])


def model(plain: bool, pieces: list[bytes], headers: dict[str, str] | None = None) -> Model:
    def serve(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers=headers, stream=Served(pieces))

    client = httpx2.AsyncClient(transport=httpx2.MockTransport(serve))
    provider = OpenAIProvider(api_key="none", base_url=ADDRESS, http_client=client)
    provider.client.max_retries = 0
    if not plain:
        return OpenAIChatModel("m", provider=provider)
    ask_plainly(provider.client)
    return ChatModel("m", provider=provider)


async def hear(asked: Model) -> tuple[list[str], str, ModelResponse | None]:
    """What is heard: the events, the error that ends it, and the response."""
    heard: list[str] = []
    response = None
    try:
        messages = asked.prepare_messages([ModelRequest.user_text_prompt("Go on.")])
        async with asked.request_stream(messages, None, ModelRequestParameters()) as stream:
            heard.extend([repr(event) async for event in stream])
            response = stream.get()
            response.timestamp = None  # type: ignore[assignment]  # when it was heard
    except (APIError, UnexpectedModelBehavior, ModelAPIError, ValueError) as error:
        said = str(error).partition(" in position")[0]  # of the line, or of what it says
        return heard, f"{type(error).__name__}: {said}", None
    return heard, "", response


def compare(pieces: list[bytes], headers: dict[str, str] | None = None) -> None:
    async def both() -> None:
        assert await hear(model(True, pieces, headers)) == await hear(model(False, pieces, headers))

    asyncio.run(both())


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_heard_as_the_sdk_hears_it(name: str) -> None:
    compare([events(ANSWERS[name])])


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_it_does_not_matter_how_an_answer_is_cut_and_packed(line_end: bytes) -> None:
    chance = Random(3)
    for answer in ANSWERS.values():
        whole = b": begins\n" + events(answer, line_end, done=chance.random() < 0.8) + b"data: late"
        cuts = sorted(chance.randrange(len(whole)) for _ in range(chance.randrange(30)))
        pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
        compare(pieces)
        compare([gzip.compress(whole)], {"content-encoding": "gzip"})


def test_events_are_read_as_the_sdk_reads_them() -> None:
    chance = Random(7)
    words = [b"data: a", b"data:b", b"data", b"data:  c", b": no", b"id: 3", b"event: x", b"", b"", b"data:"]
    for _ in range(500):
        ends = [chance.choice([b"\n", b"\r\n", b"\r"]) for _ in range(12)]
        whole = b"".join(chance.choice(words) + end for end in ends)
        cuts = sorted(chance.randrange(len(whole) + 1) for _ in range(5))
        pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
        lines = EventLines()
        heard = [said for piece in pieces for said in lines.feed(piece)]
        known = [one.data.encode() for one in SSEDecoder().iter_bytes(iter([whole]))]
        assert [said for said in heard if said] == [said for said in known if said], whole


@pytest.mark.parametrize(
    "also",
    [{}, {"extra_headers": {"User-Agent": "me", "x-more": "1"}}, {"extra_body": {"more": 1}}, {"timeout": 3}],
    ids=["nothing", "headers", "body", "timeout"],
)
def test_what_is_asked_is_what_the_sdk_asks(also: dict[str, Any]) -> None:
    seen: list[httpx2.Request] = []

    def serve(request: httpx2.Request) -> httpx2.Response:
        request.extensions["body"] = b"".join(request.stream)  # type: ignore[arg-type]  # it is bytes
        seen.append(request)
        return httpx2.Response(200, headers={"set-cookie": "a=b"}, stream=Served([events([END])]))

    async def ask() -> None:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(serve), headers={"x-own": "1"})
        client = AsyncOpenAI(api_key="none", base_url=ADDRESS, http_client=http, max_retries=0)
        for completions in (AsyncCompletions(client), PlainCompletions(client)):
            http.cookies.clear()
            for _ in range(2):  # the second time with a cookie
                async with await completions.create(**QUESTION, **also) as pieces:
                    assert [piece.id async for piece in pieces] == ["c1"]

    asyncio.run(ask())
    for theirs, ours in zip(seen[:2], seen[2:], strict=True):
        assert (ours.method, ours.url) == (theirs.method, theirs.url)
        assert ours.extensions["timeout"] == theirs.extensions["timeout"]
        assert json.loads(ours.extensions["body"]) == json.loads(theirs.extensions["body"])
        assert sorted(ours.headers.items()) == sorted(theirs.headers.items())
    assert seen[3].headers["cookie"] == "a=b"


def test_a_connection_serves_again_once_an_answer_is_heard() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(size))
                said = events([*TEXT, END])
                writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
                writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(said), said))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # nobody asks any more
        finally:
            writer.close()  # a server is closed when its connections are

    async def ask() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server, httpx2.AsyncClient() as http:
            address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            provider = OpenAIProvider(api_key="none", base_url=address, http_client=http)
            ask_plainly(provider.client)
            for _ in range(3):
                _, error, response = await hear(ChatModel("m", provider=provider))
                assert not error
                assert response is not None
                assert response.text == "one two"

    connections: list[asyncio.StreamWriter] = []
    asyncio.run(ask())
    assert len(connections) == 1


def test_connections_that_the_end_of_an_answer_closes_are_closed_however_long_it_takes() -> None:
    """As the pool does with those that were idle for too long, whoever's they were."""
    closed: list[int] = []

    class Answer(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"data: [DONE]\n\n"
            with anyio.CancelScope(shield=True):
                for number in range(3):
                    await anyio.sleep(plain_requests.USE_UP_S)
                    closed.append(number)

    async def main() -> None:
        request = httpx2.Request("POST", ADDRESS)
        response = httpx2.Response(200, stream=Answer(), request=request)
        async with AsyncOpenAI(api_key="k", base_url=ADDRESS) as client:
            assert [piece async for piece in plain_requests.Pieces(client, response)] == []

    asyncio.run(main())
    assert closed == [0, 1, 2]
