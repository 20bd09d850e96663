"""`fanfold undo`: what was merged is taken back, as long as nobody changed it since, and nothing is lost."""

import asyncio
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import fanfold as ff
from fanfold.wiring import wire

pytestmark = pytest.mark.full

RECIPE = """\
name: writes
steps:
  - {id: first, agent: worker, prompt: x, write_set: ["src/**"]}
  - {id: second, agent: worker, prompt: y, write_set: ["src/**"], depends_on: [first]}
"""
SCRIPT = """\
steps:
  first: {output: one, writes: {"src/a.txt": "first\\n", "src/new/n.txt": "n\\n"}, deletes: [src/old.txt]}
  second: {output: two, writes: {"src/a.txt": "second\\n", "src/b.txt": "b\\n"}}
"""


def content(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_text() for path in files}


@pytest.fixture
def before(project: Path) -> dict[str, str]:
    """The files as they were before the run: nobody ever committed them."""
    (project / "src").mkdir()
    (project / "src/a.txt").write_text("mine, not committed\n")
    (project / "src/old.txt").write_text("old\n")
    (project / "src/old.txt").chmod(0o600)
    (project / "writes.yaml").write_text(RECIPE)
    (project / "script.yaml").write_text(SCRIPT)
    return content(project / "src")


@pytest.fixture
def merged(fanfold, before) -> str:
    result = fanfold("run", "writes.yaml", "--script", "script.yaml", "--yes", "--json")
    assert result.status == 0, result
    return str(result.json()["run_id"])


def test_a_run_is_taken_back_newest_merge_first_and_the_log_says_who_did(fanfold, project, before, merged):
    after = content(project / "src")
    foreseen = fanfold("undo", merged, "--dry-run")
    assert foreseen.out.splitlines() == [
        "would take back second, first: 4 files",
        "  restored src/a.txt",
        "  removed src/b.txt",
        "  removed src/new/n.txt",
        "  put back src/old.txt",
    ]
    assert content(project / "src") == after
    assert "took back second, first: 4 files" in fanfold("undo", merged).out
    assert content(project / "src") == before
    assert stat.S_IMODE((project / "src/old.txt").stat().st_mode) == 0o600
    assert not (project / "src/new").exists()
    told = [json.loads(line)["data"] for line in fanfold("logs", merged, "--json").out.splitlines()]
    undone = [data for data in told if data.get("what") == "undo"]
    assert [data["step"] for data in undone] == ["second", "first"]
    assert all(data["by"] for data in undone)
    assert fanfold("verify", merged).status == 0
    assert {row["state"] for row in fanfold("inspect", merged, "--json").json()["changes"]} == {"undone"}


def test_doing_it_twice_does_nothing_twice(fanfold, project, before, merged):
    fanfold("undo", merged)
    (project / "src/a.txt").write_text("later work\n")
    again = fanfold("undo", merged)
    assert (again.status, again.out) == (0, "second, first: taken back before\n")
    assert (project / "src/a.txt").read_text() == "later work\n"


def test_the_latest_step_alone_is_taken_back_and_an_earlier_one_names_who_is_in_the_way(
    fanfold, project, before, merged
):
    refused = fanfold("undo", merged, "first", "--json")
    assert refused.status == 1
    error = refused.json()["error"]
    assert error["code"] == "changes.changed_since"
    assert error["details"]["changed"] == [{"path": "src/a.txt", "by": f"{merged} second"}]
    assert error["hint"] == f"revert that first: fanfold undo {merged} second"
    assert fanfold("undo", merged, "second").status == 0
    assert content(project / "src") == {"a.txt": "first\n", "new/n.txt": "n\n"}
    assert fanfold("undo", merged, "first").status == 0
    assert content(project / "src") == before


