"""Requests and responses of HTTP: strict reading of parameters and bodies, errors, and repeated requests."""

from __future__ import annotations

import asyncio
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from msgspec import Struct, structs
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Scope

from fanfold.api.approvals import error_document, refused_document
from fanfold.api.project import Project
from fanfold.api.system import Examination
from fanfold.errors import (
    EXIT_BUDGET,
    EXIT_NOT_FOUND,
    EXIT_PERMISSION,
    AuthorError,
    FanfoldError,
    NotFoundError,
    WorldError,
)
from fanfold.language.diagnostics import FileRefused
from fanfold.language.json_text import JSON, strict
from fanfold.project_files import write_whole
from fanfold.store.protocol import LeaseHeld

MAX_PARAMETERS = 50
BODY_S = 30.0
"""The maximum time for a body to arrive."""

T = TypeVar("T", bound=Struct)


def segments_of(scope: Scope) -> tuple[str, ...] | None:
    """Return the segments of the path, or None if they are not text.

    Each segment is decoded separately, so an encoded slash does not separate segments.
    """
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    try:
        return tuple(unquote_to_bytes(part).decode() for part in raw.split(b"?")[0].split(b"/")[1:])
    except UnicodeDecodeError:
        return None


def read_parameters(kind: type[T], parts: dict[str, str], query: bytes) -> T:
    """Return the parameters of path and query as a struct; unknown and repeated ones are refused."""
    given = dict(parts)
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
            raise _bad(f"{name[:80]} contains a control character", f"$.{name[:80]}")
    try:
        read = msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _unfit(error, kind) from None
    for field in structs.fields(kind):
        if field.encode_name in given and getattr(read, field.name) is None:
            name = field.encode_name
            raise _bad(f"{name} is null; omit optional parameters", f"$.{name}")
    return read


