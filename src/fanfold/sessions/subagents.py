"""Subagents by hand: children that a session spawns, waits for, talks to and closes.

Rules
* A child is a session of its own with its own log. Its parent's log holds its life as `subagent_event`s and
  nothing of what it said but the summary at the end, so a parent's history stays short.
* `max_threads` children of one root session run at once and `max_depth` bounds their nesting; children
  over the first wait in order, over the second are refused.
* Waiting never ends anybody. A child that was closed stays closed, a detached one is not spoken to: nobody
  knows what it did last. Any other child that is over can be given new input and then runs again.
* Everything needed to run a child again is in its log (`opened`), so a new process can go on with the
  children of an old one.
* Input for a running child waits until its turn is over; a turn rebuilds its messages from the log, and
  what was said to it meanwhile must stand behind what it said.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct, structs

from fanfold.agents.backend import Entry, SessionFailed, SessionRequest, SessionResult
from fanfold.errors import FanfoldError, NotFoundError, WorldError
from fanfold.kernel.events import Failure, SubagentEvent, Usage
from fanfold.sessions import lineage
from fanfold.sessions.ancestry import Ancestry
from fanfold.sessions.lineage import CLOSED, DETACHED, RESTARTABLE, Child
from fanfold.sessions.log import SessionLog, read_children, read_entries
from fanfold.store.protocol import LeaseLost, Owner, Store, StoreFault

SPAWN_TIMEOUT_S = 120.0
WAIT_S = 30.0
MAX_TASK_CHARS = 2_000
MAX_SUMMARY_CHARS = 2_000
_SPOKEN = frozenset({"input", "response", "tool_call", "tool_result"})

_log = logging.getLogger(__name__)


class SubagentRefused(WorldError):
    """What was asked of a subagent is not possible: `subagent.limit_exceeded`, `.detached`, `.closed` …"""


class Settings(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a child is to be run. Roles and workspaces are resolved by whoever spawns."""

    backend: str
    name: str = ""
    """What scripts answer by; the role when empty."""
    key: str = ""
    """Chosen by whoever asked for the child from another process, to find it again."""
    instructions: str = ""
    model: str | None = None
    reasoning_effort: str | None = None
    max_turns: int | None = None
    tools: tuple[str, ...] | None = None
    workspace: str = "."
    read_only: bool = True
    write_set: tuple[str, ...] = ()
    timeout_s: float = SPAWN_TIMEOUT_S


class Starter(Protocol):
    """What runs sessions and knows which are running: the supervisor, as far as children need it."""

    store: Store
    owner: Owner | None
    max_threads: int
    max_depth: int

    async def run_child(
        self, request: SessionRequest, log: SessionLog, settings: Settings, on_start: Callable[[], None]
    ) -> SessionResult: ...

    def running_log(self, session_id: str) -> SessionLog | None: ...

    def is_read_only(self, session_id: str) -> bool: ...


class _Opened(Struct, frozen=True, kw_only=True):
    """The first entry of a child's log: all that is needed to run it, again if need be."""

    kind: str = "opened"
    parent_id: str
    root_id: str
    role: str
    task: str
    depth: int
    settings: Settings


class _Handle:
    """A child that is queued or running in this process."""

    __slots__ = ("child", "inbox", "log", "opened", "task")

    def __init__(self, child: Child, opened: _Opened, log: SessionLog) -> None:
        self.child = child
        self.opened = opened
        self.log = log
        self.inbox: list[str] = []
        self.task: asyncio.Task[None] | None = None


