"""What every store must do for steps that change files of the project itself, in whichever process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from fanfold.process_identity import ProcessIdentity, machine_name
from fanfold.store.protocol import RECHECK_S, Batch, Claim, Lease, LeaseLost, Store

Open: TypeAlias = Callable[[], Store]
SOMEBODY_DEAD = ProcessIdentity("an earlier boot", 4711, "12345", "1", machine_name())


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