async def read_bytes(request: Request, most: int) -> bytes:
    """Return the body of a request, within limits of size and time."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        message = "the body must be JSON with the header Content-Type: application/json"
        raise AuthorError("request.media_type", message)
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > most:
        raise _too_large(most)
    return await read_stream(request, most, asyncio.timeout(BODY_S))


async def read_stream(request: Request, most: int, limit: asyncio.Timeout) -> bytes:
    """Return the body of a request with any content type, within limits of size and time."""
    body = bytearray()
    try:
        async with limit:
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise _too_large(most)
    except TimeoutError:
        raise WorldError("request.slow", f"the body did not arrive within {BODY_S:g} s") from None
    except ClientDisconnect:
        raise WorldError("request.slow", "the connection ended before the whole body arrived") from None
    return bytes(body)


def read_body(kind: type[T], data: bytes) -> T:
    """Return a body as a struct; refuse values that a log cannot store."""
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
    """Convert whole floats to int for integer fields: in JSON Schema, 2.0 is an integer."""
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
    """Return the allowed words at a place of a document, such as `$.options.permission`."""
    for name in place.removeprefix("$").split(".")[1:]:
        known = {one.encode_name: one.type for one in structs.fields(kind)} if _is_struct(kind) else {}
        kind = next(
            (one for one in _each_of(known.get(name)) if _is_struct(one) or get_origin(one) is Literal), None
        )
    return [str(word) for word in get_args(kind)] if get_origin(kind) is Literal else []


def _each_of(kind: Any) -> Iterator[Any]:
    """Yield a type and its parts: `Literal["a"]` of `Annotated[Literal["a"], …] | None`."""
    yield kind
    if get_origin(kind) is not Literal:
        for inner in get_args(kind):
            yield from _each_of(inner)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _bad(message: str, place: str = "") -> FanfoldError:
    """Return the error for an invalid value. `place` is its path, such as `$.options.model`."""
    where = f"{place}: {message}" if place else message
    hint = "GET /api/openapi.json describes every request"
    return AuthorError("request.invalid", where, hint=hint, details={"place": place} if place else {})


def _too_large(most: int) -> AuthorError:
    return AuthorError("request.too_large", f"the body is larger than {most:,} bytes")


# -----------------------------------------------------------------------------------------------------------
# Responses: the status and document of errors, and the headers of every response.

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
    " worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
)
"""The headers of every response."""

_CONFLICTS = frozenset(
    """
    approval.changed permission.changed approval.closed approval.none approval.not_open approval.which
    archive.known changes.changed_since idempotency.in_progress idempotency.unknown recipe.changed
    run.busy run.ended run.not_over run.nothing_failed run.open workspace.conflict
    """.split()
)
"""Codes of valid requests that the current state does not allow."""
UNUSABLE = 422
"""The status of well-formed but unusable content: an invalid recipe, or the key of another request."""
_STATUSES = {
    "request.forbidden": 403,
    "request.method": 405,
    "request.slow": 408,
    "request.too_large": 413,
    "schedule.capped": 429,
    "request.media_type": 415,
    "request.host": 421,
    "request.unauthorized": 401,
    "server.busy": 503,
    "server.stopping": 503,
}


def status_of(error: FanfoldError) -> int:
    """Return the HTTP status of an error."""
    if error.code in _STATUSES:
        return _STATUSES[error.code]
    if isinstance(error, NotFoundError) or error.exit_status == EXIT_NOT_FOUND:
        return 404
    if isinstance(error, LeaseHeld) or error.code in _CONFLICTS or error.exit_status == EXIT_BUDGET:
        return 409
    if error.exit_status == EXIT_PERMISSION:
        return 403
    if isinstance(error, AuthorError):
        is_text = isinstance(error, FileRefused) or error.code.startswith("recipe.")
        return UNUSABLE if is_text or error.code.startswith("idempotency.") else 400
    return 500


def failure(error: FanfoldError, headers: dict[str, str] | None = None) -> Response:
    """Return the response for an error, with the same document as on every surface."""
    status = status_of(error)
    document = refused_document(error) if status == UNUSABLE else error_document(error)
    # Never cached: the next response may differ.
    sent = {"cache-control": "no-store", **(headers or {})}
    return Response(msgspec.json.encode(document), status, sent, "application/json")


# -----------------------------------------------------------------------------------------------------------
# Repeated requests: the same `Idempotency-Key` returns the response of the first request.
#
# Rules
# * A key belongs to its sender and its request. With another body it is refused, and also while the first
#   request is still being answered.
# * Only successful responses are stored; after an error the request can be repeated.
# * A key is stored before the request is executed, so it is valid for the next server too. If the server dies
#   in between, the outcome is unknown: a repeated request reports this and is not executed.
# * Keys expire after a day, and the oldest are dropped if there are too many, except those in progress.

KEPT_S = 24 * 3600
MAX_KEYS = 1_000
MAX_KEY_CHARS = 200
MAX_KEPT_BYTES = 1024 * 1024
MAX_FILE_BYTES = 16 * 1024 * 1024
"""A larger file is rewritten with the keys that are still valid."""


class KeptReply(Struct, frozen=True):
    status: int
    body: str


class KeptRequest(Struct, frozen=True):
    """A line of the file; the last line of a key is valid. Without a reply, the request is in progress."""

    who: str
    key: str
    request: str
    until: float
    reply: KeptReply | None = None
    is_forgotten: bool = False


class Idempotency:
    """The known keys, also in `file`, which survives a restart of the server."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: OrderedDict[tuple[str, str], KeptRequest] = OrderedDict()
        self._under_way: set[tuple[str, str]] = set()
        try:
            with file.open("rb") as opened:
                lines = opened.read(2 * MAX_FILE_BYTES).splitlines()
        except OSError:
            lines = []
        for line in lines:
            with suppress(msgspec.MsgspecError, RecursionError):  # the last line may have been cut off
                self._keep(msgspec.json.decode(line, type=KeptRequest))
        self._rewrite()

    def begin(self, who: str, key: str, *request: bytes) -> KeptReply | None:
        """Return the stored response of the first request with this key, or None if this is the first."""
        if not 1 <= len(key) <= MAX_KEY_CHARS or not all("!" <= char <= "~" for char in key):
            message = f"Idempotency-Key must have 1 to {MAX_KEY_CHARS} visible ASCII characters"
            raise AuthorError("request.bad_header", message)
        digest = sha256(b"\0".join(request)).hexdigest()
        known = self._known.get((who, key))
        if known is None or known.until < time.time():
            self._under_way.add((who, key))
            try:
                self._note(KeptRequest(who, key, digest, time.time() + KEPT_S))
            except BaseException:  # the key is not stored: the request is not executed and can be repeated
                self._under_way.discard((who, key))
                self._known.pop((who, key), None)
                raise
            return None
        if known.request != digest:
            message = "this Idempotency-Key belongs to another request"
            raise AuthorError("idempotency.other_request", message, hint="use a new key for a new request")
        if (who, key) in self._under_way:
            message = "the first request with this Idempotency-Key is still being answered"
            raise WorldError("idempotency.in_progress", message, hint="repeat the request in a moment")
        if known.reply is None:
            message = "a request with this Idempotency-Key was started before, and its outcome is unknown"
            hint = "check whether it was executed; to execute it again, use a new key"
            raise WorldError("idempotency.unknown", message, hint=hint)
        return known.reply

    def done(self, who: str, key: str, reply: KeptReply) -> None:
        """Store a response. Of a response that is too long, store only that it was sent."""
        self._under_way.discard((who, key))
        if len(reply.body) <= MAX_KEPT_BYTES:
            self._note(msgspec.structs.replace(self._known[who, key], reply=reply))

    def failed(self, who: str, key: str) -> None:
        self._under_way.discard((who, key))
        self._note(msgspec.structs.replace(self._known[who, key], is_forgotten=True))

    def _note(self, one: KeptRequest) -> None:
        self._keep(one)
        handle = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        try:
            os.write(handle, msgspec.json.encode(one) + b"\n")
            os.fdatasync(handle)
            size = os.fstat(handle).st_size
        finally:
            os.close(handle)
        if size > MAX_FILE_BYTES:
            self._rewrite()

    def _keep(self, one: KeptRequest) -> None:
        self._known.pop((one.who, one.key), None)
        if not one.is_forgotten and one.until > time.time():
            self._known[one.who, one.key] = one
        if len(self._known) > MAX_KEYS:
            oldest = next((one for one in self._known if one not in self._under_way), None)
            if oldest is not None:
                del self._known[oldest]

    def _rewrite(self) -> None:
        """Rewrite the file atomically and privately, at most half full, so that this is rarely necessary."""
        lines: list[bytes] = []
        room = MAX_FILE_BYTES // 2
        for one in reversed(self._known.values()):
            lines.append(msgspec.json.encode(one) + b"\n")
            room -= len(lines[-1])
            if room < 0:
                break
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(self._file, b"".join(reversed(lines)))


# -----------------------------------------------------------------------------------------------------------
# The objects that the routes work with.
#
# Rules
# * `history` is for reading runs. It keeps folded trees in memory and only adds new events to them, so
#   exactly one thread uses it.
# * `fresh` is for everything else: it reads recipes, roles and configuration from the disk again. Any thread
#   may call it. All projects share one open store.


class AppState(Struct, frozen=True):
    """The project that is served, for reading runs and for everything else."""

    history: Project
    fresh: Callable[[], Project]
    """Return the project with its files read again; the caller must not close it."""
    examine: Callable[[], Examination]
    """Return the report of `fanfold doctor`."""
    version: str
