"""What came over HTTP, read strictly: parameters, bodies, what is too large, too slow, or no JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Literal, TypeVar, get_args, get_origin
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from msgspec import Struct, structs
from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from fanfold.errors import AuthorError, FanfoldError, WorldError
from fanfold.text.json_value import JSON, strict

MAX_PARAMETERS = 50
BODY_S = 30.0
"""A body that takes longer than this to arrive is not waited for."""

T = TypeVar("T", bound=Struct)


def segments_of(scope: Scope) -> tuple[str, ...] | None:
    """The parts of the path, each decoded by itself, so that a slash in one is not one between two.

    None for what is no text.
    """
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    try:
        return tuple(unquote_to_bytes(part).decode() for part in raw.split(b"?")[0].split(b"/")[1:])
    except UnicodeDecodeError:
        return None


def read_parameters(kind: type[T], parts: dict[str, str], query: bytes) -> T:
    """Parameters of path and query as a struct; what it does not know, and what stands twice, is refused."""
    given: dict[str, str] = dict(parts)
    try:
        pairs = parse_qsl(
            query.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_PARAMETERS, errors="strict"
        )
    except ValueError as error:
        raise _bad(f"the query cannot be read: {error}") from None
    for name, value in pairs:
        if name in given:
            raise _bad(f"{name[:80]} is given twice", f"$.{name[:80]}")
        given[name] = value
    for name, value in given.items():
        if any(char < " " or char == "\x7f" for char in value):
            raise _bad(f"{name[:80]} holds a control character", f"$.{name[:80]}")
    try:
        read = msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _unfit(error, kind) from None
    for field in structs.fields(kind):
        if field.encode_name in given and getattr(read, field.name) is None:
            name = field.encode_name
            raise _bad(f"{name} is null; what is not wanted is left out", f"$.{name}")
    return read


async def read_bytes(request: Request, most: int) -> bytes:
    """The body of a request, within bounds of size and time."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        message = "the body must be JSON, and say so: Content-Type: application/json"
        raise AuthorError("request.media_type", message)
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > most:
        raise _too_large(most)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise _too_large(most)
    except TimeoutError:
        raise WorldError("request.slow", f"the body did not arrive within {BODY_S:g} s") from None
    except ClientDisconnect:
        raise WorldError("request.slow", "the connection ended before the body did") from None
    return bytes(body)


def read_body(kind: type[T], data: bytes) -> T:
    """A body as a struct; what a log could not hold is refused too."""
    try:
        value = strict(msgspec.json.decode(data), "the body")
        return msgspec.convert(_with_whole_numbers(kind, value), kind)
    except msgspec.ValidationError as error:
        raise _unfit(error, kind) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _bad(f"the body is not JSON: {error}") from None
    except ValueError as error:
        raise _bad(str(error)) from None


def _with_whole_numbers(kind: type[Struct], value: JSON) -> JSON:
    """In JSON, and in JSON Schema, 2.0 is a whole number; where one is wanted it is taken as such."""
    if not isinstance(value, dict):
        return value
    read = dict(value)
    for field in structs.fields(kind):
        given = read.get(field.encode_name)
        if isinstance(given, float) and given.is_integer() and _is_whole(field.type):
            read[field.encode_name] = int(given)
        elif isinstance(given, dict) and isinstance(field.type, type) and issubclass(field.type, Struct):
            read[field.encode_name] = _with_whole_numbers(field.type, given)
    return read


def _is_whole(kind: Any) -> bool:
    return kind is int or any(_is_whole(inner) for inner in get_args(kind))


def _unfit(error: msgspec.ValidationError, kind: type[Struct]) -> FanfoldError:
    words, _, place = str(error).partition(" - at ")
    place = place.strip("`")
    offered = _words_at(kind, place) if words.startswith("Invalid enum value") else []
    more = f"; there are {', '.join(offered)}" if offered else ""
    return _bad(words.replace("`", '"') + more, place)


def _words_at(kind: Any, place: str) -> list[str]:
    """The words that may stand at a place of a document: `$.options.permission`."""
    for name in place.removeprefix("$").split(".")[1:]:
        known = {one.encode_name: one.type for one in structs.fields(kind)} if _is_struct(kind) else {}
        kind = next(
            (one for one in _each_of(known.get(name)) if _is_struct(one) or get_origin(one) is Literal), None
        )
    return [str(word) for word in get_args(kind)] if get_origin(kind) is Literal else []


def _each_of(kind: Any) -> Iterator[Any]:
    """A type, and what it is made of: `Literal["a"]` of `Annotated[Literal["a"], …] | None`."""
    yield kind
    if get_origin(kind) is not Literal:
        for inner in get_args(kind):
            yield from _each_of(inner)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _bad(message: str, place: str = "") -> FanfoldError:
    """`place` is the path of what is wrong in the body, or among the parameters: `$.options.model`."""
    where = f"{place}: {message}" if place else message
    hint = "GET /api/openapi.json says what is expected"
    return AuthorError("request.invalid", where, hint=hint, details={"place": place} if place else {})


def _too_large(most: int) -> FanfoldError:
    return AuthorError("request.too_large", f"a body has at most {most:,} bytes here")
