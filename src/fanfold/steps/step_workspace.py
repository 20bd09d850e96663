"""The workspace of a step, and the merge of its changes into the project tree.

An isolated step gets a snapshot of the project tree. Its changes are compared with its write-set and merged
while it still has its path claims, so that the next writer starts from the result. A command without a
write-set works in a snapshot that is discarded. The log records these events as evidence.

Rules
* The outcome of a step is written beside its snapshot before the merge starts. Both stay until the end of the
  step is in the log. So a process that resumes the run after a crash sees that the work is finished, and
  perhaps merged, and repeats neither.
* A merge that has started always finishes, even if the step is cancelled meanwhile. The step then ends as
  without the cancellation. No workspace is removed while a thread works in it.
* An interrupted command starts again in a new snapshot. An agent continues in its old snapshot.
* A process may be suspended for so long that another process becomes the owner of its run. The snapshots then
  belong to the new owner: the old process merges nothing and removes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec
from msgspec import structs

from fanfold.agents.backend import SessionRequest, ToolFailed
from fanfold.errors import FanfoldError, WorldError
from fanfold.kernel.events import Failure
from fanfold.kernel.paths import escape
from fanfold.sessions.processes import finish_despite_cancel
from fanfold.steps.order import Job, Order
from fanfold.steps.records import (
    ChangedPath,
    Merge,
    SandboxUse,
    Snapshot,
    SnapshotReopened,
    WatchFailure,
    WorkspaceFact,
    conflict,
    left_out,
    violation,
)
from fanfold.steps.shared_changes import Watching
from fanfold.store.protocol import Claim, Store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanfold.workspace.artifacts import ArtifactRoom
    from fanfold.workspace.changes import FoundChanges, WriteViolation
    from fanfold.workspace.children import Child
    from fanfold.workspace.merge import MergeResult
    from fanfold.workspace.receipts import Dispute
    from fanfold.workspace.sandbox import Launch
    from fanfold.workspace.workspaces import Workspaces

# -----------------------------------------------------------------------------------------------------------
# The workspace of one execution of a step
#
# Every step that works with files has one of these objects, so the class is kept small.

OUTCOME_FILE = "outcome.json"
"""The file with the outcome of a step, in the folder of its snapshot.

