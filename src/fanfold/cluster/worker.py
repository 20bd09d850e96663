"""`fanfold worker`: takes jobs of the cluster until it is stopped.

Rules
* The main event loop does the work and alone uses the store. Temporal has a thread of its own.
* An order is performed only if the log of a live run has its start. Any other order is refused.
* A worker writes the log of its session, and blobs. Everything else is the driver's.
* Before each effect the worker reads whether the log has replaced its execution, and then stops.
* On SIGTERM a worker takes nothing new. Sessions stop after their recorded turn. Commands and functions get
  the grace period. Then the driver starts another execution elsewhere. Runs that it drives are released.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fanfold.agents.backend import SentText
from fanfold.agents.entries import LiveUpdate, News
from fanfold.agents.spending import Account
from fanfold.api.changes import cache_folder, fetch_artifacts, has_tree, run_folder, trees_of
from fanfold.api.ownership import OwnedRun, abandoned, executors_for, own
from fanfold.api.project import Project
from fanfold.api.workers import DEFAULT_TAG, DISPATCHED, WorkerRow
from fanfold.cluster.jobs import (
    DRIVE_QUEUE,
    ORDER_VERSION,
    ExecutionReport,
    ExecutionTicket,
    encode,
    queue_of,
    worker_queue,
)
from fanfold.cluster.temporal import JobControl, JobLost, ServedQueue, TemporalLink, check_address
from fanfold.cluster.workspaces import TreeIsolation, TreeMerges, with_artifacts
from fanfold.engine.driver import PAUSE_GRACE_S, DailyCaps, publish_update
from fanfold.engine.requests import ContinueRequest, from_row
from fanfold.engine.run_tree import RunTree
from fanfold.engine.run_trees import RunTrees
from fanfold.errors import AuthorError, NotFoundError, WorldError
from fanfold.kernel.budget import Ledger
from fanfold.kernel.decide import next_timer
from fanfold.kernel.events import (
    Envelope,
    Evidence,
    LimitsRaised,
    RunFinished,
    StepEvent,
    SubagentEvent,
    Usage,
    event_of,
)
from fanfold.kernel.state import EVENT_WORDS, PAUSED, RUN_TERMINAL, RUNNING, TERMINAL, WAITING
from fanfold.sessions.processes import finish_despite_cancel
from fanfold.steps.executor import HOST_FAULTS, StepExecutors
from fanfold.steps.ids import WORKER_LOST, execution_id
from fanfold.steps.order import Job, Order, Outcome
from fanfold.steps.records import SENT, StepPlaced, is_lead
from fanfold.steps.step_type import decode_order
from fanfold.store.journal import Journal
from fanfold.store.protocol import Batch, LeaseHeld, LeaseLost, RunHead, Store, StoreFault
from fanfold.workspace.seal import is_adopted

if TYPE_CHECKING:
    from fanfold.cluster.temporal import TemporalLink
    from fanfold.cluster.workspaces import TreeMerges

Texts: TypeAlias = Callable[[], Sequence[SentText]]
OpenFolder: TypeAlias = Callable[[Path], Project]
"""Opens a folder of a tree as a project with the store of the worker."""
MAX_RUNS = 32
"""Runs whose executors stay open between their steps."""
GATHER_S = 0.1
"""The time between two searches for runs without a driver."""
SETTLE_S = 60.0
"""How long the workspace of a step waits for the end of the step in the log. Then the next owner finds it."""
LEASE_CHECK_S = 1.0
STOPS = "it stops"
ANNOUNCE_S, ANNOUNCED_TIMES = 1.0, 3
"""The shortest time between two announcements, and how many are made per heartbeat."""
ROUNDS = 5
"""Round trips to the store whose fastest one is measured."""


class WorkerOptions(Struct, frozen=True, kw_only=True):
    """What a worker takes: the tags of its steps, how many at once, and whether it drives runs."""

    tags: tuple[str, ...] = (DEFAULT_TAG,)
    slots: int = 4
    drive: bool = True
    name: str = ""
    grace_s: float = 600.0
    prepare: str = ""
    """The operator's command that installs the dependencies of a tree."""


