"""The tools of the lead of a chat, which works in the project tree while its user watches.

The lead shares the project tree with its user and with the subagents that it waits for, so it has no snapshot
for a whole turn. Each call that changes files works in its own snapshot, which is merged at once. Under `ask`
the user approves each such call. For a file change the user sees the exact diff to be merged. For a command
the user sees the command line before it runs.

Rules
* Each call is merged atomically. A conflict or a violation is reported, and the project tree is unchanged.
* Files are locked only during the merge. A change to files that a writer of another run works on is refused
  and does not wait: the lead can do something else meanwhile.
* A merge is recorded for the log before it is reported. If the process dies in between, the merge result is
  found beside the snapshot when the turn continues.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec import structs

from fanfold.agents.backend import SessionRequest, ToolFailed
from fanfold.agents.permissions import Action, PermissionDenied, Permissions
from fanfold.agents.tools.toolbox import Runner, SessionTools, ToolsAround
from fanfold.kernel.paths import escape
from fanfold.kernel.plan import JSON
from fanfold.sessions.processes import finish_despite_cancel
from fanfold.steps.programs import Programs
from fanfold.steps.records import Merge, SandboxUse
from fanfold.steps.step_workspace import (
    Isolation,
    StepWorkspace,
    explain_violations,
    in_thread,
    merge_fact,
    name_paths,
)
from fanfold.store.protocol import Claim, Store
from fanfold.workspace.merge import MergeResult
from fanfold.workspace.workspaces import MERGED

if TYPE_CHECKING:
    from fanfold.sessions.processes import ExitStatus

Note: TypeAlias = Callable[[str, Merge | SandboxUse], None]
"""Records an event for the log of a run."""
MakeTools: TypeAlias = Callable[[SessionRequest, Permissions, Runner | None], SessionTools]
_COMMAND = "run_command"


class DirectChanges:
    """The changes of one session to the project tree."""

    def __init__(self, request: SessionRequest, isolation: Isolation, store: Store, note: Note) -> None:
        self._request = request
        self._isolation = isolation
        self._store = store
        self._note = note
        self._sandboxes: set[SandboxUse] = set()
        self._prefix = f"{request.session_id}-c"

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[StepWorkspace]:
        """A snapshot of the current project tree for one call. It is removed afterwards."""
        spaces, name = self._isolation.spaces, f"{self._prefix}{secrets.token_hex(4)}"
        child = await in_thread(lambda: spaces.open_child(name, origin=self._request.run_id), spaces.close)
        place = StepWorkspace(str(child.path), child)
        try:
            yield place
        finally:
            for fact in place.evidence:
                if isinstance(fact, SandboxUse) and fact not in self._sandboxes:
                    self._sandboxes.add(fact)
                    self._record(fact)
            await in_thread(lambda: spaces.close(child))

    async def draw(self, place: StepWorkspace) -> str:
        """The changes in a snapshot, as a patch."""
        assert place.child is not None, "a call works in a snapshot"
        return await asyncio.to_thread(self._isolation.spaces.diff, place.child)

    async def merge(self, place: StepWorkspace) -> list[str]:
        """Merge the changes of a snapshot and return their paths. Raises `ToolFailed` if not possible."""
        child, run = place.child, self._request.run_id
        assert child is not None, "a call works in a snapshot"
        paths = await asyncio.to_thread(lambda: [change.path for change in child.changes()])
        other = self._store.blocker(Claim(run, run, self._request.step, tuple(map(escape, paths))))
        if other is not None:
            message = f"{name_paths(paths)}: {other.step} of run {other.run_id} works on it"
            raise ToolFailed("tool", "busy", message, "try again when it is over, or do something else")
        done: list[MergeResult] = []
        try:
            await finish_despite_cancel(
                asyncio.to_thread(lambda: done.append(self._isolation.spaces.merge(child)))
            )
        finally:  # also after a cancellation: the changes are merged
            if done:
                self._record_merge(done[0])
        if done[0].violations:
            rows, hint = explain_violations(done[0].violations)
            message = f"this may not be changed: {name_paths(rows)}"
            raise ToolFailed("violation", "workspace.violation", message, hint)
        if done[0].conflicts:
            named = name_paths([row.path for row in done[0].conflicts])
            message = f"it was changed by others meanwhile: {named}; nothing was changed by this call"
            raise ToolFailed("tool", "workspace.conflict", message, "read it again, then change it")
        return paths

    async def recover(self) -> None:
        """Record the merges of calls of this session whose process died before it recorded them."""

        def work() -> None:
            remains = self._isolation.spaces.remains
            for session in remains.sessions():
                if session.startswith(self._prefix):
                    stored = remains.read(session, MERGED)
                    if stored is not None:
                        self._record_merge(msgspec.json.decode(stored, type=MergeResult))
                    remains.discard(session, over=True)

        if self._isolation.is_used:
            await in_thread(work)

    def _record_merge(self, merged: MergeResult) -> None:
        if merged.receipt:
            self._record(merge_fact(merged, "auto"))

    def _record(self, fact: Merge | SandboxUse) -> None:
        request = self._request
        whose = {"step": request.step, "attempt": request.attempt, "execution": request.execution}
        self._note(request.run_id, structs.replace(fact, **whose))


class LeadTools(ToolsAround):
    """The built-in tools of one session of a lead; `make` creates those for a request and permissions."""

    def __init__(
        self,
        request: SessionRequest,
        changes: DirectChanges,
        programs: Programs,
        permissions: Permissions,
        make: MakeTools,
    ) -> None:
        super().__init__(make(request, permissions, self._run))
        self._request = request
        self._changes = changes
        self._programs = programs
        self._permissions = permissions
        self._make = make
        self._edits = {spec.name for spec in self.offered() if spec.mutates} - {_COMMAND}
        self._changed: list[str] = []
        """The paths that the last command changed."""

    async def open(self) -> None:
        await super().open()
        await self._changes.recover()

    async def call(self, name: str, args: Mapping[str, Any]) -> JSON:
        if name not in self._edits:
            self._changed = []
            result = await super().call(name, args)
            changed = self._changed
            return {**result, "changed": changed} if changed and isinstance(result, dict) else result
        request = self._request
        async with self._changes.snapshot() as place:
            there = structs.replace(request, workspace=place.path)
            result = await self._make(there, Permissions("auto"), None).call(name, args)
            shown = f"{name} {args.get('path', 'a patch')}\n{await self._changes.draw(place)}"
            try:
                await self._permissions.check(Action("write", shown, request.session_id, request.step))
            except PermissionDenied as denied:
                raise ToolFailed("permission", denied.code, denied.message, denied.hint) from None
            await self._changes.merge(place)
        return result

    async def _run(self, request: SessionRequest, argv: Sequence[str], timeout_s: float) -> ExitStatus:
        async with self._changes.snapshot() as place:
            ended = await self._programs.run(
                argv, place, session_id=request.session_id, network=request.role.network, timeout_s=timeout_s
            )
            self._changed = await self._changes.merge(place)
        return ended
