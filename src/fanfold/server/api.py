"""The API: a request is matched with its route, read, answered by one operation, and given back as JSON.

Nothing that an operation does runs on the event loop. What looks at runs is called by one thread, which
alone reads the kept trees (more threads would only take turns); everything else by threads of its own. An
answer that was made since anything last happened in the project is sent again without reading anything.
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
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, get_type_hints

import msgspec
from msgspec import Struct, structs
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fanfold.api.approvals import ErrorDocument, RefusedDocument
from fanfold.api.changes import OpenedArtifact
from fanfold.errors import AuthorError, BugError, FanfoldError, NotFoundError, WorldError
from fanfold.server.auth import VISITOR, Principal, Role
from fanfold.server.console_files import FileReply
from fanfold.server.requests import (
    MAX_KEY_CHARS,
    UNUSABLE,
    AppState,
    Idempotency,
    KeptReply,
    failure,
    read_body,
    read_bytes,
    read_parameters,
    segments_of,
)
from fanfold.server.streams import Feed, Streams

# -----------------------------------------------------------------------------------------------------------
# The table of routes: for each one what it is asked with, what it answers, and who may ask.
#
# The same table is what requests are dispatched by and what the OpenAPI document is made from, so the two
# cannot differ. A field of `asked` whose name stands in the path is a part of it, any other is a parameter
# of the query.
#
# A part of a path is one segment: what holds a slash (the path of a step) has it encoded, as `%2F`.

MAX_BODY_BYTES = 4 * 1024 * 1024
JSON_MEDIA = "application/json"

Handler = TypeVar("Handler", bound=Callable[..., Any])
Method: TypeAlias = Literal["GET", "POST", "PUT"]


class NoParameters(Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Nothing(Struct, frozen=True, forbid_unknown_fields=True):
    """For a route that takes no parameters, or no body."""


class Route(Struct, frozen=True, kw_only=True):
    """One thing that can be asked for."""

    method: Method
    path: str
    summary: str
    asked: type[Struct]
    body: type[Struct] | None
    body_bytes: int = MAX_BODY_BYTES
    """At most; a longer one is refused without being read."""
    answer: Any
    """The type of the document; None where `media` is not JSON."""
    media: str
    status: int = 200
    attached: str = ""
    """The name of a file to be kept, for what is not to be shown by a browser from here."""
    role: Role = "viewer"
    of_runs: bool = False
    """Whether it looks at runs and at nothing else; then its answer holds until something happens to one."""
    gives_file: bool = False
    """Whether `handle` opens a file, which is given away in pieces."""
    goes_on: bool = False
    """Whether its answer has no end of its own; then `handle` is given the `Streams`, and the request."""
    handle: Callable[..., Any]
    takes: tuple[str, ...]
    name: str
    """The operation id in the OpenAPI document."""

    @property
    def segments(self) -> tuple[str, ...]:
        return tuple(self.path.split("/")[1:])

    def call(self, **known: Any) -> Any:
        """Call the handler with those arguments that it takes."""
        return self.handle(**{name: known[name] for name in self.takes if name in known})


class Routes(list[Route]):
    """Routes, declared by decorated handlers or as operations of `fanfold.api`.

    The types of a handler are its parameters (`asked`), its body (`body`) and its document. It is called in a
    thread; a coroutine runs in an event loop of its own.
    """

    def look(self, path: str, summary: str, **more: Any) -> Callable[[Handler], Handler]:
        """Declare a route that reads only runs."""
        return self._declare("GET", path, summary, of_runs=True, **more)

    def get(self, path: str, summary: str, **more: Any) -> Callable[[Handler], Handler]:
        """Declare a route that reads something else, or returns something other than a document."""
        return self._declare("GET", path, summary, **more)

    def change(
        self, method: Method, path: str, summary: str, role: Role = "operator", **more: Any
    ) -> Callable[[Handler], Handler]:
        """Declare a route that changes something, or that needs a body."""
        return self._declare(method, path, summary, role=role, **more)

    def _declare(self, method: Method, path: str, summary: str, **more: Any) -> Callable[[Handler], Handler]:
        def declare(handle: Handler) -> Handler:
            self._add(handle.__name__, method, path, summary, handle, get_type_hints(handle), **more)
            return handle

        return declare

    def operation(
        self,
        name: str,
        method: Method,
        path: str,
        summary: str,
        call: Callable[..., Any],
        asked: type[Struct] = NoParameters,
        body: type[Struct] = Nothing,
        **more: Any,
    ) -> None:
        """Declare a route that calls an operation with the fields of its parameters and of its body."""
        fields = [*structs.fields(asked), *structs.fields(body)]
        inspect.signature(call).bind(None, **{field.name: None for field in fields})  # raises unless it fits
        reads_history = more.get("of_runs") or more.get("gives_file")

        def handle(desk: AppState, asked: Struct, body: Struct | None = None) -> Any:
            given = structs.asdict(asked) | ({} if body is None else structs.asdict(body))
            return call(desk.history if reads_history else desk.fresh(), **given)

        types = {"asked": asked, "body": body, "return": get_type_hints(call)["return"]}
        self._add(name, method, path, summary, handle, types, **more)

    def _add(
        self,
        name: str,
        method: Method,
        path: str,
        summary: str,
        handle: Callable[..., Any],
        types: dict[str, Any],
        media: str = JSON_MEDIA,
        **more: Any,
    ) -> None:
        route = Route(
            name=name,
            method=method,
            path=path,
            summary=summary,
            asked=types.get("asked", NoParameters),
            body=None if method == "GET" else types.get("body", Nothing),
            answer=types["return"] if media == JSON_MEDIA else None,
            media=media,
            handle=handle,
            takes=tuple(inspect.signature(handle).parameters),
            **more,
        )
        self.append(route)


class MatchedRequest(NamedTuple):
    """A request with its route and its parameters."""

    route: Route
    key: tuple[Any, ...]
    """The same for requests that ask for the same."""
    parameters: Struct
    visitor: Principal
    traceparent: str
    """The W3C trace context of the sender, as it came."""


def find_route(
    routes: list[Route], method: str, segments: tuple[str, ...] | None
) -> tuple[Route, dict[str, str]]:
    """Return the route of a request and the parts of its path by name; a word comes before a parameter."""
    fitting = [] if segments is None else [one for one in routes if _fits(one.segments, segments)]
    if segments is None or not fitting:
        raise NotFoundError("request.not_found", "there is nothing at this path", hint="/api/openapi.json")
    usable = [one for one in fitting if one.method == method]
    if not usable:
        allowed = ", ".join(sorted({one.method for one in fitting}))
        raise AuthorError("request.method", f"{method} is not for this path", details={"allowed": allowed})
    route = max(usable, key=lambda one: [not word.startswith("{") for word in one.segments])
    pairs = zip(route.segments, segments, strict=True)
    return route, {word[1:-1]: part for word, part in pairs if word.startswith("{")}


def _fits(words: tuple[str, ...], segments: tuple[str, ...]) -> bool:
    return len(words) == len(segments) and all(
        (word.startswith("{") and part) or word == part for word, part in zip(words, segments, strict=True)
    )


# -----------------------------------------------------------------------------------------------------------
# The OpenAPI document of a table of routes, made from the structs that they name

ERRORS = {
    "400": "What was sent cannot be read, or means nothing",
    "401": "No token, or none that counts",
    "403": "The token, the page or the recipe may not do this",
    "404": "There is no such thing",
    "405": "Not for this path",
    "408": "The body did not arrive",
    "409": "Things are not as they would have to be",
    "413": "Too large",
    "415": "Not JSON",
    "421": "Another host was meant",
    "422": "A recipe, or a key, cannot be used",
    "500": "A fault of the server",
    "503": "Too many streams, or the server was stopped",
}
_KEY = {"type": "string", "minLength": 1, "maxLength": MAX_KEY_CHARS, "pattern": "^[!-~]+$"}


def describe(routes: list[Route], version: str) -> dict[str, Any]:
    """Return the OpenAPI document."""
    types = [ErrorDocument, RefusedDocument, *(one.answer for one in routes if one.answer is not None)]
    types += [one.body for one in routes if one.body is not None]
    types += [one.asked for one in routes]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    known = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        properties = components[route.asked.__name__]["properties"]
        operation = _operation(route, known, properties)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    for kind in {one.asked for one in routes}:
        components.pop(kind.__name__, None)  # parameters, not documents
    token = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Fanfold", "version": version},
        "security": [{"token": []}],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": token},
    }


def _operation(route: Route, known: dict[Any, Any], properties: dict[str, Any]) -> dict[str, Any]:
    parameters = []
    for field in structs.fields(route.asked):
        in_path = "{" + field.encode_name + "}" in route.segments
        schema = dict(properties[field.encode_name])
        described = schema.pop("description", None)
        if "anyOf" in schema:  # an optional parameter is omitted, not null
            choices = [one for one in schema["anyOf"] if one != {"type": "null"}]
            schema = choices[0] if len(choices) == 1 else {**schema, "anyOf": choices}
        parameter = {
            "name": field.encode_name,
            "in": "path" if in_path else "query",
            "required": in_path or field.required,
            "schema": schema,
        }
        parameters.append({**parameter, "description": described} if described else parameter)
    schema = {"type": "string"} if route.answer is None else known[route.answer]
    responses = {str(route.status): {"description": "Done", "content": {route.media: {"schema": schema}}}}
    for status, words in ERRORS.items():
        schema = known[RefusedDocument if status == str(UNUSABLE) else ErrorDocument]
        responses[status] = {"description": words, "content": {JSON_MEDIA: {"schema": schema}}}
    operation = {
        "operationId": route.name,
        "summary": route.summary,
        "parameters": parameters,
        "responses": responses,
    }
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": {JSON_MEDIA: {"schema": known[route.body]}}}
        header = {"name": "Idempotency-Key", "in": "header", "required": False, "schema": _KEY}
        parameters.append(header)
    return operation


# -----------------------------------------------------------------------------------------------------------
# The application

MAX_ACTING = 16
"""Operations that change something, or do not look at runs, at the same time; further ones wait."""
MAX_KEPT_BYTES = 32 * 1024 * 1024
MAX_KEPT_REPLY_BYTES = 4 * 1024 * 1024
MAX_LATEST = 16

T = TypeVar("T")
_log = logging.getLogger("fanfold.server")


class Api:
    """The ASGI application below `/api`."""

    def __init__(self, desk: AppState, feed: Feed, routes: list[Route], keys: Idempotency) -> None:
        self._desk = desk
        self._feed = feed
        self._routes = routes
        self._looking = ThreadPoolExecutor(1, "fanfold look")
        self._acting = ThreadPoolExecutor(MAX_ACTING, "fanfold act")
        self._streams = Streams(desk, feed, partial(self._in_thread, self._looking))
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
            stream: Response = asked.route.call(
                streams=self._streams, asked=asked.parameters, request=request
            )
            return stream
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
        route, parts = find_route(self._routes, request.method, segments_of(request.scope))
        visitor: Principal = request.scope[VISITOR]
        if route.role == "operator":
            visitor.must_be_operator()
        query, trace = request.scope.get("query_string", b""), request.headers.get("traceparent", "")
        parameters = read_parameters(route.asked, parts, query)
        return MatchedRequest(route, (route.path, *parts.items(), query), parameters, visitor, trace)

    async def _look(self, asked: MatchedRequest) -> Response:
        route, key = asked.route, asked.key
        generation = self._feed.generation()
        body = self._kept.find(key, generation)
        if body is None:

            def make() -> bytes:
                return _encoded(route, route.call(desk=self._desk, asked=asked.parameters))

            if route.of_runs:
                asked_at = time.monotonic()
                body = await self._in_thread(self._looking, lambda: self._latest.give(key, asked_at, make))
                self._kept.keep(key, generation, body)
            else:
                body = await self._in_thread(self._acting, make)
        return _reply(route, body)

    async def _give(self, asked: MatchedRequest) -> Response:
        """A file: found by the thread that looks at runs, read by others."""
        opened: OpenedArtifact = await self._in_thread(
            self._looking, lambda: asked.route.call(desk=self._desk, asked=asked.parameters)
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
        body, known = read_body(route.body, data), {"desk": self._desk, "traceparent": asked.traceparent}

        def act() -> bytes:
            done = route.call(**known, asked=asked.parameters, body=body)
            return _encoded(route, asyncio.run(done) if inspect.iscoroutine(done) else done)

        try:
            return await self._in_thread(self._acting, act)
        finally:
            self._feed.bump()

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
    """Bodies that the looking thread made last. A request from before one was begun gets that one: where
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
