"""How clients reach the server: over stdin and stdout, or as an endpoint of an HTTP server.

Over HTTP the exact hosts and origins that may call are named; whether a caller is allowed at all is for the
HTTP server around the endpoint.
"""

from __future__ import annotations

import asyncio
import errno
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp
from mcp.server.transport_security import TransportSecuritySettings
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
            await server.serve(_Ending(incoming, server), outgoing)
    except asyncio.CancelledError:
        if not server.leaving:
            raise
    except BaseExceptionGroup as several:
        gone, others = several.split(BrokenPipeError)
        if gone is None or others is not None:
            raise
        raise BrokenPipeError(errno.EPIPE, "the client is gone") from None


class _Ending:
    """The messages of a client; when they end, so does the connection, and nothing was cancelled by that."""

    def __init__(self, incoming: Any, server: FanfoldServer) -> None:
        self._incoming = incoming
        self._server = server

    def __aiter__(self) -> _Ending:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._incoming.__anext__()
        except StopAsyncIteration:
            self._server.leaving = True
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._incoming, name)
