"""A merge is all or nothing, whoever dies and whoever writes in between."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fanfold.errors import WorldError
from fanfold.workspace import beneath, merge_journal
from fanfold.workspace.workspaces import Workspaces
from tests.workspace import killing
from tests.workspace.trees import repository, tree, write
from tools.tidy import ROOT

pytestmark = pytest.mark.full

MEMORY = Path("/dev/shm")


@pytest.fixture
def fast(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: when only a process dies, nothing depends on the disk."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="fanfold-", dir=MEMORY) as folder:
        yield Path(folder)


def kill(folder: Path, scenario: str, where: str) -> dict[str, Any]:
    command = [sys.executable, killing.__file__, str(folder), scenario, where]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    found: dict[str, Any] = json.loads(ended.stdout)
    if "why_not" in found:
        pytest.skip(f"{found['why_not']}: make test-full on a machine that has it")
    return found


def test_killed_before_any_call_the_tree_is_old_or_new(fast: Path):
    seen = kill(fast, "alone", "every")
    assert seen["kills"] >= 70
    assert seen["old"] >= 60
    assert seen["new"] >= 5
    assert seen["second kills"] >= 40
    assert {"renameat2", "mkdirat", "unlinkat", "symlinkat", "fchmodat", "fsync"} <= set(seen["calls"])


@pytest.mark.parametrize("scenario", ["three-way", "no-exchange", "undo"])
def test_so_it_is_after_a_merge_by_git_where_names_cannot_be_exchanged_and_when_it_is_taken_back(
    fast: Path, scenario: str
):
    """At some of its calls; at every one, and at those of every recovery, in `make kill-test`."""
    seen = kill(fast, scenario, "some")
    assert seen["kills"] >= 13
    assert seen["new"] >= 1


@pytest.mark.skipif(not os.environ.get("KILL_TEST"), reason="takes long: make kill-test")
@pytest.mark.parametrize("scenario", killing.SCENARIOS)
def test_any_recovery_may_be_killed_as_well(fast: Path, scenario: str):
    seen = kill(fast, scenario, "all")
    assert seen["second kills"] >= 1_000


def test_the_rollback_journal_is_on_disk_before_the_project_changes(fast: Path):
    calls: list[tuple[str, list[str], bool]] = kill(fast, "alone", "none")["calls"]
    own = calls[0][1][0]
    assert "/.fanfold/workspace/journal/" in own
    (planned,) = [at for at, (_, paths, _) in enumerate(calls) if paths[-1] == f"{own}/plan"]
    (done,) = [at for at, (_, paths, _) in enumerate(calls) if paths[-1] == f"{own}/done"]
    touching = [at for at, (name, _, touches) in enumerate(calls) if touches and name != "fsync"]
    assert planned < touching[0] <= touching[-1] < done

    def forced(begin: int, end: int) -> list[str]:
        return [paths[0] for name, paths, _ in calls[begin:end] if name == "fsync"]

    written = {paths[0] for name, paths, _ in calls[:planned] if name == "write"}
    staged = {path for path in written if not path.endswith("/merges.jsonl")}  # for those who live now
    assert staged | {own} <= set(forced(0, planned))
    assert forced(planned, touching[0]) == [own, os.path.dirname(own)]
    changed = {os.path.dirname(path) for at in touching for path in calls[at][1] if not path.startswith(own)}
    assert {folder for folder in changed if os.path.isdir(folder)} <= set(forced(touching[-1], done))
    assert forced(done, len(calls))[0] == own


def test_without_exchanging_names_it_is_still_all_or_nothing(project: Path, monkeypatch: pytest.MonkeyPatch):
    def refused(*_: object) -> None:
        raise OSError(22, "no such flag here")

    monkeypatch.setattr(beneath, "renameat2", refused)
    killing.plant(project)
    before = tree(project)
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    killing.change(child.path)
    real, count = merge_journal._perform, iter(range(100))

    def failing(*arguments: object) -> None:
        if next(count) == 7:
            raise OSError(28, "No space left on device")
        real(*arguments)  # type: ignore[arg-type]  # whatever it was called with

    with monkeypatch.context() as patch:
        patch.setattr(merge_journal, "_perform", failing)
        with pytest.raises(Exception, match="could not be put"):
            spaces.merge(child)
    assert tree(project) == before
    assert spaces.merge(child).ok
    ignored = {path: state for path, state in before.items() if path.endswith(".log")}
    assert tree(project) == tree(child.path) | ignored
    spaces.close(child)


def test_a_failed_rollback_is_finished_by_the_next_process(project: Path, monkeypatch: pytest.MonkeyPatch):
    killing.plant(project)
    before = killing.look(project)
    spaces = Workspaces(project)
    bystander = Workspaces(project)
    child = spaces.open_child("s1")
    killing.change(child.path)
    real = merge_journal._perform

    def failing(operation: merge_journal.MergeOperation, top: int, slots: int) -> None:
        if operation.path == "was-tool":
            raise OSError(28, "No space left on device")
        real(operation, top, slots)

    def stuck(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(merge_journal, "_perform", failing)
        patch.setattr(merge_journal, "_roll_back", stuck)
        with pytest.raises(WorldError, match="could not be put"):
            spaces.merge(child)
        assert killing.look(project) != before
        with pytest.raises(WorldError, match="cannot be undone") as refused:
            bystander.open_child("s2")  # nobody may build upon half a merge
        assert refused.value.code == "workspace.cannot_recover"
    other = bystander.open_child("s2")
    assert killing.look(project) == before
    assert (other.path / "a.txt").read_text() == "a"
    assert spaces.merge(child).ok
    spaces.close(child)
    spaces.close(other)


def test_a_file_that_changes_at_the_last_moment_is_not_lost(project: Path, monkeypatch: pytest.MonkeyPatch):
    repository(project, {"a.txt": "a\n", "z.txt": "z\n"})
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    write(child.path, {"a.txt": "theirs\n", "z.txt": "theirs\n"})
    real = merge_journal._perform

    def meddling(operation: merge_journal.MergeOperation, top: int, slots: int) -> None:
        if operation.path == "z.txt":
            write(project, {"z.txt": "saved by its editor just now\n"})
        real(operation, top, slots)

    monkeypatch.setattr(merge_journal, "_perform", meddling)
    merged = spaces.merge(child)
    assert [conflict.path for conflict in merged.conflicts] == ["z.txt"]
    assert tree(project) == {"a.txt": ("file", b"a\n"), "z.txt": ("file", b"saved by its editor just now\n")}
    spaces.close(child)


def test_edits_of_the_user_after_a_crash_are_kept(project: Path):
    repository(project, {"a.txt": "a", "b.txt": "b"})
    program = """
