"""The supervisor: the one authority that starts sessions, and the one that ends them.

Rules
* Every session of the process is started here. Only so many run at once as there are places, which all
  supervisors of a process may share; the others wait in the order they came.
* A session ends in one way whatever the reason. Its back end is asked to stop (cancelled) and given a
  grace period; then whatever processes it started are killed; and only when nothing is left does the caller
  hear of it. A cancelled caller is no exception.
* Deadlines count from the start of the session, not from the moment it queued.
* What a back end raises becomes a `SessionFailed` with a class. What the store raises stays what it is:
  it is not the session that failed, and its host must stop.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import deque
from collections.abc import Sequence
from typing import NoReturn

from msgspec import structs

from fanfold.agents.backend import (
    Progress,
    SessionFailed,
    SessionRequest,
    SessionResult,
)
from fanfold.agents.backend_registry import Backends
from fanfold.agents.entries import Entry, News, UserInput
from fanfold.errors import BugError, FanfoldError
from fanfold.kernel.events import Failure
from fanfold.sessions.insist import insist
from fanfold.sessions.live import Live, Stuck
from fanfold.sessions.log import SessionLog, open_log
from fanfold.store.journal import Journal
from fanfold.store.protocol import LeaseLost, StoreFault

GRACE_S = 2.0
MAX_SESSIONS = 256

_log = logging.getLogger(__name__)


def _ignore(_: News) -> None:
    return None


class Supervisor:
    """Starts sessions, keeps their limits, ends them."""

    def __init__(
        self,
        backends: Backends,
        *,
        places: Places | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        self.backends = backends
        self.grace_s = grace_s
        self._places = places or Places(MAX_SESSIONS)
        self._live: dict[str, Live] = {}

    async def run_step(
        self,
        request: SessionRequest,
        *,
        backend: str,
        journal: Journal,
        timeout_ms: int | None = None,
        idle_ms: int | None = None,
        on_progress: Progress = _ignore,
        durable: bool = False,
    ) -> SessionResult:
        """Run one attempt of one step; raises `SessionFailed`.

        `timeout_ms` bounds all of it, `idle_ms` how long it may go without a sign of life: a word, a call of
        a tool, what came of one.
        `journal` is where the owner of its run tree writes. What the session said last, if nobody paid for
        it, is written with the next commit there, or before this returns when it must be `durable`.
        """
        if request.session_id in self._live:
            raise BugError("session.twice", f"session {request.session_id} is running already")
        agent = self.backends.named(backend)
        if not self._places.take_free():
            await self._places.take()
        try:
            live = self._open(request, journal)
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
                tell = on_progress if idle_ms is None else live.listening(on_progress)
                result = await live.run(agent.run(request, live.record, tell), timeout_ms, idle_ms)
            except BaseException as raised:  # noqa: BLE001 - told when nothing of the session is left
                error = raised
            if live.leaves_something:
                await insist(live.end_processes())
            if durable and live.fault is None:
                await journal.flush()
        finally:
            self._places.give_back()
            journal.sessions -= 1
            del self._live[request.session_id]
        if live.is_called_away:
            raise asyncio.CancelledError
        if error is not None or live.fault is not None:
            _tell(live, error, (timeout_ms, idle_ms))
        assert result is not None, "a session ends with a result or an error"
        return result

    # ------------------------------------------------------------------------------------- ending

    def cancel(self, session_id: str) -> bool:
        """Ask a running session to end as cancelled; False when it does not run here."""
        live = self._live.get(session_id)
        if live is not None:
            live.stop("cancelled")
        return live is not None

    def pause(self, session_id: str) -> bool:
        """Have a session end (code `session.paused`) behind its next recorded response or tool result."""
        live = self._live.get(session_id)
        if live is not None:
            live.pausing = True
        return live is not None

    async def aclose(self) -> None:
        """Stop everything that runs here."""
        running = tuple(self._live.values())
        for live in running:
            live.stop("cancelled")
        await asyncio.gather(*(live.wait() for live in running))
        await self.backends.aclose()

    # ------------------------------------------------------------------------------------ opening

    def _open(self, request: SessionRequest, journal: Journal) -> Live:
        about = journal, request.session_id, request.run_id, request.step
        entries: Sequence[Entry] = ()
        if request.execution == 1:  # nobody can have been here
            log = SessionLog(*about)
        else:
            log, entries = open_log(*about)
        if not entries:
            said = UserInput(text=request.prompt)
            log.hold(said, request.placed)
            entries = [said] if request.earlier else ()
        if entries:
            request = structs.replace(request, entries=[*request.earlier, *entries])
        return Live(request, log, self.grace_s)


def _tell(live: Live, error: BaseException | None, limits: tuple[int | None, int | None]) -> NoReturn:
    """Raise the one error that says why a session has no result."""
    request = live.request
    if live.fault is not None:
        raise live.fault
    assert error is not None, "there is a reason"
    if isinstance(error, Stuck):
        raise _failed(request, "internal", "session.stuck", "the back end does not stop when asked")
    if isinstance(error, asyncio.CancelledError):
        raise _failed(request, *_why_stopped(live.stop_reason, limits))
    if isinstance(error, SessionFailed):
        if not error.failure.step:
            error.failure = structs.replace(error.failure, step=request.step, attempt=request.attempt)
        raise error
    if live.stop_reason:
        raise _failed(request, *_why_stopped(live.stop_reason, limits)) from error
    if isinstance(error, LeaseLost | StoreFault) or not isinstance(error, Exception):
        raise error
    if isinstance(error, FanfoldError):
        raise _failed(request, "agent", error.code, error.message, error.hint) from error
    trace = live.log.cleaned("".join(traceback.format_exception(error)))
    _log.error("session %s crashed\n%s", request.session_id, trace)
    message = f"the back end failed: {type(error).__name__}: {error}"
    raise _failed(request, "internal", "session.crashed", message) from error


def _why_stopped(reason: str, limits: tuple[int | None, int | None]) -> tuple[str, str, str]:
    timeout_ms, idle_ms = limits
    if reason == "idle" and idle_ms is not None:
        return "timeout", "session.idle", f"nothing was heard of it for {idle_ms / 1_000:g} s"
    if reason == "timeout" and timeout_ms is not None:
        return "timeout", "session.timeout", f"no result within {timeout_ms / 1_000:g} s"
    if reason == "paused":
        return "cancelled", "session.paused", "stopped after the last recorded turn"
    return "cancelled", "session.cancelled", "cancelled"


def _failed(request: SessionRequest, kind: str, code: str, message: str, hint: str = "") -> SessionFailed:
    return SessionFailed(
        Failure(kind, code, f"{request.step}: {message}", hint, True, request.step, request.attempt)
    )


class Places:
    """At most `count` holders at once, in the order they asked.

    Waiting costs a future and nothing else. A place that becomes free goes straight to the one who waited
    longest, so nobody who comes later can take it in between.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """How many stand in the queue."""
        return sum(not future.done() for future in self._queue)

    def take_free(self) -> bool:
        """Take a place if there is one: nobody waits while there is."""
        if self._free <= 0:
            return False
        self._free -= 1
        return True

    async def take(self) -> None:
        """Wait for a place."""
        if self.take_free():
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back()  # it was our turn just as we were called away
            raise

    def give_back(self) -> None:
        """Free a place: the next in the queue gets it."""
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
