"""State that this user's Fanfold did not make for this folder is refused, and nothing of it is opened."""

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fanfold.cli.main import COMMANDS
from fanfold.workspace.layout import tracked_below
from fanfold.workspace.seal import why_foreign
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

RECIPE = "name: one\nsteps:\n  - {id: a, agent: explorer, prompt: hello}\n"
SCRIPT = "default: done\n"
ARGUMENTS = {
    "run": ["one.yaml", "--script", "script.yaml"],
    "check": ["one.yaml"],
    "show": ["one.yaml"],
    "spawn": ["explorer", "look", "--script", "script.yaml"],
    "send": ["last", "more"],
    "query": ["word"],
    "fork": ["last", "--from", "a"],
    "diff": ["last"],
    "apply": ["last", "a"],
    "approve": ["last", "a"],
    "reject": ["last", "a"],
    "transcript": ["last", "a"],
    "whatif": ["last", "--max-concurrency", "2"],
    "smoke": ["--real", "--dry-run"],
    "answer": ["last", "a", "words"],
    "import": ["one.yaml"],
    "mcp": [],
    "serve": [],
    "chat": ["hello"],
    "plan": ["do this", "--save", "this"],
    "schedule": ["list"],
    "compare": ["last", "last"],
    "cluster": ["status"],
    "worker": [],
}
WITHOUT_PROJECT = {"state", "models", "smoke", "init", "schema", "completion", "doctor"}
"""Commands that decide about state, tell of it, or have nothing to do with that of this project."""


class World:
    def __init__(self, top: Path) -> None:
        self.top = top
        self.home = top / "home"
        self.home.mkdir()
        self.project = top / "project"
        self.project.mkdir()
        (self.project / "one.yaml").write_text(RECIPE)
        (self.project / "script.yaml").write_text(SCRIPT)

    def fanfold(self, *arguments: str, project: Path | None = None) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), "LC_ALL": "C.UTF-8"}
        return subprocess.run(
            [sys.executable, "-m", "fanfold.cli.main", *arguments],
            cwd=project or self.project,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def run(self, project: Path | None = None) -> subprocess.CompletedProcess[str]:
        return self.fanfold("run", "one.yaml", "--script", "script.yaml", project=project)

    def git(self, *arguments: str, project: Path | None = None) -> None:
        settings = ["-c", "user.name=a", "-c", "user.email=a@example"]
        subprocess.run(
            ["git", *settings, *arguments], cwd=project or self.project, check=True, capture_output=True
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def plant_database(own: Path) -> None:
    (own / "fanfold.db").write_bytes(b"SQLite format 3\0")


def plant_journal(own: Path) -> None:
    (own / "workspace/journal/m1").mkdir(parents=True)
    (own / "workspace/journal/m1/note.json").write_text('{"path": "/etc/evil"}')


def plant_link(own: Path) -> None:
    (own / "subagents").symlink_to(own.parent.parent / "home")


def plant_seal(own: Path) -> None:
    (own / "state.seal").write_text(json.dumps({"version": 1, "project": str(own.parent), "mac": "00" * 32}))


def plant_seal_that_never_ends(own: Path) -> None:
    os.mkfifo(own / "state.seal")


@pytest.mark.parametrize(
    "plant", [plant_database, plant_journal, plant_link, plant_seal, plant_seal_that_never_ends]
)
def test_planted_state_is_refused(world: World, plant: Callable[[Path], None]):
    own = world.project / ".fanfold"
    own.mkdir()
    plant(own)
    for arguments in (["runs"], ["gc", "--dry-run"], ["run", "one.yaml", "--script", "script.yaml"]):
        refused = world.fanfold(*arguments)
        assert refused.returncode == 4, refused.stderr
        assert "error[state.foreign]" in refused.stderr
        assert "fanfold state remove" in refused.stderr
    assert sorted(os.listdir(world.home)) == []


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - WITHOUT_PROJECT))
def test_every_command_refuses_foreign_state(world: World, name: str):
    own = world.project / ".fanfold"
    own.mkdir()
    plant_database(own)
    refused = world.fanfold(name, *ARGUMENTS.get(name, ["last"] if _takes_run(name) else []))
    assert "state.foreign" in refused.stderr, (name, refused.stdout, refused.stderr)
    assert refused.returncode == 4
    assert (own / "fanfold.db").read_bytes() == b"SQLite format 3\0"


def test_files_that_go_while_state_is_judged_are_no_reason_to_refuse_it(world: World):
    assert world.fanfold("run", "one.yaml", "--script", "script.yaml").returncode == 0
    own, home = world.project / ".fanfold", world.home / ".fanfold"
    over = threading.Event()

    def come_and_go() -> None:  # as the files beside a database do when its last process closes it
        while not over.is_set():
            for name in ("fanfold.db-shm", "zz-wal"):
                (own / name).touch()
                (own / name).unlink()

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        found = {why_foreign(world.project, home) for _ in range(2_000)}
    finally:
        over.set()
        other.join()
    assert found == {""}


