"""Usage limits and outages without a person: a run continues at the reset, whichever process lives then."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.cli.agent_world import SUCCESS, AgentWorld
from tests.e2e.world import MODELS, Project, Provider, clean_environment
from tests.provider import Fault, RecordedRequest, Reply
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

RESETS_S = 12
"""How far away the reset is; a limit is never tried again within ten seconds."""


class LimitedWorld:
    """A project whose agent program is at its usage limit, and processes of the command line in it."""

    def __init__(self, agents: AgentWorld) -> None:
        self.agents = agents
        self.started: list[subprocess.Popen[bytes]] = []
        agents.profile("claude", "credentials = []\n")
        agents.role("helper", "claude", 'sandbox_mode = "read-only"')

    def limit(self) -> None:
        """Have the program report its limit."""
        info = {"status": "rejected", "resetsAt": int(time.time()) + RESETS_S}
        lines = [
            {"type": "rate_limit_event", "rate_limit_info": info},
            {"type": "result", "subtype": "success", "is_error": True, "result": "You've hit your limit"},
        ]
        self.agents.install("claude", {"lines": [json.dumps(line) for line in lines], "exit": 1})

    def lift(self) -> None:
        self.agents.install("claude", {"says": SUCCESS["claude"]})

    def recipe(self, items: int, **limits: int) -> str:
        each = {"id": "each", "agent": "helper", "for_each": str(list(range(items))), "prompt": "{{item}}"}
        return self.agents.recipe(each, limits=limits)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "HOME": str(self.agents.home),
            "FANFOLD_HOME": str(self.agents.home / ".fanfold"),
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "fanfold.cli.main", *arguments],
            cwd=self.agents.project,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.started.append(process)
        return process

    def __call__(self, *arguments: str) -> Any:
        out, _ = self.start(*arguments, "--json").communicate(timeout=PATIENCE_S)
        read = [json.loads(line) for line in out.splitlines()]
        return read if arguments[0] == "logs" else read[0] if read else None

    def until(self, status: str) -> dict[str, Any]:
        """The run, once it has this status."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            seen = self("inspect", "last")
            if seen is not None and seen.get("status") == status:
                return seen  # type: ignore[no-any-return]  # it is JSON
            assert time.monotonic() < deadline, seen
            time.sleep(0.2)

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def world(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LimitedWorld]:
    made = LimitedWorld(AgentWorld(project, tmp_path / "home", monkeypatch))
    yield made
    made.end()


SURVIVORS: dict[str, Callable[[LimitedWorld], object]] = {
    "serve": lambda world: world.start("serve", "--port", "0"),
    "resume --wait": lambda world: world.start("resume", "last", "--wait"),
}


@pytest.mark.parametrize("survivor", SURVIVORS)
def test_a_killed_run_continues_at_the_reset_while_only_another_command_is_alive(
    world: LimitedWorld, survivor: str
) -> None:
    world.limit()
    owner = world.start("run", world.recipe(3, max_concurrency=1), "--yes")
    (wait,) = world.until("waiting")["waits"]
    owner.kill()
    owner.wait()
    world.lift()
    SURVIVORS[survivor](world)
    done = world.until("completed")
    reset = datetime.fromisoformat(wait["until"]).timestamp()
    events = world("logs", "last")
    started = [event["at"] / 1_000 for event in events if event.get("data", {}).get("status") == "started"]
    assert len(started) == 4, events
    assert started[0] < reset <= min(started[1:])
    assert done["usage"]["agents"] == 3
    assert len(world.agents.calls()) == 4


def test_a_run_that_was_killed_with_a_wait_and_a_running_step_continues_at_the_reset(
    world: LimitedWorld,
) -> None:
    world.limit()
    world.agents.profile("codex", "credentials = []\n")
    world.agents.role("slow", "codex", 'sandbox_mode = "read-only"')
    world.agents.install("codex", {"lines": [], "then": "hang"})
    steps = ({"id": step, "agent": role, "prompt": step} for step, role in (("a", "helper"), ("b", "slow")))
    owner = world.start("run", world.agents.recipe(*steps), "--yes")
    while not world.until("running")["waits"] or len(world.agents.calls()) < 2:
        time.sleep(0.2)
    owner.kill()
    owner.wait()
    world.lift()
    world.agents.install("codex", {"says": SUCCESS["codex"]})
    world.start("serve", "--port", "0")
    assert world.until("completed")["usage"]["agents"] == 2


def test_a_limit_is_bypassed_by_the_other_back_ends_of_the_role(world: LimitedWorld) -> None:
    world.agents.profile("codex", "credentials = []\n")
    world.agents.role("helper", "claude", 'sandbox_mode = "read-only"\nfallback_backends = ["codex"]')
    world.limit()
    world.agents.install("codex", {"says": SUCCESS["codex"]})
    done = world("run", world.recipe(3, max_concurrency=1), "--yes")
    assert done["status"] == "completed", done
    sessions = world("transcript", "last", "each[0]")
    begun = [entry["name"].split()[0] for entry in sessions["entries"] if entry["kind"] == "agent"]
    assert begun == ["claude", "codex"]
    assert len(world.agents.calls()) == 4, "one agent met the limit, and three others did the work"


def test_items_that_wait_for_a_provider_are_explained_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    project = Project(tmp_path / "project", clean_environment(tmp_path / "home"))
    each = '{id: each, for_each: "[1,2,3]", agent: explorer, prompt: Look., retry: {attempts: 1}}'
    project.file("r.yaml").write_text(f"name: r\nsteps: [{each}]\n")
    with Provider(lambda _: Fault("overloaded", retry_after_s=0)) as provider:
        project.environment |= provider.environment | {"FANFOLD_MODEL": MODELS["chat"]}
        process = project.start("run", "r.yaml", "--yes")
        try:
            deadline = time.monotonic() + PATIENCE_S
            one_line = "  each[0] … each[2] (3 steps): each waits: openai is not available"
            while one_line not in (explained := project("explain", "last").out):
                assert time.monotonic() < deadline, explained
                time.sleep(0.2)
        finally:
            process.kill()
            process.communicate()


def test_a_subagent_waits_for_a_provider_that_is_out_and_completes(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    project = Project(tmp_path / "project", clean_environment(tmp_path / "home"))
    is_out = True

    def script(_: RecordedRequest) -> Reply | Fault:
        return Fault("overloaded", retry_after_s=0) if is_out else Reply(text="back again")

    with Provider(script) as provider:
        project.environment |= provider.environment | {"FANFOLD_MODEL": MODELS["chat"]}
        assert project("spawn", "explorer", "Look around.", "--yes").status == 0
        deadline = time.monotonic() + PATIENCE_S
        while "waits: openai is not available" not in (said := project("explain", "hand").out):
            assert time.monotonic() < deadline, said
            time.sleep(0.2)
        is_out = False
        done = project("wait", "--json")
    assert done.status == 0, done.err
    assert "back again" in done.out
    assert project("verify", "--all").status == 0
