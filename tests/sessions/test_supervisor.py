"""The supervisor runs sessions of steps: results, failures, limits, deadlines, cancellation, resumption."""

import asyncio
import gc
import time
import tracemalloc
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fanfold.agents.backend import Progress, Record, SessionFailed, SessionRequest, SessionResult
from fanfold.agents.entries import FailedRequest, News, QueuedRequest, Response, TextDelta, UserInput
from fanfold.agents.spending import Account
from fanfold.errors import AuthorError, BugError, WorldError
from fanfold.kernel.events import Failure, Usage
from fanfold.process_identity import this_process
from fanfold.sessions.log import MAX_INLINE_BYTES, SessionLog, open_log, read_entries
from fanfold.sessions.supervisor import SessionSlots, Supervisor
from fanfold.store.journal import CROWD, GATHER_S, Journal
from fanfold.store.protocol import Batch, LeaseLost
from fanfold.testing.store_races import Tree
from tests.fast_clock import FastClock
from tests.sessions.trees import TREES, alive, pids_in, until
from tests.sessions.world import World, run_in
from tests.work import PATIENCE_S


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def failure_of(
    world: World, supervisor: Supervisor, request: SessionRequest, backend: str, **given: Any
) -> Failure:
    with pytest.raises(SessionFailed) as caught:
        await supervisor.run_step(request, backend=backend, journal=world.owner, **given)
    return caught.value.failure


class Misbehaving:
    """A back end that ends in the way its step is named after."""

    name = "misbehaving"

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def aclose(self) -> None:
        """Nothing is held."""

    async def run(self, request: SessionRequest, record: Record, progress: Progress) -> SessionResult:
        self.begun.set()
        if request.step == "pays_and_waits":
            await record(FailedRequest(kind="cancelled", usage=Usage(7, 1)), may_wait=True)
        if request.step == "crashes":
            raise ZeroDivisionError("by zero")
        if request.step == "is_refused":
            raise WorldError("provider.down", "no provider", hint="try later")
        if request.step == "exits":
            raise asyncio.CancelledError
        if request.step == "times_out_inside":
            with suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await asyncio.sleep(60)
            await asyncio.sleep(0.2)
            return SessionResult(output="in time")
        while request.step == "is_deaf":
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if request.step in ("cleans_up", "pays_and_waits"):
                raise
            await asyncio.sleep(0.5)  # ignores the first request to stop
        return SessionResult(output="late")


def test_a_step_s_session_is_run_and_logged(world):
    async def story() -> None:
        result = await world.supervisor().run_step(
            world.request("a"), backend="scripted", journal=world.owner, durable=True
        )
        assert result.output == "OK from a"

    run_in(world, story)
    envelopes = list(World(world.folder).store.log("s-a-1"))
    assert [(e.seq, e.type, e.run_id, e.root_run_id, e.path) for e in envelopes] == [
        (1, "session_event", "r1", "r1", "a"),
        (2, "session_event", "r1", "r1", "a"),
    ]
    assert [e.data["kind"] for e in envelopes] == ["input", "response"]


def test_failures_have_the_class_that_says_whose_they_are(world):
    async def story() -> None:
        world.backends["misbehaving"] = Misbehaving()
        supervisor = world.supervisor(grace_s=0.1)
        crashed = await failure_of(world, supervisor, world.request("crashes"), "misbehaving")
        refused = await failure_of(world, supervisor, world.request("is_refused"), "misbehaving")
        exited = await failure_of(world, supervisor, world.request("exits"), "misbehaving")
        assert (crashed.kind, crashed.code) == ("internal", "session.crashed")
        assert "ZeroDivisionError: by zero" in crashed.message
        assert (refused.kind, refused.code, refused.hint) == ("agent", "provider.down", "try later")
        assert (exited.kind, exited.code) == ("transport", "session.broken_off"), "nobody asked for it"
        assert {f.step for f in (crashed, refused, exited)} == {"crashes", "is_refused", "exits"}

    run_in(world, story)


def test_a_refused_tool_says_which_step_and_attempt_it_was(tmp_path):
    world = World(tmp_path, "steps: {a: {output: x, writes: {f: t}}}")

    async def story() -> None:
        failure = await failure_of(world, world.supervisor(), world.request("a", attempt=2), "scripted")
        assert (failure.kind, failure.step, failure.attempt) == ("permission", "a", 2)

    run_in(world, story)


