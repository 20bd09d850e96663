"""Tests for several processes that use a store at the same moment.

A store with one writer passes most of them without effort. On a server, transactions overlap, their numbers
become visible out of order, and a check can be outdated when the write happens. Each test provokes one of
these overlaps many times.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from typing import Any, TypeAlias, TypeVar

import msgspec
import pytest
from msgspec.structs import replace

from fanfold.kernel.events import Data, Envelope, Evidence, StepEvent, type_name
from fanfold.process_identity import ProcessIdentity, machine_name, this_process
from fanfold.store.protocol import (
    RECHECK_S,
    Batch,
    Claim,
    Lease,
    LeaseHeld,
    LeaseLost,
    OutputRow,
    RunHead,
    Store,
)

Open: TypeAlias = Callable[[], Store]
T = TypeVar("T")
WRITERS, ROUNDS = 4, 12
DEAD = replace(this_process(), started="an earlier start")
SOMEBODY_DEAD = ProcessIdentity("an earlier boot", 4711, "12345", "1", machine_name())


def at_once(*tasks: Callable[[], T]) -> list[T]:
    """Call functions at the same moment, each in a thread; return their results."""
    start = threading.Barrier(len(tasks))

    def run(task: Callable[[], T]) -> T:
        start.wait()
        return task()

    with ThreadPoolExecutor(len(tasks)) as threads:
        return [future.result() for future in [threads.submit(run, task) for task in tasks]]


class RaceTests:
    def test_stores_that_write_at_once_lose_nothing(self, store: Store, open_store: Open) -> None:
        stores = [open_store() for _ in range(WRITERS)]

        def write(number: int) -> None:
            tree = Tree(f"r{number}", stores[number].acquire(f"r{number}").epoch)
            for _ in range(ROUNDS):
                stores[number].write([tree.step("the same")])

        at_once(*(partial(write, number) for number in range(WRITERS)))
        for number in range(WRITERS):
            assert [event.tree_seq for event in store.tree(f"r{number}")] == list(range(1, 2 * ROUNDS + 1))
        assert len(store.output_rows()) == WRITERS * ROUNDS
        assert store.check() == []

    def test_outputs_never_become_visible_out_of_order(self, store: Store, open_store: Open) -> None:
        """A reader that continues from the last number misses no event."""
        stores = [open_store() for _ in range(WRITERS)]
        writing = threading.Event()
        writing.set()

        def write(number: int) -> list[tuple[int, Any]]:
            tree = Tree(f"r{number}")
            for _ in range(ROUNDS):
                stores[number].write([tree.step()])
            return []

        def read() -> list[tuple[int, Any]]:
            seen: list[tuple[int, Any]] = []
            while True:
                is_last = not writing.is_set()
                fresh = store.output_rows(after=seen[-1][0] if seen else 0)
                seen += fresh
                if is_last and not fresh:
                    return seen

        with ThreadPoolExecutor(1) as reader:
            reading = reader.submit(read)
            at_once(*(partial(write, number) for number in range(WRITERS)))
            writing.clear()
            seen = reading.result()
        assert seen == store.output_rows()
        assert len(seen) == WRITERS * ROUNDS

    def test_a_claim_that_several_request_at_the_same_moment_is_granted_once(self, open_store: Open) -> None:
        stores = [open_store() for _ in range(WRITERS)]
        leases = [stores[number].acquire(f"r{number}") for number in range(WRITERS)]
        for file in range(ROUNDS):

            def request(number: int, file: int = file) -> Claim | None:
                root = f"r{number}"
                return stores[number].claim(leases[number], Claim(root, root, f"s{file}", (f"{file}.md",)))

            found = at_once(*(partial(request, number) for number in range(WRITERS)))
            assert [result is None for result in found].count(True) == 1, "all files, for one tree"

    def test_a_lease_that_several_request_at_the_same_moment_has_one_owner(
        self, store: Store, open_store: Open
    ) -> None:
        stores = [open_store() for _ in range(WRITERS)]

        def acquire(one: Store, root: str) -> int:
            try:
                return one.acquire(root).epoch
            except LeaseHeld:
                return 0

        for number in range(ROUNDS):
            root = f"r{number}"
            store.acquire(root, DEAD)
            found = at_once(*(partial(acquire, one, root) for one in stores))
            assert sorted(found) == [*[0] * (WRITERS - 1), 2]

    def test_nothing_of_an_earlier_owner_follows_what_the_next_one_read(
        self, store: Store, open_store: Open
    ) -> None:
        other = open_store()
        for number in range(ROUNDS):
            root = f"r{number}"
            zombie = Tree(root, store.acquire(root, DEAD).epoch)

            def write(zombie: Tree = zombie) -> int:
                for _ in range(20):
                    try:
                        store.write([zombie.step()])
                    except LeaseLost:
                        break
                return 0

            def take(root: str = root) -> int:
                other.acquire(root)
                return other.reach(root)

            _, read = at_once(write, take)
            assert other.reach(root) == read, "the log grew under an owner that had read it"

    def test_a_value_that_a_run_starts_to_use_survives_the_deletion_of_another(
        self, store: Store, open_store: Open
    ) -> None:
        other = open_store()
        for number in range(ROUNDS):
            value = stored(f"value {number}")
            old, new = Tree(f"old{number}"), Tree(f"new{number}")
            first = old.event(StepEvent("a", "completed", output=value[0]))
            store.write([Batch(root=old.root, epoch=0, envelopes=[first], blobs=[value])])
            event = new.event(StepEvent("a", "completed", output=value[0]))
            batch = Batch(root=new.root, epoch=0, envelopes=[event], blobs=[value])
            at_once(partial(store.delete_tree, old.root), partial(other.write, [batch]))
            assert store.blob(value[0]) == value[1], "an event refers to it"
            store.delete_tree(new.root)
            assert not store.has_blob(value[0])

    def test_a_wake_up_follows_its_commit(self, store: Store, open_store: Open) -> None:
        """A process that is woken can read the change that woke it."""
        other, tree = open_store(), Tree("r1")
        with other.follow("r1") as signal:
            for number in range(1, ROUNDS + 1):
                batch = tree.step()
                with ThreadPoolExecutor(1) as thread:
                    writing = thread.submit(store.write, [batch])
                    while other.reach("r1") < 2 * number:
                        assert signal.wait_blocking(RECHECK_S / 2), "it was woken too early, or never"
                    writing.result()
                while signal.wait_blocking(0.05):
                    pass  # a wake-up without a change is allowed


# -----------------------------------------------------------------------------------------------------------
# Claims: steps of any process that change files of the project itself.


def claim(root: str, *patterns: str, step: str = "a") -> Claim:
    return Claim(root, root, step, patterns)


def give_back(store: Store, lease: Lease, step: str = "a") -> None:
    store.write([Batch(root=lease.root, epoch=lease.epoch, unclaimed=[(lease.root, step)])])


class ClaimTests:
    def test_files_are_claimed_by_one_tree_at_a_time(self, store: Store, open_store: Open) -> None:
        one, other = store.acquire("r1"), open_store().acquire("r2")
        assert store.claim(one, claim("r1", "docs/**")) is None
        assert store.claim(other, claim("r2", "docs/a.md")) == claim("r1", "docs/**")
        assert store.claim(other, claim("r2", "src/**", step="b")) is None, "paths without a claim are free"
        give_back(store, one)
        assert store.blocker(claim("r2", "docs/a.md")) is None
        assert store.claim(other, claim("r2", "docs/a.md")) is None
        assert store.claim(one, claim("r1", "docs/**")) == claim("r2", "docs/a.md")

    def test_a_claim_is_taken_whole_or_not_at_all(self, store: Store) -> None:
        one, other, third = store.acquire("r1"), store.acquire("r2"), store.acquire("r3")
        assert store.claim(one, claim("r1", "a")) is None
        assert store.claim(other, claim("r2", "a", "b")) == claim("r1", "a")
        give_back(store, other)
        assert store.claim(third, claim("r3", "b")) is None, "nothing was kept of what was refused"

    def test_who_came_first_goes_first_and_nobody_waits_in_a_circle(self, store: Store) -> None:
        one, other, third = store.acquire("r1"), store.acquire("r2"), store.acquire("r3")
        assert store.claim(one, claim("r1", "a")) is None
        assert store.claim(other, claim("r2", "a", "b")) == claim("r1", "a")
        assert store.claim(third, claim("r3", "b")) == claim("r2", "a", "b"), "it stands in line behind"
        give_back(store, one)
        assert store.claim(one, claim("r1", "a")) == claim("r2", "a", "b"), "it had its turn"
        assert store.claim(third, claim("r3", "b")) == claim("r2", "a", "b")
        assert store.claim(other, claim("r2", "a", "b")) is None
        give_back(store, other)
        assert store.claim(third, claim("r3", "b")) is None
        assert store.claim(one, claim("r1", "a")) is None

    def test_steps_of_one_tree_are_its_own_business(self, store: Store) -> None:
        lease = store.acquire("r1")
        assert store.claim(lease, claim("r1", "a")) is None
        assert store.claim(lease, claim("r1", "a", step="b")) is None

    def test_a_claim_ends_with_its_lease(self, store: Store) -> None:
        one, other = store.acquire("r1"), store.acquire("r2")
        assert store.claim(one, claim("r1", "a")) is None
        assert store.claim(other, claim("r2", "a")) is not None
        store.release(one)
        assert store.claim(other, claim("r2", "a")) is None
        again = store.acquire("r1")
        assert store.claim(again, claim("r1", "a")) == claim("r2", "a")

    def test_what_a_dead_owner_claimed_is_free(self, store: Store) -> None:
        dead, other = store.acquire("r1", SOMEBODY_DEAD), store.acquire("r2")
        assert store.claim(dead, claim("r1", "a")) is None
        assert store.blocker(claim("r2", "a")) is None
        assert store.claim(other, claim("r2", "a")) is None

    def test_an_earlier_owner_claims_nothing(self, store: Store) -> None:
        old = store.acquire("r1", SOMEBODY_DEAD)
        store.acquire("r1")
        with pytest.raises(LeaseLost):
            store.claim(old, claim("r1", "a"))

    def test_who_stands_in_line_is_woken_when_files_are_given_back(
        self, store: Store, open_store: Open
    ) -> None:
        one, other = store.acquire("r1"), open_store().acquire("r2")
        assert store.claim(one, claim("r1", "a")) is None
        for lets_go in (False, True):
            store.claim(one, claim("r1", "a"))
            with store.listen("r2") as signal:
                assert store.claim(other, claim("r2", "a")) == claim("r1", "a")
                while signal.wait_blocking(0.01):
                    pass
                store.release(one) if lets_go else give_back(store, one)
                assert signal.wait_blocking(RECHECK_S / 2)
            give_back(store, other)

    def test_who_holds_files_learns_what_others_held_meanwhile(self, store: Store) -> None:
        one, other = store.acquire("r1"), store.acquire("r2")
        assert store.claim(one, claim("r1", "a")) is None
        assert store.claims_beside("r1") == []
        assert store.claim(other, claim("r2", "b")) is None
        give_back(store, other)
        assert store.claim(other, claim("r2", "c", step="next")) is None
        assert store.claim(other, claim("r2", "a", step="late")) == claim("r1", "a")
        assert store.claims_beside("r1") == [claim("r2", "b"), claim("r2", "c", step="next")]
        assert store.claim(other, claim("r2", "b")) is None, "what was given back can be taken again"
        store.release(other)
        give_back(store, one)
        assert store.claims_beside("r1") == [], "no waiter is left"

    def test_a_forgotten_tree_claims_nothing(self, store: Store) -> None:
        one, other = store.acquire("r1"), store.acquire("r2")
        assert store.claim(one, claim("r1", "a")) is None
        store.delete_tree("r1")
        assert store.claim(other, claim("r2", "a")) is None


# -----------------------------------------------------------------------------------------------------------
# Batches for the tests of stores: run trees whose events are numbered as an owner would number them.


def stored(value: object) -> tuple[str, bytes]:
    """Return a value as a blob: its hash and its content."""
    content = msgspec.json.encode(value)
    return blake2b(content, digest_size=16).hexdigest(), content


def head(run: str, root: str = "", parent: str | None = None, **changes: Any) -> RunHead:
    values: dict[str, Any] = {
        "run_id": run,
        "root_run_id": root or run,
        "parent_run_id": parent,
        "nesting_depth": 0 if parent is None else 1,
        "execution_path": "" if parent is None else "kids[0]",
        "recipe": "review",
        "version": 1,
        "status": "running",
        "created_at": 1_700_000_000_000,
    }
    return RunHead(**(values | changes))


class Tree:
    """The writer of one run tree; it knows the next number of every log."""

    def __init__(self, root: str, epoch: int = 0) -> None:
        self.root = root
        self.epoch = epoch
        self.place = 0
        self.seqs: dict[str, int] = {}
        self.envelopes: list[Envelope] = []
        """All batches so far, in order."""

    def event(self, data: Data | None = None, *, run: str = "", depth: int = 0) -> Envelope:
        """Return the next event of the log of the root or of a child run."""
        self.place += 1
        return self._envelope(run or self.root, self.place, data, run or self.root, depth)

    def session(
        self, session: str, data: Data | None = None, *, run: str = "", depth: int = 0, execution: int = 1
    ) -> Envelope:
        """Return the next entry of the log of a session."""
        path = "kids[0]/a" if run else "a"
        return self._envelope(session, 0, data, run or self.root, depth, path, execution)

    def _envelope(
        self,
        log: str,
        place: int,
        data: Data | None,
        run: str,
        depth: int,
        path: str = "",
        execution: int | None = None,
    ) -> Envelope:
        seq = self.seqs[log] = self.seqs.get(log, 0) + 1
        data = data or StepEvent(f"step{seq}", "completed", 1, 1, summary="did it")
        child = run != self.root
        envelope = Envelope(
            log=log,
            seq=seq,
            tree_seq=place,
            at=1_700_000_000_000 + len(self.envelopes),
            type=type_name(data),
            data=msgspec.to_builtins(data.data if isinstance(data, Evidence) else data),
            run_id=run,
            root_run_id=self.root,
            parent_run_id=self.root if child else None,
            depth=depth,
            path=path or ("kids[0]" if child else ""),
            epoch=self.epoch if execution is None else execution,
        )
        self.envelopes.append(envelope)
        return envelope

    def step(self, text: str = "") -> Batch:
        """Return the batch of the end of a step: two events, an output and a head."""
        number = self.place // 2 + 1
        blob = stored(text or f"output {number} of {self.root}")
        data = StepEvent(f"step{number}", "completed", 1, 1, output=blob[0])
        envelopes = [self.event(data), self.event(StepEvent(f"step{number + 1}", "running", 1, 1))]
        output = OutputRow(
            run_id=self.root,
            root_run_id=self.root,
            path=f"step{number}",
            role="critic",
            blob=blob[0],
            at=number,
        )
        return Batch(
            root=self.root,
            epoch=self.epoch,
            envelopes=envelopes,
            blobs=[blob],
            outputs=[output],
            heads=[head(self.root, agents=number)],
        )
