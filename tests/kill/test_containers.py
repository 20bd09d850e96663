"""Two containers, one project: stopped, killed and resumed at random, no effect begins under a lost lease.

The containers have pid and mount namespaces of their own, so neither can see whether the other's process
lives; only the lease tells. A few take-overs by default, 200 with `make kill-test` (KILL_TEST=all).
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fanfold.api.archives import verify
from fanfold.api.run_options import Options
from fanfold.api.start import create
from fanfold.language.builder import Recipe
from fanfold.wiring import wire
from tests.kill.container import EXPIRY_S
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

TAKE_OVERS = 200 if os.environ.get("KILL_TEST") == "all" else 6
STEPS = 60
FILES = 3_000
DEADLINE_S = PATIENCE_S + TAKE_OVERS * 10
HERE = Path(__file__).parent.parent.parent

UNSHARE = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc"]
if os.geteuid() != 0:
    UNSHARE += ["--user", "--map-root-user"]
AHEAD = ["--time", "--boottime", "5000"]
"""A container may have a boot clock of its own, too."""


def can_unshare(*more: str) -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, *more, "true"], capture_output=True, check=False).returncode == 0


class Containers:
    """Two processes with namespaces of their own that work on the project; who ends is started again."""

    def __init__(self, folder: Path) -> None:
        self.project, self.journal, self._errors = folder / "project", folder / "journal", folder / "errors"
        ahead = AHEAD if can_unshare(*AHEAD) else []
        self._commands = [
            [
                *UNSHARE,
                *more,
                sys.executable,
                "-m",
                "tests.kill.container",
                str(self.project),
                str(self.journal),
            ]
            for more in ([], ahead)
        ]
        self._deadline = time.monotonic() + DEADLINE_S
        self._running = [self._start(number) for number in range(2)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        with self._errors.open("ab") as errors:
            return subprocess.Popen(self._commands[number], cwd=HERE, stderr=errors, start_new_session=True)

    def are_idle(self) -> bool:
        """Whether both found nothing more to do."""
        assert time.monotonic() < self._deadline, self._errors.read_text()
        return all(one.poll() is not None for one in self._running)

    def start_again(self) -> None:
        for number, one in enumerate(self._running):
            if one.poll() is not None:
                self._running[number] = self._start(number)

    def kill(self, number: int) -> None:
        self._running[number].kill()
        self._running[number].wait()

    def signal(self, number: int, what: signal.Signals) -> None:
        """To the worker itself, whose number outside only the system knows."""
        outer = self._running[number].pid
        try:
            for pid in Path(f"/proc/{outer}/task/{outer}/children").read_text().split():
                os.kill(int(pid), what)
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has ended


DECLARED = "import fanfold\n\n@fanfold.function\ndef effect(): ...\n"
"""So that the recipe can be compiled; the containers register their own."""


def record_run(project: Path) -> str:
    """A run of many small effects, for whoever takes it."""
    # Each may write, so between the record of its start and its beginning the whole project is looked at.
    step = {"handler": "effect", "write_set": ["out/**"]}
    recipe = Recipe(name="many", steps=[{"id": f"s{n}", **step} for n in range(STEPS)])
    opened = wire(project)
    try:
        plan = opened.plan_of(recipe)
        owned = create(opened, plan, {}, Options(permission="auto", max_concurrency=2))
        owned.let_go()
        return owned.tree.root.id
    finally:
        opened.close()


@pytest.mark.skipif(
    not can_unshare(), reason="needs namespaces and mounts: make test-full on a Linux that allows them"
)
def test_no_effect_begins_under_a_lost_lease_over_random_take_overs(tmp_path: Path):
    project, chance = tmp_path / "project", random.Random(7)
    project.mkdir()
    (project / "work.py").write_text(DECLARED)
    for number in range(FILES):
        (project / f"{number}.txt").write_text("text")
    roots = [record_run(project)]
    containers = Containers(tmp_path)
    try:
        while taken(containers.journal) < TAKE_OVERS:
            if containers.are_idle():
                roots.append(record_run(project))
            containers.start_again()
            victim = chance.randrange(2)
            if chance.random() < 0.3:
                containers.kill(victim)
            else:
                containers.signal(victim, signal.SIGSTOP)
                time.sleep(chance.uniform(0, EXPIRY_S * 2.5))
                containers.signal(victim, signal.SIGCONT)
            time.sleep(chance.uniform(0, EXPIRY_S))
        containers.start_again()
        while not containers.are_idle():
            time.sleep(0.05)
    finally:
        containers.kill(0)
        containers.kill(1)
    assert begun_too_late(containers.journal) == []
    after = wire(project)
    assert [after.resolve(root).status for root in roots] == ["completed"] * len(roots)
    assert [verify(after.store, root).violations for root in roots] == [[]] * len(roots)
    after.close()


def taken(journal: Path) -> int:
    return journal.read_text().count(" took ") if journal.exists() else 0


def begun_too_late(journal: Path) -> list[str]:
    """Effects that began after another owner had taken the run."""
    lines = [line.split() for line in journal.read_text().splitlines()]
    took = {(root, int(epoch)): int(at) for at, what, epoch, root in lines if what == "took"}
    late = []
    for at, what, epoch, root in lines:
        later = [when for (run, number), when in took.items() if run == root and number > int(epoch)]
        if what == "began" and any(int(at) > when for when in later):
            late.append(f"{root}: {at} under epoch {epoch}, taken at {min(later)}")
    return late
