"""What the command line can do to a run, the API can: each command has its routes, each option its field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import pytest

from fanfold.api import display
from fanfold.api.history import page_of_runs
from fanfold.store.protocol import Batch
from fanfold.store.sqlite import SqliteStore
from fanfold.testing.store_races import head
from tests.server.conftest import Server, lay_out, run_command, serving
from tests.server.test_refusals import ask, with_token
from tools.cli_reference import load_commands

pytestmark = pytest.mark.full

ROUTES = {
    "run": ["POST /api/runs", "POST /api/recipes/{name}/dry-run"],
    "resume": ["POST /api/runs/{run}/resume"],
    "pause": ["POST /api/runs/{run}/pause"],
    "cancel": ["POST /api/runs/{run}/cancel"],
    "approve": ["POST /api/runs/{run}/approvals/{step}"],
    "reject": ["POST /api/runs/{run}/approvals/{step}"],
    "answer": ["POST /api/runs/{run}/answers/{step}"],
    "retry": ["POST /api/runs/{run}/retry"],
    "fork": ["POST /api/runs/{run}/fork"],
    "diff": ["GET /api/runs/{run}/diff"],
    "apply": ["POST /api/runs/{run}/steps/{step}/apply"],
    "undo": ["POST /api/runs/{run}/undo"],
    "inspect": ["GET /api/runs/{run}", "GET /api/runs/{run}/steps/{step}", "GET /api/runs/{run}/output"],
    "watch": ["GET /api/runs/{run}/stream"],
    "logs": [
        "GET /api/runs/{run}/events",
        "GET /api/runs/{run}/steps/{step}/log",
        "GET /api/runs/{run}/stream",
    ],
    "transcript": ["GET /api/runs/{run}/steps/{step}/transcript", "GET /api/agents/{session}"],
    "explain": ["GET /api/runs/{run}/explain", "GET /api/runs/{run}/steps/{step}/explain"],
    "whatif": ["GET /api/whatif/{run}"],
    "query": ["GET /api/search"],
    "export": ["GET /api/runs/{run}/export"],
    "import": ["POST /api/import"],
    "replay": ["GET /api/runs/{run}/verify"],
    "verify": ["GET /api/runs/{run}/verify"],
    "capture": ["POST /api/runs/{run}/capture"],
}
CALLED = {
    "pairs": "inputs",
    "prompts": "prompt",
    "say_next": "say",
    "fork step": "from",
    "transcript name": "step",
    "children": "subagents",
    "most": "k",
    "words": "q",
}
"""What a field is called where its option is called otherwise."""
NOT_ASKED = {
    "project", "as_json", "no_color", "run", "recipe", "file", "output", "detach", "following", "tree",
    "steps", "inputs_file", "explained", "edit_file", "script_file", "checked", "everything", "show_prompts",
    "quiet", "report", "summary", "env_from", "digested",
}  # fmt: skip
"""Where something is, how it is printed, whether one waits for it, and what is about all runs at once."""
FILES_ONLY = {"record", "pull"}
"""Commands that write files of the user's project, which a server does not."""
ELSEWHERE = {("run", "unsafe_no_sandbox"), ("run", "dry_run")}
"""Whoever is at the machine may do without a sandbox, nobody far away; a dry run has a route of its own."""


def fields_of(described: dict[str, Any], routes: list[str]) -> set[str]:
    """Every parameter and every field of a body, those inside it too."""
    found: set[str] = set()
    for route in routes:
        method, path = route.split()
        operation = described["paths"][path][method.lower()]
        found |= {one["name"] for one in operation["parameters"]}
        body = operation.get("requestBody", {"content": {"application/json": {"schema": {}}}})
        found |= set(_names(described, body["content"]["application/json"]["schema"]))
    return found


