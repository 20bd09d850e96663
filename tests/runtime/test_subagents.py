"""Subagents as steps of an open run: queue, turns, ends, what they may do, and what their log says."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from fanfold.agents.backend import Progress, Record, SessionFailed, SessionRequest, SessionResult
from fanfold.agents.backend_registry import BackendKind
from fanfold.agents.entries import Response, UserInput
from fanfold.api import subagents
from fanfold.api.approvals import shown
from fanfold.api.archives import verify
from fanfold.api.ownership import own
from fanfold.api.run_handle import RunHandle
from fanfold.api.run_options import Options
from fanfold.api.start import create_open
from fanfold.api.subagents import Subagent, Task
from fanfold.engine.requests import SubagentRefused
from fanfold.errors import FanfoldError, NotFoundError
from fanfold.kernel.events import Failure
from fanfold.sessions.log import read_entries
from fanfold.sessions.processes import run_process
from fanfold.wiring import BACKENDS, wire
from tests.work import PATIENCE_S


class Gated:
    """A back end whose sessions wait until the test lets them go; it tells who is inside."""

    name = "gated"

    def __init__(self) -> None:
        self.inside: list[str] = []
        self.order: list[str] = []
        self.most = 0
        self.moved = asyncio.Event()
        self.entries: dict[str, list[Any]] = {}
        self.roles: dict[str, Any] = {}
        self._gates: dict[str, asyncio.Event] = {}

    def gate(self, step: str) -> asyncio.Event:
        return self._gates.setdefault(step, asyncio.Event())

    def let_go(self, *steps: str) -> None:
        for step in steps:
            self.gate(step).set()

    async def aclose(self) -> None:
        """Nothing is held."""

    async def run(self, request: SessionRequest, record: Record, progress: Progress) -> SessionResult:
        step = request.step
        self.inside.append(step)
        self.order.append(step)
        self.most = max(self.most, len(self.inside))
        self.entries[step] = list(request.entries)
        self.roles[step] = request.role
        self.moved.set()
        try:
            if request.prompt.startswith("run "):
                command = ["bash", "-c", request.prompt.removeprefix("run ")]
                await run_process(command, cwd="/", session_id=request.session_id)
            if request.prompt == "break":
                raise SessionFailed(Failure("agent", "agent.broke", "it broke", retryable=False))
            await self.gate(step).wait()
            await record(Response(text=f"did {request.prompt}", output=f"did {request.prompt}"))
        finally:
            self.inside.remove(step)
            self.moved.set()
        return SessionResult(output=f"did {request.prompt}")


class Hand:
    """A project whose open run is driven by this very process."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.gated = Gated()
        gated = BackendKind(name="gated", make=lambda _: self.gated)
        self.project = wire(folder, {"HOME": str(folder.parent), **environment}, backends=(*BACKENDS, gated))
        self._handle: RunHandle | None = None

    async def drive(self) -> None:
        """Become the owner, as a process in the background would."""
        create_open(self.project, "hand")
        seen = len(list(self.project.store.log("hand")))
        self._handle = RunHandle(own(self.project, "hand"), resumed=True)
        await self.until(lambda: len(list(self.project.store.log("hand"))) > seen)

    async def die(self) -> None:
        """Stop at once, as if the process were killed."""
        assert self._handle is not None
        self._handle.abort()
        with pytest.raises(asyncio.CancelledError):
            await self._handle.wait()

    async def until(self, condition: Callable[[], Any]) -> None:
        """Look again whenever the run's owner wrote something, or an agent came or went."""
        async with asyncio.timeout(PATIENCE_S):
            with self.project.store.follow("hand") as signal:
                while not condition():
                    self.gated.moved.clear()
                    moved = asyncio.ensure_future(self.gated.moved.wait())
                    wrote = asyncio.ensure_future(signal.wait())
                    await asyncio.wait([moved, wrote], return_when=asyncio.FIRST_COMPLETED)
                    moved.cancel()
                    wrote.cancel()

    async def spawn(self, name: str, task: str = "", role: str = "explorer", **more: Any) -> Subagent:
        options = Options(backend="gated", permission=more.pop("permission", "auto"))
        key = more.pop("key", "")
        wanted = Task(role=role, task=task or name, name=name, **more)
        return await subagents.spawn(self.project, wanted, options, key=key)

    async def send(self, name: str, text: str = "", **more: Any) -> Subagent:
        return await subagents.send_input(self.project, name, text or None, **more)

    async def close(self, name: str) -> Subagent:
        return await subagents.close(self.project, name)

    async def wait(self, *names: str, timeout_s: float = PATIENCE_S) -> dict[str, list[str]]:
        found = await subagents.wait(self.project, names, timeout_s)
        return {status: [child.id for child in bucket] for status, bucket in found.items()}

    def find(self, name: str) -> Subagent:
        return next(one for one in subagents.list_subagents(self.project) if one.id == name)

    def life(self, name: str) -> list[str]:
        """The words of the log about a subagent, in order."""
        log = shown(self.project.store, self.project.store.log("hand"))
        events = [one.data for one in log if one.type == "subagent_event"]
        return [one["status"] for one in events if one["subagent_id"] == name]


