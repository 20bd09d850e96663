"""After `git clone` of a hostile repository every command is traced: what it reads, writes, runs and connects
to is the user's, the system's or the clone's.

Here every fourth command is traced, for one user; in `make hostile` all of them, for root and for another.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest

from fanfold.cli.main import COMMANDS
from tests.hostile.clone import clone_hostile, forget_committed_state
from tests.hostile.test_attempts import USERS
from tests.hostile.test_trees import STATUSES
from tests.hostile.ways import LASTING, VARIANTS, ways
from tests.hostile.witness import Seen, Watched, watch
from tests.hostile.worlds import CANARY, Setting, World, installation
from tests.workspace.tracing import why_not
from tools.tidy import ROOT

pytestmark = pytest.mark.full


def chosen() -> list[str]:
    names = sorted(set(COMMANDS) - set(LASTING))
    if os.environ.get("HOSTILE") == "all":
        return names
    return [name for name in names if crc32(name.encode()) % 4 == 0 or name == "run"]


def users() -> tuple[str, ...]:
    if os.environ.get("HOSTILE") == "all":
        return USERS
    return (USERS[int(os.environ.get("HOSTILE_SEED", "0")) % len(USERS)],)


@pytest.fixture(scope="module", params=users())
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if why := why_not():
        pytest.skip(f"{why}: make hostile where it is")
    made = World(Setting(request.param, "bubblewrap"))
    if installation(made.uid) is None:
        pytest.skip("needs root: sudo make test-full")
    clone_hostile(made)
    (made.top / "free/tmp").mkdir()
    (made.top / "free/said").mkdir()
    made.own()
    yield made
    made.close()


@pytest.mark.parametrize("name", chosen())
def test_nothing_outside_is_touched(world: World, name: str):
    """First as it was cloned, state and all; then without the state, so that commands do their work."""
    project, kept = world.project, world.top / "free/kept"
    copy(project, kept)
    try:
        for arguments in ways(name, VARIANTS):
            judge(world, arguments, trace(world, arguments))
        assert trace(world, ["state", "remove", "--yes"]).status == 0
        forget_committed_state(world)
        judge(world, ["run"], trace(world, ["run", "one.yaml", "--script", "script.yaml", "--yes"]))
        for arguments in ways(name, VARIANTS):
            judge(world, arguments, trace(world, arguments))
    finally:
        shutil.rmtree(project)
        os.rename(kept, project)


def copy(project: Path, kept: Path) -> None:
    """With whose everything is."""
    subprocess.run(["cp", "-a", str(project), str(kept)], check=True)


def trace(world: World, arguments: list[str]) -> Watched:
    script = installation(world.uid)
    assert script is not None
    environment = {
        **world.environment,
        "PATH": f"{world.project}/bin:.:{world.environment['PATH']}",
        "TMPDIR": str(world.top / "free/tmp"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    python = str(Path(script).parent / "python3")
    return watch([python, script, *arguments], world.project, environment, world.top / "free/said", world.uid)


def judge(world: World, arguments: list[str], watched: Watched) -> None:
    told = f"fanfold {' '.join(arguments)} ended with {watched.status}\n{watched.out}{watched.err}"
    assert watched.status in STATUSES, told
    assert CANARY not in told, told
    assert len(watched.seen) > 20, f"too little was seen: {told}"
    wrong = sorted({one for one in watched.seen if not is_allowed(one, world)})
    assert not wrong, "\n".join([told, *map(str, wrong)])
    assert not (world.outside / "ran").exists(), told
    assert not world.reached, told


def is_allowed(one: Seen, world: World) -> bool:
    """Whether the user's own files, the system's, or the clone's explain something."""
    project, own, temporary = str(world.project), f"{world.home}/.fanfold", f"{world.top}/free/tmp"
    ours = (project, own, temporary)
    path = one.what
    if one.deed in ("connect", "bind"):
        return path.startswith((f"unix:{project}/.fanfold/", "unix:/var/run/nscd", "unix:/run/nscd"))
    if one.deed == "run":
        return os.path.realpath(path) in allowed_programs(world.uid) or "/git-core/" in path
    if one.deed == "write":
        if _is_below(path, f"{project}/.git", f"{project}/inner"):
            return False
        kernel = re.match(
            r"/(proc/(self|thread-self|\d+)/|dev/(null|tty|pts|shm/fanfold-test-)|sys/fs/cgroup/)", path
        )
        return _is_below(path, *ours) or kernel is not None
    users = tuple(f"{world.home}/{name}" for name in OF_USER)
    if any(top.startswith(f"{path.rstrip('/')}/") for top in (*ours, *users)):
        return True  # a folder on the way, held open or looked at while the rest of the path is walked
    if _is_below(path, *ours, *users):
        return True
    return not _is_below(path, str(world.top)) and is_of_system(one, installed_in(world.uid))


