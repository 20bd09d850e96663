"""Killed with SIGKILL at a commit, resumed, killed again: nothing is lost and nothing finished runs twice.

By default a sample of boundaries, other ones for each kind (`tests/sampling.py`); `make kill-test`
(KILL_TEST=all) takes every one, before and after the commit, with one slot (every event boundary is a commit
of its own) and with eight (group commits).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fanfold.api.archives import verify
from fanfold.api.run_documents import run_document
from fanfold.engine.run_tree import RunTree
from fanfold.kernel.state import COMPLETED
from tests.dying_store import KeyedStore, claimed
from tests.sampling import spread
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

HERE = Path(__file__).parent
WHOLE = os.environ.get("KILL_TEST") == "all"
SAMPLES = 3


class Campaign:
    """A project copied to a folder of its own, and the processes that work on it."""

    def __init__(self, folder: Path, slots: int) -> None:
        self.folder = folder / "project"
        shutil.copytree(HERE / "project", self.folder)
        claimed(self.folder)
        self.calls_file = folder / "calls"
        self.calls_file.touch()
        self.slots = slots
        self.root: str | None = None

    def process(self, kill_at: int, when: str) -> str:
        """One owner, until it is killed or done; the last line it printed."""
        command = [sys.executable, "-m", "tests.kill.driver", str(self.folder), str(kill_at), when]
        environment = {
            **os.environ,
            "FANFOLD_SCRIPT_CALLS": str(self.calls_file),
            "KILL_TEST_SLOTS": str(self.slots),
        }
        done = subprocess.run(
            [*command, *([self.root] if self.root else [])],
            env=environment,
            cwd=HERE.parent.parent,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        expected = (0, -signal.SIGKILL) if kill_at else (0,)
        assert done.returncode in expected, done.stderr
        lines = done.stdout.split("\n")
        if lines[0]:
            self.root = lines[0]
        return lines[1] if len(lines) > 2 else ""

    def tree(self) -> RunTree | None:
        store = KeyedStore(self.folder / ".fanfold")
        try:
            return RunTree.load(store, self.root) if self.root and store.head(self.root) else None
        finally:
            store.close()

    def completed(self) -> set[str]:
        tree = self.tree()
        if tree is None:
            return set()
        nodes = (node for run in tree.state.runs.values() for node in run.nodes.values())
        return {node.run.tree_path(node.path) for node in nodes if node.status == COMPLETED}

    def calls(self) -> list[str]:
        return [line.split()[0] for line in self.calls_file.read_text().splitlines()]

    def document(self) -> Any:
        store = KeyedStore(self.folder / ".fanfold")
        try:
            assert self.root is not None
            return without_chance(msgspec.to_builtins(run_document(RunTree.load(store, self.root))))
        finally:
            store.close()

    def check_end(self) -> None:
        store = KeyedStore(self.folder / ".fanfold")
        try:
            assert self.root is not None
            assert verify(store, self.root).violations == []
        finally:
            store.close()
        assert left_behind(self.folder) == []


def without_chance(document: Any) -> Any:
    """The result without ids and times, which differ from run to run."""
    kept = {key: document[key] for key in ("status", "output", "error")}
    kept["steps"] = {path: (s["status"], s["output"], s["attempts"]) for path, s in document["steps"].items()}
    kept["children"] = len(document["children"])
    return json.loads(json.dumps(kept))


def left_behind(folder: Path) -> list[str]:
    """Processes that still work in the project."""
    found = []
    for entry in Path("/proc").iterdir() if Path("/proc").exists() else ():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in command:
                found.append(command.decode(errors="replace"))
    return found


@cache
def undisturbed(slots: int, base: Path) -> tuple[Any, int]:
    """The result of a run nobody kills, and the number of its commits."""
    folder = base / f"undisturbed-{slots}"
    folder.mkdir(parents=True)
    campaign = Campaign(folder, slots)
    commits = int(campaign.process(0, "after").split()[1])
    campaign.check_end()
    return campaign.document(), commits


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kill")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("slots", [1, 8])
def test_a_run_killed_at_any_commit_ends_as_if_nothing_had_happened(
    slots: int, when: str, base: Path, tmp_path: Path
) -> None:
    expected, commits = undisturbed(slots, base)
    boundaries = range(1, commits + 1) if WHOLE else spread(SAMPLES, commits, slots, when)
    for boundary in boundaries:
        folder = tmp_path / str(boundary)
        folder.mkdir()
        campaign = Campaign(folder, slots)
        campaign.process(boundary, when)
        finished, asked = campaign.completed(), len(campaign.calls())
        campaign.process(0, when)
        assert campaign.document() == expected, f"killed {when} commit {boundary}"
        again = finished & set(campaign.calls()[asked:])
        assert not again, f"killed {when} commit {boundary}: ran again: {again}"
        campaign.check_end()
        shutil.rmtree(folder)


@pytest.mark.parametrize("slots", [1, 8])
def test_a_run_whose_every_owner_is_killed_still_gets_there(slots: int, base: Path, tmp_path: Path) -> None:
    """Each process dies at its third commit, the resuming ones too, until one finds nothing to do."""
    expected, commits = undisturbed(slots, base)
    campaign = Campaign(tmp_path, slots)
    step = 3 if WHOLE else max(3, commits // 5)
    for owner in range(2 * commits):
        before = (campaign.completed(), len(campaign.calls())) if WHOLE or owner % 5 == 0 else (set(), 0)
        if campaign.process(step, "after" if owner % 2 else "before"):
            break
        assert not before[0] & set(campaign.calls()[before[1] :])
    assert campaign.document() == expected
    campaign.check_end()
