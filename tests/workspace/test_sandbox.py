"""The sandbox: at every level, every attempt to get out is refused; and ordinary work is not."""

import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import msgspec
import pytest

from fanfold.errors import WorldError
from fanfold.workspace import children, sandbox, sandbox_policy
from fanfold.workspace.children import Child
from fanfold.workspace.sandbox import Launch, Level, LevelName, Levels, choose_level, detect, plan_sandbox
from fanfold.workspace.workspaces import Workspaces
from tests.levels import needs
from tests.work import PATIENCE_S
from tests.workspace.attempts import ATTEMPTS, NOT_UNDER_LANDLOCK, PRELUDE, READ_ONLY
from tests.workspace.trees import METHODS, repository, tree, write
from tools.tidy import ROOT

LEVELS = ("bubblewrap", "landlock")
LIMITS = sandbox_policy.ProcessLimits(
    max_processes=64,
    max_memory_bytes=1024**3,
    max_file_bytes=32 * 1024**2,
    max_open_files=512,
    max_scratch_bytes=16 * 1024**2,
)


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> LevelName:
    name: LevelName = request.param
    found = getattr(detect(ROOT), name)
    if not found.available:
        pytest.skip(needs(name))
    return name


class World:
    """A project with a secret beside it, listeners on the host, and a home worth reading."""

    def __init__(self, folder: Path) -> None:
        self.project = repository(
            folder / "project",
            {
                "a.txt": "a",
                ".codex/agents/reviewer.toml": "r",
                ".claude/agents/reviewer.md": "r",
                ".gitignore": "node_modules\n",
            },
        )
        write(self.project, {"node_modules/m.js": "m", ".fanfold/fanfold.db": "CANARY"})
        self.secret = folder / "outside/secret"
        self.visible = Path(tempfile.mkdtemp(prefix="fanfold-", dir="/opt")) if os.geteuid() == 0 else None
        self.system = self.visible / "file" if self.visible else Path("/etc/passwd")
        if self.visible:
            self.visible.chmod(0o755)
            self.system.write_text("root's")
        write(folder, {"outside/secret": "CANARY", "home/.netrc": "CANARY"})
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.abstract = socket.socket(socket.AF_UNIX)
        own = f"fanfold-{os.getpid()}-{os.urandom(4).hex()}"
        self.abstract.bind(f"\0{own}")
        self.abstract.listen()
        self.in_folder = socket.socket(socket.AF_UNIX)
        short = f"/tmp/{own}.socket"
        for name in (short, f"{short}.datagrams"):
            Path(name).unlink(missing_ok=True)
        self.in_folder.bind(short)
        self.in_folder.listen()
        self.datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.datagrams.bind(f"{short}.datagrams")
        self.shared = Path(f"/dev/shm/{own}")
        self.shared.write_text("CANARY")
        threading.Thread(target=self._answer, daemon=True).start()
        self.terminal, user = os.openpty()
        self.data = self._make_data() if os.geteuid() == 0 else None
        libc = ctypes.CDLL(None, use_errno=True)
        self.key = 0x46000000 | int.from_bytes(os.urandom(3))
        self.memory = libc.shmget(self.key, 4096, 0o1600)
        libc.shmat.restype = ctypes.c_void_p
        ctypes.memmove(libc.shmat(self.memory, None, 0), b"CANARY", 6)
        self.facts = {
            "project": str(self.project),
            "outside": str(folder / "outside"),
            "secret": str(self.secret),
            "home": str(folder / "home"),
            "system": str(self.system),
            "engine": os.getpid(),
            "port": self.tcp.getsockname()[1],
            "udp": self.udp.getsockname()[1],
            "abstract": own,
            "path_socket": short,
            "datagrams": f"{short}.datagrams",
            "shared": str(self.shared),
            "key": self.key,
            "terminal": os.ttyname(user),
            "data": str(self.data or ""),
        }

    def _make_data(self) -> Path:
        """A folder at the top of the machine, where people keep data and servers their sockets."""
        folder = Path(tempfile.mkdtemp(prefix="fanfold-", dir="/srv"))
        folder.chmod(0o755)
        (folder / "secret").write_text("CANARY")
        os.mkfifo(folder / "pipe", 0o666)
        self.in_data = socket.socket(socket.AF_UNIX)
        self.in_data.bind(str(folder / "socket"))
        self.in_data.listen()
        (folder / "socket").chmod(0o666)
        return folder

    def _answer(self) -> None:
        while True:
            try:
                _, sender = self.udp.recvfrom(100)
                self.udp.sendto(b"heard", sender)
            except OSError:
                return

    def close(self) -> None:
        for one in (self.tcp, self.udp, self.abstract, self.in_folder, self.datagrams):
            one.close()
        for name in ("path_socket", "datagrams", "shared"):
            Path(str(self.facts[name])).unlink()
        if self.visible:
            shutil.rmtree(self.visible)
        if self.data:
            self.in_data.close()
            shutil.rmtree(self.data)
        os.close(self.terminal)
        ctypes.CDLL(None).shmctl(self.memory, 0, None)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("world"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def spaces(world: World) -> Workspaces:
    return Workspaces(world.project)


@pytest.fixture
def child(spaces: Workspaces) -> Iterator[Child]:
    made = spaces.open_child("s1")
    yield made
    spaces.close(made)


def plan(spaces: Workspaces, child: Child | None, level: LevelName, world: World, **given) -> Launch:
    confines = spaces.policy(child, limits=LIMITS, environment={"GIVEN": "yes"}, **given)
    home = Path(str(world.facts["home"]))
    path = f"{Path(sys.executable).parent}:{confines.path}"
    return plan_sandbox(level, msgspec.structs.replace(confines, home=home, path=path))


def run(launch: Launch, argv: list[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run it as a host would that leaves a handle of a folder open."""
    left_open = os.open(ROOT, os.O_RDONLY)
    environment = (
        os.environ | {"PROVIDER_KEY": "CANARY", "LD_PRELOAD": "", "PYTHONPATH": "/x"} | launch.environment
    )
    try:
        return subprocess.run(
            launch.command(argv),
            cwd=launch.cwd,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            input=stdin,
            check=False,
            pass_fds=(left_open,),
        )
    finally:
        os.close(left_open)
        until = time.monotonic() + PATIENCE_S
        while not launch.close() and time.monotonic() < until:
            time.sleep(0.01)


ALL = """
import tempfile
here = os.getcwd()
said = {}
for name, code in json.load(sys.stdin).items():
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        signal.alarm(120)
        try:
            os.mkdir("place") if mutable else None
            os.chdir("place") if mutable else None
            exec(code)
            word = "ESCAPED"
        except BaseException as error:
            word = "refused " + repr(error)[:200] if not isinstance(error, SystemExit) else "ESCAPED"
        os.write(writing, word.encode())
        os._exit(0)
    os.close(writing)
    told = b""
    while part := os.read(reading, 1000):
        told += part
    os.close(reading)
    _, status = os.waitpid(pid, 0)
    said[name] = told.decode() or f"ended with {status}"
    subprocess.run(["rm", "-rf", "place"], cwd=here) if mutable else None
print(json.dumps(said))
"""


def attempt_all(
    world: World, launch: Launch, codes: dict[str, str], *, mutable: bool = True
) -> dict[str, str]:
    """Make these attempts, each in a process of its own inside one sandbox; what each said of itself."""
    facts = world.facts | {"own_pid_namespace": launch.level == "bubblewrap", "mutable": mutable}
    python = os.path.realpath(sys.executable)
    ended = run(launch, [python, "-I", "-S", "-c", PRELUDE + ALL, json.dumps(facts)], json.dumps(codes))
    assert ended.returncode == 0, ended.stderr[-2000:]
    found: dict[str, str] = json.loads(ended.stdout)
    return found


@pytest.fixture(scope="module")
def said(world: World, spaces: Workspaces) -> Callable[[LevelName], dict[str, str]]:
    """What every attempt said at a level; each level is tried once."""

    @cache
    def at(level: LevelName) -> dict[str, str]:
        made = spaces.open_child("attempts")
        before = look(world)
        try:
            return attempt_all(world, plan(spaces, made, level, world), ATTEMPTS)
        finally:
            spaces.close(made)
            assert look(world) == before
            assert not Path("/etc/fanfold-was-here").exists()

    return at


def look(world: World) -> tuple[object, ...]:
    """Everything outside that an attempt might have touched."""
    project = tree(world.project, without=(".fanfold",))
    return project, world.secret.read_text(), world.system.read_bytes(), world.system.stat()[:6]


@pytest.mark.full
@pytest.mark.parametrize(
    ("level", "name"),
    [
        (at, name)
        for name in ATTEMPTS
        for at in LEVELS
        if at == "bubblewrap" or name not in NOT_UNDER_LANDLOCK
    ],
    indirect=["level"],
)
def test_no_file_outside_is_reached(said: Callable[[LevelName], dict[str, str]], level: LevelName, name: str):
    if name == "fork without end" and os.geteuid() == 0 and not sandbox_policy.limits_processes():
        pytest.skip("needs a user who is not root: make test-full as one")
    assert said(level)[name].startswith("refused"), said(level)[name]


@pytest.mark.full
@pytest.mark.parametrize("shared", [False, True], ids=["isolated", "shared"])
def test_read_only_is_really_read_only(
    world: World, spaces: Workspaces, child: Child, level: LevelName, shared: bool
):
    launch = plan(spaces, None if shared else child, level, world, read_only=True)
    found = attempt_all(world, launch, READ_ONLY, mutable=False)
    assert {name: word for name, word in found.items() if not word.startswith("refused")} == {}
    assert (world.project / "a.txt").read_text() == "a"


SHARED = (
    "plant a hook",
    "change git's configuration",
    "write Fanfold's configuration",
    "read Fanfold's database",
    "write a role of Codex",
    "write beside the project",
    "read a secret beside the project",
)
HANDLES = tuple(name for name in ATTEMPTS if "handle that was left open" in name or "be given any" in name)


@pytest.mark.full
def test_a_shared_writer_cannot_change_instruction_files_of_programs(
    world: World, spaces: Workspaces, level: LevelName
):
    launch = plan(spaces, None, level, world)
    found = attempt_all(world, launch, {name: ATTEMPTS[name] for name in SHARED}, mutable=False)
    assert {name: word for name, word in found.items() if not word.startswith("refused")} == {}


@pytest.mark.full
def test_a_shared_writer_writes(world: World, spaces: Workspaces, level: LevelName):
    (world.project / "shared").mkdir(exist_ok=True)
    ended = run(plan(spaces, None, level, world), ["sh", "-c", "echo new > shared/n.txt; cat a.txt"])
    assert ended.stdout == "a", ended.stderr
    assert (world.project / "shared/n.txt").read_text() == "new\n"
    (world.project / "shared/n.txt").unlink()
    (world.project / "shared").rmdir()


@pytest.mark.full
def test_ordinary_work_is_possible(world: World, spaces: Workspaces, child: Child, level: LevelName):
    script = """
    set -e
    echo changed > a.txt; mkdir -p new/deep; echo n > new/deep/n.txt; ln -s a.txt link
    mv a.txt b.txt; cp b.txt a.txt
    echo t > "$TMPDIR/t"; cat "$TMPDIR/t"; echo h > "$HOME/h"; cat "$HOME/h"
    python3 -c 'import json, ctypes, subprocess; subprocess.run(["echo", "inner"], check=True)'
    echo "$GIVEN"; cat /dev/null; echo x > /dev/null
    """
    ended = run(plan(spaces, child, level, world), ["sh", "-c", script])
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "t\nh\ninner\nyes\n"
    changed = {change.path for change in child.changes()}
    assert changed == {"a.txt", "b.txt", "link", "new/deep/n.txt"}


@pytest.mark.full
def test_bubblewrap_shows_the_workspace_at_the_projects_path(world: World, spaces: Workspaces, child: Child):
    if not detect(ROOT).bubblewrap.available:
        pytest.skip(needs("bubblewrap"))
    write(child.path, {"a.txt": "the child's"})
    script = "pwd; cat a.txt; git status --short; chmod 755 a.txt; ls .fanfold; cat node_modules/m.js"
    ended = run(plan(spaces, child, "bubblewrap", world), ["sh", "-c", script])
    lines = ended.stdout.splitlines()
    assert lines[:2] == [str(world.project), "the child's M a.txt"], ended.stderr
    assert lines[2] == "m"
    assert (world.project / "a.txt").read_text() == "a"


@pytest.mark.full
@pytest.mark.parametrize("doing", ["--help", "--proc"])
def test_bubblewrap_that_was_killed_while_it_was_tried_is_not_taken_for_one_that_cannot(
    doing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    usual = detect(ROOT).bubblewrap
    real = shutil.which("bwrap")
    if not usual.available or real is None:
        pytest.skip(needs("bubblewrap"))
    killed, here = tmp_path / "killed", tmp_path / "bin"
    here.mkdir()
    (here / "bwrap").write_text(
        f'#!/bin/sh\ncase "$*" in *{doing}*) [ -e {killed} ] || {{ : > {killed}; kill -9 $$; }};; esac\n'
        f'exec {real} "$@"\n'
    )
    (here / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{here}:{os.environ['PATH']}")
    project = tmp_path / "project"
    project.mkdir()
    assert detect(project).bubblewrap == usual
    assert killed.exists()
    assert sandbox.namespaces(project, False) == sandbox.namespaces(ROOT, False)


BUBBLEWRAPS = ["without handles", *filter(None, os.environ.get("BUBBLEWRAPS", "").split(":"))]
"""One that takes no handles, as those before 0.10, and those in the folders that the variable names."""


@pytest.mark.full
@pytest.mark.parametrize("shared", [False, True], ids=["isolated", "shared"])
@pytest.mark.parametrize("version", BUBBLEWRAPS)
def test_no_attempt_escapes_any_version_of_bubblewrap(
    version: str, shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    real = shutil.which("bwrap")
    if real is None or not detect(ROOT).bubblewrap.available:
        pytest.skip(needs("bubblewrap"))
    folder = Path(version)
    if version == "without handles":
        folder = tmp_path / "bin"
        folder.mkdir()
        script = f'#!/bin/sh\n[ "$1" = --help ] && exec {real} --help | grep -v bind-fd\nexec {real} "$@"\n'
        (folder / "bwrap").write_text(script)
        (folder / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    world = World(tmp_path / "world")
    try:
        assert detect(world.project).bubblewrap.available, detect(world.project).bubblewrap.why
        takes_handles = sandbox.takes_handles(world.project)
        assert takes_handles or "binding by handle" in str(detect(world.project).bubblewrap.cannot)
        spaces = Workspaces(world.project)
        made = None if shared else spaces.open_child("attempts")
        codes = {name: ATTEMPTS[name] for name in SHARED + HANDLES} if shared else ATTEMPTS
        launch = plan(spaces, made, "bubblewrap", world)
        found = attempt_all(world, launch, codes, mutable=not shared)
        assert {name: word for name, word in found.items() if not word.startswith("refused")} == {}
        if made is not None:
            spaces.close(made)
    finally:
        world.close()


@pytest.mark.full
@pytest.mark.parametrize("method", METHODS)
def test_every_kind_of_child_can_be_entered(
    world: World, spaces: Workspaces, level: LevelName, method: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(children, "_failed", set(METHODS[: METHODS.index(method)]))
    if method == "overlay" and os.geteuid() != 0:
        pytest.skip("needs root: sudo make test-full")
    made = spaces.open_child("entered")
    try:
        ended = run(plan(spaces, made, level, world), ["sh", "-c", "cat a.txt; echo inside > a.txt"])
        assert (ended.returncode, ended.stdout) == (0, "a"), ended.stderr
        assert (made.path / "a.txt").read_text() == "inside\n"
    finally:
        spaces.close(made)


@pytest.mark.full
def test_the_network_is_there_when_it_is_allowed(
    world: World, spaces: Workspaces, child: Child, level: LevelName
):
    names = ("connect to the host", "connect to a socket in a folder", "connect to an abstract socket")
    launch = plan(spaces, child, level, world, network=True)
    host, folder, abstract = attempt_all(world, launch, {name: ATTEMPTS[name] for name in names}).values()
    assert host == "ESCAPED"
    assert folder.startswith("refused"), folder
    assert abstract.startswith("refused"), abstract


@pytest.mark.full
def test_processes_started_inside_end_with_the_sandbox(world: World, spaces: Workspaces, child: Child):
    if not detect(ROOT).bubblewrap.available:
        pytest.skip(needs("bubblewrap"))
    launch = plan(spaces, child, "bubblewrap", world)
    script = "setsid sh -c 'while :; do date +%s%N > beat; sleep 0.02; done' & sleep 60"
    running = subprocess.Popen(launch.command(["sh", "-c", script]), cwd=launch.cwd, env=os.environ.copy())
    until = time.monotonic() + PATIENCE_S
    while not (child.path / "beat").exists() and time.monotonic() < until:
        time.sleep(0.01)
    running.kill()
    running.wait()
    while not launch.close() and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.1)
    last = (child.path / "beat").read_text()
    time.sleep(0.3)
    assert (child.path / "beat").read_text() == last


def test_without_any_sandbox_level_commands_are_refused_by_default():
    none = Levels(Level("bubblewrap", False, "not here"), Level("landlock", False, "not here"))
    with pytest.raises(WorldError, match="cannot be confined"):
        choose_level(none)
    assert choose_level(none, unsafe=True) == "unsafe"
    assert choose_level(Levels(none.bubblewrap, Level("landlock", True))) == "landlock"


@pytest.mark.full
def test_unsafe_runs_the_command_in_the_workspace(world: World, spaces: Workspaces, child: Child):
    ended = run(plan(spaces, child, "unsafe", world), ["sh", "-c", "cat a.txt; pwd"])
    assert ended.stdout.startswith("a/"), ended.stderr


@pytest.mark.full
def test_a_sandbox_that_cannot_be_put_in_place_ends_the_command(
    world: World, spaces: Workspaces, child: Child
):
    confines = spaces.policy(child)
    broken = msgspec.structs.replace(confines, namespaces=("/nonexistent", "/nonexistent"))
    ended = run(plan_sandbox("landlock", broken), ["echo", "ran"])
    assert ended.returncode != 0
    assert ended.stdout == ""
