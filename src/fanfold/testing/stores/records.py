"""What every store must do with values, rows of runs and outputs, and with what is to be forgotten."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fanfold.errors import AuthorError, NotFoundError
from fanfold.kernel.events import Evidence, Failure, StepEvent, Usage
from fanfold.process_identity import start_time, this_process
from fanfold.store.protocol import DELETED, Batch, LeaseHeld, OutputRow, Request, RunHead, Store
from fanfold.testing.stores.trees import Tree, head, stored


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
            run_id="r1",
            root_run_id="r1",
            path="step1",
            role="critic",
            blob=stored("output 1 of r1")[0],
            at=1,
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
        assert store.heads(before="nobody") == []
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

    def test_a_tree_driven_by_another_process_is_not_deleted(self, store: Store) -> None:
        parent = replace(this_process(), pid=1, started=_start_of_process_1())
        store.acquire("r1", parent)
        with pytest.raises(LeaseHeld):
            store.delete_tree("r1")

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


def _start_of_process_1() -> str:
    return start_time(1) or ""
