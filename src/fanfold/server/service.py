"""Serving one project: the address, the link that lets a browser in, and an end within two seconds."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol, TypeAlias

import uvicorn
from msgspec import Struct
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from fanfold.api.notifications import record_console
from fanfold.api.system import ServeAddress, new_token
from fanfold.errors import AuthorError, NotFoundError, WorldError
from fanfold.server.api import Api
from fanfold.server.auth import VISITOR, Admission, BoundedConnection, Principal, RequestGuard
from fanfold.server.console_files import ConsoleFiles
from fanfold.server.requests import AppState, Idempotency, failure
from fanfold.server.routes import routes
from fanfold.server.streams import Feed
from fanfold.server.webhooks import HOOKS, Webhooks

# -----------------------------------------------------------------------------------------------------------
# Another application beside the console, made when it is first asked for.
#
# Most servers are never asked for MCP, and what it is made of takes as much memory as everything else here.

OnReady: TypeAlias = Callable[[ServeAddress], None]


class MountedApp(Protocol):
    """An application, with what it needs while it is served."""

    app: ASGIApp

    def lifespan(self) -> AbstractAsyncContextManager[None]: ...

    def stopping(self) -> None:
        """The server was asked to stop: what ends from now on was not asked to by who waits for it."""
        ...


MakeMounted: TypeAlias = Callable[[], MountedApp]


class MountedLater:
    """An ASGI application that `make` makes, in a thread, for the first request."""

    def __init__(self, make: MakeMounted) -> None:
        self._make = make
        self._serving: asyncio.Task[None] | None = None
        self._app: asyncio.Future[ASGIApp] | None = None
        self._closing: asyncio.Event | None = None
        self._made: MountedApp | None = None

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


# -----------------------------------------------------------------------------------------------------------
# The whole application: the guard, and behind it the API, MCP and the console.


class Application:
    """An ASGI application for one project."""

    def __init__(
        self,
        desk: AppState,
        access: Admission,
        hosts: Iterable[str],
        cookie: str,
        keys: Idempotency,
        mcp: MountedLater,
    ) -> None:
        self._desk = desk
        self._mcp = mcp
        self._keys = keys
        self._console = ConsoleFiles(desk.history.folder.name)
        self._hooks = Webhooks(desk.fresh)
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
        self._api = Api(self._desk, feed, routes(), self._keys)
        following = asyncio.create_task(feed.run())
        try:
            yield
        finally:
            await self._mcp.close()
            following.cancel()
            self._api.close()

    def stopping(self) -> None:
        """End the streams: the server was asked to stop."""
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
        elif first == HOOKS:
            await self._hooks(scope, receive, send)
        elif first != "mcp":
            await self._console(scope, receive, send)
        else:
            visitor: Principal = scope[VISITOR]
            try:
                visitor.must_be_operator()
            except WorldError as error:
                await failure(error)(scope, receive, send)
            else:
                await self._mcp(scope, receive, send)


GRACE_S = 1
"""What is under way when the server is to stop has this long; streams end at once."""
MAX_HEAD_BYTES = 64 * 1024


class Address(Struct, frozen=True):
    """Where to listen. A host that is not this machine's own is for configured tokens only."""

    host: str = "127.0.0.1"
    port: int = 8420

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


class Tokens(Struct, frozen=True):
    """Digests of the tokens that the user's configuration lists."""

    operators: frozenset[str]
    viewers: frozenset[str]


def serve(
    desk: AppState,
    address: Address,
    tokens: Tokens,
    mcp: MakeMounted,
    *,
    take_over: Callable[[], list[str]],
    on_ready: OnReady,
) -> None:
    """Serve until it is stopped. `on_ready` is called once it can be reached."""
    _check(address, tokens)
    with _listen(address) as listening:
        port = int(listening.getsockname()[1])
        name = f"[{address.host}]" if ":" in address.host else address.host
        hosts = {f"{name}:{port}"} | (
            {f"localhost:{port}", f"127.0.0.1:{port}"} if address.is_loopback else set()
        )
        token = new_token() if address.is_loopback else None
        project = desk.history
        access = Admission(
            project.own_file("server", "json"),
            link=token,
            operators=tokens.operators,
            viewers=tokens.viewers,
        )
        keys = Idempotency(project.own_file("server", "requests.jsonl"))
        application = Application(desk, access, hosts, f"fanfold-{port}", keys, MountedLater(mcp))
        url = f"http://{name}:{port}/"
        link = None if token is None else f"{url}?token={token}"
        config = uvicorn.Config(
            application,
            log_level="error",  # any client can send invalid requests: they are not worth a line each
            access_log=False,
            server_header=False,
            lifespan="on",
            ws="none",
            http=BoundedConnection,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            timeout_graceful_shutdown=GRACE_S,
        )

        def begin() -> None:
            record_console(project, url)
            on_ready(ServeAddress(url, link, take_over()))

        _Server(config, application, begin).run(sockets=[listening])


class _Server(uvicorn.Server):
    """Says when it has begun, and lets streams end when it is to stop."""

    def __init__(self, config: uvicorn.Config, application: Application, begun: Callable[[], None]) -> None:
        super().__init__(config)
        self._application = application
        self._begun = begun

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._begun()

    def handle_exit(self, sig: int, frame: object) -> None:
        """Stop the server: this is its normal end, not an interruption. The second time, stop at once."""
        del sig, frame
        self._application.stopping()
        self.force_exit = self.should_exit
        self.should_exit = True


def _check(address: Address, tokens: Tokens) -> None:
    if address.is_loopback:
        return
    try:
        anywhere = ipaddress.ip_address(address.host).is_unspecified
    except ValueError:
        anywhere = False
    if anywhere:
        message = (
            f"--host {address.host} is every address of this machine, so no Host could be held against it"
        )
        raise AuthorError("server.address", message, hint="name the one address that people will use")
    if not tokens.operators and not tokens.viewers:
        raise AuthorError(
            "server.no_tokens",
            f"--host {address.host} can be reached by others, and no token is configured",
            hint="fanfold serve --new-token operator makes one, and says where its digest goes",
        )


def _listen(address: Address) -> socket.socket:
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(found[0], socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(found[4])
        except BaseException:
            listening.close()
            raise
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        message = f"cannot listen on {address.host}:{address.port}: {reason}"
        raise WorldError(
            "server.address", message, hint="--port chooses another one, 0 any that is free"
        ) from None
    return listening
