"""The embedded host drives one run tree in one process: load, decide, append, act.

Rules
* One loop owns the tree. It applies results, requests and timers one at a time, in order of arrival.
  Everything that arrived while the loop was busy is committed together (group commit).
* Log before act: an effect starts only after the commit that records its start. The lease must be live
  at that moment.
* Nothing polls. The loop sleeps until a result, a request or the kernel's next timer.
* If the store fails, the loop ends with the error of the store. The run stays as the log records it and
  can be resumed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import apsw
from msgspec import to_builtins
from msgspec.json import encode
from msgspec.structs import replace

from fanfold.agents.backend import is_cancelled
from fanfold.agents.entries import (
    AskingFor,
    Calling,
    FailedRequest,
    LiveUpdate,
    News,
    QueuedRequest,
    UsageUpdate,
)
from fanfold.agents.spending import Account, RequestsInFlight
from fanfold.engine.command_handler import asked_event
from fanfold.engine.config import Config
from fanfold.engine.run_tree import RunTree
from fanfold.errors import WorldError
from fanfold.kernel.admission import ledgers_of
from fanfold.kernel.budget import Ledger
from fanfold.kernel.commands import Stop
from fanfold.kernel.decide import needs_people, next_timer
from fanfold.kernel.events import (
    CancelRequested,
    Data,
    Envelope,
    Evidence,
    ExecutionRef,
    Failure,
    LimitsRaised,
    PauseRequested,
    Payment,
    RunResumed,
    RunStarted,
    StepEvent,
    SubagentEvent,
    TimerFired,
    Usage,
    WaitClosed,
    WaitOpened,
)
from fanfold.kernel.state import (
    BUDGET,
    CANCELLED,
    COMPLETED,
    FAILED,
    PAUSED,
    RUN_TERMINAL,
    RUNNING,
    TIMED_OUT,
    Node,
    State,
)
from fanfold.kernel.step_transitions import tries_again
from fanfold.kernel.waits import MAX_DELAY_MS, next_attempt
from fanfold.steps.agent import AgentJob
from fanfold.steps.executor import StepExecutor, StepExecutors
from fanfold.steps.ids import WORKER_LOST, is_out_of_budget, is_provider_refusal, session_id, settling_ids
from fanfold.steps.order import Job, Order, Outcome
from fanfold.steps.records import Memory, home_of, is_agent, subagent_event
from fanfold.steps.step_type import type_of
from fanfold.store.database import insist
from fanfold.store.protocol import Signal, Store

PAUSE_GRACE_S = 10.0
LINGER_S = 1.0
"""How long the owner of an open run stays without work.

