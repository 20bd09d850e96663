"""The server of one project: its address, its link with a token, and its end within two seconds."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import uvicorn
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from fanfold.api.notifications import record_console
from fanfold.api.project import Project
from fanfold.api.schedules import WebhookReply, deliver, unsigned
from fanfold.api.system import ServeAddress, new_token
from fanfold.errors import AuthorError, FanfoldError, NotFoundError, WorldError
from fanfold.server.api import Api
from fanfold.server.auth import PRINCIPAL, Admission, BoundedConnection, Principal, RequestGuard
from fanfold.server.console_files import ConsoleFiles
from fanfold.server.requests import BODY_S, AppState, Idempotency, failure, read_stream, segments_of
from fanfold.server.routes import routes
from fanfold.server.streams import Feed

if TYPE_CHECKING:
    from fanfold.server.mcp import HttpEndpoint

# -----------------------------------------------------------------------------------------------------------
# An application that is created on its first request.
#
# Most servers get no request for MCP, and its libraries take as much memory as the rest of the server.

OnReady: TypeAlias = Callable[[ServeAddress], None]


MakeMounted: TypeAlias = "Callable[[], HttpEndpoint]"


class LazyMount:
    """An ASGI application that `make` creates in a thread, on the first request."""

    def __init__(self, make: MakeMounted) -> None:
        self._make = make
        self._serving: asyncio.Task[None] | None = None
        self._app: asyncio.Future[ASGIApp] | None = None
        self._closing: asyncio.Event | None = None
        self._made: HttpEndpoint | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None or (self._app.done() and self._app.exception() is not None):
            self._app = asyncio.get_running_loop().create_future()
            self._closing = asyncio.Event()
            self._serving = asyncio.create_task(self._serve(self._app, self._closing))
        app = await asyncio.shield(self._app)
        await app(scope, receive, send)

    async def _serve(self, app: asyncio.Future[ASGIApp], closing: asyncio.Event) -> None:
        """Serve until `close`. One task enters and leaves the lifespan, as anyio requires."""
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
        """End the application, if it was created."""
        if self._serving is not None and self._closing is not None:
            self._closing.set()
            await self._serving


# -----------------------------------------------------------------------------------------------------------
# The whole application: the guard, then the API, MCP and the console.


class Application:
    """An ASGI application for one project."""

    def __init__(
        self,
        state: AppState,
        access: Admission,
        hosts: Iterable[str],
        cookie: str,
        keys: Idempotency,
        mcp: LazyMount,
    ) -> None:
        self._state = state
        self._mcp = mcp
        self._keys = keys
        self._console = ConsoleFiles(state.history.folder.name)
        self._hooks = Webhooks(state.fresh)
        self._api: Api | None = None
        self.feed: Feed | None = None
        inner = Router(redirect_slashes=False, default=self._dispatch, lifespan=self._live)
        self._guarded = RequestGuard(inner, access, hosts, cookie)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._guarded(scope, receive, send)

    @asynccontextmanager
    async def _live(self, _: object) -> AsyncIterator[None]:
        """The lifespan of the server, in its event loop."""
        feed = self.feed = Feed(self._state.history.store)
        self._api = Api(self._state, feed, routes(), self._keys)
        following = asyncio.create_task(feed.run())
        try:
            yield
        finally:
            await self._mcp.close()
            following.cancel()
            self._api.close()

    def stopping(self) -> None:
        """End the streams, because the server stops."""
        self._mcp.stopping()
        if self.feed is not None:
            self.feed.close()

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope["path"].startswith("/"):  # the target of CONNECT, or the address of another server
            nowhere = NotFoundError("request.not_found", "this path does not exist")
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
            principal: Principal = scope[PRINCIPAL]
            try:
                principal.must_be_operator()
            except WorldError as error:
                await failure(error)(scope, receive, send)
            else:
                await self._mcp(scope, receive, send)


GRACE_S = 1
"""The time for running requests when the server stops; streams end at once."""
MAX_HEAD_BYTES = 64 * 1024


class Address(Struct, frozen=True):
    """The address to listen on. Without loopback, only configured tokens are accepted."""

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
    state: AppState,
    address: Address,
    tokens: Tokens,
    mcp: MakeMounted,
    *,
    take_over: Callable[[], list[str]],
    on_ready: OnReady,
) -> None:
    """Serve until stopped. `on_ready` is called when the server accepts connections."""
    _check(address, tokens)
    with _listen(address) as listening:
        port = int(listening.getsockname()[1])
        name = f"[{address.host}]" if ":" in address.host else address.host
        hosts = {f"{name}:{port}"} | (
            {f"localhost:{port}", f"127.0.0.1:{port}"} if address.is_loopback else set()
        )
        token = new_token() if address.is_loopback else None
        project = state.history
        access = Admission(
            project.own_file("server", "json"),
            link=token,
            operators=tokens.operators,
            viewers=tokens.viewers,
        )
        keys = Idempotency(project.own_file("server", "requests.jsonl"))
        application = Application(state, access, hosts, f"fanfold-{port}", keys, LazyMount(mcp))
        url = f"http://{name}:{port}/"
        link = None if token is None else f"{url}?token={token}"
        config = uvicorn.Config(
            application,
            log_level="error",  # any client can send invalid requests; they must not fill the log
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
    """Calls `begun` when it listens, and ends the streams before it stops."""

    def __init__(self, config: uvicorn.Config, application: Application, begun: Callable[[], None]) -> None:
        super().__init__(config)
        self._application = application
        self._begun = begun

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._begun()

    def handle_exit(self, sig: int, frame: object) -> None:
        """Stop the server, which is its normal end; on a second signal, stop at once."""
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
            f"--host {address.host} means every address of this machine, so the Host header cannot be checked"
        )
        raise AuthorError("server.address", message, hint="pass the one address that users will open")
    if not tokens.operators and not tokens.viewers:
        message = f"--host {address.host} is reachable from other machines, and no token is configured"
        hint = "fanfold serve --new-token operator makes one, and prints where to put its digest"
        raise AuthorError("server.no_tokens", message, hint=hint)


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
        hint = "pass another port with --port; 0 picks a free one"
        raise WorldError("server.address", message, hint=hint) from None
    return listening


# -----------------------------------------------------------------------------------------------------------
# Messages of other systems at `/hooks/NAME`, authenticated by a signature instead of a token.
#
# Rules
# * The Host is checked as for every request. A message is at most `MAX_MESSAGE_BYTES` long and has `BODY_S`.
# * Unknown senders can send any number of messages. If more than `MAX_READ` are arriving, the oldest is
#   dropped, so slow messages do not block others. At most `MAX_AT_ONCE` are verified at the same time.
# * An unknown schedule and a wrong signature get the same response.

MAX_MESSAGE_BYTES = 1024 * 1024
MAX_READ = 64
MAX_AT_ONCE = 4
HOOKS = "hooks"


class Webhooks:
    """The ASGI application below `/hooks`. `open_project` returns the project to start runs in."""

    def __init__(self, open_project: Callable[[], Project]) -> None:
        self._open = open_project
        self._arriving: list[asyncio.Timeout] = []
        self._verifying = asyncio.Semaphore(MAX_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            delivery = await self._take(Request(scope, receive))
            status = 202 if delivery.outcome == "started" else 200
            reply = Response(msgspec.json.encode(delivery), status, media_type="application/json")
        except FanfoldError as error:
            reply = failure(error)
        await reply(scope, receive, send)

    async def _take(self, request: Request) -> WebhookReply:
        segments = segments_of(request.scope) or ()
        if request.method != "POST" or len(segments) != 2:
            raise unsigned()
        limit = asyncio.timeout(BODY_S)
        self._arriving.append(limit)
        if len(self._arriving) > MAX_READ:
            self._arriving.pop(0).reschedule(0)
        try:
            body = await read_stream(request, MAX_MESSAGE_BYTES, limit)
        finally:
            if limit in self._arriving:
                self._arriving.remove(limit)
        headers = {name.lower(): value for name, value in request.headers.items()}

        def start() -> WebhookReply:
            return deliver(self._open(), segments[1], headers, body)

        async with self._verifying:
            return await asyncio.to_thread(start)
