"""A proxy for sandboxes without a network: a socket that forwards connections to named hosts only.

Rules
* A connection starts with `CONNECT host:port`. Plain HTTP is forwarded as a request for a full address.
  Anything else, and any other host, gets status 403 and is closed.
* Host names are resolved here, because the sandbox has no resolver. A host is compared by its name. Its
  addresses are not checked, because the user named it.
* Bytes are forwarded unchanged and never inspected. The number of connections is limited.
* For an agent without a loopback of its own, the proxy listens on a port of this machine's. There a
  connection starts with a secret from a file of this user, so that no other user can use the proxy.
* Refused hosts, and named hosts that could not be reached, are kept for the failure of a session.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Self

from fanfold.agents.backend import GATE, SOCKET
from fanfold.agents.command.calls import host_and_port
from fanfold.project_files import write_whole
from fanfold.workspace.children import remove_beneath

MAX_HEAD_BYTES = 64 * 1024
MAX_CONNECTIONS = 128
MAX_REFUSED = 16
CHUNK_BYTES = 64 * 1024
HEAD_S = 30.0
SECRET_BYTES = 16
CONNECT_S = 20.0
_LINE = rb"([A-Z]{1,16}) (\S{1,8192}) HTTP/1\.[01]\r\n"
_LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")


class ProviderGate:
    """The proxy of one session, open as a context while the session runs."""

    def __init__(self, home: Path, hosts: Iterable[str], *, by_port: bool = False) -> None:
        self.refused: list[str] = []
        self.unreached: list[str] = []
        """Named hosts whose last connection failed, the newest last."""
        self.has_reached = False
        """Whether any named host was reached."""
        self.is_failing = False
        """Whether the last connection to a named host failed."""
        self._home = home
        self._socket = home / SOCKET
        self._secret = secrets.token_hex(SECRET_BYTES).encode() if by_port else b""
        self._hosts = {plain_host(host) for host in hosts}
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        if self._secret:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=MAX_HEAD_BYTES)
            port = self._server.sockets[0].getsockname()[1]
            write_whole(self._home.parent / GATE, b"%d %s" % (port, self._secret))
            return self
        # The path may be too long for the address of a socket. Through a handle it is short.
        folder = os.open(self._socket.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            name = self._socket.name
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            self._server = await asyncio.start_unix_server(
                self._serve, f"/proc/self/fd/{folder}/{name}", limit=MAX_HEAD_BYTES
            )
        finally:
            os.close(folder)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None, "entered before it is left"
        self._server.close()
        for writer in tuple(self._open):
            writer.transport.abort()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # The program inside may have replaced the folder by a link. The target of such a link is not ours.
        remove_beneath(self._home, SOCKET)
        (self._home.parent / GATE).unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection is served in a task"
        if len(self._tasks) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._tasks.add(task)
        self._open.add(writer)
        try:
            await self._lead(reader, writer)
        except (OSError, EOFError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # one side closed the connection or used another protocol, or the gate closes
        finally:
            self._open.discard(writer)
            self._tasks.discard(task)
            writer.transport.abort()

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._secret:
            given = await asyncio.wait_for(reader.readexactly(len(self._secret)), HEAD_S)
            if not secrets.compare_digest(given, self._secret):
                return
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_S)
        line = re.match(_LINE, head)
        method, target = (line[1], line[2].decode("latin-1")) if line else (b"", "")
        host = host_and_port(target if method != b"CONNECT" else f"https://{target}")
        plain = method != b"CONNECT" and target.startswith("http://")
        if not host or not (method == b"CONNECT" or plain) or plain_host(host) not in self._hosts:
            refused = (host or target)[:200]
            if refused not in self.refused and len(self.refused) < MAX_REFUSED:
                self.refused.append(refused)
            writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            await writer.drain()
            return
        try:
            name, _, port = host.rpartition(":")
            far = await asyncio.wait_for(asyncio.open_connection(name, int(port)), CONNECT_S)
        except (OSError, TimeoutError):
            self.is_failing = True
            self.unreached = [*(other for other in self.unreached if other != host), host][-MAX_REFUSED:]
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            await writer.drain()
            return
        self.has_reached, self.is_failing = True, False
        if host in self.unreached:
            self.unreached.remove(host)
        self._open.add(far[1])
        try:
            if plain:  # only one request: the next could be for another host
                far[1].write(_one_request(method, target, head))
            else:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await asyncio.gather(_pump(reader, far[1]), _pump(far[0], writer))
        finally:
            self._open.discard(far[1])
            far[1].transport.abort()


def plain_host(host: str) -> str:
    """Return a host with its port in one spelling; every name of the loopback is the same.

    >>> plain_host("LOCALHOST:80")
    '127.0.0.1:80'
    """
    name, _, port = host.lower().rpartition(":")
    return f"{'127.0.0.1' if name in _LOOPBACK else name}:{port}"


def loopback_ports(hosts: Iterable[str]) -> tuple[int, ...]:
    """Return the ports of those hosts that are this machine's loopback."""
    plain = map(plain_host, hosts)
    return tuple(
        sorted({int(address.rpartition(":")[2]) for address in plain if address.startswith("127.0.0.1:")})
    )


def _one_request(method: bytes, target: str, head: bytes) -> bytes:
    """Return the request head for the server: only the path, and no connection kept open."""
    from urllib.parse import urlsplit

    parts = urlsplit(target)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = head.split(b"\r\n")[1:-2]
    dropped = (b"connection:", b"proxy-connection:", b"proxy-authorization:", b"host:")
    kept = [line for line in lines if not line.lower().startswith(dropped)]
    own = [b"Host: " + parts.netloc.rpartition("@")[2].encode("latin-1"), b"Connection: close"]
    first = method + b" " + path.encode("latin-1") + b" HTTP/1.1"
    return b"\r\n".join([first, *own, *kept, b"", b""])


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except (OSError, RuntimeError):
        writer.transport.abort()