def measure_store(store: Store) -> tuple[float, float]:
    """The fastest round trip to the store in ms, and the seconds by which its clock is ahead of this one."""
    found: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        before, began = time.time(), time.perf_counter()
        now_ms = store.now_ms()
        took_s = time.perf_counter() - began
        found.append((took_s * 1_000, now_ms / 1_000 - before - took_s / 2))
    fastest_ms, ahead_s = min(found)
    return round(fastest_ms, 1), round(ahead_s, 1) + 0.0  # not -0


# -----------------------------------------------------------------------------------------------------------
# The fence of an execution, from the log alone


class OrderFence:
    """Knows from the log whether an execution may continue, and why it was asked to stop."""

    def __init__(self, store: Store, ticket: ExecutionTicket) -> None:
        self._store = store
        self._ticket = ticket
        self._seen = ticket.seq
        self.texts: list[SentText] = []
        """The texts that people sent to the step since its start."""
        self.stopping = ""
        """The reason in the last `stopping` event of the execution."""
        self.is_over = False
        """Whether the log has the end, the loss or the replacement of the execution."""
        self.has_ended = False
        """Whether the step itself has ended."""

    def read(self) -> None:
        """Read the events of the run that are new."""
        for envelope in self._store.log(self._ticket.run, self._seen):
            self._seen = envelope.seq
            self._note(envelope)

    def _note(self, envelope: Envelope) -> None:
        ticket, data = self._ticket, event_of(envelope).data
        if isinstance(data, RunFinished):
            self.is_over = self.has_ended = True
        if isinstance(data, Evidence) and envelope.type == "session_event":
            about = data.data
            if isinstance(about, dict) and about.get("kind") == SENT and about.get("step") == ticket.path:
                self.texts.append(SentText(about["text"], about["by"], about.get("call", "")))
        if not isinstance(data, StepEvent | SubagentEvent) or data.step != ticket.path or data.late:
            return
        word = EVENT_WORDS.get(data.status, data.status)
        mine = (data.attempt, data.execution) == (ticket.attempt, ticket.execution)
        if word == "stopping" and mine:
            self.stopping = data.reason
        elif word == "started" and not mine:
            self.is_over = True
        elif word in (*TERMINAL, "interrupted", "retrying"):
            self.is_over = True
            self.has_ended = self.has_ended or word in TERMINAL

    def confirm(self) -> None:
        """Raise `LeaseLost` if another execution has replaced this one, or the step has ended."""
        self.read()
        if self.is_over:
            raise LeaseLost(
                "worker.replaced",
                f"execution {self._ticket.attempt}.{self._ticket.execution} of {self._ticket.path} has ended",
                hint="the log has a later event of the step; nothing was changed",
            )


_fence: ContextVar[OrderFence | None] = ContextVar("fence", default=None)
"""The fence of the order that the current task executes."""


class WorkerJournal(Journal):
    """Writes the logs of sessions and blobs for the owner of a run tree, without its lease."""

    def __init__(self, store: Store, root: str, epoch: int) -> None:
        super().__init__(store, root)
        self.epoch = epoch

    def confirm(self) -> None:
        fence = _fence.get()
        if fence is not None:
            fence.confirm()

    def write(self, batch: Batch | None = None) -> None:
        super().write(Batch(root=self.root, epoch=None) if batch is None else batch)


class OpenRun:
    """The executors of one run tree in this worker."""

    def __init__(
        self,
        project: Project,
        root: str,
        epoch: int,
        open_folder: OpenFolder | None,
        prepare: str = "",
    ) -> None:
        self.journal = WorkerJournal(project.store, root, epoch)
        self.trees: RunTrees | None = None
        self._isolation: TreeIsolation | None = None
        if open_folder is not None and has_tree(project, root):
            cache = cache_folder(project)
            self.trees = trees_of(project, root)
            project = open_folder(run_folder(cache, root, "work"))
            self._isolation = TreeIsolation(
                project.folder, self.trees, self.journal.blobs, cache / "store.git", prepare
            )
            project.isolation = self._isolation
        self.executors: StepExecutors = executors_for(project, self.journal)
        self.users = 0

    async def perform(self, order: Order[Job], account: Account, texts: Texts) -> Outcome:
        """Do the work of an execution, on the latest tree of the run."""
        store = self.journal.store

        def report(news: News) -> None:
            publish_update(store, order.root, LiveUpdate(order.run, order.path, news))

        work = self.executors.perform(order, report, account, texts)
        if self._isolation is None or self.trees is None:
            return await work
        self.trees.read()
        runs = self._isolation.project / ".fanfold" / "runs"
        fetch_artifacts(self.journal.store, runs, order.run, order.job.artifacts.seen)
        if order.step.traits.workspace == "project":
            outcome = await self._isolation.perform_in_folder(order, work)
        else:
            outcome = await work
        return with_artifacts(outcome, runs, order.run, self.journal.blobs)


