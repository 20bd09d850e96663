"""Requests that are sent again: with the same `Idempotency-Key` the first one's reply is given again.

A key belongs to who used it, and to the request it came with: with another body it is refused, and while the
first request is still being answered it is too. Only what was done is remembered; after an error one may try
again. Keys are forgotten after a day, when there are too many, and with the server.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from hashlib import sha256
from typing import NamedTuple

from fanfold.errors import AuthorError, WorldError

KEPT_S = 24 * 3600
MAX_KEYS = 1_000
MAX_KEY_CHARS = 200
MAX_KEPT_BYTES = 64 * 1024


class KeptReply(NamedTuple):
    status: int
    body: bytes


class _Entry(NamedTuple):
    request: bytes
    reply: KeptReply | None
    """None while it is being made."""
    until: float


class Idempotency:
    def __init__(self) -> None:
        self._entries: OrderedDict[tuple[str, str], _Entry] = OrderedDict()

    def begin(self, who: str, key: str, *request: bytes) -> KeptReply | None:
        """The reply that was given already; None when this request is the first with its key."""
        if not 1 <= len(key) <= MAX_KEY_CHARS or not all("!" <= char <= "~" for char in key):
            message = f"Idempotency-Key must have 1 to {MAX_KEY_CHARS} visible ASCII characters"
            raise AuthorError("request.bad_header", message)
        digest = sha256(b"\0".join(request)).digest()
        known = self._entries.get((who, key))
        if known is None or known.until < time.monotonic():
            self._keep(who, key, _Entry(digest, None, time.monotonic() + KEPT_S))
            return None
        if known.request != digest:
            message = "this Idempotency-Key came with another request before"
            raise AuthorError("idempotency.other_request", message, hint="use a new key for a new request")
        if known.reply is None:
            message = "the first request with this Idempotency-Key is still being answered"
            raise WorldError("idempotency.in_progress", message, hint="ask again in a moment")
        return known.reply

    def done(self, who: str, key: str, reply: KeptReply) -> None:
        known = self._entries[who, key]
        if len(reply.body) <= MAX_KEPT_BYTES:
            self._entries[who, key] = known._replace(reply=reply)
        else:
            del self._entries[who, key]

    def failed(self, who: str, key: str) -> None:
        self._entries.pop((who, key), None)

    def _keep(self, who: str, key: str, entry: _Entry) -> None:
        self._entries[who, key] = entry
        self._entries.move_to_end((who, key))
        while len(self._entries) > MAX_KEYS:
            self._entries.popitem(last=False)
