"""Whatever stands in the place of one thing below `.fanfold`, nothing outside is touched and nobody waits.

State that was ours is altered in one place at a time, by each kind of thing that leads elsewhere or waits:
random trees rarely hit the one place that a command writes to. Here one alteration in sixteen is tried, in
`make hostile` all of them.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest

from tests.hostile.test_trees import STATUSES, look
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

RECIPE = (
    "name: writes\nsteps:\n"
    "  - {id: w, agent: worker, prompt: p, write_set: ['**/*']}\n"
    "  - {id: x, agent: worker, prompt: p, write_set: ['**/*'], merge: propose, depends_on: w}\n"
)
SCRIPT = (
    "steps:\n"
    "  w: {output: done, writes: {a.txt: one, b/c.txt: two}}\n"
    "  x: {output: done, writes: {a.txt: three}}\n"
)
RUN = ["run", "writes.yaml", "--script", "script.yaml", "--yes"]
COMMANDS = (RUN, ["apply", "last", "x"], ["query", "done"], ["undo", "last"], ["gc"], ["inspect", "last"])
PROGRAM = (
    "import json, sys\nfrom fanfold.cli.main import main\n"
    "print('statuses', json.dumps([main(one) for one in json.loads(sys.argv[1])]))\n"
)
SAMPLED = 16


def work(project: Path, *commands: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(project.parent / "home"), "LC_ALL": "C.UTF-8"}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project after some work."""
    project = tmp_path_factory.mktemp("used") / "project"
    project.mkdir()
    for name, text in {"writes.yaml": RECIPE, "script.yaml": SCRIPT, "a.txt": "a\n"}.items():
        (project / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    done = work(project, RUN, ["query", "done"], RUN)
    assert "statuses [0, 0, 0]" in done.stdout, done.stderr
    return project


def places(used: Path) -> list[str]:
    """What there is below `.fanfold`; of things whose names differ in a number, one."""
    own = used / ".fanfold"
    found: dict[str, str] = {}
    for path in sorted(own.rglob("*")):
        name = str(path.relative_to(own))
        if path.name != "state.seal" and "/tree/" not in name and "trash/" not in name:
            found.setdefault(re.sub(r"[0-9a-f]{6,}|[0-9a-z]{12}|\d+", "#", name), name)
    return list(found.values())


def to_a_file(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "secret")


def to_a_folder(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "folder")


def to_nothing(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "new")


def pipe(path: Path, _outside: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("alter", [to_a_file, to_a_folder, to_nothing, pipe])
def test_nothing_outside_is_touched(used: Path, tmp_path: Path, alter: Callable[[Path, Path], None]):
    found = places(used)
    chosen = found if os.environ.get("HOSTILE") == "all" else [one for one in found if is_sampled(one, alter)]
    for number, place in enumerate(chosen or found[:1]):  # a sample of none would show nothing
        try_place(used, tmp_path / str(number), place, alter)


def is_sampled(place: str, alter: Callable[[Path, Path], None]) -> bool:
    number = crc32(f"{place.rsplit('/', maxsplit=1)[-1][:4]} {alter.__name__}".encode()) % SAMPLED
    return number == int(os.environ.get("HOSTILE_SEED", "0")) % SAMPLED


def try_place(used: Path, top: Path, place: str, alter: Callable[[Path, Path], None]) -> None:
    project, outside = top / "project", top / "outside"
    shutil.copytree(used.parent, top, symlinks=True)
    assert "statuses [0]" in work(project, ["state", "adopt", "--yes"]).stdout
    for name in ("secret", "folder/file", "folder/inner/file"):
        (outside / name).parent.mkdir(parents=True, exist_ok=True)
        (outside / name).write_text("CANARY")
    file = project / ".fanfold" / place
    if not os.path.lexists(file):
        return  # adopting made it anew
    if file.is_dir() and not file.is_symlink():
        shutil.rmtree(file)
    else:
        file.unlink()
    alter(file, outside)
    before = look(outside)
    said = work(project, *COMMANDS)
    told = f"{place}, {alter.__name__}: {said.stdout[-500:]}{said.stderr[-2000:]}"
    assert look(outside) == before, told
    statuses = re.search(r"statuses (.*)", said.stdout)
    assert statuses is not None, told
    assert set(json.loads(statuses[1])) <= STATUSES, told
    assert "Traceback" not in said.stderr, told
    assert "CANARY" not in said.stdout + said.stderr, told
    shutil.rmtree(top)
