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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import structs

from fanfold.agents.backend import (
    Backend,
    Entry,
    Progress,
    SessionFailed,
    SessionRequest,
    SessionResult,
)
from fanfold.errors import AuthorError, BugError, FanfoldError
from fanfold.kernel.events import Failure
from fanfold.process_identity import ProcessIdentity
from fanfold.sessions.insist import insist
from fanfold.sessions.lineage import Child
from fanfold.sessions.log import Belonging, SessionLog, open_log, read_entries
from fanfold.sessions.opened import Settings
from fanfold.sessions.places import Places
from fanfold.sessions.processes import end_session
from fanfold.sessions.subagents import WAIT_S, Subagents
from fanfold.store.protocol import Batch, Lease, LeaseLost, Store, StoreFault

GRACE_S = 2.0
STUCK_S = 10.0
"""How long a back end may ignore being cancelled after its processes were killed."""
_ENDS_A_TURN = frozenset({"response", "tool_result"})

_log = logging.getLogger(__name__)


class Live:
    """A session that is running in this process."""

    __slots__ = ("carries", "fault", "log", "pausing", "request", "stop_reason", "stopping", "work")

    def __init__(self, request: SessionRequest, log: SessionLog, carries: bool) -> None:
        self.request = request
        self.log = log
        self.carries = carries
        self.work: asyncio.Task[SessionResult] | None = None
        self.fault: LeaseLost | StoreFault | BugError | None = None
        self.pausing = False
        self.stop_reason = ""
        self.stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when somebody wants the session to end: from then on the grace period counts."""

    async def record(self, entry: Entry) -> None:
        """What a back end calls as it learns something."""
        try:
            if self.carries and entry.get("last"):
                self.log.hold(entry)
            else:
                self.log.append(entry)
        except (LeaseLost, StoreFault, BugError) as fault:
            self.fault = fault
            raise
        if self.pausing and entry.get("kind") in _ENDS_A_TURN and "output" not in entry:
            self.stop("paused")
            await asyncio.sleep(0)  # where the request to stop arrives

    def stop(self, reason: str) -> None:
        """Ask the back end to stop; the reason goes into the failure."""
        self.stop_reason = self.stop_reason or reason
        if not self.stopping.done():
            self.stopping.set_result(None)
        if self.work is not None:
            self.work.cancel()


class Supervisor:
    """Starts sessions, keeps their limits, ends them.

    `owner` is this process as the store knows it; with it, sessions by hand are guarded by leases.
    """

    def __init__(
        self,
        store: Store,
        backends: Mapping[str, Backend],
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
        lease: Lease | None = None,
        carry: list[Batch] | None = None,
    ) -> SessionResult:
        """Run one attempt of one step; raises `SessionFailed`.

        `lease` guards the session's log by the lease of its run tree. When `carry` is given, the entry
        that ends the session is not written here but put there, for the transaction that ends the step.
        """
        if request.session_id in self._live:
            raise BugError("session.twice", f"session {request.session_id} is running already")
        door = self._door(backend)
        await self._places.take()
        try:
            live = self._open(request, self._belonging(request, lease), carry is not None)
            return await self._supervise(live, door, timeout_ms, on_progress, carry)
        finally:
            self._places.give_back()

    async def run_child(
        self, request: SessionRequest, log: SessionLog, settings: Settings, on_start: Callable[[], None]
    ) -> SessionResult:
        """Run one turn of a child whose log is open already; `on_start` is called when its place is free."""
        door = self._door(settings.backend)
        await self._places.take()
        try:
            on_start()
            live = Live(request, log, carries=False)
            return await self._supervise(live, door, round(settings.timeout_s * 1_000), None, None)
        finally:
            self._places.give_back()

    async def _supervise(
        self,
        live: Live,
        door: Backend,
        timeout_ms: int | None,
        on_progress: Progress | None,
        carry: list[Batch] | None,
    ) -> SessionResult:
        request = live.request
        self._live[request.session_id] = live
        live.work = asyncio.create_task(
            door.run(request, live.record, on_progress or _ignore), name=request.session_id
        )
        try:
            timeout_s = None if timeout_ms is None else timeout_ms / 1_000
            ends: set[asyncio.Future[Any]] = {live.work, live.stopping}
            done, _ = await asyncio.wait(ends, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                live.stop_reason = live.stop_reason or "timeout"
        finally:
            try:
                await insist(self._end(live))
            finally:
                del self._live[request.session_id]
                _settle(live, carry)
        return _outcome(live, timeout_ms)

    # ------------------------------------------------------------------------------------- ending

    async def _end(self, live: Live) -> None:
        """Ask, wait, kill, drain."""
        work = live.work
        assert work is not None, "a session is supervised from its start"
        if not work.done():
            work.cancel()
            await asyncio.wait({work}, timeout=self.grace_s)
        await end_session(live.request.session_id, grace_s=self.grace_s if work.done() else 0.0)
        if not work.done():
            work.cancel()
            _, stuck = await asyncio.wait({work}, timeout=STUCK_S)
            if stuck:
                _log.error("the back end of session %s ignores being cancelled", live.request.session_id)
                live.stop_reason = "stuck"
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
        for live in tuple(self._live.values()):
            live.stop("cancelled")
            if live.work is not None:
                await asyncio.wait({live.work}, timeout=self.grace_s)
            await end_session(live.request.session_id, grace_s=0.0)
        self.children.above.release()
        for door in self.backends.values():
            await door.aclose()

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

    def _door(self, backend: str) -> Backend:
        door = self.backends.get(backend)
        if door is None:
            known = ", ".join(sorted(self.backends)) or "none"
            message = f'there is no agent back end "{backend}"'
            raise AuthorError("backend.unknown", message, hint=f"configured here: {known}")
        return door

    def _open(self, request: SessionRequest, belonging: Belonging, carries: bool) -> Live:
        log, entries = self._open_log(request, belonging)
        if not entries:
            log.hold({"kind": "input", "text": request.prompt})
        request = structs.replace(request, entries=entries)
        return Live(request, log, carries)

    def _open_log(self, request: SessionRequest, belonging: Belonging) -> tuple[SessionLog, Sequence[Entry]]:
        log = self.children.above.known_log(request.session_id)
        if log is not None:
            return log, read_entries(self.store, request.session_id)
        if request.execution == 1 and not belonging.guard:
            return SessionLog(self.store, request.session_id, belonging, 0), ()  # nobody can have been here
        log, entries, _ = open_log(self.store, request.session_id, belonging)
        return log, entries

    def _belonging(self, request: SessionRequest, lease: Lease | None) -> Belonging:
        if lease is not None:
            return Belonging(root=lease.root, epoch=lease.epoch, run_id=request.run_id, path=request.step)
        head = self.store.head(request.run_id)
        root = request.run_id if head is None else head.root_run_id
        return Belonging(root=root, guard=request.session_id, run_id=request.run_id, path=request.step)


def _ignore(_: Entry) -> None:
    return None


def _settle(live: Live, carry: list[Batch] | None) -> None:
    """See to what is held back: it goes to the caller, or into the log now."""
    if live.fault is not None:
        return
    if carry is None:
        live.log.flush()
    elif (batch := live.log.take()) is not None:
        carry.append(batch)


def _outcome(live: Live, timeout_ms: int | None) -> SessionResult:
    """The session's result, or the one failure that says why there is none."""
    work, request = live.work, live.request
    assert work is not None, "a session is supervised from its start"
    if live.fault is not None:
        raise live.fault
    if not work.done():
        raise _failed(request, "internal", "session.stuck", "the back end does not stop when asked")
    if work.cancelled():
        raise _failed(request, *_why_stopped(live.stop_reason, timeout_ms))
    error = work.exception()
    if error is None:
        return work.result()
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
