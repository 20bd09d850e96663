"""Snapshots: a child sees the project as it is, and changes nothing but its own layer."""

import os
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from fanfold.errors import AuthorError, WorldError
from fanfold.workspace.scan import SnapshotLimits
from fanfold.workspace.workspaces import Workspaces
from tests.workspace.trees import git, git_bytes, repository, tree, write

pytestmark = pytest.mark.full

ODD = {
    "with space.txt": "1",
    "ünïcödé/名前.txt": "2",
    "new\nline.txt": "3",
    'quote"back\\slash\ttab.txt': "4",
    "-dash": "5",
    "n" * 255: "6",
    "/".join(["d" * 200] * 8) + "/deep.txt": "7",
    "trailing ": "8",
    "*?[glob]": "9",
    "%p,:=;$(x)": "10",
}


def test_uncommitted_and_untracked_work_is_in_it_and_ignored_files_are_not(project: Path, method: str):
    repository(project, {"a.txt": "old", "gone.txt": "x", ".gitignore": "*.log\nsecret/\n", "d/b.txt": "b"})
    write(project, {"a.txt": "new", "untracked.txt": "u", "x.log": "no", "secret/key": "no", "d/y.log": "no"})
    (project / "gone.txt").unlink()
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    seen = tree(child.path)
    assert seen.keys() == {"a.txt", ".gitignore", "d", "d/b.txt", "untracked.txt"}
    assert seen["a.txt"] == ("file", b"new")
    spaces.close(child)


def test_dependencies_and_caches_are_left_out_unless_tracked(project: Path):
    repository(project, {"a.txt": "", "vendored/node_modules/tracked.js": "t"})
    write(
        project,
        {
            "node_modules/m/index.js": "",
            "pkg/.venv/bin/python": "",
            "odd-env/pyvenv.cfg": "",
            "odd-env/lib/x.py": "",
            "src/__pycache__/a.pyc": "",
            "src/a.py": "",
        },
    )
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    files = {path for path, (kind, _) in tree(child.path).items() if kind == "file"}
    assert files == {"a.txt", "vendored/node_modules/tracked.js", "src/a.py"}
    assert set(child.base.manifest.points) == {".git", ".fanfold", "node_modules", "pkg/.venv", "odd-env"}
    spaces.close(child)


def test_odd_names_links_modes_and_empty_folders_arrive_as_they_are(project: Path, method: str):
    repository(project, dict(ODD))
    (project / "run.sh").write_text("#!/bin/sh\n")
    (project / "run.sh").chmod(0o755)
    (project / "link").symlink_to("with space.txt")
    (project / "dangling").symlink_to("nowhere/at all")
    (project / "absolute").symlink_to("/etc/hostname")
    (project / "folder-link").symlink_to("ünïcödé")
    (project / "empty/inner").mkdir(parents=True)
    (project / os.fsdecode(b"latin-\xe9.txt")).write_text("bytes")
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    assert tree(child.path) == tree(project)
    assert child.changes() == []
    spaces.close(child)


def test_special_files_are_left_out(project: Path):
    repository(project, {"a.txt": ""})
    os.mkfifo(project / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(project / "socket"))
        spaces = Workspaces(project)
        child = spaces.open_child("s1")
        assert tree(child.path).keys() == {"a.txt"}
        spaces.close(child)


def test_a_folder_without_git_obeys_its_gitignore_too(project: Path, method: str):
    write(project, {"a.txt": "a", ".gitignore": "*.tmp\n", "b.tmp": "no", "target/x": "no", "Cargo.toml": ""})
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    files = {path for path, (kind, _) in tree(child.path).items() if kind == "file"}
    assert files == {"a.txt", ".gitignore", "Cargo.toml"}
    write(child.path, {"c.tmp": "no", "d/new.txt": "yes"})
    merged = spaces.merge(child)
    assert [change.path for change in merged.changes] == ["d/new.txt"]
    assert (project / "d/new.txt").read_text() == "yes"
    assert not (project / ".git").exists()
    spaces.close(child)


def test_submodules_and_inner_repositories_are_plain_files_without_their_git(
    project: Path, tmp_path: Path, method: str
):
    library = repository(tmp_path / "library", {"lib.c": "one\n", ".gitignore": "*.o\n"})
    repository(project, {"main.c": "m\n"})
    git(project, "submodule", "--quiet", "add", str(library), "sub")
    git(project, "commit", "-qm", "sub")
    repository(project / "inner", {"i.txt": "i\n"})
    write(project, {"sub/x.o": "ignored", "sub/new.c": "untracked\n"})
    before = git_bytes(project)
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    files = {path for path, (kind, _) in tree(child.path).items() if kind == "file"}
    assert files == {"main.c", ".gitmodules", "sub/lib.c", "sub/.gitignore", "sub/new.c", "inner/i.txt"}
    assert {"sub/.git", "inner/.git", ".git"} <= child.base.manifest.points.keys()
    write(child.path, {"sub/lib.c": "two\n", "sub/y.o": "ignored", "inner/j.txt": "j\n"})
    merged = spaces.merge(child)
    assert merged.ok
    assert [change.path for change in merged.changes] == ["inner/j.txt", "sub/lib.c"]
    assert (project / "sub/lib.c").read_text() == "two\n"
    assert git_bytes(project) == before
    spaces.close(child)


