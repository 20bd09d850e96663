"""The workspaces of subagents by hand: what a host that died at the worst moment leaves, and who finds it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from fanfold.errors import WorldError
from fanfold.runtime.operations.hand_places import HandPlaces
from fanfold.sessions.housing import Home
from fanfold.sessions.opened import Settings
from fanfold.workspace.workspaces import Workspaces

WRITER = Settings(backend="x", read_only=False, isolated=True, write_set=("**/*",))
PROPOSER = Settings(backend="x", read_only=False, isolated=True, write_set=("**/*",), merge="propose")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a.txt").write_text("a\n")
    return folder


def home_in(project: Path, settings: Settings = WRITER) -> Home:
    """What a new process makes of the child."""
    return HandPlaces(project).home_of("hand.1", "worker", settings)


def whats(facts: list[dict[str, Any]]) -> list[str]:
    return [fact["what"] for fact in facts]


def left(project: Path) -> list[str]:
    return [one.name for one in (project / ".fanfold" / "subagents").iterdir() if one.is_dir()]


async def enter_and_write(home: Home, name: str) -> None:
    await home.enter()
    with open(f"{home.path}/{name}", "w") as file:  # noqa: ASYNC230 - a line in a file of a test
        file.write(f"{name}\n")


def test_a_turn_whose_host_died_after_merging_goes_on_from_the_project_and_tells_of_the_merge(project):
    async def story() -> None:
        first = home_in(project)
        await enter_and_write(first, "b.txt")
        assert await first.bring_back() is None
        first.abandon()  # its host is killed before it can tell, or clear anything away

        second = home_in(project)
        await second.enter()
        facts = second.take_evidence()
        assert whats(facts) == ["merge", "snapshot"]
        assert facts[0]["changes"] == [{"path": "b.txt", "kind": "added"}]
        await enter_and_write(second, "c.txt")  # nothing that it does now may get lost
        assert await second.bring_back() is None
        await second.clear()
        assert (project / "c.txt").read_text() == "c.txt\n"
        assert left(project) == []

    asyncio.run(story())


def test_a_turn_whose_host_died_after_proposing_proposes_everything_again(project):
    async def story() -> None:
        first = home_in(project, PROPOSER)
        await enter_and_write(first, "b.txt")
        assert await first.bring_back() is None
        first.abandon()

        second = home_in(project, PROPOSER)
        await enter_and_write(second, "c.txt")
        assert await second.bring_back() is None
        facts = second.take_evidence()
        assert whats(facts) == ["reopened", "merge"]
        assert [one["path"] for one in facts[1]["changes"]] == ["b.txt", "c.txt"]
        await second.clear()
        assert Workspaces(project).apply(facts[1]["proposal"]).applied == ("b.txt", "c.txt")

    asyncio.run(story())


def test_a_child_does_not_begin_anew_while_its_proposal_waits(project):
    async def story() -> None:
        first = home_in(project, PROPOSER)
        await enter_and_write(first, "b.txt")
        await first.bring_back()
        await first.clear()
        with pytest.raises(WorldError) as caught:
            await home_in(project, PROPOSER).enter()
        assert caught.value.code == "subagent.proposal_waits"
        Workspaces(project).reject(HandPlaces(project).waiting("hand.1"))
        again = home_in(project, PROPOSER)
        await again.enter()
        await again.clear()

    asyncio.run(story())


def test_programs_of_a_child_run_where_it_works_and_nowhere_else_afterwards(project):
    async def story() -> None:
        places = HandPlaces(project)
        home = places.home_of("hand.1", "worker", WRITER)
        await home.enter()
        assert places.isolation.place_of("hand.1").path == home.path
        assert places.isolation.place_of("hand.2").path == str(project)
        await home.keep("because")
        assert places.isolation.place_of("hand.1").child is None
        assert left(project) == ["hand.1"]
        await places.clear("hand.1")
        await places.clear("hand.1")
        assert left(project) == []

    asyncio.run(story())


@pytest.mark.parametrize(
    "settings", [Settings(backend="x", isolated=True), Settings(backend="x", read_only=False)]
)
def test_readers_and_those_who_were_told_to_share_the_project(project, settings):
    async def story() -> None:
        home = home_in(project, settings)
        await home.enter()
        assert home.path == home.shown == str(project)
        assert await home.bring_back() is None
        await home.clear()
        assert (project / "a.txt").exists()
        assert not (project / ".fanfold").exists()

    asyncio.run(story())


def test_a_workspace_that_cannot_be_found_again_is_cleared_all_the_same(project):
    async def story() -> None:
        home = home_in(project)
        await home.enter()
        await home.keep("because")
        (project / ".fanfold" / "subagents" / "hand.1" / "child.json").unlink()
        await HandPlaces(project).clear("hand.1")
        assert left(project) == []

    asyncio.run(story())


def restart(project: Path) -> Path:
    """Make the workspace of the child one from before the machine was restarted; its folder."""
    folder = project / ".fanfold" / "subagents" / "hand.1"
    record = json.loads((folder / "child.json").read_text())
    if not record["method"].startswith("overlay"):
        pytest.skip("copies are as good after a restart as before")
    (folder / "child.json").write_text(json.dumps({**record, "owner": "another-boot:1:1"}))
    return folder


def test_work_from_before_a_restart_of_the_machine_is_not_thrown_away_unasked(project):
    async def story() -> None:
        first = home_in(project)
        await enter_and_write(first, "b.txt")
        await first.keep("because")
        folder = restart(project)
        second = home_in(project)
        with pytest.raises(WorldError, match="before this machine was restarted") as caught:
            await second.enter()
        await second.keep(caught.value.code)
        assert caught.value.code == "workspace.before_restart"
        assert str(folder) in caught.value.message
        kept = Workspaces(project).remains.peek("hand.1")
        assert kept is not None
        assert [one.path for one in kept.changes] == ["b.txt"]
        await HandPlaces(project).clear("hand.1")
        assert left(project) == []
        third = home_in(project)
        await third.enter()
        assert whats(third.take_evidence()) == ["snapshot"]
        await third.clear()

    asyncio.run(story())


def test_what_was_merged_before_a_restart_of_the_machine_is_told_and_in_nobody_s_way(project):
    async def story() -> None:
        first = home_in(project)
        await enter_and_write(first, "b.txt")
        assert await first.bring_back() is None
        first.abandon()
        restart(project)
        second = home_in(project)
        await second.enter()
        assert whats(second.take_evidence()) == ["merge", "replaced"]
        await second.clear()

    asyncio.run(story())


def test_a_disk_that_refuses_is_the_child_s_failure(project, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    async def story() -> None:
        monkeypatch.setattr(Workspaces, "open_child", refuse)
        with pytest.raises(WorldError, match="No space left") as caught:
            await home_in(project).enter()
        assert caught.value.code == "workspace.io"

    asyncio.run(story())
