"""The owner of an open run killed at a commit: no request is lost, nothing is merged twice, and nobody is
paid again who was not asked for.

By default a sample of boundaries; `make kill-test` (KILL_TEST=all) takes every one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from msgspec import to_builtins

from fanfold.api.agents import find_role
from fanfold.api.archives import verify
from fanfold.api.project import Project
from fanfold.api.run_options import Options
from fanfold.api.start import create_open, freeze
from fanfold.api.subagents import Task, list_subagents, make_step
from fanfold.engine.requests import AddRequest, InputRequest, ResumeRequest, RunRequest, to_row
from fanfold.kernel.plan import Plan
from fanfold.wiring import wire
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

HERE = Path(__file__).parent
WHOLE = os.environ.get("KILL_TEST") == "all"
SAMPLES = 4
SCRIPT = """
steps:
  a: {output: one, writes: {"a.txt": "1\\n"}}
  "a#2": {output: two, writes: {"a.txt": "2\\n"}}
  b: looked
  "b#2": looked again
"""


class Children:
    """A project, the requests that people left in it, and the processes that act on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.folder.mkdir()
        self.calls = folder / "calls"
        self.calls.touch()
        project = wire(self.folder)
        create_open(project, "hand")
        for name, role in (("a", "worker"), ("b", "explorer")):
            self.ask(project, self.addition(project, name, role))
        for name in ("a", "b"):
            self.ask(project, InputRequest(child=name, text="and now?", key=f"more {name}"))
        project.close()

    def addition(self, project: Project, name: str, role: str) -> AddRequest:
        step = make_step(Task(role=role, task="work", name=name), find_role(project.roles, role))
        plan = Plan(name=name, steps=(step,))
        frozen, _ = freeze(project, plan, Options(permission="auto", script=SCRIPT))
        return AddRequest(step=step, frozen=to_builtins(frozen), key=f"add {name}")

    def ask(self, project: Project, request: RunRequest) -> None:
        project.store.request(to_row("hand", "hand", request, 0))

    def own(self, kill_at: int = 0, when: str = "after") -> int:
        """One owner, until it is killed or has nothing to do; its commits."""
        command = [sys.executable, "-m", "tests.kill.open_run_owner", str(self.folder), str(kill_at), when]
        environment = {**os.environ, "FANFOLD_SCRIPT_CALLS": str(self.calls)}
        done = subprocess.run(
            command, env=environment, cwd=HERE.parent.parent, capture_output=True, text=True, check=False,
            timeout=PATIENCE_S,
        )  # fmt: skip
        assert done.returncode in ((0, -signal.SIGKILL) if kill_at else (0,)), done.stderr
        return int(done.stdout) if done.returncode == 0 else 0

    def resume_all(self) -> list[str]:
        """Ask for everybody whose process died; who that was."""
        project = wire(self.folder)
        try:
            lost = [child.id for child in list_subagents(project) if child.status == "detached"]
            for name in lost:
                self.ask(project, ResumeRequest(name))
            return lost
        finally:
            project.close()

    def check_end(self) -> None:
        project = wire(self.folder)
        try:
            found = [(one.id, one.status, one.turns, one.summary) for one in list_subagents(project)]
            assert found == [("a", "completed", 2, "two"), ("b", "completed", 2, "looked again")]
            assert verify(project.store, "hand").violations == []
            merges = [one for one in project.store.log("hand") if one.data.get("what") == "merge"]
            assert [(one.data["step"], len(one.data["changes"])) for one in merges] == [("a", 1), ("a#2", 1)]
        finally:
            project.close()
        assert (self.folder / "a.txt").read_text() == "2\n"


@cache
def commits_of_a_whole_life() -> int:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        return Children(Path(folder)).own()


def boundaries() -> list[tuple[int, str]]:
    every = [(kill_at, when) for kill_at in range(1, 40) for when in ("before", "after")]
    return every if WHOLE else [every[i * 7 % 20] for i in range(SAMPLES)]


@pytest.mark.parametrize(("kill_at", "when"), boundaries())
def test_an_open_run_whose_owner_is_killed_loses_no_request_and_starts_none_unrequested(
    tmp_path, kill_at, when
):
    if kill_at > commits_of_a_whole_life():
        return  # the run has fewer commits
    children = Children(tmp_path)
    children.own(kill_at, when)
    before = children.calls.read_text()
    detached = children.resume_all() if kill_at % 2 else []
    children.own()
    if not detached:
        again = children.calls.read_text()[len(before) :].split("\n")
        assert all(line.split()[2] == "1" for line in again if line), "an execution was repeated unasked"
        children.resume_all()
        children.own()
    children.check_end()