import os, sys
from pathlib import Path
from fanfold.workspace import merge_journal as journal
from fanfold.workspace.workspaces import Workspaces
spaces = Workspaces(Path(sys.argv[1]))
child = spaces.open_child("s1")
for name in ("a.txt", "b.txt"):
    (child.path / name).write_text("theirs")
journal._sync_parents = lambda *_: os.kill(os.getpid(), 9)
spaces.merge(child)
"""
    subprocess.run([sys.executable, "-c", program, str(project)], check=False)
    assert (project / "a.txt").read_text() == "theirs"
    (project / "a.txt").write_text("edited by hand")
    found = Workspaces(project).recover()
    assert found.left == ("a.txt",)
    assert (project / "a.txt").read_text() == "edited by hand"
    assert (project / "b.txt").read_text() == "b"
    Workspaces(project).remains.collect(keep_for_s=0)


def test_merges_of_many_threads_and_processes_do_not_mix(project: Path):
    repository(project, {f"{number}.txt": "0\n" for number in range(12)})
    spaces = Workspaces(project)
    opened = [spaces.open_child(f"s{number}") for number in range(12)]
    for number, child in enumerate(opened):
        write(child.path, {f"{number}.txt": "changed\n", f"new/{number}.txt": "n\n"})
    results: list[bool] = []
    threads = [
        threading.Thread(target=lambda one=child: results.append(Workspaces(project).merge(one).ok))
        for child in opened
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 12
    assert all((project / f"{number}.txt").read_text() == "changed\n" for number in range(12))
    assert len(os.listdir(project / "new")) == 12
    for child in opened:
        spaces.close(child)
