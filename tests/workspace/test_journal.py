"""A merge is all or nothing, whoever dies and whoever writes in between."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fanfold.workspace import journal, syscalls
from fanfold.workspace.workspaces import Workspaces
from tests.workspace import killing
from tests.workspace.trees import repository, tree, write
from tools.tidy import ROOT


def kill_everywhere(folder: Path, *arguments: str) -> dict[str, int]:
    command = [sys.executable, killing.__file__, str(folder), *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    found: dict[str, int] = json.loads(ended.stdout)
    return found


def test_killed_before_any_call_the_tree_is_old_or_new(tmp_path: Path):
    seen = kill_everywhere(tmp_path)
    assert seen["kills"] >= 40
    assert seen["old"] >= 20
    assert seen["new"] >= 1


@pytest.mark.skipif(not os.environ.get("KILL_TEST"), reason="minutes long; KILL_TEST=all runs it")
def test_a_recovery_may_be_killed_as_well(tmp_path: Path):
    seen = kill_everywhere(tmp_path, "again")
    assert seen["second kills"] >= 200


def test_without_exchanging_names_it_is_still_all_or_nothing(project: Path, monkeypatch: pytest.MonkeyPatch):
    def refused(*_: object) -> None:
        raise OSError(22, "no such flag here")

    monkeypatch.setattr(syscalls, "renameat2", refused)
    repository(project, killing.FILES)
    before = tree(project)
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    killing.change(child.path)
    real, count = journal._perform, iter(range(100))

    def failing(*arguments: object) -> None:
        if next(count) == 7:
            raise OSError(28, "No space left on device")
        real(*arguments)  # type: ignore[arg-type]  # whatever it was called with

    with monkeypatch.context() as patch:
        patch.setattr(journal, "_perform", failing)
        with pytest.raises(Exception, match="could not be put"):
            spaces.merge(child)
    assert tree(project) == before
    assert spaces.merge(child).ok
    assert tree(project) == tree(child.path)
    spaces.close(child)


def test_a_file_that_changes_at_the_last_moment_is_not_lost(project: Path, monkeypatch: pytest.MonkeyPatch):
    repository(project, {"a.txt": "a\n", "z.txt": "z\n"})
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    write(child.path, {"a.txt": "theirs\n", "z.txt": "theirs\n"})
    real = journal._perform

    def meddling(operation: journal.Operation, top: int, slots: int) -> None:
        if operation.path == "z.txt":
            write(project, {"z.txt": "saved by its editor just now\n"})
        real(operation, top, slots)

    monkeypatch.setattr(journal, "_perform", meddling)
    merged = spaces.merge(child)
    assert [conflict.path for conflict in merged.conflicts] == ["z.txt"]
    assert tree(project) == {"a.txt": ("file", b"a\n"), "z.txt": ("file", b"saved by its editor just now\n")}
    spaces.close(child)


def test_what_somebody_changed_after_a_crash_stays_theirs(project: Path):
    repository(project, {"a.txt": "a", "b.txt": "b"})
    program = """
import os, sys
from pathlib import Path
from fanfold.workspace import children, journal
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
    Workspaces(project).gc(keep_for_s=0)


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