def test_a_later_edit_keeps_the_whole_merge_from_being_undone(fanfold, project, before, merged):
    (project / "src/b.txt").write_text("edited by hand\n")
    now = content(project / "src")
    for arguments in (["--dry-run"], [], ["second"]):
        refused = fanfold("undo", merged, *arguments)
        assert refused.status == 1
        assert "src/b.txt (changed since); nothing was reverted" in refused.err
        assert content(project / "src") == now
    (project / "src/b.txt").write_text("b\n")
    (project / "src/a.txt").unlink()
    (project / "src/a.txt").mkdir()
    (project / "src/a.txt/mine").write_text("mine")
    assert fanfold("undo", merged, "second").status == 1
    assert (project / "src/a.txt/mine").read_text() == "mine"


def test_unchanged_merges_can_be_undone_step_by_step(fanfold, project, before, merged):
    (project / "src/new/n.txt").write_text("mine\n")  # of the first step
    refused = fanfold("undo", merged)
    assert refused.status == 1
    assert f"step by step, unchanged files can be reverted: fanfold undo {merged} second;" in refused.err
    assert fanfold("undo", merged, "second").status == 0
    assert (project / "src/a.txt").read_text() == "first\n"
    again = fanfold("undo", merged)
    assert again.status == 1
    assert "step by step" not in again.err, "only what is concerned is left"


def test_a_file_that_already_has_its_earlier_content_causes_no_conflict(fanfold, project, before, merged):
    (project / "src/b.txt").unlink()
    assert fanfold("undo", merged).status == 0
    assert content(project / "src") == before


def test_changes_of_a_later_run_are_undone_first(fanfold, project, before, merged):
    (project / "script.yaml").write_text(
        SCRIPT.replace("second\\n", "third\\n").replace(", deletes: [src/old.txt]", "")
    )
    later = fanfold("run", "writes.yaml", "--script", "script.yaml", "--yes", "--json").json()["run_id"]
    refused = fanfold("undo", merged, "--json").json()["error"]
    assert refused["hint"] == f"revert that first: fanfold undo {later} second"
    assert fanfold("undo", later).status == 0
    assert fanfold("undo", merged).status == 0
    assert content(project / "src") == before


def test_diff_still_shows_what_was_merged_after_later_edits_and_after_it_was_taken_back(
    fanfold, project, before, merged
):
    (project / "src/b.txt").write_text("edited by hand\n")
    patch = fanfold("diff", merged, "second", "--json").json()["steps"][0]
    assert "-first\n+second\n" in patch["patch"]
    assert "+b\n" in patch["patch"]
    (project / "src/b.txt").write_text("b\n")
    fanfold("undo", merged)
    shown = fanfold("diff", merged, "--json").json()["steps"]
    assert [step["state"] for step in shown] == ["undone", "undone"]
    assert "-mine, not committed\n+first\n" in shown[0]["patch"]


def test_a_retry_runs_what_was_taken_back_again(fanfold, project, before, merged):
    after = content(project / "src")
    fanfold("undo", merged, "second")
    forecast = fanfold("retry", merged, "--dry-run", "--json").json()
    assert (forecast["reuses"], forecast["runs_again"]) == (["first"], ["second"])
    assert fanfold("retry", merged).status == 0
    assert content(project / "src") == after


def test_a_run_that_is_not_over_keeps_its_files(fanfold, project, before):
    (project / "writes.yaml").write_text(RECIPE + "  - {id: ok, approve: Go?, depends_on: [second]}\n")
    assert fanfold("run", "writes.yaml", "--script", "script.yaml", "--yes").status == 3
    refused = fanfold("undo", "last", "--json").json()["error"]
    assert refused["code"] == "run.not_over"
    fanfold("cancel", "last")
    assert fanfold("undo", "last").status == 0
    assert content(project / "src") == before


def test_unmerged_changes_cannot_be_undone(fanfold, project):
    (project / "r.yaml").write_text("name: r\nsteps: [{id: a, agent: explorer, prompt: x}]\n")
    (project / "s.yaml").write_text("default: ok\n")
    fanfold("run", "r.yaml", "--script", "s.yaml")
    for arguments in ([], ["a"]):
        refused = fanfold("undo", "last", *arguments, "--json")
        assert (refused.status, refused.json()["error"]["code"]) == (6, "changes.none")


