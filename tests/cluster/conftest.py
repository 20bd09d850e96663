from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fanfold.store.address import PostgresAddress
from tests.cluster.workers import Cluster, temporal_server
from tools.postgresql import PostgresServer, program

_servers: list[PostgresServer] = []


@pytest.fixture(scope="session")
def server() -> PostgresServer:
    if program("initdb") is None:
        pytest.skip("needs PostgreSQL: tools/install-postgresql")
    made = PostgresServer()
    PostgresAddress(url=made.url, project="none").init()
    _servers.append(made)
    return made


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Temporal server for the tests of one module."""
    with temporal_server(tmp_path_factory.mktemp("temporal")) as found:
        yield found


@pytest.fixture
def cluster(tmp_path: Path, address: str, server: PostgresServer) -> Iterator[Cluster]:
    """A project whose workers share PostgreSQL and Temporal, each with a home of its own."""
    made = Cluster(tmp_path, address)
    made.environment |= {"FANFOLD_STORE": server.url, "FANFOLD_PROJECT": tmp_path.name}
    try:
        yield made
    finally:
        made.stop()


def pytest_sessionfinish() -> None:
    """Stop the server after the last test, whatever it is: a fixture would count as part of it."""
    while _servers:
        _servers.pop().remove()
