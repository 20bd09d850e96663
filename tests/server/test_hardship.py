"""What a server has to stand: being killed in the middle, and many who connect and say nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from fanfold.errors import WorldError
from fanfold.server.auth import MAX_CONNECTIONS
from fanfold.server.requests import MAX_KEYS, Idempotency, KeptReply
from tests.server.conftest import Serve, Server, serving
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

BODY = json.dumps({"recipe": "team", "script": {"default": "done"}, "yes": True})


@pytest.fixture
def serve(folder: Path, home: Path) -> Iterator[Serve]:
    with serving(folder, home) as made:
        yield made


def started(server: Server, key: str) -> tuple[int, str]:
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    reply = server.client.post("/api/runs", content=BODY, headers=headers)
    found = reply.json()
    return reply.status_code, found.get("run_id") or found["error"]["code"]


def test_a_key_means_the_same_to_the_next_server_after_a_kill(serve: Serve) -> None:
    first = serve()
    status, run = started(first, "across")
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    second = serve()
    assert started(second, "across") == (status, run) == (201, run)
    other = second.client.post("/api/runs", json={"recipe": "team"}, headers={"Idempotency-Key": "across"})
    assert other.json()["error"]["code"] == "idempotency.other_request"


def test_requests_in_progress_at_a_server_s_kill_are_not_repeated(
    serve: Serve, folder: Path, home: Path
) -> None:
    first = serve()
    with socket.create_connection((urlsplit(first.url).hostname, urlsplit(first.url).port)) as sent:
        body = BODY.encode()
        head = f"POST /api/runs HTTP/1.1\r\nHost: {urlsplit(first.url).netloc}\r\n"
        head += f"Authorization: Bearer {first.token}\r\nContent-Type: application/json\r\n"
        head += f"Idempotency-Key: torn\r\nContent-Length: {len(body)}\r\n\r\n"
        sent.sendall(head.encode() + body)
        notes = home / ".fanfold" / "server" / f"{sha256(bytes(folder)).hexdigest()[:16]}.requests.jsonl"
        while "torn" not in notes.read_text():
            pass  # it writes down what it is about to do, and then does it
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
    second = serve()
    before = [run["run_id"] for run in second.get("/api/runs")["items"]]
    status, word = started(second, "torn")
    # The kill may come after the answer was written down; then it is given. A second run begins in no case.
    assert (status, word) == (409, "idempotency.unknown") or status == 201
    assert [run["run_id"] for run in second.get("/api/runs")["items"]] == before
    assert started(second, "new")[0] == 201


def test_requests_interrupted_by_a_stopped_server_are_reported_as_unknown(serve: Serve, home: Path) -> None:
    first = serve()
    never = {"recipe": "team", "script": {"default": {"output": "x", "delay_ms": 3_600_000}}, "yes": True}
    run = first.post("/api/runs", never, 201)["run_id"]
    while (owner := first.get(f"/api/runs/{run}/pulse")["owner"]) is None:
        pass
    os.kill(owner["pid"], signal.SIGSTOP)  # it hears of nothing, so whoever wants to pause it waits
    try:
        with ThreadPoolExecutor(1) as pool:
            notes = next((home / ".fanfold" / "server").glob("*.requests.jsonl"))
            asked = pool.submit(paused, first, run, "stopped")
            while '"stopped"' not in notes.read_text():
                pass
            assert first.stop() == 0  # although what it is asked for never comes about
            assert asked.result() == (503, "server.stopping")
    finally:
        os.kill(owner["pid"], signal.SIGCONT)
    second = serve()
    assert paused(second, run, "stopped") == (409, "idempotency.unknown")
    assert paused(second, run, "another") == (200, "paused")
    second.post(f"/api/runs/{run}/cancel", {})


def paused(server: Server, run: str, key: str) -> tuple[int, str]:
    reply = server.client.post(f"/api/runs/{run}/pause", json={}, headers={"Idempotency-Key": key})
    found = reply.json()
    return reply.status_code, found.get("status") or found["error"]["code"]


def test_keys_that_failed_are_free_and_a_torn_file_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    file = tmp_path / "server" / "keys.jsonl"
    keys = Idempotency(file)
    assert keys.begin("me", "a", b"x") is None
    keys.done("me", "a", KeptReply(200, "{}"))
    assert keys.begin("me", "b", b"x") is None
    keys.failed("me", "b")
    file.write_bytes(file.read_bytes() + b'{"who":"me","key":"c","requ')
    again = Idempotency(file)
    assert again.begin("me", "a", b"x") == KeptReply(200, "{}")
    assert again.begin("me", "b", b"x") is None
    assert again.begin("me", "c", b"x") is None
    assert file.stat().st_mode & 0o077 == 0


def test_a_key_is_kept_while_its_request_is_answered_at_any_number_of_keys(tmp_path: Path) -> None:
    keys = Idempotency(tmp_path / "keys.jsonl")
    assert keys.begin("me", "first", b"x") is None
    assert keys.begin("me", "second", b"x") is None
    for number in range(MAX_KEYS + 5):
        assert keys.begin("other", str(number), b"x") is None
        keys.done("other", str(number), KeptReply(200, "{}"))
    with pytest.raises(WorldError, match="still being answered"):
        keys.begin("me", "first", b"x")
    keys.done("me", "first", KeptReply(201, "[]"))
    keys.failed("me", "second")
    assert keys.begin("me", "first", b"x") == KeptReply(201, "[]")
    assert keys.begin("me", "second", b"x") is None


def test_silent_connections_block_no_other_client(serve: Serve) -> None:
    server = serve()
    place = (urlsplit(server.url).hostname, urlsplit(server.url).port)
    silent = [socket.create_connection(place) for _ in range(MAX_CONNECTIONS + 50)]
    try:
        assert server.get("/api/runs")["items"] is not None
        slow = socket.create_connection(place)
        slow.settimeout(PATIENCE_S)
        slow.sendall(b"GET /api/runs HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        began = time.monotonic()
        try:
            answer = slow.recv(100)
        except ConnectionResetError:
            answer = b""
        assert answer == b""  # let go, however much of its head had come
        assert time.monotonic() - began > 1
        slow.close()
    finally:
        for one in silent:
            one.close()
    assert server.stop() == 0


def test_refused_connections_that_stay_block_no_other_client(serve: Serve) -> None:
    """A request without a token whose body never comes: it is answered, and its connection is nobody's."""
    server = serve()
    place = urlsplit(server.url)
    head = f"POST /api/runs HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Length: 100\r\n\r\n".encode()
    stays = []
    try:
        for _ in range(MAX_CONNECTIONS + 50):
            stays.append(socket.create_connection((place.hostname, place.port)))
            stays[-1].sendall(head)
            assert stays[-1].recv(12) == b"HTTP/1.1 401"
        for _ in range(5):
            reply = httpx2.get(f"{server.url}api/runs", headers={"Authorization": f"Bearer {server.token}"})
            assert reply.status_code == 200
    finally:
        for one in stays:
            one.close()


