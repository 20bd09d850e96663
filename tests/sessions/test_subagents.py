"""Subagents by hand: their lives in the parent's log, limits, waiting, input, closing, and new processes."""

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fanfold.errors import NotFoundError
from fanfold.process_identity import this_process
from fanfold.sessions.log import read_children, read_notes
from fanfold.sessions.opened import Settings
from fanfold.sessions.subagents import SubagentRefused
from fanfold.sessions.supervisor import Supervisor
from fanfold.store.protocol import LeaseHeld
from tests.sessions.trees import TREES, alive, pids_in, until
from tests.sessions.world import SCRIPTED, World, run_in

GATED = Settings(backend="gated", name="gate", workspace="w")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def gated(name: str, **given: Any) -> Settings:
    return Settings(backend="gated", name=name, **given)


async def forsake(supervisor: Supervisor) -> None:
    """End the process as far as its children are concerned: tasks vanish, nothing is recorded."""
    supervisor.children._tell = lambda *_, **__: None  # type: ignore[method-assign] # the dead tell nothing
    await supervisor.children.stop_everything()


def test_a_child_s_life_is_history_of_its_parent_with_everything_to_tell(world):
    async def story() -> None:
        supervisor = world.supervisor()
        world.gated.gate("gate").set()
        child = await supervisor.spawn("root", "explorer", "look around", GATED)
        await supervisor.wait([child])
        assert world.life("root") == [(child, "queued"), (child, "started"), (child, "finished")]
        last = read_children(world.store, "root")[-1]
        assert (last.parent_id, last.subagent_id, last.session_id) == ("root", child, child)
        assert (last.role, last.task, last.depth, last.workspace) == ("explorer", "look around", 1, "w")
        assert last.summary == "did look around"

    run_in(world, story)


def test_what_a_child_says_stays_in_its_own_log(world):
    async def story() -> None:
        supervisor = world.supervisor()
        child = await supervisor.spawn("root", "worker", "speak", SCRIPTED)
        await supervisor.wait([child])
        assert world.kinds("root") == []
        spoken = world.kinds(child)
        assert spoken == ["opened", "input", "response"]

    run_in(world, story)


def test_children_over_max_threads_queue_in_order_and_start_as_places_free(world):
    async def story() -> None:
        supervisor = world.supervisor(max_threads=2)
        ids = [await supervisor.spawn("root", "worker", f"t{i}", gated(f"g{i}")) for i in range(5)]
        await until(lambda: len(world.gated.inside) == 2)
        assert [child.status for child in supervisor.list("root")] == ["running"] * 2 + ["queued"] * 3
        for i in range(5):
            await until(partial(world.gated.has, f"g{i}"))
            world.gated.gate(f"g{i}").set()
        buckets = await supervisor.wait(ids)
        assert [child.subagent_id for child in buckets["completed"]] == ids
        assert (world.gated.most, world.gated.order) == (2, [f"g{i}" for i in range(5)])

    run_in(world, story)


def test_each_root_has_its_own_threads_and_the_process_one_limit(world):
    async def story() -> None:
        supervisor = world.supervisor(max_threads=2, max_sessions=3)
        for root in ("one", "two"):
            for i in range(2):
                await supervisor.spawn(root, "worker", "t", gated(f"{root}{i}"))
        await until(lambda: len(world.gated.inside) == 3)
        assert world.gated.inside == ["one0", "one1", "two0"]
        await supervisor.aclose()
        assert world.gated.inside == []

    run_in(world, story)


def test_children_of_children_are_refused_beyond_max_depth(world):
    async def story() -> None:
        supervisor = world.supervisor(max_depth=1)
        child = await supervisor.spawn("root", "worker", "t", GATED)
        with pytest.raises(SubagentRefused) as caught:
            await supervisor.spawn(child, "worker", "t", GATED)
        assert caught.value.code == "subagent.limit_exceeded"
        assert world.life(child) == []
        await supervisor.aclose()

    run_in(world, story)


def test_depth_is_known_from_the_log_even_when_the_parent_is_not_live(world):
    async def story() -> None:
        first = world.supervisor(max_depth=2)
        world.gated.gate("gate").set()
        child = await first.spawn("root", "worker", "t", GATED)
        await first.wait([child])
        grandchild = await first.spawn(child, "worker", "t", GATED)
        await first.wait([grandchild])
        assert first.list(child)[0].depth == 2
        with pytest.raises(SubagentRefused):
            await world.supervisor(max_depth=2).spawn(grandchild, "worker", "t", GATED)

    run_in(world, story)


