"""A server that restarts, and connections that break: nothing is lost, and nothing is stored twice."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

import fanfold
from fanfold.api.archives import verify
from fanfold.api.client import Client
from fanfold.api.run_options import Options
from fanfold.store import postgres
from fanfold.store.address import PostgresAddress
from fanfold.store.protocol import StoreFault
from fanfold.testing.store_races import Tree
from fanfold.wiring import wire
from tests.work import PATIENCE_S
from tools.postgresql import PostgresServer

pytestmark = pytest.mark.full


def commit_through_a_crash(*, lose_the_result: bool = False) -> None:
    """Commit while the server crashes, or while the result of a commit is lost on its way."""
    server = PostgresServer()
    try:
        address = PostgresAddress(url=server.url, project="team/tests", patience_s=60)
        address.init()
        store = address.open()
        tree = Tree("r1", store.acquire("r1").epoch)
        store.write([tree.step()])
        call, lost = postgres._call, list[bool]()
        crash = threading.Thread(target=server.crash)

        def lose(db: psycopg.Connection[object], calls: list[tuple[int, bytes, list[bytes]]]) -> list[str]:
            done = call(db, calls)
            if not lost:
                lost.append(True)
                raise psycopg.OperationalError("the connection was lost")
            return done

        try:
            if lose_the_result:
                postgres._call = lose  # type: ignore[assignment]  # the same signature, narrower
            else:
                crash.start()
            for _ in range(60):
                store.write([tree.step()])
        finally:
            postgres._call = call
            if not lose_the_result:
                crash.join()
        assert [event.tree_seq for event in store.tree("r1")] == list(range(1, 123))
        assert len(store.output_rows()) == 61
        assert store.check() == []
        store.close()
    finally:
        server.remove()


def test_a_server_that_restarts_during_commits_loses_and_repeats_nothing() -> None:
    commit_through_a_crash()


def test_a_commit_whose_result_was_lost_is_looked_up_and_not_repeated() -> None:
    commit_through_a_crash(lose_the_result=True)


def test_a_lost_acquisition_and_a_lost_request_happen_once(server: PostgresServer) -> None:
    store = PostgresAddress(url=server.url, project="team/lost", patience_s=20).open()
    with psycopg.connect(server.url, autocommit=True) as db:
        kill = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'fanfold' AND pid <> pg_backend_pid()"
        )
        db.execute(kill)
        lease = store.acquire("r1")
        db.execute(kill)
        assert lease.epoch == 1
        store.confirm(lease)
        assert store.reach("r1") == 0
    store.close()


@pytest.mark.parametrize("agents", [1, 12])
def test_an_event_loop_is_free_while_a_commit_is_on_its_way(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agents: int
) -> None:
    """Each commit waits until a task of the same event loop has run meanwhile."""
    call, commits = postgres._call, list[int]()
    ran = threading.Event()

    def wait_for_the_loop(db: Any, calls: Any) -> list[str]:
        if threading.current_thread() is not threading.main_thread():
            ran.clear()
            assert ran.wait(PATIENCE_S), "the event loop is blocked"
            commits.append(1)
        return call(db, calls)

    monkeypatch.setattr(postgres, "_call", wait_for_the_loop)
    monkeypatch.setattr(postgres, "NEAR_S", 0.0)  # as if the server were on another machine
    steps = [{"id": f"s{number}", "agent": "explorer", "prompt": "go"} for number in range(agents)]
    address = PostgresAddress(url=server.url, project=f"team/loop{agents}")

    async def tick() -> None:
        while True:
            ran.set()
            await asyncio.sleep(0.001)

    async def run() -> None:
        ticking = asyncio.create_task(tick())
        async with Client(wire(tmp_path, store=address)) as client:
            options = Options(script="default: done", max_concurrency=8)
            result = await client.run(fanfold.Recipe(name="loop", steps=steps), options=options)
            assert result.status == "completed"
            assert verify(client.project.store, result.run_id).ok
        ticking.cancel()

    asyncio.run(run())
    assert commits


def test_a_run_survives_results_of_commits_that_were_lost(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, count = postgres._call, list[int]()

    def lose(db: Any, calls: Any) -> list[str]:
        done = call(db, calls)
        count.append(1)
        if len(count) % 3 == 0:
            raise psycopg.OperationalError("the connection was lost")
        return done

    monkeypatch.setattr(postgres, "_call", lose)
    steps = [{"id": f"s{number}", "agent": "explorer", "prompt": "go"} for number in range(6)]

    async def run() -> None:
        address = PostgresAddress(url=server.url, project="team/doubt", patience_s=PATIENCE_S)
        async with Client(wire(tmp_path, store=address)) as client:
            options = Options(script="default: done", max_concurrency=1)
            result = await client.run(fanfold.Recipe(name="loop", steps=steps), options=options)
            assert result.status == "completed"
            assert verify(client.project.store, result.run_id).ok

    asyncio.run(run())
    assert len(count) > 6


def test_an_outage_ends_neither_the_driver_nor_its_sessions(tmp_path: Path) -> None:
    server = PostgresServer()
    try:
        address = PostgresAddress(url=server.url, project="team/tests", patience_s=PATIENCE_S)
        address.init()
        step = {"agent": "explorer", "prompt": "go"}
        steps = [
            {"id": f"s{number}", **step, "depends_on": [f"s{number - 1}"] if number else []}
            for number in range(60)
        ]

        async def run() -> None:
            async with Client(wire(tmp_path, store=address)) as client:
                crashing = asyncio.create_task(asyncio.to_thread(server.crash))
                options = Options(script="default: done")
                result = await client.run(fanfold.Recipe(name="loop", steps=steps), options=options)
                await crashing
                assert result.status == "completed"
                assert verify(client.project.store, result.run_id).ok

        asyncio.run(run())
    finally:
        server.remove()


def test_an_outage_that_is_longer_than_the_patience_is_reported() -> None:
    server = PostgresServer()
    try:
        address = PostgresAddress(url=server.url, project="team/tests", patience_s=1)
        address.init()
        store = address.open()
        server.stop()
        with pytest.raises(StoreFault) as gone:
            store.reach("r1")
        assert gone.value.code == "store.unreachable"
        server.start()
        assert store.reach("r1") == 0
        store.close()
    finally:
        server.remove()


def test_a_process_uses_at_most_four_connections_and_one_round_trip_for_a_commit(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = PostgresAddress(url=server.url, project="team/connections")
    stores = [address.open() for _ in range(5)]
    tree = Tree("r1", stores[0].acquire("r1").epoch)
    stores[0].write([tree.step()])
    sent: list[str] = []
    execute = psycopg.Connection.execute

    def count(self: Any, query: Any, *rest: Any) -> object:
        if threading.current_thread() is threading.main_thread():
            sent.append(str(query))
        return execute(self, query, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(psycopg.Connection, "execute", count)
        stores[0].write([tree.step()])
    assert len(sent) == 1, sent
    assert sent[0].startswith("SELECT fanfold.commit")
    threads = [threading.Thread(target=lambda one=one: list(one.tree("r1"))) for one in stores * 4]
    with stores[1].follow("r1"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with psycopg.connect(server.url, autocommit=True) as db:
            query = (
                "SELECT count(*), count(*) FILTER (WHERE state LIKE 'idle in%') FROM pg_stat_activity"
                " WHERE application_name = 'fanfold' AND datname = current_database()"
            )
            count_open, in_transaction = db.execute(query).fetchall()[0]
            locks = db.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone()
    assert count_open <= 4
    assert (in_transaction, locks) == (0, (0,))
    for store in stores:
        store.close()
