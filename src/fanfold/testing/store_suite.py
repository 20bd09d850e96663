"""The suite: a test class for a store's test module.

    class TestPostgres(StoreSuite):
        @pytest.fixture
        def address(self, tmp_path) -> StoreAddress:
            return PostgresAddress(..., expiry_s=self.expiry_s)

Within one test, the address must always open the same store, which is empty at first.
`docs/how-to/add-a-store.md` shows how to add a store.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from msgspec.structs import replace

from fanfold.errors import AuthorError, BugError, NotFoundError
from fanfold.kernel.events import Envelope, Evidence, Failure, StepEvent, Usage
from fanfold.process_identity import ProcessIdentity, start_time, this_process
from fanfold.store.protocol import (
    DELETED,
    RECHECK_S,
    Batch,
    Lease,
    LeaseHeld,
    LeaseLost,
    OutputRow,
    Request,
    RunHead,
    SessionSuperseded,
    Store,
    StoreAddress,
    StoreFault,
)
from fanfold.testing.store_races import SOMEBODY_DEAD, ClaimTests, Open, RaceTests, Tree, head, stored

# -----------------------------------------------------------------------------------------------------------
# Logs: complete, in order, exactly as committed.


def _decoded(envelopes: Sequence[Envelope]) -> list[Envelope]:
    return [replace(envelope, data=json.loads(envelope.data)) for envelope in envelopes]


class LogTests:
    def test_a_tree_is_read_back_as_it_was_written(self, store: Store, open_store: Open) -> None:
        tree = Tree("r1")
        for _ in range(3):
            store.write([Batch(root="r1", epoch=0, envelopes=[tree.event(), tree.event()])])
        assert list(store.tree("r1")) == tree.envelopes
        assert list(open_store().tree("r1")) == tree.envelopes

    def test_reading_goes_on_after_a_number(self, store: Store) -> None:
        tree = Tree("r1")
        store.write([Batch(root="r1", epoch=0, envelopes=[tree.event() for _ in range(10)])])
        assert [event.tree_seq for event in store.tree("r1", after=7)] == [8, 9, 10]
        assert [event.seq for event in store.log("r1", after=9)] == [10]
        assert list(store.tree("r1", after=10)) == []
        store.write(
            [Batch(root="r1", epoch=0, envelopes=[tree.session("s1", Evidence("session_event", {}))])]
        )
        assert store.reach("r1") == 10
        assert store.reach("unknown") == 0

    def test_a_log_is_read_as_its_reader_decodes_it(self, store: Store) -> None:
        tree = Tree("r1")
        entry = tree.session("s1", Evidence("session_event", {"kind": "input", "text": "hello"}))
        store.write([Batch(root="r1", epoch=0, envelopes=[tree.event(), entry])])
        (read,) = store.log("s1", 0, type)
        assert read.data is bytes
        (read,) = store.log("s1", 0, json.loads)
        assert read == entry

    def test_a_child_run_has_a_log_of_its_own_and_its_place_in_the_tree(
        self, store: Store, open_store: Open
    ) -> None:
        tree = Tree("r1")
        events = [tree.event(), tree.event(run="c1", depth=1), tree.event(), tree.event(run="c1", depth=1)]
        store.write([Batch(root="r1", epoch=0, envelopes=events)])
        more = [tree.event(run="c2", depth=1), tree.event(run="c1", depth=1), tree.event()]
        open_store().write([Batch(root="r1", epoch=0, envelopes=more)])
        assert [event.log for event in store.tree("r1")] == ["r1", "c1", "r1", "c1", "c2", "c1", "r1"]
        assert [(event.seq, event.tree_seq) for event in store.log("c1")] == [(1, 2), (2, 4), (3, 6)]
        assert list(store.log("r1")) == [event for event in tree.envelopes if event.log == "r1"]
        assert list(store.log("c1", after=2)) == [more[1]]

    def test_a_session_has_a_log_without_a_place_in_the_tree(self, store: Store, open_store: Open) -> None:
        tree = Tree("r1")
        say = Evidence("session_event", {"kind": "input", "text": "hello"})
        child = [tree.event(), tree.event(run="c1", depth=1)]
        entries = [tree.session("s1", say), tree.session("s2", say, run="c1", depth=1)]
        store.write([Batch(root="r1", epoch=0, envelopes=[*child, *entries])])
        more = [tree.session("s1", say), tree.event(), tree.session("s1", say), tree.session("s1", say)]
        open_store().write([Batch(root="r1", epoch=0, envelopes=more)])
        assert list(store.log("s1")) == [entries[0], more[0], more[2], more[3]]
        assert list(store.log("s2")) == [entries[1]]
        assert list(store.log("s1", after=2)) == more[2:]
        assert [event.tree_seq for event in store.log("s1")] == [0, 0, 0, 0]
        assert list(store.tree("r1")) == [*child, more[1]]
        assert list(store.tree("r1", after=2)) == list(store.log("r1", after=1)) == [more[1]]

    def test_a_session_may_come_before_any_event_of_its_tree(self, store: Store) -> None:
        tree = Tree("r1")
        entries = [tree.session("s1"), tree.session("r1"), tree.session("s1")]
        store.write([Batch(root="r1", epoch=0, envelopes=entries)])
        assert list(store.log("s1")) == [entries[0], entries[2]]
        assert list(store.log("r1")) == [entries[1]]
        assert list(store.tree("r1")) == []

    @pytest.mark.parametrize("seq", [1, 2, 4])
    def test_a_gap_in_a_session_is_refused_whole(self, store: Store, open_store: Open, seq: int) -> None:
        tree = Tree("r1")
        store.write([Batch(root="r1", epoch=0, envelopes=[tree.session("s1"), tree.session("s1")])])
        bad = replace(tree.session("s1"), seq=seq)
        for writer in (store, open_store()):
            with pytest.raises(BugError):
                writer.write([Batch(root="r1", epoch=0, envelopes=[tree.event(), bad])])
        assert [event.seq for event in store.log("s1")] == [1, 2]
        assert list(store.tree("r1")) == []

    def test_a_long_log_comes_in_order_and_whole(self, store: Store) -> None:
        tree = Tree("r1")
        events = [tree.event(run="" if n % 3 else "c1", depth=n % 3 == 0) for n in range(1, 3_501)]
        store.write([Batch(root="r1", epoch=0, envelopes=events)])
        assert list(store.tree("r1")) == events
        assert [event.seq for event in store.log("c1")] == list(range(1, 3_500 // 3 + 1))
        assert list(store.log("r1")) == [event for event in events if event.log == "r1"]

    def test_what_was_appended_while_reading_is_read_too(self, store: Store) -> None:
        tree = Tree("r1")
        store.write([Batch(root="r1", epoch=0, envelopes=[tree.event() for _ in range(1_500)])])
        reading = store.tree("r1")
        next(reading)
        store.write([Batch(root="r1", epoch=0, envelopes=[tree.event(run="c1", depth=1)])])
        assert [event.log for event in reading][-1] == "c1"

    def test_a_log_nobody_wrote_is_empty(self, store: Store) -> None:
        assert list(store.tree("r1")) == list(store.log("r1")) == []

    @pytest.mark.parametrize(("seq", "place"), [(4, 4), (2, 2), (3, 4), (4, 3), (2, 3), (1, 3)])
    def test_a_gap_or_a_number_used_twice_is_refused_whole(self, store: Store, seq: int, place: int) -> None:
        tree = Tree("r1")
        store.write([Batch(root="r1", epoch=0, envelopes=[tree.event()])])
        good = tree.event()
        bad = replace(tree.event(), seq=seq, tree_seq=place)
        with pytest.raises(BugError):
            store.write([Batch(root="r1", epoch=0, envelopes=[good, bad], blobs=[stored("lost")])])
        assert [event.seq for event in store.log("r1")] == [1]
        assert not store.has_blob(stored("lost")[0])
        store.write([Batch(root="r1", epoch=0, envelopes=[good])])

    def test_a_childs_event_needs_its_root(self, store: Store) -> None:
        with pytest.raises(BugError):
            store.write([Batch(root="r1", epoch=0, envelopes=[Tree("r1").event(run="c1", depth=1)])])

    def test_several_trees_are_written_in_one_go_or_not_at_all(self, store: Store) -> None:
        one, two = Tree("r1"), Tree("r2")
        store.write([one.step(), two.step()])
        assert len(list(store.tree("r1"))) == len(list(store.tree("r2"))) == 2
        two.epoch = 9
        with pytest.raises(LeaseLost):
            store.write([one.step(), two.step()])
        assert len(list(store.tree("r1"))) == 2

    def test_commits_are_read_back_with_the_state_they_led_to(self, store: Store, open_store: Open) -> None:
        tree = Tree("r1")
        say = Evidence("session_event", {"kind": "input", "text": "hello"})
        first = [tree.event(), tree.event(run="c1", depth=1)]
        store.write([Batch(root="r1", epoch=0, envelopes=first, state=b"one")])
        store.write([Batch(root="r1", epoch=0, envelopes=[tree.session("s1", say)])])
        last = [tree.session("s1", say), tree.event()]
        store.write([Batch(root="r1", epoch=0, envelopes=last, state=b"two")])
        for opened in (store, open_store()):
            commits = [(_decoded(commit.envelopes), commit.state) for commit in opened.commits("r1")]
            assert commits == [(first, b"one"), (last[1:], b"two")]
            assert [[entry.log for entry in commit.entries] for commit in opened.commits("r1")] == [
                [],
                ["s1"] * 2,
            ]
        assert list(store.commits("unknown")) == []

    def test_what_nobody_touched_is_whole(self, store: Store, open_store: Open) -> None:
        one, two = Tree("r1", store.acquire("r1").epoch), Tree("r2")
        for _ in range(5):
            store.write([one.step(), two.step("the same")])
        other = open_store()
        other.write([Batch(root="r2", epoch=0, envelopes=[two.event(run="c1", depth=1)])])
        store.write([one.step(), two.step("the same")])
        other.delete_tree("r2")
        assert (store.check(), store.check("r1"), other.check()) == ([], [], [])
        assert set(store.roots()) == {"r1"}

    def test_a_snapshot_is_one_moment(self, store: Store, open_store: Open) -> None:
        tree, other = Tree("r1"), open_store()
        store.write([tree.step()])
        with other.snapshot():
            seen = len(list(other.tree("r1")))
            store.write([tree.step()])
            assert len(list(other.tree("r1"))) == seen == 2
            assert len(other.output_rows()) == 1
            assert other.check() == []
        assert len(list(other.tree("r1"))) == 4


# -----------------------------------------------------------------------------------------------------------
# Sharing: leases, requests, wake-ups, and reading without side effects.

REMOTE = ProcessIdentity("a boot", 4711, "12345", "1", "another-12345678")
"""A process of another machine, which cannot be known to be dead from here."""
SOON_S = RECHECK_S / 2
"""Less than the interval of polling without a signal."""


class OwnershipTests:
    expiry_s = 1.5
    """The duration of leases of the store under test; its address must use it."""

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

    def test_an_owner_on_another_machine_is_alive_until_its_lease_ran_out(
        self, store: Store, open_store: Open
    ) -> None:
        other, lease = open_store(), store.acquire("r1", REMOTE)
        assert store.owner("r1") == (REMOTE, True), "it cannot be known to be dead"
        with pytest.raises(LeaseHeld) as held:
            other.acquire("r1")
        assert "process 4711 on another" in held.value.message
        store.write([Tree("r1", lease.epoch).step()])
        time.sleep(self.expiry_s * 1.2)
        assert store.owner("r1") == (REMOTE, False)
        taken = other.acquire("r1")
        assert taken.epoch == 2
        assert taken.lived_ms == 0, "it never renewed its lease"
        with pytest.raises(LeaseLost):
            store.write([Tree("r1", lease.epoch).step("too late")])

    def test_the_clock_of_the_store_goes_forward_for_all(self, store: Store, open_store: Open) -> None:
        first = store.now_ms()
        second = open_store().now_ms()
        assert 0 <= second - first < 60_000
        assert store.now_ms() >= second

    # ------------------------------------------------------------------ sessions and their executions

    def test_a_session_belongs_to_the_execution_that_started_last(
        self, store: Store, open_store: Open
    ) -> None:
        lease, other = store.acquire("r1"), open_store()
        tree = Tree("r1", lease.epoch)
        store.write([Batch(root="r1", epoch=1, envelopes=[tree.event()], started=[("s1", 1)])])
        store.write([Batch(root="r1", epoch=1, envelopes=[tree.session("s1")])])
        other.write([Batch(root="r1", epoch=None, envelopes=[tree.session("s1")], blobs=[stored("kept")])])
        store.write([Batch(root="r1", epoch=1, envelopes=[tree.event()], started=[("s1", 2)])])
        late = tree.session("s1")
        for writer, epoch in ((store, 1), (store, None), (other, None), (open_store(), None)):
            batch = Batch(root="r1", epoch=epoch, envelopes=[late], blobs=[stored("late")])
            with pytest.raises(SessionSuperseded):
                writer.write([batch])
        assert not store.has_blob(stored("late")[0])
        other.write([Batch(root="r1", epoch=None, envelopes=[replace(late, epoch=2)])])
        assert [(entry.seq, entry.epoch) for entry in store.log("s1")] == [(1, 1), (2, 1), (3, 2)]

    def test_an_execution_outlives_the_owner_that_started_it(self, store: Store, open_store: Open) -> None:
        tree = Tree("r1", store.acquire("r1", SOMEBODY_DEAD).epoch)
        store.write([Batch(root="r1", epoch=1, envelopes=[tree.event()], started=[("s1", 2)])])
        other = open_store()
        other.acquire("r1")
        entry = tree.session("s1", execution=2)
        store.write([Batch(root="r1", epoch=None, envelopes=[entry])])
        with pytest.raises(LeaseLost):
            store.write([Batch(root="r1", epoch=1, envelopes=[tree.session("s1", execution=2)])])
        assert list(other.log("s1")) == [entry]

    def test_an_execution_writes_nothing_but_its_session_and_values(self, store: Store) -> None:
        tree = Tree("r1", store.acquire("r1").epoch)
        for batch in (tree.step(), Batch(root="r1", epoch=None, requests_done=[1])):
            with pytest.raises(BugError):
                store.write([replace(batch, epoch=None)])
        assert list(store.tree("r1")) == []

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
            assert two.wait_blocking(SOON_S), "a signal without a waiter is not lost"

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


# -----------------------------------------------------------------------------------------------------------
# Values, rows of runs and outputs, and deletion.


class RecordTests:
    def test_content_is_found_by_its_hash(self, store: Store) -> None:
        blobs = [stored("a"), stored({"big": "x" * 300_000})]
        store.write([Batch(root="r1", epoch=0, blobs=blobs)])
        store.write([Batch(root="r2", epoch=0, blobs=blobs)])
        assert [store.blob(hash) for hash, _ in blobs] == [content for _, content in blobs]
        assert store.has_blob(blobs[0][0])
        assert not store.has_blob("0" * 32)
        with pytest.raises(NotFoundError):
            store.blob("0" * 32)

    def test_outputs_come_in_order_of_arrival(self, store: Store) -> None:
        tree = Tree("r1")
        for _ in range(5):
            store.write([tree.step()])
        rows = store.output_rows(limit=3)
        rows += store.output_rows(after=rows[-1][0])
        assert [row.path for _, row in rows] == ["step1", "step2", "step3", "step4", "step5"]
        assert [number for number, _ in rows] == sorted({number for number, _ in rows})
        assert rows[0][1] == OutputRow(
            run_id="r1", root_run_id="r1", path="step1", role="critic", blob=stored("output 1 of r1")[0], at=1
        )

    def test_steps_that_say_the_same_have_one_value_and_an_output_each(self, store: Store) -> None:
        one, two = Tree("r1"), Tree("r2")
        store.write([one.step("the same")])
        store.write([two.step("the same"), one.step("the same")])
        value = stored("the same")
        assert [(row.run_id, row.path, row.blob) for _, row in store.output_rows()] == [
            ("r1", "step1", value[0]),
            ("r2", "step1", value[0]),
            ("r1", "step2", value[0]),
        ]
        last = store.output_rows()[-1][0]
        store.delete_tree("r1")
        assert store.blob(value[0]) == value[1]
        rows = store.output_rows()
        assert [(row.run_id, row.status) for _, row in rows] == [("r2", "completed"), ("r1", DELETED)]
        assert rows[-1][0] > last, "a number is never used twice"
        store.delete_tree("r2")
        assert not store.has_blob(value[0])
        assert [row.status for _, row in store.output_rows()] == [DELETED, DELETED]

    def test_a_completed_step_is_found_by_its_content_key(self, store: Store) -> None:
        assert store.cached("key") is None
        store.write([Batch(root="r1", epoch=0, cache=[("key", "blob1", "r1")])])
        assert store.cached("key") == "blob1"

    def test_a_head_is_kept_up_to_date(self, store: Store) -> None:
        first = head("r1", started_at=5)
        store.write([Batch(root="r1", epoch=0, heads=[first])])
        assert store.head("r1") == first
        last = head(
            "r1",
            started_at=5,
            ended_at=9,
            status="failed",
            inputs="i" * 32,
            output="o" * 32,
            error=Failure("timeout", "step.timeout", "too slow", "give it more time", False, "a", 2),
            usage=Usage(10, 20, 30),
            agents=3,
            forked_from="r0",
        )
        store.write([Batch(root="r1", epoch=0, heads=[last])])
        assert store.head("r1") == last
        assert store.head("r2") is None

    def test_heads_come_newest_first_and_can_be_chosen(self, store: Store) -> None:
        for number in range(5):
            status = "failed" if number % 2 else "completed"
            store.write([Batch(root="x", epoch=0, heads=[head(f"r{number}", status=status)])])
        store.write([Batch(root="x", epoch=0, heads=[head("c0", "r0", "r0")])])
        assert _ids(store.heads()) == ["r4", "r3", "r2", "r1", "r0"]
        assert _ids(store.heads(limit=2)) == ["r4", "r3"]
        assert _ids(store.heads(status="failed")) == ["r3", "r1"]
        assert _ids(store.heads(roots_only=False, limit=1)) == ["c0"]
        assert _ids(store.heads(before="r3", limit=2)) == ["r2", "r1"]
        assert store.heads(before="unknown") == []
        assert len(store.heads(recipe=head("r0").recipe)) == 5
        assert store.heads(recipe="another") == []

    def test_runs_know_their_children_and_their_tree(self, store: Store) -> None:
        heads = [head("r1"), head("c1", "r1", "r1"), head("c2", "r1", "r1"), head("g1", "r1", "c1")]
        store.write([Batch(root="r1", epoch=0, heads=heads)])
        store.write([Batch(root="r1", epoch=0, heads=[head("c1", "r1", "r1", status="completed")])])
        assert _ids(store.children("r1")) == ["c1", "c2"]
        assert _ids(store.tree_heads("r1")) == ["r1", "c1", "c2", "g1"]
        assert store.children("g1") == []

    def test_a_run_is_meant_by_the_beginning_of_its_id(self, store: Store) -> None:
        with pytest.raises(NotFoundError):
            store.resolve("last")
        for run in ("abc1", "abd2", "abd"):
            store.write([Batch(root=run, epoch=0, heads=[head(run)])])
        store.write([Batch(root="abd", epoch=0, heads=[head("zz", "abd", "abd")])])
        assert store.resolve("abc") == "abc1"
        assert store.resolve("abd") == "abd"
        assert store.resolve("z") == "zz"
        assert store.resolve("last") == "abd"
        with pytest.raises(AuthorError) as ambiguous:
            store.resolve("ab")
        assert ambiguous.value.details["runs"] == ["abc1", "abd", "abd2"]
        for nothing in ("x", "%", "ab_", "abc1x"):
            with pytest.raises(NotFoundError):
                store.resolve(nothing)

    def test_a_deleted_tree_leaves_nothing_but_what_others_need(self, store: Store) -> None:
        shared, own, deep = stored("shared"), stored("own"), stored("deep in a session")
        doomed, other = Tree("r1", store.acquire("r1", this_process()).epoch), Tree("r2")
        say = Evidence("session_event", {"entries": [{"text": f"see {deep[0]}, it is long"}]})
        first = [
            doomed.event(StepEvent("a", "completed", output=shared[0])),
            doomed.event(StepEvent("b", "completed", output=own[0]), run="c1", depth=1),
            doomed.session("s1", say),
        ]
        heads = [head("r1"), head("c1", "r1", "r1")]
        store.write([Batch(root="r1", epoch=1, envelopes=first, blobs=[shared, own, deep], heads=heads)])
        store.write([doomed.step(), other.step()])
        seen = store.output_rows()[-1][0]
        event = other.event(StepEvent("again", "completed", output=shared[0]))
        store.write([Batch(root="r2", epoch=0, envelopes=[event], cache=[("k2", shared[0], "r2")])])
        store.write([Batch(root="r1", epoch=1, cache=[("k1", own[0], "c1")])])
        store.request(Request(root="r1", run_id="r1", kind="cancel", data={}, at=1))

        store.delete_tree("r1")

        assert list(store.tree("r1")) == list(store.log("c1")) == list(store.log("s1")) == []
        assert _ids(store.heads(roots_only=False)) == ["r2"]
        assert store.requests("r1") == []
        assert store.owner("r1") is None
        assert store.cached("k1") is None
        assert store.has_blob(shared[0])
        assert not store.has_blob(own[0])
        assert not store.has_blob(deep[0])
        assert list(store.tree("r2")) == other.envelopes
        assert store.blob(stored("output 1 of r2")[0]) == stored("output 1 of r2")[1]
        assert [row.root_run_id for _, row in store.output_rows() if row.status != DELETED] == ["r2"]
        assert [row.status for _, row in store.output_rows(after=seen)] == [DELETED]

    def test_a_batch_that_requires_a_deleted_tree_is_not_written(self, store: Store) -> None:
        source, fork = Tree("r1"), Tree("r2")
        store.write([source.step()])
        store.write([replace(fork.step(), requires="r1")])
        store.delete_tree("r1")
        with pytest.raises(NotFoundError):
            store.write([replace(fork.step(), requires="r1")])
        assert store.reach("r2") == 2

    def test_a_tree_driven_by_another_process_is_not_deleted(self, store: Store) -> None:
        store.acquire("r1", replace(this_process(), pid=1, started=start_time(1) or ""))
        with pytest.raises(LeaseHeld):
            store.delete_tree("r1")

    def test_announcements_are_replaced_age_and_are_withdrawn(self, store: Store, open_store: Open) -> None:
        assert store.announced() == []
        store.announce("two", "first")
        store.announce("one", "other")
        store.announce("two", "second")
        other = open_store()
        assert [(row.name, row.text) for row in other.announced()] == [("one", "other"), ("two", "second")]
        time.sleep(0.05)
        assert all(50 <= row.age_ms < 30_000 for row in other.announced())
        other.announce("two", "")
        other.announce("two", "")
        assert [row.name for row in store.announced()] == ["one"]

    def test_updates_reach_the_listeners_of_their_tree_only(self, store: Store, open_store: Open) -> None:
        heard: list[str] = []
        arrived = threading.Event()

        def hear(text: str) -> None:
            heard.append(text)
            if text == "last":
                arrived.set()

        earlier = threading.Event()
        with open_store().updates("r1", lambda _text: earlier.set()):
            store.publish("r1", "before this listener")
            assert earlier.wait(30)  # a store may send it later than it returns
        with open_store().updates("r1", hear):
            store.publish("r2", "of another tree")
            store.publish("r1", "one\\nline")
            store.publish("r1", "last")
            assert arrived.wait(30)
        store.publish("r1", "after")
        assert heard == ["one\\nline", "last"]

    def test_a_deleted_tree_can_be_written_anew(self, store: Store) -> None:
        tree = Tree("r1")
        store.write([tree.step()])
        store.delete_tree("r1")
        store.delete_tree("r1")
        again = Tree("r1")
        store.write([again.step()])
        assert list(store.tree("r1")) == again.envelopes


def _ids(heads: list[RunHead]) -> list[str]:
    return [row.run_id for row in heads]


class StoreSuite(LogTests, RecordTests, OwnershipTests, ClaimTests, RaceTests):
    """All tests of a store."""

    @pytest.fixture
    def address(self) -> StoreAddress:
        raise NotImplementedError("define the fixture `address` in the subclass")

    @pytest.fixture
    def open_store(self, address: StoreAddress) -> Iterator[Open]:
        opened: list[Store] = []

        def open_store() -> Store:
            opened.append(address.open())
            return opened[-1]

        yield open_store
        for store in opened:
            store.close()

    @pytest.fixture
    def store(self, open_store: Open) -> Store:
        return open_store()
