"""What must be looked at from inside a process of its own: memory, sizes, a resume after a crash.

    python -m bench.probes NAME FOLDER [NUMBER]

prints one line of JSON. `bench/sizes.py` starts them and knows the bars.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time, time

import apsw

import fanfold
from bench.graphs import chain, layered
from fanfold.api.ownership import own
from fanfold.api.project import Project
from fanfold.api.run_options import Options
from fanfold.api.start import create
from fanfold.engine.run_tree import RunTree
from fanfold.kernel.events import Envelope, SubagentEvent
from fanfold.kernel.plan import Input, Limits, Plan, Step
from fanfold.language.leaf_steps import AgentBody
from fanfold.wiring import wire

Figures = dict[str, float]
RESUME_EVENTS = 10_000
SESSION_DELAY_MS = 4_000
ROOMY = {"FANFOLD_MAX_SESSIONS": "100000"}
CEILINGS = "[workflows]\nmax_concurrent = 1024\nmax_agents = 100000\n"


@fanfold.function("h")
async def answer() -> str:
    return "done"


def memory_kb() -> float:
    """Resident memory of this process now."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1_024


def peak_kb() -> float:
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def open_project(folder: Path, durability: str = "normal") -> Project:
    """A project with raised limits. Probes that measure no time use the faster durability."""
    home = folder / "home"  # a project cannot raise what its user allows
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(CEILINGS)
    more = {**ROOMY, "FANFOLD_HOME": str(home), "FANFOLD_DURABILITY": durability}
    return wire(folder, {**os.environ, **more})


def drive(project: Project, plan: Plan, options: Options | None = None) -> RunTree:
    """Run a plan to its end."""

    async def to_the_end() -> RunTree:
        owned = create(project, plan, {}, options or Options(max_concurrency=16))
        await owned.host().start()
        return owned.tree

    tree = asyncio.run(to_the_end())
    assert tree.root.status == "completed", tree.root.status
    return tree


def roomy(plan: Plan) -> Plan:
    """The same plan, allowed to have all its steps."""
    return Plan(name=plan.name, steps=plan.steps, limits=Limits(max_steps=len(plan.steps)))


# The probes


def idle(folder: Path, _: int) -> Figures:
    """An open project that has run something, its event loop waiting."""
    project = open_project(folder)
    drive(project, chain(10))

    async def waiting() -> float:
        await asyncio.sleep(0.1)
        return memory_kb()

    return {"memory_kb": asyncio.run(waiting())}


def steps(folder: Path, number: int) -> Figures:
    """What a step adds to the process: plan, state, log and values of a run, all still held at its end."""
    project = open_project(folder)
    drive(project, chain(10))
    before = memory_kb()
    tree = drive(project, roomy(layered(number)))
    after = memory_kb()
    assert tree.root.status == "completed"
    return {"kb_per_step": (after - before) / number, "peak_kb_per_step": (peak_kb() - before) / number}


def log(folder: Path, number: int) -> Figures:
    """What a step adds to the log (its events as stored), and to the whole database."""
    project = open_project(folder)
    tree = drive(project, roomy(chain(number)))
    project.close()
    db = apsw.Connection(str(next((folder / ".fanfold").glob("*.db"))))
    # The first event holds the plan; it is not the log of any step.
    query = "SELECT sum(length(data) + length(type) + 8), count(*) FROM events WHERE seq > 1"
    written, events = next(iter(db.execute(query)))
    begin = perf_counter()
    project.runs_folder.mkdir(exist_ok=True)
    from fanfold.api.report import write_mirror

    write_mirror(tree, project.runs_folder)
    mirror_s = perf_counter() - begin
    size = sum(file.stat().st_size for file in (folder / ".fanfold").glob("*.db*"))
    return {
        "log_bytes_per_step": written / number,
        "events_per_step": events / number,
        "file_bytes_per_step": size / number,
        "mirror_us_per_step": mirror_s * 1e6 / number,
    }


