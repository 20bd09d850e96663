"""Several machines: PostgreSQL instead of SQLite, steps as jobs of workers, lost workers and drivers.

All in one window on this machine, by loopback. One process on PostgreSQL is compared with one on SQLite, and
what workers execute with plain standalone activities of the same number of workers. `again_s` and `driver_s`
count from `kill -9` to the next start of the step, and to the first event of the next driver.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from msgspec.structs import replace

import fanfold
from bench.graphs import chain, fan_out
from fanfold.api.project import Project
from fanfold.api.run_options import Options
from fanfold.api.start import create
from fanfold.engine.run_trees import RunTrees, open_objects, store_snapshot
from fanfold.kernel.plan import Limits, Plan
from fanfold.steps.records import RunTreeStored, StoredPack
from fanfold.store.address import PostgresAddress
from fanfold.store.protocol import Batch, Blobs
from fanfold.wiring import wire
from fanfold.workspace.transport import TreeFolder, parts_of
from fanfold.workspace.workspaces import Workspaces
from tests.cluster.relays import Relay
from tests.cluster.workers import Cluster, TemporalServer, until
from tests.e2e.world import MODELS, Provider
from tests.provider import RecordedRequest, Reply
from tools.postgresql import PostgresServer

STEPS = 200
LARGE = 3_400
"""Steps of the run whose driver is replaced: three events each."""
SLOTS = 8
HEARTBEAT_S = 5
WORKERS = ("one", "two")
MAX_POSTGRES = 2.0
MAX_DISPATCH = {"chain": 1.5, "fan-out": 1.3}
MAX_BESIDE, MAX_TRAVEL_MS, MAX_TRAVEL_BYTES, FILES = 1.2, 150, 65_536, 5_000
MAX_DELTA_MS, MAX_CANCEL_S = 200, 5
MAX_AGAIN_S, MAX_DRIVER_S = HEARTBEAT_S + 1, HEARTBEAT_S + 2
PLAIN = """
import asyncio, sys
from datetime import timedelta
from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker

@activity.defn(name="nothing")
async def nothing(text: str) -> str:
    return text

async def main():
    client = await Client.connect(sys.argv[1])
    print("ready", flush=True)
    slots = int(sys.argv[2])
    await Worker(client, task_queue="plain", activities=[nothing], max_concurrent_activities=slots).run()

asyncio.run(main())
"""


@fanfold.function("h")
async def nothing() -> str:
    return "done"


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """A row for each shape, and one for lost processes and sizes."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fanfold-bench.")))
        folder.chmod(0o755)
        (folder / "temporal").mkdir()
        server = PostgresServer()
        stack.callback(server.remove)
        address = PostgresAddress(url=server.url, project="bench/embedded")
        address.init()
        temporal = TemporalServer(folder / "temporal")
        stack.callback(temporal.stop)
        rows = {
            "chain": _embedded(folder, address, chain(STEPS), rounds),
            "fan-out": _embedded(folder, address, fan_out(STEPS), rounds),
        }
        cluster = Cluster(folder, temporal.address)
        stack.callback(cluster.stop)
        cluster.environment |= {
            "FANFOLD_STORE": server.url,
            "FANFOLD_PROJECT": "bench/cluster",
            "FANFOLD_HEARTBEAT_S": str(HEARTBEAT_S),
        }
        (cluster.project / "hand.py").write_text("async def work(i=0):\n    return i\n")
        for name in WORKERS:
            cluster.start(name, "--slots", str(SLOTS), apart=True)
        for shape, row in rows.items():
            plain = min(_plain_ms(temporal.address, shape) for _ in range(2))
            steps = min(_dispatched_ms(cluster, server.url, shape) for _ in range(2))
            row |= {"plain_ms": plain, "dispatched_ms": steps, "of_plain": steps / plain}
        rows["beside"] = _beside(folder, address, rounds)
        rows["travel"] = _travel(folder, address)
        rows["delta"] = _delta(cluster, server.url)
        rows["lost"] = _lost(cluster, server.url)
        rows["sizes"] = _sizes(address, cluster)
    return rows