def test_doctor_reports_foreign_state_and_how_to_resolve_it(world: World):
    (world.project / ".fanfold").mkdir()
    plant_database(world.project / ".fanfold")
    told = world.fanfold("doctor")
    assert told.returncode == 1
    assert "not from this user's Fanfold" in told.stdout
    assert "fanfold state adopt" in told.stdout


def _takes_run(name: str) -> bool:
    return name not in ("runs", "costs", "list", "agents", "ps", "doctor", "gc", "verify", "check", "wait")


def test_a_folder_that_is_a_link_is_foreign(world: World):
    (world.top / "elsewhere").mkdir()
    (world.project / ".fanfold").symlink_to(world.top / "elsewhere")
    assert "state.foreign" in world.run().stderr
    assert os.listdir(world.top / "elsewhere") == []
    assert world.fanfold("state", "remove", "--yes").returncode == 0
    assert (world.top / "elsewhere").is_dir()
    assert world.run().returncode == 0


def test_a_project_that_was_moved_continues_with_one_notice(world: World):
    assert world.run().returncode == 0
    moved = world.top / "moved"
    os.rename(world.project, moved)
    told = world.fanfold("runs", "--json", project=moved)
    notice = f"the state of this project was moved from {world.project}; it continues here"
    assert told.stderr == f"notice[state.moved]: {notice}\n"
    assert len(json.loads(told.stdout)) == 1
    assert world.fanfold("runs", project=moved).stderr == ""


def test_a_project_that_was_restored_in_its_place_continues_with_one_notice(world: World):
    assert world.run().returncode == 0
    os.rename(world.project, world.top / "cache")  # which keeps its inode, so that the copy has another
    shutil.copytree(world.top / "cache", world.project, symlinks=True)
    told = world.fanfold("runs", "--json")
    assert "notice[state.moved]: the state of this project was restored" in told.stderr
    assert len(json.loads(told.stdout)) == 1
    assert world.fanfold("runs").stderr == ""


def test_a_copy_is_adopted_after_the_user_confirmed(world: World):
    assert world.run().returncode == 0
    copy = world.top / "copy"
    shutil.copytree(world.project, copy, symlinks=True)
    assert "it is a copy of the state in" in world.fanfold("runs", project=copy).stderr
    shown = json.loads(world.fanfold("state", "show", "--json", project=copy).stdout)
    assert shown["standing"] == "foreign"
    assert "fanfold.db" in [part["name"] for part in shown["parts"]]
    assert world.fanfold("state", "adopt", project=copy).returncode == 4, "nobody is there to confirm"
    assert world.fanfold("state", "adopt", "--yes", project=copy).returncode == 0
    assert len(json.loads(world.fanfold("runs", "--json", project=copy).stdout)) == 1


def test_files_that_fanfold_does_not_know_are_no_state(world: World):
    own = world.project / ".fanfold"
    own.mkdir()
    for name in ("README.md", "notes.txt"):
        (own / name).write_text("mine")
    assert world.run().returncode == 0
    assert world.fanfold("state", "remove", "--yes").returncode == 0
    assert (own / "notes.txt").read_text() == "mine"


def test_a_copy_is_refused_and_the_original_continues(world: World):
    assert world.run().returncode == 0
    shutil.copytree(world.project, world.top / "copy", symlinks=True)
    assert "state.foreign" in world.run(world.top / "copy").stderr
    assert world.run().returncode == 0
    assert world.fanfold("state", "remove", "--yes", project=world.top / "copy").returncode == 0
    assert world.run(world.top / "copy").returncode == 0


def test_removing_leaves_recipes_roles_and_configuration(world: World):
    assert world.run().returncode == 0
    own = world.project / ".fanfold"
    for path in ("workflows/r.yaml", "agents/a.toml", "config.toml"):
        (own / path).parent.mkdir(exist_ok=True)
        (own / path).write_text("")
    assert world.fanfold("state", "remove", "--yes").returncode == 0
    assert set(os.listdir(own)) == {"workflows", "agents", "config.toml", ".gitignore"}


def test_state_that_a_commit_brought_is_foreign_also_where_ours_was(world: World):
    world.git("init", "-q", "-b", "main")
    world.git("add", "-A")
    world.git("commit", "-qm", "begin")
    assert world.run().returncode == 0
    world.git("add", "-f", ".fanfold/fanfold.db")
    refused = world.run()
    assert "came with a commit" in refused.stderr
    assert refused.returncode == 4
    carry_out_hint(world, refused.stderr)
    assert world.run().returncode == 0


def carry_out_hint(world: World, told: str) -> None:
    [command] = re.findall(r"hint: .*: git (.*)", told)
    world.git(*shlex.split(command))


def test_no_run_starts_if_a_commit_names_removed_state(world: World):
    """What a run made there would be taken for the commit's at the next command."""
    world.git("init", "-q", "-b", "main")
    for name in ("runs/x", "other state"):
        (world.project / ".fanfold" / name).parent.mkdir(parents=True, exist_ok=True)
        (world.project / ".fanfold" / name).write_text("")
    world.git("add", "-A", "-f")
    assert world.fanfold("state", "remove", "--yes").returncode == 0
    refused = world.run()
    assert refused.returncode == 4
    assert not (world.project / ".fanfold/fanfold.db").exists()
    carry_out_hint(world, refused.stderr)
    assert world.run().returncode == 0
    assert world.fanfold("inspect", "last").returncode == 0


