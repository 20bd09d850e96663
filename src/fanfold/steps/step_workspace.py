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
import os
import shlex
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec
from msgspec import structs

from fanfold.errors import FanfoldError, WorldError
from fanfold.kernel.events import Failure
from fanfold.kernel.paths import matches
from fanfold.project_files import write_whole
from fanfold.sessions.processes import finish_despite_cancel
from fanfold.steps.order import Job, Order
from fanfold.steps.records import (
    ChangedPath,
    Merge,
    SandboxUse,
    SetupRun,
    Snapshot,
    SnapshotReopened,
    WatchFailure,
    WorkspaceFact,
    conflict,
    left_out,
    violation,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanfold.agents.entries import SavedTree
    from fanfold.workspace.artifacts import ArtifactRoom
    from fanfold.workspace.bases import Base
    from fanfold.workspace.changes import FoundChanges, WriteViolation
    from fanfold.workspace.children import Child
    from fanfold.workspace.guard import Guard, WorkspaceWatch
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


SaveFiles: TypeAlias = "Callable[[], Awaitable[SavedTree | None]]"
RunSetup: TypeAlias = "Callable[[Sequence[str], StepWorkspace, str, bool], Awaitable[None]]"
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class Isolation:
    """The workspaces of one project, opened when the first isolated step needs one."""

    def __init__(
        self,
        project: Path,
        include: Sequence[str] = (),
        setup: Sequence[str] = (),
        *,
        setup_network: bool = False,
    ) -> None:
        self.project = project
        self._include = include
        self._setup = setup
        self._setup_network = setup_network
        self._preparing = asyncio.Lock()
        self._path = str(project)
        self._places: dict[str, StepWorkspace] = {}
        self._watching = Watching(lambda: self.spaces)

    @cached_property
    def spaces(self) -> Workspaces:
        from fanfold.workspace.workspaces import Workspaces

        spaces = Workspaces(self.project, include=self._include, setup=self._setup)
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

    async def open(self, order: Order[Job], epoch: int, run: RunSetup) -> StepWorkspace:
        """The project tree or a snapshot. A session that continues after a crash gets its snapshot again.

        `run` runs the setup command. `epoch` is the epoch of the run's owner. A previous owner loses
        the snapshot, even if it is still alive.
        """
        isolated, session = self.is_apart(order), order.session
        place = self._here()
        if isolated:
            requested_ns = monotonic_ns()
            place = await in_thread(lambda: self._snapshot(order, epoch, requested_ns), self._detach)
            if self._setup and place.is_new:
                place = await self._prepared(order, epoch, place, run)
            if place.child is not None and order.step.workspace_mode == "isolated":
                fact = Snapshot if place.is_new else SnapshotReopened
                place.evidence.append(fact(method=place.child.method, session_id=session))
        self._places[session] = place
        if not order.write_set:
            return place
        try:
            unwatched = await self._watching.begin(order, shared=not isolated)
        except BaseException:
            await self.leave(session, place)
            raise
        watched = self._watching.watched.get(session)
        if watched is not None and watched.watch is not None:
            place.points = watched.watch.points
        place.write_set = order.write_set
        if unwatched:
            place.evidence.append(WatchFailure(why=unwatched))
        return place

    async def _prepared(
        self, order: Order[Job], epoch: int, place: StepWorkspace, run: RunSetup
    ) -> StepWorkspace:
        """Return a new snapshot with what the setup command makes for its base, which is kept for others."""
        child = place.child
        if child is None or child.record.prepared:
            return place
        try:
            async with self._preparing:
                if await in_thread(lambda: self.spaces.prepared(child.base)) is None:
                    # Run the setup command in a snapshot of its own
                    began_ns, name = monotonic_ns(), f"setup-{os.urandom(6).hex()}"
                    made = await in_thread(
                        lambda: self.spaces.open_child(
                            name, origin=order.root, epoch=epoch, base=child.base, prepares=True
                        )
                    )
                    try:
                        await run(self._setup, StepWorkspace(str(made.path), made), name, self._setup_network)
                        await in_thread(lambda: self.spaces.keep_prepared(made))
                    finally:
                        if (made.folder / "child.json").exists():
                            await in_thread(lambda: self.spaces.close(made))
                    fact = SetupRun(command=tuple(self._setup), ms=(monotonic_ns() - began_ns) // 1_000_000)
                    place.evidence.append(fact)
            again = await in_thread(lambda: self._snapshot(order, epoch, 0, child.base), self._detach)
        except BaseException:
            await self.leave(order.session, place)
            raise
        again.evidence = place.evidence
        return again

    def takes_time(self, order: Order[Job]) -> bool:
        """Whether opening the workspace of a step takes time: for a snapshot or a scan of the project."""
        return bool(order.write_set) or self.is_apart(order)

    def saver(self, _order: Order[Job], _place: StepWorkspace) -> SaveFiles | None:
        """How the files of a session are stored after each mutating call; None: they stay on this machine."""
        return None

    def is_apart(self, order: Order[Job]) -> bool:
        """Whether a step works in its own snapshot, not in the project tree."""
        return order.step.workspace_mode == "isolated" and order.step.traits.workspace != "project"

    async def check_proposals(self, order: Order[Job]) -> None:
        """Raise if the proposal of the previous turn is not applied yet: the new turn would not see it."""
        before = order.turns[-1]
        if not before.proposal:
            return
        waiting = await in_thread(lambda: {proposal.session for proposal in self.spaces.proposals()})
        if before.proposal in waiting:
            message = f"the proposal of {before.path} is not applied yet"
            hint = f"fanfold apply {order.run} {shlex.quote(before.path)} merges it; then repeat the command"
            raise WorldError("subagent.proposal_waits", message, hint=hint)

    def place_of(self, session: str) -> StepWorkspace:
        """The workspace of a running session: the project tree, unless it has its own snapshot."""
        return self._places.get(session) or self._here()

    def _here(self) -> StepWorkspace:
        return StepWorkspace(self._path, None)

    def _snapshot(
        self, order: Order[Job], epoch: int, requested_ns: int, base: Base | None = None
    ) -> StepWorkspace:
        home, session = order.home, order.session
        file = OUTCOME_FILE if home == session else f"{session}.json"
        continues = base is None and (order.execution > 1 or home != session)
        place = self._find(order, file, epoch) if continues else None
        if place is None:
            child = self.spaces.open_child(
                home,
                read_only=order.step.posture == "read_only" and not _is_scratch(order),
                write_set=order.write_set or None,
                origin=order.root,
                epoch=epoch,
                asked_ns=requested_ns,
                base=base,
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
        child = place.child
        if child is not None:
            await in_thread(lambda: write_whole(child.folder / place.stored_in, stored, durable=True))

    # Merging

    def needs_merge(self, order: Order[Job], place: StepWorkspace) -> bool:
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
        rows = await in_thread(lambda: self.spaces.strays(child, order.write_set))
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
            place.evidence.append(merge_fact(merged, order.step.merge))
        return None

    def is_watched(self, session: str) -> bool:
        """Whether the changes of a step in the project tree must be checked."""
        return session in self._watching.watched

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
        return violated(order, seen.strays, seen.rest) if seen.alone else None

    # Merge conflicts

    async def is_disputed(self, session: str) -> bool:
        """Whether an earlier execution started to resolve a conflict in the workspace of this session."""
        from fanfold.workspace.receipts import NOTE

        return await in_thread(lambda: self.spaces.remains.read(session, NOTE)) is not None

    async def open_dispute(
        self, session: str, source: StepWorkspace, execution: int
    ) -> tuple[StepWorkspace, Dispute]:
        """A workspace for resolving the conflicts of `source`. After a crash the same one is opened again."""
        from fanfold.workspace.receipts import NOTE, Dispute

        snapshot = source.child
        assert snapshot is not None, "only a snapshot has conflicts"

        def work() -> tuple[StepWorkspace, Dispute]:
            note = self.spaces.remains.read(session, NOTE) if execution > 1 else None
            child = self.spaces.find_child(session, snapshot.record.epoch) if note is not None else None
            if child is not None and note is not None:
                dispute = msgspec.json.decode(note, type=Dispute)
            else:
                child, dispute = self.spaces.open_disputed(session, snapshot)
            return StepWorkspace(str(child.path), child), dispute

        place, dispute = await in_thread(work, lambda made: self._detach(made[0]))
        place.evidence = source.evidence
        self._places[session] = place
        return place, dispute

    async def unsettled(self, place: StepWorkspace, dispute: Dispute) -> list[str]:
        """The files of a dispute that still contain both versions."""
        child = place.child
        assert child is not None, "a dispute has a workspace of its own"
        return await in_thread(lambda: self.spaces.unsettled(child, dispute))

    # Closing

    async def close(self, session: str, place: StepWorkspace, failure: Failure | None) -> None:
        """Remove the workspace after success, or keep it with the reason after a failure.

        Errors are only logged, since the outcome of the step is final. `gc` removes the rest later.
        """
        await self._watching.cut_short(session)
        self._forget(session, place)
        # Only the code: a message may quote the output of a program, and this file is not redacted.
        why = failure.code if failure is not None else ""

        def work() -> None:
            for workspace in (place, *place.rounds):
                if workspace.child is not None:
                    self.spaces.close(workspace.child, keep=bool(why), why=why)
            if place.merged is not None:
                self.spaces.remains.discard(session)

        try:
            await in_thread(work)
        except (FanfoldError, OSError) as error:
            _log.warning("the workspace of %s could not be closed: %s", session, error)

    async def leave(self, session: str, place: StepWorkspace) -> None:
        """Keep the snapshot of an interrupted execution, for the next execution or for `gc`.

        Errors are only logged, as in `close`. Waiting for the workspace lock delays nothing else.
        """
        await self._watching.cut_short(session)
        self._forget(session, place)
        if place.child is not None or place.rounds:
            await in_thread(lambda: self.let_go(place))

    def let_go(self, place: StepWorkspace) -> None:
        """Detach the layers of a workspace. Waits for the workspace lock."""
        for workspace in (place, *place.rounds):
            self._detach(workspace)

    def _detach(self, place: StepWorkspace) -> None:
        if place.child is None:
            return
        try:
            self.spaces.leave(place.child)
        except (FanfoldError, OSError) as error:
            _log.warning("the workspace of %s could not be detached: %s", place.child.session_id, error)

    def rests(self, session: str, place: StepWorkspace) -> bool:
        """Forget a session whose work is finished. True if its workspace stays until the log has its end."""
        self._forget(session, place)
        return place.child is not None or place.merged is not None

    def _forget(self, session: str, place: StepWorkspace) -> None:
        self._watching.forget(session)
        self._places.pop(session, None)
        for workspace in place.rounds:
            if workspace.child is not None:
                self._places.pop(workspace.child.session_id, None)

    async def sweep(self, is_over: Callable[[list[str]], list[str]]) -> None:
        """Discard workspaces of a process that died between the end of a step and closing its workspace.

        `is_over` returns the sessions whose step completed, among the sessions with a workspace.
        """

        def work() -> None:
            remains = self.spaces.remains
            for session in is_over(remains.sessions()):
                remains.discard(session)

        if self.is_used:
            await in_thread(work)

    async def discard(self, homes: Sequence[str]) -> None:
        """Discard the workspaces of sessions that will not be continued. `gc` removes the rest later."""

        def work() -> None:
            for home in homes:
                self.spaces.remains.discard(home, over=True)

        try:
            if self.is_used:
                await in_thread(work)
        except (FanfoldError, OSError) as error:
            _log.warning("the workspaces of %s could not be discarded: %s", ", ".join(homes), error)


def _is_scratch(order: Order[Job]) -> bool:
    return order.step.traits.workspace == "scratch"


async def in_thread(work: Callable[[], _T], undo: Callable[[_T], None] | None = None) -> _T:
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
# Checks of steps that share the project tree: were their changes allowed?
#
# Rules
# * A writer in the project tree is watched, which costs a scan of the tree before and after it. Readers,
#   snapshots and functions that claim every file cost nothing.
# * A change inside the write-set of any step that ran at the same time, in any process, is not a violation.
#   Files do not record their writer, and changes of isolated steps are merged meanwhile. Merges of other
#   processes are no violation either: merges record their paths.
# * Any other change is a violation if no other writer shared the project tree at that time. Otherwise the
#   writer is unknown, and the log gets a warning.
# * A writer in the project tree is guarded, whatever it claims. Files that control programs (`guard`) are
#   compared before and after, and new ones are moved out. Functions are code of the user and readers cannot
#   write, so neither is guarded.
# * If the comparison is impossible, the step fails. Only a function may work in a tree that cannot be
#   scanned.
# * An interrupted step is checked too. Its violations are in the log of this process, and fail the next
#   attempt of the step in this process: it starts from a project tree that contains them.

_THERE = "it works in the project itself, so these changes are there"
_EVERYTHING = frozenset({"**", "**/*"})
_NEVER = ("protected", "set_id")
"""Reasons for which a change is a violation, whatever other steps claim."""


class ObservedChanges:
    """The violations of a watched step.

    `alone` means that no other writer can have made them. `rest` describes where the changes are now.
    """

    def __init__(self, strays: list[WriteViolation], alone: bool, rest: str = _THERE) -> None:
        self.strays = strays
        self.alone = alone
        self.rest = rest

    def joined(self, later: ObservedChanges) -> ObservedChanges:
        """These violations and those of a later attempt of the same step."""
        known = {row.path for row in self.strays}
        more = [row for row in later.strays if row.path not in known]
        return ObservedChanges([*self.strays, *more], self.alone, later.rest if more else self.rest)


class WatchedStep:
    """A running writer in the project tree, with the writers beside it."""

    def __init__(self, order: Order[Job], beside: list[tuple[str, ...]], alone: bool) -> None:
        self.address = (order.run, order.path)
        """The same for all attempts."""
        self.write_set = order.write_set
        self.beside = beside
        self.alone = alone
        self.watch: WorkspaceWatch | None = None
        self.guard: Guard | None = None
        self.is_settled = False

    def settle(self) -> ObservedChanges:
        """The violations of the step: the findings of its guard, and changes that no other step explains."""
        from fanfold.workspace.changes import WriteViolation

        self.is_settled = True
        guard, watch = self.guard, self.watch
        moved: tuple[str, ...] = ()
        changed: tuple[str, ...] = ()
        folder = ""
        if guard is not None:
            findings = guard.settle(_is_confined)
            moved, changed, folder = findings.moved, findings.changed, findings.folder
        strays: list[WriteViolation] = []
        merges_known = True
        if watch is not None:
            rows, appeared = watch.settle(self.write_set)
            if guard is not None and appeared:
                findings = guard.settle(_is_confined, appeared, watch.homes)
                moved, changed = (*moved, *findings.moved), (*changed, *findings.changed)
                folder = findings.folder or folder
            arrived = watch.arrived()
            merges_known = arrived.complete
            for row in rows:
                explained = row.path in arrived.paths or any(matches(sets, row.path) for sets in self.beside)
                if row.why in _NEVER or not explained:
                    strays.append(row)
        guarded = (*moved, *changed)
        below = tuple(f"{path}/" for path in guarded)
        strays = [row for row in strays if not f"{row.path}/".startswith(below)]
        # Merges never add files that a guard finds, so an incomplete list of merges does not excuse those.
        alone = self.alone and (merges_known or bool(guarded))
        rest = f"{', '.join(moved)} did not stay in the project and is in {folder} now" if moved else _THERE
        return ObservedChanges(
            [*(WriteViolation(path, "protected") for path in guarded), *strays], alone, rest
        )


def _is_confined(project: Path) -> bool:
    """Whether programs run in a sandbox here. The strongest available level is always used."""
    from fanfold.workspace.sandbox import detect

    levels = detect(project)
    return levels.bubblewrap.available or levels.landlock.available


class Watching:
    """The running writers of one process, and the watches over those that need one."""

    def __init__(self, spaces: Callable[[], Workspaces]) -> None:
        self._spaces = spaces
        self._sets: dict[str, tuple[str, ...]] = {}
        self._sharing: set[str] = set()
        self.watched: dict[str, WatchedStep] = {}
        """By session."""
        self._interrupted: dict[tuple[str, str], ObservedChanges | WorldError] = {}
        """By the address of the step: violations of interrupted attempts, or why they cannot be compared."""

    async def begin(self, order: Order[Job], *, shared: bool) -> str:
        """Register a step that is about to start. Returns the error code if it cannot be watched, else ""."""
        session = order.session
        for other in self.watched.values():
            other.beside.append(order.write_set)
            other.alone = other.alone and not shared
        watched = WatchedStep(order, list(self._sets.values()), not self._sharing)
        self._sets[session] = order.write_set
        if not shared:
            return ""
        self._sharing.add(session)
        self.watched[session] = watched
        if order.step.traits.workspace != "project":
            watched.guard = await in_thread(self._guard)
        if watched.guard is None and _EVERYTHING.intersection(order.write_set):
            return ""
        try:
            watched.watch = await in_thread(lambda: self._spaces().watch())
        except WorldError as error:
            if watched.guard is not None:
                raise
            return error.code
        return ""

    def _guard(self) -> Guard | None:
        from fanfold.workspace.guard import Guard

        try:
            return Guard(self._spaces().project)
        except WorldError:
            return None  # without a workspace no program can be started

    async def end(self, session: str, others: Sequence[tuple[str, ...]] = ()) -> ObservedChanges | None:
        """The violations of a step, or None if it was not watched.

        `others` are the write-sets of writers of other runs, in any process, that shared the project tree.
        """
        watched = self.watched.get(session)
        if watched is None:
            return None
        watched.beside += others
        watched.alone = watched.alone and not others
        seen = await in_thread(watched.settle)
        before = self._interrupted.pop(watched.address, None)
        if isinstance(before, WorldError):
            raise before
        return seen if before is None else before.joined(seen)

    async def cut_short(self, session: str) -> None:
        """Check a step that was interrupted before `end`. Files that must not stay are still moved out."""
        watched = self.watched.get(session)
        if watched is None or watched.is_settled:
            return
        try:
            seen = await in_thread(watched.settle)
        except (FanfoldError, OSError) as error:
            message = f"the changes of an earlier attempt in the project could not be compared: {error}"
            self._interrupted[watched.address] = WorldError("workspace.unreadable", message)
            _log.warning("the changes of %s in the project could not be compared: %s", session, error)
            return
        if seen.strays:
            before = self._interrupted.get(watched.address)
            if seen.alone and before is None:
                self._interrupted[watched.address] = seen
            elif isinstance(before, ObservedChanges):
                self._interrupted[watched.address] = before.joined(seen)
            _log.warning("%s changed %s; %s", session, ", ".join(row.path for row in seen.strays), seen.rest)

    def forget(self, session: str) -> None:
        """Remove a finished step from the running writers."""
        self._sets.pop(session, None)
        self._sharing.discard(session)
        self.watched.pop(session, None)


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


def merge_fact(merged: MergeResult, mode: str) -> Merge:
    """The log's record of merged or proposed changes."""
    changes = tuple(ChangedPath(change.path, change.kind) for change in merged.changes)
    return Merge(mode=mode, proposal=merged.proposal, changes=changes, receipt=merged.receipt)


def name_paths(paths: Sequence[str]) -> str:
    """The first five paths, and how many more there are."""
    return ", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")


def explain_violations(rows: Sequence[WriteViolation]) -> tuple[list[str], str]:
    """Each path with the reason why it must not be changed, and the hint."""
    reasons = {row.why for row in rows}
    hint = "; ".join(helps for why, (_, helps) in WHY.items() if why in reasons)
    return [f"{row.path} ({WHY[row.why][0]})" for row in rows], hint


def violated(
    order: Order[Job], rows: Sequence[WriteViolation], rest: str = "nothing of it was merged"
) -> Failure:
    """The failure of a step with changes that are not allowed: each path with the reason, and a hint."""
    paths, hint = explain_violations(rows)
    if {row.why for row in rows} == {"outside_write_set"}:  # then the hint is sufficient
        paths = [row.path for row in rows]
    return refusal(order, "violation", paths, rest, hint)


def correction(rows: Sequence[WriteViolation], write_set: Sequence[str]) -> str:
    """The message that an agent gets once, before changes that are not allowed fail its step."""
    named = "\n".join(f"- {path}" for path in explain_violations(rows[:MAX_NAMED])[0])
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
    what = "changed forbidden paths" if kind == "violation" else "has a merge conflict with another change"
    message = f"{order.path} {what}: {name_paths(paths)}; {rest}"
    if kind == "conflict" and not hint:
        again = f"fanfold fork {order.root} --from {order.typed_path}"
        hint = f"compare both sides, then run the step again on the current files: {again}"
    return Failure(kind, f"workspace.{kind}", message, hint, retryable=kind == "conflict", step=order.path)


def ignored_hint(found: FoundChanges | None, paths: list[str]) -> str:
    """The hint for a step that created a file which already exists in the project but is ignored by git."""
    for path in paths:
        if found is not None and path in found.asked:
            return (
                f"the project has {path} already, but git ignores it, so no snapshot holds it:"
                " move it away, or no longer ignore it"
            )
    return ""
