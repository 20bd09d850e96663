"""Isolated writers: what they change comes home, is refused, or waits, and the log says which."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fanfold.api.archives import verify
from fanfold.api.result import Result
from fanfold.api.run_options import Options
from fanfold.errors import WorldError
from fanfold.steps.ids import session_id
from fanfold.workspace import changes
from fanfold.workspace.workspaces import Workspaces
from tests.levels import finds_what_strayed
from tests.runtime.killing import Doomed
from tests.runtime.running import client, run
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

WHOLE = os.environ.get("KILL_TEST") == "all"

HELD_UP_S = 20.0
"""Longer than anything takes that nobody holds up."""

WRITER = """
name: writer
steps:
  - {{id: w, agent: worker, write_set: ["src/**"], prompt: "write", merge: {merge}}}
"""


def project(folder: Path) -> Path:
    (folder / "src").mkdir()
    (folder / "src" / "a.py").write_text("x = 1\n")
    return folder


def test_an_isolated_writers_changes_are_merged_and_listed(tmp_path: Path) -> None:
    script = 'steps: {w: {output: ok, writes: {"src/a.py": "x = 2\\n", "src/new/b.py": "y\\n"}}}'
    result = run(project(tmp_path), WRITER.format(merge="auto"), script)
    assert result.status == "completed"
    assert (tmp_path / "src/a.py").read_text() == "x = 2\n"
    assert (tmp_path / "src/new/b.py").read_text() == "y\n"
    assert {(c.path, c.kind) for c in result.changes} >= {
        ("src/a.py", "modified"),
        ("src/new/b.py", "added"),
    }
    left = tmp_path / ".fanfold" / "subagents"
    assert [entry.name for entry in left.iterdir() if entry.is_dir()] == []


def test_discarded_changes_are_not_merged(tmp_path: Path) -> None:
    script = 'steps: {w: {output: ok, writes: {"src/a.py": "x = 2\\n"}}}'
    result = run(project(tmp_path), WRITER.format(merge="discard"), script)
    assert result.status == "completed"
    assert (tmp_path / "src/a.py").read_text() == "x = 1\n"


def test_proposed_changes_wait(tmp_path: Path) -> None:
    script = 'steps: {w: {output: ok, writes: {"src/a.py": "x = 2\\n"}}}'
    result = run(project(tmp_path), WRITER.format(merge="propose"), script)
    assert (tmp_path / "src/a.py").read_text() == "x = 1\n"
    assert result.changes[0].proposal
    assert result.changes[0].state == "proposed"


def test_a_write_outside_the_write_set_fails_the_step_and_nothing_comes_home(tmp_path: Path) -> None:
    recipe = """
name: violator
steps:
  - {id: w, run: [bash, -c, "echo no > outside.txt; echo yes > src/a.py"], write_set: ["src/**"]}
"""
    result = run(project(tmp_path), recipe)
    error = result.steps["w"].error
    assert error is not None
    assert (error.kind, error.code) == ("violation", "workspace.violation")
    assert "outside.txt" in error.message
    assert "write_set" in error.hint
    assert not (tmp_path / "outside.txt").exists()
    assert (tmp_path / "src/a.py").read_text() == "x = 1\n"


@pytest.mark.parametrize(
    ("does", "why"),
    [
        (
            "mkdir -p .claude/agents; touch .claude/agents/x.md",
            ".claude/agents/x.md (git's, Fanfold's or a role's)",
        ),
        pytest.param(
            "git init -q src/repo", "src/repo/.git (git's, Fanfold's or a role's)", marks=finds_what_strayed
        ),
        ("mkfifo src/pipe", "src/pipe (no file, link or folder)"),
        ("ln -s /etc src/link", "src/link (a link that leads out)"),
    ],
)
def test_a_violation_that_no_write_set_allows_says_why_and_does_not_advise_to_widen_it(
    tmp_path: Path, does: str, why: str
) -> None:
    recipe = f"""
name: violator
steps:
  - {{id: w, run: [bash, -c, "{does}"], write_set: ["**/*"]}}
"""
    error = run(project(tmp_path), recipe).steps["w"].error
    assert error is not None
    assert why in error.message
    assert "widen" not in error.hint


def test_a_command_without_a_write_set_works_in_a_copy_that_is_thrown_away(tmp_path: Path) -> None:
    recipe = """
name: reader
steps:
  - {id: r, run: [bash, -c, "echo cache > src/cache.txt; cat src/a.py"]}
