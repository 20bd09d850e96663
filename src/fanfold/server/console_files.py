"""The files of the console in the package. No other file can be requested.

The table of files is made when the server starts. A request looks up its path in this table, so no path can
lead out of the package. A changed file is read again, which costs a `stat` and helps during development.

The page names its parts below `/assets/EDITION/`; the edition is a digest of all parts. A browser requests
each part once, and again after an update. The page names every module, so that all load at the same time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import sha256
from html import escape
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fanfold.errors import NotFoundError
from fanfold.server.requests import failure

FOLDER = Path(__file__).parent / "console"
PAGES = frozenset({"recipes", "runs", "compare", "approvals", "search", "agents", "system"})
"""The first segment of each address of the console; the page itself handles the rest."""
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
}


ASSETS = "/assets/"
LASTING = "private, max-age=31536000, immutable"
ALONE = frozenset({"/assets/theme.js", "/assets/live/stream-worker.js"})
"""Scripts that the page loads by themselves, so it names no preload for them."""
MODULES_HERE = b"<!-- modules -->"


class _CachedFile(NamedTuple):
    changed: int
    body: bytes
    tag: str


class ConsoleFiles:
    """An ASGI application for everything that is not the API."""

    def __init__(self, project: str = "", folder: Path = FOLDER) -> None:
        self._project = escape(project).encode()
        self._files = {
            f"/{file.relative_to(folder).as_posix()}": file
            for file in folder.rglob("*")
            if file.suffix in TYPES and file.is_file() and not file.is_symlink()
        }
        self._kept: dict[Path, _CachedFile] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._reply(Request(scope, receive))(scope, receive, send)

    def _reply(self, request: Request) -> Response:
        path = request.url.path
        name = "/index.html" if path == "/" or path.split("/")[1] in PAGES else path
        edition, _, part = name.removeprefix(ASSETS).partition("/")
        is_lasting = name.startswith(ASSETS) and edition == self._edition()
        file = self._files.get(ASSETS + part if is_lasting else name)
        if request.method not in ("GET", "HEAD") or file is None:
            if request.method == "GET" and request.headers.get("sec-fetch-dest") == "document":
                # A wrong address: the console reports it and links to the home page.
                return Response(self._page().body, 404, {"cache-control": "no-cache"}, TYPES[".html"])
            return failure(NotFoundError("request.not_found", "this path does not exist"))
        kept = self._page() if name == "/index.html" else self._read(file)
        headers = {"etag": kept.tag, "cache-control": LASTING if is_lasting else "no-cache"}
        if request.headers.get("if-none-match") == kept.tag:
            return Response(status_code=304, headers=headers)
        return Response(kept.body, headers=headers, media_type=TYPES[file.suffix])

    def _edition(self) -> str:
        """Return a digest of the current files."""
        changed = [(name, file.stat().st_mtime_ns) for name, file in sorted(self._files.items())]
        return sha256(repr(changed).encode()).hexdigest()[:16]

    def _page(self) -> _CachedFile:
        """Return the page with the addresses of its parts."""
        names = sorted(name for name in self._files if name.endswith(".js") and name not in ALONE)
        modules = "\n    ".join(f'<link rel="modulepreload" href="{name}" />' for name in names)
        body = self._read(self._files["/index.html"]).body.replace(MODULES_HERE, modules.encode())
        body = body.replace(b'data-project=""', b'data-project="%s"' % self._project)
        body = body.replace(f'"{ASSETS}'.encode(), f'"{ASSETS}{self._edition()}/'.encode())
        return _CachedFile(0, body, f'"{sha256(body).hexdigest()[:32]}"')

    def _read(self, file: Path) -> _CachedFile:
        changed = file.stat().st_mtime_ns
        kept = self._kept.get(file)
        if kept is None or kept.changed != changed:
            body = file.read_bytes()
            kept = self._kept[file] = _CachedFile(changed, body, f'"{sha256(body).hexdigest()[:32]}"')
        return kept


# -----------------------------------------------------------------------------------------------------------
# Downloads: a browser saves these files and never shows them.
#
# A file is read and sent in pieces, so it is never in memory as a whole. Its media type is always bytes, so
# no browser treats it as a page, script or picture of this server.

BYTES = "application/octet-stream"
PIECE = 256 * 1024
SLOW_S = 20.0
"""A client that reads nothing for this time is disconnected."""

Read = Callable[[Callable[[], bytes]], Awaitable[bytes]]


class FileReply(Response):
    """Sends `size` bytes of an open file and closes it. `read` calls a function in a thread."""

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
                    raise ConnectionAbortedError("the file was truncated while it was sent")
                left -= len(piece)
                async with asyncio.timeout(SLOW_S):
                    await send({"type": "http.response.body", "body": piece, "more_body": left > 0})
            if not self._size:
                await send({"type": "http.response.body", "body": b"", "more_body": False})


def attachment(path: str) -> str:
    """Return the header with which a browser saves a file under the last part of its path.

    >>> attachment("a/why not.md")
    'attachment; filename="why not.md"; filename*=UTF-8\\'\\'why%20not.md'
    """
    name = path.rpartition("/")[2]
    plain = re.sub(r"[^A-Za-z0-9 ._-]", "_", name).strip(" .") or "artifact"
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