def test_an_unknown_back_end_is_the_author_s_error(world):
    async def story() -> None:
        with pytest.raises(AuthorError, match="no agent back end") as caught:
            await world.supervisor().run_step(world.request(), backend="modle", journal=world.owner)
        assert "gated, scripted" in caught.value.hint

    run_in(world, story)


def test_a_session_is_never_run_twice_at_once(world):
    async def story() -> None:
        supervisor = world.supervisor()
        first = asyncio.create_task(
            supervisor.run_step(world.request("a"), backend="gated", journal=world.owner)
        )
        await until(lambda: world.gated.inside)
        with pytest.raises(BugError):
            await supervisor.run_step(world.request("a"), backend="gated", journal=world.owner)
        world.gated.gate("a").set()
        await first

    run_in(world, story)


def test_sessions_over_the_limit_wait_in_the_order_they_came(world):
    async def story() -> None:
        supervisor = world.supervisor(places=SessionSlots(3))
        names = [f"s{i}" for i in range(10)]
        tasks = []
        for name in names:
            tasks.append(
                asyncio.create_task(
                    supervisor.run_step(
                        world.request(name), backend="gated", journal=world.owner, timeout_ms=300_000
                    )
                )
            )
            await asyncio.sleep(0)
        await until(lambda: len(world.gated.inside) == 3)
        tasks[4].cancel()  # called away while it waited
        for name in names:
            if name != "s4":
                await until(partial(world.gated.has, name))
                world.gated.gate(name).set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert world.gated.most == 3
        assert world.gated.order == [name for name in names if name != "s4"]

    run_in(world, story)


def test_time_in_the_queue_does_not_count(world):
    async def story() -> None:
        supervisor = world.supervisor(places=SessionSlots(1))
        first = asyncio.create_task(
            supervisor.run_step(world.request("a"), backend="gated", journal=world.owner)
        )
        await until(lambda: world.gated.inside)
        second = asyncio.create_task(
            supervisor.run_step(
                world.request("b"), backend="scripted", journal=world.owner, timeout_ms=300_000
            )
        )
        await asyncio.sleep(0)
        assert not second.done()
        world.gated.gate("a").set()
        await first
        assert (await second).output == "OK from b"

    run_in(world, story)


def test_a_session_out_of_time_fails_as_such(world):
    async def story() -> None:
        failure = await failure_of(world, world.supervisor(), world.request(), "gated", timeout_ms=50)
        assert (failure.kind, failure.code) == ("timeout", "session.timeout")
        assert "0.05 s" in failure.message
        assert world.gated.inside == []

    run_in(world, story)


@pytest.mark.full
@pytest.mark.parametrize("tree", ["ignores SIGTERM", "double-forks and clears its environment"])
@pytest.mark.parametrize("how", ["caller cancelled", "cancel", "timeout"])
def test_no_process_of_a_session_survives_any_way_of_ending_it(world, tree, how, tmp_path):
    pids = tmp_path / "pids"
    session = f"s-{tmp_path.name}-{time.time_ns()}"

    async def story() -> None:
        supervisor = world.supervisor(grace_s=0.2)
        request = world.request(session_id=session, prompt=TREES[tree].format(pids=pids))
        timeout_ms = 3_000 if how == "timeout" else None
        work = asyncio.create_task(
            supervisor.run_step(request, backend="shell", journal=world.owner, timeout_ms=timeout_ms)
        )
        await until(lambda: pids_in(pids))
        began = time.monotonic()
        if how == "caller cancelled":
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
        else:
            if how == "cancel":
                assert supervisor.cancel(session)
            with pytest.raises(SessionFailed) as caught:
                await work
            assert caught.value.failure.kind == ("cancelled" if how == "cancel" else "timeout")
        assert time.monotonic() - began < PATIENCE_S
        assert alive(pids) == []
        assert not supervisor.cancel(session), "nothing of it is left to be cancelled"

    run_in(world, story)


