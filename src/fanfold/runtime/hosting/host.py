"""The embedded host: load, decide, append, act, for one run tree in one process.

Rules
* One loop owns the tree. Results, requests and time are folded in one at a time, in the order they
  arrived; everything that piled up while the loop was busy is committed together (group commit).
* Log before act: an effect begins after the commit that records its start, and only under a lease that is
  known to be live at that moment.
* Nothing polls. The loop sleeps until a result, a request or the kernel's next timer.
* If the store fails, the loop ends with its error; the run stays as the log has it and can be resumed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from msgspec.structs import replace

from fanfold.agents.entries import News
from fanfold.kernel.commands import Start, Stop
from fanfold.kernel.decide import needs_people, next_timer
from fanfold.kernel.events import (
    CancelRequested,
    Data,
    Envelope,
    Evidence,
    Failure,
    PauseRequested,
    Raised,
    Resumed,
    Started,
    StepEvent,
    SubagentEvent,
    Woke,
)
from fanfold.kernel.lifecycle import (
    CANCELLED,
    COMPLETED,
    FAILED,
    PAUSED,
    RUN_TERMINAL,
    RUNNING,
    TIMED_OUT,
)
from fanfold.kernel.nodes import Node
from fanfold.runtime.hosting.answers import asked_event
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.records.failures import is_provider_refusal
from fanfold.runtime.records.ids import session_id
from fanfold.runtime.records.subagents import child_name, home_of, is_agent, subagent_event
from fanfold.runtime.steps.performing.performer import Performer
from fanfold.runtime.steps.performing.performers import Performers
from fanfold.runtime.steps.step_type import Job, Outcome
from fanfold.store.protocol import Signal

PAUSE_GRACE_S = 10.0
LINGER_S = 1.0
"""The owner of an open run stays this long without work, so that a row of requests does not start a row of
owners."""
OnCommit: TypeAlias = Callable[[list[Envelope]], None]
OnProgress: TypeAlias = Callable[[str, str, News], None]
"""Run id, path of a step, and what its session does right now; none of it is recorded."""


class Host:
    """Drives one tree to its end, to a pause, or to the point where only people can go on."""

    def __init__(
        self,
        tree: RunTree,
        performers: Performers,
        *,
        leave_when_waiting: bool = True,
        on_commit: OnCommit | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        self.tree = tree
        self._performers = performers
        self._leave_when_waiting = leave_when_waiting
        self._inbox: deque[tuple[str, Data]] = deque()
        self._woken = asyncio.Event()
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._stop_reasons: dict[tuple[str, str], str] = {}
        self._check_requests = True
        self._held_by: Failure | None = None
        """Why no step can go on at present: a provider refuses us."""
        self._unsettled: list[str] = []
        """Sessions whose workspace may go when the next commit has the end of their step."""
        self._fault: BaseException | None = None
        """What no step can answer for; the loop ends with it, and the run can be resumed."""
        self._lingered = False
        """An open run had nothing to do for long enough."""
        self._due: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._on_commit = on_commit
        self._on_progress = on_progress

    # From outside, in the same process

    def post(self, run: str, data: Data) -> None:
        """Something happened: the loop will fold it in."""
        self._inbox.append((run, data))
        self._woken.set()

    def pause(self, reason: str = "requested", error: Failure | None = None) -> None:
        self.post(self.tree.root.id, PauseRequested(reason, error))

    def cancel(self, run: str | None = None) -> None:
        self.post(run or self.tree.root.id, CancelRequested("requested"))

    def leave_when_waiting(self) -> None:
        """Nobody is here to answer: end as soon as only people can go on."""
        self._leave_when_waiting = True
        self._woken.set()

    def look_for_requests(self) -> None:
        self._check_requests = True
        self._woken.set()

    # The loop

    async def start(self) -> None:
        """Run a tree that was just created."""
        self._begin_with(Started())
        await self.drive()

    async def resume(self, raised: Raised | None = None) -> None:
        """Take a tree over: whatever was running lost its process and runs again."""
        await self._performers.sweep(self.tree.state)
        if self.tree.root.status in RUN_TERMINAL:
            return
        if self.tree.root.status == "pending":
            self._begin_with(Started())
        else:
            assert self.tree.journal is not None
            self._begin_with(Resumed(self.tree.journal.epoch, raised, self.tree.alive_at()))
        await self.drive()

    def _begin_with(self, first: Data) -> None:
        """Fold this in before what was asked for in the meantime, which would not apply yet."""
        self._inbox.appendleft((self.tree.root.id, first))
        self._woken.set()

    async def drive(self) -> None:
        with self.tree.store.listen(self.tree.root.id) as asked:
            listening = asyncio.create_task(self._listen(asked))
            try:
                while not self._is_done():
                    await self._turn()
            finally:
                self._arm(None)
                listening.cancel()
                await asyncio.wait([listening])
                await self._end_all()
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
            self._take_requests()
        if self.tree.state.held:
            self.tree.free_held(self.tree.now_ms())
        self._commit_and_act()
        if self._inbox or self._woken.is_set() or self._is_done():
            await asyncio.sleep(0)
            return
        await self._sleep()

    def _still_applies(self, run: str, data: Data) -> bool:
        """A wish that came while the run ended or paused anyway changes nothing, so it is not recorded."""
        root = self.tree.root
        if isinstance(data, CancelRequested):
            return self.tree.state.runs[run].status not in RUN_TERMINAL
        if isinstance(data, PauseRequested):
            return root.status == RUNNING and not self.tree.state.pausing
        return root.status == RUNNING or not isinstance(data, Woke)

    def _commit_and_act(self) -> None:
        ended, self._unsettled = self._unsettled, []
        written, jobs, stops = self.tree.commit()
        for session in ended:
            self._performers.settle(session)
        if written and self._on_commit is not None:
            self._on_commit(written)
        if self.tree.state.plan.open:
            self._forget_closed(written)
        for start, job in jobs:
            self._act(start, job)
        for stop in stops:
            self._stop(stop)

    def _forget_closed(self, written: list[Envelope]) -> None:
        """A child was closed for good: what it left in its workspaces goes."""
        for envelope in written:
            if isinstance(envelope.data, SubagentEvent) and envelope.data.status == "closed":
                child = envelope.data.subagent_id
                turns = [node for node in self.tree.root.scope.children if child_name(node.path) == child]
                self._performers.discard([home_of(turn, max(1, turn.attempt)) for turn in turns])

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
        """Have time itself post at `due`. Most turns leave the next timer as it was, and so do we."""
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
        if next_timer(self.tree.state) is not None:  # else the run ended or paused in this very turn
            self.post(self.tree.root.id, Woke())

    def _is_done(self) -> bool:
        if self._inbox or self.tree.pending or self._check_requests or self._fault is not None:
            return False
        root = self.tree.root
        if root.status in RUN_TERMINAL or root.status == PAUSED:
            return True
        return self._rests() and (self._lingered or not self.tree.state.plan.open)

    def _rests(self) -> bool:
        """Whether only people can go on, and nobody here answers for them."""
        return self._leave_when_waiting and needs_people(self.tree.state) and not self._tasks

    def _take_requests(self) -> None:
        if self.tree.journal is not None:  # whoever took the run over says so in the same way
            self.tree.journal.confirm()
        if asked := self.tree.store.requests(self.tree.root.id):
            from fanfold.runtime.hosting.requests import act_on  # most runs are never asked for anything

            act_on(self.tree, asked)

    # Effects

    def _act(self, start: Start, job: Job) -> None:
        node = self.tree.state.runs[start.run].nodes[start.step]
        if node.status != RUNNING or (node.attempt, node.execution) != (start.attempt, start.execution):
            return  # it ended within the same decision
        if node.stopping:
            return  # it was to stop before it began; there is nothing to undo
        key = (start.run, start.step)
        task = asyncio.create_task(self._execute(start, node, job), name=f"{start.run}:{start.step}")
        if not task.done():  # a program may have its loop begin tasks at once, and this one is over then
            self._tasks[key] = task

    def _stop(self, stop: Stop) -> None:
        key = (stop.run, stop.step)
        task = self._tasks.get(key)
        node = self.tree.state.runs[stop.run].nodes[stop.step]
        if task is None and (node.lost or node.status != RUNNING):
            return  # its end was reported in the same turn
        self._stop_reasons[key] = stop.reason
        if task is None:
            self._report_stopped(stop.run, stop.step, stop.attempt, stop.execution)
        elif stop.reason == "pause" and self._can_finish_a_turn(stop):
            asyncio.get_running_loop().call_later(PAUSE_GRACE_S, task.cancel)
        else:
            task.cancel()

    def _can_finish_a_turn(self, stop: Stop) -> bool:
        """A pause lets commands and functions run on for a while, and sessions to the end of their turn."""
        told = self._performers.pause(session_id(stop.run, stop.step, stop.attempt))
        return told or self.tree.state.runs[stop.run].nodes[stop.step].step.traits.role is None

    async def _execute(self, start: Start, node: Node, job: Job) -> None:
        key = (start.run, start.step)
        progress = partial(self._hear, start.run, start.step)
        try:
            outcome = await self._performer(node).perform(start, node, job, progress)
            self._tasks.pop(key, None)
            self._report_outcome(start, node, outcome)
        except asyncio.CancelledError:
            self._tasks.pop(key, None)
            self._report_stopped(start.run, start.step, start.attempt, start.execution)
        except GeneratorExit:
            raise  # nobody goes on with this task
        except BaseException as error:  # noqa: BLE001  # the store failed, or we did: the loop must hear of it
            self._tasks.pop(key, None)
            self._fault = self._fault or error
            self._woken.set()

    def _hear(self, run: str, step: str, news: News) -> None:
        if self._on_progress is not None:
            self._on_progress(run, step, news)

    def _report_stopped(self, run: str, step: str, attempt: int, execution: int) -> None:
        reason = self._stop_reasons.pop((run, step), "pause")
        word = {"cancelled": CANCELLED, "timed_out": TIMED_OUT}.get(reason, "interrupted")
        node = self.tree.state.runs[run].nodes[step]
        spent = None
        asked = is_agent(node) or node.step.on_conflict == "resolve"
        if word != "interrupted" and asked:  # one that goes on later reports all of it then
            spent = self._performers.spent(node, attempt)
        self.post(run, _report(self._task(node), node, word, attempt, execution, usage=spent))

    def _report_outcome(self, start: Start, node: Node, outcome: Outcome) -> None:
        for fact in outcome.evidence:
            told = replace(fact, step=start.step, attempt=start.attempt, execution=start.execution)
            self.post(start.run, Evidence("workspace_event", told))
        if outcome.unsettled:
            self._unsettled.append(outcome.unsettled)
        reason = self._stop_reasons.pop((start.run, start.step), "")
        if outcome.error is not None and self._holds_the_run(node, outcome, reason):
            data = _report(
                self._task(node), node, "interrupted", start.attempt, start.execution, error=outcome.error
            )
        elif outcome.asks is not None:
            data = asked_event(self.tree.blobs, start, outcome.asks)
        elif outcome.error is not None:
            data = _report(
                self._task(node),
                node,
                FAILED,
                start.attempt,
                start.execution,
                error=outcome.error,
                usage=outcome.usage,
            )
        else:
            output = self.tree.blobs.put(outcome.output)
            key = self._performer(node).cache_key(node) if node.step.cache else None
            # What it published is this run's: a step that stood in for it would leave that out.
            if key is not None and not outcome.has_published:
                self.tree.remember_cached(key, output)
            data = _report(
                self._task(node), node, COMPLETED, start.attempt, start.execution,
                output=output, summary=outcome.summary, usage=outcome.usage, error=outcome.warning,
            )  # fmt: skip
        if self._held_by is not None:  # first: a step interrupted in a run that goes on would start again
            who = "provider" if is_agent(node) else node.step.type
            self.pause(f"{who}: {self._held_by.message}", self._held_by)
            self._held_by = None
        self.post(start.run, data)

    def _holds_the_run(self, node: Node, outcome: Outcome, stopping: str) -> bool:
        """Whether an execution ended for now, not for good: it was paused, or somebody outside refuses us."""
        error = outcome.error
        assert error is not None
        if error.code == "session.paused":
            return stopping in ("", "pause")
        if outcome.holds and stopping in ("", "pause"):
            self._held_by = error
            return True
        if not is_provider_refusal(error) or not is_agent(node) or stopping not in ("", "pause"):
            return False
        if self.tree.state.plan.open:
            return False  # the others have nothing to do with it
        self._held_by = error
        return True

    def _performer(self, node: Node) -> Performer:
        return self._performers.of(node, self.tree.memory)

    def _task(self, node: Node) -> str:
        return self.tree.memory.tasks.get((node.run.id, node.path), "")

    async def _end_all(self) -> None:
        """Leaving for whatever reason: nothing that this process started goes on without it."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)


def _report(task: str, node: Node, word: str, attempt: int, execution: int, **more: Any) -> Data:
    """A result as the log records it: `subagent_event` for agents, `step_event` for the rest."""
    if is_agent(node):
        return subagent_event(node, word, attempt, execution, task, **more)
    return StepEvent(node.path, word, attempt, execution, **more)
