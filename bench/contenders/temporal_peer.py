"""Temporal's development server on SQLite: one workflow whose steps are local activities.

Local activities are the cheapest durable step that Temporal has: they run in the worker, without a round trip
each, and their results are recorded when the workflow task ends or sends a heartbeat, every 8 s at most. So a
step is *not* on the disk before the next one begins, as it is with the others; it is when the workflow has
ended, and there the clock stops. The server is as shipped, with a file instead of memory. Workflows run
outside the SDK's sandbox, which costs and is not needed here.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import timedelta
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import Any

from bench.contenders.protocol import CONCURRENCY, Clock, OutOfTime, contend, groups
from bench.contenders.server import free_port, served

activity: Any = import_module("temporalio.activity")
client: Any = import_module("temporalio.client")
exceptions: Any = import_module("temporalio.exceptions")
worker: Any = import_module("temporalio.worker")
workflow: Any = import_module("temporalio.workflow")

PROGRAM = Path(sys.prefix) / "bin" / "temporal"
START_S = 30.0
clocks: list[Clock] = []


@activity.defn  # type: ignore[untyped-decorator]  # the peer's packages are not there when types are checked
async def tick() -> str:
    try:
        return clocks[0].tick()
    except OutOfTime:
        raise exceptions.ApplicationError("out of time", non_retryable=True) from None


@workflow.defn
class Steps:
    @workflow.run  # type: ignore[untyped-decorator]  # as above
    async def run(self, sizes: list[int]) -> None:
        for size in sizes:
            await asyncio.gather(*(self._step() for _ in range(size)))

    def _step(self) -> Any:
        return workflow.execute_local_activity(tick, start_to_close_timeout=timedelta(seconds=60))


def run(graph: list[list[int]], folder: Path, clock: Clock) -> dict[str, str]:
    clocks.append(clock)
    port = free_port()
    command = [
        str(PROGRAM), "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(port),
        "--db-filename", str(folder / "temporal.db"), "--log-level", "error",
    ]  # fmt: skip
    with served(command, folder, {}) as pid:
        clock.servers.append(pid)
        asyncio.run(_drive(f"127.0.0.1:{port}", [len(group) for group in groups(graph)], clock))
    said = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
    return {"temporalio": version("temporalio"), "server": said.strip(), "recorded": "with workflow tasks"}


async def _drive(address: str, sizes: list[int], clock: Clock) -> None:
    connected = await _connect(address)
    async with worker.Worker(
        connected,
        task_queue="bench",
        workflows=[Steps],
        activities=[tick],
        workflow_runner=worker.UnsandboxedWorkflowRunner(),
        max_concurrent_local_activities=CONCURRENCY,
    ):
        # The first workflow waits until the server has found the worker.
        await connected.execute_workflow("Steps", [], id="warm-up", task_queue="bench")
        clock.start()
        try:
            await connected.execute_workflow("Steps", sizes, id="bench", task_queue="bench")
        except client.WorkflowFailureError:
            if not clock.is_over:
                raise
        clock.stop()


async def _connect(address: str) -> Any:
    """The server takes a second or two to listen."""
    began = monotonic()
    while True:
        try:
            return await client.Client.connect(address)
        except RuntimeError:
            if monotonic() - began > START_S:
                raise
            await asyncio.sleep(0.05)


contend(run)