def _names(described: dict[str, Any], schema: dict[str, Any]) -> Iterator[str]:
    if "$ref" in schema:
        schema = described["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    for name, inner in schema.get("properties", {}).items():
        yield name
        yield from _names(described, inner)
    for inner in [*schema.get("allOf", []), *schema.get("anyOf", [])]:
        yield from _names(described, inner)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder, home = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("home")
    lay_out(folder)
    run_command(folder, home, "run", "team", "--script", "script.yaml", "--yes")
    with serving(folder, home) as serve:
        yield serve()


def test_every_command_about_a_run_has_its_routes(server: Server) -> None:
    about_runs = {name for name, one in load_commands().items() if {"run", "run_id"} & names_of(one)}
    about_runs -= FILES_ONLY
    assert about_runs <= set(ROUTES), sorted(about_runs - set(ROUTES))
    described = server.get("/api/openapi.json")["paths"]
    known = {f"{method.upper()} {path}" for path, methods in described.items() for method in methods}
    assert {one for routes in ROUTES.values() for one in routes} <= known


def names_of(one: click.Command) -> set[str]:
    return {parameter.name or "" for parameter in one.params}


@pytest.mark.parametrize("name", ROUTES)
def test_every_option_of_a_command_has_its_field(server: Server, name: str) -> None:
    has = fields_of(server.get("/api/openapi.json"), ROUTES[name])
    own = names_of(load_commands()[name]) - NOT_ASKED
    wanted = {CALLED.get(f"{name} {one}", CALLED.get(one, one)) for one in own}
    missing = {one for one in wanted - has if (name, one) not in ELSEWHERE}
    assert not missing, (sorted(missing), sorted(has))


def test_a_run_goes_out_as_a_file_and_comes_in_elsewhere(server: Server, tmp_path: Path) -> None:
    run = server.get("/api/runs/last/head")["run_id"]
    page = server.client.get(f"/api/runs/{run}/export").text
    known = server.client.post("/api/import", json={"page": page})
    assert (known.status_code, known.json()["error"]["code"]) == (409, "archive.known")
    for broken in ("", "<html>", page[: len(page) // 2]):
        refused = server.client.post("/api/import", json={"page": broken})
        assert refused.status_code == 400, refused.text
        assert refused.json()["error"]["code"].startswith("archive.")
    (tmp_path / "elsewhere").mkdir()
    with serving(tmp_path / "elsewhere", tmp_path / "home") as serve:
        other = serve()
        taken = other.post("/api/import", {"page": page}, 201)
        assert (taken["run_id"], taken["recipe"]) == (run, "team")
        again = other.post(f"/api/runs/{run}/fork", {"from": "note", "dry_run": True})["forecast"]
        assert "note" in again["runs_again"]
        body = {"from": "note", "script": {"default": "x"}}  # nothing of it runs before it was allowed
        assert other.client.post(f"/api/runs/{run}/fork", json=body).status_code == 403


def test_a_file_may_be_larger_than_other_bodies_and_not_endless(server: Server) -> None:
    large = server.client.post("/api/import", json={"page": "x" * 5_000_000})
    assert large.json()["error"]["code"].startswith("archive.")
    announced = with_token(server, Content_Type="application/json", Content_Length=str(65 * 1024 * 1024))
    assert ask(server, "POST", "/api/import", announced, b"")[0] == 413


def test_delegated_work_becomes_a_recipe_and_a_run_of_a_recipe_gives_its_own(
    server: Server, tmp_path: Path
) -> None:
    folder, home = tmp_path / "project", tmp_path / "home"
    folder.mkdir()
    (folder / "script.json").write_text(json.dumps({"default": "seen"}))
    run_command(folder, home, "spawn", "explorer", "Look at owls", "--wait", "--script", "script.json")
    with serving(folder, home) as serve:
        own = serve()
        assert "Look at owls" in own.post("/api/runs/hand/capture", {})["recipe"]
        kept = own.post("/api/runs/hand/capture", {"name": "owls", "request": "owls"})
        assert kept["file"].endswith("owls.yaml")
        assert own.get("/api/recipes/owls")["name"] == "owls"
    kept = server.post("/api/runs/last/capture", {})
    assert (kept["name"], kept["left_out"]) == ("team", [])


def test_the_log_of_a_step_and_what_the_scheduler_knows_can_be_had(server: Server) -> None:
    log = server.get("/api/runs/last/steps/note/log")
    assert {"started", "completed"} & {one["data"].get("status") for one in log["items"]}
    assert log["left_off"] == 0
    assert "state" not in server.get("/api/runs/last")
    assert server.get("/api/runs/last", state="true")["state"]


def test_search_has_the_filters_of_the_command(server: Server) -> None:
    def hits(**filters: Any) -> set[str]:
        return {one["path"] for one in server.get("/api/search", q="found noted", **filters)["hits"]}

    assert {"note", "look[0]"} <= hits()
    assert hits(role="worker") == {"note"}
    assert hits(step="look") == {"look[0]", "look[1]", "look[2]"}, "the list of the map repeats them"
    assert hits(recipe="other") == hits(since=9_000_000_000_000) == hits(status="failed") == set()


def test_pieces_of_a_list_end_where_they_are_asked_to(server: Server) -> None:
    found = server.get("/api/runs/last/events", after=2, before=5)
    assert [one["tree_seq"] for one in found["items"]] == [3, 4]
    assert (found["next"], found["previous"]) == (4, 3)


def test_a_search_through_many_runs_can_be_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "MAX_SEARCHED", 400)
    monkeypatch.setattr(display, "described", lambda project, one: one)
    with closing(SqliteStore(tmp_path)) as store:
        many = [head(f"r{number:04}", recipe="rare" if number == 3 else "plain") for number in range(1_000)]
        store.write([Batch(root="r0000", epoch=0, heads=many)])
        project: Any = type("OneStore", (), {"store": store, "has_runs": True})()
        found, cursor = [], None
        for _ in range(10):
            page = page_of_runs(project, words="rare", cursor=cursor)
            found += page.items
            cursor = page.next
            if cursor is None:
                break
    assert [one.run_id for one in found] == ["r0003"]