"""
    result = run(project(tmp_path), recipe)
    assert result.output == "x = 1"
    assert not (tmp_path / "src/cache.txt").exists()


def test_the_second_of_two_overlapping_writers_starts_from_the_firsts_result(tmp_path: Path) -> None:
    recipe = """
name: two
steps:
  - {id: a, run: [bash, -c, "echo y = 2 >> src/a.py"], write_set: ["src/*.py"]}
  - {id: b, run: [bash, -c, "echo z = 3 >> src/a.py"], write_set: ["src/a.py"]}
"""
    result = run(project(tmp_path), recipe)
    assert result.status == "completed"
    assert (tmp_path / "src/a.py").read_text() == "x = 1\ny = 2\nz = 3\n"


# What a crash, a cancellation or a failing disk must not do

APPENDS = """
name: appends
steps:
  - {id: c, run: [bash, -c, "echo y = 2 >> src/a.py; mkdir src/made; echo said"], write_set: ["src/**"]}
  - {id: w, agent: worker, prompt: x, depends_on: [c], write_set: ["src/**"]}
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_around_any_commit_nothing_is_merged_or_asked_twice(tmp_path: Path, when: str) -> None:
    script = 'steps: {w: {output: ok, writes: {"src/b.py": "z\\n"}}}'
    calm = Doomed(tmp_path / "calm", {"src/a.py": "x = 1\n"}, APPENDS, script, [])
    commits = calm.process()
    chosen = range(1, commits + 1) if WHOLE else (3, commits // 2 + 1, commits)  # the ends of both steps too
    for number in chosen:
        run = Doomed(tmp_path / f"{number}", {"src/a.py": "x = 1\n"}, APPENDS, script, [])
        run.process(number, when)
        answered = run.answered({"w": session_id(run.root, "w", 1)}) if run.root is not None else set()
        if (run.project / "src/b.py").exists():
            assert answered == {"w"}, f"merged before its answer was durable, at {number}"
        before = len(run.calls())
        run.process()
        document = run.document()
        assert (document["status"], document["steps"]["c"]["output"]) == ("completed", "said"), number
        assert (run.project / "src/a.py").read_text() == "x = 1\ny = 2\n", number
        assert (run.project / "src/b.py").read_text() == "z\n", number
        assert [change["path"] for change in document["changes"]] == ["src/a.py", "src/made", "src/b.py"]
        assert run.told().count("merge") == 2, number
        assert not answered & set(run.calls()[before:]), number
        assert run.left() == [], number


def test_a_command_that_was_cut_short_begins_again_in_a_new_snapshot(tmp_path: Path) -> None:
    recipe = """
name: slow
steps:
  - {id: c, run: [bash, -c, "echo y = 2 >> src/a.py; sleep 1"], write_set: ["src/**"]}
"""
    run = Doomed(tmp_path / "it", {"src/a.py": "x = 1\n"}, recipe, "default: x", [])
    process = run.start()
    layers = ".fanfold/subagents/s*/*/src/a.py"
    wait_for(lambda: any("y = 2" in file.read_text() for file in run.project.glob(layers)))
    process.kill()
    run.heard(process.communicate()[0])
    run.process()
    assert run.document()["status"] == "completed"
    assert (run.project / "src/a.py").read_text() == "x = 1\ny = 2\n"


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_workspace_that_cannot_be_cleared_away_does_not_hide_that_it_was_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise WorldError("workspace.still_mounted", "it is busy")

    monkeypatch.setattr(Workspaces, "close", fails)
    script = 'steps: {w: {output: ok, writes: {"src/a.py": "x = 2\\n"}}}'
    result = run(project(tmp_path), WRITER.format(merge="auto"), script)
    assert result.status == "completed"
    assert [(change.path, change.state) for change in result.changes] == [("src/a.py", "merged")]
    monkeypatch.undo()
    for folder in (tmp_path / ".fanfold" / "subagents").glob("s*"):
        changes.lift(folder / "workspace")


def test_a_step_that_is_cancelled_while_it_merges_has_merged_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merging = threading.Event()
    merge = Workspaces.merge

    def slowly(self: Workspaces, *arguments: Any) -> Any:
        merging.set()
        time.sleep(0.3)
        return merge(self, *arguments)

    monkeypatch.setattr(Workspaces, "merge", slowly)
    script = 'steps: {w: {output: ok, writes: {"src/a.py": "x = 2\\n"}}}'

    async def work() -> Result:
        async with client(project(tmp_path)) as opened:
            recipe = WRITER.format(merge="auto")
            handle = await opened.start(recipe, options=Options(permission="auto", script=script))
            await asyncio.to_thread(merging.wait, 20)
            await handle.cancel()
            assert verify(opened.project.store, handle.id).violations == []
            return await handle.result()

    result = asyncio.run(work())
    assert (tmp_path / "src/a.py").read_text() == "x = 2\n"
    assert result.steps["w"].status == "completed"
    assert [change.path for change in result.changes] == ["src/a.py"]
    assert not list((tmp_path / ".fanfold" / "subagents").glob("s*"))


def test_a_step_that_is_cancelled_holds_up_nothing_else_while_another_has_the_workspace(
    tmp_path: Path,
) -> None:
    script = "steps: {w: {output: ok, delay_ms: 60000}}"

    async def work() -> str:
        async with client(project(tmp_path)) as opened:
            recipe = WRITER.format(merge="auto")
            handle = await opened.start(recipe, options=Options(permission="auto", script=script))
            await asyncio.to_thread(until_there, tmp_path / ".fanfold/subagents", "*/child.json")
            with lock_held(tmp_path) as given_up:
                cancelling = asyncio.create_task(handle.cancel())
                await asyncio.wait([cancelling], timeout=0.2)
                assert not given_up.is_set(), "everything in this loop waited for the lock"
                assert not cancelling.done(), "a snapshot is left with the lock held"
            await cancelling
            return handle.status

    assert asyncio.run(work()) == "cancelled"


def until_there(folder: Path, pattern: str) -> None:
    while not list(folder.glob(pattern)):
        time.sleep(0.01)


@contextmanager
def lock_held(folder: Path) -> Iterator[threading.Event]:
    """With the workspace lock of another, who gives it up after a while: the event says that it did."""
    given_up = threading.Event()
    with open(folder / ".fanfold/workspace/lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        def give_up() -> None:
            given_up.set()
            fcntl.flock(lock, fcntl.LOCK_UN)

        late = threading.Timer(HELD_UP_S, give_up)
        late.start()
        try:
            yield given_up
        finally:
            late.cancel()
            late.join()


def test_leftovers_of_a_process_are_removed_when_the_run_continues(tmp_path: Path) -> None:
    script = 'steps: {w: {output: ok, writes: {"src/b.py": "z\\n"}}}'
    run = Doomed(tmp_path / "it", {"src/a.py": "x = 1\n"}, APPENDS, script, [])
    run.process(3, "after")  # created, started, and the end of the first step
    assert run.left() != []
    run.process()
    assert run.left() == []


def test_changes_say_whether_they_are_merged_or_wait_and_the_report_says_how_to_apply_them(
    tmp_path: Path,
) -> None:
    recipe = """
name: both
steps:
  - {id: now, agent: worker, write_set: ["src/now.py"], prompt: x}
  - {id: later, agent: worker, write_set: ["src/later.py"], prompt: x, merge: propose}
"""
    script = """
steps:
  now: {output: ok, writes: {"src/now.py": "1\\n"}}
  later: {output: ok, writes: {"src/later.py": "2\\n"}}
"""
    result = run(project(tmp_path), recipe, script)
    states = {change.step: (change.path, change.state) for change in result.changes}
    assert states == {"now": ("src/now.py", "merged"), "later": ("src/later.py", "proposed")}
    report = (tmp_path / ".fanfold" / "runs" / result.run_id / "report.md").read_text()
    assert "- added src/now.py (now, merged)" in report
    assert "- added src/later.py (later, proposed)" in report
    assert f"`fanfold apply {result.run_id} later`" in report


def after_a_power_cut(run: Doomed) -> None:
    """Let workspaces look as if the machine had been switched off since: their layers are not trusted."""
    for file in run.project.glob(".fanfold/subagents/s*/child.json"):
        record = json.loads(file.read_bytes())
        file.write_text(json.dumps(record | {"owner": f"another-boot:{record['owner'].partition(':')[2]}"}))


def test_merges_before_a_power_cut_are_not_repeated(tmp_path: Path) -> None:
    script = 'steps: {w: {output: ok, writes: {"src/b.py": "z\\n"}}}'
    run = Doomed(tmp_path / "it", {"src/a.py": "x = 1\n"}, APPENDS, script, [])
    run.process(3, "before")  # created, started, and the end of the first step, which is not written
    assert (run.project / "src/a.py").read_text() == "x = 1\ny = 2\n"
    after_a_power_cut(run)
    run.process()
    document = run.document()
    assert (document["status"], document["steps"]["c"]["output"]) == ("completed", "said")
    assert (run.project / "src/a.py").read_text() == "x = 1\ny = 2\n"
    assert run.told().count("merge") == 2
    assert run.left() == []


def test_an_agent_whose_changes_a_power_cut_took_fails_instead_of_going_on_without_them(
    tmp_path: Path,
) -> None:
    script = 'steps: {w: {output: ok, writes: {"src/b.py": "z\\n"}}}'
    run = Doomed(tmp_path / "it", {"src/a.py": "x = 1\n"}, WRITER.format(merge="auto"), script, [])
    run.process(5, "after")  # its first call of a tool and the result are in the log
    if not any(run.project.glob(".fanfold/subagents/s*/upper/src/b.py")):
        pytest.skip("needs namespaces and mounts: make test-full on a Linux that allows them")
    after_a_power_cut(run)
    run.process()
    error = run.document()["steps"]["w"]["error"]
    assert error["code"] == "workspace.lost"
    assert not (run.project / "src/b.py").exists()


# What the project ignores

IGNORING = """
name: ignoring
steps:
  - {{id: w, run: [bash, -c, "{does}"], write_set: {sets}}}
"""


def ignoring(folder: Path, does: str, sets: list[str]) -> Result:
    (folder / ".gitignore").write_text("*.log\nbuild/\n")
    return run(folder, IGNORING.format(does=does, sets=json.dumps(sets)))


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("a.log", "a.log"),
        ("**/*.log", "docs/a.log"),
        ("docs/**", "docs/a.log"),
        ("build/**", "build/out/a.js"),
        ("build/*.js", "build/a.js"),
    ],
)
def test_an_ignored_file_that_the_write_set_asks_for_comes_home(
    tmp_path: Path, pattern: str, path: str
) -> None:
    result = ignoring(tmp_path, f"mkdir -p {Path(path).parent}; echo x > {path}", [pattern])
    assert result.status == "completed"
    assert (tmp_path / path).read_text() == "x\n"
    assert path in [change.path for change in result.changes]


