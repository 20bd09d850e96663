"""The yardstick: an asyncio loop that runs the steps of a group and commits their results in one go.

It keeps one row a step, in WAL mode with `synchronous=FULL`, and nothing else: no plan, no dependencies,
no way to resume. A group is as many steps as may run at once, so a chain commits once per step.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from time import time_ns

import apsw

from bench.contenders.counting import WRITES
from bench.contenders.protocol import WARM_COMMITS, Clock, OutOfTime, contend, groups


def run(graph: list[list[int]], folder: Path, clock: Clock) -> dict[str, str]:
    db = apsw.Connection(str(folder / "bare.db"))
    db.pragma("journal_mode", "WAL")
    db.pragma("synchronous", "FULL")
    db.execute("CREATE TABLE results (step INTEGER PRIMARY KEY, at INTEGER NOT NULL, data BLOB NOT NULL)")
    db.execute("CREATE TABLE warm (number INTEGER PRIMARY KEY)")
    for number in range(WARM_COMMITS):
        db.execute("INSERT INTO warm VALUES (?)", (number,))
    order = groups(graph)

    async def step() -> str:
        return clock.tick()

    async def drive() -> None:
        clock.start()
        if WRITES is not None:
            WRITES.reset()
        for group in order:
            results = await asyncio.gather(*(step() for _ in group))
            now = time_ns() // 1_000_000
            rows = [
                (number, now, json.dumps({"step": f"s{number}", "status": "completed", "output": result}))
                for number, result in zip(group, results, strict=True)
            ]
            db.execute("BEGIN IMMEDIATE")
            db.executemany("INSERT INTO results VALUES (?, ?, ?)", rows)
            db.execute("COMMIT")

    try:
        asyncio.run(drive())
    except OutOfTime:
        pass
    clock.stop()
    if WRITES is not None:
        clock.writes, clock.written_bytes = WRITES.count, WRITES.bytes
    db.close()
    return {"apsw": apsw.apsw_version(), "sqlite": apsw.sqlite_lib_version(), "journal": "WAL, FULL"}


contend(run)
