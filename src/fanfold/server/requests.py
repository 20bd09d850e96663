"""What came over HTTP, read strictly: parameters, bodies, what is too large, too slow, or no JSON."""

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
    return await read_stream(request, most, asyncio.timeout(BODY_S))


async def read_stream(request: Request, most: int, limit: asyncio.Timeout) -> bytes:
    """Return what a request sends, of any type, within bounds of size and time."""
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


def _too_large(most: int) -> AuthorError:
    return AuthorError("request.too_large", f"a body has at most {most:,} bytes here")


# -----------------------------------------------------------------------------------------------------------
# What goes back over HTTP: documents, errors with their status, and the headers that every reply has.

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
"""On every reply, whatever it is."""

_CONFLICTS = frozenset(
    """
    approval.changed permission.changed approval.closed approval.none approval.not_open approval.which
    archive.known changes.changed_since idempotency.in_progress idempotency.unknown recipe.changed
    run.busy run.ended run.not_over run.nothing_failed run.open workspace.conflict
    """.split()
)
"""What was asked for was fine, but things are not as they would have to be."""
UNUSABLE = 422
"""What was sent can be read, and cannot be used: a text with mistakes, a key of another request."""
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
    """The HTTP status that says what kind of error it is."""
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
    """An error as every surface says it."""
    status = status_of(error)
    document = refused_document(error) if status == UNUSABLE else error_document(error)
    # Never cached: the next answer may differ.
    sent = {"cache-control": "no-store", **(headers or {})}
    return Response(msgspec.json.encode(document), status, sent, "application/json")


# -----------------------------------------------------------------------------------------------------------
# Requests that are sent again: with the same `Idempotency-Key` the first one's reply is given again.
#
# Rules
# * A key belongs to who used it, and to the request it came with: with another body it is refused, and while
#   the first request is still being answered it is too.
# * Only what was done is remembered; after an error one may try again.
# * A key is stored before anything is done, so it means the same to the next server. If this one dies or is
#   stopped in between, it is unknown whether the request was carried out: a repeated request reports it, and
#   nothing is done twice.
# * Keys are forgotten after a day, and when there are too many, but none whose request is being answered.

KEPT_S = 24 * 3600
MAX_KEYS = 1_000
MAX_KEY_CHARS = 200
MAX_KEPT_BYTES = 1024 * 1024
MAX_FILE_BYTES = 16 * 1024 * 1024
"""A longer file is written anew, with what is still known."""


class KeptReply(Struct, frozen=True):
    status: int
    body: str


class KeptRequest(Struct, frozen=True):
    """A line of the file; the last one about a key counts. Without a reply it was begun."""

    who: str
    key: str
    request: str
    until: float
    reply: KeptReply | None = None
    is_forgotten: bool = False


class Idempotency:
    """`file` outlives the server."""

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
        self._write_anew()

    def begin(self, who: str, key: str, *request: bytes) -> KeptReply | None:
        """The reply that was given already; None when this request is the first with its key."""
        if not 1 <= len(key) <= MAX_KEY_CHARS or not all("!" <= char <= "~" for char in key):
            message = f"Idempotency-Key must have 1 to {MAX_KEY_CHARS} visible ASCII characters"
            raise AuthorError("request.bad_header", message)
        digest = sha256(b"\0".join(request)).hexdigest()
        known = self._known.get((who, key))
        if known is None or known.until < time.time():
            self._under_way.add((who, key))
            try:
                self._note(KeptRequest(who, key, digest, time.time() + KEPT_S))
            except BaseException:  # it is not written down: nothing is done, and it may be tried again
                self._under_way.discard((who, key))
                self._known.pop((who, key), None)
                raise
            return None
        if known.request != digest:
            message = "this Idempotency-Key came with another request before"
            raise AuthorError("idempotency.other_request", message, hint="use a new key for a new request")
        if (who, key) in self._under_way:
            message = "the first request with this Idempotency-Key is still being answered"
            raise WorldError("idempotency.in_progress", message, hint="ask again in a moment")
        if known.reply is None:
            message = (
                "what this Idempotency-Key came with was begun before, and its reply is not known any more"
            )
            hint = "look whether it was done; to do it again, use a new key"
            raise WorldError("idempotency.unknown", message, hint=hint)
        return known.reply

    def done(self, who: str, key: str, reply: KeptReply) -> None:
        """A reply that is too long is not remembered, but that it was given is."""
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
            self._write_anew()

    def _keep(self, one: KeptRequest) -> None:
        self._known.pop((one.who, one.key), None)
        if not one.is_forgotten and one.until > time.time():
            self._known[one.who, one.key] = one
        if len(self._known) > MAX_KEYS:
            oldest = next((one for one in self._known if one not in self._under_way), None)
            if oldest is not None:
                del self._known[oldest]

    def _write_anew(self) -> None:
        """As a whole or not at all, for this user's eyes only. Half of the room, so that it lasts a while."""
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
# What the routes work with: the project as it is now, and its history, read by one thread.
#
# Rules
# * `history` is for looking at runs. Its folded trees are kept and caught up, not folded anew for every
#   request; so one thread alone reads them, the one that calls the handlers that look.
# * `fresh` is for everything else: recipes, roles and configuration as they are on the disk at this moment.
#   Any thread may make one. All of them share one open store.


class AppState(Struct, frozen=True):
    history: Project
    fresh: Callable[[], Project]
    """The project with its files read again; it is not to be closed."""
    examine: Callable[[], Examination]
    """Looks at this installation and at the project from the outside."""
    version: str
