"""The suites of commands, console and MCP on a cluster: `pytest -p tests.cluster.surfaces TESTS`.

Every test gets a project in PostgreSQL and a worker of that project, with a home of its own and no checkout.
A module whose server is shared by its tests shares them too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from fanfold.store.address import PostgresAddress
from tests.cluster.workers import Cluster, temporal_server
from tools.postgresql import PostgresServer


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The addresses of PostgreSQL and Temporal."""
    server = PostgresServer()
    PostgresAddress(url=server.url, project="none").init()
    with temporal_server(tmp_path_factory.mktemp("temporal")) as temporal:
        yield server.url, temporal
    server.remove()


@contextmanager
def project_of_a_cluster(folder: Path, store: str, temporal: str) -> Iterator[None]:
    """Inside this block, commands use a project of its own in the cluster, and a worker serves it."""
    named = {"FANFOLD_STORE": store, "FANFOLD_TEMPORAL": temporal, "FANFOLD_HEARTBEAT_S": "5"}
    named["FANFOLD_PROJECT"] = uuid4().hex
    cluster = Cluster(folder, temporal)
    cluster.environment |= named
    with pytest.MonkeyPatch.context() as patch:
        for name, value in named.items():
            patch.setenv(name, value)
        cluster.start("worker", "--slots", "16", apart=True)
        try:
            yield
        finally:
            cluster.stop()


def is_shared(request: pytest.FixtureRequest) -> bool:
    return "tests/server/" in os.fspath(request.path)


@pytest.fixture(scope="module", autouse=True)
def cluster_of_module(
    request: pytest.FixtureRequest, services: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    if not is_shared(request):
        yield
        return
    with project_of_a_cluster(tmp_path_factory.mktemp("cluster"), *services):
        yield


@pytest.fixture(autouse=True)
def cluster_of_test(
    request: pytest.FixtureRequest, services: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    if is_shared(request):
        yield
        return
    with project_of_a_cluster(tmp_path_factory.mktemp("cluster"), *services):
        yield