A turn that continues in the snapshot of an earlier turn has its own file.
"""


class StepWorkspace:
    """The workspace of one execution. `child` is None if it works in the project tree."""

    __slots__ = (
        "also", "artifacts", "child", "evidence", "found", "is_new", "merged", "path", "points", "rounds",
        "stored", "stored_in", "write_set",
    )  # fmt: skip

    def __init__(self, path: str, child: Child | None) -> None:
        self.path = path
        self.child = child
        self.evidence: list[WorkspaceFact] = []
        self.is_new = True
        """Whether it contains nothing of an earlier execution."""
        self.stored_in = OUTCOME_FILE
        self.stored: bytes | None = None
        """The outcome that an earlier execution of the step stored when its work was finished."""
        self.merged: MergeResult | None = None
        """The merge result of an earlier execution, if the snapshot itself is lost."""
        self.found: FoundChanges | None = None
        """The changes found at the merge, including files that the project ignores."""
        self.rounds: list[StepWorkspace] = []
        """The workspaces in which its merge conflicts are resolved."""
        self.points: Mapping[str, bool] | None = None
        """The folders of git, Fanfold and dependencies when a step in the project tree started."""
        self.write_set: tuple[str, ...] = ()
        self.artifacts: ArtifactRoom | None = None
        """The folder in which the execution creates its artifacts."""
        self.also: tuple[Path, ...] = ()
        """Other paths that its programs can read: the skills of its agent."""

    def note_sandbox(self, launch: Launch) -> None:
        """Record once for the log that a program runs here, with its sandbox level and visible paths."""
        fact = SandboxUse(level=launch.level, **structs.asdict(launch.sight))
        if fact not in self.evidence:
            self.evidence.append(fact)


_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class Isolation:
    """The workspaces of one project, opened when the first isolated step needs one."""

    def __init__(self, project: Path, include: Sequence[str] = ()) -> None:
        self.project = project
        self._include = include
        self._path = str(project)
        self._places: dict[str, StepWorkspace] = {}
        self._watching = Watching(lambda: self.spaces)

    @cached_property
    def spaces(self) -> Workspaces:
        from fanfold.workspace.workspaces import Workspaces

        spaces = Workspaces(self.project, include=self._include)
        spaces.recover()
        return spaces

    @property
    def is_used(self) -> bool:
        """Whether an isolated step ever ran in this project."""
        return (self.project / ".fanfold" / "subagents").is_dir()

    def recover(self) -> None:
        """Finish or revert merges that dead processes left, if an isolated step ever ran here."""
        if self.is_used:
            _ = self.spaces

    # Opening

    async def open(self, order: Order[Job], epoch: int) -> StepWorkspace:
        """The project tree or a snapshot. A session that continues after a crash gets its snapshot again.

        `epoch` is the epoch of the owner of the run. A previous owner loses the snapshot, even if it is still
        alive.
        """
        isolated, session = _is_isolated(order), order.session
        place = await self._open_snapshot(order, epoch) if isolated else self._here()
        self._places[session] = place
        if not order.write_set:
            return place
        try:
            unwatched = await self._watching.begin(order, shared=not isolated)
        except BaseException:
            await self.leave(session, place)
            raise
        place.points = self._watching.points(session)
        place.write_set = order.write_set
        if unwatched:
            place.evidence.append(WatchFailure(why=unwatched))
        return place

    def takes_time(self, order: Order[Job]) -> bool:
        """Whether opening the workspace of a step takes time: for a snapshot or a scan of the project."""
        return bool(order.write_set) or _is_isolated(order)

    async def check_proposals(self, order: Order[Job]) -> None:
        """Raise if the proposal of the previous turn is not applied yet: the new turn would not see it."""
        before = order.turns[-1]
        if not before.proposal:
            return
        found = await _in_thread(lambda: {one.session for one in self.spaces.proposals()})
        if before.proposal in found:
            message = f"what {before.path} proposed is not applied yet"
            hint = f"fanfold apply {order.run} {shlex.quote(before.path)} merges it; then say it again"
            raise WorldError("subagent.proposal_waits", message, hint=hint)

    def place_of(self, session: str) -> StepWorkspace:
        """The workspace of a running session: the project tree, unless it has its own snapshot."""
        return self._places.get(session) or self._here()

    def _here(self) -> StepWorkspace:
        return StepWorkspace(self._path, None)

    async def _open_snapshot(self, order: Order[Job], epoch: int) -> StepWorkspace:
        asked_ns = monotonic_ns()
        place = await _in_thread(lambda: self._snapshot(order, epoch, asked_ns), self._detach)
        if place.child is not None:
            what = Snapshot if place.is_new else SnapshotReopened
            place.evidence.append(what(method=place.child.method, session_id=order.session))
        return place

    def _snapshot(self, order: Order[Job], epoch: int, asked_ns: int) -> StepWorkspace:
        home, session = order.home, order.session
        file = OUTCOME_FILE if home == session else f"{session}.json"
        place = self._find(order, file, epoch) if order.execution > 1 or home != session else None
        if place is None:
            reads = order.step.posture == "read_only" and not _is_scratch(order)
            writes, origin = order.write_set or None, order.root
            child = self.spaces.open_child(
                home, read_only=reads, write_set=writes, origin=origin, epoch=epoch, asked_ns=asked_ns
            )
            place = StepWorkspace(str(child.path), child)
        place.stored_in = file
        return place

    def _find(self, order: Order[Job], stored_in: str, epoch: int) -> StepWorkspace | None:
        """The workspace of an earlier execution, if it can be used."""
        from fanfold.workspace.merge import MergeResult
        from fanfold.workspace.workspaces import MERGED

        remains, home = self.spaces.remains, order.home
        stored, merged = remains.read(home, stored_in), remains.read(home, MERGED)
        if stored is None and _is_scratch(order):
            return None
        child = self.spaces.find_child(home, epoch)
        if child is not None:
            place = StepWorkspace(str(child.path), child)
        elif stored is not None and merged is not None:  # the snapshot is lost, but no longer needed
            place = self._here()
            place.merged = msgspec.json.decode(merged, type=MergeResult)
        else:
            return None
        place.is_new = False
        place.stored = stored
        return place

    async def remember(self, place: StepWorkspace, stored: bytes) -> None:
        """Store the outcome of a step durably, before its changes are merged."""
        from fanfold.project_files import write_whole

        child = place.child
        if child is not None:
            await _in_thread(lambda: write_whole(child.folder / place.stored_in, stored, durable=True))

    # Merging

    def comes_home(self, order: Order[Job], place: StepWorkspace) -> bool:
        """Whether the changes in this workspace are to be merged or proposed."""
        apart = place.child is not None or place.merged is not None
        return apart and not (_is_scratch(order) and order.step.posture == "read_only")

    async def strays(self, order: Order[Job], place: StepWorkspace) -> str:
        """The message that asks an agent to revert changes that are not allowed; empty if there are none.

        For a step that shares the project tree, such changes are not known before its end.
        """
        child = place.child
        if child is None or order.step.merge == "discard":
            return ""
        rows = await _in_thread(lambda: self.spaces.strays(child, order.write_set))
        return correction(rows, order.write_set) if rows else ""

    async def merge(self, order: Order[Job], place: StepWorkspace) -> MergeResult:
        """Merge the changes of an execution. The result has the conflicts or violations that prevent it."""
        child = place.child
        if child is None:
            assert place.merged is not None, "only a snapshot is merged"
            return place.merged
        done: list[MergeResult] = []

        def work() -> None:
            done.append(self.spaces.merge(child, order.write_set, order.step.merge))
            if order.step.merge != "discard":
                place.found = child.found()

        try:
            await finish_despite_cancel(asyncio.to_thread(work))
        except asyncio.CancelledError:
            if not done or not (done[0].applied or done[0].proposal):
                raise
            # The changes are merged and the log must record that: the step ended before it was cancelled.
            task = asyncio.current_task()
            assert task is not None, "a step is a task"
            task.uncancel()
        return done[0]

    def record_merge(self, order: Order[Job], place: StepWorkspace, merged: MergeResult) -> Failure | None:
        """Record the merge result as evidence. Returns the failure if the changes were not merged."""
        if merged.violations:
            place.evidence.append(violation(merged.violations))
            return violated(order, merged.violations)
        if merged.conflicts:
            place.evidence.append(conflict(merged.conflicts))
            paths = [row.path for row in merged.conflicts]
            return refusal(order, "conflict", paths, hint=ignored_hint(place.found, paths))
        if place.found is not None and place.found.left_out:
            place.evidence.append(left_out(place.found.left_out))
        if merged.changes:
            changes = tuple(ChangedPath(change.path, change.kind) for change in merged.changes)
            fact = Merge(
                mode=order.step.merge, proposal=merged.proposal, changes=changes, receipt=merged.receipt
            )
            place.evidence.append(fact)
        return None

    def is_watched(self, session: str) -> bool:
        """Whether the changes of a step in the project tree must be checked."""
        return self._watching.is_watched(session)

    async def check_shared(
        self, order: Order[Job], place: StepWorkspace, others: Sequence[tuple[str, ...]]
    ) -> Failure | None:
        """Compare the changes in the project tree with the step's write-set. Returns the failure, if any.

        `others` are the path sets of writers of other runs that shared the project tree meanwhile.
        """
        seen = await self._watching.end(order.session, others)
        if seen is None or not seen.strays:
            return None
        place.evidence.append(violation(seen.strays, alone=seen.alone))
        if not seen.alone:
            return None
        return violated(order, seen.strays, seen.rest)

    # Merge conflicts

    async def is_disputed(self, session: str) -> bool:
        """Whether an earlier execution started to resolve a conflict in the workspace of this session."""
        from fanfold.workspace.receipts import NOTE

        return await _in_thread(lambda: self.spaces.remains.read(session, NOTE)) is not None

    async def open_dispute(
        self, session: str, source: StepWorkspace, execution: int
    ) -> tuple[StepWorkspace, Dispute]:
        """A workspace for resolving the conflicts of `source`. After a crash the same one is opened again."""

        def work() -> tuple[StepWorkspace, Dispute]:
            child, dispute = self._dispute(session, source, execution)
            return StepWorkspace(str(child.path), child), dispute

        place, dispute = await _in_thread(work, lambda made: self._detach(made[0]))
        place.evidence = source.evidence
        self._places[session] = place
        return place, dispute

    def _dispute(self, session: str, source: StepWorkspace, execution: int) -> tuple[Child, Dispute]:
        import msgspec

        from fanfold.workspace.receipts import NOTE, Dispute

        note = self.spaces.remains.read(session, NOTE) if execution > 1 else None
        assert source.child is not None, "only a snapshot has conflicts"
        epoch = source.child.record.epoch
        child = self.spaces.find_child(session, epoch) if note is not None else None
        if child is not None and note is not None:
            return child, msgspec.json.decode(note, type=Dispute)
        return self.spaces.open_disputed(session, source.child)

    async def unsettled(self, place: StepWorkspace, dispute: Dispute) -> list[str]:
        """The files of a dispute that still contain both versions."""
        child = place.child
        assert child is not None, "a dispute has a workspace of its own"
        return await _in_thread(lambda: self.spaces.unsettled(child, dispute))

    # Closing

    async def close(self, session: str, place: StepWorkspace, failure: Failure | None) -> None:
        """Remove the workspace after success, or keep it with the reason after a failure.

        Errors are only logged, since the outcome of the step is final. `gc` removes the rest later.
        """
        await self._watching.cut_short(session)
        self._forget(session, place)
        # Only the code: a message may quote the output of a program, and this file is not redacted.
        why = failure.code if failure is not None else ""
        try:
            await _in_thread(lambda: self._close(session, place, why))
        except (FanfoldError, OSError) as error:
            _log.warning("the workspace of %s could not be closed: %s", session, error)

    def _close(self, session: str, place: StepWorkspace, why: str) -> None:
        for one in (place, *place.rounds):
            if one.child is not None:
                self.spaces.close(one.child, keep=bool(why), why=why)
        if place.merged is not None:
            self.spaces.remains.discard(session)

    async def leave(self, session: str, place: StepWorkspace) -> None:
        """Keep the snapshot of an interrupted execution, for the next execution or for `gc`.

        Errors are only logged, as in `close`. Waiting for the workspace lock delays nothing else.
        """
        await self._watching.cut_short(session)
        self._forget(session, place)
        if place.child is not None or place.rounds:
            await _in_thread(lambda: self.let_go(place))

    def let_go(self, place: StepWorkspace) -> None:
        """Detach the layers of a workspace. Waits for the workspace lock."""
        for one in (place, *place.rounds):
            self._detach(one)

    def _detach(self, place: StepWorkspace) -> None:
        if place.child is None:
            return
        try:
            self.spaces.leave(place.child)
        except (FanfoldError, OSError) as error:
            _log.warning("the workspace of %s could not be left: %s", place.child.session_id, error)

    def rests(self, session: str, place: StepWorkspace) -> bool:
        """Forget a session whose work is finished. True if its workspace stays until the log has its end."""
        self._forget(session, place)
        return place.child is not None or place.merged is not None

    def _forget(self, session: str, place: StepWorkspace) -> None:
        self._watching.forget(session)
        self._places.pop(session, None)
        for one in place.rounds:
            if one.child is not None:
                self._places.pop(one.child.session_id, None)

    async def sweep(self, is_over: Callable[[list[str]], list[str]]) -> None:
        """Discard workspaces of a process that died between the end of a step and closing its workspace.

        `is_over` returns the sessions whose step completed, among the sessions with a workspace.
        """
        if self.is_used:
            await _in_thread(lambda: self._sweep(is_over))

    async def discard(self, homes: Sequence[str]) -> None:
        """Discard the workspaces of sessions that will not be continued. `gc` removes the rest later."""
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


def _is_isolated(order: Order[Job]) -> bool:
    return order.step.workspace_mode == "isolated" and order.step.traits.workspace != "project"


def _is_scratch(order: Order[Job]) -> bool:
    return order.step.traits.workspace == "scratch"


async def _in_thread(work: Callable[[], _T], undo: Callable[[_T], None] | None = None) -> _T:
    """Run blocking work in a thread until it finishes.

    If the caller is cancelled meanwhile, it never gets the result. `undo` then reverts the work.
    """
    done: list[_T] = []
    try:
        await finish_despite_cancel(asyncio.to_thread(lambda: done.append(work())))
    except asyncio.CancelledError:
        if done and undo is not None:
            await finish_despite_cancel(asyncio.to_thread(undo, done[0]))
        raise
    return done[0]


# -----------------------------------------------------------------------------------------------------------
# Failures for violations and merge conflicts: the paths, the reason and a hint

WHY = {
    "outside_write_set": (
        "outside write_set",
        "widen the step's write_set, or name in the prompt where the agent may write",
    ),
    "read_only": ("it may only read", "give the step a write_set if it is to change files"),
    "protected": (
        "git's, Fanfold's or a role's",
        "what belongs to git, Fanfold, Codex or Claude Code is no step's to change, whatever write_set says",
    ),
    "special_file": (
        "no file, link or folder",
        "pipes, sockets and devices cannot be merged: have the step delete them before it ends",
    ),
    "leads_out": ("a link that leads out", "a link must stay inside the workspace and be relative"),
    "set_id": (
        "a set-user-id or set-group-id bit, which was taken off",
        "no step may make a program that runs as its owner",
    ),
    "bad_name": ("a name that is not text", "a name must be UTF-8"),
}
"""For each reason why a change is not allowed: its text in the message, and the hint."""
MAX_NAMED = 20


def violated(
    order: Order[Job], rows: Sequence[WriteViolation], rest: str = "nothing of it was merged"
) -> Failure:
    """The failure of a step with changes that are not allowed: each path with the reason, and a hint."""
    reasons = {row.why for row in rows}
    usual = reasons == {"outside_write_set"}  # then the hint is sufficient
    paths = [row.path if usual else f"{row.path} ({WHY[row.why][0]})" for row in rows]
    hint = "; ".join(helps for why, (_, helps) in WHY.items() if why in reasons)
    return refusal(order, "violation", paths, rest, hint)


def correction(rows: Sequence[WriteViolation], write_set: Sequence[str]) -> str:
    """The message that an agent gets once, before changes that are not allowed fail its step."""
    paths = [f"{row.path} ({WHY[row.why][0]})" for row in rows[:MAX_NAMED]]
    named = "\n".join(f"- {path}" for path in paths)
    more = f"\nand {len(rows) - MAX_NAMED} more" if len(rows) > MAX_NAMED else ""
    allowed = ", ".join(f"`{pattern}`" for pattern in write_set[:MAX_NAMED]) or "none"
    return (
        f"You changed files that this step may not change:\n{named}{more}\n\n"
        f"It may change: {allowed}. Undo these changes now: restore changed and deleted files, delete new"
        " ones, or move them to where the step may write. If any remain, the step fails and all of your work"
        " is lost. Then give your complete answer again."
    )


def refusal(
    order: Order[Job], kind: str, paths: list[str], rest: str = "nothing of it was merged", hint: str = ""
) -> Failure:
    """The failure of a step whose changes are not allowed or have a merge conflict."""
    what = "changed what it may not" if kind == "violation" else "has a merge conflict with another change"
    named = ", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")
    message = f"{order.path} {what}: {named}; {rest}"
    if kind == "conflict" and not hint:
        again = f"fanfold fork {order.root} --from {order.typed_path}"
        hint = f"look at both sides, then run the step again from what is there now: {again}"
    return Failure(kind, f"workspace.{kind}", message, hint, retryable=kind == "conflict", step=order.path)


def ignored_hint(found: FoundChanges | None, paths: list[str]) -> str:
    """The hint for a step that created a file which already exists in the project but is ignored by git."""
    asked = found.asked if found is not None else frozenset()
    named = [path for path in paths if path in asked]
    if not named:
        return ""
    return (
        f"the project has {named[0]} already, but git ignores it, so no snapshot holds it:"
        " move it away, or no longer ignore it"
    )


# -----------------------------------------------------------------------------------------------------------
# Changes of the lead of a chat to the project tree, one tool call at a time
#
# The lead shares the project tree with its user and with the subagents that it waits for, so it has no
# snapshot for a whole turn. Each call that changes files gets a snapshot, which is merged at once.
#
# Rules
# * Each call is merged atomically. A conflict or a violation is reported, and the project tree is unchanged.
# * Files are locked only during the merge. A change to files that a writer of another run works on is refused
#   and does not wait: the lead can do something else meanwhile.
# * A merge is recorded for the log before it is reported. If the process dies in between, the merge result is
#   found beside the snapshot when the turn continues.

Note: TypeAlias = Callable[[str, Merge | SandboxUse], None]
"""Records an event for the log of a run."""
DIRECT_CHANGES_MAX_NAMED = 5


class DirectChanges:
    """The changes of one session to the project tree."""

    def __init__(self, request: SessionRequest, isolation: Isolation, store: Store, note: Note) -> None:
        self._request = request
        self._isolation = isolation
        self._store = store
        self._note = note
        self._sandboxes: set[SandboxUse] = set()

    async def open(self) -> StepWorkspace:
        """A snapshot of the current project tree, for one call."""
        import secrets

        name = f"{self._prefix}{secrets.token_hex(4)}"
        made: list[Child] = []

        def work() -> None:
            made.append(self._isolation.spaces.open_child(name, origin=self._request.run_id))

        try:
            await finish_despite_cancel(asyncio.to_thread(work))
        except asyncio.CancelledError:
            if made:
                await self.close(StepWorkspace("", made[0]))
            raise
        return StepWorkspace(str(made[0].path), made[0])

    async def draw(self, place: StepWorkspace) -> str:
        """The changes in a snapshot, as a patch."""
        assert place.child is not None, "a call works in a snapshot"
        return await asyncio.to_thread(self._isolation.spaces.diff, place.child)

    async def bring_home(self, place: StepWorkspace) -> list[str]:
        """Merge the changes of a snapshot and return their paths. Raises `ToolFailed` if not possible."""
        child = place.child
        assert child is not None, "a call works in a snapshot"
        paths = await asyncio.to_thread(lambda: [change.path for change in child.changes()])
        self._require_free(paths)
        done: list[MergeResult] = []
        try:
            await finish_despite_cancel(
                asyncio.to_thread(lambda: done.append(self._isolation.spaces.merge(child)))
            )
        finally:  # also after a cancellation: the changes are merged
            if done:
                self._note_merge(done[0])
        _check(done[0])
        return paths

    async def close(self, place: StepWorkspace) -> None:
        """Remove the snapshot of a call, and record for the log how its programs were sandboxed."""
        for fact in place.evidence:
            self._note_sandbox(fact)
        child = place.child
        assert child is not None, "a call works in a snapshot"
        await finish_despite_cancel(asyncio.to_thread(self._isolation.spaces.close, child))

    async def recover(self) -> None:
        """Record the merges of calls of this session whose process died before it recorded them."""
        if self._isolation.is_used:
            await finish_despite_cancel(asyncio.to_thread(self._recover))

    def _recover(self) -> None:
        from fanfold.workspace.merge import MergeResult
        from fanfold.workspace.workspaces import MERGED

        remains = self._isolation.spaces.remains
        for session in remains.sessions():
            if session.startswith(self._prefix):
                kept = remains.read(session, MERGED)
                if kept is not None:
                    self._note_merge(msgspec.json.decode(kept, type=MergeResult))
                remains.discard(session, over=True)

    @property
    def _prefix(self) -> str:
        return f"{self._request.session_id}-c"

    def _require_free(self, paths: list[str]) -> None:
        """Raise `ToolFailed` if a writer of another run that shares the project tree works on these paths."""
        run = self._request.run_id
        other = self._store.blocker(Claim(run, run, self._request.step, tuple(map(escape, paths))))
        if other is not None:
            message = f"{_named(paths)}: {other.step} of run {other.run_id} works on it"
            raise ToolFailed("tool", "busy", message, "try again when it is over, or do something else")

    def _note_sandbox(self, fact: object) -> None:
        if isinstance(fact, SandboxUse) and fact not in self._sandboxes:
            self._sandboxes.add(fact)
            self._note(self._request.run_id, self._whose(fact))

    def _note_merge(self, merged: MergeResult) -> None:
        if merged.receipt:
            changes = tuple(ChangedPath(change.path, change.kind) for change in merged.changes)
            fact = Merge(mode="auto", proposal="", changes=changes, receipt=merged.receipt)
            self._note(self._request.run_id, self._whose(fact))

    def _whose(self, fact: Merge | SandboxUse) -> Merge | SandboxUse:
        request = self._request
        return structs.replace(fact, step=request.step, attempt=request.attempt, execution=request.execution)


def _check(merged: MergeResult) -> None:
    if merged.violations:
        reasons = {row.why for row in merged.violations}
        hint = "; ".join(helps for why, (_, helps) in WHY.items() if why in reasons)
        named = _named([f"{row.path} ({WHY[row.why][0]})" for row in merged.violations])
        raise ToolFailed("violation", "workspace.violation", f"this may not be changed: {named}", hint)
    if merged.conflicts:
        named = _named([row.path for row in merged.conflicts])
        message = f"it was changed by others meanwhile: {named}; nothing was changed by this call"
        raise ToolFailed("tool", "workspace.conflict", message, "read it again, then change it")


def _named(paths: list[str]) -> str:
    more = (
        f" and {len(paths) - DIRECT_CHANGES_MAX_NAMED} more" if len(paths) > DIRECT_CHANGES_MAX_NAMED else ""
    )
    return f"{', '.join(paths[:DIRECT_CHANGES_MAX_NAMED])}{more}"
