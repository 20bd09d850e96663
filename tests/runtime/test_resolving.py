"""`on_conflict: resolve`: an agent settles what a merge could not, and only then is anything merged."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fanfold.api.archives import verify
from fanfold.api.result import Result
from fanfold.api.run_handle import RunHandle
from fanfold.api.run_options import Options
from fanfold.sessions.log import read_entries
from fanfold.steps.ids import session_id
from fanfold.workspace.workspaces import Workspaces
from tests.runtime.killing import Doomed
from tests.runtime.running import client
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

LINES = "".join(f"line {number}\n" for number in range(20))
WHOLE = os.environ.get("KILL_TEST") == "all"
RECIPE = """
name: writer
steps:
  - id: w
    agent: worker
    write_set: ["src/**"]
    prompt: "Rewrite the third line."
    on_conflict: resolve
"""
COMMAND = """
name: program
steps:
  - id: w
    run: [bash, -c, "echo theirs > src/a.txt"]
    write_set: ["src/**"]
    on_conflict: resolve
"""


def edited(**by_number: str) -> str:
    lines = LINES.splitlines()
    for number, text in by_number.items():
        lines[int(number[1:])] = text
    return "\n".join(lines) + "\n"


THEIRS = edited(_3="theirs", _15="theirs too")
OURS = edited(_3="ours", _9="ours too")
BOTH = edited(_3="both", _9="ours too", _15="theirs too")


def script(resolve: Any, writes: dict[str, str] | None = None, **more: Any) -> str:
    step = {"output": "done", "writes": {"src/a.txt": THEIRS} if writes is None else writes, **more}
    return json.dumps({"steps": {"w": step, "w/resolve": resolve}})


def calls() -> list[str]:
    """Paths of the agents that were asked."""
    return [line.split()[0] for line in Path(os.environ["FANFOLD_SCRIPT_CALLS"]).read_text().splitlines()]


def settles(text: str = BOTH, **more: Any) -> dict[str, Any]:
    return {"output": "settled", "writes": {"src/a.txt": text}, **more}


class World:
    """A project in which somebody else does something right before each merge."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.moves: list[Callable[[], object]] = []
        self.run_id = ""

    def file(self, name: str = "src/a.txt") -> Path:
        return self.folder / name

    def write(self, text: str) -> Callable[[], object]:
        return lambda: self.file().write_text(text)

    def run(
        self,
        script: str,
        *moves: Callable[[], object],
        recipe: str = RECIPE,
        meanwhile: Callable[[RunHandle], Any] | None = None,
    ) -> Result:
        self.moves = list(moves)

        async def work() -> Result:
            async with client(self.folder) as opened:
                handle = await opened.start(recipe, options=Options(permission="auto", script=script))
                self.run_id = handle.id
                if meanwhile is not None:
                    await meanwhile(handle)
                result = await asyncio.wait_for(handle.result(), PATIENCE_S)
                assert verify(opened.project.store, handle.id).violations == []
                return result

        return asyncio.run(work())

    def resume(self) -> Result:
        async def work() -> Result:
            async with client(self.folder) as opened:
                handle = await opened.resume(self.run_id)
                return await asyncio.wait_for(handle.result(), PATIENCE_S)

        return asyncio.run(work())

    def session(self, number: int) -> list[dict[str, Any]]:
        """What the log of a settling agent holds."""
        opened = client(self.folder)
        try:
            name = f"{session_id(self.run_id, 'w', 1)}-r{number}"
            entries: list[dict[str, Any]] = msgspec.to_builtins(read_entries(opened.project.store, name))
            return entries
        finally:
            opened.project.close()

    def told(self) -> list[dict[str, Any]]:
        opened = client(self.folder)
        try:
            return [e.data for e in opened.project.store.tree(self.run_id) if e.type == "workspace_event"]
        finally:
            opened.project.close()

    def words(self) -> list[str]:
        return [fact["what"] for fact in self.told()]

    def left(self) -> list[str]:
        return sorted(entry.name for entry in self.file(".fanfold/subagents").iterdir() if entry.is_dir())


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path / "project")
    made.folder.mkdir()
    made.file().parent.mkdir()
    made.file().write_text(LINES)
    merge = Workspaces.merge

    def merge_later(self: Workspaces, *arguments: Any) -> Any:
        if made.moves:
            made.moves.pop(0)()
        return merge(self, *arguments)

    monkeypatch.setattr(Workspaces, "merge", merge_later)
    (tmp_path / "calls").touch()
    monkeypatch.setenv("FANFOLD_SCRIPT_CALLS", str(tmp_path / "calls"))
    return made