Story = Callable[[Hand], Coroutine[Any, Any, None]]


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., None]:
    """Tell a story to its end and check the log it left."""
    folder = tmp_path / "project"
    folder.mkdir()

    def run(story: Story, *, driven: bool = True, **environment: str) -> None:
        async def told() -> None:
            hand = Hand(folder, **environment)
            try:
                if driven:
                    await hand.drive()
                async with asyncio.timeout(PATIENCE_S):
                    await story(hand)
                assert verify(hand.project.store, "hand").violations == []
            finally:
                if hand._handle is not None:
                    await asyncio.wait([asyncio.ensure_future(hand._handle.leave())])
                hand.project.close()

        asyncio.run(told())

    return run


def refused(code: str) -> Any:
    return pytest.raises(FanfoldError, check=lambda error: error.code == code)


# ------------------------------------------------------------------------------------------- the queue


def test_children_over_max_threads_queue_in_order_and_start_as_places_free(play):
    async def story(hand: Hand) -> None:
        for name in "abcd":
            await hand.spawn(name)
        await hand.until(lambda: hand.gated.inside == ["a", "b"])
        assert [hand.find(name).status for name in "abcd"] == ["running", "running", "queued", "queued"]
        hand.gated.let_go("b")
        await hand.until(lambda: hand.gated.inside == ["a", "c"])
        hand.gated.let_go("a", "c", "d")
        assert await hand.wait() == {"completed": ["a", "c", "d"]}
        assert (hand.gated.order, hand.gated.most) == (["a", "b", "c", "d"], 2)
        assert hand.life("c") == ["queued", "started", "finished"]

    play(story, FANFOLD_MAX_THREADS="2")


@pytest.mark.full
def test_three_hundred_children_run_in_one_process(play):
    async def story(hand: Hand) -> None:
        names = [f"c{i}" for i in range(300)]
        await asyncio.gather(*(hand.spawn(name) for name in names))
        await hand.until(lambda: len(hand.gated.inside) == 300)
        hand.gated.let_go(*names)
        found = await hand.wait(*names)
        assert sorted(found["completed"]) == sorted(names)

    play(story, FANFOLD_MAX_THREADS="300", FANFOLD_MAX_SESSIONS="300")