@pytest.mark.full
def test_cancelling_twice_does_not_cut_the_ending_short(world, tmp_path):
    pids = tmp_path / "pids"
    session = f"s-{tmp_path.name}-{time.time_ns()}"

    async def story() -> None:
        supervisor = world.supervisor(grace_s=0.3)
        request = world.request(session_id=session, prompt=TREES["ignores SIGTERM"].format(pids=pids))
        work = asyncio.create_task(supervisor.run_step(request, backend="shell", journal=world.owner))
        await until(lambda: pids_in(pids))
        for _ in range(5):
            work.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await work
        assert alive(pids) == []

    run_in(world, story)


def test_a_failed_request_is_reported_live_and_paid_when_its_session_is_cancelled(world):
    paid: list[Usage] = []
    news: list[News] = []

    async def story() -> None:
        world.backends["misbehaving"] = backend = Misbehaving()
        supervisor = world.supervisor()
        account = Account(pay=lambda usage, _model: paid.append(usage))
        request = world.request("pays_and_waits", account=account)
        work = asyncio.create_task(
            failure_of(world, supervisor, request, backend.name, on_progress=news.append)
        )
        await backend.begun.wait()
        await asyncio.sleep(0)
        assert paid == []
        assert supervisor.cancel(request.session_id)
        assert (await work).code == "session.cancelled"

    run_in(world, story)
    assert paid == [Usage(7, 1)]
    assert [type(one) for one in news] == [FailedRequest]


def test_a_back_end_that_ignores_the_first_request_is_waited_for(world):
    async def story() -> None:
        world.backends["misbehaving"] = Misbehaving()
        supervisor = world.supervisor(grace_s=0.05)
        failure = await failure_of(world, supervisor, world.request("ignores"), "misbehaving", timeout_ms=50)
        assert failure.code == "session.timeout"

    run_in(world, story)


def test_a_timeout_inside_a_back_end_is_its_own_business(world):
    async def story() -> None:
        world.backends["misbehaving"] = Misbehaving()
        supervisor = world.supervisor(grace_s=0.05)
        result = await supervisor.run_step(
            world.request("times_out_inside"), backend="misbehaving", journal=world.owner
        )
        assert result.output == "in time"

    run_in(world, story)


def test_a_back_end_that_is_cancelled_by_its_own_libraries_again_and_again_is_not_ended(world):
    """Each of these cancellations is handled in time, whatever the clock of an earlier one shows."""

    class Connecting:
        name = "connecting"

        async def aclose(self) -> None:
            """Nothing is held."""

        async def run(self, request: SessionRequest, record: Record, progress: Progress) -> SessionResult:
            task = asyncio.current_task()
            assert task is not None
            for _ in range(5):
                task.cancel()  # as a library does that gives up a connection
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
                await asyncio.sleep(70)
                task.uncancel()
                await asyncio.sleep(25)
            return SessionResult(output="connected")

    async def story() -> None:
        world.backends["connecting"] = Connecting()
        supervisor = world.supervisor(grace_s=100)
        result = await supervisor.run_step(world.request(), backend="connecting", journal=world.owner)
        assert result.output == "connected"

    with FastClock() as clock:
        clock.run(story())
    world.store.close()


@pytest.mark.parametrize("how", ["caller cancelled", "cancel", "timeout"])
def test_a_back_end_that_ignores_every_request_is_left_behind(world, how, monkeypatch):
    monkeypatch.setattr("fanfold.sessions.supervisor.STUCK_S", 0.1)

    async def story() -> None:
        misbehaving = world.backends["misbehaving"] = Misbehaving()
        supervisor = world.supervisor(grace_s=0.05)
        request = world.request("is_deaf")
        timeout_ms = 20 if how == "timeout" else None
        work = asyncio.create_task(
            supervisor.run_step(request, backend="misbehaving", journal=world.owner, timeout_ms=timeout_ms)
        )
        await misbehaving.begun.wait()
        if how == "caller cancelled":
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
        else:
            if how == "cancel":
                assert supervisor.cancel("s-is_deaf-1")
            with pytest.raises(SessionFailed) as caught:
                await work
            assert caught.value.failure.code == "session.stuck"
        assert not supervisor.cancel("s-is_deaf-1"), "nothing of it is left to be cancelled"

    run_in(world, story)


def test_a_session_that_was_stopped_leaves_its_task_as_it_was(world):
    async def story() -> None:
        supervisor = world.supervisor()

        async def step() -> str:
            failure = await failure_of(world, supervisor, world.request(), "gated")
            await asyncio.sleep(0.01)
            return failure.code

        work = asyncio.create_task(step())
        await until(lambda: world.gated.inside)
        supervisor.cancel("s-a-1")
        assert await work == "session.cancelled"

    run_in(world, story)


