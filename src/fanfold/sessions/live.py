"""A session that runs in this process: its back end, awaited where its caller stands, and how it is stopped.

A session costs no task of its own. Its back end is taken through its steps within the task of whoever runs
the session, so one that never waits is over in one turn of the loop.

Rules
* To stop a session is to cancel the task it runs in: the back end is asked to stop and given the grace
  period. Then whatever processes it started are killed, and it is asked again. One that still goes on after
  `STUCK_S` is left where it is.
* The same holds when somebody else cancels the task. A back end may also cancel itself, for a timeout inside
  it; that is its own business as long as it is over within the grace period.
* A task that was cancelled from outside stays cancelled. One that was only cancelled from here goes on: its
  caller hears why the session ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from msgspec import UNSET

from fanfold.agents.backend import Progress, SessionRequest, SessionResult
from fanfold.agents.entries import Entry, News, Response, ToolResult
from fanfold.errors import BugError, WorldError
from fanfold.sessions.log import SessionLog
from fanfold.sessions.processes import end_session, has_processes
from fanfold.store.protocol import LeaseLost, StoreFault

STUCK_S = 10.0
"""How long a back end may ignore being cancelled after its processes were killed."""

_log = logging.getLogger(__name__)


class Stuck(Exception):
    """The back end ignores being cancelled."""


class Live:
    """One run of one session, made in the task that awaits it."""

    __slots__ = (
        "_asked",
        "_cancelled_before",
        "_grace_s",
        "_heard_at",
        "_is_heard",
        "_is_over",
        "_is_watched",
        "_killing",
        "_task",
        "_timers",
        "_watchers",
        "fault",
        "is_stuck",
        "log",
        "pausing",
        "request",
        "stop_reason",
    )

    def __init__(self, request: SessionRequest, log: SessionLog, grace_s: float) -> None:
        task = asyncio.current_task()
        assert task is not None, "a session runs in a task"
        self.request = request
        self.log = log
        self.fault: LeaseLost | StoreFault | BugError | None = None
        self.pausing = False
        self.stop_reason = ""
        self.is_stuck = False
        self._task = task
        self._grace_s = grace_s
        self._cancelled_before = task.cancelling()
        self._asked = 0
        """How often we cancelled the task."""
        self._is_heard = True
        """Whether the last of that reached the back end."""
        self._is_over = False
        self._is_watched = False
        self._heard_at = 0.0
        """When the back end last gave a sign of life; kept only where silence has a limit."""
        self._timers: list[asyncio.TimerHandle] = []
        self._watchers: list[asyncio.Future[None]] = []
        self._killing: asyncio.Task[None] | None = None

    async def record(self, entry: Entry, *, may_wait: bool = False) -> None:
        """What a back end calls as it learns something."""
        self._heard_at = self._task.get_loop().time()
        try:
            self.log.hold(entry)
            if not may_wait:
                await self.log.journal.flush()
        except (LeaseLost, StoreFault, BugError) as fault:
            self.fault = fault
            raise
        if self.pausing and isinstance(entry, Response | ToolResult) and entry.output is UNSET:
            self.stop("paused")
            await asyncio.sleep(0)  # where the request to stop arrives

    def listening(self, tell: Progress) -> Progress:
        """The same, with every piece of news taken for a sign of life."""

        def told(news: News) -> None:
            self._heard_at = self._task.get_loop().time()
            tell(news)

        return told

    async def run(
        self,
        work: Coroutine[Any, Any, SessionResult],
        timeout_ms: int | None = None,
        idle_ms: int | None = None,
    ) -> SessionResult:
        """Await the back end. Raises what it raises, or `Stuck`."""
        if timeout_ms is not None:
            self._later(timeout_ms / 1_000, lambda: self.stop("timeout"))
        if idle_ms is not None:
            self._heard_at = self._task.get_loop().time()
            self._later(idle_ms / 1_000, lambda: self._judge_silence(idle_ms / 1_000))
        try:
            return await _Steps(self, work)
        finally:
            self._is_over = True
            for timer in self._timers:
                timer.cancel()
            for watcher in self._watchers:
                watcher.set_result(None)
            if not self._is_heard:  # the back end ended before it could be told
                try:
                    await asyncio.sleep(0)
                except asyncio.CancelledError:
                    pass
            while self._asked:  # it was the session that we meant, not the task
                self._asked -= 1
                self._task.uncancel()

    @property
    def is_called_away(self) -> bool:
        """Whether the task itself was cancelled, by somebody else."""
        return self._task.cancelling() > self._cancelled_before

    @property
    def leaves_something(self) -> bool:
        """Whether there are processes of the session, or somebody is ending them."""
        return self._killing is not None or has_processes(self.request.session_id)

    async def end_processes(self) -> None:
        """Return when none is left."""
        if self._killing is not None:
            await self._killing
        await end_session(self.request.session_id, grace_s=0.0 if self.is_stuck else self._grace_s)

    async def wait(self) -> None:
        """Return when the back end is done with."""
        while not self._is_over:
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._watchers.append(ended)
            await ended

    def stop(self, reason: str) -> None:
        """Ask the back end to stop; the reason goes into the failure."""
        self.stop_reason = self.stop_reason or reason
        self._cancel()

    def _judge_silence(self, idle_s: float, sure: bool = False) -> None:
        """End a session that gave no sign of life for so long; look again when that may be.

        What arrived while this loop was busy elsewhere is heard in its next turn, so it is asked twice.
        """
        left_s = self._heard_at + idle_s - self._task.get_loop().time()
        if left_s <= 0 and sure:
            self.stop("idle")
        else:
            self._later(max(0.0, left_s), lambda: self._judge_silence(idle_s, left_s <= 0))

    def hear(self) -> None:
        """Somebody cancelled the task, and the back end is told now: see to it that it ends."""
        self._is_heard = True
        if not self._is_watched:
            self._is_watched = True
            self._later(self._grace_s, self._kill)

    def _cancel(self) -> None:
        if not self._is_over:
            self._asked += 1
            self._is_heard = False
            self._task.cancel()

    def _kill(self) -> None:
        self._is_watched = False
        if self._task.cancelling() > self._cancelled_before:  # else it cancelled itself, and that is over
            self._is_watched = True
            self._killing = asyncio.create_task(self._kill_and_ask_again())

    async def _kill_and_ask_again(self) -> None:
        try:
            await end_session(self.request.session_id, grace_s=0.0)
        except WorldError as error:
            _log.error("session %s: %s", self.request.session_id, error.message)
        if not self._is_over:
            self._cancel()
            self._later(STUCK_S, self._give_up)

    def _give_up(self) -> None:
        _log.error("the back end of session %s ignores being cancelled", self.request.session_id)
        self.is_stuck = True
        self._cancel()

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        now = self._task.get_loop().time()
        self._timers = [timer for timer in self._timers if timer.when() > now]
        self._timers.append(asyncio.get_running_loop().call_later(delay_s, action))


class _Steps:
    """Awaits a coroutine as `await` does, but hears of cancellations first and can leave it alone."""

    __slots__ = ("_live", "_work")

    def __init__(self, live: Live, work: Coroutine[Any, Any, SessionResult]) -> None:
        self._live = live
        self._work = work

    def __await__(self) -> Generator[Any, None, SessionResult]:
        live, work = self._live, self._work
        thrown: BaseException | None = None
        while True:
            try:
                waits_for = work.send(None) if thrown is None else work.throw(thrown)
            except StopIteration as done:
                result: SessionResult = done.value
                return result
            try:
                yield waits_for
                thrown = None
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is for the back end
                live.hear()
                if live.is_stuck:
                    raise Stuck from None
                thrown = error
