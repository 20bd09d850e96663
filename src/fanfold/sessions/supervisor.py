"""The supervisor: starts and ends all sessions of a process.

Rules
* The number of slots limits how many sessions run at once. All supervisors of a process may share the slots.
  Other sessions wait in order of arrival.
* Every session ends in the same way. The supervisor cancels its back end and waits for a grace period. It
  then kills all processes of the session. It returns to the caller only when no process is left, even if
  the caller is cancelled.
* Deadlines count from the start of the session, not from the time it was queued.
* An exception of a back end becomes a `SessionFailed` with a failure class. An exception of the store is
  raised unchanged: the session did not fail, and its host must stop.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from msgspec import UNSET, structs

from fanfold.agents.backend import Progress, SessionFailed, SessionRequest, SessionResult
from fanfold.agents.backend_registry import Backends
from fanfold.agents.entries import (
    Entry,
    FailedRequest,
    News,
    QueuedRequest,
    Response,
    ToolCall,
    ToolResult,
    UserInput,
    paid_in,
    since_last_input,
)
from fanfold.errors import BugError, FanfoldError, WorldError
from fanfold.kernel.events import Failure
from fanfold.sessions.log import SessionLog, open_log
from fanfold.sessions.processes import end_session, finish_despite_cancel, has_processes
from fanfold.store.journal import Journal
from fanfold.store.protocol import LeaseLost, StoreFault

# -----------------------------------------------------------------------------------------------------------
# A running session: how its back end is awaited and stopped.
#
# A session has no task of its own. Its back end runs in the task of the caller, so a session that never waits
# ends in one iteration of the event loop.
#
# Rules
# * To stop a session, the supervisor cancels the task it runs in and waits for the grace period. Then it
#   kills all processes of the session and cancels again. A back end that still runs after `STUCK_S` is
#   abandoned.
# * The same applies if other code cancels the task. A back end may also cancel itself, for an inner timeout;
#   this is allowed if it ends within the grace period.
# * A task that other code cancelled stays cancelled. A task that only the supervisor cancelled continues: its
#   caller gets the reason why the session ended.

STUCK_S = 10.0
"""How long a back end may ignore its cancellation after its processes were killed."""

_log = logging.getLogger(__name__)


class Stuck(Exception):
    """The back end ignores its cancellation."""


class RunningSession:
    """One execution of one session. Must be created in the task that awaits it."""

    def __init__(self, request: SessionRequest, log: SessionLog, grace_s: float, report: Progress) -> None:
        task = asyncio.current_task()
        assert task is not None, "a session runs in a task"
        self.request = request
        self.log = log
        self._report = report
        self._paid: list[Entry] = []
        self._mutating: set[str] = set()
        """The ids of the mutating calls of this execution."""
        self.fault: LeaseLost | StoreFault | BugError | None = None
        self.denied: dict[str, str] = {}
        """Tools whose last call was denied, with the reason."""
        for entry in since_last_input(request.entries):
            self._note_denial(entry)
        self.pausing = False
        self.stop_reason = ""
        self.is_stuck = False
        self._task = task
        self._grace_s = grace_s
        self._cancelled_before = task.cancelling()
        self._asked = 0
        """How often the supervisor cancelled the task."""
        self._is_heard = True
        """Whether the last of these cancellations reached the back end."""
        self._is_over = False
        self._watch: asyncio.TimerHandle | None = None  # ends a session that does not handle a cancellation
        self._heard_at = 0.0
        """When the back end last showed activity; used only with an idle limit."""
        self._timers: list[asyncio.TimerHandle] = []
        self._watchers: list[asyncio.Future[None]] = []
        self._killing: asyncio.Task[None] | None = None

    async def _with_files(self, entry: Entry) -> Entry:
        """The result of a mutating call with the files of the session."""
        if isinstance(entry, ToolCall):
            self._mutating.add(entry.id)
        if not isinstance(entry, ToolResult) or entry.id not in self._mutating or entry.outcome:
            return entry
        assert self.request.save_files is not None, "the caller checks that"
        return structs.replace(entry, files=await self.request.save_files())

    async def record(self, entry: Entry, *, may_wait: bool = False) -> None:
        """Add an entry to the log of the session. With `may_wait`, a later commit writes it."""
        if not isinstance(entry, QueuedRequest):
            self._heard_at = self._task.get_loop().time()
        self._note_denial(entry)
        try:
            if self.request.save_files is not None:
                entry = await self._with_files(entry)
            self.log.hold(entry)
            if paid_in(entry) is not None:
                self._paid.append(entry)
            if not may_wait:
                self.pay()
                await self.log.journal.flush()
        except (LeaseLost, StoreFault, BugError) as fault:
            self.fault = fault
            raise
        if isinstance(entry, FailedRequest | QueuedRequest):
            self._report(entry)
        if self.pausing and isinstance(entry, Response | ToolResult) and entry.output is UNSET:
            self.stop("paused")
            await asyncio.sleep(0)  # the cancellation is raised here

    def _note_denial(self, entry: Entry) -> None:
        if not isinstance(entry, ToolResult):
            return
        if entry.error is not None and entry.error.refused:
            self.denied[entry.tool] = entry.error.message
        elif entry.error is None:
            self.denied.pop(entry.tool, None)

    def pay(self) -> None:
        """Report payments for the entries of the next commit. Otherwise the end of the step reports them."""
        entries, self._paid = self._paid, []
        for entry in entries:
            usage = paid_in(entry)
            if usage is not None:
                self.request.account.paid(usage, getattr(entry, "model", ""))

    def hear_news(self, news: News) -> None:
        """Report a live update; it counts as activity."""
        self._heard_at = self._task.get_loop().time()
        self._report(news)

    def limit(self, timeout_ms: int | None, idle_ms: int | None) -> None:
        """Start the clocks of a session whose back end is about to run."""
        if timeout_ms is not None:
            self._later(timeout_ms / 1_000, lambda: self.stop("timeout"))
        if idle_ms is not None:
            self._heard_at = self._task.get_loop().time()
            self._later(idle_ms / 1_000, lambda: self._judge_silence(idle_ms / 1_000))

    async def end(self) -> None:
        """Note that the back end has ended, and take back the cancellations that were for the session."""
        self._is_over = True
        for timer in self._timers:
            timer.cancel()
        for watcher in self._watchers:
            watcher.set_result(None)
        if not self._is_heard:  # the back end ended before the cancellation reached it
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        for _ in range(self._asked):  # the cancellations were for the session, not for the task
            self._task.uncancel()

    @property
    def is_called_away(self) -> bool:
        """Whether other code cancelled the task itself."""
        return self._task.cancelling() > self._cancelled_before

    @property
    def leaves_something(self) -> bool:
        """Whether the session has processes, or `_kill` is ending them."""
        return self._killing is not None or has_processes(self.request.session_id)

    async def end_processes(self) -> None:
        """End the processes of the session; return when none is left."""
        if self._killing is not None:
            await self._killing
        await end_session(self.request.session_id, grace_s=0.0 if self.is_stuck else self._grace_s)

    async def wait(self) -> None:
        """Return when the back end has ended or was abandoned."""
        while not self._is_over:
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._watchers.append(ended)
            await ended

    def stop(self, reason: str) -> None:
        """Cancel the back end; the failure contains the reason."""
        self.stop_reason = self.stop_reason or reason
        self._cancel()

    def _judge_silence(self, idle_s: float, sure: bool = False) -> None:
        """Stop a session that showed no activity for `idle_s`; otherwise check again when that may be.

        A busy event loop handles pending activity in its next iteration, so the check is made twice.
        """
        left_s = self._heard_at + idle_s - self._task.get_loop().time()
        if left_s <= 0 and sure:
            self.stop("idle")
        else:
            self._later(max(0.0, left_s), lambda: self._judge_silence(idle_s, left_s <= 0))

    def hear(self) -> None:
        """Note that a cancellation reaches the back end now; schedule `_kill` after the grace period."""
        self._is_heard = True
        if self._watch is None:
            self._watch = self._later(self._grace_s, self._kill)

    def check_handled(self) -> None:
        """End the grace period of a cancellation that was the back end's own, and that it has handled."""
        if self._watch is not None and not self.is_called_away:
            self._watch.cancel()
            self._watch = None

    def _cancel(self) -> None:
        if not self._is_over:
            self._asked += 1
            self._is_heard = False
            self._task.cancel()

    def _kill(self) -> None:
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

    def _later(self, delay_s: float, action: Callable[[], None]) -> asyncio.TimerHandle:
        loop = self._task.get_loop()
        self._timers = [timer for timer in self._timers if timer.when() > loop.time()]
        self._timers.append(loop.call_later(delay_s, action))
        return self._timers[-1]


