"""The whole application: the guard, and behind it the API, MCP and the console."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from fanfold.errors import NotFoundError, WorldError
from fanfold.server.admission import Admission, Visitor
from fanfold.server.api import Api
from fanfold.server.console_files import ConsoleFiles
from fanfold.server.desk import Desk
from fanfold.server.endpoints.table import routes
from fanfold.server.feed import Feed
from fanfold.server.guard import VISITOR, RequestGuard
from fanfold.server.idempotency import Idempotency
from fanfold.server.mounted import MountedLater
from fanfold.server.replies import failure
from fanfold.server.routes import RouteTable


class Application:
    """An ASGI application for one project."""

    def __init__(
        self,
        desk: Desk,
        access: Admission,
        hosts: Iterable[str],
        cookie: str,
        keys: Idempotency,
        mcp: MountedLater,
    ) -> None:
        self._desk = desk
        self._mcp = mcp
        self._keys = keys
        self._console = ConsoleFiles()
        self._api: Api | None = None
        self.feed: Feed | None = None
        inner = Router(redirect_slashes=False, default=self._dispatch, lifespan=self._live)
        self._guarded = RequestGuard(inner, access, hosts, cookie)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._guarded(scope, receive, send)

    @asynccontextmanager
    async def _live(self, _: object) -> AsyncIterator[None]:
        """Begins and ends with the server, in its event loop."""
        feed = self.feed = Feed(self._desk.history.store)
        self._api = Api(self._desk, feed, RouteTable(routes()), self._keys)
        following = asyncio.create_task(feed.run())
        try:
            yield
        finally:
            await self._mcp.close()
            following.cancel()
            self._api.close()

    def stopping(self) -> None:
        """The server was asked to stop: nobody is to wait for a stream."""
        self._mcp.stopping()
        if self.feed is not None:
            self.feed.close()

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope["path"].startswith("/"):  # the target of CONNECT, or the address of another server
            nowhere = NotFoundError("request.not_found", "there is nothing at this path")
            await failure(nowhere)(scope, receive, send)
            return
        first = scope["path"].split("/")[1]
        if first == "api" and self._api is not None:
            await self._api(scope, receive, send)
        elif first == "mcp":
            await self._serve_mcp(scope, receive, send)
        else:
            await self._console(scope, receive, send)

    async def _serve_mcp(self, scope: Scope, receive: Receive, send: Send) -> None:
        visitor: Visitor = scope[VISITOR]
        try:
            visitor.must_be_operator()
        except WorldError as error:
            await failure(error)(scope, receive, send)
        else:
            await self._mcp(scope, receive, send)
