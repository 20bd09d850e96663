"""Seven bugs of stores that several processes share; the suite notices each of them.

A planted bug is slowed down where it matters, as a busy server would: a transaction pauses between its check
and its commit. The same pauses in the correct store are harmless (`correct`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from uuid import uuid4

import psycopg
import pytest

from fanfold.process_identity import ProcessIdentity
from fanfold.store import postgres, postgres_tables
from fanfold.store.address import PostgresAddress
from fanfold.store.postgres import PostgresStore
from fanfold.store.protocol import Batch, Store
from fanfold.testing.store_suite import StoreSuite
from tests.cluster.test_outages import commit_through_a_crash
from tools.postgresql import PostgresServer

pytestmark = pytest.mark.full

Make = Callable[..., Callable[[], Store]]
CREATES = postgres_tables.script()
PAUSE = "  PERFORM pg_sleep(random() * 0.02);\n  RETURN freed;\n"
COLLECTS = f"  PERFORM pg_advisory_xact_lock_shared(p, {postgres_tables.COLLECTION});\n"
FENCES = "    PERFORM pg_advisory_xact_lock_shared(fanfold.tree_lock(p, r));\n"


@pytest.fixture
def make_store(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Make a database with slow transactions whose SQL lacks these texts; return what opens a store."""
    opened: list[Store] = []
    names: list[str] = []

    def make(*lacking: str) -> Callable[[], Store]:
        name = f"bug_{uuid4().hex[:8]}"
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute(f"CREATE DATABASE {name}".encode())
        names.append(name)
        sql = CREATES.replace("  RETURN freed;\n", PAUSE)
        for text in lacking:
            assert text in sql
            sql = sql.replace(text, "")
        monkeypatch.setattr(postgres_tables, "script", lambda: sql)
        url = server.url.replace("/postgres?", f"/{name}?")
        address = PostgresAddress(url=url, project="team/tests", expiry_s=StoreSuite.expiry_s)
        address.init()

        def open_store() -> Store:
            opened.append(address.open())
            return opened[-1]

        return open_store

    yield make
    for store in opened:
        store.close()
    with psycopg.connect(server.url, autocommit=True) as db:
        for name in names:
            db.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


SUITE = StoreSuite()


def test_correct_with_the_same_pauses(make_store: Make) -> None:
    for test in (
        SUITE.test_outputs_never_become_visible_out_of_order,
        SUITE.test_nothing_of_an_earlier_owner_follows_what_the_next_one_read,
        SUITE.test_a_value_that_a_run_starts_to_use_survives_the_deletion_of_another,
    ):
        open_store = make_store()
        test(open_store(), open_store)


def test_fence(make_store: Make) -> None:
    open_store = make_store(FENCES)
    with pytest.raises(AssertionError, match="the log grew"):
        SUITE.test_nothing_of_an_earlier_owner_follows_what_the_next_one_read(open_store(), open_store)


def test_claims(make_store: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(self: PostgresStore, db: psycopg.Connection[object]) -> None:
        db.execute("SELECT pg_sleep(random() * 0.02)")

    monkeypatch.setattr(PostgresStore, "_lock_claims", slowly)
    with pytest.raises(AssertionError, match="for one tree"):
        SUITE.test_a_claim_that_several_request_at_the_same_moment_is_granted_once(make_store())


def test_output_order(make_store: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_SETTLED", "place > 0")
    open_store = make_store()
    with pytest.raises(AssertionError):
        SUITE.test_outputs_never_become_visible_out_of_order(open_store(), open_store)


def test_collection(make_store: Make) -> None:
    open_store = make_store(COLLECTS)
    with pytest.raises(Exception, match="has no blob"):
        SUITE.test_a_value_that_a_run_starts_to_use_survives_the_deletion_of_another(open_store(), open_store)


def test_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PostgresStore, "_is_stored", lambda *_: False)
    with pytest.raises(Exception, match="so the batch does not follow it"):
        commit_through_a_crash(lose_the_result=True)


def test_early_wake_up(make_store: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    write = PostgresStore._write

    def wake_first(self: PostgresStore, batches: Sequence[Batch]) -> list[str]:
        for batch in batches:
            self._signal("commits", batch.root)
        self._connections.run(lambda db: db.execute("SELECT pg_sleep(0.1)"))
        return write(self, batches)

    monkeypatch.setattr(PostgresStore, "_write", wake_first)
    open_store = make_store()
    store = open_store()
    assert isinstance(store, PostgresStore)
    monkeypatch.setattr(store, "write", store._write)
    with pytest.raises(AssertionError, match="woken too early"):
        SUITE.test_a_wake_up_follows_its_commit(store, open_store)


def test_remote_lease(make_store: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProcessIdentity, "is_of_this_machine", lambda _: True)
    open_store = make_store()
    with pytest.raises(AssertionError):
        SUITE.test_an_owner_on_another_machine_is_alive_until_its_lease_ran_out(open_store(), open_store)