def test_a_paused_session_stops_after_its_next_recorded_turn_and_continues_there(tmp_path):
    world = World(tmp_path, "steps: {a: {output: ok, delay_ms: 50, writes: {f: 1x, g: 2x}}}")

    async def story() -> None:
        supervisor = world.supervisor()
        request = world.request("a", read_only=False)
        work = asyncio.create_task(supervisor.run_step(request, backend="scripted", journal=world.owner))
        await until(lambda: supervisor.pause("s-a-1"))
        with pytest.raises(SessionFailed) as caught:
            await work
        assert caught.value.code == "session.paused"
        kinds = world.kinds("s-a-1")
        assert kinds == ["input", "response"]
        again = world.request("a", read_only=False, execution=2)
        assert (await supervisor.run_step(again, backend="scripted", journal=world.owner)).output == "ok"
        assert (tmp_path / "g").read_text() == "2x"

    run_in(world, story)


def test_a_session_run_again_after_a_crash_is_handed_what_it_recorded(world):
    async def story() -> None:
        log, _ = open_log(world.owner, "s-a-1", "r1", "a", 1)
        log.hold(UserInput(text="go"))
        log.hold(Response(output="from before"))
        world.owner.write()
        result = await world.supervisor().run_step(
            world.request("a", execution=2), backend="scripted", journal=world.owner
        )
        assert result.output == "from before"
        assert not (world.folder / "calls").exists()

    run_in(world, story)


def test_a_large_entry_is_stored_beside_the_log_and_comes_back_whole(world):
    async def story() -> None:
        said = Response(text="long " * MAX_INLINE_BYTES)
        log, _ = open_log(world.owner, "big", "r1", "a", 1)
        log.hold(said)
        world.owner.write()
        (envelope,) = world.store.log("big")
        assert len(str(envelope.data)) < 200
        assert read_entries(world.store, "big") == [said]

    run_in(world, story)


def test_the_end_of_a_session_is_part_of_its_owner_s_next_commit(world):
    async def story() -> None:
        journal = world.owner
        supervisor = world.supervisor()
        result = await supervisor.run_step(world.request("a"), backend="scripted", journal=journal)
        assert result.output == "OK from a"
        assert read_entries(world.store, "s-a-1") == []
        journal.write(Batch(root="r1", epoch=0, envelopes=[Tree("r1").event()]))
        assert world.kinds("s-a-1") == ["input", "response"]
        await supervisor.run_step(world.request("b"), backend="scripted", journal=journal, durable=True)
        assert world.kinds("s-b-1") == ["input", "response"]

    run_in(world, story)


class Speaking:
    """A back end whose sessions have something to say that was paid for, ten times."""

    name = "speaking"

    async def aclose(self) -> None:
        """Nothing is held."""

    async def run(self, request: SessionRequest, record: Record, progress: Progress) -> SessionResult:
        for number in range(10):
            await asyncio.sleep(0)
            await record(Response(text=f"{request.step} {number}"))
        return SessionResult(output="done")


@pytest.mark.parametrize("sessions", [1, 16])
def test_sessions_that_write_at_once_share_a_commit_without_waiting(world, sessions):
    commits: list[int] = []

    async def story() -> None:
        world.backends["speaking"] = Speaking()
        journal, write = world.owner, world.store.write

        def count(batches: Sequence[Batch]) -> None:
            write(batches)
            commits.append(sum(len(batch.envelopes) for batch in batches))

        world.store.write = count
        supervisor = world.supervisor()
        requests = [world.request(f"s{number}") for number in range(sessions)]
        steps = (supervisor.run_step(one, backend="speaking", journal=journal) for one in requests)
        await asyncio.gather(*steps)
        for number in range(sessions):
            said = world.texts(f"s-s{number}-1")[1:]
            assert said == [f"s{number} {turn}" for turn in range(10)]
        assert commits == [2 * sessions] + [sessions] * 9

    run_in(world, story)


