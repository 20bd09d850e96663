"""The console's files, as they are in the package: nothing else of the disk can be asked for.

The table of files is made when the server starts; a request looks its path up in it, so there is no path to
be led astray by. A file that changed since is read again, which costs a `stat` and helps who works on it.

The page names its parts below `/assets/EDITION/`, where the edition is a digest of them all: a browser asks
for each once, and after an update for all of them anew. Every module is named: none waits for another.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fanfold.errors import NotFoundError
from fanfold.server.replies import failure

FOLDER = Path(__file__).parent / "console"
PAGES = frozenset({"recipes", "runs", "compare", "approvals", "search", "agents", "system"})
"""First words of the console's addresses: the page itself knows the rest."""
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
"""Scripts that no module imports."""
MODULES_HERE = b"<!-- modules -->"


class _Kept(NamedTuple):
    changed: int
    body: bytes
    tag: str


class ConsoleFiles:
    """An ASGI application for everything that is not the API."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._files = {
            f"/{file.relative_to(folder).as_posix()}": file
            for file in folder.rglob("*")
            if file.suffix in TYPES and file.is_file() and not file.is_symlink()
        }
        self._kept: dict[Path, _Kept] = {}

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
                # Somebody mistyped an address: the console says so, with the way back.
                return Response(self._page().body, 404, {"cache-control": "no-cache"}, TYPES[".html"])
            return failure(NotFoundError("request.not_found", "there is nothing at this path"))
        kept = self._page() if name == "/index.html" else self._read(file)
        headers = {"etag": kept.tag, "cache-control": LASTING if is_lasting else "no-cache"}
        if request.headers.get("if-none-match") == kept.tag:
            return Response(status_code=304, headers=headers)
        return Response(kept.body, headers=headers, media_type=TYPES[file.suffix])

    def _edition(self) -> str:
        """A digest of everything that pages are made of, as it is now."""
        changed = [(name, file.stat().st_mtime_ns) for name, file in sorted(self._files.items())]
        return sha256(repr(changed).encode()).hexdigest()[:16]

    def _page(self) -> _Kept:
        """The page, with its parts in their edition."""
        names = sorted(name for name in self._files if name.endswith(".js") and name not in ALONE)
        modules = "\n    ".join(f'<link rel="modulepreload" href="{name}" />' for name in names)
        body = self._read(self._files["/index.html"]).body.replace(MODULES_HERE, modules.encode())
        body = body.replace(f'"{ASSETS}'.encode(), f'"{ASSETS}{self._edition()}/'.encode())
        return _Kept(0, body, f'"{sha256(body).hexdigest()[:32]}"')

    def _read(self, file: Path) -> _Kept:
        changed = file.stat().st_mtime_ns
        kept = self._kept.get(file)
        if kept is None or kept.changed != changed:
            body = file.read_bytes()
            kept = self._kept[file] = _Kept(changed, body, f'"{sha256(body).hexdigest()[:32]}"')
        return kept