# -----------------------------------------------------------------------------------------------------------
# The worker


class WorkerProcess:
    """One worker of a project."""

    def __init__(
        self,
        project: Project,
        options: WorkerOptions,
        version: str,
        open_folder: OpenFolder | None = None,
    ) -> None:
        self._open_folder = open_folder
        address = project.config.text("cluster.temporal")
        if address is None:
            message = "a worker needs a Temporal server"
            raise AuthorError("cluster.off", message, hint="set FANFOLD_TEMPORAL=host:port[/namespace]")
        self._project = project
        self._options = options
        machine = socket.gethostname()
        store_ms, clock_s = measure_store(project.store)
        self.identity = WorkerRow(
            name=options.name or f"{machine}-{os.getpid()}",
            machine=machine,
            pid=os.getpid(),
            version=version,
            order_version=ORDER_VERSION,
            tags=options.tags,
            back_ends=project.backends.usable(),
            slots=options.slots,
            drives=options.drive,
            store_ms=store_ms,
            clock_s=clock_s,
        )
        self._address = check_address(address)
        self._heartbeat_s = project.config.integer("cluster.heartbeat_s")
        self._runs: OrderedDict[str, OpenRun] = OrderedDict()
        self._slots = asyncio.Semaphore(options.slots)
        self._controls: set[JobControl] = set()
        self._draining = asyncio.Event()
        self._settling: set[asyncio.Task[None]] = set()

    async def run(self, on_change: Callable[[WorkerRow], None]) -> None:
        """Take jobs until SIGTERM, SIGINT or `fanfold cluster drain`.

        `on_change` is called when it takes jobs, and when it takes no more: it has no tags then.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._draining.set)
        identity = f"worker {self.identity.name}, process {os.getpid()} on {self.identity.machine}"
        self._link = TemporalLink(self._address, identity, self._heartbeat_s)
        await self._link.connect()
        try:
            await self._link.serve(self._served())
            await self._announce()
            announcing = asyncio.create_task(self._announce_often())
            on_change(self.identity)
            watching: asyncio.Task[object] | None = None
            if self._options.drive:
                watching = asyncio.create_task(self._watch())
            waiting: asyncio.Task[object] = asyncio.create_task(self._draining.wait())
            tasks = {waiting} if watching is None else {waiting, watching}
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if watching is not None:
                watching.cancel()
            self.identity = replace(self.identity, tags=(), drives=False, jobs=self._job_ids())
            on_change(self.identity)
            await self._drain()
            announcing.cancel()
            self._project.store.announce(self.identity.name, "")
            for task in ended:
                task.result()  # raises if the store failed
        finally:
            await self._link.close()
            for opened in self._runs.values():
                await opened.executors.aclose()

    def _served(self) -> list[ServedQueue]:
        options = self._options
        queues = [ServedQueue(queue_of(tag), "execute", self._execute, options.slots) for tag in options.tags]
        if options.drive:
            queues.append(ServedQueue(DRIVE_QUEUE, "drive", self._drive, 1_000))
        queues.append(ServedQueue(worker_queue(self.identity.name), "drain", self._asked_to_drain, 1))
        return queues

    async def _announce_often(self) -> None:
        """Announce this worker when its jobs change, and several times per `cluster.heartbeat_s`."""
        while True:
            known, began = set(self._controls), time.monotonic()
            while time.monotonic() - began < self._heartbeat_s / ANNOUNCED_TIMES:
                await asyncio.sleep(ANNOUNCE_S)
                if self._controls != known:
                    break
            with suppress(StoreFault):  # an outage of the store
                await self._announce()

    async def _announce(self) -> None:
        row = replace(self.identity, jobs=self._job_ids())
        text = msgspec.json.encode(row).decode()
        await asyncio.to_thread(self._project.store.announce, self.identity.name, text)

    def _job_ids(self) -> tuple[str, ...]:
        return tuple(one.id for one in self._controls)

    async def _asked_to_drain(self, _payload: str, _control: JobControl) -> str:
        self._draining.set()
        return self.identity.name

    async def _drain(self) -> None:
        """Take nothing new, and end what runs: sessions after their turn, the rest after the grace period."""
        stopping = asyncio.create_task(self._link.stop_polling())
        for control in tuple(self._controls):
            control.stop("shutdown")
        await stopping
        if self._settling:
            await asyncio.wait(self._settling, timeout=LEASE_CHECK_S)
            for task in self._settling:
                task.cancel()

    # Steps

    async def _execute(self, payload: str, control: JobControl) -> str:
        me = self.identity
        about = {"worker": me.name, "machine": me.machine, "version": me.version}
        try:
            ticket = msgspec.json.decode(payload, type=ExecutionTicket)
            with self._controlled(control):
                async with self._slots:
                    if control.reason == "shutdown":
                        return encode(ExecutionReport(lost=STOPS, **about))
                    outcome, link = await self._perform(ticket, control)
        except (WorldError, msgspec.MsgspecError) as error:  # the step did not fail: another worker can do it
            return encode(ExecutionReport(lost=str(error)[:1_000], **about))
        if outcome is None:
            return encode(ExecutionReport(lost=STOPS, **about))
        return encode(ExecutionReport(outcome=outcome, link=link, **about))

    @contextmanager
    def _controlled(self, control: JobControl) -> Iterator[None]:
        self._controls.add(control)
        try:
            yield
        finally:
            self._controls.discard(control)

    async def _perform(self, ticket: ExecutionTicket, control: JobControl) -> tuple[str | None, str]:
        """Perform an execution; return the blob of its outcome and the last link of its session's chain."""
        order, epoch = self._read_order(ticket, control.id)
        opened = self._open(ticket.root, epoch)
        fence = OrderFence(self._project.store, ticket)
        try:
            work = asyncio.create_task(self._work(opened, order, ticket, fence))
            control.on_stop(lambda reason: self._stop(opened, order, fence, work, reason))
            try:
                outcome = await work
            except asyncio.CancelledError:
                return None, ""
            except HOST_FAULTS as fault:
                raise WorldError("worker.fault", f"{fault.code}: {fault.message}") from fault
            is_paused = outcome.error is not None and outcome.error.code == "session.paused"
            if is_paused and control.reason == "shutdown":
                return None, ""
            blob = opened.journal.blobs.put(msgspec.to_builtins(outcome))
            opened.journal.write()
            if outcome.unsettled:
                self._settle_later(opened, outcome.unsettled, fence)
            return blob, opened.journal.links.pop(order.session, b"").hex()
        finally:
            self._leave(opened)

    async def _work(
        self, opened: OpenRun, order: Order[Job], ticket: ExecutionTicket, fence: OrderFence
    ) -> Outcome:
        _fence.set(fence)
        ledger = Ledger(ticket.tokens, ticket.micro_usd)
        is_scripted = opened.executors.of(order).config.script is not None

        def pay(usage: Usage, _model: str) -> None:
            ledger.spend(usage)

        def texts() -> tuple[SentText, ...]:
            fence.read()
            return (*order.texts, *fence.texts)

        caps = None if is_scripted else DailyCaps.of(self._project.config)
        return await opened.perform(order, Account((ledger,), None, pay, caps), texts)

    def _read_order(self, ticket: ExecutionTicket, job: str) -> tuple[Order[Job], int]:
        """The order of a ticket and the epoch of its start; refused unless the log of a live run has it.

        A job with another id than the execution is refused: it would start the same work a second time.
        """
        store = self._project.store
        found = store.owner(ticket.root)
        possible = 0 < ticket.seq < 2**63
        envelope = next(store.log(ticket.run, ticket.seq - 1), None) if possible else None
        data = event_of(envelope).data if envelope is not None else None
        if envelope is None or not isinstance(data, StepEvent | SubagentEvent) or not data.order:
            raise _refusal(ticket, "its start is not in the log")
        named = (envelope.root_run_id, envelope.seq, data.status, data.step, data.attempt, data.execution)
        if named != (ticket.root, ticket.seq, "started", ticket.path, ticket.attempt, ticket.execution):
            raise _refusal(ticket, "the log records another start")
        if found is None or not found[1]:
            raise _refusal(ticket, "no process drives its run")
        order = decode_order(store.blob(data.order))
        if (order.run, order.path, order.attempt, order.execution) != (ticket.run, *named[3:]):
            raise _refusal(ticket, "its order is for another step")
        if job != execution_id(order.root, order.tree_path, order.attempt, order.execution):
            raise _refusal(ticket, "its job has another id")
        return order, envelope.epoch

    def _stop(
        self, opened: OpenRun, order: Order[Job], fence: OrderFence, work: asyncio.Task[Outcome], reason: str
    ) -> None:
        """Stop an execution: at once, or after its turn if it is paused or this worker stops."""
        fence.read()
        graceful = reason == "shutdown" or (reason == "cancel" and fence.stopping == "pause")
        if not graceful:
            work.cancel()
            return
        is_session = opened.executors.pause(order.session)
        wait_s = self._options.grace_s if reason == "shutdown" else PAUSE_GRACE_S
        if is_session or order.step.traits.role is None:
            asyncio.get_running_loop().call_later(wait_s, work.cancel)
        else:
            work.cancel()

    def _open(self, root: str, epoch: int) -> OpenRun:
        opened = self._runs.get(root)
        if opened is None or opened.journal.epoch != epoch:
            options, folder = self._options, self._open_folder
            opened, last = OpenRun(self._project, root, epoch, folder, options.prepare), opened
            self._runs[root] = opened
            if last is not None:
                self._close_unused(last)
        self._runs.move_to_end(root)
        opened.users += 1
        for name, other in list(self._runs.items()):
            if len(self._runs) > MAX_RUNS and not other.users:
                del self._runs[name]
                self._close_unused(other)
        return opened

    def _leave(self, opened: OpenRun) -> None:
        opened.users -= 1
        if self._runs.get(opened.journal.root) is not opened:
            self._close_unused(opened)

    def _close_unused(self, opened: OpenRun) -> None:
        if not opened.users:
            self._keep(asyncio.create_task(opened.executors.aclose()))

    def _settle_later(self, opened: OpenRun, session: str, fence: OrderFence) -> None:
        """Close the workspace of a session when the log has the end of its step."""

        async def settle() -> None:
            opened.users += 1
            try:
                with self._project.store.follow(opened.journal.root) as changed:
                    async with asyncio.timeout(SETTLE_S):
                        fence.read()
                        while not fence.is_over:
                            await changed.wait()
                            fence.read()
                if fence.has_ended:
                    opened.executors.settle(session)
            except TimeoutError:
                pass  # the next owner of the run finds the workspace as it is
            finally:
                self._leave(opened)

        self._keep(asyncio.create_task(settle()))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    # Runs

    async def _watch(self) -> None:
        """Have each run driven that has no driver: new, continued, abandoned, or due after a wait."""
        with self._project.store.follow() as changed:
            while True:
                try:
                    for root in self._without_driver():
                        await self._link.start_driving(root)
                except StoreFault:
                    await asyncio.sleep(LEASE_CHECK_S)  # an outage of the store: look again
                await asyncio.sleep(GATHER_S)
                await changed.wait(timeout_s=LEASE_CHECK_S)

    def _without_driver(self) -> list[str]:
        project = self._project
        found = abandoned(project)
        for head in project.heads(WAITING, PAUSED):
            root = head.run_id
            if not (project.has_owner(root) or is_adopted(project.folder, root)) and self._continues(head):
                found.append(root)
        return [root for root in found if project.continuation.takes(project, root)]

    def _continues(self, head: RunHead) -> bool:
        """Whether a waiting or paused run continues: on request, or because a time limit has passed."""
        store = self._project.store
        if any(row.kind == "continue" for row in store.requests(head.run_id)):
            return True
        due = next_timer(self._project.view(head.run_id).state) if head.status == WAITING else None
        return due is not None and due <= store.now_ms()

    async def _drive(self, root: str, control: JobControl) -> str:
        """Drive a run until it ends, pauses, or can only continue after user input."""
        with self._controlled(control):
            work = asyncio.create_task(self._drive_run(root))

            def stop(_reason: str) -> None:
                work.cancel()

            control.on_stop(stop)
            try:
                return await work
            except asyncio.CancelledError:
                return "released"

    async def _drive_run(self, root: str) -> str:
        owned = await self._acquire(root)
        if owned is None:
            return "ended"
        tree = owned.tree
        pausing = tree.state.pausing if tree.root.status == RUNNING else ""
        requests = [from_row(row) for row in self._project.store.requests(root) if row.kind == "continue"]
        raised: LimitsRaised | None = None  # the limits that users raised meanwhile
        for request in requests:
            assert isinstance(request, ContinueRequest)
            raised = request.raised or raised
        keep_waits = all(isinstance(one, ContinueRequest) and one.keep_waits for one in requests)
        merges: TreeMerges | None = None
        if self._open_folder is not None and tree.frozen().tree:
            trees = trees_of(self._project, root)
            merges = TreeMerges(trees, owned.project.isolation, tree.blobs)
        owned.executors.remote = WorkerDispatch(tree, self._link, self.identity.name, merges)
        host = owned.host()
        if pausing:  # the last driver ended before the run was paused
            host.pause(pausing, tree.memory.held_by)
        try:
            await host.resume(raised, keep_waits=keep_waits)
        except BaseException:
            owned.let_go()
            raise
        owned.done()
        return tree.root.status

    async def _acquire(self, root: str) -> OwnedRun | None:
        """Own a run as soon as its last owner is gone; None if it has ended, waits or is not for workers."""
        while True:
            project = self._project
            head = project.store.head(root)
            if head is None or head.status in RUN_TERMINAL or not project.continuation.takes(project, root):
                return None
            if head.status in (WAITING, PAUSED) and not self._continues(head):
                return None
            if self._open_folder is not None and has_tree(project, root):  # driven in a folder of its own
                project = self._open_folder(run_folder(cache_folder(project), root, "drive"))
            try:
                return own(project, root)
            except LeaseHeld:
                with self._project.store.follow(root) as changed:
                    await changed.wait(timeout_s=LEASE_CHECK_S)


