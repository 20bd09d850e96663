"""The state of a cluster, for `fanfold cluster status`, and requests to its workers."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec import structs

from fanfold.api.display import counted
from fanfold.api.project import Project
from fanfold.api.system import ClusterStatus, JobRow, QueueRow
from fanfold.api.workers import DEFAULT_TAG, WorkerRow, list_workers
from fanfold.cluster.jobs import DRIVE_QUEUE, ORDER_VERSION, queue_of, worker_queue
from fanfold.cluster.temporal import JobLost, TemporalLink, check_address
from fanfold.cluster.worker import measure_store
from fanfold.errors import AuthorError, NotFoundError, WorldError
from fanfold.kernel.state import PENDING, RUNNING
from fanfold.steps.ids import drive_id

DRAIN_S = 10.0
SLOW_MS = 50.0
"""From this round trip on, the store slows down every step."""
WRONG_CLOCK_S = 5.0


@asynccontextmanager
async def _connected(project: Project) -> AsyncIterator[tuple[TemporalLink, str]]:
    address = project.config.text("cluster.temporal")
    if address is None:
        message = "no cluster is configured"
        raise AuthorError("cluster.off", message, hint="set FANFOLD_TEMPORAL=host:port[/namespace]")
    identity = f"cluster status, process {os.getpid()} on {socket.gethostname()}"
    link = TemporalLink(check_address(address), identity, project.config.integer("cluster.heartbeat_s"))
    await link.connect()
    try:
        yield link, address
    finally:
        await link.close()


async def cluster_status(project: Project) -> ClusterStatus:
    """Return the workers, queues and jobs of the cluster."""
    async with _connected(project) as (link, address):
        workers = list_workers(project).items
        tags = sorted({DEFAULT_TAG, *(tag for worker in workers for tag in worker.tags)})
        at = {job: worker.name for worker in workers if not worker.lost for job in worker.jobs}
        jobs = [JobRow(id, queue, at.get(id, "")) for id, queue in await link.running()]
        prefix = queue_of("")
        waiting = {job.queue.removeprefix(prefix) for job in jobs if job.queue.startswith(prefix)}
        queues = [await _queue(link, tag, workers) for tag in sorted({*tags, *waiting, "drive"})]
    store_ms, ahead_s = measure_store(project.store)
    driven = {job.id for job in jobs}
    undriven = [
        head.run_id
        for head in project.heads(PENDING, RUNNING)
        if drive_id(head.run_id) not in driven
        and not project.has_owner(head.run_id)
        and project.continuation.takes(project, head.run_id)
    ]
    status = ClusterStatus(
        temporal=address,
        order_version=ORDER_VERSION,
        store_ms=store_ms,
        clock_s=ahead_s,
        workers=workers,
        queues=queues,
        jobs=jobs,
        undriven=undriven,
        problems=[],
    )
    return structs.replace(status, problems=_problems(status))


async def _queue(link: TemporalLink, tag: str, workers: list[WorkerRow]) -> QueueRow:
    state = await link.queue_state(DRIVE_QUEUE if tag == "drive" else queue_of(tag))
    live = [one for one in workers if not one.lost and one.order_version == ORDER_VERSION]
    serving = sum(worker.drives if tag == "drive" else tag in worker.tags for worker in live)
    return QueueRow(tag=tag, waiting=state.waiting, oldest_s=round(state.oldest_s, 1), workers=serving)


def _problems(status: ClusterStatus) -> list[str]:
    """What is wrong, with what to do about it."""
    found = [
        f"{counted(queue.waiting, 'job')} cannot start without a worker with tag {queue.tag}; none is"
        f" connected: start fanfold worker{'' if queue.tag == 'drive' else f' --runs-on {queue.tag}'}"
        for queue in status.queues
        if queue.waiting and not queue.workers
    ]
    found += [
        f"worker {row.name} on {row.machine} has sent no heartbeat for {row.seen_s:g} s: start it again there"
        for row in status.workers
        if row.lost
    ]
    own = queue_of("")
    old = sorted({job.id.partition("/")[0] for job in status.jobs if not job.queue.startswith(own)})
    found += [
        f"run {run} uses another order version: keep a worker of that version until it ends" for run in old
    ]
    versions = sorted({worker.version for worker in status.workers if not worker.lost})
    if len(versions) > 1:
        found.append(f"workers have versions {', '.join(versions)}: upgrade the older ones")
    here = ("this machine", status.store_ms, status.clock_s)
    for name, store_ms, clock_s in (
        here, *((f"worker {row.name}", row.store_ms, row.clock_s) for row in status.workers)
    ):  # fmt: skip
        if store_ms >= SLOW_MS:
            found.append(f"the store answers {name} after {store_ms:g} ms: move them closer together")
        if abs(clock_s) >= WRONG_CLOCK_S:
            found.append(f"the clocks of {name} and the store differ by {abs(clock_s):g} s: set them by NTP")
    return found


async def drain_worker(project: Project, name: str) -> str:
    """Have a worker finish what it does and stop; return its name."""
    async with _connected(project) as (link, _):
        workers = list_workers(project).items
        if all(worker.name != name for worker in workers):
            known = ", ".join(worker.name for worker in workers) or "none"
            raise NotFoundError("worker.unknown", f"there is no worker {name}", hint=f"workers: {known}")
        try:
            return await link.request(worker_queue(name), "drain", "", DRAIN_S)
        except JobLost as lost:
            message = f"worker {name} did not answer within {DRAIN_S:g} s: {lost}"
            raise WorldError("worker.silent", message, hint="end its process on its machine") from None