@pytest.mark.parametrize(
    "target", ["CONNECT evil.example:80", "OPTIONS *", "GET nowhere", "GET http://x/api/runs"]
)
def test_a_value_without_a_path_is_not_found(serve: Serve, target: str) -> None:
    server = serve()
    place = urlsplit(server.url)
    for token, status in ((server.token, b"404"), ("wrong", b"401")):
        with socket.create_connection((place.hostname, place.port), timeout=PATIENCE_S) as client:
            head = f"{target} HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {token}\r\n\r\n"
            client.sendall(head.encode())
            assert client.recv(12) == b"HTTP/1.1 " + status


@pytest.mark.parametrize("number", ["-1", "x", "٣", "9" * 17, str(2**53 + 1), "1 2"])
def test_a_stream_is_not_begun_at_nonsense(serve: Serve, number: str) -> None:
    server = serve()
    for headers, path in (({"Last-Event-ID": number}, "/api/stream"), ({}, f"/api/stream?after={number}")):
        if not number.isascii() and headers:
            continue  # no header can hold it
        reply = server.client.get(path, headers=headers)
        assert reply.status_code == 400, reply.text
    assert server.client.get("/api/stream?after=0&after=1").status_code == 400
    assert server.client.get("/api/stream?nonsense=1").status_code == 400
