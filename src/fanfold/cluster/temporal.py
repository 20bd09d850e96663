"""The connection to Temporal: jobs are started, awaited, cancelled and served here. No other module loads it.

The client and its workers run in a thread with an event loop of their own. So heartbeats continue while the
work of this process keeps the main event loop busy, and the main loop alone uses the store.

Rules
* A step has one attempt in Temporal. After a missed heartbeat the driver starts another execution.
* A drive job is repeated by Temporal until a worker has finished it.
* A job that is asked to stop sends heartbeats until its work has ended.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias, TypeVar

import temporalio.api.workflowservice.v1 as service
from msgspec import Struct
from temporalio import activity
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.client import ActivityFailureError, ActivityHandle, Client
from temporalio.common import ActivityIDConflictPolicy, ActivityIDReusePolicy, RetryPolicy
from temporalio.envconfig import ClientConfig
from temporalio.exceptions import ActivityAlreadyStartedError, ApplicationError, TimeoutType
from temporalio.exceptions import TimeoutError as JobTimeout
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import PollerBehaviorSimpleMaximum, Worker

from fanfold.cluster.jobs import DRIVE_QUEUE
from fanfold.errors import AuthorError, FanfoldError, WorldError
from fanfold.steps.ids import drive_id

T = TypeVar("T")
FOREVER = timedelta(days=3_650)
"""Temporal requires a limit. The kernel enforces the time limits of steps."""
CONNECT_S = 10.0
OUTAGES = (
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.CANCELLED,
    RPCStatusCode.ABORTED,
    RPCStatusCode.RESOURCE_EXHAUSTED,
)
"""What calls return while the server restarts or cannot be reached. They are repeated until it answers."""
OUTAGE_S = 0.5
POLLERS = 2
"""Open polls per queue. A worker that freezes swallows one job per poll, until its heartbeat is missed."""
BEATS = 3
"""Heartbeats per `heartbeat_s`: one that is delayed or lost does not end a job."""
MAX_BEAT_S = 2.0
"""A worker learns with its heartbeat that a job is cancelled."""


class JobLost(Exception):
    """A job ended without a result: its worker is gone, or it was cancelled before a worker took it."""


class JobControl:
    """How a job that this process works on is asked to stop. Used in the main event loop."""

    def __init__(self, id: str = "") -> None:
        self.id = id
        self.reason = ""
        """`cancel`, `lost` (another worker has the job) or `shutdown`; empty while it may continue."""
        self._on_stop: Callable[[str], None] | None = None

    def stop(self, reason: str) -> None:
        self.reason = reason
        if self._on_stop is not None:
            self._on_stop(reason)

    def on_stop(self, callback: Callable[[str], None]) -> None:
        """Call back when the job is asked to stop, at once if it was asked already."""
        self._on_stop = callback
        if self.reason:
            callback(self.reason)


Work: TypeAlias = Callable[[str, JobControl], Coroutine[Any, Any, str]]
"""The work of a job in the main event loop: from its payload to its result."""


class ServedQueue(Struct, frozen=True):
    """A queue that this process serves: the name of its jobs, their work, and how many at once."""

    queue: str
    name: str
    work: Work
    slots: int


class QueueState(Struct, frozen=True):
    """The jobs that wait in a queue."""

    waiting: int
    oldest_s: float


class TemporalLink:
    """The connection of this process. Create it, and use its methods, in the main event loop."""

    def __init__(self, address: str, identity: str, heartbeat_s: float) -> None:
        self._address, _, namespace = address.partition("/")
        self._namespace = namespace or "default"
        self._identity = identity
        self._heartbeat = timedelta(seconds=heartbeat_s)
        self._beat_s = min(heartbeat_s / BEATS, MAX_BEAT_S)
        self._loop = asyncio.new_event_loop()
        self._home = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="fanfold-temporal", daemon=True)
        self._client: Client | None = None
        self._workers: list[Worker] = []
        self._serving: list[asyncio.Task[None]] = []

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread of the client."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def connect(self) -> None:
        """Connect to the server. Keys and certificates come from Temporal's own profile or environment."""
        self._thread.start()
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._there(self._connect())
        except (RuntimeError, TimeoutError, RPCError) as error:
            await self.close()
            if isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND:
                message = f"the Temporal server at {self._address} has no namespace {self._namespace}"
                hint = f"create it: temporal operator namespace create {self._namespace}"
                raise WorldError("cluster.no_namespace", message, hint=hint) from None
            causes = re.findall(r'message: "([^"]+)"', str(error)) or [str(error) or "time-out"]
            message = f"no Temporal server answers at {self._address}: {causes[-1]}"
            hint = "start it, or correct FANFOLD_TEMPORAL (host:port[/namespace])"
            raise WorldError("cluster.unreachable", message, hint=hint) from None

    async def _connect(self) -> None:
        settings: dict[str, Any] = dict(ClientConfig.load_client_connect_config())
        settings.update(target_host=self._address, namespace=self._namespace, identity=self._identity)
        self._client = await Client.connect(**settings)
        about = service.DescribeNamespaceRequest(namespace=self._namespace)
        await self._client.workflow_service.describe_namespace(about)

    @property
    def _connected(self) -> Client:
        assert self._client is not None, "it is connected first"
        return self._client

    # Ask for jobs

    async def execute(self, queue: str, id: str, payload: str) -> str:
        """Have a worker do a job, and return its result. Raises `JobLost`."""
        while True:
            try:
                return await self._there(self._execute(queue, id, payload))
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    raise JobLost("the server does not know the job") from None
                await _outage(error)

    async def _execute(self, queue: str, id: str, payload: str) -> str:
        client = self._connected
        handle: ActivityHandle[str]
        try:
            handle = await client.start_activity(
                "execute",
                payload,
                id=id,
                task_queue=queue,
                result_type=str,
                start_to_close_timeout=FOREVER,
                heartbeat_timeout=self._heartbeat,
                retry_policy=RetryPolicy(maximum_attempts=1),
                id_reuse_policy=ActivityIDReusePolicy.REJECT_DUPLICATE,
                id_conflict_policy=ActivityIDConflictPolicy.USE_EXISTING,
            )
        except ActivityAlreadyStartedError:  # it has ended already: an earlier driver asked for it
            handle = client.get_activity_handle(id, result_type=str)
        try:
            return await handle.result()
        except ActivityFailureError as error:
            if isinstance(error.cause, JobTimeout) and error.cause.type is TimeoutType.HEARTBEAT:
                raise JobLost(f"no heartbeat for {self._heartbeat.total_seconds():g} s") from None
            raise JobLost(_reason(error.cause)) from None

    async def cancel(self, id: str) -> None:
        """Ask the worker of a job to stop it."""

        while True:
            try:
                await self._there(self._connected.get_activity_handle(id).cancel())
                return
            except RPCError as error:
                if error.status not in OUTAGES:
                    return  # it has ended, or was asked already
                await _outage(error)

    async def start_driving(self, root: str) -> None:
        """Have a worker drive a run, unless one does already."""
        starting = self._connected.start_activity(
            "drive",
            root,
            id=drive_id(root),
            task_queue=DRIVE_QUEUE,
            start_to_close_timeout=FOREVER,
            heartbeat_timeout=self._heartbeat,
            retry_policy=RetryPolicy(
                initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30)
            ),
            id_reuse_policy=ActivityIDReusePolicy.ALLOW_DUPLICATE,
            id_conflict_policy=ActivityIDConflictPolicy.USE_EXISTING,
        )
        try:
            await self._there(starting)
        except RPCError as error:
            await _outage(error)  # the caller looks for runs without a driver again

    async def request(self, queue: str, name: str, payload: str, timeout_s: float) -> str:
        """Have the one worker of a queue act on a request. Raises `JobLost` if it does not in time."""

        async def ask() -> str:
            try:
                result: str = await self._connected.execute_activity(
                    name,
                    payload,
                    id=f"{queue}/{name}/{datetime.now(UTC).timestamp()}",
                    task_queue=queue,
                    result_type=str,
                    schedule_to_close_timeout=timedelta(seconds=timeout_s),
                    retry_policy=RetryPolicy(maximum_attempts=1),
                )
            except ActivityFailureError as error:
                raise JobLost(_reason(error.cause)) from None
            return result

        return await self._there(ask())

    # Serve jobs

    async def serve(self, queues: Sequence[ServedQueue]) -> None:
        """Take jobs from these queues until `stop_polling`."""
        await self._there(self._serve(queues))

    async def _serve(self, queues: Sequence[ServedQueue]) -> None:
        beat = timedelta(seconds=self._beat_s)
        for served in queues:
            worker = Worker(
                self._connected,
                task_queue=served.queue,
                activities=[self._activity(served)],
                max_concurrent_activities=served.slots,
                activity_task_poller_behavior=PollerBehaviorSimpleMaximum(min(POLLERS, served.slots)),
                identity=self._identity,
                max_heartbeat_throttle_interval=beat,
                default_heartbeat_throttle_interval=beat,
                graceful_shutdown_timeout=FOREVER,
                disable_eager_activity_execution=True,
            )
            self._workers.append(worker)
            self._serving.append(asyncio.create_task(worker.run()))

    def _activity(self, served: ServedQueue) -> Callable[[str], Awaitable[str]]:
        beat_s = self._beat_s

        @activity.defn(name=served.name)
        async def work(payload: str) -> str:
            control = JobControl(activity.info().activity_id)
            future = asyncio.run_coroutine_threadsafe(served.work(payload, control), self._home)
            waiting = asyncio.wrap_future(future)
            while not waiting.done():
                try:
                    await asyncio.wait([waiting], timeout=beat_s)
                except asyncio.CancelledError:
                    details = activity.cancellation_details()
                    gone = details is None or details.not_found or details.timed_out
                    self._home.call_soon_threadsafe(control.stop, "lost" if gone else "cancel")
                activity.heartbeat()
            try:
                return waiting.result()
            except FanfoldError as error:
                raise ApplicationError(f"{error.code}: {error.message}", type=error.code) from error

        return work

    async def stop_polling(self) -> None:
        """Take no more jobs. Returns when all jobs of this process have ended."""

        async def stop() -> None:
            await asyncio.gather(*(worker.shutdown() for worker in self._workers))
            await asyncio.gather(*self._serving, return_exceptions=True)

        await self._there(stop())

    async def close(self) -> None:
        """End the thread of the client."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            await asyncio.to_thread(self._thread.join, 10.0)

    # Inspect

    async def queue_state(self, queue: str) -> QueueState:
        """The jobs that wait in a queue."""

        async def describe() -> QueueState:
            found = await self._connected.workflow_service.describe_task_queue(
                service.DescribeTaskQueueRequest(
                    namespace=self._namespace,
                    task_queue=TaskQueue(name=queue),
                    task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
                    report_stats=True,
                )
            )
            age_s = found.stats.approximate_backlog_age.ToTimedelta().total_seconds()
            return QueueState(found.stats.approximate_backlog_count, age_s)

        return await self._there(describe())

    async def running(self) -> list[tuple[str, str]]:
        """The id and the queue of each job that has not ended."""

        async def find() -> list[tuple[str, str]]:
            found = self._connected.list_activities("ExecutionStatus = 'Running'", limit=1_000)
            return [(job.activity_id, job.task_queue) async for job in found]

        return await self._there(find())


async def _outage(error: RPCError) -> None:
    """Wait a moment if the server cannot be reached; raise any other error."""
    if error.status not in OUTAGES:
        raise error
    await asyncio.sleep(OUTAGE_S)


def _reason(cause: BaseException) -> str:
    return f"{type(cause).__name__}: {cause}"


def check_address(address: str) -> str:
    """Return the address of a Temporal server, `host:port[/namespace]`; raises `AuthorError`."""
    host, _, port = address.partition("/")[0].rpartition(":")
    if not host or not port.isdecimal():
        message = f"cluster.temporal is {address!r}, not host:port[/namespace]"
        hint = "for example FANFOLD_TEMPORAL=127.0.0.1:7233/default"
        raise AuthorError("config.bad_value", message, hint=hint)
    return address
