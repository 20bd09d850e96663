"""Files that are given away: to be kept, never to be shown by a browser from here.

A file goes out in pieces, read as they are taken; nothing of it is held in memory. Whatever it is called and
whatever is in it, it is bytes: no page, script or picture of this server's.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import partial
from io import BufferedReader
from urllib.parse import quote

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

BYTES = "application/octet-stream"
PIECE = 256 * 1024
SLOW_S = 20.0
"""A client that takes nothing for so long is let go."""

Read = Callable[[Callable[[], bytes]], Awaitable[bytes]]


class FileReply(Response):
    """`size` bytes of an open file, which is closed afterwards. `read` calls something in a thread."""

    def __init__(self, file: BufferedReader, name: str, size: int, read: Read) -> None:
        super().__init__(media_type=BYTES, headers={"cache-control": "no-store"})
        self.headers["content-disposition"] = attachment(name)
        self.headers["content-length"] = str(size)
        self._file = file
        self._size = size
        self._read = read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        with self._file:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            left = self._size
            while left > 0:
                most = min(left, PIECE)
                piece = await self._read(partial(self._file.read, most))
                if not piece:
                    raise ConnectionAbortedError("the file became shorter while it was given away")
                left -= len(piece)
                async with asyncio.timeout(SLOW_S):
                    await send({"type": "http.response.body", "body": piece, "more_body": left > 0})
            if not self._size:
                await send({"type": "http.response.body", "body": b"", "more_body": False})


def attachment(path: str) -> str:
    """The header that has a browser keep a file under the last part of its path.

    >>> attachment("a/why not.md")
    'attachment; filename="why not.md"; filename*=UTF-8\\'\\'why%20not.md'
    """
    name = path.rpartition("/")[2]
    plain = re.sub(r"[^A-Za-z0-9 ._-]", "_", name).strip(" .") or "artifact"
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
