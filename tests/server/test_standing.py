"""How runs stand: who drives them, and that nothing goes on in one that is paused, wherever it is shown."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.world import MODELS, Provider
from tests.provider import Call, Reply
from tests.server.conftest import Server, ended, lay_out, serving

pytestmark = pytest.mark.full

OUTER = "name: outer\nsteps: [{id: call, workflow: inner@1}]\n"
INNER = "name: inner\nversion: 1\nsteps: [{id: think, agent: explorer, prompt: Think}]\n"
NEVER = {"default": {"output": "x", "delay_ms": 3_600_000}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("project")
    lay_out(folder)
    for name, text in (("outer", OUTER), ("inner", INNER)):
        (folder / ".fanfold" / "workflows" / f"{name}.yaml").write_text(text)
    with serving(folder, home) as serve:
        yield serve()


def test_running_steps_pulse_and_paused_ones_stand_still(server: Server) -> None:
    assert server.get("/api/pulses") == {"items": []}
    run = server.post("/api/runs", {"recipe": "outer", "script": NEVER, "yes": True}, 201)["run_id"]
    while not (sessions := server.get("/api/agents")["sessions"]):
        pass
    [pulse] = server.get("/api/pulses")["items"]
    assert (pulse["run_id"], pulse["owner"]["alive"]) == (run, True)
    assert 0 <= pulse["heartbeat_age_ms"] < 3_600_000
    assert server.get(f"/api/runs/{run}/pulse")["run_id"] == run
    assert sessions[0]["run_id"] == run
    [row] = server.get("/api/runs", status="running")["items"]
    assert row["stopped_at"] is None
    [child] = server.get(f"/api/runs/{run}")["runs"]
    assert child["status"] == "running"

    server.post(f"/api/runs/{run}/pause", {})
    assert server.get("/api/pulses") == {"items": []}
    assert server.get("/api/agents")["sessions"] == []
    [row] = server.get("/api/runs", status="paused")["items"]
    assert (row["status"], row["ended_at"]) == ("paused", None)
    assert row["started_at"] < row["stopped_at"]
    below = server.get(f"/api/runs/{child['run_id']}/head")
    assert (below["status"], below["stopped_at"]) == ("paused", row["stopped_at"])
    [inspected] = server.get(f"/api/runs/{run}")["runs"]
    assert (inspected["status"], inspected["steps"]["think"]["status"]) == ("paused", "waiting")
    for path in ("think", "call%2Fthink"):  # as the run calls it, and as views of it do
        step = server.get(f"/api/runs/{child['run_id']}/steps/{path}")
        assert (step["tree_path"], step["root_run_id"]) == ("call/think", run)
        fork = {"from": path.replace("%2F", "/"), "dry_run": True}
        again = server.post(f"/api/runs/{child['run_id']}/fork", fork)["forecast"]["runs_again"]
        assert again == ["call/think"]
    compared = server.get(f"/api/compare/{run}/{run}")
    assert compared["a"]["stopped_at"] == row["stopped_at"]
    assert {side["status"] for step in compared["steps"] for side in (step["a"], step["b"])} == {"waiting"}
    server.post(f"/api/runs/{run}/cancel", {})
    assert server.get(f"/api/runs/{child['run_id']}/head")["status"] == "cancelled"


def test_a_run_whose_process_was_killed_is_stuck_though_nothing_was_recorded(server: Server) -> None:
    run = server.post("/api/runs", {"recipe": "outer", "script": NEVER, "yes": True}, 201)["run_id"]
    while not server.get("/api/agents")["sessions"]:
        pass
    assert server.get(f"/api/runs/{run}/pulse")["is_stuck"] is False
    owner = server.get(f"/api/runs/{run}/pulse")["owner"]["pid"]
    os.kill(owner, signal.SIGSTOP)  # from now on nothing is recorded, not even a sign of life
    assert server.get("/api/home")["needs"] == []
    os.kill(owner, signal.SIGKILL)
    while server.get(f"/api/runs/{run}/pulse")["owner"]["alive"]:
        pass
    assert server.get(f"/api/runs/{run}/pulse")["is_stuck"] is True
    while not (needs := server.get("/api/home")["needs"]):
        pass
    assert [(need["kind"], need["run_id"]) for need in needs] == [("stuck", run)]
    server.post(f"/api/runs/{run}/resume", {})
    while server.get(f"/api/runs/{run}/pulse")["is_stuck"]:
        pass
    server.post(f"/api/runs/{run}/cancel", {})
    assert server.get("/api/home")["needs"] == []


def test_home_names_the_question_of_an_agent_and_the_item_that_failed(
    server: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = server.folder / ".fanfold" / "workflows"
    (folder / "asks.yaml").write_text(
        "name: asks\nsteps: [{id: work, agent: worker, may_ask: true, write_set: [a.txt], prompt: Go}]\n"
    )
    (folder / "items.yaml").write_text(
        "name: items\nsteps:\n"
        "  - {id: each, agent: explorer, for_each: '[1, 2]', on_failure: inline, prompt: '{{item}}'}\n"
        "  - {id: other, agent: explorer, prompt: x}\n"
    )
    failure = {"fail": {"class": "agent", "message": "it cannot be read"}}
    (server.folder / "items.json").write_text(json.dumps({"default": "fine", "steps": {"each[1]": failure}}))
    ended(server.folder, home, "run", "items", "--script", "items.json", "--yes")
    asks = Reply(calls=(Call("ask_user", {"question": "Which port?"}),))
    with Provider(lambda _asked: asks) as provider:
        for name, value in {**provider.environment, "FANFOLD_MODEL": MODELS["chat"]}.items():
            monkeypatch.setenv(name, value)
        ended(server.folder, home, "run", "asks", "--yes")
    needs = {need["recipe"]: need for need in server.get("/api/home")["needs"]}
    asked, failed = needs["asks"], needs["items"]
    assert (asked["kind"], asked["state"], asked["step"]) == ("question", "waits for your answer", "work")
    assert "Which port?" in asked["message"]
    assert (failed["kind"], failed["step"], failed["message"]) == ("failed", "each[1]", "it cannot be read")
