"""Who is not let in, and what is not taken: every route, every way that a browser or a program may try."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from msgspec import Struct

from fanfold.api.system import digest_of
from fanfold.errors import AuthorError
from fanfold.server.requests import read_body
from fanfold.server.routes import AnswerBody, StartBody
from tests.server.conftest import Server, ended, lay_out, run_command, serving
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

PAGES = ["/", "/index.html", "/runs", "/runs/x/steps/y", "/recipes/x", "/compare/a/b", "/assets/app.js"]
OTHERS = ["/mcp", "/mcp/", "/nowhere", "/api", "/api/", "/api/nowhere", "/favicon.ico", "/robots.txt"]
NASTY = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{inputs.x}}\u202e"
VIEWER = "a-token-that-may-look"
HOSTILE = f"""
name: nasty
description: {json.dumps(NASTY, ensure_ascii=False)}
inputs: [{{name: topic, default: {json.dumps(NASTY.replace("{{", "{ {"), ensure_ascii=False)}}}]
steps: [{{id: a, agent: explorer, prompt: "Look at {{{{inputs.topic}}}}"}}]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a project whose recipe and outputs are hostile; a viewer's token is configured."""
    folder, home = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("home")
    lay_out(folder)
    (folder / ".fanfold" / "workflows" / "nasty.yaml").write_text(HOSTILE)
    (folder / "nasty.script.yaml").write_text(json.dumps({"default": {"output": NASTY.replace("{{", "{ {")}}))
    (home / ".fanfold").mkdir()
    (home / ".fanfold" / "config.toml").write_text(f'[server]\nviewers = ["{digest_of(VIEWER)}"]\n')
    run_command(folder, home, "run", "nasty", "--script", "nasty.script.yaml")
    with serving(folder, home) as serve:
        yield serve()


def ask(
    server: Server, method: str, path: str, headers: dict[str, str] | None = None, body: Any = None
) -> tuple[int, dict[str, str], bytes]:
    """One request exactly as it is written: no path is tidied, no header is added but Host."""
    place = urlsplit(server.url)
    connection = HTTPConnection(place.hostname or "", place.port, timeout=PATIENCE_S)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    data = body.encode() if isinstance(body, str) else body
    sent = {"Host": place.netloc, **(headers or {})}
    if data is not None and "Transfer-Encoding" not in sent:
        sent.setdefault("Content-Length", str(len(data)))
    for name, value in sent.items():
        if value:
            connection.putheader(name, value)
    connection.endheaders(data)
    reply = connection.getresponse()
    found = reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()
    connection.close()
    return found


def with_token(server: Server, **more: str) -> dict[str, str]:
    named = {name.replace("_", "-"): value for name, value in more.items()}
    return {"Authorization": f"Bearer {server.token}", **named}


def every_route(server: Server) -> list[tuple[str, str]]:
    paths = server.get("/api/openapi.json")["paths"]
    routes = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    assert len(routes) > 40
    named = [(method, path.replace("{", "").replace("}", "")) for method, path in routes]
    return [*named, *(("GET", path) for path in PAGES), *((m, p) for m in ("GET", "POST") for p in OTHERS)]


BAD_CREDENTIALS = [
    {},
    {"Authorization": "Bearer "},
    {"Authorization": "Bearer wrong"},
    {"Authorization": "Basic Og=="},
    {"Cookie": "fanfold-8420=x; fanfold=x"},
]


@pytest.mark.full
@pytest.mark.parametrize("headers", BAD_CREDENTIALS, ids=str)
def test_without_a_token_every_route_answers_401_and_says_nothing(
    server: Server, headers: dict[str, str]
) -> None:
    for method, path in every_route(server):
        status, found, body = ask(server, method, path, {**headers, "Content-Type": "application/json"}, "{}")
        assert status == 401, (method, path)
        assert json.loads(body)["error"]["code"] == "request.unauthorized"
        assert "script-src 'self'" in found["content-security-policy"]
        assert found["x-content-type-options"] == "nosniff"
        assert "set-cookie" not in found
        assert not [name for name in found if name.startswith("access-control")]