Several requests in a row then use one owner instead of starting one each.
"""
OnCommit: TypeAlias = Callable[[list[Envelope]], None]
OnProgress: TypeAlias = Callable[[str, str, News], None]


def publish_update(store: Store, root: str, update: LiveUpdate) -> None:
    """Send a live update to the processes that follow a run tree now."""
    store.publish(root, store.clean(encode(update)).decode())


"""Receives a run id, the path of a step and the current activity of its session. None of it is recorded."""


class Host:
    """Drives one tree until it finishes, pauses, or can only continue after user input."""

    def __init__(
        self,
        tree: RunTree,
        performers: StepExecutors,
        *,
        leave_when_waiting: bool = True,
        on_commit: OnCommit | None = None,
        on_progress: OnProgress | None = None,
        caps: DailyCaps | None = None,
    ) -> None:
        self._caps = caps
        self.tree = tree
        self._performers = performers
        self._leave_when_waiting = leave_when_waiting
        self._inbox: deque[tuple[str, Data]] = deque()
        self._woken = asyncio.Event()
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._stop_reasons: dict[tuple[str, str], str] = {}
        self._check_requests = True
        self._requests = RequestsInFlight()
        self._held_by: Failure | None = None
        """The refusal, such as one of a provider, for which the run is about to pause."""
        self._opens: WaitOpened | None = None
        """The wait to open because of the step whose end is being reported."""
        self._unsettled: list[str] = []
        """Sessions whose workspace can be removed after the next commit. It records the end of their step."""
        self._fault: BaseException | None = None
        """An error that belongs to no step. The loop raises it, and the run can be resumed."""
        self._lingered = False
        """Whether an open run had no work for `LINGER_S` seconds."""
        self._due: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_remote = tree.journal is not None and tree.store.is_remote
        self._on_commit = on_commit
        self._on_progress = on_progress
        tree.world.deferral = self._defer
        tree.world.dispatches = performers.remote.takes if performers.remote is not None else None
        self._continuing: list[Order[Job]] = []
        """Orders that other processes execute since an earlier owner dispatched them."""

    # Calls from other code in the same process

    def post(self, run: str, data: Data) -> None:
        """Queue an event; the loop applies it in its next turn."""
        self._inbox.append((run, data))
        self._woken.set()

    def pause(self, reason: str = "requested", error: Failure | None = None) -> None:
        self.post(self.tree.root.id, PauseRequested(reason, error))

    def cancel(self, run: str | None = None) -> None:
        self.post(run or self.tree.root.id, CancelRequested("requested"))

    def leave_when_waiting(self) -> None:
        """End the loop as soon as the run can only continue after user input."""
        self._leave_when_waiting = True
        self._woken.set()

    def look_for_requests(self) -> None:
        self._check_requests = True
        self._woken.set()

    # The loop

    async def start(self) -> None:
        """Run a tree that was just created."""
        self._begin_with(RunStarted())
        await self.drive()

    async def resume(self, raised: LimitsRaised | None = None, *, keep_waits: bool = False) -> None:
        """Resume a tree of an earlier owner, and drive it.

        Steps that were running here lost their process and run again. Executions in other processes
        continue, if this host dispatches too. Open waits are tried at once, unless `keep_waits` is set.
        """
        nodes = self.tree.root.nodes.values()
        closed = [home_of(node, max(1, node.attempt)) for node in nodes if node.closed]
        await self._performers.sweep(partial(_over, self.tree.state), closed)
        if self.tree.root.status in RUN_TERMINAL:
            return
        if self.tree.root.status == "pending":
            self._begin_with(RunStarted())
        else:
            assert self.tree.journal is not None
            remote = self._performers.remote
            kept = [] if remote is None else self.tree.continuing()
            self._continuing = [order for _, order in kept]
            self._begin_with(
                RunResumed(
                    self.tree.journal.epoch,
                    raised,
                    self.tree.alive_at(),
                    keep_waits,
                    tuple(ExecutionRef(one.run, one.path, one.attempt, one.execution) for _, one in kept),
                    "" if remote is None else remote.driver,
                )
            )
        await self.drive()

    def _begin_with(self, first: Data) -> None:
        """Queue this event before all others, which do not apply until the run is running."""
        self._inbox.appendleft((self.tree.root.id, first))
        self._woken.set()

    async def drive(self) -> None:
        with self.tree.store.listen(self.tree.root.id) as asked:
            listening = asyncio.create_task(self._listen(asked))
            if self.tree.journal is not None:
                self.tree.journal.commit_tree = self._commit_for_sessions
                if self._is_remote:
                    self.tree.journal.commit_remotely = self._commit_remotely
            try:
                while not self._is_done():
                    await self._turn()
            finally:
                self._arm(None)
                listening.cancel()
                await asyncio.wait([listening])
                # Cancel all tasks of this host and wait until they have ended
                if self._performers.remote is not None:
                    self._performers.remote.detach()
                tasks = list(self._tasks.values())
                for task in tasks:
                    task.cancel()
                if tasks:
                    await asyncio.gather(*tasks, return_exceptions=True)
                if self.tree.journal is not None:
                    self.tree.journal.commit_tree = None
                    self.tree.journal.commit_remotely = None
                await self._performers.aclose()

    async def _listen(self, asked: Signal) -> None:
        while await asked.wait():
            self.look_for_requests()

    async def _turn(self) -> None:
        if self._fault is not None:
            raise self._fault
        self._woken.clear()
        self._lingered = False
        while self._inbox:
            run, data = self._inbox.popleft()
            if self._still_applies(run, data):
                self.tree.report(run, self.tree.now_ms(), data)
        if self._check_requests:
            self._check_requests = False
            if self.tree.journal is not None:  # a new owner of the run notifies this one in the same way
                self.tree.journal.confirm()
            if asked := self.tree.store.requests(self.tree.root.id):
                from fanfold.engine.requests import act_on  # imported late: most runs get no requests

                act_on(self.tree, asked)
        if self.tree.state.held:
            self.tree.free_held(self.tree.now_ms())
        if self._is_remote:
            await self._commit_remotely()
        else:
            ended, self._unsettled = self._unsettled, []
            committed = self.tree.commit()
            for session in ended:
                self._performers.settle(session)
            self._act_on(*committed)
        if self._inbox or self._woken.is_set() or self._is_done():
            await asyncio.sleep(0)
            return
        await self._sleep()

    def _still_applies(self, run: str, data: Data) -> bool:
        """Whether an event still has an effect. Requests after the end or a pause of the run have none."""
        if isinstance(data, CancelRequested):
            return self.tree.state.runs[run].status not in RUN_TERMINAL
        if self.tree.root.status != RUNNING:
            return not isinstance(data, PauseRequested | TimerFired | WaitClosed | WaitOpened)
        if isinstance(data, WaitClosed | WaitOpened):  # several steps that end at once open the same wait
            wait = self.tree.state.waits.get(data.subject)
            return bool(wait) if isinstance(data, WaitClosed) else wait is None or wait.count < data.count
        return not isinstance(data, PauseRequested) or not self.tree.state.pausing

    async def _commit_remotely(self) -> None:
        """Commit and act, with a store that is written without blocking the event loop."""
        journal = self.tree.journal
        assert journal is not None
        try:
            async with journal.turn:
                ended, self._unsettled = self._unsettled, []
                committed = self.tree.commit()
                await journal.arrive()
                for session in ended:
                    self._performers.settle(session)
                self._act_on(*committed)
        except BaseException as error:
            self._fault = self._fault or error
            self._woken.set()
            raise

    def _commit_for_sessions(self) -> None:
        """Commit the events that sessions reported (`Payment`) with the entries that they wait for."""
        try:
            self._act_on(*self.tree.commit())
        except BaseException as error:
            self._fault = self._fault or error
            self._woken.set()
            raise

    def _act_on(self, written: list[Envelope], orders: list[Order[Job]], stops: list[Stop]) -> None:
        if written and self._on_commit is not None:
            self._on_commit(written)
        if self.tree.state.plan.open:
            for envelope in written:
                if isinstance(envelope.data, SubagentEvent) and envelope.data.status == "closed":
                    child = envelope.data.subagent_id
                    turns = self.tree.turns(child)
                    self._performers.discard([home_of(turn, max(1, turn.attempt)) for turn in turns])
        continuing, self._continuing = self._continuing, []
        for order in continuing:
            self._act(order, continues=True)
        for order in orders:
            self._act(order)
        for stop in stops:
            if continuing:  # a task that is cancelled before its first turn would report nothing
                asyncio.get_running_loop().call_soon(self._stop, stop)
            else:
                self._stop(stop)

    async def _sleep(self) -> None:
        self._arm(next_timer(self.tree.state))
        if not self._rests():
            await self._woken.wait()
            return
        try:
            async with asyncio.timeout(LINGER_S):
                await self._woken.wait()
        except TimeoutError:
            self._lingered = True

    def _arm(self, due: int | None) -> None:
        """Set the timer that posts at `due`. An unchanged `due` keeps the current timer."""
        if due == self._due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due, self._timer = due, None
        if due is not None:
            delay_s = max(0.0, (due - self.tree.now_ms()) / 1_000)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._time_passed)

    def _time_passed(self) -> None:
        self._due = self._timer = None
        if next_timer(self.tree.state) is not None:  # else the run ended or paused in this turn
            self.post(self.tree.root.id, TimerFired())

    def _is_done(self) -> bool:
        if self._inbox or self.tree.pending or self._check_requests or self._fault is not None:
            return False
        root = self.tree.root
        if root.status in RUN_TERMINAL or root.status == PAUSED:
            return True
        return self._rests() and (self._lingered or not self.tree.state.plan.open)

    def _rests(self) -> bool:
        """Whether the run can only continue after user input, and this process does not wait for it."""
        return self._leave_when_waiting and needs_people(self.tree.state) and not self._tasks

    # Effects

    def _act(self, order: Order[Job], *, continues: bool = False) -> None:
        node = self.tree.state.runs[order.run].nodes[order.path]
        if node.status != RUNNING or (node.attempt, node.execution) != (order.attempt, order.execution):
            return  # the step ended within the same decision
        if node.stopping and not continues:
            return  # the step was stopped before it started; there is nothing to undo
        key = (order.run, order.path)
        task = asyncio.create_task(self._execute(order, node), name=f"{order.run}:{order.path}")
        if not task.done():  # with eager tasks in the event loop, the task may have finished already
            self._tasks[key] = task

    def _stop(self, stop: Stop) -> None:
        key = (stop.run, stop.step)
        task = self._tasks.get(key)
        node = self.tree.state.runs[stop.run].nodes[stop.step]
        if task is None and (node.lost or node.status != RUNNING):
            return  # the end of the step was reported in the same turn
        self._stop_reasons[key] = stop.reason
        if task is None:
            self._report_stopped(stop.run, stop.step, stop.attempt, stop.execution)
        elif stop.reason == "pause" and self._can_finish_a_turn(stop):
            asyncio.get_running_loop().call_later(PAUSE_GRACE_S, task.cancel)
        else:
            task.cancel()

    def _can_finish_a_turn(self, stop: Stop) -> bool:
        """Whether a paused step gets time to finish.

        Sessions continue to the end of their turn; commands and functions continue for `PAUSE_GRACE_S`.
        """
        told = self._performers.pause(session_id(stop.run, stop.step, stop.attempt))
        return told or self.tree.state.runs[stop.run].nodes[stop.step].step.traits.role is None

    async def _execute(self, order: Order[Job], node: Node) -> None:
        key = (order.run, order.path)
        progress = partial(self._hear, order.run, order.path)
        try:
            account = self._account(order, node)
            outcome = await self._performers.perform(
                order, progress, account, lambda: self.tree.memory.texts.get(key, ())
            )
            self._tasks.pop(key, None)
            if outcome.error is not None and not tries_again(node, FAILED, outcome.error):
                outcome = type_of(order.step).rescue(order.job, outcome)
            self._report_outcome(order, node, outcome)
        except asyncio.CancelledError:
            self._tasks.pop(key, None)
            if key not in self._stop_reasons and not is_cancelled():
                why = Failure(
                    "transport", "step.broken_off", f"{order.path}: a connection was cancelled unexpectedly"
                )
                self._report_outcome(order, node, Outcome(error=why))
                return
            self._report_stopped(order.run, order.path, order.attempt, order.execution)
        except GeneratorExit:
            raise  # the event loop has dropped this task
        except BaseException as error:  # noqa: BLE001  # the store failed, or we did: the loop must hear of it
            self._tasks.pop(key, None)
            self._fault = self._fault or error
            self._woken.set()

    def _account(self, order: Order[Job], node: Node) -> Account:
        """The budget of an attempt. Each payment of the attempt is reported to the tree at once."""

        def pay(usage: Usage, model: str) -> None:
            if node.run.status == RUNNING and (usage.tokens or usage.micro_usd):
                paid = Payment(order.path, order.attempt, usage, model)
                self.tree.report(order.run, self.tree.now_ms(), paid)

        caps = None if self.tree.frozen(node).script is not None else self._caps
        return Account(ledgers_of(self.tree.state, node), self._requests, pay, caps)

    def _hear(self, run: str, step: str, news: News) -> None:
        if isinstance(news, FailedRequest | QueuedRequest):
            about = to_builtins(news)
            about.pop("usage", None)  # a payment of its own
            self.post(run, Evidence("session_event", {"step": step, **about}))
        if self.tree.state.waits and isinstance(news, AskingFor | Calling | UsageUpdate):
            node = self.tree.state.runs[run].nodes[step]
            for wait in self.tree.state.waits.values():
                if wait.probe is node:  # the probe got a reply, so other steps will too
                    self.post(self.tree.root.id, WaitClosed(wait.subject))
        if self._on_progress is not None:
            self._on_progress(run, step, news)
        if self.tree.journal is not None:
            publish_update(self.tree.store, self.tree.root.id, LiveUpdate(run, step, news))

    def _report_stopped(self, run: str, step: str, attempt: int, execution: int) -> None:
        reason = self._stop_reasons.pop((run, step), "pause")
        word = {"cancelled": CANCELLED, "timed_out": TIMED_OUT}.get(reason, "interrupted")
        node = self.tree.state.runs[run].nodes[step]
        # An interrupted step reports all usage when it continues.
        spent = None if word == "interrupted" else _spent(node)
        self.post(run, _report(self._task(node), node, word, attempt, execution, usage=spent))

    def _report_outcome(self, order: Order[Job], node: Node, outcome: Outcome) -> None:
        attempt, execution = order.attempt, order.execution
        for fact in outcome.evidence:
            named = replace(fact, step=order.path, attempt=attempt, execution=execution)
            self.post(order.run, Evidence("workspace_event", named))
        if outcome.unsettled:
            self._unsettled.append(outcome.unsettled)
        reason, task = self._stop_reasons.pop((order.run, order.path), ""), self._task(node)
        error = outcome.error
        if error is not None and self._holds_the_run(node, outcome, reason):
            why = BUDGET if is_out_of_budget(error) else ""
            data = _report(task, node, "interrupted", attempt, execution, error=error, reason=why)
        elif outcome.asks is not None:
            data = asked_event(self.tree.blobs, order, outcome.asks)
        elif error is not None:
            usage = _spent(node, outcome.usage)
            data = _report(task, node, FAILED, attempt, execution, error=error, usage=usage)
        else:
            output = self.tree.blobs.put(outcome.output)
            key = self._performers.of(order).cache_key(order.run, order.path) if order.step.cache else None
            # Published artifacts belong to this run. A cached output would not publish them again.
            if key is not None and not outcome.has_published:
                self.tree.remember_cached(key, output)
            data = _report(
                task, node, COMPLETED, attempt, execution,
                output=output, summary=outcome.summary, usage=_spent(node, outcome.usage),
                error=outcome.warning,
            )  # fmt: skip
        if self._opens is not None:
            self.post(self.tree.root.id, self._opens)
            self._opens = None
        if self._held_by is not None:  # pause first: in a running run an interrupted step starts again
            who = "provider" if is_agent(node) else node.step.type
            self.pause(f"{who}: {self._held_by.message}", self._held_by)
            self._held_by = None
        self.post(order.run, data)

    def _holds_the_run(self, node: Node, outcome: Outcome, stopping: str) -> bool:
        """Whether an execution is interrupted rather than failed.

        It was paused, is out of budget, or an external party such as a provider refuses the request.
        """
        error = outcome.error
        assert error is not None
        if error.code in ("session.paused", WORKER_LOST):
            return stopping in ("", "pause")
        if is_out_of_budget(error):  # in an open run the next input continues the conversation
            return stopping in ("", "pause") and not self.tree.state.plan.open
        if outcome.holds and stopping in ("", "pause"):
            self._held_by = error
            return True
        if not is_agent(node) or stopping not in ("", "pause"):
            return False
        if error.subject:
            return self._waits_for(node, error)
        if self.tree.state.plan.open:
            return False  # other children of an open run are not affected
        if is_provider_refusal(error):
            self._held_by = error
        return self._held_by is not None

    def _waits_for(self, node: Node, error: Failure) -> bool:
        """Whether the step is interrupted until the cause of its error is gone.

        In an outage the step's own retries come first. The exception is an agent that is a program: it has
        retried itself, and a new attempt would lose its conversation.
        """
        state = self.tree.state
        probes = any(wait.probe is node for wait in state.waits.values())
        of_program = error.code.startswith("agent.")
        if not error.until and not probes and not of_program and tries_again(node, FAILED, error):
            return False
        opens = opening(state, node, error, self.tree.now_ms())
        if isinstance(opens, WaitOpened):
            self._opens = opens
        elif opens is not None:
            if state.plan.open:
                return False  # the wait exceeded its limit: this agent fails, other agents do not pause
            self._held_by = opens
        return True

    def _defer(self, node: Node, order: Order[Job]) -> tuple[str, Order[Job]]:
        return defer(self.tree.state, self.tree.memory, node, order, self._performers.of(order))

    def _task(self, node: Node) -> str:
        return self.tree.memory.tasks.get((node.run.id, node.path), "")


def _over(state: State, found: list[str]) -> list[str]:
    """The sessions among `found` whose step completed."""
    if not found:
        return []
    left = set(found)
    over: list[str] = []
    for run in state.runs.values():
        for node in run.nodes.values():
            if node.status == COMPLETED and node.step.workspace_mode == "isolated":
                session = session_id(run.id, node.path, node.attempt)
                homes = (home_of(node, node.attempt), session, *settling_ids(session))
                over += [home for home in dict.fromkeys(homes) if home in left]
    return over


def _spent(node: Node, reported: Usage | None = None) -> Usage | None:
    """The total usage of an attempt: as its back end reports it, or the sum of payments if that is more."""
    counted = node.counted
    if reported is not None and reported.tokens >= counted.tokens:
        return reported
    return counted if counted.tokens or counted.micro_usd else reported


def _report(task: str, node: Node, word: str, attempt: int, execution: int, **more: Any) -> Data:
    """A result as the log records it: `subagent_event` for agents, `step_event` for other steps."""
    if is_agent(node):
        return subagent_event(node, word, attempt, execution, task, **more)
    return StepEvent(node.path, word, attempt, execution, **more)


# -----------------------------------------------------------------------------------------------------------
# Decides when a host opens a wait, and which steps it defers. `kernel.waits` defines waits.
#
# Rules
# * A failure with a `subject` is not specific to the step: every step that needs the subject would fail. The
#   step is interrupted, keeps the work that was paid for, and continues when the wait ends.
# * If the end is known (`Failure.until`), the run waits until then. Otherwise it is an outage: the host
#   retries after a growing back-off, for the time in `limits.outage`. Then the run pauses.
# * A step whose role names other back ends continues with the first one that has no open wait.

# -----------------------------------------------------------------------------------------------------------
# Daily caps on the spending of all agents of a user: `[budget]` in the user's own configuration
#
# The sums are rows of a small database in the user's folder, one per local calendar day. Every process of
# the user adds its payments there, for all projects: runs, chats, subagents.
#
# Rules
# * A payment is added in one statement, before it is recorded anywhere else. If the process dies in between,
#   the payment still counts.
# * Before each request the sum is read again, so a cap is exceeded by at most one request per running agent.
# * When a cap is used up, the step stops after its last recorded turn, and its run waits for midnight.
# * Payments are counted without a cap too, so that a cap which is set later includes them. Then a ledger that
#   cannot be written stops no run. Scripted agents cost nothing.
# * A model without a known price is refused if the only cap is in dollars (`budget.unpriced`).

FILE = "spending.sqlite"
EVERY_AGENT = "agents"
"""The subject of a wait that every agent step needs."""
_TABLE = "CREATE TABLE IF NOT EXISTS days (day TEXT PRIMARY KEY, tokens INTEGER, micro_usd INTEGER) STRICT"
_ADD = """
INSERT INTO days VALUES (?, ?, ?)
ON CONFLICT (day) DO UPDATE SET tokens = tokens + excluded.tokens, micro_usd = micro_usd + excluded.micro_usd
"""
BUSY_MS = 10_000


class DailyCaps:
    """The daily caps of the user, and the spending of today."""

    def __init__(
        self,
        home: Path,
        tokens: int | None,
        micro_usd: int | None,
        now: Callable[[], datetime] = lambda: datetime.now().astimezone(),
    ) -> None:
        self._home = home
        self._now = now
        self._ledger = Ledger(tokens, micro_usd)
        self._opened: apsw.Connection | None = None

    @classmethod
    def of(cls, config: Config) -> DailyCaps:
        """The caps that the user set, if any."""
        tokens, micro_usd = (config.values[key] for key in ("budget.tokens_per_day", "budget.usd_per_day"))
        assert not isinstance(tokens, str), "a whole number"
        assert not isinstance(micro_usd, str), "a whole number"
        return cls(config.home, tokens, micro_usd)

    def today(self) -> Ledger:
        """The caps, with the spending of all processes of the user today."""
        if not self._ledger.limited:
            return self._ledger
        rows = self._do("SELECT tokens, micro_usd FROM days WHERE day = ?", (self._day(),))
        self._ledger.spent_tokens, self._ledger.spent_micro_usd = rows[0] if rows else (0, 0)
        return self._ledger

    def add(self, usage: Usage) -> None:
        """Add a payment to the sum of today."""
        with nullcontext() if self._ledger.limited else suppress(WorldError):
            self._do(_ADD, (self._day(), usage.tokens, usage.micro_usd or 0))

    def used_up(self) -> Failure:
        """The failure of a request that must wait until midnight."""
        ledger, now = self._ledger, self._now()
        midnight = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
        caps: list[str] = []
        if ledger.max_tokens is not None:
            caps.append(f"{ledger.spent_tokens:,} of {ledger.max_tokens:,} tokens")
        if ledger.max_micro_usd is not None:
            caps.append(f"${ledger.spent_micro_usd / 1e6:.4f} of ${ledger.max_micro_usd / 1e6:.2f}")
        spent = " and ".join(caps)
        message = f"your cap for the day allows no further request: {spent} spent today, by all of your runs"
        hint = f"it continues at midnight; [budget] in {self._home}/config.toml raises the cap"
        until = round(midnight.timestamp() * 1_000)
        return Failure("budget", "budget.daily_cap", message, hint, True, subject=EVERY_AGENT, until=until)

    def unpriced(self) -> Failure:
        """The failure of a request whose model has no known price, under a cap in dollars."""
        message = "your daily cap in dollars cannot be enforced: the price of this model is unknown"
        hint = f"set its price in [models.prices] of {self._home}/config.toml, or [budget] tokens_per_day too"
        return Failure("budget", "budget.unpriced", message, hint, retryable=False)

    def _day(self) -> str:
        return self._now().date().isoformat()

    def _do(self, statement: str, values: tuple[str | int, ...]) -> list[Any]:
        file = self._home / FILE
        try:
            if self._opened is None:
                self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
                opened = apsw.Connection(str(file))
                file.chmod(0o600)
                opened.set_busy_timeout(BUSY_MS)
                insist(lambda: opened.pragma("journal_mode", "WAL"))  # others may switch it at the same time
                opened.pragma("synchronous", "NORMAL")  # a killed process loses nothing
                opened.execute(_TABLE)
                self._opened = opened
            return self._opened.execute(statement, values).fetchall()
        except (apsw.Error, OSError) as error:
            message = f"the spending of today cannot be read or written in {file}: {error}"
            hint = "free disk space, repair it, or remove the caps in [budget]"
            raise WorldError("budget.ledger", message, hint=hint) from None


def is_open_for(state: State, node: Node, subject: str) -> bool:
    """Whether an open wait keeps a step from starting. The probe of the wait may start."""
    wait = state.waits.get(subject)
    return wait is not None and wait.probe is not node


def defer(
    state: State, memory: Memory, node: Node, order: Order[Job], executor: StepExecutor
) -> tuple[str, Order[Job]]:
    """The subject of the wait that defers a step, and its order.

    An empty subject means that the step may start. The job then names another back end if necessary.
    """
    job = order.job
    if not is_agent(node) or not isinstance(job, AgentJob):
        return "", order
    if is_open_for(state, node, EVERY_AGENT):
        return EVERY_AGENT, order
    last = memory.subjects.get((node.run.id, node.path), "")
    named = executor.subjects(order)
    if last and last not in dict(named).values() and is_open_for(state, node, last):
        return last, order
    probes = node.subject in state.waits
    for backend, subject in named:
        if not is_open_for(state, node, subject):
            other = "" if backend == named[0][0] else backend
            if other or probes:
                order = replace(order, job=replace(job, backend=other, probe=probes))
            return "", order
    return named[0][1], order


def opening(state: State, node: Node, error: Failure, now: int) -> WaitOpened | Failure | None:
    """The consequence of a failure with a subject: a wait, a failure that pauses the run, or None."""
    subject = error.subject
    wait = state.waits.get(subject)
    if (
        wait is not None
        and is_open_for(state, node, subject)
        and (wait.until > now or wait.probe is not None)
    ):
        return None
    tried = next_attempt(state, subject, now)
    if tried is None and not error.until:
        return error
    until = max(error.until, tried or now + MAX_DELAY_MS)  # the reset may have passed already
    reason = "daily_cap" if error.kind == "budget" else "limit"
    if error.kind == "transport" or not error.until:  # an overloaded provider names a time, too
        reason = "outage"
    count = 1 if wait is None else wait.count + 1
    return WaitOpened(
        subject=subject, reason=reason, until=until, count=count, probes=error.kind != "budget", error=error
    )
