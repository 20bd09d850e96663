"""A project, and real clients of its MCP server: over stdio as a process, over HTTP on loopback."""

import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from mcp import Client, StdioServerParameters
from starlette.applications import Starlette
from starlette.routing import Route

from fanfold.api.run_options import Options
from fanfold.server.mcp import HttpEndpoint
from fanfold.wiring import make_mcp_server
from tests.tools.conftest import SCRIPT, opened, project
from tests.work import PATIENCE_S

__all__ = ["opened", "project"]

ERAS = ("legacy", "2026-07-28")
"""Both generations of the protocol: with a handshake, and without."""


def stdio(folder: Path, *more: str) -> StdioServerParameters:
    (folder / "script.yaml").write_text(SCRIPT)
    command = ["-m", "fanfold.cli.main", "mcp", "--script", "script.yaml", *more]
    return StdioServerParameters(command=sys.executable, args=command, cwd=folder, env=dict(os.environ))


@asynccontextmanager
async def connected(server: Any, era: str, **more: Any) -> AsyncIterator[Any]:
    """A client; `Any`, since tests know which kind of content comes."""
    async with Client(server, mode=era, **more) as client:
        yield client


class HttpServer:
    """uvicorn with one MCP server at /mcp, in a thread."""

    def __init__(self, server: Any) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        host = f"127.0.0.1:{self.port}"
        endpoint = HttpEndpoint(server, [host], [f"http://{host}"])
        app = Starlette(routes=[Route("/mcp", endpoint=endpoint.app)], lifespan=lambda _: endpoint.lifespan())
        self.url = f"http://{host}/mcp"
        self._server = uvicorn.Server(
            uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1, ws="none")
        )
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


@pytest.fixture
def served() -> Iterator[Callable[[Any], HttpServer]]:
    """Serve an MCP server over HTTP; stopped when the test is over."""
    running: list[HttpServer] = []

    def start(server: Any) -> HttpServer:
        running.append(HttpServer(server))
        return running[-1]

    yield start
    for one in running:
        one.stop()


@pytest.fixture
def http(project: Path, served: Callable[[Any], HttpServer]) -> Callable[..., str]:
    """The address of the project's MCP server."""

    def start(permission: str = "auto", script: str = SCRIPT) -> str:
        return served(make_mcp_server(project, Options(permission=permission, script=script))).url

    return start
