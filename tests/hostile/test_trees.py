"""Whatever `.fanfold` holds, every command ends in words and an exit status, and touches nothing outside.

`make hostile` tries 2,000 trees, the tests a sample. HOSTILE_SEED=17 tries one tree again.
"""

import os
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from fanfold.cli.main import COMMANDS, main
from tests.hostile.test_state import RECIPE, SCRIPT
from tests.hostile.trees import Maker
from tests.hostile.ways import ways
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

COUNT = int(os.environ.get("HOSTILE_TREES", "24"))
FIRST = int(os.environ.get("HOSTILE_SEED", "0"))
SEEDS = range(
    FIRST, FIRST + (1 if "HOSTILE_SEED" in os.environ and "HOSTILE_TREES" not in os.environ else COUNT)
)
LEFT_OUT = {"spawn", "serve", "mcp"}
"""What starts a process that outlives the command, or does not end by itself."""
MORE = (
    ["state", "remove", "--yes"],
    ["run", "one.yaml", "--script", "script.yaml", "--yes"],
    ["completion", "bash", "--words", "--", "inspect", ""],
)
ONCE = (83, 257, 1097, 1667, 1805)
"""Seeds that found something once: pipes in the index of searches, for the database, a base, a signal."""
STATUSES = {0, 1, 2, 3, 4, 5, 6, 7}


def commands() -> Iterator[list[str]]:
    for name in COMMANDS:
        if name == "chat":
            yield ["chat", "hello", "--script", "script.yaml"]
        elif name not in LEFT_OUT:
            yield from ways(name, {})
    yield from MORE


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which something ran: what is copied and then damaged."""
    folder = tmp_path_factory.mktemp("used") / "project"
    folder.mkdir()
    write_recipes(folder)
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert main(["run", "writes.yaml", "--script", "script.yaml", "--yes"]) == 0
        assert main(["query", "done"]) == 0
    finally:
        os.chdir(before)
    return folder


def write_recipes(folder: Path) -> None:
    (folder / "one.yaml").write_text(RECIPE)
    (folder / "script.yaml").write_text(SCRIPT)
    (folder / "a.txt").write_text("a")
    step = "{id: w, agent: worker, prompt: p, write_set: [out/**], merge: propose}"
    (folder / "writes.yaml").write_text(f"name: writes\nsteps:\n  - {step}\n")


@pytest.mark.parametrize("seed", [*SEEDS, *(seed for seed in ONCE if seed not in SEEDS)])
def test_every_command_holds(
    seed: int,
    used: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("CANARY")
    (outside / "folder").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FANFOLD_HOME", str(tmp_path / "home/.fanfold"))
    monkeypatch.delenv("FANFOLD_DEBUG", raising=False)
    project = tmp_path / "project"
    maker = Maker(seed, outside)
    if seed % 2:
        shutil.copytree(used, project, symlinks=True)
        monkeypatch.chdir(project)
        assert main(["state", "adopt", "--yes"]) == 0
        maker.damage(project / ".fanfold")
    else:
        project.mkdir()
        write_recipes(project)
        monkeypatch.chdir(project)
        maker.plant(project / ".fanfold")
    before = look(outside)
    for arguments in commands():
        status, said = within(PATIENCE_S, partial(main, arguments)), capsys.readouterr()
        told = f"seed {seed}: fanfold {' '.join(arguments)} ended with {status}: {said.err[-2000:]}"
        assert status in STATUSES, told
        assert "Traceback" not in said.err, told
        assert "CANARY" not in said.out + said.err, told
        assert look(outside) == before, told


def within(seconds: int, work: Callable[[], int]) -> int:
    """Do something that must not take longer: a pipe that nobody writes would keep it for ever."""

    def too_long(_signal: int, _frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(seconds)
    try:
        return work()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def look(outside: Path) -> list[tuple[str, int, int, bytes]]:
    """Everything outside, with modes and times of change."""
    found = []
    for path in sorted(outside.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found.append((str(path), status.st_mode, status.st_ctime_ns, content))
    return found
