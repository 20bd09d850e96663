"""The API: finds the route of a request, reads its parameters, calls one operation, and sends its result.

No operation runs on the event loop. One thread alone executes operations that read runs: it keeps their
trees in memory, and more threads would only wait for each other. Other threads execute everything else. A
response is reused without reading anything until the next event of the project.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar, get_type_hints

import msgspec
from msgspec import NODEFAULT, Struct, structs
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fanfold.api.approvals import ErrorDocument, RefusedDocument
from fanfold.api.changes import OpenedArtifact
from fanfold.errors import AuthorError, BugError, FanfoldError, NotFoundError, WorldError
from fanfold.server.auth import PRINCIPAL, Principal, Role
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
# The table of routes: parameters, result and required role of each.
#
# Requests are dispatched by this table, and the OpenAPI document is made from it, so the two cannot differ.
# The parameters are the arguments of the function that answers: one whose name is in the path is a part of
# the path; any other is in the query.
#
# A part of a path is one segment. A slash inside it (in the path of a step) is encoded as `%2F`.

MAX_BODY_BYTES = 4 * 1024 * 1024
JSON_MEDIA = "application/json"

Handler = TypeVar("Handler", bound=Callable[..., Any])
Method: TypeAlias = Literal["GET", "POST", "PUT"]


class Nothing(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a route that takes none."""


class Route(Struct, frozen=True, kw_only=True):
    """One operation of the API."""

    method: Method
    path: str
    summary: str
    parameters: type[Struct]
    body: type[Struct] | None
    body_bytes: int = MAX_BODY_BYTES
    """The maximum size of the body. A larger one is refused without being read."""
    answer: Any
    """The type of the returned document; None if `media` is not JSON."""
    media: str
    status: int = 200
    attached: str = ""
    """If set, the file name under which a browser saves the response instead of showing it."""
    role: Role = "viewer"
    of_runs: bool = False
    """Whether it reads only runs. Its response is then valid until the next event of a run."""
    gives_file: bool = False
    """Whether `handle` opens a file, which is sent in pieces."""
    is_stream: bool = False
    """Whether its response is a stream of events. `handle` then gets the `Streams` and the request."""
    handle: Callable[..., Any]
    takes: frozenset[str]
    """Those of `GIVEN` that `handle` takes."""
    name: str
    """The operation id in the OpenAPI document."""

    @property
    def segments(self) -> tuple[str, ...]:
        return tuple(self.path.split("/")[1:])

    def call(self, parameters: Struct, **given: Any) -> Any:
        """Call the handler with the parameters, and with those of the other arguments that it takes."""
        return self.handle(
            **structs.asdict(parameters), **{name: one for name, one in given.items() if name in self.takes}
        )


GIVEN = frozenset({"state", "streams", "request", "body", "traceparent"})
"""Arguments of a handler that are not parameters of its route."""