def test_a_proposal_that_was_applied_is_taken_back_and_a_subagents_merge_too(fanfold, project, before):
    (project / "writes.yaml").write_text(
        RECIPE.replace("depends_on: [first]", "depends_on: [first], merge: propose")
    )
    fanfold("run", "writes.yaml", "--script", "script.yaml", "--yes")
    fanfold("apply", "last", "second")
    assert (project / "src/a.txt").read_text() == "second\n"
    assert fanfold("undo", "last", "second").status == 0
    assert (project / "src/a.txt").read_text() == "first\n"
    (project / "sub.yaml").write_text('default: {output: done, writes: {"src/sub.txt": "s"}}\n')
    given = ("--write-set", "src/**", "--merge", "auto", "--script", "sub.yaml", "--yes", "--wait")
    spawned = fanfold("spawn", "worker", "write it", "--name", "w", *given)
    assert (spawned.status, (project / "src/sub.txt").exists()) == (0, True), spawned
    assert fanfold("undo", "hand", "w").status == 0
    assert not (project / "src/sub.txt").exists()
    fanfold("close", "w")


def test_gc_deletes_what_can_no_longer_be_undone_and_keeps_the_rest(fanfold, project, before, merged):
    receipts = project / ".fanfold/workspace/receipts"
    objects = project / ".fanfold/workspace/store.git/objects"
    assert fanfold("gc", "--older-than", "30d").status == 0
    assert fanfold("undo", merged, "second").status == 0
    assert fanfold("gc", "--older-than", "0d").status == 0
    assert list(receipts.iterdir()) == []
    assert not [file for folder in objects.iterdir() if folder.is_dir() for file in folder.iterdir()]


def test_killed_before_the_log_entry_it_is_logged_at_the_next_request(fanfold, project, before, merged):
    """The files are as they were, but nobody wrote it down: asking again only writes it down."""
    opened = wire(project)
    try:
        tree = opened.view(merged)
        opened.isolation.spaces.undo([one for known in tree.memory.receipts.values() for one in known])
    finally:
        opened.close()
    assert content(project / "src") == before
    (project / "src/a.txt").write_text("later work\n")
    assert fanfold("undo", merged).status == 0
    assert (project / "src/a.txt").read_text() == "later work\n"
    assert {row["state"] for row in fanfold("inspect", merged, "--json").json()["changes"]} == {"undone"}
    told = [json.loads(line)["data"] for line in fanfold("logs", merged, "--json").out.splitlines()]
    files = {
        one["path"]: one["kind"] for data in told if data.get("what") == "undo" for one in data["changes"]
    }
    assert files == {
        "src/a.txt": "modified",
        "src/b.txt": "deleted",
        "src/new/n.txt": "deleted",
        "src/old.txt": "added",
    }, "the log says what was taken back, whoever did it"


def test_two_processes_take_it_back_once(project, before, merged):
    command = [sys.executable, "-m", "fanfold.cli.main", "undo", merged]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)]
    assert [process.wait() for process in started] == [0, 0, 0]
    for process in started:
        process.communicate()
    assert content(project / "src") == before


def test_from_python(project, before, merged):
    async def work() -> None:
        async with ff.open(project) as opened:
            foreseen = await opened.undo(merged, dry_run=True)
            assert [one.path for one in foreseen.steps] == ["second", "first"]
            assert "second" in (opened.diff(merged, "second").steps[0].patch or "")
            done = await opened.undo(merged, "second")
            assert [(one.path, one.kind) for one in done.changes] == [
                ("src/a.txt", "modified"),
                ("src/b.txt", "deleted"),
            ]

    asyncio.run(work())
    assert os.path.exists(project / "src/new/n.txt")
