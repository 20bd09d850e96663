"""Conflicts laid out as files, kept workspaces looked into: by every way to make a child."""

import os
from pathlib import Path

import pytest

from fanfold.errors import WorldError
from fanfold.workspace.workspaces import Workspaces
from tests.workspace.trees import repository, tree, write

pytestmark = pytest.mark.full

LINES = "".join(f"line {number}\n" for number in range(10))


def edited(text: str) -> str:
    return LINES.replace("line 5\n", f"{text}\n")


def test_a_dispute_holds_the_parent_the_change_and_both_versions(project: Path, method: str):
    repository(project, {"a.txt": LINES, "b.txt": "b", "d/c.txt": "c", "tool": "t", "gone/x": "x"})
    spaces = Workspaces(project)
    source = spaces.open_child("s1", origin="run")
    top = source.path
    write(top, {"a.txt": edited("theirs"), "new/n.txt": "n", "tool": "T"})
    os.chmod(top / "tool", 0o755)
    os.unlink(top / "b.txt")
    os.unlink(top / "gone/x")
    os.rmdir(top / "gone")
    os.symlink("a.txt", top / "link")
    os.mkdir(top / "hollow")
    write(project, {"a.txt": edited("ours"), "d/c.txt": "parent's"})
    before = tree(project)
    assert [conflict.path for conflict in spaces.merge(source).conflicts] == ["a.txt"]
    child, dispute = spaces.open_disputed("s1-r1", source)
    assert (dispute.marked, dispute.beside) == (("a.txt",), {})
    assert child.record.origin == "run"
    here = child.path
    marked = (
        "<<<<<<< ours: the project now\nours\n||||||| base: before both\nline 5\n=======\ntheirs\n"
        ">>>>>>> theirs: the step's change"
    )
    assert (here / "a.txt").read_text() == edited(marked)
    assert (here / "d/c.txt").read_text() == "parent's"
    assert (here / "new/n.txt").read_text() == "n"
    assert os.access(here / "tool", os.X_OK)
    assert os.readlink(here / "link") == "a.txt"
    assert (here / "hollow").is_dir()
    assert not (here / "b.txt").exists()
    assert not (here / "gone").exists()
    assert spaces.unsettled(child, dispute) == ["a.txt"]
    write(here, {"a.txt": edited("both")})
    assert spaces.unsettled(child, dispute) == []
    assert tree(project) == before
    assert spaces.merge(child).ok
    assert (project / "a.txt").read_text() == edited("both")
    assert not (project / "gone").exists()
    for one in (source, child):
        spaces.close(one)
    assert os.listdir(project / ".fanfold/subagents") == [".gitignore"]


def test_changes_that_merge_cleanly_are_no_conflict(project: Path):
    repository(project, {"a.txt": LINES})
    spaces = Workspaces(project)
    source = spaces.open_child("s1")
    write(source.path, {"a.txt": edited("theirs")})
    child, dispute = spaces.open_disputed("s1-r1", source)
    assert dispute.conflicts == ()
    for one in (source, child):
        spaces.close(one)


def test_line_ends_stay_and_so_do_markers_that_are_content(project: Path):
    dos = LINES.replace("\n", "\r\n")
    repository(project, {"a.txt": dos + "<<<<<<< content\r\n"})
    spaces = Workspaces(project)
    source = spaces.open_child("s1")
    write(source.path, {"a.txt": (source.path / "a.txt").read_bytes().replace(b"line 5", b"theirs")})
    write(project, {"a.txt": (project / "a.txt").read_bytes().replace(b"line 5", b"ours")})
    child, dispute = spaces.open_disputed("s1-r1", source)
    text = (child.path / "a.txt").read_bytes()
    assert b"<<<<<<< ours: the project now\r\nours\r\n" in text
    assert spaces.unsettled(child, dispute) == ["a.txt"]
    write(child.path, {"a.txt": dos + "<<<<<<< content\r\n"})
    assert spaces.unsettled(child, dispute) == []
    for one in (source, child):
        spaces.close(one)


def test_the_steps_version_lies_beside_under_a_free_name_and_a_link_is_shown_as_text(project: Path):
    repository(project, {"bin": b"\0base", "bin.theirs": "taken", "to": "x"})
    spaces = Workspaces(project)
    (project / "link").symlink_to("to")
    source = spaces.open_child("s1")
    for top, side in ((source.path, "theirs"), (project, "ours")):
        write(top, {"bin": b"\0" + side.encode()})
        os.unlink(top / "link")
        (top / "link").symlink_to(side)
    child, dispute = spaces.open_disputed("s1-r1", source)
    assert dispute.beside == {"bin": "bin.theirs2", "link": "link.theirs"}
    assert os.readlink(child.path / "link") == "ours"
    assert not (child.path / "link.theirs").is_symlink()
    assert (child.path / "link.theirs").read_text() == "theirs"
    assert (child.path / "bin").read_bytes() == b"\0ours"
    assert (child.path / "bin.theirs2").read_bytes() == b"\0theirs"
    assert spaces.unsettled(child, dispute) == []
    assert child.changes() == []
    for one in (source, child):
        spaces.close(one)


def test_an_impossible_layout_is_refused_and_leaves_no_files(project: Path):
    repository(project, {"a.txt": "a"})
    spaces = Workspaces(project)
    source = spaces.open_child("s1")
    write(source.path, {"new": "a file"})
    write(project, {"new/inner": "a folder"})
    with pytest.raises(WorldError, match="cannot be presented"):
        spaces.open_disputed("s1-r1", source)
    spaces.close(source)
    assert os.listdir(project / ".fanfold/subagents") == [".gitignore"]


def test_a_kept_workspace_is_looked_into_and_stays_as_it_was(project: Path, method: str):
    repository(project, {"a.txt": "a\n", "b.txt": "b\n"})
    spaces = Workspaces(project)
    child = spaces.open_child("s1", origin="run")
    write(child.path, {"a.txt": "A\n", "n.txt": "n\n"})
    os.unlink(child.path / "b.txt")
    spaces.close(child, keep=True, why="workspace.conflict")
    record = (child.folder / "child.json").read_bytes()
    for _ in range(2):
        kept = spaces.remains.peek("s1")
        assert kept is not None
        assert (kept.why, [change.path for change in kept.changes]) == (
            "workspace.conflict",
            ["a.txt", "b.txt", "n.txt"],
        )
        assert "+A\n" in kept.patch
        assert (Path(kept.folder) / "n.txt").read_text() == "n\n"
    assert (child.folder / "child.json").read_bytes() == record
    assert not list(child.folder.glob("work.*"))
    found = spaces.find_child("s1")
    assert found is not None
    assert [change.path for change in found.changes()] == ["a.txt", "b.txt", "n.txt"]
    spaces.close(found)
    assert spaces.remains.peek("s1") is None


def test_a_workspace_in_use_is_not_inspected(project: Path):
    repository(project, {"a.txt": "a"})
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    if child.method == "overlay":
        assert spaces.remains.peek("s1") is None
        assert (child.path / "a.txt").read_text() == "a"
    spaces.close(child)
