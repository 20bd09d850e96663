"""Leases that run out: what others may take, and what an owner may still begin."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from fanfold.process_identity import this_process
from fanfold.store import leases
from fanfold.store.protocol import LeaseHeld, LeaseLost, StoreFault
from fanfold.store.sqlite import SqliteStore
from tests.work import PATIENCE_S

SHORT_S = 0.3
UNSEEN = replace(this_process(), namespace="another")


@pytest.fixture
def open_store(tmp_path: Path):
    opened: list[SqliteStore] = []

    def open_store(expiry_s: float = SHORT_S) -> SqliteStore:
        opened.append(SqliteStore(tmp_path, durability="normal", expiry_s=expiry_s))
        return opened[-1]

    yield open_store
    for store in opened:
        store.close()


Open = Callable[..., SqliteStore]


def wait_ms(ms: float) -> None:
    """Let the boot clock go on: the very thing that is tested."""
    end = leases.boot_clock_ms() + ms
    while leases.boot_clock_ms() < end:
        time.sleep(0.005)


def test_an_invisible_owner_is_reported_as_elsewhere_with_the_end_of_its_lease(open_store: Open):
    store = open_store(PATIENCE_S)
    store.acquire("r1", UNSEEN)
    with pytest.raises(LeaseHeld) as held:
        store.acquire("r1")
    assert "another container" in held.value.message
    assert "free in" in held.value.hint
    with pytest.raises(LeaseHeld):
        store.delete_tree("r1")


def test_an_owner_that_was_stopped_for_too_long_learns_it_before_it_begins_anything(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
):
    store, other = open_store(), open_store()
    lease = store.acquire("r1")
    with store.listen("r1") as asked:
        # As after SIGCONT or a laptop's sleep: the clock went on, and nobody could renew.
        ahead = leases.boot_clock_ms() + 60_000
        for module in ("fanfold.store.leases", "fanfold.store.leases"):
            monkeypatch.setattr(f"{module}.boot_clock_ms", lambda: ahead)
        assert other.acquire("r1").epoch == 2
        assert asked.wait_blocking(PATIENCE_S), "it is woken by the very taking"
        with pytest.raises(LeaseLost) as lost:
            store.confirm(lease)
    assert (lost.value.code, lost.value.details["current"]) == ("lease.lost", 2)
    store.release(lease)
    assert other.owner("r1") == (this_process(), True)


def test_an_owner_that_slept_without_a_takeover_continues(open_store: Open, monkeypatch: pytest.MonkeyPatch):
    store = open_store()
    lease = store.acquire("r1")
    ahead = leases.boot_clock_ms() + 60_000
    for module in ("fanfold.store.leases", "fanfold.store.leases"):
        monkeypatch.setattr(f"{module}.boot_clock_ms", lambda: ahead)
    store.confirm(lease)
    with pytest.raises(LeaseHeld):
        open_store().acquire("r1")


def test_a_disk_that_fails_leaves_the_lease_overdue_and_says_why(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
):
    store = open_store()
    lease = store.acquire("r1")
    store._db.pragma("query_only", True)
    wait_ms(SHORT_S * 1_000)
    with pytest.raises(StoreFault):
        store.confirm(lease)
    store._db.pragma("query_only", False)
    store.confirm(lease)