OF_USER = (
    ".codex/agents",
    ".codex/config.toml",
    ".claude/agents",
    ".gitconfig",
    ".config/git/config",
    ".config/git/ignore",
)
"""In the user's own home: their roles, and what git's configuration of theirs says is to be ignored."""


def _is_below(path: str, *tops: str) -> bool:
    return any(path == top or path.startswith(f"{top}/") for top in tops)


def installed_in(uid: int) -> str:
    """Where the console script of a user is, with what it needs."""
    script = installation(uid)
    assert script is not None
    return str(Path(script).parent.parent)


def is_of_system(one: Seen, installed: str) -> bool:
    """Whether something is what programs are made of, or what the kernel tells."""
    ours = (str(ROOT / "src"), sys.prefix, sys.base_prefix, str(ROOT / "pyproject.toml"), installed)
    if one.what.startswith((*ours, *SYSTEM)):
        return True
    if one.deed == "look" and any(top.startswith(f"{one.what.rstrip('/')}/") for top in ours):
        return True
    # Python looks for its library in every folder above it; what is at the top is hidden from sandboxes.
    library = one.deed == "look" and re.search(r"/(pyvenv\.cfg|lib/python\d+\.zip)\Z", one.what)
    return bool(library) or os.path.dirname(one.what) in ("/", "/var", "/run")


SYSTEM = (
    *("/usr", "/lib", "/bin", "/sbin", "/etc", "/proc", "/sys", "/dev", "/var/lib", "/opt"),
    *("pipe:", "socket:", "anon_inode", "/memfd:", "mnt:[", "user:["),
)


def allowed_programs(uid: int) -> set[str]:
    found = {os.path.realpath(f"{installed_in(uid)}/bin/python3")}
    for name in ("git", "bwrap", "sh"):
        if program := shutil.which(name, path="/usr/local/bin:/usr/bin:/bin"):
            found.add(os.path.realpath(program))
    return found


def test_the_witness_sees_what_is_to_be_seen(world: World):
    """What is hidden behind a link, in a child, or goes elsewhere."""
    code = (
        "import os, socket, subprocess\n"
        "open('key').read()\n"
        "os.path.exists('out/folder/file'); os.path.lexists('out/folder/name'); os.access('CLAUDE.md', 4)\n"
        "os.readlink('/proc/self/cwd/key'); os.listxattr('linked.py')\n"
        "open('out/new', 'w').close(); os.rename('out/new', 'out/newer'); os.unlink('out/newer')\n"
        "socket.socket().connect_ex(('127.0.0.1', 9))\n"
        "subprocess.run(['./bin/git'], env={}, check=False)\n"
    )
    argv = [os.path.realpath(f"{installed_in(world.uid)}/bin/python3"), "-I", "-c", code]
    watched = watch(argv, world.project, {"PATH": "/usr/bin:/bin"}, world.top / "free/said", world.uid)
    assert watched.status == 0, watched.err
    wrong = {(one.deed, one.what) for one in watched.seen if not is_allowed(one, world)}
    assert ("read", f"{world.home}/.ssh/id") in wrong
    looks = {f"{world.outside}/{name}" for name in ("folder/file", "folder/name", "secret")}
    assert {("look", path) for path in (*looks, f"{world.home}/.netrc")} <= wrong
    assert ("look", f"{world.project}/key") not in wrong, "a link of the clone is the clone's"
    assert {("write", f"{world.outside}/{name}") for name in ("new", "newer", "ran")} <= wrong
    assert ("run", f"{world.project}/./bin/git") in wrong or ("run", f"{world.project}/bin/git") in wrong
    assert any(deed == "connect" for deed, _ in wrong)
    (world.outside / "ran").unlink()