def test_an_ignored_file_of_an_agent_comes_home_too(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*.log\n")
    recipe = WRITER.format(merge="auto").replace("src/**", "a.log")
    result = run(tmp_path, recipe, "steps: {w: {output: ok, writes: {a.log: x}}}")
    assert (result.status, (tmp_path / "a.log").read_text()) == ("completed", "x")


@pytest.mark.parametrize(
    ("pattern", "path"),
    [("**/*", "a.log"), ("**", "build/a.js"), ("src/**", "src/build/a.js"), ("**/*.js", "build/a.js")],
)
def test_an_ignored_file_outside_the_write_set_is_dropped_and_logged(
    tmp_path: Path, pattern: str, path: str
) -> None:
    result = ignoring(tmp_path, f"mkdir -p {Path(path).parent}; echo x > {path}", [pattern])
    assert result.status == "completed"
    assert not (tmp_path / path).exists()

    async def events() -> list[dict[str, Any]]:
        async with client(tmp_path) as opened:
            events = opened.project.store.tree(result.run_id)
            return [event.data for event in events if event.type == "workspace_event"]

    facts = asyncio.run(events())
    left = [fact for fact in facts if fact["what"] == "left_out"]
    assert [(fact["count"], fact["paths"]) for fact in left] == [(1, [path])]


@pytest.mark.parametrize("sets", [["a.log"], ["*.log"], ["build/**"]])
def test_an_ignored_file_of_the_project_is_never_replaced_unseen(tmp_path: Path, sets: list[str]) -> None:
    (tmp_path / "build").mkdir()
    for path in ("a.log", "build/a.log"):
        (tmp_path / path).write_text("mine\n")
    path = "build/a.log" if sets == ["build/**"] else "a.log"
    result = ignoring(tmp_path, f"mkdir -p build; echo x > {path}", sets)
    error = result.steps["w"].error
    assert error is not None
    assert error.kind == "conflict"
    assert "git ignores" in error.hint
    assert (tmp_path / path).read_text() == "mine\n"


def test_a_step_that_compiles_beside_its_sources_can_run_again(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for number in (1, 2):
        result = ignoring(tmp_path, f"mkdir -p src; date +%N > src/b.log; echo {number} > src/a", ["src/**"])
        assert result.status == "completed"
        assert (tmp_path / "src/a").read_text() == f"{number}\n"


def test_dependencies_and_caches_are_never_merged(tmp_path: Path) -> None:
    does = "mkdir node_modules __pycache__; touch node_modules/a.log __pycache__/a.log"
    assert ignoring(tmp_path, does, ["node_modules/**", "**/a.log"]).status == "completed"
    assert not (tmp_path / "node_modules").exists()
