"""What every store must do with logs: keep them in order, whole, as they were committed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeAlias

import pytest
from msgspec.structs import replace

from fanfold.errors import BugError
from fanfold.kernel.events import Evidence
from fanfold.store.protocol import Batch, LeaseLost, Store
from fanfold.testing.stores.trees import Tree, stored

Open: TypeAlias = Callable[[], Store]


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
        assert store.reach("nobody") == 0

    def test_a_log_is_read_as_its_reader_decodes_it(self, store: Store) -> None:
        tree = Tree("r1")
        said = tree.session("s1", Evidence("session_event", {"kind": "input", "text": "hello"}))
        store.write([Batch(root="r1", epoch=0, envelopes=[tree.event(), said])])
        (read,) = store.log("s1", 0, type)
        assert read.data is bytes
        (read,) = store.log("s1", 0, json.loads)
        assert read == said

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
        said = [tree.session("s1", say), tree.session("s2", say, run="c1", depth=1)]
        store.write([Batch(root="r1", epoch=0, envelopes=[*child, *said])])
        more = [tree.session("s1", say), tree.event(), tree.session("s1", say), tree.session("s1", say)]
        open_store().write([Batch(root="r1", epoch=0, envelopes=more)])
        assert list(store.log("s1")) == [said[0], more[0], more[2], more[3]]
        assert list(store.log("s2")) == [said[1]]
        assert list(store.log("s1", after=2)) == more[2:]
        assert [event.tree_seq for event in store.log("s1")] == [0, 0, 0, 0]
        assert list(store.tree("r1")) == [*child, more[1]]
        assert list(store.tree("r1", after=2)) == list(store.log("r1", after=1)) == [more[1]]

    def test_a_session_may_come_before_any_event_of_its_tree(self, store: Store) -> None:
        tree = Tree("r1")
        said = [tree.session("s1"), tree.session("r1"), tree.session("s1")]
        store.write([Batch(root="r1", epoch=0, envelopes=said)])
        assert list(store.log("s1")) == [said[0], said[2]]
        assert list(store.log("r1")) == [said[1]]
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
            commits = [(list(commit.envelopes), commit.state) for commit in opened.commits("r1")]
            assert commits == [(first, b"one"), (last[1:], b"two")]
        assert list(store.commits("nobody")) == []

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
