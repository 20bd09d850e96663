"""Starting runs over HTTP, and everything that is done to them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.server.conftest import Serve, Server, lay_out, serving
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

SCRIPT = {
    "default": {"output": "found by {{step}}", "usage": {"input_tokens": 3, "output_tokens": 4}},
    "steps": {"note": {"output": "noted", "writes": {"n.txt": "new\n"}}},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("project")
    lay_out(folder)
    with serving(folder, tmp_path_factory.mktemp("home")) as serve:
        yield serve()


def start(server: Server, **more: Any) -> str:
    body = {"recipe": "team", "script": SCRIPT, "yes": True, **more}
    return str(server.post("/api/runs", body, 201)["run_id"])


def wait_until(server: Server, run: str, *statuses: str) -> Any:
    """The head of a run once it stands so; its own stream says when to look again."""
    deadline = time.monotonic() + PATIENCE_S
    with server.client.stream("GET", "/api/stream") as stream:
        lines = stream.iter_lines()
        while time.monotonic() < deadline:
            head = server.get(f"/api/runs/{run}/head")
            if head["status"] in statuses:
                return head
            next(lines)
    raise AssertionError(f"{run} never was {statuses}")


@pytest.fixture
def waiting(server: Server) -> str:
    """A run that waits for its approval."""
    run = start(server)
    wait_until(server, run, "waiting")
    return run


def test_a_run_is_started_approved_and_seen_through_to_its_end(server: Server, waiting: str) -> None:
    asked = next(one for one in server.get("/api/approvals")["items"] if one["run_id"] == waiting)
    assert (asked["message"], asked["shown"]) == ("Good?", "noted")
    assert [one["path"] for one in asked["next"]] == ["done"]
    path = f"/api/runs/{waiting}/approvals/ok"
    said = server.post(path, {"decision": "approve", "seen": asked["seen"], "comment": "fine"})
    assert said["decision"] == "approve"
    wait_until(server, waiting, "completed")
    done = server.get(f"/api/runs/{waiting}")
    assert done["steps"]["ok"]["output"]["comment"] == "fine"
    assert (server.folder / "n.txt").read_text() == "new\n"
    assert server.client.post(path, json={"decision": "approve", "seen": asked["seen"]}).status_code == 409


def test_an_answer_to_something_else_than_was_seen_is_refused(server: Server, waiting: str) -> None:
    path = f"/api/runs/{waiting}/approvals/ok"
    refused = server.client.post(path, json={"decision": "approve", "seen": "0" * 32})
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "approval.changed"
    assert server.get(f"/api/runs/{waiting}/head")["status"] == "waiting"


def test_effects_of_a_recipe_that_need_permission_are_listed(server: Server) -> None:
    refused = server.client.post("/api/runs", json={"recipe": "team", "script": SCRIPT})
    assert refused.status_code == 403
    assert refused.json()["error"]["details"]["needs"] == ["note writes n.txt"]


def test_a_run_is_cancelled_and_cancelling_it_again_says_so(server: Server, waiting: str) -> None:
    assert server.post(f"/api/runs/{waiting}/cancel", {})["status"] == "cancelled"
    assert server.post(f"/api/runs/{waiting}/cancel", {})["status"] == "cancelled"
    assert server.client.post(f"/api/runs/{waiting}/pause", json={}).status_code == 409
    assert server.client.post(f"/api/runs/{waiting}/resume", json={}).status_code == 409


def test_a_run_is_paused_and_continues(server: Server, waiting: str) -> None:
    assert server.post(f"/api/runs/{waiting}/pause", {})["status"] == "paused"
    needs = [one for one in server.get("/api/home")["needs"] if one["run_id"] == waiting]
    assert [(one["kind"], one["message"]) for one in needs] == [("paused", "a person asked for it")]
    assert server.post(f"/api/runs/{waiting}/resume", {})["ok"]
    wait_until(server, waiting, "waiting")


def test_a_fork_is_forecast_before_it_is_made(server: Server, waiting: str) -> None:
    said = server.post(f"/api/runs/{waiting}/fork", {"from": "note", "dry_run": True})
    assert said["run_id"] is None
    assert said["forecast"]["reuses"] == ["look[0]", "look[1]", "look[2]"]
    assert "note" in said["forecast"]["runs_again"]
    made = server.post(f"/api/runs/{waiting}/fork", {"from": "note", "yes": True})
    wait_until(server, made["run_id"], "waiting")
    compared = server.get(f"/api/compare/{waiting}/{made['run_id']}")
    assert [step["same"] for step in compared["steps"]][:4] == [True] * 4
    row = server.get("/api/runs", q=made["run_id"])["items"][0]
    assert row["forked_from"] == waiting
    script = {"default": "others", "steps": {"note": {"output": "ours", "writes": {"n.txt": "ours\n"}}}}
    body = {"from": "note", "yes": True, "script": script}
    made = server.post(f"/api/runs/{waiting}/fork", body)
    wait_until(server, made["run_id"], "waiting")
    assert server.get(f"/api/runs/{made['run_id']}")["steps"]["note"]["output"] == "ours"


def test_failed_steps_run_again(server: Server) -> None:
    broken = {**SCRIPT, "steps": {"note": {"fail": {"class": "agent", "message": "no"}}}}
    run = start(server, script=broken)
    wait_until(server, run, "partial", "failed")
    assert run in [one["run_id"] for one in server.get("/api/home")["needs"] if one["kind"] == "failed"]
    again = server.post(f"/api/runs/{run}/retry", {"script": SCRIPT, "yes": True})
    assert again["forecast"]["reuses"] == ["look[0]", "look[1]", "look[2]"]
    wait_until(server, again["run_id"], "waiting")
    assert run not in [one["run_id"] for one in server.get("/api/home")["needs"] if one["kind"] == "failed"]


def test_merges_of_a_run_are_undone(server: Server) -> None:
    note = {"output": "noted", "writes": {"n.txt": "to be undone\n"}}
    run = start(server, script={**SCRIPT, "steps": {"note": note}})
    wait_until(server, run, "waiting")
    assert (server.folder / "n.txt").read_text() == "to be undone\n"
    assert server.client.post(f"/api/runs/{run}/undo", json={}).status_code == 409
    server.post(f"/api/runs/{run}/cancel", {})
    foretold = server.post(f"/api/runs/{run}/undo", {"dry_run": True})
    assert [one["path"] for one in foretold["changes"]] == ["n.txt"]
    server.post(f"/api/runs/{run}/undo", {})
    left = server.folder / "n.txt"
    assert not left.exists() or left.read_text() != "to be undone\n"


def test_a_request_that_is_sent_again_with_its_key_is_not_done_twice(server: Server) -> None:
    body = {"recipe": "team", "script": SCRIPT, "yes": True}
    first = server.client.post("/api/runs", json=body, headers={"Idempotency-Key": "k1"})
    again = server.client.post("/api/runs", json=body, headers={"Idempotency-Key": "k1"})
    assert first.status_code == again.status_code == 201
    assert first.json() == again.json()
    assert again.headers["idempotency-replayed"] == "true"
    other = server.client.post("/api/runs", json={**body, "yes": False}, headers={"Idempotency-Key": "k1"})
    assert other.status_code == 422
    assert (other.json()["error"]["code"], other.json()["diagnostics"]) == ("idempotency.other_request", [])
    failed = server.client.post("/api/runs", json={"recipe": "no"}, headers={"Idempotency-Key": "k2"})
    assert failed.status_code == 404
    assert server.client.post("/api/runs", json=body, headers={"Idempotency-Key": "k2"}).status_code == 201


def test_a_dry_run_writes_nothing_and_names_missing_inputs(server: Server) -> None:
    before = server.get("/api/runs")["items"][0]["run_id"]
    said = server.post("/api/recipes/team/dry-run", {"scripted": True})
    assert said["would_run"]
    assert said["critical_path"] == ["look[0]", "note", "ok", "done"]
    missing = server.post("/api/recipes/research-and-brief/dry-run", {"scripted": True})
    assert not missing["would_run"]
    assert server.get("/api/runs")["items"][0]["run_id"] == before


def test_a_step_is_shown_with_where_its_prompt_comes_from(server: Server) -> None:
    note = {"output": "noted", "writes": {"n.txt": "another\n"}}
    waiting = start(server, script={**SCRIPT, "steps": {"note": note}})
    wait_until(server, waiting, "waiting")
    page = server.get(f"/api/runs/{waiting}/steps/{quote('look[1]', safe='')}")
    prompt = page["prompt"]
    assert prompt["text"] == "Look at b of owls"
    parts = {part["source"]: prompt["text"][part["from"] : part["to"]] for part in prompt["parts"]}
    assert parts == {"item": "b", "inputs.topic": "owls"}
    assert page["tries"][0]["status"] == "completed"
    written = server.get(f"/api/runs/{waiting}/steps/note")
    assert written["prompt"]["parts"][0]["step"] == "look"
    assert [one["path"] for one in written["files"][0]["changes"]] == ["n.txt"]
    told = server.get(f"/api/runs/{waiting}/steps/note/transcript")
    assert told["entries"][0]["text"] == written["prompt"]["text"]
    assert server.get(f"/api/agents/{told['session_id']}")["entries"] == told["entries"]


def test_recipes_are_tried_and_kept_and_not_written_over_unseen(server: Server) -> None:
    text = "name: fresh\nsteps: [{id: a, agent: explorer, prompt: x, depends_on: [b]}]\n"
    tried = server.post("/api/check", {"text": text, "name": "fresh"})
    assert not tried["ok"]
    assert tried["diagnostics"][0]["code"] == "recipe.unknown_step"
    put = {"text": text, "seen": None}
    refused = server.client.put("/api/recipes/fresh", json=put)
    assert refused.status_code == 422
    said = refused.json()
    assert (said["ok"], said["diagnostics"]) == (False, tried["diagnostics"])
    assert said["error"]["code"] == said["diagnostics"][0]["code"]
    good = {"text": text.replace(", depends_on: [b]", ""), "seen": None}
    kept = server.client.put("/api/recipes/fresh", json=good)
    assert kept.status_code == 200, kept.text
    assert server.client.put("/api/recipes/fresh", json=good).status_code == 409
    digest = kept.json()["digest"]
    assert server.client.put("/api/recipes/fresh", json={**good, "seen": digest}).status_code == 200


def test_the_rest_of_what_can_be_looked_at(server: Server, waiting: str) -> None:
    run = f"/api/runs/{waiting}"
    assert server.get(f"{run}/explain")["reason"] == "approval"
    assert server.get(f"{run}/steps/done/explain")["blocked_by"] == ["ok"]
    assert server.get(f"{run}/cost")["total"]["steps"] == 4
    assert server.get(f"{run}/table")["rows"][0]["path"] == "look"
    assert server.get(f"{run}/timeline")["rows"]
    assert server.get(f"{run}/verify")["ok"]
    assert server.get(f"/api/whatif/{waiting}", max_concurrency=1)["max_concurrency"]["asked"] == 1
    assert server.client.get(f"{run}/report").text.startswith("# team: waiting")
    assert server.get("/api/search", q="found", run=waiting)["hits"]
    exported = server.client.get(f"{run}/export")
    assert exported.headers["content-disposition"] == 'attachment; filename="run.html"'
    assert exported.text.startswith("<!doctype html>")
    assert server.get("/api/home")["needs"]
    assert "explorer" in [role["name"] for role in server.get("/api/agents")["roles"]["roles"]]
    assert server.get("/api/system")["version"]
    spelled = server.post("/api/copy", {"action": "approve", "run": waiting, "step": "ok"})
    assert spelled["cli"] == f"fanfold approve {waiting} ok"
    asked = server.post("/api/copy", {"action": "whatif", "run": waiting})
    assert asked["cli"] == f"fanfold whatif {waiting} --max-concurrency 8"


def test_a_copied_command_runs_no_code_inside_a_name(server: Server) -> None:
    name = "a $(touch owned) `b` 'c'"
    for action in ("fork", "transcript"):
        spelled = server.post("/api/copy", {"action": action, "run": "r", "step": name})
        for words in (spelled["cli"], spelled["http"]):
            said = subprocess.run(
                ["sh", "-c", f'fanfold() {{ printf "%s\\n" "$@"; }}; curl() {{ fanfold "$@"; }}; {words}'],
                cwd=server.folder,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            assert "$(touch owned)" in said or "%24%28touch" in said, words
    assert not (server.folder / "owned").exists()


def test_runs_of_dead_processes_continue_on_request(serve: Serve, folder: Path, home: Path) -> None:
    first = serve()
    slow = {"default": {"output": "x", "delay_ms": 600_000}, "steps": {}}
    run = start(first, script=slow)
    owner = None
    while owner is None:
        owner = first.get(f"/api/runs/{run}")["owner"]
    assert first.stop() == 0
    os.kill(owner["pid"], signal.SIGKILL)
    second = serve()
    while second.get(f"/api/runs/{run}")["owner"]["alive"]:
        pass
    while not (needs := second.get("/api/home")["needs"]):
        time.sleep(0.2)  # for a while its process might be on the way
    assert [one["kind"] for one in needs] == ["stuck"]
    third = serve("--take-over")
    wait_until(third, run, "running")
    while not ((owner := third.get(f"/api/runs/{run}/pulse")["owner"]) and owner["alive"]):
        pass
    assert third.post(f"/api/runs/{run}/cancel", {})["status"] == "cancelled"


@pytest.fixture
def serve(folder: Path, home: Path) -> Iterator[Serve]:
    with serving(folder, home) as made:
        yield made
