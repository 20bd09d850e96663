"""The table of routes: for each one what it is asked with, what it answers, and who may ask.

The same table is what requests are dispatched by and what the OpenAPI document is made from, so the two
cannot differ. A field of `asked` whose name stands in the path is a part of it, any other is a parameter of
the query.

A part of a path is one segment: what holds a slash (the path of a step) has it encoded, as `%2F`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, get_type_hints

from msgspec import Struct

from fanfold.server.admission import Role, Visitor

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

    @property
    def segments(self) -> tuple[str, ...]:
        return tuple(self.path.split("/")[1:])

    @property
    def name(self) -> str:
        """What a generated client would call it."""
        return getattr(self.handle, "__name__", self.path)

    def call(self, **known: Any) -> Any:
        """What the handler gives, called with what it takes of this."""
        return self.handle(**{name: known[name] for name in self.takes})


class Routes(list[Route]):
    """Routes by their handlers, each under a decorator that says where it is asked for, and what kind it is.

    What a handler takes and gives is read from its signature: `asked` are the parameters, `body` is the
    body. It is called in a thread, a coroutine in a loop of its own.
    """

    def look(self, path: str, summary: str, **more: Any) -> Callable[[Handler], Handler]:
        """One that looks at runs, and at nothing else."""
        return self._add("GET", path, summary, of_runs=True, **more)

    def get(self, path: str, summary: str, **more: Any) -> Callable[[Handler], Handler]:
        """One that looks at something else, or gives something else than a document."""
        return self._add("GET", path, summary, **more)

    def change(
        self, method: Method, path: str, summary: str, role: Role = "operator", **more: Any
    ) -> Callable[[Handler], Handler]:
        """One that changes something, or that needs a body."""
        return self._add(method, path, summary, role=role, **more)

    def _add(
        self, method: Method, path: str, summary: str, media: str = JSON_MEDIA, **more: Any
    ) -> Callable[[Handler], Handler]:
        def declare(handle: Handler) -> Handler:
            types = get_type_hints(handle)
            route = Route(
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
            return handle

        return declare


class MatchedRequest(NamedTuple):
    """One request, matched."""

    route: Route
    parts: dict[str, str]
    query: bytes
    visitor: Visitor


class RouteTable:
    """Finds the route of a request: by its segments, a word before a parameter."""

    def __init__(self, routes: list[Route]) -> None:
        self.routes = routes

    def methods_of(self, segments: tuple[str, ...]) -> list[str]:
        """The methods that a path has; empty when there is no such path."""
        return sorted({route.method for route in self.routes if _fits(route.segments, segments)})

    def find(self, method: str, segments: tuple[str, ...]) -> tuple[Route, dict[str, str]] | None:
        """The route, and the parts of the path by name."""
        fitting = [one for one in self.routes if one.method == method and _fits(one.segments, segments)]
        if not fitting:
            return None
        route = max(fitting, key=lambda one: [not _is_name(word) for word in one.segments])
        pairs = zip(route.segments, segments, strict=True)
        return route, {word[1:-1]: part for word, part in pairs if _is_name(word)}


def _is_name(word: str) -> bool:
    return word.startswith("{")


def _fits(words: tuple[str, ...], segments: tuple[str, ...]) -> bool:
    return len(words) == len(segments) and all(
        (_is_name(word) and part) or word == part for word, part in zip(words, segments, strict=True)
    )
