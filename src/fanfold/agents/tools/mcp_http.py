"""HTTP connections to MCP servers, within limits that the official client does not set.

Only imported when a role names such a server.

Rules
* Responses have a maximum size and must not be compressed: a small one could unpack to a huge one.
* Only responses are read. The stream on which a server can send at any time is not opened.
* The client follows redirects only within the server's own address. Proxies are not used.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from fanfold.agents.tools.mcp_servers import Server

if TYPE_CHECKING:
    from mcp.client import Transport


CONNECT_TIMEOUT_S = 10.0
FAREWELL_TIMEOUT_S = 2.0
MAX_ANSWER_BYTES = 16 * 1024 * 1024


class Refusals:
    """The last response with an error status, because the client's own errors lack it."""

    def __init__(self) -> None:
        self.last = ""


def reach(server: Server, refusals: Refusals) -> AbstractAsyncContextManager[Any]:
    """Return the streams to a server, for a client session."""
    timeout = httpx2.Timeout(CONNECT_TIMEOUT_S, read=server.tool_timeout_s + CONNECT_TIMEOUT_S)
    line = _BoundedTransport(refusals, listening=server.sse)
    headers = {**server.headers, "Accept-Encoding": "identity"}
    if not server.sse:
        return _streamable(server.url, httpx2.AsyncClient(headers=headers, timeout=timeout, transport=line))

    def make(*_: Any, **__: Any) -> httpx2.AsyncClient:
        # No limit between events: nothing is sent without a request, and calls have limits of their own.
        quiet = httpx2.Timeout(CONNECT_TIMEOUT_S, read=None)
        return httpx2.AsyncClient(headers=headers, timeout=quiet, transport=line)

    return sse_client(server.url, httpx_client_factory=make)


@asynccontextmanager
async def _streamable(url: str, client: httpx2.AsyncClient) -> AsyncIterator[Any]:
    transport: Transport = streamable_http_client(
        url, http_client=client, max_sse_event_size=MAX_ANSWER_BYTES
    )
    async with client, transport as streams:
        yield streams


class _BoundedTransport(httpx2.AsyncBaseTransport):
    """Sends requests and limits the responses."""

    def __init__(self, refusals: Refusals, *, listening: bool) -> None:
        self._inner = httpx2.AsyncHTTPTransport()
        self._refusals = refusals
        self._listening = listening

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET" and not self._listening and "last-event-id" not in request.headers:
            return httpx2.Response(405, request=request)  # as servers answer that have no such stream
        if request.method == "DELETE":  # a farewell, which has a short timeout
            request.extensions["timeout"] = httpx2.Timeout(FAREWELL_TIMEOUT_S).as_dict()
        response = await self._inner.handle_async_request(request)
        if response.headers.get("content-encoding", "identity").lower() not in ("", "identity"):
            await response.aclose()
            self._refusals.last = "it sends compressed answers, which were not asked for"
            return httpx2.Response(502, request=request)
        status = f"it answered {response.status_code} {response.reason_phrase}".strip()
        self._refusals.last = status if response.status_code >= 300 else ""
        stream = response.stream
        assert isinstance(stream, httpx2.AsyncByteStream), "an asynchronous transport gives such streams"
        response.stream = _BoundedStream(stream)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BoundedStream(httpx2.AsyncByteStream):
    """The body of a response, up to a limit."""

    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner
        self._left = MAX_ANSWER_BYTES

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._inner:
            self._left -= len(piece)
            if self._left < 0:
                raise httpx2.StreamError(f"longer than {MAX_ANSWER_BYTES // 1024**2} MiB")
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()
