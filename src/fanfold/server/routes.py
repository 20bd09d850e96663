"""The table of routes: for each one what it is asked with, what it answers, and who may ask.

The same table is what requests are dispatched by and what the OpenAPI document is made from, so the two
cannot differ. A field of `asked` whose name stands in the path is a part of it, any other is a parameter of
the query.

A part of a path is one segment: what holds a slash (the path of a step) has it encoded, as `%2F`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from msgspec import Struct, structs
from starlette.requests import Request
from starlette.responses import Response

from fanfold.runtime.operations.runs.files.artifacts import OpenedArtifact
from fanfold.server.admission import Role, Visitor
from fanfold.server.desk import Desk
from fanfold.server.downloads import BYTES

MAX_BODY_BYTES = 4 * 1024 * 1024

A = TypeVar("A", bound=Struct)
B = TypeVar("B", bound=Struct)
D = TypeVar("D")
S = TypeVar("S")

Method: TypeAlias = Literal["GET", "POST", "PUT"]


class Nothing(Struct, frozen=True, forbid_unknown_fields=True):
    """For a route that takes no parameters, or no body."""


class Route(Struct, frozen=True, kw_only=True):
    """One thing that can be asked for. `handle` is called in a thread, a coroutine in a loop of its own."""

    method: Method
    path: str
    summary: str
    asked: type[Struct]
    body: type[Struct] | None = None
    body_bytes: int = MAX_BODY_BYTES
    """At most; a longer one is refused without being read."""
    answer: Any = None
    """The type of the document; None where `media` is not JSON."""
    media: str = "application/json"
    status: int = 200
    attached: str = ""
    """The name of a file to be kept, for what is not to be shown by a browser from here."""
    role: Role
    of_runs: bool = False
    """Whether it looks at runs and at nothing else; then its answer holds until something happens to one."""
    gives_file: bool = False
    """Whether `handle` opens a file, which is given away in pieces."""
    goes_on: bool = False
    """Whether its answer has no end of its own; then `handle` is given the `Streams`, and the request."""
    handle: Callable[..., Any]

    @property
    def segments(self) -> tuple[str, ...]:
        return tuple(self.path.split("/")[1:])

    @property
    def name(self) -> str:
        """What a generated client would call it."""
        return getattr(self.handle, "__name__", self.path)


def look(path: str, summary: str, asked: type[A], answer: type[D], handle: Callable[[Desk, A], D]) -> Route:
    """A route that looks at runs, and at nothing else."""
    return Route(
        method="GET",
        path=path,
        summary=summary,
        asked=asked,
        answer=answer,
        role="viewer",
        of_runs=True,
        handle=handle,
    )


def get(path: str, summary: str, asked: type[A], answer: type[D], handle: Callable[[Desk, A], D]) -> Route:
    """A route that looks at something else."""
    return structs.replace(look(path, summary, asked, answer, handle), of_runs=False)


def change(
    method: Method,
    path: str,
    summary: str,
    types: tuple[type[A], type[B], type[D]],
    handle: Callable[[Desk, A, B], D] | Callable[[Desk, A, B], Coroutine[None, None, D]],
    *,
    status: int = 200,
    role: Role = "operator",
) -> Route:
    """A route that changes something, or that needs a body. `types` are those of parameters, body, answer."""
    asked, body, answer = types
    return Route(
        method=method,
        path=path,
        summary=summary,
        asked=asked,
        body=body,
        answer=answer,
        status=status,
        role=role,
        handle=handle,
    )


def text(path: str, summary: str, asked: type[A], media: str, handle: Callable[[Desk, A], str]) -> Route:
    """A route that looks at runs and gives a text of some other kind than JSON."""
    return Route(
        method="GET",
        path=path,
        summary=summary,
        asked=asked,
        media=media,
        role="viewer",
        of_runs=True,
        handle=handle,
    )


def file(path: str, summary: str, asked: type[A], handle: Callable[[Desk, A], OpenedArtifact]) -> Route:
    """A route that gives a file away, whatever is in it."""
    return Route(
        method="GET",
        path=path,
        summary=summary,
        asked=asked,
        media=BYTES,
        role="viewer",
        gives_file=True,
        handle=handle,
    )


def stream(path: str, summary: str, asked: type[A], handle: Callable[[S, A, Request], Response]) -> Route:
    """A route whose answer goes on and on."""
    return Route(
        method="GET",
        path=path,
        summary=summary,
        asked=asked,
        media="text/event-stream",
        role="viewer",
        goes_on=True,
        handle=handle,
    )


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