def _embedded(folder: Path, address: PostgresAddress, plan: Plan, rounds: int) -> dict[str, float]:
    plan = replace(plan, limits=Limits(max_steps=STEPS))
    near = Relay(Path(address.url.rpartition("host=")[2]) / ".s.PGSQL.5432", delay_s=0.001)
    far = replace(address, url=f"postgresql://fanfold@127.0.0.1:{near.port}/postgres", project="bench/far")
    places: dict[str, PostgresAddress | None] = {"sqlite_us": None, "postgres_us": address, "far_us": far}
    best = dict.fromkeys(places, float("inf"))
    for turn in range(min(rounds, 3)):
        for name, store in places.items():
            project = wire(folder / f"{name}-{plan.name}-{turn}", store=store)
            (folder / f"{name}-{plan.name}-{turn}").mkdir(exist_ok=True)

            best[name] = min(best[name], asyncio.run(_run_us(project, plan)))
            project.close()
    near.close()
    return {**best, "of_sqlite": best["postgres_us"] / best["sqlite_us"]}


async def _run_us(project: Project, plan: Plan) -> float:
    """Microseconds a step of a run in this process."""
    began = time.perf_counter()
    owned = create(project, plan, {}, Options(max_concurrency=16))
    await owned.host().start()
    owned.done()
    return (time.perf_counter() - began) * 1e6 / STEPS


def _beside(folder: Path, address: PostgresAddress, rounds: int) -> dict[str, float]:
    """A run on SQLite: alone, and beside runs of this process on PostgreSQL, here and 2 ms away."""
    relay = Relay(Path(address.url.rpartition("host=")[2]) / ".s.PGSQL.5432", delay_s=0.001)
    url = f"postgresql://fanfold@127.0.0.1:{relay.port}/postgres"
    others: dict[str, PostgresAddress | None] = {
        "alone_us": None,
        "near_us": replace(address, project="bench/near"),
        "far_us": replace(address, url=url, project="bench/beside"),
    }
    best = dict.fromkeys(others, float("inf"))

    async def run_beside(place: Path, store: PostgresAddress | None) -> float:
        plan = replace(chain(STEPS), limits=Limits(max_steps=STEPS))
        other = None if store is None else wire(place / "other", store=store)
        running = None if other is None else asyncio.create_task(_run_us(other, plan))
        project = wire(place)
        found = await _run_us(project, plan)
        project.close()
        if other is not None and running is not None:
            assert not running.done(), "the other run has ended before"
            await running
            other.close()
        return found

    for turn in range(rounds):
        for name, store in others.items():
            place = folder / f"beside-{name}-{turn}"
            (place / "other").mkdir(parents=True)
            best[name] = min(best[name], asyncio.run(run_beside(place, store)))
    relay.close()
    return {
        **best,
        "of_near": best["far_us"] / best["near_us"],
        "of_alone": best["far_us"] / best["alone_us"],
    }


def _travel(folder: Path, address: PostgresAddress) -> dict[str, float]:
    """Three changed files of 5,000 from one machine through the store to another one that has the others."""
    place = folder / "travel"
    project, machines = place / "project", [place / "here", place / "there"]
    for made in (project, *machines, place / "checkout"):
        made.mkdir(parents=True)
    for number in range(FILES):
        file = project / f"part{number % 50}" / f"{number}.txt"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"line of {number}\n" * 1_000)
    here, there = map(open_objects, machines)
    store = address.open()
    blobs, spaces = Blobs(store), Workspaces(project)
    first, _ = store_snapshot(store, blobs, "travel", spaces, here, [])
    store.write([Batch(root="travel", epoch=None, blobs=blobs.take_fresh())])
    trees = RunTrees(store, "travel", there)
    trees.note(first)
    trees.fetch(first.tree)
    moving = TreeFolder(place / "checkout", there, in_git=False)
    with moving.at(first.tree):
        pass
    best = sent = float("inf")
    last, packs = first.tree, first.packs
    for turn in range(5):
        files = dict(here.files(last))
        began = time.perf_counter()
        for number in range(3):
            path = f"part{number}/{number}.txt"
            files[path] = files[path]._replace(oid=here.put("blob", f"turn {turn}\n".encode()))
        tree = here.put_files(files, last)
        pack = here.pack(tree, last)
        parts = tuple(map(blobs.put_encoded, parts_of(pack)))
        store.write([Batch(root="travel", epoch=None, blobs=blobs.take_fresh())])
        packs = (*packs, StoredPack(tree, parts))
        trees.note(RunTreeStored(tree=tree, packs=packs))
        trees.fetch(tree)
        with moving.at(tree):
            pass
        best, sent, last = min(best, time.perf_counter() - began), len(pack), tree
    store.close()
    return {"bytes": sent, "travel_ms": best * 1_000}