@pytest.mark.proof("merge conflict")
def test_a_conflict_resolved_by_the_agent_is_merged_and_the_step_keeps_its_output(world: World) -> None:
    answer = settles(usage={"input_tokens": 7, "output_tokens": 1})
    result = world.run(script(answer, usage={"input_tokens": 3}), world.write(OURS))
    assert (result.status, result.steps["w"].output) == ("completed", "done")
    assert world.file().read_text() == BOTH
    assert world.words() == ["snapshot", "conflict", "resolve", "merge"]
    assert [(change.path, change.state) for change in result.changes] == [("src/a.txt", "merged")]
    assert (result.usage.input_tokens, result.usage.output_tokens) == (10, 1)
    assert result.usage.agents == 2
    assert world.left() == []


def test_without_a_conflict_no_agent_is_asked(world: World) -> None:
    result = world.run(script({"fail": {"class": "agent"}}), world.write(edited(_9="ours too")))
    assert result.status == "completed"
    assert world.file().read_text() == edited(_3="theirs", _9="ours too", _15="theirs too")
    assert world.words() == ["snapshot", "merge"]


def test_the_agent_finds_the_project_as_it_is_the_change_and_both_versions(world: World) -> None:
    looks = [
        {"tool": "read_file", "args": {"path": path}} for path in ("src/a.txt", "src/new.txt", "notes.txt")
    ]
    writes = {"src/a.txt": THEIRS, "src/new.txt": "made by the step\n"}

    def move() -> None:
        world.file().write_text(OURS)
        world.file("notes.txt").write_text("made meanwhile\n")

    result = world.run(script(settles(tool_calls=looks), writes), move)
    assert result.status == "completed"
    assert world.file("src/new.txt").read_text() == "made by the step\n"
    asked, *rest = world.session(1)
    for words in ("Rewrite the third line.", "- src/a.txt: changed on both sides", "src/**", "marker"):
        assert words in asked["text"]
    seen = [
        entry["result"]["text"] for entry in rest if entry.get("tool") == "read_file" and "result" in entry
    ]
    assert seen[0] == edited(
        _3="<<<<<<< ours: the project now\nours\n||||||| base: before both\nline 3\n=======\ntheirs\n"
        ">>>>>>> theirs: the step's change",
        _9="ours too",
        _15="theirs too",
    )
    assert seen[1:] == ["made by the step\n", "made meanwhile\n"]


@pytest.mark.parametrize(
    "left", [edited(_3="<<<<<<< ours: the project now"), edited(_3=">>>>>>> x"), edited(_3="|||||||")]
)
def test_markers_that_are_left_are_still_a_conflict_and_nothing_is_merged(world: World, left: str) -> None:
    result = world.run(script(settles(left)), world.write(OURS))
    error = result.steps["w"].error
    assert error is not None
    assert (error.kind, error.code) == ("conflict", "workspace.conflict")
    assert "markers are left in src/a.txt" in error.message
    assert world.file().read_text() == OURS
    assert world.words() == ["snapshot", "conflict", "resolve"]
    session = session_id(world.run_id, "w", 1)
    assert world.left() == [session, f"{session}-r1"]


def test_markers_that_a_side_had_before_are_text_like_any_other(world: World) -> None:
    text = BOTH + "<<<<<<< an example\n>>>>>>> an example\n"
    world.file().write_text(LINES + "<<<<<<< an example\n>>>>>>> an example\n")
    writes = {"src/a.txt": THEIRS + "<<<<<<< an example\n>>>>>>> an example\n"}
    ours = OURS + "<<<<<<< an example\n>>>>>>> an example\n"
    assert world.run(script(settles(text), writes), world.write(ours)).status == "completed"
    assert world.file().read_text() == text


def test_an_agent_that_fails_leaves_the_conflict_as_it_was(world: World) -> None:
    answer = {"fail": {"class": "agent", "message": "I cannot decide"}, "usage": {"input_tokens": 5}}
    result = world.run(script(answer), world.write(OURS))
    error = result.steps["w"].error
    assert error is not None
    assert error.kind == "conflict"
    assert "I cannot decide" in error.message
    assert world.file().read_text() == OURS
    assert result.usage.input_tokens == 5
    assert world.told()[-1] | {"settled": False} == world.told()[-1]


def test_forbidden_changes_of_the_agent_are_violations(world: World) -> None:
    stray = {"tool": "run_command", "args": {"argv": ["touch", "outside.txt"]}}
    result = world.run(script(settles(tool_calls=[stray])), world.write(OURS))
    error = result.steps["w"].error
    assert error is not None
    assert (error.kind, error.code) == ("violation", "workspace.violation")
    assert "outside.txt" in error.message
    assert world.file().read_text() == OURS
    assert not world.file("outside.txt").exists()