def test_waiting_ends_nobody_and_zero_only_looks(world):
    async def story() -> None:
        supervisor = world.supervisor()
        slow = await supervisor.spawn("root", "worker", "slow", GATED)
        quick = await supervisor.spawn("root", "worker", "quick", SCRIPTED)
        await until(lambda: world.gated.inside)
        began = time.monotonic()
        assert set(await supervisor.wait([slow], 0)) == {"running"}
        assert time.monotonic() - began < 0.5
        buckets = await supervisor.wait([slow, quick], 0.1)
        assert {status: [c.subagent_id for c in found] for status, found in buckets.items()} == {
            "running": [slow],
            "completed": [quick],
        }
        waiting = asyncio.create_task(supervisor.wait([slow]))
        await asyncio.sleep(0)
        waiting.cancel()
        assert world.gated.inside == ["gate"]
        world.gated.gate("gate").set()
        assert set(await supervisor.wait([slow])) == {"completed"}

    run_in(world, story)


def test_failures_and_time_are_told_apart(tmp_path):
    world = World(tmp_path, "steps: {bad: {fail: {class: quota, message: no credit}}}")

    async def story() -> None:
        supervisor = world.supervisor(grace_s=0.1)
        bad = await supervisor.spawn("root", "worker", "t", Settings(backend="scripted", name="bad"))
        late = await supervisor.spawn("root", "worker", "t", gated("g", timeout_s=0.05))
        none = await supervisor.spawn("root", "worker", "t", Settings(backend="nowhere"))
        buckets = await supervisor.wait([bad, late, none])
        assert [child.subagent_id for child in buckets["timed_out"]] == [late]
        failed = {child.subagent_id: child.error and child.error.code for child in buckets["failed"]}
        assert failed == {bad: "script.quota", none: "backend.unknown"}
        assert buckets["failed"][0].summary == "no credit"

    run_in(world, story)


def test_input_for_a_running_child_is_its_next_turn(world):
    async def story() -> None:
        supervisor = world.supervisor()
        child = await supervisor.spawn("root", "worker", "first", GATED)
        await until(lambda: world.gated.inside)
        await supervisor.send_input(child, "second")
        world.gated.gate("gate").set()
        (done,) = (await supervisor.wait([child]))["completed"]
        assert (done.summary, done.attempt) == ("did second", 2)
        spoken = [(type(e).__name__, e.text) for e in world.gated.entries[child]]
        assert spoken == [("Input", "first"), ("Response", "first"), ("Input", "second")]
        assert [word for _, word in world.life("root")] == [
            "queued", "started", "input", "started", "finished",
        ]  # fmt: skip

    run_in(world, story)


@pytest.mark.parametrize("ended", ["completed", "failed", "timed_out", "cancelled"])
def test_input_restarts_a_child_that_is_over(tmp_path, ended):
    world = World(
        tmp_path,
        "steps: {completed: [one, two], failed: [{fail: {class: agent}}, two],"
        " timed_out: [{output: x, delay_ms: 60000}, two], cancelled: [{output: x, delay_ms: 60000}, two]}",
    )

    async def story() -> None:
        supervisor = world.supervisor(grace_s=0.1)
        timeout_s = 0.05 if ended == "timed_out" else 60
        settings = Settings(backend="scripted", name=ended, timeout_s=timeout_s)
        child = await supervisor.spawn("root", "worker", "go", settings)
        if ended == "cancelled":
            await until(lambda: supervisor.is_live(child))
            await supervisor.close(child)
        assert set(await supervisor.wait([child])) == {ended}
        other = world.supervisor()  # also when the process is another one by now
        assert (await other.send_input(child, "again")).status == "queued"
        (done,) = (await other.wait([child]))["completed"]
        assert (done.summary, done.attempt, done.error) == ("two", 2, None)

    run_in(world, story)


def test_closing_cancels_what_runs_and_closes_the_rest_for_good(world):
    async def story() -> None:
        supervisor = world.supervisor(max_threads=1)
        running = await supervisor.spawn("root", "worker", "a", GATED)
        queued = await supervisor.spawn("root", "worker", "b", GATED)
        await until(lambda: world.gated.inside)
        assert (await supervisor.close(queued)).status == "cancelled"
        assert (await supervisor.close(running)).status == "cancelled"
        assert world.gated.order == ["gate"]
        assert (await supervisor.close(running)).status == "closed"
        assert (await supervisor.close(running)).status == "closed"
        with pytest.raises(SubagentRefused) as caught:
            await supervisor.send_input(running, "hello?")
        assert caught.value.code == "subagent.closed"
        assert [word for who, word in world.life("root") if who == running] == [
            "queued", "started", "cancelled", "closed",
        ]  # fmt: skip

    run_in(world, story)


def test_closing_leaves_no_process_of_the_child(world, tmp_path):
    pids = tmp_path / "pids"
    root = f"root-{time.time_ns()}"

    async def story() -> None:
        supervisor = world.supervisor(grace_s=0.2)
        task = TREES["double-forks and clears its environment"].format(pids=pids)
        child = await supervisor.spawn(root, "worker", task, Settings(backend="shell"))
        await until(lambda: len(pids_in(pids)) == 2)
        await supervisor.close(child)
        assert alive(pids) == []

    run_in(world, story)


