"""Several processes, one file: killed and taken over at random, their steps lose no update.

Each step adds a line to the file by reading and replacing it, so two at once would lose one. As plain
processes, which see each other die, and in pid namespaces of their own, where only leases tell. A few
take-overs by default, 200 with `make kill-test` (KILL_TEST=all).
"""

from __future__ import annotations

import os
import random
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
from tests.kill.claimant import EXPIRY_S
from tests.kill.test_containers import HERE, UNSHARE, can_unshare
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

ALL = os.environ.get("KILL_TEST") == "all"
TAKE_OVERS = 200 if ALL else 3
PROCESSES = 3
STEPS = 60 if ALL else 8
"""Of a run: where many take-overs are wanted, few runs should end before."""
DEADLINE_S = PATIENCE_S + TAKE_OVERS * 10
DECLARED = "import fanfold\n\n@fanfold.function\ndef add(name): ...\n"


class Claimants:
    """Processes that work on the runs of the project; who ends is started again."""

    def __init__(self, folder: Path, apart: bool) -> None:
        self.project, self.file = folder / "project", folder / "project" / "lines.txt"
        self._errors = folder / "errors"
        self._command = [
            *(UNSHARE if apart else []),
            *(sys.executable, "-m", "tests.kill.claimant", str(self.project), str(self.file)),
        ]
        self._deadline = time.monotonic() + DEADLINE_S
        self._running = [self._start() for _ in range(PROCESSES)]

    def _start(self) -> subprocess.Popen[bytes]:
        with self._errors.open("ab") as errors:
            return subprocess.Popen(self._command, cwd=HERE, stderr=errors, start_new_session=True)

    def are_idle(self) -> bool:
        assert time.monotonic() < self._deadline, self._errors.read_text()[-5_000:]
        return all(one.poll() is not None for one in self._running)

    def start_again(self) -> None:
        self._running = [one if one.poll() is None else self._start() for one in self._running]

    def kill(self, number: int) -> None:
        self._running[number].kill()
        self._running[number].wait()

    def kill_all(self) -> None:
        for number in range(PROCESSES):
            self.kill(number)


def record_run(project: Path, number: int) -> str:
    """A run whose steps all change the one file, for whoever takes it."""
    step = {"handler": "add", "write_set": ["lines.txt"], "workspace_mode": "shared"}
    steps = [{"id": f"s{n}", **step, "inputs": {"name": f"r{number}-s{n}"}} for n in range(STEPS)]
    opened = wire(project)
    try:
        plan = opened.plan_of(Recipe(name="many", steps=steps))
        owned = create(opened, plan, {}, Options(permission="auto", max_concurrency=4))
        owned.let_go()
        return owned.tree.root.id
    finally:
        opened.close()


def taken(project: Path, roots: list[str]) -> int:
    """How often runs were taken over, as their leases count."""
    opened = wire(project, to_read=True)
    try:
        epochs = [max((event.epoch for event in opened.store.tree(root)), default=1) for root in roots]
    finally:
        opened.close()
    return sum(epochs) - 2 * len(roots)  # made once, taken up once


@pytest.mark.parametrize("apart", [False, True], ids=["processes", "containers"])
def test_no_update_is_lost_over_random_take_overs(tmp_path: Path, apart: bool):
    if apart and not can_unshare():
        pytest.skip("needs namespaces and mounts: make test-full on a Linux that allows them")
    project, chance = tmp_path / "project", random.Random(11)
    project.mkdir()
    (project / "work.py").write_text(DECLARED)
    (project / "lines.txt").write_text("")
    roots = [record_run(project, number) for number in range(PROCESSES)]
    claimants = Claimants(tmp_path, apart)
    try:
        while taken(project, roots) < TAKE_OVERS:
            if claimants.are_idle():
                roots += [record_run(project, len(roots) + one) for one in range(PROCESSES)]
            claimants.start_again()
            time.sleep(chance.uniform(0.3, 1.2 + EXPIRY_S * apart))
            claimants.kill(chance.randrange(PROCESSES))
        claimants.start_again()
        while not claimants.are_idle():
            time.sleep(0.05)
    finally:
        claimants.kill_all()
    after = wire(project)
    assert [after.resolve(root).status for root in roots] == ["completed"] * len(roots)
    assert [verify(after.store, root).violations for root in roots] == [[]] * len(roots)
    after.close()
    wanted = {f"r{number}-s{n}" for number in range(len(roots)) for n in range(STEPS)}
    assert wanted - set((project / "lines.txt").read_text().split()) == set(), "updates were lost"
