"""How clients reach the server: over stdin and stdout, or as an endpoint of an HTTP server.

Over HTTP the exact hosts and origins that may call are named; whether a caller is allowed at all is for the
HTTP server around the endpoint.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

from mcp.server.mcpserver import MCPServer
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import ASGIApp

from fanfold.server.mcp.service import FanfoldServer, quiet_logging


class HttpEndpoint(NamedTuple):
    """`app` answers one path; `serving` must be entered as long as it does."""

    app: ASGIApp
    serving: AbstractAsyncContextManager[None]


def http_endpoint(server: MCPServer[Any], hosts: Sequence[str], origins: Sequence[str]) -> HttpEndpoint:
    """The server as an endpoint. `hosts` and `origins` are exact, with their port."""
    allowed = TransportSecuritySettings(allowed_hosts=list(hosts), allowed_origins=list(origins))
    server.streamable_http_app(transport_security=allowed)  # makes the manager that the endpoint is for
    manager = server.session_manager

    @asynccontextmanager
    async def serving() -> AsyncIterator[None]:
        async with manager.run():
            try:
                yield
            finally:
                if isinstance(server, FanfoldServer):
                    server.leaving = True

    return HttpEndpoint(StreamableHTTPASGIApp(manager), serving())


async def serve_stdio(server: FanfoldServer) -> None:
    """Serve the client at the other end of stdin and stdout until it goes away."""
    quiet_logging()
    here = asyncio.current_task()
    assert here is not None

    def leave() -> None:
        server.leaving = True
        here.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, leave)
    try:
        async with stdio_server() as (incoming, outgoing):
            await server.serve(_Ending(incoming, server), outgoing)
    except asyncio.CancelledError:
        if not server.leaving:
            raise


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
