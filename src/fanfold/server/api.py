"""The API: a request is matched with its route, read, answered by one operation, and given back as JSON.

Nothing that an operation does runs on the event loop. What looks at runs is called by one thread, which
alone reads the kept trees (more threads would only take turns); everything else by threads of its own. An
answer that was made since anything last happened in the project is given again without asking anybody.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fanfold.errors import AuthorError, BugError, FanfoldError, NotFoundError, WorldError
from fanfold.runtime.operations.runs.files.artifacts import OpenedArtifact
from fanfold.server.admission import Visitor
from fanfold.server.desk import Desk
from fanfold.server.downloads import FileReply
from fanfold.server.feed import Feed
from fanfold.server.guard import VISITOR
from fanfold.server.idempotency import Idempotency, KeptReply
from fanfold.server.questions import read_body, read_bytes, read_parameters, segments_of
from fanfold.server.replies import failure
from fanfold.server.routes import MatchedRequest, Route, RouteTable
from fanfold.server.streams import Streams

MAX_ACTING = 16
"""Operations that change something, or do not look at runs, at the same time; further ones wait."""
MAX_KEPT_BYTES = 32 * 1024 * 1024
MAX_KEPT_REPLY_BYTES = 4 * 1024 * 1024
MAX_LATEST = 16

T = TypeVar("T")
_log = logging.getLogger("fanfold.server")


class Api:
    """The ASGI application below `/api`."""

    def __init__(self, desk: Desk, feed: Feed, table: RouteTable, keys: Idempotency) -> None:
        self._desk = desk
        self._feed = feed
        self._table = table
        self._streams = Streams(desk, feed, self._look_at_activity)
        self._looking = ThreadPoolExecutor(1, "fanfold look")
        self._acting = ThreadPoolExecutor(MAX_ACTING, "fanfold act")
        self._idempotency = keys
        self._kept = _KeptReplies()
        self._latest = _LatestReplies()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            reply = await self._answer(request)
        except FanfoldError as error:
            if isinstance(error, BugError):
                _log.error("%s: %s", error.code, error.message)
            reply = failure(error)
            if error.code == "request.method":
                reply.headers["allow"] = str(error.details["allowed"])
        except asyncio.CancelledError:
            if not self._feed.closing.is_set():
                raise
            message = "the server was stopped before this was answered"
            hint = "look whether it was done before you ask again"
            reply = failure(WorldError("server.stopping", message, hint=hint))
        except Exception:  # noqa: BLE001 - the last door before the client
            _log.exception("%s %s failed", scope["method"], scope["path"])
            reply = failure(BugError("internal", "something went wrong here; the server's output says what"))
        await reply(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        asked = self._match(request)
        if asked.route.goes_on:
            parameters = read_parameters(asked.route.asked, asked.parts, asked.query)
            going_on: Response = asked.route.call(streams=self._streams, asked=parameters, request=request)
            return going_on
        if asked.route.gives_file:
            return await self._give(asked)
        if asked.route.body is None:
            return await self._look(asked)
        data = await read_bytes(request, asked.route.body_bytes)
        key = request.headers.get("idempotency-key")
        if key is None:
            return _reply(asked.route, await self._act(asked, data))
        who = asked.visitor.name
        known = self._idempotency.begin(who, key, request.method.encode(), request.url.path.encode(), data)
        if known is not None:
            return Response(known.body, known.status, {"idempotency-replayed": "true"}, "application/json")
        try:
            body = await self._act(asked, data)
        except Exception:
            self._idempotency.failed(who, key)
            raise
        # A cancellation says nothing about what a thread still does: the key stays one that was begun.
        self._idempotency.done(who, key, KeptReply(asked.route.status, body.decode()))
        return _reply(asked.route, body)

    def _match(self, request: Request) -> MatchedRequest:
        segments = segments_of(request.scope)
        found = None if segments is None else self._table.find(request.method, segments)
        if found is None:
            allowed = [] if segments is None else self._table.methods_of(segments)
            if allowed:
                message = f"{request.method} is not for this path"
                raise AuthorError("request.method", message, details={"allowed": ", ".join(allowed)})
            raise NotFoundError(
                "request.not_found", "there is nothing at this path", hint="/api/openapi.json"
            )
        route, parts = found
        visitor: Visitor = request.scope[VISITOR]
        if route.role == "operator":
            visitor.must_be_operator()
        return MatchedRequest(route, parts, request.scope.get("query_string", b""), visitor)

    async def _look(self, asked: MatchedRequest) -> Response:
        route = asked.route
        generation = self._feed.generation()
        key = (route.path, *asked.parts.items(), asked.query)
        body = self._kept.find(key, generation)
        if body is None:
            parameters = read_parameters(route.asked, asked.parts, asked.query)

            def make() -> bytes:
                return _encoded(route, route.call(desk=self._desk, asked=parameters))

            if route.of_runs:
                asked_at = time.monotonic()
                body = await self._in_thread(self._looking, lambda: self._latest.give(key, asked_at, make))
                self._kept.keep(key, generation, body)
            else:
                body = await self._in_thread(self._acting, make)
        return _reply(route, body)

    async def _give(self, asked: MatchedRequest) -> Response:
        """A file: found by the thread that looks at runs, read by others."""
        route = asked.route
        parameters = read_parameters(route.asked, asked.parts, asked.query)
        opened: OpenedArtifact = await self._in_thread(
            self._looking, lambda: route.call(desk=self._desk, asked=parameters)
        )
        try:
            await self._in_thread(self._acting, opened.check)
        except BaseException:
            opened.file.close()
            raise
        about = opened.about
        return FileReply(opened.file, about.name, about.size, partial(self._in_thread, self._acting))

    async def _act(self, asked: MatchedRequest, data: bytes) -> bytes:
        route = asked.route
        assert route.body is not None
        parameters = read_parameters(route.asked, asked.parts, asked.query)
        body = read_body(route.body, data)

        def act() -> bytes:
            done = route.call(desk=self._desk, asked=parameters, body=body)
            return _encoded(route, asyncio.run(done) if inspect.iscoroutine(done) else done)

        try:
            return await self._in_thread(self._acting, act)
        finally:
            self._feed.bump()

    async def _look_at_activity(self, call: Callable[[], T]) -> T:
        """Streams look at runs with the thread that does."""
        return await self._in_thread(self._looking, call)

    async def _in_thread(self, pool: ThreadPoolExecutor, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(pool, call)

    def close(self) -> None:
        """Begin nothing more. What is under way ends by itself."""
        self._looking.shutdown(wait=False, cancel_futures=True)
        self._acting.shutdown(wait=False, cancel_futures=True)


def _encoded(route: Route, made: Any) -> bytes:
    return made.encode() if isinstance(made, str) and route.answer is None else msgspec.json.encode(made)


def _reply(route: Route, body: bytes) -> Response:
    headers = {"cache-control": "no-store"}
    if route.attached:
        headers["content-disposition"] = f'attachment; filename="{route.attached}"'
    return Response(body, route.status, headers, route.media)


class _LatestReplies:
    """Bodies that the looking thread made last. Whoever asked before one was begun is given that one: where
    many ask for the same and the thread has much to do, it does it once.
    """

    def __init__(self) -> None:
        self._made: OrderedDict[tuple[Any, ...], tuple[float, bytes]] = OrderedDict()

    def give(self, key: tuple[Any, ...], asked_at: float, make: Callable[[], bytes]) -> bytes:
        known = self._made.get(key)
        if known is not None and known[0] >= asked_at:
            return known[1]
        began = time.monotonic()
        body = make()
        if len(body) <= MAX_KEPT_REPLY_BYTES:
            self._made[key] = (began, body)
            self._made.move_to_end(key)
        while len(self._made) > MAX_LATEST:
            self._made.popitem(last=False)
        return body


class _KeptReplies:
    """Bodies of this generation, the least used of them forgotten first."""

    def __init__(self) -> None:
        self._generation = -1
        self._bodies: OrderedDict[tuple[Any, ...], bytes] = OrderedDict()
        self._bytes = 0

    def find(self, key: tuple[Any, ...], generation: int) -> bytes | None:
        if generation != self._generation:
            self._generation, self._bytes = generation, 0
            self._bodies.clear()
        body = self._bodies.get(key)
        if body is not None:
            self._bodies.move_to_end(key)
        return body

    def keep(self, key: tuple[Any, ...], generation: int, body: bytes) -> None:
        if generation != self._generation or len(body) > MAX_KEPT_REPLY_BYTES or key in self._bodies:
            return  # it was made from what may have been older already
        self._bodies[key] = body
        self._bytes += len(body)
        while self._bytes > MAX_KEPT_BYTES:
            self._bytes -= len(self._bodies.popitem(last=False)[1])
