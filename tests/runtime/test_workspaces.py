"""Isolated writers: what they change comes home, is refused, or waits, and the log says which."""

from __future__ import annotations

from pathlib import Path

from tests.runtime.running import run

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
    assert {(c["path"], c["kind"]) for c in result.changes} >= {
        ("src/a.py", "modified"),
        ("src/new/b.py", "added"),
    }
    left = tmp_path / ".fanfold" / "subagents"
    assert [entry.name for entry in left.iterdir() if entry.is_dir()] == []


def test_discarded_changes_do_not_come_home(tmp_path: Path) -> None:
    script = 'steps: {w: {output: ok, writes: {"src/a.py": "x = 2\\n"}}}'
    result = run(project(tmp_path), WRITER.format(merge="discard"), script)
    assert result.status == "completed"
    assert (tmp_path / "src/a.py").read_text() == "x = 1\n"


def test_proposed_changes_wait(tmp_path: Path) -> None:
    script = 'steps: {w: {output: ok, writes: {"src/a.py": "x = 2\\n"}}}'
    result = run(project(tmp_path), WRITER.format(merge="propose"), script)
    assert (tmp_path / "src/a.py").read_text() == "x = 1\n"
    assert result.changes[0]["proposal"]


def test_a_write_outside_the_write_set_fails_the_step_and_nothing_comes_home(tmp_path: Path) -> None:
    recipe = """
name: violator
steps:
  - {id: w, run: [bash, -c, "echo no > outside.txt; echo yes > src/a.py"], write_set: ["src/**"]}
"""
    result = run(project(tmp_path), recipe)
    error = result.steps["w"].error
    assert error is not None
    assert (error["class"], error["code"]) == ("violation", "workspace.violation")
    assert "outside.txt" in error["message"]
    assert not (tmp_path / "outside.txt").exists()
    assert (tmp_path / "src/a.py").read_text() == "x = 1\n"


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
