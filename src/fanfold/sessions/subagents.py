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
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Sequence

import msgspec
from msgspec import structs

from fanfold.agents.backend import SessionFailed
from fanfold.agents.entries import Input
from fanfold.agents.permissions import narrower
from fanfold.errors import FanfoldError, NotFoundError, WorldError
from fanfold.kernel.events import Failure, SubagentEvent, Usage
from fanfold.sessions import lineage
from fanfold.sessions.ancestry import Ancestry
from fanfold.sessions.lineage import CLOSED, DETACHED, RESTARTABLE, Child
from fanfold.sessions.log import read_children, read_notes
from fanfold.sessions.opened import Opened, Settings, read_opened, unheard
from fanfold.sessions.turns import Handle, Starter, Turns
from fanfold.store.protocol import LeaseLost, StoreFault

WAIT_S = 30.0
MAX_TASK_CHARS = 2_000
MAX_SUMMARY_CHARS = 2_000

_log = logging.getLogger(__name__)


class SubagentRefused(WorldError):
    """What was asked of a subagent is not possible: `subagent.limit_exceeded`, `.detached`, `.closed` …"""


class Subagents:
    """The children of every session of one supervisor."""

    def __init__(self, supervisor: Starter) -> None:
        self._supervisor = supervisor
        self._store = supervisor.store
        self._handles: dict[str, Handle] = {}
        self.turns = Turns(supervisor)
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
        settings = self._narrowed(parent_id, depth, settings)
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
        opened = Opened(
            parent_id=parent_id, root_id=root_id, role=role, task=task, depth=depth, settings=settings
        )
        log = self.above.child_log(child, root_id)
        log.hold(msgspec.to_builtins(opened))
        log.append(Input(text=task))
        self._begin(Handle(child, opened, log))
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
        handle.log.append(Input(text=text))
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
        handle.inbox = unheard(read_notes(self._store, child.session_id))
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
        await self.turns.housing.clear(child.session_id)
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

    @property
    def some_run(self) -> bool:
        """Whether any child runs in this process."""
        return bool(self._handles)

    async def stop_all(self, parent_id: str) -> None:
        """Stop the children of a session that is over, as far as they run here."""
        await self._stop([one for one in self._handles.values() if one.child.parent_id == parent_id])

    async def stop_everything(self) -> None:
        """Stop every child of this process."""
        await self._stop(list(self._handles.values()))

    # ------------------------------------------------------------------------------- how it is done

    def _begin(self, handle: Handle) -> None:
        self._handles[handle.child.subagent_id] = handle
        self._tell(handle, "queued")
        handle.task = asyncio.create_task(self._live(handle), name=handle.child.subagent_id)

    async def _live(self, handle: Handle) -> None:
        """From the queue to the end."""
        places = self.above.places(handle.opened.root_id)
        try:
            await places.take()
            try:
                result = await self.turns.take(handle, lambda: self._started(handle))
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
        except Exception as error:  # noqa: BLE001 - a child that nobody ends would seem to run for ever
            trace = handle.log.cleaned("".join(traceback.format_exception(error)))
            _log.error("subagent %s crashed\n%s", handle.child.subagent_id, trace)
            text = f"{type(error).__name__}: {error}"
            self._over(handle, "failed", Failure("internal", "session.crashed", text, retryable=False))
        else:
            self._over(handle, "finished", None, result.usage, result.brief)
        finally:
            self._handles.pop(handle.child.subagent_id, None)

    def _started(self, handle: Handle) -> None:
        handle.child = structs.replace(handle.child, status=lineage.RUNNING)
        self._tell(handle, "started")

    def _over(
        self,
        handle: Handle,
        word: str,
        failure: Failure | None,
        usage: Usage | None = None,
        summary: str = "",
    ) -> None:
        summary = _clip(summary or (failure.message if failure is not None else ""), MAX_SUMMARY_CHARS)
        handle.child = structs.replace(handle.child, summary=summary, error=failure, usage=usage)
        self._tell(handle, word)

    async def _stop(self, handles: Sequence[Handle]) -> None:
        tasks = {handle.task for handle in handles if handle.task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _tell(self, handle: Handle, word: str, reason: str = "") -> None:
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

    def _narrowed(self, parent_id: str, depth: int, settings: Settings) -> Settings:
        """A child may be narrower than its parent, never wider."""
        if self._supervisor.is_read_only(parent_id):
            settings = structs.replace(settings, read_only=True)
        if depth == 1:
            return settings
        above = read_opened(self._store, parent_id).settings
        return structs.replace(
            settings,
            read_only=settings.read_only or above.read_only,
            permission=narrower(settings.permission, above.permission),
            unsafe=settings.unsafe and above.unsafe,
        )

    def _reopen(self, child: Child) -> Handle:
        """A handle for a child that does not run, from what its log says."""
        opened = read_opened(self._store, child.session_id)
        return Handle(child, opened, self.above.child_log(child, opened.root_id))

    def _project(self, child: Child) -> Child:
        return lineage.project(child, lambda one: one in self._handles or self.above.is_held_elsewhere(child))


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