def test_when_the_project_moves_again_there_is_one_more_round(world: World) -> None:
    again = BOTH.replace("both", "ours again")
    answers = [settles(), settles(BOTH.replace("both", "all three"))]
    result = world.run(script(answers), world.write(OURS), world.write(again))
    assert result.status == "completed"
    assert world.file().read_text() == BOTH.replace("both", "all three")
    assert world.words() == ["snapshot", "conflict", "resolve", "conflict", "resolve", "merge"]
    assert [fact["round"] for fact in world.told() if fact["what"] == "resolve"] == [1, 2]
    assert result.usage.agents == 3
    assert "- src/a.txt: changed on both sides" in world.session(2)[0]["text"]
    assert world.left() == []


def test_a_project_that_never_rests_fails_the_step_after_two_rounds(world: World) -> None:
    moves = [world.write(edited(_3=f"ours {number}")) for number in range(3)]
    result = world.run(script(settles(edited(_3="mine"))), *moves)
    error = result.steps["w"].error
    assert error is not None
    assert error.kind == "conflict"
    assert world.file().read_text() == edited(_3="ours 2")
    assert world.words().count("resolve") == 2


def test_the_agent_gets_both_sides_of_a_binary_conflict_and_leaves_no_copies(world: World) -> None:
    world.file("src/logo").write_bytes(b"\0base")
    world.file("src/gone.txt").write_text("base\n")

    def move() -> None:
        world.file("src/logo").write_bytes(b"\0ours")
        world.file("src/gone.txt").unlink()

    change = "printf '\\0theirs' > src/logo; echo changed > src/gone.txt"
    keep = "cp src/logo.theirs src/logo; mv src/gone.txt.theirs src/gone.txt"
    steps = {
        "w": {"output": "done", "tool_calls": [command(change)]},
        "w/resolve": {"output": "kept the step's", "tool_calls": [command(keep)]},
    }
    result = world.run(json.dumps({"steps": steps}), move)
    assert result.status == "completed", result.steps["w"].error
    assert world.file("src/logo").read_bytes() == b"\0theirs"
    assert world.file("src/gone.txt").read_text() == "changed\n"
    assert sorted(path.name for path in world.file("src").iterdir()) == ["a.txt", "gone.txt", "logo"]
    asked = world.session(1)[0]["text"]
    assert "- src/logo: changed on both sides and not text" in asked
    assert "- src/gone.txt: the project deleted or moved it" in asked


def command(line: str) -> dict[str, Any]:
    return {"tool": "run_command", "args": {"argv": ["bash", "-c", line]}}


def test_a_file_that_the_step_deleted_and_the_project_changed_may_be_deleted(world: World) -> None:
    steps = {
        "w": {"output": "done", "deletes": ["src/a.txt"]},
        "w/resolve": {"output": "gone", "deletes": ["src/a.txt"]},
    }
    result = world.run(json.dumps({"steps": steps}), world.write(OURS))
    assert result.status == "completed"
    assert not world.file().exists()


@pytest.mark.parametrize("by_project", ["moves", "deletes"])
def test_a_file_that_the_step_moved_and_the_project_moved_or_deleted_is_laid_out(
    world: World, by_project: str
) -> None:
    world.file("src/b.txt").write_text("base\n")  # git is asked only where something else conflicts too

    def move() -> None:
        world.file("src/b.txt").write_text("ours\n")
        if by_project == "moves":
            world.file().rename(world.file("src/ours.txt"))
        else:
            world.file().unlink()

    looks = [{"tool": "read_file", "args": {"path": "src/theirs.txt.theirs"}}]
    steps = {
        "w": {
            "output": "done",
            "writes": {"src/theirs.txt": edited(_3="theirs"), "src/b.txt": "theirs\n"},
            "deletes": ["src/a.txt"],
        },
        "w/resolve": {
            "output": "settled",
            "tool_calls": looks,
            "writes": {"src/b.txt": "both\n", "src/theirs.txt": "settled\n"},
        },
    }
    result = world.run(json.dumps({"steps": steps}), move)
    assert result.status == "completed", (result.steps["w"].error, world.told())
    kept = {"b.txt", "theirs.txt"} | ({"ours.txt"} if by_project == "moves" else set())
    assert {path.name for path in world.file("src").iterdir()} == kept
    assert world.file("src/theirs.txt").read_text() == "settled\n"
    seen = [
        entry["result"]["text"]
        for entry in world.session(1)
        if "result" in entry and "text" in entry["result"]
    ]
    assert seen == [edited(_3="theirs")]


