"""The supervisor: the one authority that starts sessions, and the one that ends them.

Rules
* Every session of the process is started here: steps of runs through `run_step`, children by hand through
  `children`. At most `max_sessions` run at once; the others wait in the order they came.
* A session ends in one way whatever the reason. Its back end is asked to stop (cancelled) and given a
  grace period; then whatever processes it started are killed; then its own children are stopped; and only
  when nothing is left does the caller hear of it. A cancelled caller is no exception.
* Deadlines count from the start of the session, not from the moment it queued.
* What a back end raises becomes a `SessionFailed` with a class. What the store raises stays what it is:
  it is not the session that failed, and its host must stop.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from msgspec import structs

from fanfold.agents.backend import (
    Backend,
    Progress,
    SessionFailed,
    SessionRequest,
    SessionResult,
)
from fanfold.agents.backend_registry import Backends
from fanfold.agents.entries import Entry, Input, News
from fanfold.errors import BugError, FanfoldError
from fanfold.kernel.events import Failure
from fanfold.process_identity import ProcessIdentity
from fanfold.sessions.insist import insist
from fanfold.sessions.lineage import Child
from fanfold.sessions.live import Live, Stuck
from fanfold.sessions.log import Belonging, SessionLog, open_log, read_entries
from fanfold.sessions.opened import Settings
from fanfold.sessions.places import Places
from fanfold.sessions.subagents import WAIT_S, Subagents
from fanfold.store.journal import Journal
from fanfold.store.protocol import LeaseLost, Store, StoreFault

GRACE_S = 2.0

_log = logging.getLogger(__name__)


class Supervisor:
    """Starts sessions, keeps their limits, ends them.

    `owner` is this process as the store knows it; with it, sessions by hand are guarded by leases.
    """

    def __init__(
        self,
        store: Store,
        backends: Backends,
        *,
        max_threads: int = 6,
        max_depth: int = 1,
        max_sessions: int = 256,
        grace_s: float = GRACE_S,
        owner: ProcessIdentity | None = None,
    ) -> None:
        self.store = store
        self.backends = backends
        self.max_threads = max_threads
        self.max_depth = max_depth
        self.grace_s = grace_s
        self.owner = owner
        self._places = Places(max_sessions)
        self._live: dict[str, Live] = {}
        self.children = Subagents(self)

    # ------------------------------------------------------------------------------ steps of runs

    async def run_step(
        self,
        request: SessionRequest,
        *,
        backend: str,
        timeout_ms: int | None = None,
        on_progress: Progress | None = None,
        journal: Journal | None = None,
        durable: bool = False,
    ) -> SessionResult:
        """Run one attempt of one step; raises `SessionFailed`.

        `journal` is where the owner of its run tree writes. What the session said last, if nobody paid for
        it, is written with the next commit there; before this returns when it must be `durable`, or when
        there is no journal.
        """
        if request.session_id in self._live:
            raise BugError("session.twice", f"session {request.session_id} is running already")
        agent = self.backends.named(backend)
        await self._places.take()
        try:
            live = self._open(request, journal)
            return await self._supervise(live, agent, timeout_ms, on_progress, durable or journal is None)
        finally:
            self._places.give_back()

    async def run_child(
        self, request: SessionRequest, log: SessionLog, settings: Settings, on_start: Callable[[], None]
    ) -> SessionResult:
        """Run one turn of a child whose log is open already; `on_start` is called when its place is free."""
        agent = self.backends.named(settings.backend)
        await self._places.take()
        try:
            on_start()
            live = Live(request, log, self.grace_s)
            return await self._supervise(live, agent, round(settings.timeout_s * 1_000), None, True)
        finally:
            self._places.give_back()

    async def _supervise(
        self,
        live: Live,
        agent: Backend,
        timeout_ms: int | None,
        on_progress: Progress | None,
        durable: bool,
    ) -> SessionResult:
        request, log = live.request, live.log
        self._live[request.session_id] = live
        log.journal.sessions += 1
        result: SessionResult | None = None
        error: BaseException | None = None
        try:
            result = await live.run(agent.run(request, live.record, on_progress or _ignore), timeout_ms)
        except BaseException as raised:  # noqa: BLE001 - told when nothing of the session is left
            error = raised
        try:
            if live.leaves_something or self.children.some_run:
                await insist(self._end(live))
            if durable and live.fault is None:
                await log.flush()
        finally:
            log.journal.sessions -= 1
            del self._live[request.session_id]
        if live.is_called_away:
            raise asyncio.CancelledError
        if error is not None or live.fault is not None:
            _tell(live, error, timeout_ms)
        assert result is not None, "a session ends with a result or an error"
        return result

    # ------------------------------------------------------------------------------------- ending

    async def _end(self, live: Live) -> None:
        """See that nothing of a session is left."""
        await live.end_processes()
        await self.children.stop_all(live.request.session_id)

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

    def is_live(self, session_id: str) -> bool:
        """Whether the session runs in this process."""
        return session_id in self._live

    def is_read_only(self, session_id: str) -> bool:
        """Whether the session runs here and may only read."""
        live = self._live.get(session_id)
        return live is not None and live.request.role.read_only

    def running_log(self, session_id: str) -> SessionLog | None:
        """The log that a running session writes; whoever else writes into it goes through this."""
        live = self._live.get(session_id)
        return None if live is None else live.log

    async def aclose(self) -> None:
        """Stop everything that runs here and give the leases of sessions by hand back."""
        await self.children.stop_everything()
        running = tuple(self._live.values())
        for live in running:
            live.stop("cancelled")
        await asyncio.gather(*(live.wait() for live in running))
        self.children.above.release()
        await self.backends.aclose()

    # -------------------------------------------------------------------------- subagents by hand

    async def spawn(self, parent_session: str, role: str, task: str, settings: Settings) -> str:
        """Delegate a task to a new child of a session; its id. Over capacity it queues."""
        return self.children.spawn(parent_session, role, task, settings)

    async def wait(self, ids: Sequence[str], timeout_s: float = WAIT_S) -> dict[str, list[Child]]:
        """How children stand once all are over or the time is, in buckets by status; 0 only looks."""
        return await self.children.wait(ids, timeout_s)

    async def send_input(self, subagent_id: str, text: str) -> Child:
        """Say something to a child; one that is over runs again, unless it is detached or closed."""
        return self.children.send_input(subagent_id, text)

    async def close(self, subagent_id: str) -> Child:
        """Cancel a child that runs, close any other."""
        return await self.children.close(subagent_id)

    def list(self, parent_session: str) -> list[Child]:
        """The children of a session, those of dead processes included."""
        return self.children.list(parent_session)

    # ------------------------------------------------------------------------------------ opening

    def _open(self, request: SessionRequest, journal: Journal | None) -> Live:
        log, entries = self._open_log(request, journal)
        if not entries:
            said = Input(text=request.prompt)
            log.hold(said)
            entries = [said] if request.earlier else ()
        if entries:
            request = structs.replace(request, entries=[*request.earlier, *entries])
        return Live(request, log, self.grace_s)

    def _open_log(
        self, request: SessionRequest, journal: Journal | None
    ) -> tuple[SessionLog, Sequence[Entry]]:
        session = request.session_id
        log = self.children.above.known_log(session)
        if log is not None:
            return log, read_entries(self.store, session)
        if journal is None:
            head = self.store.head(request.run_id)
            root = request.run_id if head is None else head.root_run_id
            journal, is_new = Journal(self.store, session), False
        else:
            root, is_new = journal.root, request.execution == 1
        place = Belonging(root=root, run_id=request.run_id, path=request.step)
        if is_new:  # nobody can have been here
            return SessionLog(journal, session, place, 0), ()
        log, entries, _ = open_log(journal, session, place)
        return log, entries


def _ignore(_: News) -> None:
    return None


def _tell(live: Live, error: BaseException | None, timeout_ms: int | None) -> NoReturn:
    """Raise the one error that says why a session has no result."""
    request = live.request
    if live.fault is not None:
        raise live.fault
    assert error is not None, "there is a reason"
    if isinstance(error, Stuck):
        raise _failed(request, "internal", "session.stuck", "the back end does not stop when asked")
    if isinstance(error, asyncio.CancelledError):
        raise _failed(request, *_why_stopped(live.stop_reason, timeout_ms))
    if isinstance(error, SessionFailed):
        if not error.failure.step:
            error.failure = structs.replace(error.failure, step=request.step, attempt=request.attempt)
        raise error
    if live.stop_reason:
        raise _failed(request, *_why_stopped(live.stop_reason, timeout_ms)) from error
    if isinstance(error, LeaseLost | StoreFault) or not isinstance(error, Exception):
        raise error
    if isinstance(error, FanfoldError):
        raise _failed(request, "agent", error.code, error.message, error.hint) from error
    trace = live.log.cleaned("".join(traceback.format_exception(error)))
    _log.error("session %s crashed\n%s", request.session_id, trace)
    message = f"the back end failed: {type(error).__name__}: {error}"
    raise _failed(request, "internal", "session.crashed", message) from error


def _why_stopped(reason: str, timeout_ms: int | None) -> tuple[str, str, str]:
    if reason == "timeout" and timeout_ms is not None:
        return "timeout", "session.timeout", f"no result within {timeout_ms / 1_000:g} s"
    if reason == "paused":
        return "cancelled", "session.paused", "stopped after the last recorded turn"
    return "cancelled", "session.cancelled", "cancelled"


def _failed(request: SessionRequest, kind: str, code: str, message: str, hint: str = "") -> SessionFailed:
    return SessionFailed(
        Failure(kind, code, f"{request.step}: {message}", hint, True, request.step, request.attempt)
    )
