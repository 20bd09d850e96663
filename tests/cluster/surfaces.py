"""The suites of commands, console and MCP on a cluster: `pytest -p tests.cluster.surfaces TESTS`.

Every test gets a project in PostgreSQL and a worker of that project, with a home of its own and no checkout.
The tests of `tests/server` share a server, and so they share one project and its worker.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from fanfold.store.address import PostgresAddress
from tests.cluster.workers import Cluster, TemporalServer
from tools.postgresql import PostgresServer

_servers: list[PostgresServer | TemporalServer] = []


def pytest_sessionstart() -> None:
    """Start the services before the first test, which may not change the environment of the others."""
    server = PostgresServer()
    temporal = TemporalServer(Path(tempfile.mkdtemp(prefix="fanfold-surfaces-")))
    _servers.extend((server, temporal))
    PostgresAddress(url=server.url, project="none").init()
    os.environ |= {
        "FANFOLD_STORE": server.url,
        "FANFOLD_TEMPORAL": temporal.address,
        "FANFOLD_HEARTBEAT_S": "5",
        "FANFOLD_PROJECT": "shared",
    }


def pytest_sessionfinish() -> None:
    while _servers:
        one = _servers.pop()
        if isinstance(one, PostgresServer):
            one.remove()
        else:
            one.stop()
            shutil.rmtree(one.data.parent, ignore_errors=True)


@contextmanager
def worker_of_a_project(folder: Path) -> Iterator[None]:
    """Inside this block, a worker serves the project that the environment names."""
    cluster = Cluster(folder, os.environ["FANFOLD_TEMPORAL"])
    cluster.environment |= {name: value for name, value in os.environ.items() if name.startswith("FANFOLD_")}
    cluster.start("worker", "--slots", "16", apart=True)
    try:
        yield
    finally:
        cluster.stop()


def is_shared(request: pytest.FixtureRequest) -> bool:
    return "tests/server/" in os.fspath(request.path)


@pytest.fixture(scope="module", autouse=True)
def worker_of_module(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    if not is_shared(request):
        yield
        return
    with worker_of_a_project(tmp_path_factory.mktemp("cluster")):
        yield


@pytest.fixture(autouse=True)
def worker_of_test(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    if is_shared(request):
        yield
        return
    monkeypatch.setenv("FANFOLD_PROJECT", uuid4().hex)
    with worker_of_a_project(tmp_path_factory.mktemp("cluster")):
        yield