def test_a_file_in_the_way_of_a_folder_is_not_handed_to_an_agent(world: World) -> None:
    def move() -> None:
        world.file("src/new").mkdir()
        world.file("src/new/inner.txt").write_text("ours\n")

    result = world.run(script(settles(), {"src/new": "a file\n"}), move)
    error = result.steps["w"].error
    assert error is not None
    assert error.kind == "conflict"
    assert world.words() == ["snapshot", "conflict"]


def test_the_conflict_of_a_command_is_settled_too(world: World) -> None:
    result = world.run(script(settles("both\n")), world.write("ours\n"), recipe=COMMAND)
    assert (result.status, result.steps["w"].output) == ("completed", "")
    assert world.file().read_text() == "both\n"
    assert result.usage.agents == 1
    assert "echo theirs > src/a.txt" in world.session(1)[0]["text"]


async def until_asked() -> None:
    """Until the agent that settles has been asked; it takes its time to answer."""
    while "w/resolve" not in calls():  # noqa: ASYNC110 - a file tells it, not the code
        await asyncio.sleep(0.005)


def test_cancelled_while_an_agent_settles_nothing_is_merged_and_all_is_kept(world: World) -> None:
    async def cancel(handle: RunHandle) -> None:
        await until_asked()
        await handle.cancel()

    text = script(settles(delay_ms=60_000), usage={"input_tokens": 3})
    result = world.run(text, world.write(OURS), meanwhile=cancel)
    assert (result.status, result.steps["w"].status) == ("cancelled", "cancelled")
    assert world.file().read_text() == OURS
    session = session_id(world.run_id, "w", 1)
    assert world.left() == [session, f"{session}-r1"]
    assert result.usage.input_tokens == 3


def test_a_step_that_times_out_while_an_agent_settles_has_timed_out(world: World) -> None:
    recipe = f"{RECIPE}    timeout: 1500ms\n    retry: {{attempts: 1}}\n"
    result = world.run(script(settles(delay_ms=60_000)), world.write(OURS), recipe=recipe)
    assert result.steps["w"].status == "timed_out"
    assert world.file().read_text() == OURS


def test_a_pause_during_the_resolution_of_a_conflict_continues_from_there(world: World) -> None:
    async def pause(handle: RunHandle) -> None:
        await until_asked()
        await handle.pause()

    text = script(settles(delay_ms=500, tool_calls=[{"tool": "read_file", "args": {"path": "src/a.txt"}}]))
    assert world.run(text, world.write(OURS), meanwhile=pause).status == "paused"
    assert world.file().read_text() == OURS
    assert world.resume().status == "completed"
    assert world.file().read_text() == BOTH
    assert calls().count("w") == 1
    assert world.words()[-1] == "merge"
    assert world.words().count("merge") == 1
    assert world.left() == []


KILLED = json.loads(script([settles(), settles(BOTH.replace("both", "all three"))]))
EDITS = [["src/a.txt", OURS], ["src/a.txt", BOTH.replace("both", "ours again")]]


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_commit_it_ends_as_if_nothing_had_happened(tmp_path: Path, when: str) -> None:
    calm = doomed(tmp_path / "calm")
    commits = calm.process()
    expected = seen(calm)
    assert expected["told"].count("merge") == 1
    assert expected["told"].count("resolve") == 2
    chosen = range(1, commits + 1) if WHOLE else (commits // 2, commits - 1, commits)
    for number in chosen:
        run = doomed(tmp_path / f"{when}-{number}")
        run.process(number, when)
        answered, before = set[str](), len(run.calls())
        if run.root is not None:
            session = session_id(run.root, "w", 1)
            answered = run.answered({"w": session, "w/resolve": f"{session}-r1"})
        run.process()
        assert seen(run) | {"told": []} == expected | {"told": []}, f"killed {when} commit {number}"
        assert run.told().count("merge") == 1
        assert run.left() == [], f"killed {when} commit {number}"
        again = [path for path in run.calls()[before:] if path in answered]
        # The second round is asked under the same path: once, whatever happened to the first.
        assert again in ([], ["w/resolve"]), f"killed {when} commit {number}: asked again: {again}"


def doomed(folder: Path) -> Doomed:
    return Doomed(folder, {"src/a.txt": LINES}, RECIPE, json.dumps(KILLED), EDITS)


def seen(run: Doomed) -> dict[str, Any]:
    document = run.document()
    step = document["steps"]["w"]
    usage = {key: value for key, value in document["usage"].items() if key != "cost_usd"}
    return {
        "status": (document["status"], step["status"], step["output"], step["attempts"]),
        "usage": usage,
        "file": (run.project / "src/a.txt").read_text(),
        "changes": [(change["path"], change["state"]) for change in document["changes"]],
        "told": run.told(),
    }