def test_children_stop_when_their_parent_does(world):
    async def story() -> None:
        supervisor = world.supervisor()
        parent = asyncio.create_task(supervisor.run_step(world.request("p"), backend="gated"))
        await until(lambda: world.gated.inside)
        child = await supervisor.spawn("s-p-1", "worker", "t", gated("c"))
        await until(lambda: len(world.gated.inside) == 2)
        world.gated.gate("p").set()
        await parent
        assert world.gated.inside == []
        assert [child.status for child in supervisor.list("s-p-1")] == ["cancelled"]
        kinds = [(e.seq, e.type) for e in world.store.log("s-p-1")]
        assert [seq for seq, _ in kinds] == list(range(1, len(kinds) + 1))
        assert supervisor.children.find(child).status == "cancelled"

    run_in(world, story)


def test_a_child_is_never_wider_than_its_parent(world):
    async def story() -> None:
        supervisor = world.supervisor()
        parent = asyncio.create_task(supervisor.run_step(world.request("p", read_only=True), backend="gated"))
        await until(lambda: world.gated.inside)
        child = await supervisor.spawn("s-p-1", "worker", "t", gated("c", read_only=False))
        opened = read_notes(world.store, child)[0]
        assert opened["settings"].get("read_only", True) is True
        parent.cancel()
        await asyncio.gather(parent, return_exceptions=True)

    run_in(world, story)


def test_a_child_whose_process_died_is_detached_and_can_be_resumed_or_closed(world):
    async def story() -> None:
        dead = world.supervisor()
        ids = [await dead.spawn("root", "worker", f"t{i}", gated(f"g{i}")) for i in range(2)]
        await until(lambda: len(world.gated.inside) == 2)
        await dead.send_input(ids[0], "and this")
        await forsake(dead)

        supervisor = world.supervisor()
        assert [child.status for child in supervisor.list("root")] == ["detached", "detached"]
        assert set(await supervisor.wait(ids, 0)) == {"detached"}
        with pytest.raises(SubagentRefused) as caught:
            await supervisor.send_input(ids[0], "hello?")
        assert caught.value.code == "subagent.detached"

        world.gated.gate("g0").set()
        supervisor.children.resume(ids[0])
        (done,) = (await supervisor.wait([ids[0]]))["completed"]
        assert done.summary == "did and this"
        assert (await supervisor.close(ids[1])).status == "closed"

    run_in(world, story)


def test_detached_is_an_answer_and_never_an_event(world):
    async def story() -> None:
        dead = world.supervisor()
        child = await dead.spawn("root", "worker", "t", GATED)
        await until(lambda: world.gated.inside)
        await forsake(dead)
        before = world.life("root")
        world.supervisor().list("root")
        await world.supervisor().wait([child], 0)
        assert world.life("root") == before

    run_in(world, story)


def test_a_live_child_is_found_before_the_log_is_asked(world):
    async def story() -> None:
        supervisor = world.supervisor()
        child = await supervisor.spawn("root", "worker", "t", GATED)
        await until(lambda: world.gated.inside)
        assert supervisor.children.find(child).status == "running"
        assert world.supervisor().children.find(child).status == "detached"
        await supervisor.aclose()

    run_in(world, story)


def test_an_id_that_no_log_knows_is_not_found(world):
    async def story() -> None:
        for one in ("root.9", "nothing", ""):
            with pytest.raises(NotFoundError):
                await world.supervisor().wait([one], 0)

    run_in(world, story)


def test_with_an_owner_the_tree_belongs_to_one_process_and_others_see_it_run(world):
    async def story() -> None:
        here = this_process()
        supervisor = world.supervisor(owner=here)
        child = await supervisor.spawn("root", "worker", "t", GATED)
        await until(lambda: world.gated.inside)
        stranger = world.supervisor(owner=replace(here, started="another"))
        assert stranger.children.find(child).status == "running"
        with pytest.raises(SubagentRefused) as caught:
            await stranger.send_input(child, "hello?")
        assert caught.value.code == "subagent.busy"
        with pytest.raises(LeaseHeld):
            await stranger.spawn("root", "worker", "t", GATED)
        await supervisor.aclose()
        assert stranger.children.find(child).status == "cancelled"
        assert await stranger.spawn("root", "worker", "t", SCRIPTED) == "root.2"
        await stranger.aclose()

    run_in(world, story)


def test_three_hundred_children_of_fifty_sessions_run_in_one_process(world):
    async def story() -> None:
        supervisor = world.supervisor(max_sessions=300)
        ids = [
            await supervisor.spawn(f"root{i}", "worker", "t", gated(f"g{i}"))
            for i in range(50)
            for _ in range(6)
        ]
        await until(lambda: len(world.gated.inside) == 300, 30)
        for i in range(50):
            world.gated.gate(f"g{i}").set()
        assert len((await supervisor.wait(ids))["completed"]) == 300

    run_in(world, story)
