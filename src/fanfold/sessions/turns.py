"""The turns of a child: from what it is told to what comes of it.

Rules
* Input for a running child waits until its turn is over, also when that turn is gone on with in another
  process: a turn rebuilds its messages from the log, and what was said to it meanwhile must stand behind
  what it said.
* A turn takes place in the child's home. It has succeeded when its changes are where they belong: what may
  not or cannot be put there fails the turn, and the home is kept.
* Changes are merged after each turn, so the next one starts from a project that has them. A proposal is made
  once, of all turns that follow each other: a second one would have to be without the first.
* From the moment that changes are being brought back it is too late to cancel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from msgspec import structs

from fanfold.agents.backend import SessionFailed, SessionRequest, SessionResult
from fanfold.agents.entries import Input
from fanfold.errors import FanfoldError
from fanfold.process_identity import ProcessIdentity
from fanfold.sessions.housing import Home, Housing, Outdoors
from fanfold.sessions.insist import insist
from fanfold.sessions.lineage import Child
from fanfold.sessions.log import SessionLog, read_entries
from fanfold.sessions.opened import Opened, Settings, make_request
from fanfold.store.protocol import LeaseLost, Store, StoreFault


class Starter(Protocol):
    """What runs sessions and knows which are running: the supervisor, as far as children need it."""

    store: Store
    owner: ProcessIdentity | None
    max_threads: int
    max_depth: int

    async def run_child(
        self, request: SessionRequest, log: SessionLog, settings: Settings, on_start: Callable[[], None]
    ) -> SessionResult: ...

    def running_log(self, session_id: str) -> SessionLog | None: ...

    def is_read_only(self, session_id: str) -> bool: ...


class Handle:
    """A child that is queued or running in this process."""

    __slots__ = ("child", "home", "inbox", "log", "opened", "stopped", "task")

    def __init__(self, child: Child, opened: Opened, log: SessionLog) -> None:
        self.child = child
        self.opened = opened
        self.log = log
        self.home: Home | None = None
        self.inbox: list[str] = []
        self.stopped = False
        """It was cancelled when it was too late to cancel its turn; there will be no other."""
        self.task: asyncio.Task[None] | None = None


class Turns:
    """Carries out the turns of every child of one supervisor."""

    def __init__(self, supervisor: Starter) -> None:
        self._supervisor = supervisor
        self.housing: Housing = Outdoors()

    async def take(self, handle: Handle, on_start: Callable[[], None]) -> SessionResult:
        """One turn for the task, and one more for as long as there was input meanwhile."""
        if handle.child.execution == 1:  # else there is a turn to be ended first
            self._hear(handle)
        while True:
            result = await self._turn(handle, on_start)
            if handle.stopped or not handle.inbox:
                if handle.home is not None:  # kept for a turn that will not be
                    await insist(handle.home.clear())
                return result
            self._hear(handle)
            attempt = handle.child.attempt + 1
            handle.child = structs.replace(handle.child, attempt=attempt, execution=1)

    def _hear(self, handle: Handle) -> None:
        for text in handle.inbox:
            handle.log.append(Input(text=text))
        handle.inbox.clear()

    async def _turn(self, handle: Handle, on_start: Callable[[], None]) -> SessionResult:
        """One turn in the child's home, with what it changed brought back."""
        child, settings = handle.child, handle.opened.settings
        home = handle.home or self.housing.home_of(child.session_id, child.role, settings)
        handle.home = home
        try:
            await insist(home.enter())
            handle.child = structs.replace(handle.child, workspace=home.shown)
            self._note(handle, home)
            entries = read_entries(self._supervisor.store, child.session_id)
            request = make_request(handle.child, handle.opened, entries, home.path)
            result = await self._supervisor.run_child(request, handle.log, settings, on_start)
            if not handle.inbox or settings.merge == "auto":  # else one proposal is made of all turns
                await self._come_home(handle, home, result)
        except (LeaseLost, StoreFault):
            home.abandon()
            raise
        except BaseException as error:
            await insist(self._stay(handle, home, error))
            raise
        return result

    async def _come_home(self, handle: Handle, home: Home, result: SessionResult) -> None:
        coming = asyncio.ensure_future(self._bring_back(handle, home, result))
        try:
            await insist(asyncio.wait({coming}))
        except asyncio.CancelledError:
            handle.stopped = True
        coming.result()

    async def _bring_back(self, handle: Handle, home: Home, result: SessionResult) -> None:
        refused = await home.bring_back()
        self._note(handle, home)
        if refused is not None:
            raise SessionFailed(refused, result.usage)
        if not handle.inbox or handle.opened.settings.merge == "auto":
            await home.clear()
            handle.home = None

    async def _stay(self, handle: Handle, home: Home, error: BaseException) -> None:
        try:
            self._note(handle, home)
        finally:
            await home.keep(_code(error))
        self._note(handle, home)  # what was found when it was left

    def _note(self, handle: Handle, home: Home) -> None:
        """Write what happened to a child's home into its log."""
        for fact in home.take_evidence():
            turn = {"attempt": handle.child.attempt, "execution": handle.child.execution}
            handle.log.append_evidence("workspace_event", {**fact, **turn})


def _code(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return "session.cancelled"
    return error.code if isinstance(error, FanfoldError) else "session.crashed"