def test_writes_of_a_child_stay_in_its_workspace(project: Path, method: str):
    repository(project, {"a.txt": "a", "d/b.txt": "b"})
    before = tree(project), git_bytes(project)
    spaces = Workspaces(project)
    one, two = spaces.open_child("s1"), spaces.open_child("s2")
    with (one.path / "a.txt").open("r+") as file:  # in place, as an editor without renaming would
        file.write("X")
    (one.path / "d/b.txt").unlink()
    assert (two.path / "a.txt").read_text() == "a"
    assert (two.path / "d/b.txt").read_text() == "b"
    assert (tree(project), git_bytes(project)) == before
    assert one.base.id == two.base.id
    spaces.close(one)
    spaces.close(two)


def test_no_file_of_ours_is_a_hard_link_to_one_of_the_users(project: Path, method: str):
    repository(project, {f"{number}.txt": str(number) for number in range(5)})
    spaces = Workspaces(project)
    first = spaces.open_child("s1")
    (project / "0.txt").write_text("changed")
    second = spaces.open_child("s2")
    assert first.base.id != second.base.id
    assert all((project / f"{number}.txt").stat().st_nlink == 1 for number in range(5))
    copies = list((project / ".fanfold/workspace/bases").rglob("1.txt"))
    assert len({copy.stat().st_ino for copy in copies}) == 1
    assert (first.path / "0.txt").read_text() == "0"
    assert (second.path / "0.txt").read_text() == "changed"
    spaces.close(first)
    spaces.close(second)


def test_a_write_within_the_clocks_grain_is_seen(project: Path):
    repository(project, {"a.txt": "0000"})
    spaces = Workspaces(project)
    for number in range(1, 30):
        child = spaces.open_child("s1")
        assert (child.path / "a.txt").read_text() == f"{number - 1:04}"
        spaces.close(child)
        (project / "a.txt").write_text(f"{number:04}")


def test_a_changed_gitignore_counts_at_once(project: Path):
    repository(project, {"a.txt": "", "b.log": "was wanted"})
    git(project, "rm", "-q", "--cached", "b.log")
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    assert "b.log" in tree(child.path)
    spaces.close(child)
    (project / ".gitignore").write_text("*.log\n")
    child = spaces.open_child("s2")
    assert "b.log" not in tree(child.path)
    spaces.close(child)


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (SnapshotLimits(max_files=3), "workspace.too_many"),
        (SnapshotLimits(max_bytes=10), "workspace.too_large"),
        (SnapshotLimits(max_file_bytes=7), "workspace.too_large"),
        (SnapshotLimits(max_depth=2), "workspace.too_deep"),
        (SnapshotLimits(max_path_bytes=8), "workspace.too_long"),
    ],
)
def test_limits_are_refused_by_name_and_leave_nothing(project: Path, limits: SnapshotLimits, code: str):
    repository(project, {"a/b/c/d.txt": "12345678", "e": "1234", "f": "1", "g": "1"})
    spaces = Workspaces(project, limits)
    with pytest.raises(WorldError) as refused:
        spaces.open_child("s1")
    assert refused.value.code == code
    assert '"' in refused.value.message
    assert os.listdir(project / ".fanfold/subagents") == [".gitignore"]


@pytest.mark.skipif(os.geteuid() == 0, reason="needs a user who is not root: make test-full as one")
def test_an_unreadable_file_is_named(project: Path):
    repository(project, {"a.txt": "", "closed.txt": "x"})
    (project / "closed.txt").chmod(0)
    with pytest.raises(WorldError, match=r"closed\.txt"):
        Workspaces(project).open_child("s1")


def test_ids_that_are_no_names_are_refused(project: Path):
    repository(project, {})
    for bad in ("", "..", "a/b", ".hidden", "a\0b", "x" * 300):
        with pytest.raises(AuthorError):
            Workspaces(project).open_child(bad)


def test_git_status_shows_nothing_of_ours(project: Path, method: str):
    repository(project, {"a.txt": ""})
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    assert git(project, "status", "--porcelain", "--untracked-files=all") == ""
    spaces.close(child)


def test_a_project_path_with_characters_of_mount_options(tmp_path: Path, method: str):
    project = repository(tmp_path / "a,b:c=d e\\f", {"a.txt": "a"})
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    assert (child.path / "a.txt").read_text() == "a"
    write(child.path, {"a.txt": "b"})
    assert spaces.merge(child).ok
    spaces.close(child)
    assert (project / "a.txt").read_text() == "b"