def test_a_token_in_the_query_counts_nowhere_but_in_the_link(server: Server) -> None:
    for path in ("/api/runs", "/runs", "/index.html", "//", "/?x=1&token=wrong"):
        joint = "&" if "?" in path else "?"
        assert ask(server, "GET", f"{path}{joint}token={server.token}")[0] == 401, path
    assert ask(server, "POST", f"/?token={server.token}", body="")[0] == 401
    status, found, body = ask(server, "GET", f"/?token={server.token}")
    assert (status, found["location"], body) == (303, "/", b"")
    cookie = found["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert server.token not in cookie


@pytest.fixture(scope="module")
def cookie(server: Server) -> str:
    return ask(server, "GET", f"/?token={server.token}")[1]["set-cookie"].partition(";")[0]


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "127.0.0.1",
        "127.0.0.1:1",
        "localhost",
        "evil.example:{port}",
        "127.0.0.1:{port}.evil",
        "0.0.0.0:{port}",
        "[::1]:{port}",
        "user@127.0.0.1:{port}",
        "127.1:{port}",
    ],
)
def test_another_host_is_never_this_server(server: Server, host: str) -> None:
    """A name that an attacker's page was rebound to must not read anything, whatever it holds."""
    port = str(urlsplit(server.url).port)
    for path in ("/api/runs", "/", f"/?token={server.token}"):
        headers = with_token(server, Host=host.replace("{port}", port))
        assert ask(server, "GET", path, headers)[0] in (400, 421), path


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "http://evil.example",
        "https://127.0.0.1:{port}",
        "http://127.0.0.1",
        "http://127.0.0.1:1",
        "http://127.0.0.1:{port}.evil.example",
        "http://evil.example:{port}",
        "file://",
        "http://127.0.0.1:{port}/",
    ],
)
def test_a_page_of_another_origin_gets_nothing(server: Server, cookie: str, origin: str) -> None:
    origin = origin.replace("{port}", str(urlsplit(server.url).port))
    for headers in (with_token(server), {"Cookie": cookie}, {"Cookie": cookie, "X-Fanfold": "1"}):
        sent = {**headers, "Origin": origin, "Content-Type": "application/json"}
        assert ask(server, "GET", "/api/runs", sent)[0] == 403
        status, found, _ = ask(server, "POST", "/api/runs", sent, "{}")
        assert status == 403
        assert "access-control-allow-origin" not in found
        asked = {**sent, "Access-Control-Request-Method": "POST"}
        status, found, _ = ask(server, "OPTIONS", "/api/runs", asked)
        assert status == 403
        assert not [name for name in found if name.startswith("access-control")]


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_browser_that_says_another_site_asks_is_believed(server: Server, cookie: str, site: str) -> None:
    sent = {"Cookie": cookie, "Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}
    assert ask(server, "GET", "/api/runs", sent)[0] == 403
    assert ask(server, "GET", "/assets/app.js", sent)[0] == 403
    visit = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Accept": "text/html"}
    status, _, body = ask(server, "GET", "/", visit)
    assert status == 401
    assert b"fanfold serve" in body


FORMS = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""]


@pytest.mark.parametrize("media", FORMS, ids=lambda media: media or "none")
def test_no_form_can_change_anything(server: Server, cookie: str, media: str) -> None:
    """What any page can send unasked: a cookie, one of three content types, no header of its own."""
    before = server.get("/api/runs")
    body = json.dumps({"recipe": "team", "yes": True})
    for path in ("/api/runs", "/api/runs/last/cancel", "/api/check"):
        assert ask(server, "POST", path, {"Cookie": cookie, "Content-Type": media}, body)[0] == 403
        own = {"Cookie": cookie, "Content-Type": media, "X-Fanfold": "1"}
        assert ask(server, "POST", path, own, body)[0] == 415
        assert ask(server, "POST", path, with_token(server, Content_Type=media), body)[0] == 415
    assert server.get("/api/runs") == before


def test_a_cookie_changes_something_only_from_our_own_pages(server: Server, cookie: str) -> None:
    body = json.dumps({"text": "name: x\nsteps: []\n"})
    sent = {"Cookie": cookie, "Content-Type": "application/json"}
    assert ask(server, "POST", "/api/check", sent, body)[0] == 403
    own = server.url.rstrip("/")
    for more in ({"X-Fanfold": "1"}, {"Origin": own}, {"Origin": own, "Sec-Fetch-Site": "same-origin"}):
        assert ask(server, "POST", "/api/check", {**sent, **more}, body)[0] == 200
    assert ask(server, "GET", "/api/runs", {"Cookie": cookie})[0] == 200


def test_a_viewer_may_look_and_nothing_else(server: Server) -> None:
    viewer = {"Authorization": f"Bearer {VIEWER}", "Content-Type": "application/json"}
    for method, path in every_route(server):
        if path.startswith("/mcp"):
            assert ask(server, method, path, viewer, "{}")[0] in (403, 404)
        elif path == "/api/copy":  # which only puts into words what one would ask
            assert ask(server, method, path, viewer, "{}")[0] == 400
        elif method != "GET" and path.startswith("/api/"):
            status, _, body = ask(server, method, path, viewer, "{}")
            assert status in (403, 404, 405), (method, path)
            assert status != 403 or json.loads(body)["error"]["code"] == "request.forbidden"
    assert ask(server, "GET", "/api/runs", viewer)[0] == 200
    status, found, _ = ask(server, "GET", f"/?token={VIEWER}")
    own = {
        "Cookie": found["set-cookie"].partition(";")[0],
        "X-Fanfold": "1",
        "Content-Type": "application/json",
    }
    assert status == 303
    assert ask(server, "GET", "/api/runs", own)[0] == 200
    assert ask(server, "POST", "/api/runs/last/cancel", own, "{}")[0] == 403