def _plain_ms(address: str, shape: str) -> float:
    """Milliseconds for a standalone activity that does nothing, by as many workers and slots."""
    from temporalio.client import Client

    command = [sys.executable, "-c", PLAIN, address, str(SLOTS)]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in WORKERS]
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.readline()

    async def run() -> float:
        from datetime import timedelta

        client = await Client.connect(address)
        slots = asyncio.Semaphore(1 if shape == "chain" else len(WORKERS) * SLOTS)

        async def one(number: int) -> None:
            async with slots:
                await client.execute_activity(
                    "nothing", "x", id=f"{shape}-{time.monotonic_ns()}-{number}", task_queue="plain",
                    result_type=str, start_to_close_timeout=timedelta(seconds=60),
                )  # fmt: skip

        await asyncio.gather(*map(one, range(SLOTS)))
        began = time.perf_counter()
        await asyncio.gather(*map(one, range(STEPS)))
        return (time.perf_counter() - began) * 1_000 / STEPS

    try:
        return asyncio.run(run())
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def _recipe(steps: int, shape: str) -> str:
    slots = 1 if shape == "chain" else len(WORKERS) * SLOTS
    return json.dumps(
        {
            "name": "nothing",
            "limits": {"max_concurrency": slots, "max_steps": steps + 10},
            "steps": [
                {
                    "id": "each",
                    "for_each": f"lists.range({steps})",
                    "handler": "hand:work",
                    "inputs": {"i": "{{item}}"},
                    "max_items": steps,
                }
            ],
        }
    )


def _dispatched_ms(cluster: Cluster, url: str, shape: str) -> float:
    """Milliseconds a step that does nothing, from the first start to the last end in the log."""
    run = cluster.run(_recipe(STEPS, shape))
    cluster.finished(run)
    store = PostgresAddress(url=url, project="bench/cluster").open()
    at = [event.at for event in store.tree(run) if str(event.data.get("step", "")).startswith("each[")]
    store.close()
    return (max(at) - min(at)) / STEPS


def _lost(cluster: Cluster, url: str) -> dict[str, float]:
    """Seconds from the end of a process until its work continues, with 10,000 events in the log."""
    (cluster.project / "hand.py").write_text(
        "import asyncio\n\nasync def work(i=0):\n"
        f"    await asyncio.sleep(600 if i == {LARGE - 1} else 0)\n    return i\n"
    )
    cluster.stop()
    cluster.workers.clear()
    cluster.start("driver", "--runs-on", "none", apart=True)
    cluster.start("steps", "--no-drive", "--slots", str(SLOTS), apart=True)
    run = cluster.run(_recipe(LARGE, "fan-out"))
    store = PostgresAddress(url=url, project="bench/cluster").open()
    last = f"each[{LARGE - 1}]"

    def started() -> list[int]:
        return [one.at for one in store.tree(run) if _is(one.data, last, "started")]

    def resumed() -> list[int]:
        return [one.at for one in store.tree(run) if one.data.get("kind") == "resumed"]

    until(lambda: store.reach(run) > 3 * LARGE - 50 and started())
    events = store.reach(run)
    cluster.start("next-driver", "--runs-on", "none", apart=True)
    cluster.start("next-steps", "--no-drive", apart=True)
    began = store.now_ms()
    cluster.kill("driver")
    until(resumed)
    driver_s = (resumed()[0] - began) / 1_000
    began = store.now_ms()
    cluster.kill("steps")
    until(lambda: len(started()) > 1)
    again_s = (started()[-1] - began) / 1_000
    began = store.now_ms()
    cluster.ok("cancel", run)
    cancel_s = (store.now_ms() - began) / 1_000
    store.close()
    return {"events": events, "driver_s": driver_s, "again_s": again_s, "cancel_s": cancel_s}


