"""What merges note for those who watch the project: all of it, in little space, whoever dies in between."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fanfold.errors import WorldError
from fanfold.workspace import merge_journal
from fanfold.workspace.workspaces import Workspaces

pytestmark = pytest.mark.full


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "old.md").write_text("old\n")
    (tmp_path / "a.txt").write_text("a\n")
    return tmp_path


def merge(project: Path, name: str, *files: str) -> None:
    """As another process would."""
    spaces = Workspaces(project)
    child = spaces.open_child(name)
    for file in files:
        (child.path / file).parent.mkdir(parents=True, exist_ok=True)
        (child.path / file).write_text(f"{name}\n")
    try:
        assert spaces.merge(child).ok
    finally:
        spaces.close(child)


def notes(project: Path) -> Path:
    return project / ".fanfold" / "workspace" / "merges.jsonl"


def test_a_watch_knows_what_was_merged_since_it_began_and_no_more(project: Path) -> None:
    merge(project, "s1", "before.txt")
    watch = Workspaces(project).watch()
    assert watch.arrived() == (frozenset(), True)
    merge(project, "s2", "new/deep/b.txt", "a.txt")
    (project / "mine.txt").write_text("mine\n")
    assert {one.path for one in watch.changes()} == {"a.txt", "mine.txt", "new/deep/b.txt"}
    arrived = watch.arrived()
    assert arrived.complete
    assert {"a.txt", "new/deep/b.txt"} <= arrived.paths
    assert not {"before.txt", "mine.txt"} & arrived.paths


def test_folders_that_came_or_went_with_a_merge_are_noted(project: Path) -> None:
    watch = Workspaces(project).watch()
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    (child.path / "docs" / "old.md").unlink()
    (child.path / "docs").rmdir()
    (child.path / "hollow").mkdir()
    assert spaces.merge(child).ok
    spaces.close(child)
    changed = {one.path for one in watch.changes()}
    assert changed >= {"docs/old.md", "hollow"}
    assert changed <= watch.arrived().paths


def test_the_notes_stay_small_and_say_when_something_was_dropped(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_journal, "MAX_BYTES", 200)
    merge(project, "s0", "start.txt")
    old = Workspaces(project).watch()
    for number in range(30):
        watch = Workspaces(project).watch()
        merge(project, f"s{number}", f"file-{number}.txt")
        assert watch.arrived() == (frozenset({f"file-{number}.txt"}), True)
        assert notes(project).stat().st_size < 300
    arrived = old.arrived()
    assert not arrived.complete
    assert "file-29.txt" in arrived.paths


def test_half_a_line_of_a_killed_process_damages_no_other_line(project: Path) -> None:
    merge(project, "s1", "one.txt")
    watch = Workspaces(project).watch()
    with notes(project).open("ab") as file:
        file.write(b'["half')
    merge(project, "s2", "two.txt")
    assert watch.arrived() == (frozenset({"two.txt"}), True)


def test_notes_that_were_deleted_are_not_taken_for_none(project: Path) -> None:
    merge(project, "s1", "one.txt")
    watch = Workspaces(project).watch()
    notes(project).unlink()
    assert not watch.arrived().complete


def test_a_merge_that_is_undone_was_noted_before_it_began(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Workspaces(project).watch()
    seen: list[frozenset[str]] = []

    def fail(*_: object) -> None:
        seen.append(watch.arrived().paths)
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(merge_journal, "_perform", fail)
    with pytest.raises(WorldError, match="could not be put"):
        merge(project, "s1", "b.txt")
    assert seen == [frozenset({"b.txt"})]
    assert watch.changes() == []
