"""What every store must do for those who share it: leases, requests, wake-ups, looking without touching."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TypeAlias

import pytest
from msgspec.structs import replace

from fanfold.errors import NotFoundError
from fanfold.process_identity import ProcessIdentity, this_process
from fanfold.store.protocol import (
    RECHECK_S,
    Batch,
    Lease,
    LeaseHeld,
    LeaseLost,
    Request,
    Store,
    StoreAddress,
    StoreFault,
)
from fanfold.testing.stores.trees import Tree

Open: TypeAlias = Callable[[], Store]

SOMEBODY_DEAD = ProcessIdentity("an earlier boot", 4711, "12345", "1")
SOON_S = RECHECK_S / 2
"""Sooner than looking again without being told."""


class OwnershipTests:
    expiry_s = 1.5
    """How long leases of the store under test live; its address has to see to that."""

    def test_a_live_owner_keeps_everybody_else_out(self, store: Store, open_store: Open) -> None:
        lease = store.acquire("r1", this_process())
        assert lease == Lease("r1", this_process(), 1)
        with pytest.raises(LeaseHeld) as held:
            open_store().acquire("r1", this_process())
        assert held.value.details["pid"] == this_process().pid
        assert store.owner("r1") == (this_process(), True)
        assert store.acquire("r2", this_process()).epoch == 1

    def test_a_released_lease_goes_to_the_next_with_a_higher_epoch(self, store: Store) -> None:
        assert store.owner("r1") is None
        assert store.heartbeat_age_ms("r1") is None
        lease = store.acquire("r1", this_process())
        assert 0 <= (store.heartbeat_age_ms("r1") or 0) < 60_000
        store.release(lease)
        assert store.owner("r1") is None
        assert store.heartbeat_age_ms("r1") is None
        assert store.acquire("r1", this_process()).epoch == 2

    def test_the_lease_of_a_dead_process_is_taken_at_once(self, store: Store) -> None:
        myself = this_process()
        reused = replace(myself, started="another start")
        for epoch, dead in enumerate([SOMEBODY_DEAD, reused], start=1):
            assert store.acquire("r1", dead).epoch == epoch
            assert store.owner("r1") == (dead, False)
        assert store.acquire("r1", myself).epoch == 3

    def test_a_write_of_an_earlier_owner_is_refused_whole(self, store: Store, open_store: Open) -> None:
        zombie = Tree("r1", store.acquire("r1", SOMEBODY_DEAD).epoch)
        store.write([zombie.step()])
        other = open_store()
        owner = Tree("r1", other.acquire("r1", this_process()).epoch)
        late = zombie.step("too late")
        with pytest.raises(LeaseLost):
            store.write([late])
        assert not store.has_blob(late.blobs[0][0])
        owner.place, owner.seqs = 2, {"r1": 2}
        other.write([owner.step("in time")])
        with pytest.raises(LeaseLost):
            store.write([late])
        assert [event.epoch for event in store.tree("r1")] == [1, 1, 2, 2]

    def test_a_lost_lease_cannot_be_released(self, store: Store) -> None:
        old = store.acquire("r1", SOMEBODY_DEAD)
        store.acquire("r1", this_process())
        store.release(old)
        assert store.owner("r1") == (this_process(), True)

    def test_requests_wait_until_the_owner_acted_on_them(self, store: Store, open_store: Open) -> None:
        asked = [
            Request(root="r1", run_id="c1", kind="approve", data={"step": "gate", "by": "ann"}, at=5),
            Request(root="r1", run_id="r1", kind="cancel", data={}, at=6),
            Request(root="r2", run_id="r2", kind="pause", data={}, at=7),
        ]
        ids = [open_store().request(request) for request in asked]
        assert [(request.id, request.kind, request.data) for request in store.requests("r1")] == [
            (ids[0], "approve", {"step": "gate", "by": "ann"}),
            (ids[1], "cancel", {}),
        ]
        store.write([Batch(root="r1", epoch=0, requests_done=[ids[0], ids[2]])])
        assert [request.id for request in store.requests("r1")] == [ids[1]]
        assert [request.id for request in store.requests("r2")] == [ids[2]], "only the owner's own requests"
        assert store.request(asked[0]) > ids[2]

    # ---------------------------------------------------------------------------- leases that run out

    def test_a_lease_is_kept_alive_until_its_store_is_closed(self, store: Store, open_store: Open) -> None:
        other, lease = open_store(), store.acquire("r1")
        time.sleep(self.expiry_s * 2)
        store.confirm(lease)
        with pytest.raises(LeaseHeld):
            other.acquire("r1")
        store.close()
        time.sleep(self.expiry_s * 1.2)
        assert other.owner("r1") == (this_process(), False)
        assert other.acquire("r1").epoch == 2

    def test_the_lease_of_a_process_that_cannot_be_seen_is_taken_when_it_ran_out(self, store: Store) -> None:
        unseen = replace(this_process(), namespace="another")
        store.acquire("r1", unseen)
        assert store.owner("r1") == (unseen, True)
        with pytest.raises(LeaseHeld):
            store.acquire("r1")
        time.sleep(self.expiry_s * 1.2)
        assert store.acquire("r1").epoch == 2

    def test_only_a_live_lease_is_confirmed(self, store: Store, open_store: Open) -> None:
        lost = store.acquire("r1", SOMEBODY_DEAD)
        lease = open_store().acquire("r1")
        with pytest.raises(LeaseLost):
            store.confirm(lost)
        store.confirm(lease)
        store.release(lease)
        with pytest.raises(LeaseLost):
            store.confirm(lease)

    # ----------------------------------------------------------------------------------------- waking

    def test_followers_are_woken_by_commits_and_when_a_tree_changes_hands(
        self, store: Store, open_store: Open
    ) -> None:
        other = open_store()
        with other.follow("r1") as one, other.follow("r1") as two:
            lease = store.acquire("r1")
            assert one.wait_blocking(SOON_S)
            assert two.wait_blocking(SOON_S)
            assert not one.wait_blocking(0)
            store.write([Tree("r1", lease.epoch).step()])
            assert one.wait_blocking(SOON_S)
            store.release(lease)
            assert one.wait_blocking(SOON_S)
            assert two.wait_blocking(SOON_S), "what was signalled while nobody waited is not lost"

    def test_who_follows_every_tree_is_woken_by_each_of_them(self, store: Store, open_store: Open) -> None:
        other = open_store()
        with other.follow() as anything:
            for name in ("r1", "r2", "r3"):
                store.write([Tree(name).step()])
                assert anything.wait_blocking(SOON_S)
                assert not anything.wait_blocking(0)

    def test_the_owner_is_woken_by_requests_and_by_who_takes_over(
        self, store: Store, open_store: Open
    ) -> None:
        other = open_store()
        store.acquire("r1", SOMEBODY_DEAD)
        with store.listen("r1") as asked, other.follow("r1") as followed:
            other.request(Request(root="r1", run_id="r1", kind="cancel", data={}, at=1))
            assert asked.wait_blocking(SOON_S)
            assert not followed.wait_blocking(0)
            other.acquire("r1")
            assert asked.wait_blocking(SOON_S)

    def test_a_task_and_a_thread_are_woken_while_they_wait(self, store: Store, open_store: Open) -> None:
        tree, other = Tree("r1"), open_store()
        heard: list[bool] = []

        async def in_a_task() -> None:
            with other.follow("r1") as signal:
                waiting = asyncio.create_task(signal.wait(SOON_S))
                await asyncio.sleep(0)
                store.write([tree.step()])
                heard.append(await waiting)

        asyncio.run(in_a_task())
        with other.follow("r1") as signal:
            thread = threading.Thread(target=lambda: heard.append(signal.wait_blocking(SOON_S)))
            thread.start()
            store.write([tree.step()])
            thread.join()
        assert heard == [True, True]

    # ---------------------------------------------------------------------------------- where it is

    def test_asking_for_a_store_makes_none(self, address: StoreAddress) -> None:
        assert (address.exists(), address.examine()) == (False, None)
        with pytest.raises(NotFoundError):
            address.open_to_read()
        assert not address.exists()
        assert address.engine()

    def test_a_store_that_is_read_only_sees_everything_and_changes_nothing(
        self, address: StoreAddress, store: Store
    ) -> None:
        tree = Tree("r1")
        store.write([tree.step()])
        looking = address.open_to_read()
        store.write([tree.step()])
        assert (looking.read_only, len(list(looking.tree("r1"))), looking.check()) == (True, 4, [])
        changes: list[Callable[[], object]] = [
            lambda: looking.write([Batch(root="r2", epoch=0)]),
            lambda: looking.acquire("r1"),
            lambda: looking.request(Request(root="r1", run_id="r1", kind="cancel", data={}, at=1)),
            lambda: looking.delete_tree("r1"),
        ]
        for change in changes:
            with pytest.raises(StoreFault):
                change()
        looking.close()
        health = address.examine()
        assert address.exists()
        assert health is not None
        assert health.problems == ()
