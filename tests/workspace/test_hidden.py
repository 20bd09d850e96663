"""Ignored folders: a shared step may write build output there, and nothing that programs obey."""

import os
import time
from pathlib import Path

import pytest

from fanfold.errors import WorldError
from fanfold.workspace import scan
from fanfold.workspace.beneath import GRAIN_NS
from fanfold.workspace.guard import WorkspaceWatch
from fanfold.workspace.workspaces import Workspaces
from tests.workspace.trees import repository, write

pytestmark = pytest.mark.full

WRITE_SET = ("src/**",)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = {".gitignore": "build/\n*.pyc\nlink-*\n", "src/a.py": "a", "build/x.o": "o"}
    return repository(tmp_path / "project", {**files})


def watch(project: Path) -> WorkspaceWatch:
    return Workspaces(project).watch()


def outcome(watched: WorkspaceWatch, write_set: tuple[str, ...] = WRITE_SET) -> tuple[set[str], set[str]]:
    rows, appeared = watched.settle(write_set)
    return {row.path for row in rows}, set(appeared)


def test_build_output_is_no_violation_and_stays(project: Path):
    watched = watch(project)
    write(project, {"build/x.o": "new", "build/deep/y.o": "y", "build/lib/z.py": "z", "build/lib/n.so": "n"})
    (project / "build/inner").symlink_to("deep/y.o")
    (project / "build/absolute").symlink_to(project / "src/a.py")
    assert outcome(watched) == (set(), set())
    assert (project / "build/lib/n.so").read_text() == "n"
    assert (project / "build/absolute").is_symlink()


def test_a_link_that_was_there_may_be_made_again(project: Path):
    (project / "build/python").symlink_to("/usr/bin/python3")
    watched = watch(project)
    (project / "build/python").unlink()
    (project / "build/python").symlink_to("/usr/bin/python3")
    assert outcome(watched) == (set(), set())


def test_a_step_may_install_dependencies_in_an_ignored_folder_that_its_write_set_contains(project: Path):
    watched = watch(project)
    write(project, {"build/v/pyvenv.cfg": "x", "build/v/lib/x.pth": "x", "build/v/__pycache__/x.pyc": "x"})
    assert outcome(watched, ("build/v/**",)) == (set(), set())
    assert (project / "build/v/__pycache__/x.pyc").exists()
    write(project, {"build/v/p/.git/config": "x"})
    assert outcome(watched, ("build/v/**",))[1] == {"build/v/p/.git"}


def test_old_bytecode_in_an_ignored_folder_stays_and_new_bytecode_is_removed(project: Path):
    old = ("build/__pycache__/a.pyc", "build/b.pyc")
    write(project, dict.fromkeys(old, "old"))
    time.sleep(2 * GRAIN_NS / 1e9)
    watched = watch(project)
    new = ("build/__pycache__/n.pyc", "build/n.pyc", "src/n.pyc", "build/d/__pycache__/n.pyc")
    write(project, dict.fromkeys(new, "new"))
    for path in new:
        os.utime(project / path, (0, 0))
    assert outcome(watched) == (set(), set())
    assert all((project / path).exists() for path in old)
    assert not any((project / path).exists() for path in new)


def test_settings_at_the_top_that_git_ignores_are_the_users_to_change_meanwhile(project: Path):
    write(
        project, {".gitignore": "build/\n.mcp.json\n.claude/\n", ".mcp.json": "a", ".claude/local.json": "a"}
    )
    time.sleep(2 * GRAIN_NS / 1e9)
    watched = watch(project)
    for path in (".mcp.json", ".claude/local.json"):
        (project / path).unlink()
    write(project, {".mcp.json": "b", ".claude/local.json": "b"})
    assert outcome(watched) == (set(), set())


@pytest.mark.parametrize("path", ["build/.claude/x", "build/deep/.mcp.json", "build/.vscode/mcp.json"])
def test_a_protected_name_that_was_in_an_ignored_folder_is_read_only(project: Path, path: str):
    write(project, {path: "mine"})
    watched = watch(project)
    assert any(f"{path}/".startswith(f"{point}/") for point in watched.points)
    assert outcome(watched) == (set(), set())


def test_a_protected_link_in_an_ignored_folder_is_not_mounted_and_its_target_is_protected(project: Path):
    write(project, {"src/conf/settings.json": "mine"})
    (project / "build/.claude").symlink_to("../src/conf")
    watched = watch(project)
    assert "build/.claude" not in watched.points
    assert watched.points.get("src/conf") is True
    (project / "build/.claude").unlink()
    (project / "build/.claude").symlink_to("../src")
    assert outcome(watched)[1] == {"build/.claude"}


def test_more_names_than_can_be_searched_fail_the_step(project: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scan, "MAX_NAMES", 50)
    watched = watch(project)
    write(project, {f"build/{number}": "x" for number in range(60)})
    with pytest.raises(WorldError, match="more than 50 names"):
        watched.settle(WRITE_SET)


def test_a_path_that_is_too_long_to_open_fails_the_step(project: Path):
    watched = watch(project)
    here = os.open(project / "build", os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=here)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.mkdir(".claude", dir_fd=here)
    os.close(here)
    with pytest.raises(WorldError, match="cannot be read"):
        watched.settle(WRITE_SET)
    again = watch(project)
    assert outcome(again) == (set(), set()), "what was too long before the step does not fail it"