def test_a_project_below_the_top_of_a_repository_is_looked_up_there(world: World):
    world.git("init", "-q", "-b", "main", project=world.top)
    (world.project / ".fanfold").mkdir(exist_ok=True)  # else the top of the repository is the project
    assert world.run().returncode == 0
    world.git("add", "-f", "project/.fanfold/runs", project=world.top)
    assert "came with a commit" in world.run().stderr


def test_recipes_and_roles_of_a_commit_are_no_state(world: World):
    world.git("init", "-q", "-b", "main")
    (world.project / ".fanfold/workflows").mkdir(parents=True)
    (world.project / ".fanfold/workflows/one.yaml").write_text(RECIPE)
    world.git("add", "-A")
    assert world.run().returncode == 0
    assert world.run().returncode == 0


@pytest.mark.parametrize(
    "options",
    [["--index-version", "2"], ["--index-version", "4"], ["--split-index"],
     ["--index-version", "4", "--split-index"]],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.parametrize("objects", ["sha1", "sha256"])
def test_the_index_is_read_in_every_form(world: World, options: list[str], objects: str):
    world.git("init", "-q", "-b", "main", f"--object-format={objects}")
    names = [
        ".fanfold/runs/" + "x" * 33,
        ".fanfold-other/a",
        "sub/.fanfold/b",
        ".fanfold/config.toml",
        ".f",
        "z",
    ]
    for name in names:  # the first is as long as the number of the byte that a slash is
        (world.project / name).parent.mkdir(parents=True, exist_ok=True)
        (world.project / name).write_text("")
    world.git("add", "-A", "-f")
    world.git("update-index", *options)
    found = tracked_below(world.project / ".git/index", ".fanfold")
    assert found == [".fanfold/config.toml", names[0]]


def test_state_that_came_with_a_commit_is_seen_in_a_split_index(world: World):
    world.git("init", "-q", "-b", "main")
    assert world.run().returncode == 0
    (world.project / ".fanfold/runs/planted").mkdir()
    (world.project / ".fanfold/runs/planted/report.md").write_text("evil")
    world.git("add", "-A", "-f", ".fanfold/runs/planted")
    world.git("update-index", "--split-index")
    refused = world.fanfold("runs")
    assert refused.returncode == 4
    assert "came with a commit" in refused.stderr
    hint = re.search(r"hint: .*?: (git .*)", refused.stderr)
    assert hint is not None
    for command in hint[1].split("; "):
        world.git(*shlex.split(command)[1:])
    assert world.fanfold("runs").returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo make test-full")
def test_state_of_another_user_is_foreign(world: World):
    assert world.run().returncode == 0
    os.chown(world.project / ".fanfold/fanfold.db", 65534, 65534)
    assert "another user" in why_foreign(world.project, world.home / ".fanfold")


def test_stored_files_are_private_for_every_umask_and_owner_of_the_folder(world: World):
    own = world.project / ".fanfold"
    (own / "workflows").mkdir(parents=True)
    own.chmod(0o777)
    (world.project / "two.yaml").write_text("name: two\nsteps: [{id: a, run: [touch, x], write_set: [x]}]\n")
    before = os.umask(0)
    try:
        assert world.run().returncode == 0
        assert world.fanfold("run", "two.yaml", "--yes").returncode == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    open_to_others = [
        path
        for path in own.rglob("*")
        if not path.is_symlink() and not {"workflows", "tree"}.intersection(path.parent.parts)
        and path.name not in ("workflows", ".gitignore")
        and stat.S_IMODE(path.stat().st_mode) & 0o077
    ]  # fmt: skip
    assert open_to_others == []
    assert stat.S_IMODE((world.home / ".fanfold/secret").stat().st_mode) == 0o600


def test_a_project_in_the_home_folder_keeps_the_user_s_files(world: World):
    """The folder of the project is the user's own then: what is theirs is no state, nor a project's word."""
    world.run()
    own = world.home / ".fanfold"
    (own / "config.toml").write_text("[workflows]\nmax_agents = 90\n")
    (own / "backends").mkdir()
    for name in ("one.yaml", "script.yaml"):
        shutil.copy(world.project / name, world.home)
    ran = world.run(project=world.home)
    assert ran.returncode == 0, ran.stderr
    assert world.fanfold("runs", project=world.home).stdout.count("\n") == 1
    secret = (own / "secret").read_bytes()
    assert world.fanfold("state", "remove", "--yes", project=world.home).returncode == 0
    assert sorted(os.listdir(own)) == [".gitignore", "backends", "config.toml", "secret"]
    assert (own / "secret").read_bytes() == secret
    assert world.fanfold("runs").returncode == 0, "other projects are still theirs"
