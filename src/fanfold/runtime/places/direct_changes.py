"""What a session changes in the project itself, one call at a time: the lead of a chat.

It shares the project with its user and with the subagents that it waits for, so it has no snapshot for the
length of a turn. Each call that changes something gets one, and what it changed there is merged at once.

Rules
* All of a call comes home, or nothing: a conflict or a violation is told, and the project stays as it was.
* Nobody is kept from a file for longer than the merge takes. Files that a writer of another run works on are
  refused, not waited for: whoever leads can do something else meanwhile.
* What was merged is left for the log before anybody is told of it. If the process dies in between, it is
  found beside the snapshot when the turn goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec import structs

from fanfold.agents.backend import SessionRequest
from fanfold.agents.toolbox import ToolFailed
from fanfold.kernel.sets.globs import escape
from fanfold.runtime.places.isolation import Isolation
from fanfold.runtime.places.place import Place
from fanfold.runtime.places.refusals import WHY
from fanfold.runtime.records.evidence import ChangedPath, Merge, Sandboxed
from fanfold.sessions.insist import insist
from fanfold.store.protocol import Claim, Store

if TYPE_CHECKING:
    from fanfold.workspace.merges.merge import Merged
    from fanfold.workspace.snapshots.children import Child

Note: TypeAlias = Callable[[str, Merge | Sandboxed], None]
"""Leaves something that happened for the log of a run."""
MAX_NAMED = 5


class DirectChanges:
    """The changes of one session."""

    def __init__(self, request: SessionRequest, isolation: Isolation, store: Store, note: Note) -> None:
        self._request = request
        self._isolation = isolation
        self._store = store
        self._note = note
        self._sandboxes: set[Sandboxed] = set()

    async def open(self) -> Place:
        """A snapshot of the project as it is now, for one call."""
        import secrets

        name = f"{self._prefix}{secrets.token_hex(4)}"
        made: list[Child] = []

        def work() -> None:
            made.append(self._isolation.spaces.open_child(name, origin=self._request.run_id))

        try:
            await insist(asyncio.to_thread(work))
        except asyncio.CancelledError:
            if made:
                await self.close(Place("", made[0]))
            raise
        return Place(str(made[0].path), made[0])

    async def draw(self, place: Place) -> str:
        """What was changed in a snapshot, as a patch."""
        assert place.child is not None, "a call works in a snapshot"
        return await asyncio.to_thread(self._isolation.spaces.diff, place.child)

    async def bring_home(self, place: Place) -> list[str]:
        """Merge what was changed there; the paths. Raises `ToolFailed` where that may not be."""
        child = place.child
        assert child is not None, "a call works in a snapshot"
        paths = await asyncio.to_thread(lambda: [change.path for change in child.changes()])
        self._require_free(paths)
        done: list[Merged] = []
        try:
            await insist(asyncio.to_thread(lambda: done.append(self._isolation.spaces.merge(child))))
        finally:  # also when it was cancelled meanwhile: it is in the project
            if done:
                self._note_merge(done[0])
        _check(done[0])
        return paths

    async def close(self, place: Place) -> None:
        """Nothing of a call's snapshot is left; how its programs were confined is left for the log."""
        for fact in place.evidence:
            self._note_sandbox(fact)
        child = place.child
        assert child is not None, "a call works in a snapshot"
        await insist(asyncio.to_thread(self._isolation.spaces.close, child))

    async def recover(self) -> None:
        """What calls of this session had merged when their process died is left for the log now."""
        if self._isolation.is_used:
            await insist(asyncio.to_thread(self._recover))

    def _recover(self) -> None:
        from fanfold.workspace.merges.merge import Merged
        from fanfold.workspace.workspaces import MERGED

        remains = self._isolation.spaces.remains
        for session in remains.sessions():
            if session.startswith(self._prefix):
                kept = remains.read(session, MERGED)
                if kept is not None:
                    self._note_merge(msgspec.json.decode(kept, type=Merged))
                remains.discard(session, over=True)

    @property
    def _prefix(self) -> str:
        return f"{self._request.session_id}-c"

    def _require_free(self, paths: list[str]) -> None:
        """Refuse what a writer that shares the project works on in another run."""
        run = self._request.run_id
        other = self._store.blocker(Claim(run, run, self._request.step, tuple(map(escape, paths))))
        if other is not None:
            message = f"{_named(paths)}: {other.step} of run {other.run_id} works on it"
            raise ToolFailed("tool", "busy", message, "try again when it is over, or do something else")

    def _note_sandbox(self, fact: object) -> None:
        if isinstance(fact, Sandboxed) and fact not in self._sandboxes:
            self._sandboxes.add(fact)
            self._note(self._request.run_id, self._whose(fact))

    def _note_merge(self, merged: Merged) -> None:
        if merged.receipt:
            changes = tuple(ChangedPath(change.path, change.kind) for change in merged.changes)
            fact = Merge(mode="auto", proposal="", changes=changes, receipt=merged.receipt)
            self._note(self._request.run_id, self._whose(fact))

    def _whose(self, fact: Merge | Sandboxed) -> Merge | Sandboxed:
        request = self._request
        return structs.replace(fact, step=request.step, attempt=request.attempt, execution=request.execution)


def _check(merged: Merged) -> None:
    if merged.violations:
        reasons = {row.why for row in merged.violations}
        hint = "; ".join(helps for why, (_, helps) in WHY.items() if why in reasons)
        named = _named([f"{row.path} ({WHY[row.why][0]})" for row in merged.violations])
        raise ToolFailed("violation", "workspace.violation", f"this may not be changed: {named}", hint)
    if merged.conflicts:
        named = _named([row.path for row in merged.conflicts])
        message = f"somebody else changed it meanwhile: {named}; nothing was changed by this call"
        raise ToolFailed("tool", "workspace.conflict", message, "read it again, then change it")


def _named(paths: list[str]) -> str:
    more = f" and {len(paths) - MAX_NAMED} more" if len(paths) > MAX_NAMED else ""
    return f"{', '.join(paths[:MAX_NAMED])}{more}"
