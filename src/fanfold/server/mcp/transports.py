"""How clients reach the server: over stdin and stdout, or as an endpoint of an HTTP server.

Over HTTP the exact hosts and origins that may call are named; whether a caller is allowed at all is for the
HTTP server around the endpoint.
"""

from __future__ import annotations

import asyncio
import errno
import json
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError
from pydantic import ValidationError
from starlette.types import ASGIApp

from fanfold.server.mcp.service import FanfoldServer


class HttpEndpoint:
    """`app` answers one path, as long as `lifespan` is entered."""

    def __init__(self, server: MCPServer[Any], security: TransportSecuritySettings) -> None:
        server.streamable_http_app(transport_security=security)  # makes the manager that the endpoint is for
        self._server = server
        self._manager = server.session_manager
        self.app: ASGIApp = StreamableHTTPASGIApp(self._manager)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Begins and ends with the HTTP server, in its event loop."""
        async with self._manager.run():
            try:
                yield
            finally:
                self.stopping()

    def stopping(self) -> None:
        """Calls end now because the server does; nobody cancelled them."""
        if isinstance(self._server, FanfoldServer):
            self._server.leaving = True


def http_endpoint(
    server: MCPServer[Any], hosts: Sequence[str] | None = None, origins: Sequence[str] = ()
) -> HttpEndpoint:
    """The server as an endpoint. `hosts` and `origins` are exact, with their port; without them, whoever
    mounts the endpoint checks both.
    """
    allowed = TransportSecuritySettings(
        enable_dns_rebinding_protection=hosts is not None,
        allowed_hosts=list(hosts or ()),
        allowed_origins=list(origins),
    )
    return HttpEndpoint(server, allowed)


async def serve_stdio(server: FanfoldServer) -> None:
    """Serve the client at the other end of stdin and stdout until it goes away.

    `BrokenPipeError` says that it was gone before it had heard everything.
    """
    here = asyncio.current_task()
    assert here is not None

    def leave() -> None:
        server.leaving = True
        here.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, leave)
    try:
        async with stdio_server() as (incoming, outgoing):
            await server.serve(_Incoming(incoming, outgoing, server), outgoing)
    except asyncio.CancelledError:
        if not server.leaving:
            raise
    except BaseExceptionGroup as several:
        gone, others = several.split(BrokenPipeError)
        if gone is None or others is not None:
            raise
        raise BrokenPipeError(errno.EPIPE, "the client is gone") from None


class _Incoming:
    """The messages of a client; when they end, so does the connection, and nothing was cancelled by that.

    A line that is no message is answered as such: the SDK drops it, and who sent it would wait for ever.
    """

    def __init__(self, incoming: Any, outgoing: Any, server: FanfoldServer) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._server = server

    def __aiter__(self) -> _Incoming:
        return self

    async def __anext__(self) -> Any:
        try:
            while isinstance(message := await self._incoming.__anext__(), Exception):
                for refusal in _refusals(message):
                    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # nobody is there
                        await self._outgoing.send(SessionMessage(refusal))
            return message
        except StopAsyncIteration:
            self._server.leaving = True
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._incoming, name)


def _refusals(wrong: Exception) -> list[JSONRPCError]:
    """What is said to a line that is no message: to each request that can be made out in it, else to none."""
    if not isinstance(wrong, ValidationError):
        return [_refusal(None, PARSE_ERROR, "this line cannot be read")]
    mistakes = wrong.errors(include_url=False)
    if mistakes[0]["type"] != "json_invalid":
        words = "this line is no message of JSON-RPC 2.0; each has a line of its own"
        asked = next(filter(None, (_requests_in(one["input"]) for one in mistakes)), [])
        return [_refusal(one, INVALID_REQUEST, words) for one in asked or [None]]
    line = mistakes[0]["input"]
    try:
        asked = _requests_in(json.loads(line))  # which takes what is no text too
    except (ValueError, RecursionError):
        asked = []
    return [_refusal(one, PARSE_ERROR, mistakes[0]["msg"]) for one in asked or [None]] if line.strip() else []


def _requests_in(found: Any) -> list[str | int | None]:
    """The ids of the requests among some messages, or of one."""
    several = found if isinstance(found, list) else [found]
    ids = [one.get("id") for one in several if isinstance(one, dict) and "method" in one]
    return [one for one in ids if isinstance(one, str) or type(one) is int]


def _refusal(request: str | int | None, code: int, words: str) -> JSONRPCError:
    return JSONRPCError(jsonrpc="2.0", id=request, error=ErrorData(code=code, message=words))