def test_many_threads_may_open_and_close(project: Path):
    repository(project, {f"{number}.txt": "x" for number in range(20)})
    spaces = Workspaces(project)
    failed: list[BaseException] = []

    def one(number: int) -> None:
        try:
            for turn in range(3):
                child = spaces.open_child(f"s{number}-{turn}")
                assert len(tree(child.path)) == 20
                spaces.close(child)
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            failed.append(error)

    threads = [threading.Thread(target=one, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert os.listdir(project / ".fanfold/subagents") == [".gitignore"]


def test_a_child_is_found_again_as_it_was(project: Path, method: str):
    repository(project, {"a.txt": "a"})
    first = Workspaces(project)
    child = first.open_child("s1", write_set=["*.txt"])
    write(child.path, {"a.txt": "half done"})
    child.detach()
    second = Workspaces(project)
    found = second.find_child("s1")
    assert found is not None
    assert (found.path / "a.txt").read_text() == "half done"
    assert found.record.write_set == ("*.txt",)
    assert second.merge(found).ok
    second.close(found)
    assert second.find_child("s1") is None


def test_a_suspended_process_leaves_a_child_alone_that_another_took_over(project: Path, method: str):
    repository(project, {"a.txt": "a"})
    stopped, other = Workspaces(project), Workspaces(project)
    lost = stopped.open_child("s1", epoch=1)
    write(lost.path, {"half.txt": "done"})
    child = other.open_child("s1", epoch=2)
    write(child.path, {"b.txt": "b"})
    (child.path / "closed").mkdir(mode=0o500)
    with pytest.raises(WorldError, match="another process continues"):
        stopped.merge(lost)
    with pytest.raises(WorldError, match="another process continues"):
        stopped.merge(lost, mode="propose")
    with pytest.raises(WorldError, match="another process continues"):
        stopped.open_child("s1", epoch=1)
    with pytest.raises(WorldError, match="another process continues"):
        stopped.find_child("s1", epoch=1)
    stopped.leave(lost)
    stopped.close(lost, keep=True, why="lost")
    stopped.close(lost)
    assert tree(child.path).keys() == {"a.txt", "b.txt", "closed"}
    assert (child.path / "closed").stat().st_mode & 0o777 == 0o500
    assert other.merge(child).applied == ("b.txt",)
    other.close(child)
    assert os.listdir(project / ".fanfold/subagents") == [".gitignore"]
    assert sorted(path.name for path in project.glob("*.txt")) == ["a.txt", "b.txt"]


def test_recover_unmounts_what_a_killed_process_left(project: Path):
    repository(project, {"a.txt": "a"})
    program = (
        "import os, sys; from pathlib import Path; from fanfold.workspace.workspaces import Workspaces;"
        "Workspaces(Path(sys.argv[1])).open_child('s1'); os.kill(os.getpid(), 9)"
    )
    import sys

    subprocess.run([sys.executable, "-c", program, str(project)], check=False)
    found = Workspaces(project).recover()
    assert found.children == ("s1",)
    child = Workspaces(project).find_child("s1")
    assert child is not None
    Workspaces(project).close(child)


def test_the_owner_of_a_project_can_delete_it_with_any_leftovers(project: Path, method: str):
    repository(project, {"a.txt": "1"})
    spaces = Workspaces(project)
    kept, thrown, open_still = (spaces.open_child(name) for name in ("kept", "thrown", "open"))
    for child in (kept, thrown):
        (child.path / "made/inside").mkdir(parents=True)
        (child.path / "made/inside/b.txt").write_text("2")
        (child.path / "made/inside").chmod(0o500)
        (child.path / "made").chmod(0o500)
    (open_still.path / "c.txt").write_text("3")
    spaces.close(kept, keep=True)
    kept_there = spaces.remains.peek("kept")
    assert kept_there is not None
    assert "made/inside/b.txt" in kept_there.patch
    thrown.detach()
    os.rename(thrown.folder, project / ".fanfold/workspace/trash/later")  # as if there had been no time
    closed = [
        folder
        for folder, _, _ in os.walk(project / ".fanfold")
        if os.stat(folder).st_mode & 0o700 != 0o700 and not folder.startswith(str(open_still.path))
    ]
    assert closed == []  # not even in what the kernel made for the one that is open still
    open_still.detach()
    subprocess.run(["rm", "-rf", str(project)], check=True)


def test_gc_keeps_what_is_used_and_drops_the_rest(project: Path):
    repository(project, {"a.txt": "a"})
    spaces = Workspaces(project)
    kept = spaces.open_child("kept")
    spaces.close(kept, keep=True, why="the step failed")
    (project / "a.txt").write_text("b")
    used = spaces.open_child("used")
    spaces.remains.collect()
    assert sorted(os.listdir(project / ".fanfold/subagents")) == [".gitignore", "kept", "used"]
    assert (used.path / "a.txt").read_text() == "b"
    time.sleep(0.01)
    spaces.remains.collect(keep_for_s=0)
    assert sorted(os.listdir(project / ".fanfold/subagents")) == [".gitignore", "used"]
    spaces.close(used)
    spaces.remains.collect()
    # The newest, what it lies on, and its name.
    assert len(os.listdir(project / ".fanfold/workspace/bases")) == 3
    assert os.listdir(project / ".fanfold/workspace/trash") == []
