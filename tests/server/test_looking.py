"""Looking at a project over HTTP."""

from __future__ import annotations

import pytest

from tests.server.conftest import Server

pytestmark = pytest.mark.full


def test_runs_are_listed_newest_first_and_in_pieces(server: Server) -> None:
    page = server.get("/api/runs")
    assert [row["recipe"] for row in page["items"]] == ["team"]
    assert page["next"] is None
    assert server.get("/api/runs", status="completed")["items"] == []
    assert server.get("/api/runs", q="tea wait")["items"] == page["items"]


def test_a_run_can_be_seen_as_it_was(server: Server) -> None:
    now = server.get(server.first)
    assert now["status"] == "waiting"
    then = server.get(server.first, at=2)
    assert then["status"] == "running"
    assert then["steps"]["note"]["status"] == "pending"


def test_the_picture_of_a_run_has_its_fan_out_as_one_node(server: Server) -> None:
    nodes = {node["path"]: node for node in server.get(f"{server.first}/graph")["nodes"]}
    assert nodes["look"]["cells"] == ["completed"] * 3
    assert nodes["ok"]["status"] == "waiting"


def test_events_are_paged_both_ways(server: Server) -> None:
    first = server.get(f"{server.first}/events", after=0, limit=3)
    assert [one["tree_seq"] for one in first["items"]] == [1, 2, 3]
    assert (first["previous"], first["next"]) == (None, 3)
    last = server.get(f"{server.first}/events", limit=2)
    assert last["next"] is None
    before = server.get(f"{server.first}/events", limit=2, before=last["previous"])
    assert before["items"][-1]["tree_seq"] + 1 == last["items"][0]["tree_seq"]


def test_recipes_come_with_what_their_runs_were_like(server: Server) -> None:
    rows = {row["name"]: row for row in server.get("/api/recipes")["items"]}
    assert rows["team"]["last_run"]["status"] == "waiting"
    assert rows["team"]["inputs"][0]["name"] == "topic"
    page = server.get("/api/recipes/team")
    assert page["writable"]
    assert page["text"].startswith("\nname: team")
    assert page["needs"]


def test_a_step_can_be_seen_as_it_was_with_its_files_and_its_conversation(server: Server) -> None:
    run = server.get("/api/runs")["items"][-1]["run_id"]
    events = server.get(f"/api/runs/{run}/events", after=0, limit=500)["items"]
    began = next(
        one for one in events if one["data"].get("step") == "note" and one["data"].get("status") == "started"
    )
    now = server.get(f"/api/runs/{run}/steps/note")
    then = server.get(f"/api/runs/{run}/steps/note", at=began["tree_seq"])
    assert now["files"] != [] == then["files"]
    assert (now["status"], then["status"], then["output"]) == ("completed", "running", None)
    said = server.get(f"/api/runs/{run}/steps/note/transcript")["entries"]
    heard = server.get(f"/api/runs/{run}/steps/note/transcript", at=began["tree_seq"])["entries"]
    assert [one["kind"] for one in said[:1]] == ["input"]
    assert len(heard) < len(said)
