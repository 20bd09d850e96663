"""What a sandbox shows of the project is what lies there, never what a link or a file in its place names."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fanfold.workspace.sandbox import LevelName, detect, plan_sandbox
from fanfold.workspace.workspaces import Workspaces
from tests.levels import needs
from tests.work import PATIENCE_S
from tests.workspace.trees import git, repository, write
from tools.tidy import ROOT

pytestmark = pytest.mark.full


@pytest.fixture(params=["bubblewrap", "landlock"])
def level(request: pytest.FixtureRequest) -> LevelName:
    name: LevelName = request.param
    if not getattr(detect(ROOT), name).available:
        pytest.skip(needs(name))
    return name


def replace_dependencies(project: Path, private: Path) -> None:
    os.rename(project / "node_modules", project / "old")
    (project / "node_modules").symlink_to(private)


def replace_environment(project: Path, private: Path) -> None:
    os.rename(project / ".venv", project / "old")
    (project / ".venv").symlink_to(private)


def python_of_another_checkout(project: Path, private: Path) -> None:
    """The link leads to what looks like Python, and that says that its home is there."""
    other = private.parent / "other"
    write(other, {"bin/python3": "", "lib/python3.11/os.py": "", "pyvenv.cfg": f"home = {private}\n"})
    (project / ".venv/bin/python3").symlink_to(other / "bin/python3")


def replace_folder_above(project: Path, private: Path) -> None:
    os.rename(project / "pkg", project / "old")
    (project / "pkg").symlink_to(private)
    (private / "node_modules").mkdir(exist_ok=True)
    (private / "node_modules/secret").write_text("CANARY")


def roles_behind_a_link(project: Path, private: Path) -> None:
    (project / ".codex").mkdir()
    (project / ".codex/agents").symlink_to(private)


def git_folder_behind_a_link(project: Path, private: Path) -> None:
    os.rename(project / ".git", project / "old")
    (project / ".git").symlink_to(private)


def git_file_that_names_another(project: Path, private: Path) -> None:
    os.rename(project / ".git", project / "old")
    (project / ".git").write_text(f"gitdir: {private}\n")
    write(private, {"HEAD": "ref: refs/heads/main\n", "commondir": "..\n"})


@pytest.mark.parametrize(
    "swap",
    [
        replace_dependencies,
        replace_environment,
        python_of_another_checkout,
        replace_folder_above,
        roles_behind_a_link,
        git_folder_behind_a_link,
        git_file_that_names_another,
    ],
)
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "isolated"])
def test_a_path_swapped_for_a_link_is_not_mounted(
    tmp_path: Path, level: LevelName, swap: Callable[[Path, Path], None], shared: bool
):
    project = repository(tmp_path / "project", {"a.txt": "a"})
    files: dict[str, str | bytes] = {
        "node_modules/m.js": "m",
        ".venv/bin/tool": "t",
        ".venv/pyvenv.cfg": "",
        "pkg/node_modules/n.js": "",
    }
    write(project, files)
    private = tmp_path / "private"
    write(private, {"secret": "CANARY", "bin/secret": "CANARY"})
    spaces = Workspaces(project)
    child = None if shared else spaces.open_child("s1")
    policy = spaces.policy(child, read_only=shared)
    swap(project, private)
    launch = plan_sandbox(level, policy)
    try:
        found = subprocess.run(
            launch.command(
                ["sh", "-c", f"cat {private}/secret; grep -rs CANARY . {private}; ls -la {private}"]
            ),
            cwd=launch.cwd,
            env=os.environ | launch.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    finally:
        launch.close()
        if child is not None:
            spaces.close(child)
    assert "CANARY" not in found.stdout


def test_git_works_inside_a_linked_work_tree(tmp_path: Path):
    if not detect(ROOT).bubblewrap.available:
        pytest.skip(needs("bubblewrap"))
    main = repository(tmp_path / "main", {"a.txt": "a"})
    git(main, "worktree", "add", "-q", str(tmp_path / "linked"))
    launch = plan_sandbox("bubblewrap", Workspaces(tmp_path / "linked").policy(None))
    try:
        said = subprocess.run(
            launch.command(["git", "log", "--oneline"]),
            cwd=launch.cwd,
            env=os.environ | launch.environment,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        launch.close()
    assert said.stdout.endswith("begin\n"), said.stderr
