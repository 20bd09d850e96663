"""Files that steps left, taken away over HTTP: whatever they are called and hold, they are bytes to keep."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import httpx2
import pytest

from tests.server.conftest import Server, lay_out, serving
from tests.server.test_refusals import ask, with_token

pytestmark = pytest.mark.full

PAGE = "<!doctype html><script>alert(document.domain)</script>"
RECIPE = """
name: leaves
steps:
  - {id: make, agent: worker, write_set: [a.txt], prompt: Make it}
  - {id: below, workflow: leaves-below@1, depends_on: [make]}
"""
BELOW = """
name: leaves-below
version: 1
steps: [{id: inner, agent: worker, write_set: [b.txt], prompt: Make it}]
"""
NAMES = {"deep/in/page.html": PAGE, "plain.txt": "plain\n", "ölig \"q\"; x='y'.svg": "<svg onload='x()'/>"}
TRICKS = [
    "../../../a.txt",
    "deep/../plain.txt",
    "./plain.txt",
    "deep//in/page.html",
    "/etc/passwd",
    "..",
    "deep",
    "plain.txt/",
    "link.txt",
    "unnamed.txt",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder, home = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("home")
    lay_out(folder)
    recipes = folder / ".fanfold" / "workflows"
    (recipes / "leaves.yaml").write_text(RECIPE)
    (recipes / "leaves-below.yaml").write_text(BELOW)
    with serving(folder, home) as serve:
        yield serve()


@pytest.fixture(scope="module")
def run(server: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    writes = {"a.txt": "mine\n", **{f"artifacts/{name}": text for name, text in NAMES.items()}}
    script = {
        "steps": {
            "make": {"output": "made", "writes": writes},
            "below/inner": {"output": "made", "writes": {"artifacts/plain.txt": "below\n"}},
        }
    }
    body = {"recipe": "leaves", "script": script, "yes": True}
    made = str(server.post("/api/runs", body, 201)["run_id"])
    while server.get(f"/api/runs/{made}/head")["status"] != "completed":
        pass
    return made


def address(run: str, name: str) -> str:
    return f"/api/runs/{run}/artifacts/{quote(name, safe='')}"


def test_artifacts_of_a_run_and_of_those_below_it_are_listed_and_given_away(server: Server, run: str) -> None:
    listed = server.get(f"/api/runs/{run}/artifacts")["items"]
    assert {one["name"] for one in listed if one["run_id"] == run} == set(NAMES)
    assert [(one["name"], one["step"]) for one in listed if one["run_id"] != run] == [("plain.txt", "inner")]
    texts = {(one["run_id"] == run, one["name"]): taken(server, one["run_id"], one["name"]) for one in listed}
    assert {name: reply.text for (own, name), reply in texts.items() if own} == NAMES
    assert texts[False, "plain.txt"].text == "below\n"
    assert [one["name"] for one in server.get(f"/api/runs/{run}/steps/make")["artifacts"]] == list(NAMES)
    assert server.get(f"/api/runs/{run}/artifacts", at=1)["items"] == []


def taken(server: Server, run: str, name: str) -> httpx2.Response:
    reply = server.client.get(address(run, name))
    assert reply.status_code == 200, reply.text
    return reply


def test_no_browser_shows_one_as_a_page_of_this_server(server: Server, run: str) -> None:
    for name in NAMES:
        headers = taken(server, run, name).headers
        assert headers["content-type"] == "application/octet-stream"
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["cache-control"] == "no-store"
        assert headers["content-disposition"].startswith('attachment; filename="')
        assert headers["content-disposition"].count('"') == 2
    named = taken(server, run, "deep/in/page.html").headers["content-disposition"]
    assert named == "attachment; filename=\"page.html\"; filename*=UTF-8''page.html"


@pytest.mark.parametrize("name", TRICKS)
def test_only_published_files_of_a_step_can_be_read(server: Server, run: str, name: str) -> None:
    home = server.folder / ".fanfold" / "runs" / run / "artifacts"
    (home / "unnamed.txt").write_text("nobody published it")
    if not (home / "link.txt").is_symlink():
        (home / "link.txt").symlink_to(server.folder / "a.txt")
    for path in (address(run, name), f"/api/runs/{run}/artifacts/{name}"):
        status, _, body = ask(server, "GET", path, with_token(server))
        assert status in (400, 404), body
        assert b"mine" not in body


def test_without_a_token_none_is_given(server: Server, run: str) -> None:
    assert ask(server, "GET", address(run, "plain.txt"))[0] == 401


def test_later_changes_of_a_file_are_reported(server: Server, run: str) -> None:
    file = server.folder / ".fanfold" / "runs" / run / "artifacts" / "deep" / "in" / "page.html"
    text = file.read_text()
    file.write_text(text.replace("alert", "steal"))
    changed = server.client.get(address(run, "deep/in/page.html"))
    assert (changed.status_code, changed.json()["error"]["code"]) == (500, "artifact.changed")
    file.unlink()
    file.symlink_to(server.folder / "a.txt")
    assert server.client.get(address(run, "deep/in/page.html")).json()["error"]["code"] == "artifact.lost"
    file.unlink()
    file.parent.rmdir()
    lost = server.client.get(address(run, "deep/in/page.html"))
    assert (lost.status_code, lost.json()["error"]["code"]) == (404, "artifact.lost")
    file.parent.mkdir()
    file.write_text(text)
    assert taken(server, run, "deep/in/page.html").text == text


def test_a_run_as_one_file_lists_them_as_text(server: Server, run: str) -> None:
    page = server.client.get(f"/api/runs/{run}/export").text
    shown = page.partition('id="fanfold-run"')[0]
    assert "<h2>Artifacts</h2>" in shown
    assert f".fanfold/runs/{run}/artifacts/deep/in/page.html" in shown
    assert "<svg onload" not in shown