def _refusal(ticket: ExecutionTicket, why: str) -> WorldError:
    message = f"the order for {ticket.path} of run {ticket.run} is refused: {why}"
    return WorldError("order.refused", message)


# -----------------------------------------------------------------------------------------------------------
# The executors of a driver in a cluster: workers perform agent, command and function steps
#
# Rules
# * The `started` event names the order, and the job names the event. A worker trusts only the log.
# * The driver alone writes the log of the run. What a worker returns is a blob, read here.
# * A worker that is gone ends no step: the execution is interrupted (`worker.lost`) and the next one follows.
# * A driver that ends leaves its jobs running. The next driver asks for them again, under the same ids.

REFUSED_S, MAX_REFUSED_S = 1.0, 60.0
"""The delay before the next execution of a step that a worker returned without an outcome. It doubles."""


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
        id = execution_id(order.root, order.tree_path, order.attempt, order.execution)
        self._jobs[order.session] = id
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
            await asyncio.sleep(min(REFUSED_S * 2 ** min(order.execution - 1, 16), MAX_REFUSED_S))
            return replace(_lost(order, report.lost, f" from worker {report.worker}"), evidence=(placed,))
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


def _lost(order: Order[Job], why: str, whose: str = "") -> Outcome:
    message = f"{order.path} has no result{whose}: {why}"
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
