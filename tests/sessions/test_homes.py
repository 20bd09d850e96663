"""The homes of children: entered before a turn, brought back after success, kept after anything else."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanfold.agents.backend import SessionResult
from fanfold.errors import WorldError
from fanfold.kernel.events import Failure
from fanfold.sessions.log import read_children, read_evidence, read_notes
from fanfold.sessions.opened import Merge, Settings
from fanfold.sessions.subagents import SubagentRefused
from fanfold.sessions.supervisor import Supervisor
from fanfold.store.protocol import LeaseLost
from tests.sessions.trees import until
from tests.sessions.world import World, run_in


class House:
    """Homes that tell what is done with them, and do as the test wants."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.refusal: Failure | None = None
        self.fault: Exception | None = None
        self.door = asyncio.Event()
        """Closed, bringing back takes until it is opened."""
        self.door.set()
        self.facts: list[dict[str, Any]] = []
        self.path = "inside"
        self.shown = "shown"

    def home_of(self, session_id: str, role: str, settings: Settings) -> "House":
        self.told.append("home")
        return self

    async def enter(self) -> None:
        await asyncio.sleep(0)
        self.told.append("enter")
        if self.fault is not None:
            raise self.fault
        self.facts.append({"what": "snapshot"})

    async def bring_back(self) -> Failure | None:
        self.told.append("bring_back")
        await self.door.wait()
        self.facts.append({"what": "merge"})
        return self.refusal

    async def clear(self, session_id: str = "") -> None:
        await asyncio.sleep(0)
        self.told.append(f"clear {session_id}".strip())

    async def keep(self, why: str) -> None:
        await asyncio.sleep(0)
        self.told.append(f"keep {why}")

    def abandon(self) -> None:
        self.told.append("abandon")

    def take_evidence(self) -> list[dict[str, Any]]:
        facts, self.facts = self.facts, []
        return facts


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, "steps: {w: [one, two, three], bad: {fail: {class: agent, message: no}}}")


def housed(world: World, **given: Any) -> tuple[Supervisor, House]:
    supervisor, house = world.supervisor(**given), House()
    supervisor.children.turns.housing = house
    return supervisor, house


def writer(name: str = "w", backend: str = "scripted", merge: Merge = "auto") -> Settings:
    return Settings(backend=backend, name=name, read_only=False, isolated=True, merge=merge)


def test_a_turn_takes_place_in_the_child_s_home(world):
    async def story() -> None:
        supervisor, house = housed(world)
        child = await supervisor.spawn("root", "worker", "t", writer())
        await supervisor.wait([child])
        assert house.told == ["home", "enter", "bring_back", "clear"]
        life = [(event.status, event.workspace) for event in read_children(world.store, "root")]
        assert life == [("queued", "."), ("started", "shown"), ("finished", "shown")]
        facts = read_evidence(world.store, child, "workspace_event")
        assert facts == [
            {"what": "snapshot", "attempt": 1, "execution": 1},
            {"what": "merge", "attempt": 1, "execution": 1},
        ]
        assert world.kinds(child) == [
            "opened",
            "input",
            "response",
        ]

    run_in(world, story)


def test_a_back_end_works_in_the_home(world):
    seen: list[str] = []

    async def run(request: Any, record: Any, progress: Any) -> SessionResult:
        seen.append(request.workspace)
        return SessionResult(output="x")

    async def story() -> None:
        supervisor, _ = housed(world)
        world.gated.run = run  # it only looks
        await supervisor.wait([await supervisor.spawn("root", "worker", "t", writer(backend="gated"))])
        assert seen == ["inside"]

    run_in(world, story)


def test_what_cannot_be_brought_back_fails_the_turn_and_the_home_is_kept_for_the_next(world):
    async def story() -> None:
        supervisor, house = housed(world)
        house.refusal = Failure("conflict", "workspace.conflict", "both changed a.txt")
        child = await supervisor.spawn("root", "worker", "t", writer())
        (failed,) = (await supervisor.wait([child]))["failed"]
        assert (failed.error, failed.summary) == (house.refusal, "both changed a.txt")
        assert failed.usage is not None
        assert house.told == ["home", "enter", "bring_back", "keep workspace.conflict"]
        house.refusal = None
        await supervisor.send_input(child, "again")
        (done,) = (await supervisor.wait([child]))["completed"]
        assert (done.summary, done.error) == ("two", None)

    run_in(world, story)


@pytest.mark.parametrize(
    ("name", "fault", "code"),
    [
        ("bad", None, "script.agent"),
        ("w", WorldError("workspace.io", "the disk is full"), "workspace.io"),
        ("w", RuntimeError("a bug"), "session.crashed"),
    ],
)
def test_whatever_fails_the_child_says_so_and_its_home_is_kept(world, name, fault, code):
    async def story() -> None:
        supervisor, house = housed(world)
        house.fault = fault
        child = await supervisor.spawn("root", "worker", "t", writer(name))
        (failed,) = (await supervisor.wait([child]))["failed"]
        assert failed.error is not None
        assert failed.error.code == code
        assert house.told[-1] == f"keep {code}"

    run_in(world, story)