def crash(folder: Path, number: int) -> Figures:
    """Leave a run behind in the middle, as `kill -9` does: `number` events of a run twice as long."""
    project = open_project(folder)
    seen = 0

    def die(written: list[Envelope]) -> None:
        nonlocal seen
        seen += len(written)
        if seen >= number:
            print(json.dumps({"events": written[-1].tree_seq}), flush=True)
            os._exit(0)

    async def to_the_middle() -> None:
        owned = create(project, roomy(chain(number)), {}, Options(max_concurrency=16))
        await owned.host(on_commit=die).start()

    asyncio.run(to_the_middle())
    raise AssertionError("the run ended before it had so many events")


def resume(folder: Path, started_ms: int) -> Figures:
    """Take the crashed run over; the time until its first new decision is on the disk."""
    begin = perf_counter()
    project = open_project(folder, "full")
    root = project.resolve("last").root_run_id
    owned = own(project, root)
    loaded = perf_counter()

    def stop(_: list[Envelope]) -> None:
        now = perf_counter()
        figures = {
            "resume_s": now - begin,
            "load_s": loaded - begin,
            "from_start_s": time() - started_ms / 1e3,
        }
        print(json.dumps(figures), flush=True)
        os._exit(0)

    asyncio.run(owned.host(on_commit=stop).resume())
    raise AssertionError("nothing was decided")


def sessions(folder: Path, number: int) -> Figures:
    """So many scripted sessions alive at the same time in this process, all of which complete."""
    project = open_project(folder, "full")
    step = Step(
        id="ask",
        action=AgentBody(agent="explorer", prompt="Look into {{item}}").action(),
        for_each="inputs.items",
        max_items=number,
    )
    plan = Plan(
        name="sessions",
        inputs=(Input("items", required=True),),
        steps=(step,),
        limits=Limits(max_steps=2 * number, max_agents=number, max_concurrency=number),
    )
    script = f"default: {{output: found, delay_ms: {SESSION_DELAY_MS}}}"
    options = Options(script=script, backend="scripted")
    # Whatever a first run imports (the library of expressions, that of YAML) is no session's.
    asyncio.run(create(project, plan, {"items": ["first"]}, Options(script="default: found")).host().start())
    live = most = 0
    idle_kb = 0.0
    before = memory_kb()

    def count(written: list[Envelope]) -> None:
        nonlocal live, most
        for envelope in written:
            if isinstance(envelope.data, SubagentEvent):
                live += {"started": 1, "finished": -1}.get(envelope.data.status, 0)
        most = max(most, live)

    async def run() -> RunTree:
        nonlocal idle_kb
        owned = create(project, plan, {"items": list(range(number))}, options)
        driving = asyncio.create_task(owned.host(on_commit=count).start())
        await asyncio.sleep(SESSION_DELAY_MS / 2_000)
        idle_kb = memory_kb()
        await driving
        return owned.tree

    begin, spent = perf_counter(), process_time()
    tree = asyncio.run(run())
    took, spent = perf_counter() - begin, process_time() - spent
    completed = sum(node.status == "completed" for node in tree.root.nodes.values() if "[" in node.path)
    return {
        "sessions": number,
        "completed": completed,
        "live_at_once": most,
        "seconds": took,
        "seconds_of_answering": SESSION_DELAY_MS / 1_000,
        "cpu_ms_per_session": spent * 1_000 / number,
        "kb_per_idle_session": (idle_kb - before) / number,
        "peak_mb": peak_kb() / 1_024,
    }


PROBES: dict[str, Callable[[Path, int], Figures]] = {
    probe.__name__: probe for probe in (idle, steps, log, crash, resume, sessions)
}

if __name__ == "__main__":
    name, folder, *number = sys.argv[1:]
    print(json.dumps(PROBES[name](Path(folder), int(number[0]) if number else 0)))
