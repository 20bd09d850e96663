"""Requests to OpenAI-compatible providers, and their answers, without the walk through their types.

Before each request the SDK walks through all of its body, by the types of its parameters, to find names and
formats that differ on the wire. In a chat completion none does, and what we ask is plain JSON already: the
walk was a sixth of the CPU time of a call, the more the longer the conversation.

Each piece of an answer that is streamed, often a single word, it builds field by field in Python, so that a
provider may leave out or invent what it likes. Nearly all keep to the format: those pieces are read by the
compiled reader of their type, ten times as fast, and only what does not fit is left to the SDK.

Importing this imports the SDK: only who makes a connection does.
"""

from __future__ import annotations

from typing import Any

from openai import AsyncOpenAI, AsyncStream, NotGiven, Omit
from openai._base_client import make_request_options
from openai.resources.chat.completions import AsyncCompletions
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import ValidationError

OPTIONS = ("extra_headers", "extra_query", "extra_body", "timeout")


class PlainCompletions(AsyncCompletions):
    """Chat completions whose body is sent as it was given."""

    async def create(self, **said: Any) -> Any:  # of its many signatures, the body
        given = {name: value for name, value in said.items() if not isinstance(value, NotGiven | Omit)}
        options = {name: given.pop(name) for name in OPTIONS if name in given}
        return await self._post(
            "/chat/completions",
            body=given,
            options=make_request_options(**options, security={"bearer_auth": True}),
            cast_to=ChatCompletion,
            stream=bool(given.get("stream")),
            stream_cls=AsyncStream[ChatCompletionChunk],
        )


def ask_plainly(client: AsyncOpenAI) -> None:
    """Have the chat completions of a client sent as they are, and the pieces of answers read as they come."""
    client.chat.completions = PlainCompletions(client)  # type: ignore[misc]  # a property that is kept
    build = client._process_response_data  # noqa: SLF001  # asked for by streams; there is no other place

    def read(*, data: object, cast_to: type[Any], response: Any) -> Any:
        if cast_to is ChatCompletionChunk:
            try:
                return ChatCompletionChunk.model_validate(data)
            except ValidationError:
                pass
        return build(data=data, cast_to=cast_to, response=response)

    client._process_response_data = read  # type: ignore[method-assign]  # noqa: SLF001
