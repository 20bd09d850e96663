from __future__ import annotations

import pytest

from fanfold.store.address import PostgresAddress
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


def pytest_sessionfinish() -> None:
    """Stop the server after the last test, whatever it is: a fixture would count as part of it."""
    while _servers:
        _servers.pop().remove()