def test_a_cancelled_child_keeps_its_home_until_it_is_closed(world):
    async def story() -> None:
        supervisor, house = housed(world)
        child = await supervisor.spawn("root", "worker", "t", writer("g", "gated"))
        await until(lambda: world.gated.inside)
        assert (await supervisor.close(child)).status == "cancelled"
        assert house.told[-1] == "keep session.cancelled"
        assert (await supervisor.close(child)).status == "closed"
        assert (await supervisor.close(child)).status == "closed"  # also when it was interrupted before
        assert house.told[-2:] == [f"clear {child}"] * 2

    run_in(world, story)


def test_it_is_too_late_to_cancel_once_changes_are_being_brought_back(world):
    async def story() -> None:
        supervisor, house = housed(world)
        house.door.clear()
        child = await supervisor.spawn("root", "worker", "t", writer())
        await until(lambda: "bring_back" in house.told)
        await supervisor.send_input(child, "this will not be heard")
        closing = asyncio.create_task(supervisor.close(child))
        await asyncio.sleep(0)
        house.door.set()
        assert (await closing).status == "completed"
        assert house.told == ["home", "enter", "bring_back", "clear"]

    run_in(world, story)


@pytest.mark.parametrize(
    ("merge", "told"),
    [
        ("auto", ["home", "enter", "bring_back", "clear"] * 2),
        ("propose", ["home", "enter", "enter", "bring_back", "clear"]),
    ],
)
def test_each_turn_is_merged_and_one_proposal_is_made_of_all(world, merge, told):
    async def story() -> None:
        supervisor, house = housed(world)
        child = await supervisor.spawn("root", "worker", "t", writer("g", "gated", merge))
        await until(lambda: world.gated.inside)
        await supervisor.send_input(child, "more")
        world.gated.gate("g").set()
        (done,) = (await supervisor.wait([child]))["completed"]
        assert (done.summary, done.attempt) == ("did more", 2)
        assert house.told == told

    run_in(world, story)


@pytest.mark.parametrize("stopped", [False, True])
def test_input_that_comes_while_a_proposal_is_made_becomes_part_of_it(world, stopped):
    async def story() -> None:
        supervisor, house = housed(world)
        house.door.clear()
        child = await supervisor.spawn("root", "worker", "t", writer(merge="propose"))
        await until(lambda: "bring_back" in house.told)
        await supervisor.send_input(child, "more")
        closing = asyncio.create_task(supervisor.close(child)) if stopped else None
        await asyncio.sleep(0)
        house.door.set()
        (done,) = (await supervisor.wait([child]))["completed"]
        if closing is not None:
            await closing
            assert house.told == ["home", "enter", "bring_back", "clear"]
        else:
            assert done.summary == "two"
            assert house.told == ["home", "enter", "bring_back", "enter", "bring_back", "clear"]

    run_in(world, story)


def test_a_host_that_lost_its_lease_leaves_the_home_as_it_is(world):
    async def story() -> None:
        supervisor, house = housed(world)
        house.fault = LeaseLost("store.lease_lost", "somebody else goes on")
        child = await supervisor.spawn("root", "worker", "t", writer())
        await supervisor.wait([child])
        assert house.told[-1] == "abandon"
        assert supervisor.children.find(child).status == "detached"

    run_in(world, story)


def test_a_turn_that_was_interrupted_is_ended_before_what_was_said_meanwhile_is_heard(world):
    async def story() -> None:
        dead, _ = housed(world)
        child = await dead.spawn("root", "worker", "first", writer("g", "gated"))
        await until(lambda: world.gated.inside)
        await dead.send_input(child, "second")
        dead.children._tell = lambda *_, **__: None  # type: ignore[method-assign] # the dead tell nothing
        await dead.children.stop_everything()

        supervisor, house = housed(world)
        world.gated.gate("g").set()
        supervisor.children.resume(child)
        (done,) = (await supervisor.wait([child]))["completed"]
        assert (done.summary, done.attempt) == ("did second", 2)
        spoken = [e.text for e in world.gated.entries[child]]
        assert spoken == ["first", "first", "second"]
        assert house.told == ["home", "enter", "bring_back", "clear"] * 2

    run_in(world, story)


def test_a_child_of_a_child_is_allowed_no_more_than_its_parent(world):
    async def story() -> None:
        supervisor, _ = housed(world, max_depth=2)
        narrow = Settings(backend="scripted", name="w", permission="ask", read_only=True)
        wide = Settings(backend="scripted", name="w", permission="auto", read_only=False, unsafe=True)
        parent = await supervisor.spawn("root", "worker", "t", narrow)
        await supervisor.wait([parent])
        child = await supervisor.spawn(parent, "worker", "t", wide)
        await supervisor.wait([child])
        settings = read_notes(world.store, child)[0]["settings"]
        assert "permission" not in settings  # which means `ask`
        assert "read_only" not in settings  # which means yes
        assert "unsafe" not in settings
        with pytest.raises(SubagentRefused):
            await supervisor.spawn(child, "worker", "t", wide)

    run_in(world, story)
