"""Restate: one handler whose steps are `ctx.run` actions, recorded by a server of its own.

The handler runs in this process and talks to the server over HTTP/2. The server is one node, as shipped: it
writes its log with fsync and acknowledges every action. A chain awaits one action after the other; where
steps may run at once, as many as may are gathered.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from http.client import HTTPConnection
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import Any

from bench.contenders.protocol import Clock, OutOfTime, contend, groups
from bench.contenders.server import free_port, served

restate: Any = import_module("restate")
hypercorn: Any = import_module("hypercorn.asyncio")
hypercorn_config: Any = import_module("hypercorn.config")

START_S = 30.0
service = restate.Service("Bench")
clocks: list[Clock] = []


async def tick() -> str:
    try:
        return clocks[0].tick()
    except OutOfTime:
        raise restate.TerminalError("out of time") from None


async def steps(ctx: Any, sizes: list[int]) -> str:
    for size in sizes:
        actions = [ctx.run_typed("step", tick) for _ in range(size)]
        if size == 1:
            await actions[0]
            continue
        for done in await restate.gather(*actions):
            await done
    return "done"


service.handler("steps")(steps)


def run(graph: list[list[int]], folder: Path, clock: Clock) -> dict[str, str]:
    clocks.append(clock)
    program = next(Path(sys.prefix).glob("node_modules/@restatedev/restate-server-*/bin/restate-server"))
    node, ingress, admin = (f"127.0.0.1:{free_port()}" for _ in range(3))
    environment = {
        "RESTATE_BIND_ADDRESS": node,
        "RESTATE_INGRESS__BIND_ADDRESS": ingress,
        "RESTATE_ADMIN__BIND_ADDRESS": admin,
        "RESTATE_LISTEN_MODE": "tcp",
        "RESTATE_DISABLE_TELEMETRY": "true",
        "RESTATE_LOG_FILTER": "error",
    }
    command = [str(program), "--no-logo", "--base-dir", str(folder / "restate")]
    with served(command, folder, environment) as pid:
        clock.servers.append(pid)
        asyncio.run(_drive(ingress, admin, [len(group) for group in groups(graph)], clock))
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return {"restate-sdk": version("restate-sdk"), "server": said.strip(), "log": "one node, fsync"}


async def _drive(ingress: str, admin: str, sizes: list[int], clock: Clock) -> None:
    config = hypercorn_config.Config()
    own = f"127.0.0.1:{free_port()}"
    config.bind, config.loglevel = [own], "ERROR"
    end = asyncio.Event()
    app = restate.app(services=[service])
    serving = asyncio.create_task(hypercorn.serve(app, config, shutdown_trigger=end.wait))
    try:
        await _register(admin, own)
        await asyncio.to_thread(_post, ingress, "/Bench/steps", [])  # the first call finds out who leads
        clock.start()
        try:
            await asyncio.to_thread(_post, ingress, "/Bench/steps", sizes)
        except Refused:
            if not clock.is_over:
                raise
        clock.stop()
    finally:
        end.set()
        await serving


async def _register(admin: str, own: str) -> None:
    """The server takes a second or two until it takes a deployment."""
    began = monotonic()
    while True:
        try:
            await asyncio.to_thread(_post, admin, "/deployments", {"uri": f"http://{own}"})
            return
        except (OSError, Refused):
            if monotonic() - began > START_S:
                raise
            await asyncio.sleep(0.05)


class Refused(Exception):
    """The server answered, and not with success."""


def _post(server: str, path: str, body: object) -> None:
    connection = HTTPConnection(server, timeout=120)
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        said = answer.read()
    finally:
        connection.close()
    if answer.status >= 300:
        raise Refused(f"{path}: {answer.status} {said[:500]!r}")


contend(run)