class _BackendRun:
    """Awaits a back end like `await`, but sees cancellations first and can abandon its coroutine."""

    __slots__ = ("_live", "_work")

    def __init__(self, live: RunningSession, work: Coroutine[Any, Any, SessionResult]) -> None:
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
            live.check_handled()
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


GRACE_S = 2.0
MAX_SESSIONS = 256


class Supervisor:
    """Starts sessions, enforces their limits, and ends them."""

    def __init__(
        self, backends: Backends, *, places: SessionSlots | None = None, grace_s: float = GRACE_S
    ) -> None:
        self.backends = backends
        self.grace_s = grace_s
        self._places = places or SessionSlots(MAX_SESSIONS)
        self._live: dict[str, RunningSession] = {}

    async def run_step(
        self,
        request: SessionRequest,
        *,
        backend: str,
        journal: Journal,
        timeout_ms: int | None = None,
        idle_ms: int | None = None,
        on_progress: Progress = lambda _: None,
        durable: bool = False,
    ) -> SessionResult:
        """Run one attempt of one step and return its result. Raises `SessionFailed`.

        `timeout_ms` limits the whole session. `idle_ms` limits the time without activity: text, a tool call,
        a tool result.
        `journal` belongs to the owner of the run tree. The next commit there writes the last entries of the
        session if they were not paid for. With `durable`, they are written before this returns.
        """
        if request.session_id in self._live:
            raise BugError("session.twice", f"session {request.session_id} is running already")
        agent = self.backends.of_role(backend, request.role)
        if not self._places.take_free():
            await self._places.take()
        try:
            live = self._open(request, journal, on_progress)
        except BaseException:
            self._places.give_back()
            raise
        request = live.request
        self._live[request.session_id] = live
        journal.sessions += 1
        result: SessionResult | None = None
        error: BaseException | None = None
        try:
            try:
                report = on_progress if idle_ms is None else live.hear_news
                live.limit(timeout_ms, idle_ms)
                result = await _BackendRun(live, agent.run(request, live.record, report))
            except BaseException as raised:  # noqa: BLE001 - raised again when nothing of the session is left
                error = raised
            await live.end()
            if live.leaves_something:
                await finish_despite_cancel(live.end_processes())
            durable = durable or (result is not None and result.asks is not None)
            if (durable or error is not None) and live.fault is None:
                live.pay()  # a failure reports no sum
            if durable and live.fault is None:
                await journal.flush()
        finally:
            self._places.give_back()
            journal.sessions -= 1
            del self._live[request.session_id]
        if live.is_called_away:
            raise asyncio.CancelledError
        if error is not None or live.fault is not None:
            _raise_reason(live, error, (timeout_ms, idle_ms))
        assert result is not None, "a session ends with a result or an error"
        return structs.replace(result, denied=live.denied) if live.denied else result

    # ------------------------------------------------------------------------------------- ending

    def cancel(self, session_id: str) -> bool:
        """Cancel a running session; False if it does not run here."""
        live = self._live.get(session_id)
        if live is not None:
            live.stop("cancelled")
        return live is not None

    def pause(self, session_id: str) -> bool:
        """Stop a session (code `session.paused`) after its next recorded response or tool result.

        Returns False if it does not run here.
        """
        live = self._live.get(session_id)
        if live is not None:
            live.pausing = True
        return live is not None

    async def aclose(self) -> None:
        """Cancel all running sessions, wait for them, and close the back ends."""
        running = tuple(self._live.values())
        for live in running:
            live.stop("cancelled")
        await asyncio.gather(*(live.wait() for live in running))
        await self.backends.aclose()

    # ------------------------------------------------------------------------------------ opening

    def _open(self, request: SessionRequest, journal: Journal, report: Progress) -> RunningSession:
        about = journal, request.session_id, request.run_id, request.step, request.execution
        entries: Sequence[Entry] = ()
        if request.execution == 1:  # the first execution: no log exists
            log = SessionLog(*about)
        else:
            log, entries = open_log(*about)
        if not entries:
            first_input = UserInput(text=request.prompt)
            log.hold(first_input, request.placed)
            entries = [first_input] if request.earlier else ()
        if entries:
            request = structs.replace(request, entries=[*request.earlier, *entries])
        return RunningSession(request, log, self.grace_s, report)


