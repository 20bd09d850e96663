"""The executors of a driver in a cluster: workers perform agent, command and function steps.

Rules
* The `started` event names the order, and the job names the event. A worker trusts only the log.
* The driver alone writes the log of the run. What a worker returns is a blob, read here.
* A worker that is gone ends no step: the execution is interrupted (`worker.lost`) and the next one follows.
* A driver that ends leaves its jobs running. The next driver asks for them again, under the same ids.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from fanfold.agents.spending import Account
from fanfold.cluster.jobs import (
    DEFAULT_TAG,
    DISPATCHED,
    ExecutionReport,
    ExecutionTicket,
    encode,
    execution_id,
    queue_of,
)
from fanfold.cluster.temporal import JobLost
from fanfold.engine.run_tree import RunTree
from fanfold.errors import NotFoundError
from fanfold.sessions.processes import finish_despite_cancel
from fanfold.steps.ids import WORKER_LOST
from fanfold.steps.order import Job, Order, Outcome
from fanfold.steps.records import StepPlaced, is_lead

if TYPE_CHECKING:
    from fanfold.cluster.temporal import TemporalLink
    from fanfold.cluster.workspaces import TreeMerges

REFUSED_S = 1.0
"""The delay before the next execution of a step that a worker returned without an outcome."""


class WorkerDispatch:
    """Has the workers of a cluster execute the steps of one run tree."""

    def __init__(
        self, tree: RunTree, link: TemporalLink, driver: str, merges: TreeMerges | None = None
    ) -> None:
        self._tree = tree
        self._merges = merges
        self._link = link
        self.driver = driver
        self._jobs: dict[str, str] = {}
        """The id of the job of each session that runs."""
        self._is_detached = False
        self._cancelling: set[asyncio.Task[None]] = set()

    def takes(self, order: Order[Job]) -> bool:
        node = self._tree.state.runs[order.run].nodes[order.path]
        return order.step.type in DISPATCHED and not is_lead(node)

    async def perform(self, order: Order[Job], account: Account) -> Outcome:
        start = self._tree.starts[order.run, order.path]
        tokens, micro_usd = _left(account)
        ticket = replace(ExecutionTicket.of(order, start.seq), tokens=tokens, micro_usd=micro_usd)
        queue = queue_of(order.step.runs_on or DEFAULT_TAG)
        id = self._jobs[order.session] = execution_id(order)
        job = asyncio.create_task(self._link.execute(queue, id, encode(ticket)))
        try:
            encoded = await asyncio.shield(job)
        except asyncio.CancelledError:
            if self._is_detached:
                job.cancel()
                raise
            await finish_despite_cancel(self._end(id, job))
            raise
        except JobLost as lost:
            return _lost(order, str(lost))
        finally:
            self._jobs.pop(order.session, None)
        return await self._read(order, msgspec.json.decode(encoded, type=ExecutionReport))

    async def _end(self, id: str, job: asyncio.Task[str]) -> None:
        """Cancel a job and wait until its worker has stopped it, or is gone."""
        await self._link.cancel(id)
        await asyncio.wait([job])
        if not job.cancelled():
            job.exception()  # the step is recorded as stopped, whatever came of the job

    async def _read(self, order: Order[Job], report: ExecutionReport) -> Outcome:
        """The outcome that a worker returned."""
        placed = StepPlaced(worker=report.worker, machine=report.machine, version=report.version)
        if not report.outcome:
            await asyncio.sleep(REFUSED_S)
            return replace(_lost(order, report.lost), evidence=(placed,))
        try:
            outcome = msgspec.json.decode(self._tree.store.blob(report.outcome), type=Outcome)
        except NotFoundError:
            return replace(_lost(order, "its outcome is not in the store"), evidence=(placed,))
        if report.link and self._tree.journal is not None:
            self._tree.journal.links[order.session] = bytes.fromhex(report.link)
        if self._merges is not None:
            outcome = await self._merges.merge(order, outcome)
        return replace(outcome, evidence=(placed, *outcome.evidence), unsettled="")

    def pause(self, session: str) -> bool:
        id = self._jobs.get(session)
        if id is None:
            return False
        # The worker reads the reason from the log, which has it before this is called.
        task = asyncio.create_task(self._link.cancel(id))
        self._cancelling.add(task)
        task.add_done_callback(self._cancelling.discard)
        return True

    def detach(self) -> None:
        self._is_detached = True


def _lost(order: Order[Job], why: str) -> Outcome:
    message = f"the worker of {order.path} is gone: {why}"
    hint = "another worker continues the step"
    return Outcome(error=order.failure("transport", WORKER_LOST, message, hint))


def _left(account: Account) -> tuple[int | None, int | None]:
    """The tokens and micro-dollars that the smallest budget of a step leaves."""
    tokens = [
        one.max_tokens - one.spent_tokens - int(account.requests.reserved(one)[0])
        for one in account.ledgers
        if one.max_tokens is not None
    ]
    return (max(0, min(tokens)) if tokens else None), account.micro_usd_left()
