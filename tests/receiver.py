"""A small HTTP server on this machine that keeps what it receives, and answers as a test wants."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from tests.work import PATIENCE_S


class Received(NamedTuple):
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    """By name in lower case."""
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


Reply = Callable[[Received], tuple[int, bytes]]


class Receiver:
    """What arrived so far; `reply` gives status and body for each request."""

    def __init__(self, url: str, reply: Reply) -> None:
        self.url = url
        self.reply = reply
        self.requests: list[Received] = []
        self._arrived = threading.Condition()

    def take(self, request: Received) -> tuple[int, bytes]:
        answer = self.reply(request)
        with self._arrived:
            self.requests.append(request)
            self._arrived.notify_all()
        return answer

    def wait(self, count: int) -> list[Received]:
        """The requests, once there are so many."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.requests) >= count, PATIENCE_S), self.requests
            return list(self.requests)


def accept(_: Received) -> tuple[int, bytes]:
    return 200, b"{}"


@contextmanager
def receiving(reply: Reply = accept) -> Iterator[Receiver]:
    """A receiver that listens while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, body = receiver.take(Received(self.command, self.path, headers, self.rfile.read(length)))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PATCH = _answer  # noqa: N815 - the names that http.server calls

        def log_message(self, format: str, *arguments: object) -> None:
            del format, arguments

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = Receiver(f"http://127.0.0.1:{server.server_port}", reply)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