def _raise_reason(
    live: RunningSession, error: BaseException | None, limits: tuple[int | None, int | None]
) -> NoReturn:
    """Raise the error that explains why a session has no result."""
    request = live.request
    if live.fault is not None:
        raise live.fault
    assert error is not None, "there is a reason"
    if isinstance(error, Stuck):
        raise _failed(request, "internal", "session.stuck", "the back end does not stop when asked")
    if isinstance(error, SessionFailed):
        if not error.failure.step:
            error.failure = structs.replace(error.failure, step=request.step, attempt=request.attempt)
        raise error
    if live.stop_reason:
        timeout_s, idle_s = ((limit or 0) / 1_000 for limit in limits)
        reasons = {
            "idle": ("timeout", "session.idle", f"nothing was heard of it for {idle_s:g} s"),
            "timeout": ("timeout", "session.timeout", f"no result within {timeout_s:g} s"),
            "paused": ("cancelled", "session.paused", "stopped after the last recorded turn"),
            "cancelled": ("cancelled", "session.cancelled", "cancelled"),
        }
        raise _failed(request, *reasons[live.stop_reason]) from error
    if isinstance(error, asyncio.CancelledError):  # no caller requested it: see `backend.is_cancelled`
        message = "a connection was cancelled unexpectedly"
        raise _failed(request, "transport", "session.broken_off", message) from error
    if isinstance(error, LeaseLost | StoreFault) or not isinstance(error, Exception):
        raise error
    if isinstance(error, FanfoldError):
        raise _failed(request, "agent", error.code, error.message, error.hint) from error
    trace = live.log.cleaned("".join(traceback.format_exception(error)))
    _log.error("session %s crashed\n%s", request.session_id, trace)
    message = f"the back end failed: {type(error).__name__}: {error}"
    raise _failed(request, "internal", "session.crashed", message) from error


def _failed(request: SessionRequest, kind: str, code: str, message: str, hint: str = "") -> SessionFailed:
    return SessionFailed(
        Failure(kind, code, f"{request.step}: {message}", hint, True, request.step, request.attempt)
    )


class SessionSlots:
    """Slots for at most `count` sessions at once, in order of arrival.

    A waiting session costs only a future. A free slot goes directly to the session that waited longest, so
    no later session can acquire it first.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """The number of sessions in the queue."""
        return sum(not future.done() for future in self._queue)

    def take_free(self) -> bool:
        """Acquire a slot if one is free; return whether it was. The queue is empty while a slot is free."""
        if self._free <= 0:
            return False
        self._free -= 1
        return True

    async def take(self) -> None:
        """Wait for a slot and acquire it."""
        if self.take_free():
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back()  # the slot arrived together with the cancellation
            raise

    def give_back(self) -> None:
        """Release a slot: the next session in the queue gets it."""
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
