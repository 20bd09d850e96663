"""DBOS on SQLite: one workflow whose steps are DBOS steps.

As shipped it leaves SQLite's rollback journal and `synchronous=FULL` in place. With BENCH_VARIANT=wal the
file is made beforehand in WAL mode: faster, and something its users may do too, though nothing tells them.
A chain is a plain workflow that calls plain steps, without an event loop in between; where steps may run
at once, an async workflow gathers as many as may.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.contenders.protocol import Clock, OutOfTime, contend, groups


def run(graph: list[list[int]], folder: Path, clock: Clock) -> dict[str, str]:
    file = folder / "dbos.sqlite"
    if os.environ.get("BENCH_VARIANT") == "wal":
        made = sqlite3.connect(file)
        made.execute("PRAGMA journal_mode=WAL")
        made.close()
    dbos: Any = import_module("dbos")
    dbos.DBOS(config={
        "name": "bench", "system_database_url": f"sqlite:///{file}", "log_level": "ERROR",
        "run_admin_server": False, "enable_otlp": False,
    })  # fmt: skip
    order = groups(graph)

    def tick() -> str:
        return clock.tick()

    async def tick_async() -> str:
        return clock.tick()

    step, step_async = dbos.DBOS.step()(tick), dbos.DBOS.step()(tick_async)

    def chain() -> None:
        for _ in graph:
            step()

    async def gather() -> None:
        for group in order:
            await asyncio.gather(*(step_async() for _ in group))

    is_chain = all(len(group) == 1 for group in order)
    workflow = dbos.DBOS.workflow()(chain if is_chain else gather)
    dbos.DBOS.launch()
    clock.start()
    try:
        if is_chain:
            workflow()
        else:
            asyncio.run(workflow())
    except OutOfTime:
        pass
    clock.stop()
    return {"dbos": version("dbos"), "sqlalchemy": version("sqlalchemy"), "sqlite": sqlite3.sqlite_version}


contend(run)
os._exit(0)  # its background threads take seconds to end