def test_entries_without_a_waiter_share_the_commit_of_an_earlier_one(world):
    commits: list[int] = []

    async def story() -> None:
        journal, write = world.owner, world.store.write

        def count(batches: Sequence[Batch]) -> None:
            write(batches)
            commits.append(sum(len(batch.envelopes) for batch in batches))

        world.store.write = count
        journal.sessions = CROWD
        log = SessionLog(journal, "s-a-1", "r1", "a", 1)
        log.hold(Response(text="paid for"))
        waiting = asyncio.ensure_future(journal.flush())
        await asyncio.sleep(0)
        journal.write()  # its host decides something meanwhile
        log.hold(UserInput(text="of a session that begins"))
        await waiting
        await asyncio.sleep(GATHER_S)  # behind the moment at which the first would have been written
        assert commits == [1]

    run_in(world, story)


def test_a_failed_commit_raises_in_every_session_that_waits_for_it(world):
    async def story() -> None:
        world.backends["speaking"] = Speaking()
        owner = this_process()
        old = world.store.acquire("r1", replace(owner, pid=2**22 + 1, started="dead"))
        world.store.acquire("r1", owner)
        journal, supervisor = Journal(world.store, "r1", old), world.supervisor()
        steps = (
            supervisor.run_step(world.request(f"s{number}"), backend="speaking", journal=journal)
            for number in range(5)
        )
        told = await asyncio.gather(*steps, return_exceptions=True)
        assert [type(error) for error in told] == [LeaseLost] * 5

    run_in(world, story)


def test_under_a_lease_a_session_of_an_old_owner_cannot_write(world):
    async def story() -> None:
        owner = this_process()
        old = world.store.acquire("r1", replace(owner, pid=2**22 + 1, started="dead"))
        new = world.store.acquire("r1", owner)
        supervisor = world.supervisor()
        journal, late = (Journal(world.store, "r1", lease) for lease in (new, old))
        request = world.request("a")
        assert (await supervisor.run_step(request, backend="scripted", journal=journal, durable=True)).output
        with pytest.raises(LeaseLost):
            await supervisor.run_step(world.request("b"), backend="scripted", journal=late, durable=True)
        assert read_entries(world.store, "s-b-1") == []

    run_in(world, story)


@pytest.mark.full
def test_a_thousand_sessions_at_once_take_less_than_100_kb_each(world):
    async def story() -> float:
        supervisor = world.supervisor(places=SessionSlots(1_000))
        gc.collect()
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        tasks = [
            asyncio.create_task(
                supervisor.run_step(world.request(f"s{i}"), backend="gated", journal=world.owner)
            )
            for i in range(1_000)
        ]
        await until(lambda: len(world.gated.inside) == 1_000, 30)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert world.gated.inside == []
        return (after - before) / 1_000

    assert run_in(world, story) < 100_000


class Murmuring:
    """A back end that says something again and again, then ends or waits for ever."""

    name = "murmuring"

    async def aclose(self) -> None:
        """Nothing is held."""

    async def run(self, request: SessionRequest, record: Record, progress: Progress) -> SessionResult:
        for word in range(8):
            await asyncio.sleep(0.1)
            if word % 2:
                progress(TextDelta("hm "))
            else:
                await record(Response(text="hm"))
        while request.prompt == "then wait":
            await asyncio.sleep(0.1)
            await record(QueuedRequest(message="the server has sent nothing"), may_wait=True)
        return SessionResult(output="done")


def test_a_session_ends_when_nothing_is_heard_of_it_for_too_long(world):
    async def story() -> None:
        failure = await failure_of(world, world.supervisor(), world.request(), "gated", idle_ms=50)
        assert (failure.kind, failure.code) == ("timeout", "session.idle")
        assert failure.message == "a: nothing was heard of it for 0.05 s"

    run_in(world, story)


@pytest.mark.full
def test_every_sign_of_life_begins_the_time_anew(world):
    world.backends["murmuring"] = Murmuring()

    async def story() -> None:
        supervisor = world.supervisor()
        asked: dict[str, Any] = {"backend": "murmuring", "journal": world.owner, "idle_ms": 600}
        result = await supervisor.run_step(world.request("talks"), **asked)
        assert result.output == "done"
        silent = world.request("stops", prompt="then wait")
        failure = await failure_of(world, supervisor, silent, "murmuring", idle_ms=600)
        assert failure.code == "session.idle"

    run_in(world, story)
