"""Children: what subagents cost in an open run of 100,000, and items of a map behind a map of 10,000.

A client starts a hundred scripted agents and waits for them; the owner of the run drives them in the same
process, so that the processor's time covers both. In between, children are recorded as their owner records
them, without a session. The map behind another one depends on it, or does not. Processor time is judged: the
clock shows what else the machine does.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from time import perf_counter, process_time

from msgspec.structs import replace

from fanfold import open as open_project
from fanfold.api.client import Client
from fanfold.api.ownership import own
from fanfold.api.run_options import Options
from fanfold.api.start import create_open
from fanfold.engine.requests import AddRequest, act_on_child
from fanfold.engine.run_tree import RunTree
from fanfold.kernel.state import COMPLETED
from fanfold.steps.records import subagent_event
from fanfold.steps.run_config import HAND, to_json

CHILDREN = int(os.environ.get("BENCH_CHILDREN", "100000"))
ITEMS = int(os.environ.get("BENCH_ITEMS", "10000"))
BATCH = 100
COMMIT_EVERY = 500
MAX_GROWTH = 1.3
OPTIONS = Options(script="default: done with some words\n", permission="auto")
MAPS = """\
name: maps
inputs: [{{name: items, type: array, required: true}}]
limits: {{max_agents: 100000, max_steps: 100000, timeout: 9h}}
steps:
  - {{id: first, for_each: inputs.items, max_items: 10000, agent: explorer, prompt: "Read {{{{item}}}}"}}
  - {{id: second, for_each: inputs.items, max_items: 10000, agent: explorer, prompt: "Again"{behind}}}
output: done
"""


def measure(rounds: int) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory(prefix="fanfold-children-") as folder:
        os.environ["FANFOLD_HOME"] = str(Path(folder) / "home")
        os.environ["FANFOLD_DURABILITY"] = "normal"
        project = Path(folder) / "project"
        project.mkdir()
        (Path(folder) / "home").mkdir()
        (Path(folder) / "home" / "config.toml").write_text("[workflows]\nmax_agents = 100000\n")
        return asyncio.run(_measure(project, max(2, min(rounds, 5)))) | asyncio.run(_maps(project))


async def _maps(project: Path) -> dict[str, dict[str, float]]:
    rows = {}
    for name, behind in (("beside", ""), ("behind", ", depends_on: [first]")):
        (project / f"{name}.yaml").write_text(MAPS.format(behind=behind))
        async with open_project(project) as client:
            cpu = process_time()
            items = list(range(ITEMS))
            result = await client.run(project / f"{name}.yaml", inputs={"items": items}, options=OPTIONS)
            assert result.status == COMPLETED
            us = (process_time() - cpu) * 1e6 / (2 * ITEMS)
        rows[f"{ITEMS:,} items {name} {ITEMS:,}"] = {"cpu_us_a_step": us}
    beside, behind_row = rows.values()
    behind_row["cpu_growth"] = behind_row["cpu_us_a_step"] / beside["cpu_us_a_step"]
    return rows


async def _measure(folder: Path, rounds: int) -> dict[str, dict[str, float]]:
    async with open_project(folder) as client:
        create_open(client.project, HAND)
        first = await _batches(client, rounds, fill_to=0)
        last = await _batches(client, rounds, fill_to=CHILDREN)
    growth = {"cpu_growth": last["cpu_ms"] / first["cpu_ms"], "ms_growth": last["ms"] / first["ms"]}
    return {f"{BATCH} of the first": first, f"{BATCH} after {CHILDREN:,}": last | growth}


async def _batches(client: Client, rounds: int, fill_to: int) -> dict[str, float]:
    """The best of some batches; the first one only fills caches."""
    owned = own(client.project, HAND)
    if fill_to:
        _fill(owned.tree, fill_to)
    taken: list[tuple[float, float]] = []
    driving = asyncio.create_task(owned.host(leave_when_waiting=False).resume())
    try:
        for _ in range(rounds + 1):
            batch = asyncio.create_task(_batch(client))
            await asyncio.wait([batch, driving], return_when=asyncio.FIRST_COMPLETED)
            taken.append(batch.result())
    finally:
        driving.cancel()
        await asyncio.wait([driving])
        owned.let_go()
    return {"ms": min(one[0] for one in taken[1:]), "cpu_ms": min(one[1] for one in taken[1:])}


async def _batch(client: Client) -> tuple[float, float]:
    at, cpu = perf_counter(), process_time()
    names = [(await client.spawn_agent("explorer", "task", options=OPTIONS)).id for _ in range(BATCH)]
    over = await client.wait_agent(*names, timeout_s=600)
    assert {status: len(children) for status, children in over.items()} == {COMPLETED: BATCH}
    return (perf_counter() - at) * 1_000, (process_time() - cpu) * 1_000


def _fill(tree: RunTree, count: int) -> None:
    """Record children as if they had run, up to `count`."""
    like = tree.turns("explorer-1")[0]
    added = AddRequest(step=like.step, frozen=to_json(tree.frozen(like)), key="")
    output = tree.blobs.put("done")
    for number in range(tree.child_count() + 1, count + 1):
        at, name = tree.now_ms(), f"explorer-{number}"
        act_on_child(tree, 0, replace(added, step=replace(added.step, id=name), key=name), at)
        node = tree.turns(name)[0]
        ended = subagent_event(node, COMPLETED, 1, 1, "task", output=output, summary="done")
        tree.report(tree.root.id, at, ended)
        if number % COMMIT_EVERY == 0:
            tree.commit()
    tree.commit()


def failures(table: dict[str, dict[str, float]]) -> list[str]:
    """What misses its bar."""
    return [
        f"{name}: cpu_growth {row['cpu_growth']:.2f}, allowed {MAX_GROWTH}"
        for name, row in table.items()
        if row.get("cpu_growth", 0) > MAX_GROWTH
    ]