class Routes(list[Route]):
    """Routes, declared by decorated handlers or as operations of `fanfold.api`.

    The annotations of a handler declare its parameters, its body (`body`) and its result. It is called in a
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
            types = get_type_hints(handle, include_extras=True)
            arguments = inspect.signature(handle).parameters
            fields = [
                (name, types[name], NODEFAULT if one.default is one.empty else one.default)
                for name, one in arguments.items()
                if name not in GIVEN
            ]
            self._add(handle.__name__, method, path, summary, handle, fields, types, **more)
            return handle

        return declare

    def operation(
        self,
        name: str,
        method: Method,
        path: str,
        summary: str,
        call: Callable[..., Any],
        kinds: Mapping[str, Any],
        body: type[Struct] = Nothing,
        **more: Any,
    ) -> None:
        """Declare a route that calls an operation with its parameters and the fields of its body.

        `kinds` has the type of each parameter. A name such as `q=words` is that of the route and that of the
        operation.
        """
        arguments = inspect.signature(call)
        fields: list[tuple[str, Any, Any]] = []
        for spelled, kind in kinds.items():
            listed, _, own = spelled.partition("=")
            usual = arguments.parameters[own or listed].default
            default = NODEFAULT if usual is inspect.Parameter.empty else usual
            kind = kind | None if default is None else kind  # noqa: PLW2901 - an optional parameter
            fields.append((own or listed, kind, msgspec.field(default=default, name=listed)))
        names = [name for name, _, _ in fields] + [one.name for one in structs.fields(body)]
        arguments.bind(None, **dict.fromkeys(names))  # raises unless it fits
        reads_history = more.get("of_runs") or more.get("gives_file")

        def handle(state: AppState, body: Struct | None = None, **given: Any) -> Any:
            more = {} if body is None else structs.asdict(body)
            return call(state.history if reads_history else state.fresh(), **given, **more)

        types = {"body": body, "return": get_type_hints(call)["return"]}
        self._add(name, method, path, summary, handle, fields, types, **more)

    def _add(
        self,
        name: str,
        method: Method,
        path: str,
        summary: str,
        handle: Callable[..., Any],
        parameters: list[tuple[str, Any, Any]],
        types: dict[str, Any],
        media: str = JSON_MEDIA,
        **more: Any,
    ) -> None:
        route = Route(
            name=name,
            method=method,
            path=path,
            summary=summary,
            parameters=msgspec.defstruct(
                f"{name}_parameters", parameters, frozen=True, forbid_unknown_fields=True, kw_only=True
            ),
            body=None if method == "GET" else types.get("body", Nothing),
            answer=types["return"] if media == JSON_MEDIA else None,
            media=media,
            handle=handle,
            takes=GIVEN.intersection(inspect.signature(handle).parameters),
            **more,
        )
        self.append(route)


def find_route(
    routes: list[Route], method: str, segments: tuple[str, ...] | None
) -> tuple[Route, dict[str, str]]:
    """Return the route of a request and the parts of its path by name. Fixed words precede parameters."""
    fitting = [] if segments is None else [one for one in routes if _fits(one.segments, segments)]
    if segments is None or not fitting:
        raise NotFoundError("request.not_found", "this path does not exist", hint="/api/openapi.json")
    usable = [one for one in fitting if one.method == method]
    if not usable:
        allowed = ", ".join(sorted({one.method for one in fitting}))
        raise AuthorError(
            "request.method", f"this path does not support {method}", details={"allowed": allowed}
        )
    route = max(usable, key=lambda one: [not word.startswith("{") for word in one.segments])
    pairs = zip(route.segments, segments, strict=True)
    return route, {word[1:-1]: part for word, part in pairs if word.startswith("{")}


def _fits(words: tuple[str, ...], segments: tuple[str, ...]) -> bool:
    return len(words) == len(segments) and all(
        (word.startswith("{") and part) or word == part for word, part in zip(words, segments, strict=True)
    )


# -----------------------------------------------------------------------------------------------------------
# The OpenAPI document, made from the structs in the table of routes

ERRORS = {
    "400": "The request is malformed or invalid",
    "401": "The token is missing or invalid",
    "403": "The token, the page or the recipe has no permission for this",
    "404": "Not found",
    "405": "The path does not support this method",
    "408": "The body did not arrive in time",
    "409": "The current state does not allow this",
    "413": "Too large",
    "415": "Not JSON",
    "421": "The Host header names another server",
    "422": "The recipe or the key cannot be used",
    "500": "Internal error",
    "503": "Too many streams, or the server is stopping",
}
_KEY = {"type": "string", "minLength": 1, "maxLength": MAX_KEY_CHARS, "pattern": "^[!-~]+$"}


def describe(routes: list[Route], version: str) -> dict[str, Any]:
    """Return the OpenAPI document."""
    types = [ErrorDocument, RefusedDocument, *(one.answer for one in routes if one.answer is not None)]
    types += [one.body for one in routes if one.body is not None]
    types += [one.parameters for one in routes]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    known = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        properties = components[route.parameters.__name__]["properties"]
        operation = _operation(route, known, properties)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    for kind in {one.parameters for one in routes}:
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
    for field in structs.fields(route.parameters):
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
"""Concurrent operations that change something or read more than runs; others wait."""
MAX_KEPT_BYTES = 32 * 1024 * 1024
MAX_KEPT_REPLY_BYTES = 4 * 1024 * 1024

T = TypeVar("T")
_log = logging.getLogger("fanfold.server")


class Api:
    """The ASGI application below `/api`."""

    def __init__(self, state: AppState, feed: Feed, routes: list[Route], keys: Idempotency) -> None:
        self._state = state
        self._feed = feed
        self._routes = routes
        self._reading = ThreadPoolExecutor(1, "fanfold look")
        self._acting = ThreadPoolExecutor(MAX_ACTING, "fanfold act")
        self._streams = Streams(state, feed, partial(self._in_thread, self._reading))
        self._idempotency = keys
        self._kept = _KeptReplies()
        self._queued: dict[tuple[Any, ...], asyncio.Future[bytes]] = {}
        """Calls for the thread that reads runs that have not begun: equal requests wait for the same one."""

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
            message = "the server stopped before it answered this request"
            hint = "check whether it was executed before you send it again"
            reply = failure(WorldError("server.stopping", message, hint=hint))
        except Exception:  # noqa: BLE001 - no exception reaches the client
            _log.exception("%s %s failed", scope["method"], scope["path"])
            reply = failure(
                BugError("internal", "internal error; the output of the server contains the details")
            )
        await reply(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        route, parts = find_route(self._routes, request.method, segments_of(request.scope))
        principal: Principal = request.scope[PRINCIPAL]
        if route.role == "operator":
            principal.must_be_operator()
        query, trace = request.scope.get("query_string", b""), request.headers.get("traceparent", "")
        parameters = read_parameters(route.parameters, parts, query)
        if route.is_stream:
            stream: Response = route.call(parameters, streams=self._streams, request=request)
            return stream
        if route.gives_file:
            # Send a file. The thread that reads runs opens it, other threads read it.
            opened: OpenedArtifact = await self._in_thread(
                self._reading, lambda: route.call(parameters, state=self._state)
            )
            try:
                await self._in_thread(self._acting, opened.check)
            except BaseException:
                opened.file.close()
                raise
            about = opened.about
            return FileReply(opened.file, about.name, about.size, partial(self._in_thread, self._acting))
        if route.body is None:
            return await self._look(route, (route.path, *parts.items(), query), parameters)
        data = await read_bytes(request, route.body_bytes)
        key = request.headers.get("idempotency-key")
        if key is None:
            return _reply(route, await self._act(route, parameters, data, trace))
        who = principal.name
        known = self._idempotency.begin(who, key, request.method.encode(), request.url.path.encode(), data)
        if known is not None:
            return Response(known.body, known.status, {"idempotency-replayed": "true"}, "application/json")
        try:
            body = await self._act(route, parameters, data, trace)
        except Exception:
            self._idempotency.failed(who, key)
            raise
        # After a cancellation the thread may still be working, so the key remains in progress.
        self._idempotency.done(who, key, KeptReply(route.status, body.decode()))
        return _reply(route, body)

    async def _look(self, route: Route, key: tuple[Any, ...], parameters: Struct) -> Response:
        """Answer from a kept reply, or call the route. Requests with an equal `key` have one answer."""
        generation = self._feed.generation()
        body = self._kept.find(key, generation)
        if body is None:

            def make() -> bytes:
                self._queued.pop(key, None)  # a request from now on may be about newer events
                return _encoded(route, route.call(parameters, state=self._state))

            if route.of_runs:
                waiting = self._queued.get(key)  # the other thread may remove it at any moment
                if waiting is None:
                    waiting = self._queued[key] = asyncio.ensure_future(self._in_thread(self._reading, make))
                body = await asyncio.shield(waiting)
                self._kept.keep(key, generation, body)
            else:
                body = await self._in_thread(self._acting, make)
        return _reply(route, body)

    async def _act(self, route: Route, parameters: Struct, data: bytes, trace: str) -> bytes:
        assert route.body is not None
        body = read_body(route.body, data)

        def act() -> bytes:
            done = route.call(parameters, state=self._state, body=body, traceparent=trace)
            return _encoded(route, asyncio.run(done) if inspect.iscoroutine(done) else done)

        try:
            return await self._in_thread(self._acting, act)
        finally:
            self._feed.bump()

    async def _in_thread(self, pool: ThreadPoolExecutor, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(pool, call)

    def close(self) -> None:
        """Start no further operation. Running ones finish by themselves."""
        self._reading.shutdown(wait=False, cancel_futures=True)
        self._acting.shutdown(wait=False, cancel_futures=True)
        self._streams.close()


def _encoded(route: Route, made: Any) -> bytes:
    return made.encode() if isinstance(made, str) and route.answer is None else msgspec.json.encode(made)


def _reply(route: Route, body: bytes) -> Response:
    headers = {"cache-control": "no-store"}
    if route.attached:
        headers["content-disposition"] = f'attachment; filename="{route.attached}"'
    return Response(body, route.status, headers, route.media)


class _KeptReplies:
    """Bodies of the current generation; the least recently used are dropped first."""

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
            return  # it may have been made from older events
        self._bodies[key] = body
        self._bytes += len(body)
        while self._bytes > MAX_KEPT_BYTES:
            self._bytes -= len(self._bodies.popitem(last=False)[1])
