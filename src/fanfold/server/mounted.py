"""Another application beside the console, made when it is first asked for.

Most servers are never asked for MCP, and what it is made of takes as much memory as everything else here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

from starlette.types import ASGIApp, Receive, Scope, Send


class Mounted(Protocol):
    """An application, with what it needs while it is served."""

    app: ASGIApp

    def lifespan(self) -> AbstractAsyncContextManager[None]: ...

    def stopping(self) -> None:
        """The server was asked to stop: what ends from now on was not asked to by who waits for it."""
        ...


MakeMounted: TypeAlias = Callable[[], Mounted]


class MountedLater:
    """An ASGI application that `make` makes, in a thread, for the first request."""

    def __init__(self, make: MakeMounted) -> None:
        self._make = make
        self._serving: asyncio.Task[None] | None = None
        self._app: asyncio.Future[ASGIApp] | None = None
        self._closing: asyncio.Event | None = None
        self._made: Mounted | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None or (self._app.done() and self._app.exception() is not None):
            self._app = asyncio.get_running_loop().create_future()
            self._closing = asyncio.Event()
            self._serving = asyncio.create_task(self._serve(self._app, self._closing))
        app = await asyncio.shield(self._app)
        await app(scope, receive, send)

    async def _serve(self, app: asyncio.Future[ASGIApp], closing: asyncio.Event) -> None:
        """What has been entered by a task has to be left by it: this one lasts as long as the server."""
        try:
            made = self._made = await asyncio.to_thread(self._make)
            async with made.lifespan():
                app.set_result(made.app)
                await closing.wait()
        except Exception as error:
            if app.done():
                raise
            app.set_exception(error)

    def stopping(self) -> None:
        if self._made is not None:
            self._made.stopping()

    async def close(self) -> None:
        """End what was begun."""
        if self._serving is not None and self._closing is not None:
            self._closing.set()
            await self._serving
