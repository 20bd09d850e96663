"""Messages of other systems at `/hooks/NAME`, authenticated by a signature instead of a token.

Rules
* The Host is checked as for every request. A message is at most `MAX_MESSAGE_BYTES` long and has `BODY_S`.
* Unknown senders can send any number of messages. If more than `MAX_READ` are arriving, the oldest is
  dropped, so slow messages do not block others. At most `MAX_AT_ONCE` messages are verified at the same time.
* An unknown schedule and a wrong signature get the same response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fanfold.api.project import Project
from fanfold.api.schedules import WebhookReply, deliver, unsigned
from fanfold.errors import FanfoldError
from fanfold.server.requests import BODY_S, failure, read_stream, segments_of

MAX_MESSAGE_BYTES = 1024 * 1024
MAX_READ = 64
MAX_AT_ONCE = 4
HOOKS = "hooks"


class Webhooks:
    """The ASGI application below `/hooks`. `open_project` returns the project to start runs in."""

    def __init__(self, open_project: Callable[[], Project]) -> None:
        self._open = open_project
        self._arriving: list[asyncio.Timeout] = []
        self._verifying = asyncio.Semaphore(MAX_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            delivery = await self._take(Request(scope, receive))
            status = 202 if delivery.outcome == "started" else 200
            reply = Response(msgspec.json.encode(delivery), status, media_type="application/json")
        except FanfoldError as error:
            reply = failure(error)
        await reply(scope, receive, send)

    async def _take(self, request: Request) -> WebhookReply:
        segments = segments_of(request.scope) or ()
        if request.method != "POST" or len(segments) != 2:
            raise unsigned()
        limit = asyncio.timeout(BODY_S)
        self._arriving.append(limit)
        if len(self._arriving) > MAX_READ:
            self._arriving.pop(0).reschedule(0)
        try:
            body = await read_stream(request, MAX_MESSAGE_BYTES, limit)
        finally:
            if limit in self._arriving:
                self._arriving.remove(limit)
        headers = {name.lower(): value for name, value in request.headers.items()}

        def start() -> WebhookReply:
            return deliver(self._open(), segments[1], headers, body)

        async with self._verifying:
            return await asyncio.to_thread(start)