def _delta(cluster: Cluster, url: str) -> dict[str, float]:
    """Milliseconds from the answer of a model until another process hears its first words."""
    sent, heard = list[float](), list[float]()

    def respond(_asked: RecordedRequest) -> Reply:
        sent.append(time.perf_counter())
        return Reply(text="some words " * 20, pause_s=0.2)

    best = float("inf")
    with Provider(respond) as provider:
        cluster.environment |= provider.environment
        cluster.start("speaks", "--runs-on", "speaks", "--no-drive", apart=True)
        step = "{id: talk, agent: explorer, prompt: talk, runs_on: speaks}"
        for _ in range(3):
            run = cluster.run(f"name: talks\nsteps:\n  - {step}\n", "--model", MODELS["chat"])
            store = PostgresAddress(url=url, project="bench/cluster").open()
            with store.updates(run, lambda _text: heard.append(time.perf_counter())):
                cluster.finished(run)
            store.close()
            best = min(best, heard[0] - sent[-1])
            heard.clear()
    return {"delta_ms": best * 1_000}


def _is(data: dict[str, object], step: str, status: str) -> bool:
    return data.get("step") == step and data.get("status") == status


def _sizes(address: PostgresAddress, cluster: Cluster) -> dict[str, float]:
    import psycopg

    with psycopg.connect(address.url, autocommit=True) as db:
        used = db.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fanfold'")
        connections = used.fetchall()[0][0]
        size = db.execute(
            "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n"
            " ON n.oid = c.relnamespace WHERE n.nspname = 'fanfold' AND c.relkind = 'r'"
        )
        stored = float(size.fetchall()[0][0])
        ended = db.execute("SELECT count(*) FROM fanfold.outputs").fetchall()[0][0]
    return {
        "connections": connections / max(1, len(cluster.workers)),
        "kb_a_step": stored / max(1, ended) / 1_024,
    }


def failures(table: dict[str, dict[str, float]]) -> list[str]:
    """What misses its bar."""
    missed = []
    for shape, allowed in MAX_DISPATCH.items():
        row = table[shape]
        if row["of_sqlite"] > MAX_POSTGRES:
            missed.append(
                f"{shape}: PostgreSQL takes {row['of_sqlite']:.2f} of SQLite, allowed {MAX_POSTGRES}"
            )
        if row["of_plain"] > allowed:
            missed.append(
                f"{shape}: a dispatched step takes {row['of_plain']:.2f} of a plain one, allowed {allowed}"
            )
    if table["beside"]["of_near"] > MAX_BESIDE:
        missed.append(f"beside: another run takes {table['beside']['of_near']:.2f}, allowed {MAX_BESIDE}")
    travel = table["travel"]
    if travel["bytes"] > MAX_TRAVEL_BYTES or travel["travel_ms"] > MAX_TRAVEL_MS:
        missed.append(f"travel: {travel['bytes']:.0f} bytes, {travel['travel_ms']:.0f} ms")
    lost = table["lost"]
    if table["delta"]["delta_ms"] > MAX_DELTA_MS:
        missed.append(f"delta: {table['delta']['delta_ms']:.0f} ms, allowed {MAX_DELTA_MS} ms")
    for name, most in (("again_s", MAX_AGAIN_S), ("driver_s", MAX_DRIVER_S), ("cancel_s", MAX_CANCEL_S)):
        if lost[name] > most:
            missed.append(f"{name}: {lost[name]:.1f} s, allowed {most} s")
    return missed