class Subagents:
    """The children of every session of one supervisor."""

    def __init__(self, supervisor: Starter) -> None:
        self._supervisor = supervisor
        self._store = supervisor.store
        self._handles: dict[str, _Handle] = {}
        self.above = Ancestry(
            supervisor.store, supervisor.owner, supervisor.max_threads, supervisor.running_log
        )

    # ------------------------------------------------------------------------------- what is asked

    def spawn(self, parent_id: str, role: str, task: str, settings: Settings) -> str:
        """Start a child, or queue it; its id."""
        root_id, depth = self.above.line_of(parent_id)
        depth += 1
        if depth > self._supervisor.max_depth:
            raise SubagentRefused(
                "subagent.limit_exceeded",
                f"subagents may nest {self._supervisor.max_depth} deep; this would be level {depth}",
                hint="do the work in this session, or raise FANFOLD_MAX_DEPTH",
                details={"depth": depth, "max_depth": self._supervisor.max_depth},
            )
        if self._supervisor.is_read_only(parent_id):  # a child may be narrower than its parent, never wider
            settings = structs.replace(settings, read_only=True)
        number = len(lineage.fold(read_children(self._store, parent_id))) + 1
        child = Child(
            subagent_id=f"{parent_id}.{number}",
            parent_id=parent_id,
            session_id=f"{parent_id}.{number}",
            role=role,
            task=_clip(task, MAX_TASK_CHARS),
            depth=depth,
            status=lineage.QUEUED,
            workspace=settings.workspace,
            attempt=1,
            execution=1,
        )
        opened = _Opened(
            parent_id=parent_id, root_id=root_id, role=role, task=task, depth=depth, settings=settings
        )
        log = self.above.child_log(child, root_id)
        log.hold(msgspec.to_builtins(opened))
        log.append({"kind": "input", "text": task})
        self._begin(_Handle(child, opened, log))
        return child.subagent_id

    async def wait(self, ids: Sequence[str], timeout_s: float = WAIT_S) -> dict[str, list[Child]]:
        """Wait until all of them are over or the time is; how each stands then. Ends nobody."""
        until = asyncio.get_running_loop().time() + timeout_s
        for one in ids:
            self.find(one)
        while True:
            running = {handle.task for one in ids if (handle := self._handles.get(one)) and handle.task}
            left_s = until - asyncio.get_running_loop().time()
            if not running or left_s <= 0:
                break
            await asyncio.wait(running, timeout=left_s)
        return lineage.by_status([self.find(one) for one in ids])

    def send_input(self, subagent_id: str, text: str) -> Child:
        """Say something to a child: at the end of its turn, or as the start of a new one."""
        handle = self._handles.get(subagent_id)
        if handle is not None:
            handle.inbox.append(text)
            handle.log.append({"kind": "pending_input", "text": text})
            self._tell(handle, "input", reason=_clip(text, MAX_TASK_CHARS))
            return handle.child
        child = self.find(subagent_id)
        if child.status not in RESTARTABLE:
            raise _not_spoken_to(child)
        handle = self._reopen(child)
        handle.child = structs.replace(
            child, status=lineage.QUEUED, summary="", error=None, usage=None, attempt=child.attempt + 1,
            execution=1,
        )  # fmt: skip
        handle.log.append({"kind": "input", "text": text})
        self._tell(handle, "input", reason=_clip(text, MAX_TASK_CHARS))
        self._begin(handle)
        return handle.child

    def resume(self, subagent_id: str) -> Child:
        """Go on with a detached child behind what it recorded last."""
        child = self.find(subagent_id)
        if child.status != DETACHED:
            message = f"{subagent_id} is {child.status}; only a detached subagent is resumed"
            raise SubagentRefused("subagent.not_detached", message)
        handle = self._reopen(child)
        handle.child = structs.replace(child, status=lineage.QUEUED, execution=child.execution + 1)
        handle.inbox = _unheard(read_entries(self._store, child.session_id))
        self._begin(handle)
        return handle.child

    async def close(self, subagent_id: str) -> Child:
        """Cancel a child that is queued or running; close any other for good."""
        handle = self._handles.get(subagent_id)
        if handle is not None:
            await self._stop([handle])
            return self.find(subagent_id)
        child = self.find(subagent_id)
        if child.status != CLOSED:
            handle = self._reopen(child)
            handle.child = structs.replace(child, status=CLOSED)
            self._tell(handle, "closed")
        return self.find(subagent_id)

    def list(self, parent_id: str) -> list[Child]:
        """The children of a session in the order they were spawned, whoever runs them."""
        children = lineage.fold(read_children(self._store, parent_id))
        return [self._project(child) for child in children.values()]

    def find(self, subagent_id: str) -> Child:
        """One child; raises NotFoundError for an id that no log knows."""
        handle = self._handles.get(subagent_id)
        if handle is not None:
            return handle.child
        parent_id = subagent_id.rpartition(".")[0]
        child = lineage.fold(read_children(self._store, parent_id)).get(subagent_id) if parent_id else None
        if child is None:
            message = f"there is no subagent {subagent_id!r}"
            raise NotFoundError("subagent.not_found", message, hint="list the subagents of the session")
        return self._project(child)

    async def stop_all(self, parent_id: str) -> None:
        """Stop the children of a session that is over, as far as they run here."""
        await self._stop([one for one in self._handles.values() if one.child.parent_id == parent_id])

    async def stop_everything(self) -> None:
        """Stop every child of this process."""
        await self._stop(list(self._handles.values()))

    # ------------------------------------------------------------------------------- how it is done

    def _begin(self, handle: _Handle) -> None:
        self._handles[handle.child.subagent_id] = handle
        self._tell(handle, "queued")
        handle.task = asyncio.create_task(self._live(handle), name=handle.child.subagent_id)

    async def _live(self, handle: _Handle) -> None:
        """From the queue to the end."""
        places = self.above.places(handle.opened.root_id)
        try:
            await places.take()
            try:
                result = await self._turns(handle)
            finally:
                places.give_back()
        except SessionFailed as failed:
            self._over(handle, _word(failed.failure), failed.failure, failed.usage)
        except asyncio.CancelledError:
            self._over(handle, "cancelled", Failure("cancelled", "session.cancelled", "cancelled"))
        except (LeaseLost, StoreFault):  # there is nowhere to tell it: the child will be `detached`
            _log.exception("subagent %s is lost", handle.child.subagent_id)
        except FanfoldError as error:
            self._over(handle, "failed", Failure("agent", error.code, error.message, error.hint, False))
        else:
            self._over(handle, "finished", None, result.usage, result.summary)
        finally:
            self._handles.pop(handle.child.subagent_id, None)

    async def _turns(self, handle: _Handle) -> SessionResult:
        """One turn for the task, and one more for as long as there was input meanwhile."""
        settings = handle.opened.settings
        while True:
            for text in handle.inbox:
                handle.log.append({"kind": "input", "text": text})
            handle.inbox.clear()
            result = await self._supervisor.run_child(
                self._request(handle), handle.log, settings, lambda: self._started(handle)
            )
            if not handle.inbox:
                return result
            attempt = handle.child.attempt + 1
            handle.child = structs.replace(handle.child, attempt=attempt, execution=1)

    def _started(self, handle: _Handle) -> None:
        handle.child = structs.replace(handle.child, status=lineage.RUNNING)
        self._tell(handle, "started")

    def _over(
        self,
        handle: _Handle,
        word: str,
        failure: Failure | None,
        usage: Usage | None = None,
        summary: str = "",
    ) -> None:
        summary = _clip(summary or (failure.message if failure is not None else ""), MAX_SUMMARY_CHARS)
        handle.child = structs.replace(handle.child, summary=summary, error=failure, usage=usage)
        self._tell(handle, word)

    async def _stop(self, handles: Sequence[_Handle]) -> None:
        tasks = {handle.task for handle in handles if handle.task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _tell(self, handle: _Handle, word: str, reason: str = "") -> None:
        """Write a step of a child's life into its parent's log."""
        child = handle.child
        event = SubagentEvent(
            step="",
            status=word,
            attempt=child.attempt,
            execution=child.execution,
            summary=child.summary,
            error=child.error,
            usage=child.usage,
            reason=reason,
            parent_id=child.parent_id,
            subagent_id=child.subagent_id,
            session_id=child.session_id,
            role=child.role,
            task=child.task,
            depth=child.depth,
            workspace=child.workspace,
        )
        log = self.above.parent_log(child.parent_id, handle.opened.root_id, child.depth - 1)
        log.append_child(event)

    def _reopen(self, child: Child) -> _Handle:
        """A handle for a child that does not run, from what its log says."""
        entries = read_entries(self._store, child.session_id)
        opened = msgspec.convert(entries[0], _Opened)
        return _Handle(child, opened, self.above.child_log(child, opened.root_id))

    def _project(self, child: Child) -> Child:
        return lineage.project(child, lambda one: one in self._handles or self.above.is_held_elsewhere(child))

    def _request(self, handle: _Handle) -> SessionRequest:
        child, settings = handle.child, handle.opened.settings
        spoken = [one for one in read_entries(self._store, child.session_id) if one.get("kind") in _SPOKEN]
        asked = [entry["text"] for entry in spoken if entry["kind"] == "input"]
        return SessionRequest(
            session_id=child.session_id,
            run_id=child.session_id,
            step=settings.name or child.role,
            attempt=child.attempt,
            execution=child.execution,
            role=child.role,
            instructions=settings.instructions,
            prompt=asked[-1],
            model=settings.model,
            reasoning_effort=settings.reasoning_effort,
            max_turns=settings.max_turns,
            tools=settings.tools,
            workspace=settings.workspace,
            read_only=settings.read_only,
            write_set=settings.write_set,
            entries=spoken,
        )


def _unheard(entries: Sequence[Entry]) -> list[str]:
    """Input that waited for the end of a turn which never came."""
    waiting: list[str] = []
    for entry in entries:
        if entry.get("kind") == "pending_input":
            waiting.append(entry["text"])
        elif entry.get("kind") == "input" and waiting and waiting[0] == entry["text"]:
            waiting.pop(0)
    return waiting


def _word(failure: Failure) -> str:
    """The word of the event for how a session failed."""
    if failure.code == "session.timeout":
        return "timed_out"
    return "cancelled" if failure.kind == "cancelled" else "failed"


def _not_spoken_to(child: Child) -> SubagentRefused:
    if child.status == CLOSED:
        message, hint = f"{child.subagent_id} is closed", "spawn a new subagent"
    elif child.status == DETACHED:
        message = f"{child.subagent_id} is detached: nobody knows what it did last"
        hint = "resume it, or close it and spawn a new subagent"
    else:
        message, hint = f"{child.subagent_id} runs in another process", "ask that process"
        return SubagentRefused("subagent.busy", message, hint=hint)
    return SubagentRefused(f"subagent.{child.status}", message, hint=hint)


def _clip(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
