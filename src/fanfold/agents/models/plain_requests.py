"""Requests to OpenAI-compatible providers, and their answers, without the detours of the SDK.

Before each request the SDK walks through all of its body, by the types of its parameters, to find names and
formats that differ on the wire; it makes its options, its headers and its address anew and checks them all.
In a chat completion nothing differs on the wire, what we ask is plain JSON already, and where and as whom it
is asked is the same for every request of a client: the SDK makes one request, and the others are like it but
for their body. Together that was a fifth of the CPU time of a call.

Each piece of an answer that is streamed, often a single word, it builds field by field in Python, so that a
provider may leave out or invent what it likes. Nearly all keep to the format: those pieces are read by the
compiled reader of their type, ten times as fast, and only what does not fit is left to the SDK. Errors are
always the SDK's own.

Importing this imports the SDK: only who makes a connection does.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Self

import anyio
import httpx2
import msgspec
from openai import APIConnectionError, APIError, APITimeoutError, AsyncOpenAI, AsyncStream, NotGiven, Omit
from openai._base_client import make_request_options
from openai._httpx2 import request_exceptions, timeout_exceptions
from openai._models import FinalRequestOptions
from openai.resources.chat.completions import AsyncCompletions
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import ValidationError

from fanfold.agents.models.event_lines import EventLines

PATH = "/chat/completions"
OPTIONS = ("extra_headers", "extra_query", "extra_body", "timeout")
USE_UP_S = 0.1
"""How long to wait for the end of an answer behind its last event: then the connection serves again."""
_encode = msgspec.json.Encoder().encode


class PlainCompletions(AsyncCompletions):
    """Chat completions whose body is sent as it was given."""

    def __init__(self, client: AsyncOpenAI) -> None:
        super().__init__(client)
        self._example: httpx2.Request | None = None
        self._example_of: dict[str, str] = {}
        """The headers that were asked for in it."""

    async def create(self, **said: Any) -> Any:  # of its many signatures, the body
        given = {name: value for name, value in said.items() if not isinstance(value, NotGiven | Omit)}
        options = {
            name: option for name in OPTIONS if name in given and (option := given.pop(name)) is not None
        }
        if given.get("stream") and options.keys() <= {"extra_headers"}:
            return await self._stream(given, options.get("extra_headers") or {})
        return await self._post(
            PATH,
            body=given,
            options=make_request_options(**options, security={"bearer_auth": True}),
            cast_to=ChatCompletion,
            stream=bool(given.get("stream")),
            stream_cls=AsyncStream[ChatCompletionChunk],
        )

    async def _stream(self, body: dict[str, Any], headers: dict[str, str]) -> Pieces:
        client = self._client
        request = self._request(_encode(body), headers)
        try:
            response = await client._client.send(request, stream=True)  # noqa: SLF001  # as the SDK does it
        except timeout_exceptions() as error:
            raise APITimeoutError(request=request) from error
        except request_exceptions() as error:
            raise APIConnectionError(request=request) from error
        if not response.is_success:
            await response.aread()
            raise client._make_status_error_from_response(response) from None  # noqa: SLF001  # its own words
        return Pieces(client, response)

    def _request(self, body: bytes, headers: dict[str, str]) -> httpx2.Request:
        """A request like the one the SDK makes."""
        like = self._example
        if like is None or self._example_of != headers:
            asked = FinalRequestOptions.construct(
                method="post", url=PATH, headers=headers, json_data={}, security={"bearer_auth": True}
            )
            like = self._client._build_request(asked)  # noqa: SLF001  # there is no other place
            self._example, self._example_of = like, dict(headers)
        request = httpx2.Request(
            "POST",
            like.url,
            headers=like.headers,
            stream=httpx2.ByteStream(body),
            extensions=like.extensions,
        )
        request.headers["content-length"] = str(len(body))
        cookies = self._client._client.cookies  # noqa: SLF001  # providers set some
        if cookies:
            cookies.set_cookie_header(request)
        return request


class Pieces:
    """An answer as it arrives, piece by piece."""

    def __init__(self, client: AsyncOpenAI, response: httpx2.Response) -> None:
        self._client = client
        self.response = response

    def __aiter__(self) -> AsyncIterator[ChatCompletionChunk]:
        return self._pieces()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Give the connection back."""
        await self.response.aclose()

    async def _pieces(self) -> AsyncIterator[ChatCompletionChunk]:
        response, lines = self.response, EventLines()
        is_packed = "content-encoding" in response.headers
        arriving = response.aiter_bytes() if is_packed else response.aiter_raw()
        try:
            async for data in arriving:
                for said in lines.feed(data):
                    if said.startswith(b"[DONE]"):
                        await _use_up(arriving)
                        return
                    yield self._piece(said)
        except timeout_exceptions() as error:
            raise APITimeoutError(request=response.request) from error
        except request_exceptions() as error:
            raise APIConnectionError(request=response.request) from error
        finally:
            await arriving.aclose()
            await response.aclose()

    def _piece(self, said: bytes) -> ChatCompletionChunk:
        if b'"error"' not in said:
            try:
                return ChatCompletionChunk.model_validate_json(said)
            except ValidationError:
                pass
        data = json.loads(said.decode())
        error = data.get("error") if isinstance(data, dict) else None
        if error:
            message = error.get("message") if isinstance(error, dict) else None
            if not isinstance(message, str) or not message:
                message = "An error occurred during streaming"
            raise APIError(message, request=self.response.request, body=error)
        return self._client._process_response_data(  # noqa: SLF001  # takes whatever it is
            data=data, cast_to=ChatCompletionChunk, response=self.response
        )


async def _use_up(arriving: AsyncIterator[bytes]) -> None:
    """Read what is left of an answer that has said everything; whatever comes of it changes nothing.

    At its end the pool closes connections of others that were idle for too long. It shields that from a time
    limit of anyio's, but not from one of asyncio's, which would leave them open.
    """
    with suppress(*request_exceptions()), anyio.move_on_after(USE_UP_S):
        async for _ in arriving:
            pass


def ask_plainly(client: AsyncOpenAI) -> None:
    """Have the chat completions of a client sent as they are, and the pieces of answers read as they come."""
    client.chat.completions = PlainCompletions(client)  # type: ignore[misc]  # a property that is kept
