"""Where a step works, and how what it changed comes home.

An isolated step gets a snapshot of the workspace; its changes are compared with its write-set and merged
while it still holds its sets, so that the next writer starts from the result. A command without a
write-set works in a snapshot that is thrown away. What happened is evidence for the log.

Rules
* What a step said is written down beside its snapshot before the merge begins, and both stay until the end
  of the step is in the log. So a process that takes over after a crash in between finds that the work is
  done, and perhaps merged, and does neither again.
* A merge that has begun is seen to its end, also by a step that is cancelled meanwhile: then the step has
  ended as it would have. No workspace is taken away while a thread works in it.
* A half-done command begins again in a new snapshot; an agent goes on in the one it had.
* A process that was stopped for so long that another one took its run over finds, when it wakes, that the
  snapshots of its steps are the other one's: it merges nothing of them and clears nothing away.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, TypeVar

from fanfold.errors import FanfoldError, WorldError
from fanfold.kernel.events import Failure
from fanfold.kernel.lifecycle import COMPLETED
from fanfold.kernel.nodes import Node
from fanfold.runtime.places.place import SAID, Place
from fanfold.runtime.places.watching import Watching
from fanfold.runtime.records.ids import root_of
from fanfold.runtime.records.subagents import home_of, turn_before
from fanfold.sessions.insist import insist

if TYPE_CHECKING:
    from fanfold.workspace.merges.disputes import Dispute
    from fanfold.workspace.merges.merge import Merged
    from fanfold.workspace.snapshots.children import Child
    from fanfold.workspace.workspaces import Workspaces

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class Isolation:
    """The workspaces of one project, opened when the first isolated step needs one."""

    def __init__(self, project: Path) -> None:
        self.project = project
        self._path = str(project)
        self._places: dict[str, Place] = {}
        self._watching = Watching(lambda: self.spaces)

    @cached_property
    def spaces(self) -> Workspaces:
        from fanfold.workspace.workspaces import Workspaces

        spaces = Workspaces(self.project)
        spaces.recover()
        return spaces

    @property
    def is_used(self) -> bool:
        """Whether any isolated step ever ran here."""
        return (self.project / ".fanfold" / "subagents").is_dir()

    def recover(self) -> None:
        """Finish or undo what dead processes left, where any isolated step ever ran."""
        if self.is_used:
            _ = self.spaces

    # ---------------------------------------------------------------------------------- beginning

    async def open(self, node: Node, session: str, execution: int, home: str, epoch: int) -> Place:
        """The project itself, or a snapshot; a session that goes on after a crash finds its own again.

        `home` is the session whose snapshot it is, another one where a step goes on in what a turn before
        it left. `epoch` is that of the owner of the run: who had it before loses the snapshot, dead or not.
        """
        isolated = _is_isolated(node)
        place = await self._open_snapshot(node, session, execution, home, epoch) if isolated else self._here()
        self._places[session] = place
        if not node.write_set:
            return place
        try:
            unwatched = await self._watching.begin(session, node, shared=not isolated)
        except BaseException:
            await self.leave(session, place)
            raise
        if unwatched:
            from fanfold.runtime.records.evidence import Unwatched

            place.evidence.append(Unwatched(why=unwatched))
        return place

    def takes_time(self, node: Node) -> bool:
        """Whether the place of a step takes more than naming it: a snapshot, or a look around before."""
        return bool(node.write_set) or _is_isolated(node)

    async def check_proposals(self, node: Node) -> None:
        """A turn does not begin while what the turn before proposed waits: it would not see it."""
        before = turn_before(node)
        if before is None or before.status != COMPLETED or before.step.merge != "propose":
            return
        home = home_of(before, before.attempt)
        waiting = await _in_thread(lambda: any(one.session == home for one in self.spaces.proposals()))
        if waiting:
            message = f"what {before.path} proposed is not applied yet"
            hint = f"fanfold apply {node.run.id} {shlex.quote(before.path)} merges it; then say it again"
            raise WorldError("subagent.proposal_waits", message, hint=hint)

    def place_of(self, session: str) -> Place:
        """Where a session that is under way works: the project itself, unless it has a place of its own."""
        return self._places.get(session) or self._here()

    def _here(self) -> Place:
        return Place(self._path, None)

    async def _open_snapshot(self, node: Node, session: str, execution: int, home: str, epoch: int) -> Place:
        asked_ns = monotonic_ns()
        place = await _in_thread(
            lambda: self._snapshot(node, session, execution, home, epoch, asked_ns), self._detach
        )
        if place.child is not None:
            from fanfold.runtime.records.evidence import Reopened, Snapshot

            what = Snapshot if place.is_new else Reopened
            place.evidence.append(what(method=place.child.method, session_id=session))
        return place

    def _snapshot(
        self, node: Node, session: str, execution: int, home: str, epoch: int, asked_ns: int
    ) -> Place:
        said = SAID if home == session else f"{session}.json"
        place = self._find(node, home, said, epoch) if execution > 1 or home != session else None
        if place is None:
            reads = node.step.posture == "read_only" and not _is_scratch(node)
            writes, origin = node.write_set or None, root_of(node)
            child = self.spaces.open_child(
                home, read_only=reads, write_set=writes, origin=origin, epoch=epoch, asked_ns=asked_ns
            )
            place = Place(str(child.path), child)
        place.said_in = said
        return place

    def _find(self, node: Node, session: str, said_in: str, epoch: int) -> Place | None:
        """What an earlier execution left, as far as it can be used."""
        import msgspec

        from fanfold.workspace.merges.merge import Merged
        from fanfold.workspace.workspaces import MERGED

        remains = self.spaces.remains
        said, merged = remains.read(session, said_in), remains.read(session, MERGED)
        if said is None and _is_scratch(node):
            return None
        child = self.spaces.find_child(session, epoch)
        if child is not None:
            place = Place(str(child.path), child)
        elif said is not None and merged is not None:  # the snapshot is lost, but nobody needs it any more
            place = self._here()
            place.merged = msgspec.json.decode(merged, type=Merged)
        else:
            return None
        place.is_new = False
        place.said = said
        return place

    async def remember(self, place: Place, said: bytes) -> None:
        """Write down durably what a step said, before anything of it is merged."""
        from fanfold.trust.project_files import write_whole

        child = place.child
        if child is not None:
            await _in_thread(lambda: write_whole(child.folder / place.said_in, said, durable=True))

    # -------------------------------------------------------------------------------- coming home

    def comes_home(self, node: Node, place: Place) -> bool:
        """Whether what was changed in this place is merged, or proposed."""
        apart = place.child is not None or place.merged is not None
        return apart and not (_is_scratch(node) and node.step.posture == "read_only")

    async def merge(self, node: Node, place: Place) -> Merged:
        """Merge what an execution changed, or find out why that may not be."""
        child = place.child
        if child is None:
            assert place.merged is not None, "only a snapshot comes home"
            return place.merged
        done: list[Merged] = []

        def work() -> None:
            done.append(self.spaces.merge(child, node.write_set, node.step.merge))
            if node.step.merge != "discard":
                place.found = child.found()

        try:
            await insist(asyncio.to_thread(work))
        except asyncio.CancelledError:
            if not done or not (done[0].applied or done[0].proposal):
                raise
            # It is in the project, and the log must say so: the step ended before it could be stopped.
            task = asyncio.current_task()
            assert task is not None, "a step is a task"
            task.uncancel()
        return done[0]

    def tell(self, node: Node, place: Place, merged: Merged) -> Failure | None:
        """Put down what became of the changes; the failure when they were not merged."""
        from fanfold.runtime.places.refusals import ignored_hint, refusal, violated
        from fanfold.runtime.records.evidence import ChangedPath, Merge, conflict, left_out, violation

        if merged.violations:
            place.evidence.append(violation(merged.violations))
            return violated(node, merged.violations)
        if merged.conflicts:
            place.evidence.append(conflict(merged.conflicts))
            paths = [row.path for row in merged.conflicts]
            return refusal(node, "conflict", paths, hint=ignored_hint(place.found, paths))
        if place.found is not None and place.found.left_out:
            place.evidence.append(left_out(place.found.left_out))
        if merged.changes:
            changes = tuple(ChangedPath(change.path, change.kind) for change in merged.changes)
            fact = Merge(
                mode=node.step.merge, proposal=merged.proposal, changes=changes, receipt=merged.receipt
            )
            place.evidence.append(fact)
        return None

    def is_watched(self, session: str) -> bool:
        """Whether what a step changed in the project has to be looked at."""
        return self._watching.is_watched(session)

    async def check_shared(
        self, node: Node, session: str, place: Place, others: Sequence[tuple[str, ...]]
    ) -> Failure | None:
        """Compare what changed in the project with what its step may change; the failure when it strayed.

        `others` are the sets of writers of other runs that shared the project meanwhile.
        """
        from fanfold.runtime.places.refusals import violated
        from fanfold.runtime.records.evidence import violation

        seen = await self._watching.end(session, others)
        if seen is None or not seen.strays:
            return None
        place.evidence.append(violation(seen.strays, alone=seen.alone))
        if not seen.alone:
            return None
        return violated(node, seen.strays, seen.rest)

    # ---------------------------------------------------------------------------------- conflicts

    async def is_disputed(self, session: str) -> bool:
        """Whether an earlier execution had begun to settle a conflict in the workspace of this session."""
        from fanfold.workspace.merges.disputes import NOTE

        return await _in_thread(lambda: self.spaces.remains.read(session, NOTE)) is not None

    async def open_dispute(self, session: str, source: Place, execution: int) -> tuple[Place, Dispute]:
        """A workspace in which the conflicts of `source` wait to be settled; found again after a crash."""

        def work() -> tuple[Place, Dispute]:
            child, dispute = self._dispute(session, source, execution)
            return Place(str(child.path), child), dispute

        place, dispute = await _in_thread(work, lambda made: self._detach(made[0]))
        place.evidence = source.evidence
        self._places[session] = place
        return place, dispute

    def _dispute(self, session: str, source: Place, execution: int) -> tuple[Child, Dispute]:
        import msgspec

        from fanfold.workspace.merges.disputes import NOTE, Dispute

        note = self.spaces.remains.read(session, NOTE) if execution > 1 else None
        assert source.child is not None, "only a snapshot has conflicts"
        epoch = source.child.record.epoch
        child = self.spaces.find_child(session, epoch) if note is not None else None
        if child is not None and note is not None:
            return child, msgspec.json.decode(note, type=Dispute)
        return self.spaces.open_disputed(session, source.child)

    async def unsettled(self, place: Place, dispute: Dispute) -> list[str]:
        """The files of a dispute that still hold both versions."""
        child = place.child
        assert child is not None, "a dispute has a workspace of its own"
        return await _in_thread(lambda: self.spaces.unsettled(child, dispute))

    # -------------------------------------------------------------------------------------- ending

    async def close(self, session: str, place: Place, failure: Failure | None) -> None:
        """Leave nothing behind after success; keep and name the workspace after a failure. Never fails: how
        the step ended is settled, and what cannot be cleared away now is found by `gc`.
        """
        self._forget(session, place)
        # The code alone: a message may quote what a program said, and this file is not redacted.
        why = failure.code if failure is not None else ""
        try:
            await _in_thread(lambda: self._close(session, place, why))
        except (FanfoldError, OSError) as error:
            _log.warning("the workspace of %s could not be closed: %s", session, error)

    def _close(self, session: str, place: Place, why: str) -> None:
        for one in (place, *place.rounds):
            if one.child is not None:
                self.spaces.close(one.child, keep=bool(why), why=why)
        if place.merged is not None:
            self.spaces.remains.discard(session)

    async def leave(self, session: str, place: Place) -> None:
        """The execution was cut short: its snapshot stays, for the one that goes on, or for `gc`. Never
        fails, as `close` does not; whoever has the workspace lock meanwhile holds up nothing but this.
        """
        self._forget(session, place)
        if place.child is not None or place.rounds:
            await _in_thread(lambda: self.let_go(place))

    def let_go(self, place: Place) -> None:
        """Take the layers of a place away, waiting for the workspace lock."""
        for one in (place, *place.rounds):
            self._detach(one)

    def _detach(self, place: Place) -> None:
        if place.child is None:
            return
        try:
            self.spaces.leave(place.child)
        except (FanfoldError, OSError) as error:
            _log.warning("the workspace of %s could not be left: %s", place.child.session_id, error)

    def rests(self, session: str, place: Place) -> bool:
        """The step has done its work. Whether something of it stays until its end is written down."""
        self._forget(session, place)
        return place.child is not None or place.merged is not None

    def _forget(self, session: str, place: Place) -> None:
        self._watching.forget(session)
        self._places.pop(session, None)
        for one in place.rounds:
            if one.child is not None:
                self._places.pop(one.child.session_id, None)

    async def sweep(self, is_over: Callable[[list[str]], list[str]]) -> None:
        """Throw away what a process left that died between the end of a step and closing its workspace.

        `is_over` picks, among sessions that left something, those whose step has ended well.
        """
        if self.is_used:
            await _in_thread(lambda: self._sweep(is_over))

    async def discard(self, homes: Sequence[str]) -> None:
        """Throw away what is kept of sessions that nobody will go on with. What cannot be, `gc` finds."""
        try:
            if self.is_used:
                await _in_thread(lambda: self._discard(homes))
        except (FanfoldError, OSError) as error:
            _log.warning("the workspaces of %s could not be thrown away: %s", ", ".join(homes), error)

    def _discard(self, homes: Sequence[str]) -> None:
        for home in homes:
            self.spaces.remains.discard(home, over=True)

    def _sweep(self, is_over: Callable[[list[str]], list[str]]) -> None:
        remains = self.spaces.remains
        for session in is_over(remains.sessions()):
            remains.discard(session)


def _is_isolated(node: Node) -> bool:
    return node.step.workspace_mode == "isolated" and node.step.traits.workspace != "project"


def _is_scratch(node: Node) -> bool:
    return node.step.traits.workspace == "scratch"


async def _in_thread(work: Callable[[], _T], undo: Callable[[_T], None] | None = None) -> _T:
    """Do what waits for the disk, to its end. Whoever is cancelled meanwhile never sees the result, so it is
    undone.
    """
    done: list[_T] = []
    try:
        await insist(asyncio.to_thread(lambda: done.append(work())))
    except asyncio.CancelledError:
        if done and undo is not None:
            await insist(asyncio.to_thread(undo, done[0]))
        raise
    return done[0]
