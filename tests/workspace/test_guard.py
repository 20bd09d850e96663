"""Instructions to programs that are not there yet: a shared program cannot leave any in the project."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fanfold.workspace.guard import Guard, GuardFindings
from fanfold.workspace.sandbox import LevelName, detect, plan_sandbox
from fanfold.workspace.workspaces import Workspaces
from tests.levels import needs
from tests.work import PATIENCE_S
from tests.workspace.trees import repository, tree, write
from tools.tidy import ROOT

pytestmark = pytest.mark.full

ATTEMPTS = {
    "a repository": ("git init -q . && git config core.fsmonitor evil", ".git"),
    "a file that names a repository": ("echo 'gitdir: evil' > .git", ".git"),
    "a link to a repository": ("mkdir src/evil; ln -s src/evil .git", ".git"),
    "a repository in other letters": ("mkdir .GIT; echo x > .GIT/config", ".GIT"),
    "a repository by its short name": ("mkdir GIT~1; echo x > GIT~1/config", "GIT~1"),
    "a role of Codex": ("mkdir -p .codex/agents; echo x > .codex/agents/x.toml", ".codex"),
    "a role of Claude": ("mkdir -p .claude/agents; echo x > .claude/agents/y.md", ".claude"),
    "settings of Claude": ("mkdir -p .claude; echo x > .claude/settings.local.json", ".claude"),
    "servers of Claude": ("echo '{}' > .mcp.json", ".mcp.json"),
    "servers of Claude in other letters": ("echo '{}' > .MCP.json", ".MCP.json"),
    "servers of VS Code": ("mkdir .vscode; echo '{}' > .vscode/mcp.json", ".vscode/mcp.json"),
    "hooks of Copilot": ("mkdir -p .github/hooks; echo x > .github/hooks/a.json", ".github/hooks"),
    "a folder for these behind a link": ("mkdir src/evil; ln -s src/evil .github", ".github"),
    "settings of Gemini": ("mkdir .gemini; echo '{}' > .gemini/settings.json", ".gemini"),
    "roles in other letters": ("mkdir -p .Codex/AGENTS", ".Codex"),
    "roles behind a link": ("mkdir -p src/evil/agents; ln -s src/evil .codex", ".codex"),
    "roles that are a link": ("mkdir -p src/evil .claude; ln -s ../src/evil .claude/agents", ".claude"),
    "roles nobody may touch": ("mkdir -p .codex/agents; chmod 0 .codex", ".codex"),
}


@pytest.fixture(params=["bubblewrap", "landlock"])
def level(request: pytest.FixtureRequest) -> LevelName:
    name: LevelName = request.param
    if not getattr(detect(ROOT), name).available:
        pytest.skip(needs(name))
    return name


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    write(folder, {"src/a.py": "x", "b.txt": "b"})
    return folder


def confined(project: Path, level: LevelName, line: str) -> subprocess.CompletedProcess[str]:
    launch = plan_sandbox(level, Workspaces(project).policy(None))
    environment = os.environ | launch.environment
    command = launch.command(["sh", "-c", line])
    try:
        return subprocess.run(
            command,
            cwd=launch.cwd,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    finally:
        launch.close()


def settle(guard: Guard, *, is_confined: bool = True) -> GuardFindings:
    return guard.settle(lambda _project: is_confined)


@pytest.mark.parametrize("what", ATTEMPTS)
def test_files_made_by_a_program_do_not_stay_in_the_project(project: Path, level: LevelName, what: str):
    line, path = ATTEMPTS[what]
    guard = Guard(project)
    confined(project, level, line)
    appeared = os.path.lexists(project / path)
    assert appeared == (level == "bubblewrap"), "Landlock refuses; bubblewrap would leave traces"
    found = settle(guard)
    assert found.moved == ((path,) if appeared else ())
    assert not os.path.lexists(project / path)
    if appeared:
        assert len(os.listdir(found.folder)) == 1
    assert settle(Guard(project)) == GuardFindings()


@pytest.mark.parametrize("made", [False, True], ids=["nothing", "some"])
def test_an_unused_workspace_leaves_no_files(project: Path, level: LevelName, made: bool):
    if made:
        write(project, {".codex/config.toml": "mine"})
    before = tree(project, without=(".fanfold",))
    guard = Guard(project)
    confined(project, level, "echo changed > src/a.py; echo x > src/a.py; truncate -s 1 src/a.py")
    assert settle(guard) == GuardFindings()
    assert tree(project, without=(".fanfold",)) == before


def test_new_files_in_ignored_folders_are_removed_after_unconfined_programs(
    project: Path,
):
    write(project, {".claude/settings.json": "mine"})
    guard = Guard(project)
    write(project, {".claude/agents/evil.md": "evil"})
    assert settle(guard, is_confined=False).moved == (".claude/agents",)
    assert tree(project / ".claude").keys() == {"settings.json"}


def test_a_protected_path_cannot_be_moved_with_its_parent_folder(tmp_path: Path, level: LevelName):
    roles = {".codex/agents/r.toml": "r", ".claude/agents/r.md": "r", ".codex/config.toml": "mine"}
    project = repository(tmp_path / "project", {"a.txt": "a", **roles})
    before = tree(project, without=(".fanfold",))
    for folder in (".codex", ".claude", ".git"):
        ended = confined(project, level, f"mv {folder} old && mkdir -p {folder}/agents")
        assert ended.returncode != 0
    assert tree(project, without=(".fanfold",)) == before
    assert confined(project, level, "echo new > .codex/config.toml").returncode != 0
    if level == "bubblewrap":  # beside them a shared writer writes as before
        assert confined(project, level, "touch c.txt").returncode == 0


def plant_hook(project: Path) -> None:
    (project / ".git/hooks").mkdir(exist_ok=True)
    (project / ".git/hooks/pre-commit").write_text("evil")


@pytest.mark.parametrize(
    ("does", "names"),
    [
        (plant_hook, {".git/hooks/pre-commit"}),
        (lambda top: (top / ".git/config").write_text("evil"), {".git/config"}),
        (lambda top: (top / ".codex/agents/r.toml").write_text("evil"), {".codex/agents/r.toml"}),
        (lambda top: (top / ".codex/agents/s.toml").write_text("evil"), {".codex/agents/s.toml"}),
        (lambda top: (top / ".codex/agents/r.toml").unlink(), {".codex/agents/r.toml"}),
        (lambda top: (top / ".fanfold/config.toml").write_text("evil"), {".fanfold/config.toml"}),
    ],
)
def test_without_a_sandbox_what_was_there_and_changed_is_named_and_left(
    tmp_path: Path, does: Callable[[Path], object], names: set[str]
):
    files = {".codex/agents/r.toml": "r", ".fanfold/config.toml": "mine"}
    project = repository(tmp_path / "project", {"a.txt": "a", **files})
    guard = Guard(project)
    does(project)
    assert settle(guard) == GuardFindings(), "confined, the program cannot have done it"
    found = settle(guard, is_confined=False)
    assert found.moved == ()
    assert names <= set(found.changed)


def test_ordinary_use_of_git_is_no_change(tmp_path: Path):
    project = repository(tmp_path / "project", {"a.txt": "a"})
    guard = Guard(project)
    (project / "b.txt").write_text("b")
    for words in (["add", "-A"], ["-c", "user.name=x", "-c", "user.email=x", "commit", "-qm", "more"]):
        subprocess.run(["git", "-C", str(project), *words], check=True)
    assert settle(guard, is_confined=False) == GuardFindings()


def test_removed_entries_expire(project: Path):
    spaces = Workspaces(project)
    guard = Guard(project)
    (project / ".git").mkdir()
    found = settle(guard)
    spaces.remains.collect()
    spaces.remains.collect(keep_for_s=3600)
    assert len(os.listdir(found.folder)) == 1
    spaces.remains.collect(keep_for_s=-1)
    assert os.listdir(found.folder) == []
