"""Requests that are sent again: with the same `Idempotency-Key` the first one's reply is given again.

Rules
* A key belongs to who used it, and to the request it came with: with another body it is refused, and while
  the first request is still being answered it is too.
* Only what was done is remembered; after an error one may try again.
* What is remembered is written down before anything is done, so a key means the same to the next server. If
  this one dies or is stopped in between, nobody knows whether it was done: who asks again is told so, and
  nothing is done twice.
* Keys are forgotten after a day, and when there are too many, but none whose request is being answered.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import Struct

from fanfold.errors import AuthorError, WorldError
from fanfold.trust.project_files import write_whole

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
        for one in _read(file):
            self._keep(one)
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


def _read(file: Path) -> list[KeptRequest]:
    """Every line that can be read: the last one may have been cut off."""
    try:
        with file.open("rb") as opened:
            text = opened.read(2 * MAX_FILE_BYTES)
    except OSError:
        return []
    found: list[KeptRequest] = []
    for line in text.splitlines():
        try:
            found.append(msgspec.json.decode(line, type=KeptRequest))
        except (msgspec.MsgspecError, RecursionError):
            continue
    return found
