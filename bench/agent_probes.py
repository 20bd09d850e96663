"""Agents looked at from inside a process of their own: many of them, calls of a model, large outputs.

    python -m bench.agent_probes NAME FOLDER [NUMBER]

prints one line of JSON. `bench/agents.py` starts them and knows the bars.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import apsw
import httpx2

from bench.contenders.counting import Writes
from bench.graphs import chain, layered
from bench.probes import Figures, drive, memory_kb, open_project
from fanfold.api.run_options import Options
from fanfold.kernel.plan import Limits, Plan, Step
from fanfold.language.leaf_steps import AgentBody
from tests.provider import KEY, Reply, ScriptedProvider

AT_ONCE = 16
WORDS = "lorem ipsum dolor sit amet " * 40
LARGE = 100_000
MODEL = "openai-chat:probe"


def agents(plan: Plan, prompt: Callable[[Step], str]) -> Plan:
    """The same graph with agents for steps, allowed to have all of them."""
    steps = tuple(
        Step(
            id=step.id,
            action=AgentBody(agent="explorer", prompt=prompt(step)).action(),
            depends_on=step.depends_on,
        )
        for step in plan.steps
    )
    return Plan(name=plan.name, steps=steps, limits=Limits(max_steps=len(steps), max_agents=len(steps)))


def layers(folder: Path, number: int) -> Figures:
    """Agent steps in layers, each of which says a kilobyte: what one costs, and what it leaves in memory."""
    project = open_project(folder)
    options = Options(max_concurrency=AT_ONCE, script=f'default: "{{{{step}}}} {WORDS}"')
    drive(project, agents(chain(10), _short), options)
    plan = agents(layered(number), _short)
    before, begin = memory_kb(), process_time()
    tree = drive(project, plan, options)
    spent, after = process_time() - begin, memory_kb()
    assert tree.root.status == "completed"
    return {"cpu_us_per_step": spent * 1e6 / number, "kb_per_step": (after - before) / number}


def _short(_: Step) -> str:
    return "Look into it."


# Calls of a model


def models(folder: Path, number: int) -> Figures:
    """Agents that each ask a provider once, so many at a time, beside a client that does nothing else."""
    forced = _Forced()
    with subprocess.Popen(
        [sys.executable, "-m", "bench.agent_probes", "provider", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as served:
        assert served.stdout is not None
        address = json.loads(served.stdout.readline())["address"]
        os.environ |= {
            "OPENAI_BASE_URL": address,
            "OPENAI_API_KEY": KEY,
            "FANFOLD_MODEL": MODEL,
        }
        try:
            bare = asyncio.run(_ask_barely(address, number))
            project = open_project(folder, "full")
            options = Options(max_concurrency=AT_ONCE)
            drive(project, agents(chain(3), _short), options)  # what is imported and connected once
            plan = agents(_side_by_side(number), _short)
            forced.count, begin = 0, process_time()
            drive(project, plan, options)
            ours = (process_time() - begin) * 1e6 / number
        finally:
            assert served.stdin is not None
            served.stdin.close()
    return {
        "cpu_us": ours,
        "bare_cpu_us": bare,
        "cpu_of_bare": ours / bare,
        "forced_writes": forced.count / number,
    }


def provider(_: Path, __: int) -> Figures:
    """Serve until nobody listens any more; a process of its own, whose time is nobody's."""

    async def serve() -> None:
        async with ScriptedProvider(lambda _: Reply(text=WORDS)) as served:
            print(json.dumps({"address": f"{served.url}/v1"}), flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

    asyncio.run(serve())
    os._exit(0)  # who started it does not listen any more


async def _ask_barely(address: str, number: int) -> float:
    """Microseconds of a call: the same words asked for, streamed and read, and nothing kept."""
    question = {
        "model": "probe",
        "messages": [{"role": "user", "content": "Look into it."}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with httpx2.AsyncClient(headers={"authorization": f"Bearer {KEY}"}) as client:

        async def ask() -> str:
            text = ""
            async with client.stream("POST", f"{address}/chat/completions", json=question) as answer:
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        said: dict[str, Any] = json.loads(line[6:])
                        text += "".join(one["delta"].get("content") or "" for one in said["choices"])
            return text

        assert await ask() == WORDS
        begin = process_time()
        for at in range(0, number, AT_ONCE):
            await asyncio.gather(*(ask() for _ in range(min(AT_ONCE, number - at))))
        return (process_time() - begin) * 1e6 / number


def _side_by_side(number: int) -> Plan:
    return Plan(
        name="calls", steps=tuple(Step(id=f"s{i}", action=chain(1).steps[0].action) for i in range(number))
    )


class _Forced(Writes):
    """The disk, with a tally of how often something waited until it was written."""

    def xOpen(self, name: apsw.URIFilename | str | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - named by SQLite
        return _ForcedFile(self, name, flags)


class _ForcedFile(apsw.VFSFile):
    def __init__(self, forced: _Forced, name: apsw.URIFilename | str | None, flags: list[int]) -> None:
        self._forced = forced
        super().__init__(forced.below, name, flags)

    def xSync(self, flags: int) -> None:  # noqa: N802 - named by SQLite
        self._forced.count += 1
        super().xSync(flags)


# Large outputs


def outputs(folder: Path, number: int) -> Figures:
    """A chain of agents that each get all that the one before said, 100 kB, and say as much; beside a loop
    that inserts as much. How often it is stored is told by the pages that are not free.
    """
    said = [f"{n} {'x' * LARGE}" for n in range(number)]
    bare = min(_insert(folder / f"bare{turn}.db", said) for turn in range(3))
    project = open_project(folder, "full")
    options = Options(script=f'default: "{{{{step}}}} {"x" * LARGE}"')
    drive(project, agents(chain(2), _short), options)
    file = next((folder / ".fanfold").glob("*.db"))
    before = _used_bytes(file)
    plan = agents(chain(number), _with_all_before)
    begin = process_time()
    drive(project, plan, options)
    ours = (process_time() - begin) * 1e6 / number
    return {
        "cpu_us": ours,
        "bare_cpu_us": bare,
        "cpu_of_bare": ours / bare,
        "stored_times": (_used_bytes(file) - before) / (number * LARGE),
    }


def _with_all_before(step: Step) -> str:
    return f"Go on: {{{{steps.{step.depends_on[0]}.output}}}}" if step.depends_on else "Begin."


def _insert(file: Path, texts: list[str]) -> float:
    db = apsw.Connection(str(file))
    db.pragma("journal_mode", "WAL")
    db.pragma("synchronous", "FULL")
    db.execute("CREATE TABLE results (step INTEGER PRIMARY KEY, data BLOB NOT NULL)")
    begin = process_time()
    for number, text in enumerate(texts):
        row = number, json.dumps({"step": f"s{number}", "output": text})
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO results VALUES (?, ?)", row)
        db.execute("COMMIT")
    spent = (process_time() - begin) * 1e6 / len(texts)
    db.close()
    return spent


def _used_bytes(file: Path) -> int:
    db = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READWRITE)
    pages = db.pragma("page_count") - db.pragma("freelist_count")
    size = int(pages) * int(db.pragma("page_size"))
    db.close()
    return size


PROBES: dict[str, Callable[[Path, int], Figures]] = {
    probe.__name__: probe for probe in (layers, models, provider, outputs)
}

if __name__ == "__main__":
    name, place, *count = sys.argv[1:]
    print(json.dumps(PROBES[name](Path(place), int(count[0]) if count else 0)))
