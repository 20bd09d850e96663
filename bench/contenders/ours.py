"""Fanfold, embedded: from plan to finished run as recipes go, SQLite on disk with `synchronous=FULL`.

The step is a `function` step: an `async def`, or with BENCH_VARIANT=plain a plain `def`, which runs in a
thread; or, with BENCH_VARIANT=agents, an agent step that a script answers. The run is recorded first and then
driven, and both are counted. The clock stops when the run's end is on the disk; the mirror of files for
people, written behind the log, is not made here (section `sizes` times it).
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import apsw

import fanfold
from bench.contenders.counting import WRITES
from bench.contenders.protocol import CONCURRENCY, WARM_COMMITS, WORDS, Clock, OutOfTime, contend
from fanfold.api.ownership import OwnedRun
from fanfold.api.run_options import Options
from fanfold.api.start import create
from fanfold.kernel.plan import LeafAction, Limits, Plan, Step
from fanfold.kernel.state import COMPLETED
from fanfold.language.leaf_steps import AgentBody
from fanfold.steps.function import FunctionBody
from fanfold.wiring import wire

SCRIPT = f'default: "{{{{step}}}} {WORDS}"'


def run(graph: list[list[int]], folder: Path, clock: Clock) -> dict[str, str]:
    variant = os.environ.get("BENCH_VARIANT") or "async"
    agents = variant == "agents"
    if variant == "plain":

        @fanfold.function("tick")
        def tick() -> str:
            return _tick(clock)
    else:

        @fanfold.function("tick")
        async def tick_async() -> str:
            return _tick(clock)

    body = AgentBody(agent="explorer", prompt="Look into it.") if agents else FunctionBody(handler="tick")
    plan = _plan(graph, body.action())
    project = wire(folder)
    options = Options(max_concurrency=CONCURRENCY, script=SCRIPT if agents else None)

    async def drive() -> None:
        if WARM_COMMITS:
            chain = [[i - 1] if i else [] for i in range(WARM_COMMITS)]
            await (
                create(project, _plan(chain, FunctionBody(handler="warm").action()), {}, options)
                .host()
                .start()
            )
        clock.start()
        owned = create(project, plan, {}, options)
        if WRITES is not None:
            WRITES.reset()
        clock.drive()
        try:
            await asyncio.wait_for(owned.host().start(), clock.limit_s)
        except TimeoutError:
            clock.is_over = True
        clock.stop()
        if WRITES is not None:
            clock.writes, clock.written_bytes = WRITES.count, WRITES.bytes
        if agents:  # a script does not tick
            clock.steps = _completed(owned)
        owned.let_go()

    facts = {"fanfold": fanfold.__version__, "sqlite": apsw.sqlite_lib_version(), "step": variant}
    asyncio.run(drive())
    project.close()
    return facts


@fanfold.function("warm")
async def warm() -> str:
    return "warm"


def _plan(graph: list[list[int]], action: LeafAction) -> Plan:
    steps = tuple(
        Step(id=f"s{i}", action=action, depends_on=tuple(f"s{n}" for n in needs))
        for i, needs in enumerate(graph)
    )
    return Plan(name="bench", steps=steps, limits=Limits(max_steps=len(steps), max_agents=len(steps)))


def _completed(owned: OwnedRun) -> int:
    return sum(node.status == COMPLETED for node in owned.tree.root.nodes.values())


def _tick(clock: Clock) -> str:
    try:
        return clock.tick()
    except OutOfTime:
        raise RuntimeError("out of time") from None  # fails the step, and with it what depends on it


if __name__ == "__main__":
    contend(run)
