"""Live streams: nothing missed, nothing twice, whatever happens to the connection or the server."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier
from typing import Any

import httpx2
import pytest

from fanfold.api.overview import Activity
from fanfold.api.project import Project
from fanfold.api.system import Examination
from fanfold.kernel.events import StepEvent
from fanfold.server.requests import AppState
from fanfold.server.streams import LISTED, Feed, Streams
from fanfold.store.protocol import Batch
from fanfold.store.sqlite import SqliteStore
from fanfold.testing.store_races import Tree, head
from fanfold.wiring import wire
from tests.e2e.world import MODELS, Provider
from tests.provider import RecordedRequest, Reply
from tests.server.conftest import Serve, Server, lay_out, run_command, serving
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

MANY = """
name: many
steps:
  - {id: each, agent: explorer, for_each: 'lines("%s")', prompt: "{{item}}", max_concurrency: 8}
limits: {max_agents: 500, max_concurrency: 8}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    lay_out(made)
    text = MANY % "\\n".join(f"item {number}" for number in range(150))
    (made / ".fanfold" / "workflows" / "many.yaml").write_text(text)
    return made


@pytest.fixture
def serve(folder: Path, tmp_path: Path) -> Iterator[Serve]:
    with serving(folder, tmp_path / "home") as made:
        yield made


def events(lines: Iterator[str]) -> Iterator[tuple[str, int | None, Any]]:
    """(event, id, data) of a stream."""
    held: dict[str, str] = {}
    for line in lines:
        if line:
            key, _, value = line.partition(": ")
            held[key] = value
            continue
        if "event" in held:
            yield held["event"], int(held["id"]) if "id" in held else None, json.loads(held["data"])
        held = {}


def follow(server: Server, run: str, after: int, most: int) -> list[int]:
    """Numbers of at most so many events of a run behind one; the connection is cut then."""
    headers = {"Last-Event-ID": str(after)} if after else {}
    seen: list[int] = []
    with server.client.stream("GET", f"/api/runs/{run}/stream", headers=headers) as reply:
        assert reply.status_code == 200
        for name, number, data in events(reply.iter_lines()):
            if name == "end":
                return seen
            if name == "envelope":
                assert number is not None
                assert number == data["tree_seq"]
                seen.append(number)
            if len(seen) == most:
                return seen
    return seen


def test_a_reconnecting_client_misses_nothing_and_gets_nothing_twice(serve: Serve) -> None:
    """Cut after every few events, with the server killed and started again in between."""
    server = serve()
    script = {"default": {"output": "x", "delay_ms": 5}}
    run = server.post("/api/runs", {"recipe": "many", "script": script}, 201)["run_id"]
    seen: list[int] = []
    for most in (1, 7, 60):
        seen += follow(server, run, len(seen), most)
    server.process.kill()
    server.process.wait()
    server = serve()
    for most in (30, 100_000):
        seen += follow(server, run, len(seen), most)
    reach = server.get(f"/api/runs/{run}/head")
    assert reach["status"] == "completed"
    assert seen == list(range(1, reach["reach"] + 1))
    assert follow(server, run, reach["reach"], 10) == []


