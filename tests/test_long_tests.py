"""What is kept of tests that take long: how they ended, by commit, and nothing that was not seen."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest

from tools import long_tests

pytestmark = pytest.mark.full


def _commit(here: Path) -> None:
    somebody = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["add", "."], [*somebody, "commit", "-qm", "x"]):
        subprocess.run(["git", *command], cwd=here, check=True)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A committed project with a target that passes and one that fails."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "Makefile").write_text(
        "good:\n\t@echo '3 passed, 1 skipped in 0.1s'\n\t@echo 8 passed hands\n"
        "\t@echo '4 passed in 2.5s (0:00:02)'\n"
        "bad:\n\t@echo it broke; false\n"
    )
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    _commit(tmp_path)
    monkeypatch.setattr(long_tests, "ROOT", tmp_path)
    monkeypatch.setattr(long_tests, "KEPT", tmp_path / "tests" / "long.json")
    return tmp_path


def test_counts_of_several_calls_are_added_up(here: Path):
    assert long_tests.main(["good"]) == 0
    assert "| passed: 7 passed, 1 skipped |" in long_tests.table()


def test_a_failure_is_recorded_and_sets_the_exit_status(here: Path):
    assert long_tests.main(["bad", "good"]) == 1
    ended = msgspec.json.decode((here / "tests" / "long.json").read_bytes())
    assert {target: outcome["passed"] for target, outcome in ended.items()} == {"bad": False, "good": True}
    assert "**failed**" in long_tests.table()
    assert str(here) not in long_tests.table()


def test_a_target_that_is_run_again_replaces_its_row_alone(here: Path):
    long_tests.main(["good"])
    long_tests.main(["bad"])
    assert list(long_tests.kept()) == ["bad", "good"]
    assert (here / "tests" / "long.json").read_bytes().endswith(b"}\n")


def test_output_without_counts_is_summarized_by_its_last_line(here: Path):
    (here / "Makefile").write_text("said:\n\t@echo one thing; echo 12 defects, none missed; echo\n")
    _commit(here)
    assert long_tests.main(["said"]) == 0
    assert "| passed: 12 defects, none missed |" in long_tests.table()


def test_a_tree_with_changes_is_refused(here: Path):
    (here / "Makefile").write_text("good:\n\t@echo '9 passed in 1s'\n")
    with pytest.raises(SystemExit, match="commit these first"):
        long_tests.main(["good"])
    assert long_tests.kept() == {}


def test_without_a_target_it_asks_which(here: Path):
    with pytest.raises(SystemExit, match="which"):
        long_tests.main([])
