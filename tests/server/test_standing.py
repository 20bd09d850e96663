"""How runs stand: who drives them, and that nothing goes on in one that is paused, wherever it is shown."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.server.conftest import Server, lay_out, serving

pytestmark = pytest.mark.full

OUTER = "name: outer\nsteps: [{id: call, workflow: inner@1}]\n"
INNER = "name: inner\nversion: 1\nsteps: [{id: think, agent: explorer, prompt: Think}]\n"
NEVER = {"default": {"output": "x", "delay_ms": 3_600_000}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder, home = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("home")
    lay_out(folder)
    for name, text in (("outer", OUTER), ("inner", INNER)):
        (folder / ".fanfold" / "workflows" / f"{name}.yaml").write_text(text)
    with serving(folder, home) as serve:
        yield serve()


def test_what_runs_has_a_pulse_and_what_is_paused_stands_still(server: Server) -> None:
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
