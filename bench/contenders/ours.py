"""Fanfold, embedded: from plan to finished run as recipes go, SQLite on disk with `synchronous=FULL`.

The step is a `function` step: an `async def`, or with BENCH_VARIANT=plain a plain `def`, which runs in a
thread. The clock stops when the run's end is on the disk; the mirror of files
for people, written behind the log, is not made here (section `sizes` times it).
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import apsw

import fanfold
from bench.contenders.protocol import CONCURRENCY, WARM_COMMITS, Clock, OutOfTime, contend
from fanfold.kernel.plan import Limits, Plan, Step
from fanfold.recipe.types.function import FunctionBody
from fanfold.runtime.operations.runs.creation import create
from fanfold.runtime.operations.runs.options import Options
from fanfold.wiring import wire


def run(graph: list[list[int]], folder: Path, clock: Clock) -> dict[str, str]:
    handler = os.environ.get("BENCH_VARIANT") or "async"
    if handler == "async":

        @fanfold.function("tick")
        async def tick_async() -> str:
            return _tick(clock)
    else:

        @fanfold.function("tick")
        def tick() -> str:
            return _tick(clock)

    plan = _plan(graph, "tick")
    project = wire(folder)
    options = Options(max_concurrency=CONCURRENCY)

    async def drive() -> None:
        if WARM_COMMITS:
            chain = [[i - 1] if i else [] for i in range(WARM_COMMITS)]
            await create(project, _plan(chain, "warm"), {}, options).host().start()
        clock.start()
        owned = create(project, plan, {}, options)
        await owned.host().start()
        clock.stop()
        owned.let_go()

    facts = {"fanfold": fanfold.__version__, "sqlite": apsw.sqlite_lib_version(), "handler": handler}
    asyncio.run(drive())
    project.close()
    return facts


@fanfold.function("warm")
async def warm() -> str:
    return "warm"


def _plan(graph: list[list[int]], handler: str) -> Plan:
    steps = tuple(
        Step(
            id=f"s{i}",
            action=FunctionBody(handler=handler).action(),
            depends_on=tuple(f"s{n}" for n in needs),
        )
        for i, needs in enumerate(graph)
    )
    return Plan(name="bench", steps=steps, limits=Limits(max_steps=len(steps)))


def _tick(clock: Clock) -> str:
    try:
        return clock.tick()
    except OutOfTime:
        raise RuntimeError("out of time") from None  # fails the step, and with it what depends on it


contend(run)