BODIES = {
    "not JSON": b"{",
    "not UTF-8": b'{"text": "\xff"}',
    "a lone surrogate": b'{"text": "\\ud800"}',
    "NaN": b'{"text": NaN}',
    "a list": b"[]",
    "nothing": b"",
    "null": b"null",
    "unknown key": b'{"text":"","x":1}',
    "deep": b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "wrong type": b'{"text": 1}',
    "huge number": b'{"text": 1' + b"0" * 5_000 + b"}",
    "trailing": b'{"text": ""} {}',
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_a_body_that_is_not_what_it_should_be_is_refused(server: Server, body: bytes) -> None:
    headers = with_token(server, Content_Type="application/json")
    status, _, said = ask(server, "POST", "/api/check", headers, body)
    assert status == 400, said
    assert json.loads(said)["error"]["code"] == "request.invalid"


def test_values_that_no_log_could_hold_are_refused_as_inputs(server: Server) -> None:
    for value in ("1" + "0" * 400, "1e999", '"\\ud800"', "[" * 200 + "]" * 200):
        body = f'{{"recipe": "nasty", "inputs": {{"topic": {value}}}, "script": {{"default": "x"}}}}'
        headers = with_token(server, Content_Type="application/json")
        assert ask(server, "POST", "/api/runs", headers, body)[0] in (400, 422), value


def test_huge_bodies_are_refused_without_being_read(server: Server) -> None:
    headers = with_token(server, Content_Type="application/json", Content_Length=str(10**12))
    place = urlsplit(server.url)
    for head, sent in ((headers, b""), (with_token(server, Content_Type="application/json"), None)):
        with socket.create_connection((place.hostname or "", place.port or 0), timeout=PATIENCE_S) as client:
            lines = [f"POST /api/check HTTP/1.1\r\nHost: {place.netloc}\r\n"]
            lines += [f"{name}: {value}\r\n" for name, value in head.items()]
            client.sendall("".join(lines).encode() + (b"\r\n" if sent is not None else b""))
            if sent is None:
                client.sendall(b"Transfer-Encoding: chunked\r\n\r\n")
                piece = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
                try:
                    for _ in range(8):
                        client.sendall(piece)
                except OSError:
                    pass  # it has heard enough
            assert client.recv(64).startswith(b"HTTP/1.1 413")


TRICKS = [
    "/../../etc/passwd",
    "/assets/../../../pyproject.toml",
    "/assets/%2e%2e/%2e%2e/guard.py",
    "/..%2f..%2fetc%2fpasswd",
    "/assets/..\\..\\guard.py",
    "/%00",
    "/index.html%00.js",
    "/assets//index.html",
    "//index.html",
    "/./index.html",
    "/.git/config",
    "/api/../index.html",
    "/api/%2e%2e/index.html",
    "/console/index.html",
    "/index.html/",
    "/etc/passwd",
    "/api/runs/%2e%2e",
    "/api/runs/..%2f..%2fetc",
    "/api/recipes/%2Fetc%2Fpasswd",
    "/api/recipes/..%2F..%2Fx.yaml",
    "/api/recipes/.%2Fteam.yaml",
    "/api/runs/%ff",
    "/api/runs/%00",
    "/api/runs/last/steps/%2e%2e%2f%2e%2e",
    "/api/runs/x%0d%0aSet-Cookie:a=b",
    "/api/agents/..%2f..%2fx",
    "/api/runs//events",
    "/api//runs",
]


@pytest.mark.parametrize("path", TRICKS)
def test_no_path_leads_anywhere_else(server: Server, path: str) -> None:
    status, found, body = ask(server, "GET", path, with_token(server))
    assert status in (400, 404), body
    assert found["content-type"] == "application/json"
    assert b"root:" not in body
    assert b"[build-system]" not in body
    assert "set-cookie" not in found


def test_hostile_text_is_data_and_never_markup(server: Server) -> None:
    """What a recipe or a model says goes out as JSON or plain text, under a policy without inline script."""
    run = "/api/runs/last"
    looked = [
        "/api/recipes",
        "/api/recipes/nasty",
        "/api/runs",
        run,
        f"{run}/graph",
        f"{run}/events",
        f"{run}/steps/a",
        f"{run}/steps/a/transcript",
        f"{run}/report",
        f"{run}/table",
        f"{run}/head",
        "/api/home",
        "/api/search?q=script",
        f"/api/recipes/{quote(NASTY, safe='')}",
        f"/api/runs/{quote(NASTY, safe='')}",
    ]
    said = 0
    for path in looked:
        _, found, body = ask(server, "GET", path, with_token(server, Accept="text/html"))
        said += b"alert(1)" in body
        kind = found["content-type"].partition(";")[0]
        assert kind in ("application/json", "text/markdown", "text/event-stream"), path
        assert found["x-content-type-options"] == "nosniff"
        policy = found["content-security-policy"]
        assert "unsafe" not in policy
        assert policy.startswith("default-src 'none'; script-src 'self';")
    assert said > 5


def test_unknown_parameters_methods_and_headers_are_refused(server: Server) -> None:
    sent = with_token(server)
    assert ask(server, "GET", "/api/runs?limit=0", sent)[0] == 400
    assert ask(server, "GET", "/api/runs?limit=1&limit=2", sent)[0] == 400
    assert ask(server, "GET", "/api/runs?nonsense=1", sent)[0] == 400
    assert ask(server, "GET", "/api/runs?q=%ff", sent)[0] == 400
    status, found, _ = ask(server, "DELETE", "/api/runs", sent)
    assert (status, found["allow"]) == (405, "GET, POST")
    assert ask(server, "GET", "/api/runs/last/stream", {**sent, "Last-Event-ID": "x"})[0] == 400
    posted = {**sent, "Content-Type": "application/json", "Idempotency-Key": "k" * 300}
    assert ask(server, "POST", "/api/check", posted, '{"text": ""}')[0] == 400


def _serve(home: Path, folder: Path, *options: str) -> tuple[int, str]:
    done = ended(folder, home, "serve", "--port", "0", *options)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.full
def test_an_address_that_others_reach_needs_tokens(tmp_path: Path) -> None:
    status, said = _serve(tmp_path, tmp_path, "--host", "0.0.0.0")
    assert (status, "server.address" in said) == (2, True)
    status, said = _serve(tmp_path, tmp_path, "--host", "203.0.113.7")
    assert (status, "server.no_tokens" in said) == (2, True)
    status, said = _serve(tmp_path, tmp_path, "--new-token", "operator", "--json")
    made = json.loads(said)
    assert made["line"] == f'operators = ["{digest_of(made["token"])}"]'


def test_tokens_are_nowhere_on_the_disk(server: Server, cookie: str) -> None:
    home = server.folder.parent
    secrets = [server.token.encode(), cookie.partition("=")[2].encode(), VIEWER.encode()]
    looked = 0
    for top, _, files in os.walk(home):
        for name in files:
            path = Path(top) / name
            if not path.is_symlink() and path.is_file():
                data = path.read_bytes()
                looked += 1
                assert not [one for one in secrets if one in data], path
    assert looked > 5


def test_a_project_may_not_say_who_is_let_in(tmp_path: Path) -> None:
    (tmp_path / ".fanfold").mkdir()
    (tmp_path / ".fanfold" / "config.toml").write_text(f'[server]\noperators = ["{digest_of("x")}"]\n')
    status, said = _serve(tmp_path / "home", tmp_path)
    assert status == 2
    assert "may not be set in this file" in said


AS_ANOTHER = """
import os, socket, sys
os.setuid(65534)
netloc, cookie = sys.argv[1:]
connection = socket.socket()
connection.settimeout(300)
connection.connect((b"127.0.0.1", int(netloc.rpartition(":")[2])))
connection.sendall(f"GET /api/runs HTTP/1.1\\r\\nHost: {netloc}\\r\\nCookie: {cookie}\\r\\n\\r\\n".encode())
print(connection.recv(4096).split(b" ")[1].decode())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo make test-full")
def test_a_cookie_in_the_hands_of_another_user_of_this_machine_opens_nothing(
    server: Server, cookie: str
) -> None:
    assert ask(server, "GET", "/api/runs", {"Cookie": cookie})[0] == 200
    command = [sys.executable, "-I", "-c", AS_ANOTHER, urlsplit(server.url).netloc, cookie]
    other = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert other.stdout.strip() == "401"


@pytest.mark.parametrize(
    ("kind", "body", "told"),
    [
        (
            AnswerBody,
            {"decision": "ship it", "seen": "x"},
            "$.decision: Invalid enum value 'ship it'; there are approve, reject",
        ),
        (StartBody, {"recipe": "x", "options": {"permission": "no"}}, "'no'; there are read_only, ask, auto"),
        (AnswerBody, {"seen": "x"}, 'Object missing required field "decision"'),
    ],
)
def test_a_word_outside_the_choices_gets_an_error_with_the_choices(
    kind: type[Struct], body: dict[str, Any], told: str
) -> None:
    with pytest.raises(AuthorError) as refused:
        read_body(kind, json.dumps(body).encode())
    assert refused.value.message.endswith(told)
