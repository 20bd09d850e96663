"""The HTTP server under load: clients that read, streams that follow, starters that start runs, all at once.

    python -m bench.load [--readers 200] [--streams 50] [--starters 5] [--seconds 10] [--rounds 2] [--out F]

In turn with a bare starlette application that gives bytes of the same length back and does nothing else, on
the same machine in the same run: what counts is the ratio. Nothing may fail, and no stream may have a gap: a
follower gets every number of its run from 1 to the last, whatever else goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

RECIPE = """
name: small
steps:
  - {id: each, agent: explorer, for_each: 'lines("a\\nb\\nc\\nd\\ne\\nf\\ng\\nh")', prompt: "{{item}}"}
  - {id: sum, agent: explorer, prompt: "{{steps.each.output}}"}
"""
SCRIPT = {"default": {"output": "said by {{step}}", "delay_ms": 20}}
PATHS = ("/api/runs", "/api/runs/{run}/head", "/api/runs/{run}/graph", "/api/runs/{run}/table", "/api/home")
BARE = """
import sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

sizes = [int(word) for word in sys.argv[2:]]
bodies = [b"x" * size for size in sizes]

async def reply(request):
    return Response(bodies[int(request.path_params["n"])], media_type="application/json")

app = Starlette(routes=[Route("/{n}", reply)])
uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False)
"""


class Figures(NamedTuple):
    """What one turn showed."""

    requests: int
    seconds: float
    latencies_ms: list[float]
    errors: list[str]
    events: int = 0
    runs: int = 0

    @property
    def rate(self) -> float:
        return self.requests / self.seconds

    def at(self, share: float) -> float:
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


class Connection:
    """One connection that is kept, and asks one thing after another."""

    def __init__(self, netloc: str, token: str = "") -> None:
        self._host, _, port = netloc.partition(":")
        self._port = int(port)
        authority = f"Authorization: Bearer {token}\r\n" if token else ""
        self._head = f"Host: {netloc}\r\n{authority}"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        reader, _ = await self.send(method, path, body)
        status, headers = await self._reply(reader)
        return status, await reader.readexactly(int(headers.get("content-length", "0")))

    async def send(
        self, method: str, path: str, body: bytes = b""
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port, limit=2**22)
        reader, writer = self._streams
        kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        writer.write(f"{method} {path} HTTP/1.1\r\n{self._head}{kind}\r\n".encode() + body)
        await writer.drain()
        return reader, writer

    async def _reply(self, reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        pairs = (line.partition(": ") for line in lines[1:] if line)
        return int(lines[0].split()[1]), {name.lower(): value for name, _, value in pairs}

    async def follow(self, path: str) -> AsyncIterator[tuple[str, int]]:
        """(event, id) of a stream, to its end."""
        reader, _ = await self.send("GET", path)
        status, _ = await self._reply(reader)
        if status != 200:
            raise OSError(f"{path} answered {status}")
        event, number = "", 0
        while line := await reader.readline():
            word, _, value = line.decode().strip().partition(": ")
            if word == "event":
                event = value
            elif word == "id":
                number = int(value)
            elif word == "data":
                yield event, number
                if event == "end":
                    return

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Load:
    """Everything that goes on against one server for a while."""

    def __init__(self, netloc: str, token: str, paths: Sequence[str]) -> None:
        self._netloc, self._token, self._paths = netloc, token, paths
        self._until = 0.0
        self._latencies: list[float] = []
        self._errors: list[str] = []
        self._events = 0
        self._runs: list[str] = []

    async def drive(self, readers: int, streams: int, starters: int, seconds: float) -> Figures:
        began = time.monotonic()
        self._until = began + seconds
        begun: asyncio.Queue[str] = asyncio.Queue()
        tasks = [asyncio.create_task(self._read(number)) for number in range(readers)]
        tasks += [asyncio.create_task(self._start(begun)) for _ in range(starters)]
        following = [asyncio.create_task(self._follow(begun)) for _ in range(streams)] if starters else []
        await asyncio.gather(*tasks)
        took = time.monotonic() - began
        for _ in following:
            begun.put_nowait("")
        await asyncio.gather(*following)
        return Figures(
            len(self._latencies), took, self._latencies, self._errors, self._events, len(self._runs)
        )

    async def _read(self, number: int) -> None:
        connection = Connection(self._netloc, self._token)
        with suppress(asyncio.CancelledError):
            while time.monotonic() < self._until:
                path = self._paths[number % len(self._paths)]
                number += 1
                began = time.monotonic()
                try:
                    status, _ = await connection.ask("GET", path)
                except (OSError, asyncio.IncompleteReadError) as error:
                    self._errors.append(f"{path}: {error!r}")
                    return
                if status != 200:
                    self._errors.append(f"{path}: {status}")
                self._latencies.append((time.monotonic() - began) * 1_000)
        connection.close()

    async def _start(self, begun: asyncio.Queue[str]) -> None:
        connection = Connection(self._netloc, self._token)
        body = json.dumps({"recipe": "small", "script": SCRIPT}).encode()
        while time.monotonic() < self._until:
            status, said = await connection.ask("POST", "/api/runs", body)
            if status != 201:
                self._errors.append(f"start: {status} {said[:200]!r}")
                return
            self._runs.append(json.loads(said)["run_id"])
            for _ in range(10):  # as many follow each
                begun.put_nowait(self._runs[-1])
            await self._wait_for(self._runs[-1])
        connection.close()

    async def _wait_for(self, run: str) -> None:
        """One run at a time for each starter: a machine has only so many processors."""
        connection = Connection(self._netloc, self._token)
        async for _ in connection.follow(f"/api/runs/{run}/stream"):
            pass
        connection.close()

    async def _follow(self, begun: asyncio.Queue[str]) -> None:
        while run := await begun.get():
            connection = Connection(self._netloc, self._token)
            seen = 0
            try:
                async for event, number in connection.follow(f"/api/runs/{run}/stream"):
                    if event == "envelope":
                        if number != seen + 1:
                            self._errors.append(f"{run}: {number} came behind {seen}")
                        seen = number
                        self._events += 1
                connection.close()
                status, said = await connection.ask("GET", f"/api/runs/{run}/head")
                if status != 200 or json.loads(said)["reach"] != seen:
                    self._errors.append(f"{run}: the stream ended at {seen}")
            except (OSError, asyncio.IncompleteReadError) as error:
                self._errors.append(f"{run}: {error!r}")
            connection.close()


class Measured(NamedTuple):
    served: Figures
    bare: Figures


def measure(readers: int, streams: int, starters: int, seconds: float, rounds: int) -> Measured:
    """The two in turn; the figures of all their turns together."""
    with tempfile.TemporaryDirectory(prefix="fanfold-load-") as folder:
        environment = {**os.environ, "FANFOLD_HOME": f"{folder}/home", "FANFOLD_DURABILITY": "normal"}
        workflows = Path(folder, "project", ".fanfold", "workflows")
        workflows.mkdir(parents=True)
        (workflows / "small.yaml").write_text(RECIPE)
        served = subprocess.Popen(
            [sys.executable, "-m", "fanfold.cli.main", "serve", "--port", "0", "--json"],
            cwd=Path(folder, "project"),
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        bare: subprocess.Popen[bytes] | None = None
        try:
            assert served.stdout is not None
            link = urlsplit(json.loads(served.stdout.readline())["link"])
            token = link.query.partition("=")[2]
            paths, sizes = asyncio.run(_paths(link.netloc, token))
            bare, place = _start_bare(sizes)
            same = [f"/{n}" for n in range(len(sizes))]
            ours, theirs = [], []
            for _ in range(rounds):
                theirs.append(asyncio.run(Load(place, "", same).drive(readers, 0, 0, seconds)))
                load = Load(link.netloc, token, paths)
                ours.append(asyncio.run(load.drive(readers, streams, starters, seconds)))
            return Measured(_together(ours), _together(theirs))
        finally:
            for process in (served, bare):
                if process is not None:
                    process.terminate()
                    process.wait()


async def _paths(netloc: str, token: str) -> tuple[list[str], list[int]]:
    """What is read, about a run that is over, and how many bytes each answer has."""
    connection = Connection(netloc, token)
    body = json.dumps({"recipe": "small", "script": SCRIPT}).encode()
    _, said = await connection.ask("POST", "/api/runs", body)
    run = json.loads(said)["run_id"]
    async for _ in Connection(netloc, token).follow(f"/api/runs/{run}/stream"):
        pass
    paths = [path.replace("{run}", run) for path in PATHS]
    return paths, [len((await connection.ask("GET", path))[1]) for path in paths]


def _start_bare(sizes: Sequence[int]) -> tuple[subprocess.Popen[bytes], str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-c", BARE, str(port), *map(str, sizes)])
    while process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return process, f"127.0.0.1:{port}"
        time.sleep(0.05)
    raise OSError("the bare application did not start")


def _together(turns: Sequence[Figures]) -> Figures:
    return Figures(
        sum(one.requests for one in turns),
        sum(one.seconds for one in turns),
        [latency for one in turns for latency in one.latencies_ms],
        [error for one in turns for error in one.errors],
        sum(one.events for one in turns),
        sum(one.runs for one in turns),
    )


def summary(served: Figures, bare: Figures) -> dict[str, object]:
    """What is kept of a measurement."""
    sides = {
        name: {
            "requests_per_s": round(one.rate, 1),
            "p50_ms": round(one.at(0.5), 1),
            "p95_ms": round(one.at(0.95), 1),
        }
        for name, one in (("served", served), ("bare", bare))
    }
    ratio = round(bare.rate / max(served.rate, 1e-9), 2)
    events = {"runs": served.runs, "events": served.events, "errors_and_gaps": len(served.errors)}
    return {**sides, "bare_reads_times_as_much": ratio, **events}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.load", description=(__doc__ or "").split("\n", 1)[0]
    )
    for name, usual in (("readers", 200), ("streams", 50), ("starters", 5), ("seconds", 10), ("rounds", 2)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--out", type=Path, help="write the figures there, too")
    options = parser.parse_args(argv)
    load = os.getloadavg()[0]
    clients = {name: value for name, value in vars(options).items() if name != "out"}
    began = {"began": datetime.now(UTC).isoformat(timespec="seconds"), "load_before": round(load, 1)}
    served, bare = measure(**clients)
    if options.out is not None:
        options.out.write_text(json.dumps({**began, **clients, **summary(served, bare)}, indent=2) + "\n")
    print(f"{options.readers} reading, {options.streams} following, {options.starters} starting", end="; ")
    print(f"load was {load:.1f}")
    for name, one in (("fanfold serve", served), ("bare starlette", bare)):
        times = f"p50 {one.at(0.5):6.1f} ms   p95 {one.at(0.95):6.1f} ms"
        print(f"{name:16}{one.rate:9,.0f} requests/s   {times}")
    print(f"bare reads {bare.rate / max(served.rate, 1e-9):.1f} times as much, with nobody starting runs;")
    print(f"meanwhile {served.runs} runs ran, and streams got {served.events:,} events of theirs;")
    print(f"{len(served.errors)} errors and gaps")
    for error in served.errors[:10]:
        print(f"  {error}")
    return 1 if served.errors or bare.errors else 0


if __name__ == "__main__":
    sys.exit(main())