@pytest.mark.full
def test_many_processes_may_spawn_at_once_and_a_key_makes_repeating_safe(tmp_path: Path):
    (tmp_path / "script.yaml").write_text("default: done\n")
    spawn = ["spawn", "explorer", "look", "--script", "script.yaml", "--project", "."]
    command = [sys.executable, "-m", "fanfold.cli.main", *spawn]
    started = [
        subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    said = [process.communicate(timeout=PATIENCE_S) for process in started]
    assert [process.returncode for process in started] == [0] * 6, said
    assert sorted(out.strip() for out, _ in said) == [f"explorer-{i}" for i in range(1, 7)]

    async def again() -> None:
        project = wire(tmp_path)
        try:
            task = Task(role="explorer", task="once")
            options = Options(script="default: done\n")
            one = await subagents.spawn(project, task, options, key="the same")
            two = await subagents.spawn(project, task, options, key="the same")
            assert one.id == two.id == "explorer-7"
            await subagents.wait(project)
            assert {child.status for child in subagents.list_subagents(project)} == {"completed"}
            assert verify(project.store, "hand").violations == []
        finally:
            project.close()

    asyncio.run(again())


# --------------------------------------------------------------------------------------------- waiting


def test_waiting_ends_no_child_and_zero_polls(play):
    async def story(hand: Hand) -> None:
        await hand.spawn("a")
        await hand.spawn("b", "break")
        await hand.until(lambda: hand.life("b")[-1:] == ["failed"])
        assert await hand.wait("a", "b", timeout_s=0) == {"running": ["a"], "failed": ["b"]}
        assert await hand.wait("a", timeout_s=0.05) == {"running": ["a"]}
        assert hand.gated.inside == ["a"]
        hand.gated.let_go("a")
        assert await hand.wait("a") == {"completed": ["a"]}

    play(story)


def test_an_id_that_no_log_knows_is_not_found(play):
    async def story(hand: Hand) -> None:
        for asked in (hand.wait("nobody"), hand.send("nobody", "x"), hand.close("nobody")):
            with pytest.raises(NotFoundError, match="there is no subagent nobody"):
                await asked

    play(story)


def test_failures_and_time_outs_are_distinguished(play):
    async def story(hand: Hand) -> None:
        await hand.spawn("bad", "break")
        await hand.spawn("slow", timeout_ms=50)
        await hand.wait()
        bad, slow = hand.find("bad"), hand.find("slow")
        assert bad.error is not None
        assert slow.error is not None
        assert (bad.status, bad.error.code, bad.summary) == ("failed", "agent.broke", "it broke")
        assert (slow.status, slow.error.kind) == ("timed_out", "timeout")
        assert hand.life("slow") == ["queued", "started", "timed_out"]

    play(story)


# ----------------------------------------------------------------------------------------------- turns


def test_input_for_a_running_child_is_its_next_turn(play):
    async def story(hand: Hand) -> None:
        await hand.spawn("a", "one")
        await hand.until(lambda: hand.gated.inside == ["a"])
        assert (await hand.send("a", "two")).status == "running"
        await hand.send("a", "three")
        hand.gated.let_go("a", "a#2", "a#3")
        assert await hand.wait("a") == {"completed": ["a"]}
        assert hand.gated.order == ["a", "a#2", "a#3"]
        assert (hand.find("a").summary, hand.find("a").turns) == ("did three", 3)
        heard = [entry.text for entry in hand.gated.entries["a#3"]]
        assert heard == ["one", "did one", "two", "did two", "three"], "the same conversation"
        words = [
            "queued",
            "started",
            "input",
            "input",
            "finished",
            "started",
            "finished",
            "started",
            "finished",
        ]
        assert hand.life("a") == words

    play(story)


@pytest.mark.parametrize("end", ["completed", "failed", "timed_out", "cancelled"])
def test_input_restarts_a_finished_child_of_any_status(play, end):
    async def story(hand: Hand) -> None:
        limit = 50 if end == "timed_out" else 60_000
        await hand.spawn("a", "break" if end == "failed" else "go", timeout_ms=limit)
        await hand.until(lambda: hand.gated.order)
        if end == "completed":
            hand.gated.let_go("a")
        elif end == "cancelled":
            await hand.close("a")
        assert await hand.wait("a") == {end: ["a"]}
        hand.gated.let_go("a#2")
        await hand.send("a", "again")
        assert await hand.wait("a") == {"completed": ["a"]}
        assert [entry.text for entry in hand.gated.entries["a#2"] if isinstance(entry, UserInput)][
            -1
        ] == "again"

    play(story)


def test_input_for_a_turn_that_never_started_reaches_the_next(play):
    async def story(hand: Hand) -> None:
        await hand.spawn("a", "one")
        await hand.spawn("b", "two {{not.a.template}}")
        await hand.close("b")
        assert hand.life("b") == ["queued", "cancelled"]
        await hand.send("b", "three")
        hand.gated.let_go("a", "b#2")
        await hand.wait()
        assert [entry.text for entry in hand.gated.entries["b#2"]] == ["two {{not.a.template}}", "three"]

    play(story, FANFOLD_MAX_THREADS="1")


# ------------------------------------------------------------------------------------------------ ends


def test_closing_cancels_what_runs_and_what_waits_behind_it_and_closes_the_rest_for_good(play):
    async def story(hand: Hand) -> None:
        await hand.spawn("a")
        await hand.until(lambda: hand.gated.inside == ["a"])
        await hand.send("a", "more")
        assert (await hand.close("a")).status == "cancelled"
        assert (hand.gated.inside, hand.gated.order) == ([], ["a"])
        assert (await hand.close("a")).status == "closed"
        assert (await hand.close("a")).status == "closed"
        with refused("subagent.closed"):
            await hand.send("a", "still there?")
        assert hand.life("a") == ["queued", "started", "input", "cancelled", "cancelled", "closed"]

    play(story)


@pytest.mark.full
def test_closing_leaves_no_process_of_the_child(play, tmp_path):
    async def story(hand: Hand) -> None:
        await hand.spawn("a", f"run echo $$ > {tmp_path}/pid; sleep 1000")
        await hand.until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
        await hand.close("a")
        pid = int((tmp_path / "pid").read_text())
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    play(story)


def test_cancelling_the_run_ends_everybody_and_the_next_spawn_opens_another(play):
    async def story(hand: Hand) -> None:
        await hand.spawn("a")
        await hand.until(lambda: hand.gated.inside == ["a"])
        assert hand._handle is not None
        await hand._handle.cancel()
        assert hand.gated.inside == []
        assert hand.project.resolve("hand").status == "cancelled"
        assert subagents.list_subagents(hand.project) == [], "those of a run that is over are its history"

    play(story)


# ------------------------------------------------------------------------- children that ask for others


@pytest.mark.full
def test_children_of_children_are_refused_beyond_max_depth(play):
    async def story(hand: Hand) -> None:
        await hand.spawn("a")
        await hand.until(lambda: hand.gated.inside == ["a"])
        with pytest.raises(SubagentRefused, match="nest 1 deep; this would be level 2") as caught:
            await hand.spawn("b", parent="a")
        assert caught.value.code == "subagent.limit_exceeded"

    play(story)


def test_a_child_of_a_child_ends_with_it_and_is_never_wider(play):
    async def story(hand: Hand) -> None:
        await hand.spawn("a", permission="ask")
        await hand.until(lambda: hand.gated.inside == ["a"])
        child = await hand.spawn("b", role="worker", parent="a", permission="auto")
        assert (child.depth, child.permission) == (2, "ask")
        await hand.until(lambda: hand.gated.inside == ["a", "b"])
        assert hand.gated.roles["b"].read_only, "the one that asked only reads"
        hand.gated.let_go("a")
        assert await hand.wait("a", "b") == {"completed": ["a"], "cancelled": ["b"]}
        log = shown(hand.project.store, hand.project.store.log("hand"))
        told = next(one.data for one in log if one.data.get("subagent_id") == "b")
        assert (told["parent_id"], told["depth"]) == (hand.find("a").session_id, 2)

    play(story, FANFOLD_MAX_DEPTH="2")


# ---------------------------------------------------------------------------------------------- detached


def test_a_child_whose_process_died_is_detached_until_it_is_requested(play):
    async def story(hand: Hand) -> None:
        await hand.spawn("a", "one")
        await hand.spawn("b", "two")
        await hand.until(lambda: hand.gated.inside == ["a", "b"])
        before = len(list(hand.project.store.log("hand")))
        await hand.die()
        assert [hand.find(name).status for name in "ab"] == ["detached", "detached"]
        assert await hand.wait("a") == {"detached": ["a"]}
        with refused("subagent.detached"):
            await hand.send("a", "hello?")
        assert len(list(hand.project.store.log("hand"))) == before, "detached is an answer, never an event"

        await hand.drive()
        assert [hand.find(name).status for name in "ab"] == ["detached", "detached"]
        assert hand.gated.order == ["a", "b"], "nobody asked to pay for them again"
        with refused("subagent.detached"):
            await hand.send("a", "hello?")
        hand.gated.let_go("a", "a#2")
        await hand.send("a", "go on", resume=True)
        assert await hand.wait("a") == {"completed": ["a"]}
        assert hand.gated.order == ["a", "b", "a", "a#2"]
        assert hand.find("a").summary == "did go on"
        assert (await hand.close("b")).status == "closed"
        with refused("subagent.not_detached"):
            await hand.send("a", resume=True)

    play(story)


def test_messages_of_a_child_stay_in_its_own_log(play):
    async def story(hand: Hand) -> None:
        secret = "x" * 5_000
        child = await hand.spawn("a", secret)
        hand.gated.let_go("a")
        await hand.wait("a")
        log = list(hand.project.store.log("hand"))
        assert all(len(str(one.data)) < 2_000 for one in log if one.type == "subagent_event")
        entries = read_entries(hand.project.store, child.session_id)
        said = [entry.text for entry in entries if isinstance(entry, UserInput | Response)]
        assert said == [secret, f"did {secret}"]

    play(story)
