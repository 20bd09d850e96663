from __future__ import annotations

from collections.abc import Iterator

import pytest

from fanfold.store.address import PostgresAddress
from tools.postgresql import PostgresServer, program


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    if program("initdb") is None:
        pytest.skip("needs PostgreSQL: tools/install-postgresql")
    made = PostgresServer()
    PostgresAddress(url=made.url, project="none").init()
    yield made
    made.remove()
