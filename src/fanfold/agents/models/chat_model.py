"""Models that speak chat completions, with less done for each piece of an answer.

The library of providers takes a lock for every piece, adds up what each cost although only the last one says
so, and looks in each for three fields that hardly any has. That is left out here; what comes of a stream is
the same.

Importing this imports the SDK: only who makes a connection does.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterable
from typing import TYPE_CHECKING, Any

from pydantic_ai.models.openai import OpenAIChatModel, OpenAIStreamedResponse
from pydantic_ai.usage import RequestUsage

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionChunk
    from openai.types.chat.chat_completion_chunk import Choice
    from pydantic_ai._utils import PeekableAsyncStream
    from pydantic_ai.messages import ModelResponseStreamEvent

_NOTHING = RequestUsage()


class ChatModel(OpenAIChatModel):
    """A model that is asked by chat completions."""

    @property
    def _streamed_response_cls(self) -> type[OpenAIStreamedResponse]:
        return StreamedChat


class StreamedChat(OpenAIStreamedResponse):
    """An answer as it arrives."""

    def _validate_response(self) -> AsyncIterable[ChatCompletionChunk]:
        return _Unlocked(self._response)

    def _map_usage(self, response: ChatCompletionChunk) -> RequestUsage:
        return _NOTHING if response.usage is None else super()._map_usage(response)

    def _add_usage(self, usage: RequestUsage, *, reported: bool, cumulative: bool = False) -> None:
        if reported:
            super()._add_usage(usage, reported=reported, cumulative=cumulative)

    def _map_part_delta(self, choice: Choice) -> Iterable[ModelResponseStreamEvent]:
        delta = choice.delta
        if delta.model_extra or delta.tool_calls:
            return super()._map_part_delta(choice)
        return self._map_text_delta(choice) if delta.content else ()


class _Unlocked:
    """The piece that was looked at, then the rest as it comes: nobody else reads, so nobody is kept out."""

    __slots__ = ("_is_begun", "_stream")

    def __init__(self, stream: PeekableAsyncStream[Any, Any]) -> None:
        self._stream = stream
        self._is_begun = False

    def __aiter__(self) -> AsyncIterator[ChatCompletionChunk]:
        return self

    def __anext__(self) -> Awaitable[ChatCompletionChunk]:
        rest = self._stream._source_iter  # noqa: SLF001  # what it reads from
        if self._is_begun and rest is not None:
            return rest.__anext__()
        self._is_begun = True
        return self._stream.__anext__()