def test_the_stream_of_the_project_sends_changes_since_a_disconnect(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    with server.client.stream("GET", "/api/stream") as reply:
        told = events(reply.iter_lines())
        assert next(told)[0] == "hello"
        run_command(server.folder, tmp_path / "home", "run", "team", "--script", "script.yaml", "--yes")
        moved = (one for one in told if one[0] == "run")
        _, number, data = next(one for one in moved if one[2]["status"] == "waiting")
        run = data["run_id"]
    server.post(f"/api/runs/{run}/cancel", {})
    with server.client.stream("GET", "/api/stream", headers={"Last-Event-ID": str(number)}) as reply:
        told = events(reply.iter_lines())
        assert next(told)[0] == "hello"
        assert next(told)[2]["status"] == "cancelled"


def test_the_stream_of_the_project_includes_old_unfinished_runs(serve: Serve) -> None:
    server = serve()
    never = {"default": {"output": "x", "delay_ms": 3_600_000}}
    run = server.post("/api/runs", {"recipe": "many", "script": never}, 201)["run_id"]
    with server.client.stream("GET", f"/api/runs/{run}/stream") as reply:
        next(one for one in events(reply.iter_lines()) if one[0] == "envelope")
    newer = [head(f"newer{number}", status="completed") for number in range(LISTED + 50)]
    with closing(SqliteStore(server.folder / ".fanfold")) as store:
        store.write([Batch(root="newer0", epoch=0, heads=newer)])
    with server.client.stream("GET", "/api/stream") as reply:
        moved = (data for name, _, data in events(reply.iter_lines()) if name == "run")
        assert next(moved)["run_id"] == run
        server.post(f"/api/runs/{run}/cancel", {})
        assert next(one for one in moved if one["run_id"] == run and one["status"] == "cancelled")


def test_the_stream_of_the_project_says_what_agents_do(serve: Serve) -> None:
    server = serve()
    does = {
        "output": "x",
        "tool_calls": [{"tool": "read_file", "args": {"path": "script.yaml"}}],
        "delay_ms": 600_000,
    }
    with server.client.stream("GET", "/api/stream") as reply:
        told = events(reply.iter_lines())
        script = {"default": does}
        run = server.post("/api/runs", {"recipe": "team", "script": script, "yes": True}, 201)["run_id"]
        seen = next(data for name, _, data in told if name == "activity")
        assert (seen["run_id"], seen["path"].startswith("look[")) == (run, True)
        assert seen["words"]
        server.post(f"/api/runs/{run}/cancel", {})
        done = next(data for name, _, data in told if name == "activity" and not data["words"])
        assert done["run_id"] == run


def test_the_stream_of_the_project_has_the_text_that_an_agent_is_writing(
    serve: Serve, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "one two three"
    listeners = folder / ".fanfold" / "wake" / "updates"

    def respond(_asked: RecordedRequest) -> Reply:
        while not any(listeners.glob("*")):
            time.sleep(0.02)
        return Reply(text=f"{words} {'and more ' * 20}", pause_s=0.5)

    (folder / ".fanfold" / "workflows" / "talk.yaml").write_text(
        "name: talk\nsteps: [{id: talk, agent: explorer, prompt: Talk}]\n"
    )
    with Provider(respond) as provider:
        for name, value in {**provider.environment, "FANFOLD_MODEL": MODELS["chat"]}.items():
            monkeypatch.setenv(name, value)
        server = serve()
        with server.client.stream("GET", "/api/stream") as reply:
            told = events(reply.iter_lines())
            run = server.post("/api/runs", {"recipe": "talk"}, 201)["run_id"]
            active = (data for name, _, data in told if name == "activity")
            writing = next(data for data in active if data["text"])
            assert (writing["run_id"], writing["path"]) == (run, "talk")
            assert writing["text"].startswith(words)
            assert next(data for data in active if not data["words"])["text"] == ""
        assert not any(listeners.glob(f"{run}.*"))


def test_every_stream_of_the_project_hears_when_an_agent_has_done_its_work(serve: Serve) -> None:
    server, everybody = serve(), Barrier(4)

    def listen() -> set[str]:
        """The paths of agents that were at work, once none of them is any more and the run is over."""
        words: dict[str, str] = {}
        over = False
        with server.client.stream("GET", "/api/stream") as reply:
            told = events(reply.iter_lines())
            assert next(told)[0] == "hello"
            everybody.wait(PATIENCE_S)
            for name, _, data in told:
                over |= name == "run" and data["status"] == "completed"
                if name == "activity":
                    words[data["path"]] = data["words"]
                if over and words and not any(words.values()):
                    return set(words)
        raise AssertionError("the stream ended")

    script = {"default": {"output": "x", "delay_ms": 150}}
    with ThreadPoolExecutor(3) as threads:
        heard = [threads.submit(listen) for _ in range(3)]
        everybody.wait(PATIENCE_S)
        server.post("/api/runs", {"recipe": "many", "script": script}, 201)
        assert all(one.result() for one in heard)


def test_streams_that_wait_for_one_look_at_agents_share_it_however_much_happens(tmp_path: Path) -> None:
    """One after the other, each would hear of a busy run as much later as there are others."""
    at_work, looks = [Activity("run", "step", "", "thinks", 0)], 5

    async def main(project: Project) -> int:
        feed, looked = Feed(project.store), 0

        async def look(_: Callable[[], list[Activity]]) -> list[Activity]:
            nonlocal looked
            looked += 1
            feed.bump()  # something happens meanwhile
            return at_work

        def examine() -> Examination:
            raise AssertionError("nobody asks for it")

        streams = Streams(AppState(project, lambda: project, examine, ""), feed, look)
        for _ in range(looks):
            assert await asyncio.gather(*(streams._activity() for _ in range(8))) == [at_work] * 8
        return looked

    with closing(wire(tmp_path)) as project:
        assert asyncio.run(main(project)) <= 2 * looks


def test_the_server_stops_though_streams_are_open(serve: Serve, tmp_path: Path) -> None:
    """They have no end of their own: a server that waited for it would never stop."""
    server = serve()
    run_command(server.folder, tmp_path / "home", "run", "team", "--script", "script.yaml", "--yes")
    run = server.get("/api/runs")["items"][0]["run_id"]
    with (
        server.client.stream("GET", "/api/stream") as one,
        server.client.stream("GET", f"/api/runs/{run}/stream") as two,
    ):
        first, second = one.iter_raw(), two.iter_raw()
        next(first), next(second)
        assert server.stop() == 0
        list(first), list(second)  # they ended, and were not cut


def test_a_client_that_reads_nothing_costs_no_memory_and_delays_no_other(serve: Serve) -> None:
    server = serve()
    script = {"default": {"output": "x" * 2_000}}
    run = server.post("/api/runs", {"recipe": "many", "script": script}, 201)["run_id"]
    assert follow(server, run, 0, 100_000)
    lazy = [_that_takes_nothing(server, run) for _ in range(20)]
    before = _memory(server)
    for _ in range(3):
        assert len(follow(server, run, 0, 100_000)) > 300
    assert _memory(server) - before < 20_000_000
    for client in lazy:
        client.close()


def test_a_slow_client_delays_no_other_client(serve: Serve) -> None:
    server, tree = serve(), Tree("big")
    with closing(SqliteStore(server.folder / ".fanfold")) as store:

        def record(count: int, status: str) -> None:
            envelopes = [
                tree.event(StepEvent("a", "completed", 1, 1, summary="x" * 4_000)) for _ in range(count)
            ]
            store.write([Batch(root="big", epoch=0, envelopes=envelopes, heads=[head("big", status=status)])])

        record(5_000, "running")
        lazy = _that_takes_nothing(server, "big")
        assert lazy.recv(15) == b"HTTP/1.1 200 OK"  # it was told how far the log reached, and no further
        record(10, "running")
        with server.client.stream("GET", "/api/runs/big/stream", headers={"Last-Event-ID": "5010"}) as reply:
            heard = events(reply.iter_lines())
            assert next(heard)[2]["seq"] == 5_010
            record(5, "completed")
            assert [number for _, number, _ in heard] == [5_011, 5_012, 5_013, 5_014, 5_015, None]
        lazy.close()


def test_too_many_streams_are_refused(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANFOLD_SERVER_STREAMS", "3")
    server = serve()
    held = [server.client.stream("GET", "/api/stream") for _ in range(3)]
    for one in held:
        assert one.__enter__().status_code == 200
    refused = httpx2.get(f"{server.url}api/stream", headers={"Authorization": f"Bearer {server.token}"})
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "server.busy"
    for one in held:
        one.__exit__(None, None, None)


def _that_takes_nothing(server: Server, run: str) -> socket.socket:
    """The connection of a client that asked for a stream and does not read it."""
    host, port = re.fullmatch(r"http://([\d.]+):(\d+)/", server.url).groups()  # type: ignore[union-attr] # it is one
    client = socket.create_connection((host, int(port)))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    asked = f"GET /api/runs/{run}/stream HTTP/1.1\r\nHost: {host}:{port}\r\n"
    client.sendall(f"{asked}Authorization: Bearer {server.token}\r\n\r\n".encode())
    return client


def _memory(server: Server) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", status)
    assert found is not None
    return int(found[1]) * 1_024
