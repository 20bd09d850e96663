"""What pages about one run ask for."""

from __future__ import annotations

import pytest

from tests.server.conftest import Server

pytestmark = pytest.mark.full


def test_the_head_says_how_far_a_run_is_and_how_far_its_log_reaches(server: Server) -> None:
    head = server.get(f"{server.first}/head")
    assert head["counts"]["completed"] >= 4
    assert head["seq"] == head["reach"]
    before = server.get(f"{server.first}/head", at=3)
    assert (before["seq"], before["reach"]) == (3, head["reach"])
    assert before["counts"] != head["counts"]


def test_the_table_and_the_timeline_have_the_same_rows(server: Server) -> None:
    table = server.get(f"{server.first}/table")["rows"]
    line = server.get(f"{server.first}/timeline")
    assert [row["path"] for row in table] == [row["path"] for row in line["rows"]]
    assert all(span["start"] >= line["start"] for row in line["rows"] for span in row["spans"])
    assert not any(row["spans"] for row in server.get(f"{server.first}/timeline", at=2)["rows"])


def test_a_run_that_was_begun_this_moment_is_not_called_stuck(server: Server) -> None:
    body = {"recipe": "team", "script": {"default": {"output": "x", "delay_ms": 2_000}}, "yes": True}
    run = server.post("/api/runs", body, 201)["run_id"]
    needs = server.get("/api/home")["needs"]
    assert [one["kind"] for one in needs if one["run_id"] == run] == []
    server.post(f"/api/runs/{run}/cancel", {})


def test_an_abandoned_run_has_no_owner(server: Server) -> None:
    pulse = server.get(f"{server.first}/pulse")
    assert (pulse["owner"], pulse["heartbeat_age_ms"]) == (None, None)
