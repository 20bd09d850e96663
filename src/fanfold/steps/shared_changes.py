"""Checks the changes of steps that share the project tree: were they allowed?

Rules
* A writer in the project tree is watched, which costs a scan of the tree before and after it. Readers,
  snapshots and functions that claim every file cost nothing.
* A change inside the write-set of any step that ran at the same time, in any process, is not a violation.
  Files do not record their writer, and changes of isolated steps are merged meanwhile. Merges of other
  processes are no violation either: merges record their paths.
* Any other change is a violation if no other writer shared the project tree at that time. Otherwise the
  writer is unknown, and the log gets a warning.
* A writer in the project tree is guarded, whatever it claims. Files that control programs (`guard`) are
  compared before and after, and new ones are moved out. Functions are code of the user and readers cannot
  write, so neither is guarded.
* If the comparison is impossible, the step fails. Only a function may work in a tree that cannot be scanned.
* An interrupted step is checked too. Its violations are in the log of this process, and fail the next attempt
  of the step in this process: it starts from a project tree that contains them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fanfold.errors import FanfoldError, WorldError
from fanfold.kernel.paths import matches
from fanfold.sessions.processes import finish_despite_cancel
from fanfold.steps.order import Job, Order

if TYPE_CHECKING:
    from pathlib import Path

    from fanfold.workspace.changes import WriteViolation
    from fanfold.workspace.guard import Guard, GuardFindings, WorkspaceWatch
    from fanfold.workspace.workspaces import Workspaces


_THERE = "it works in the project itself, so these changes are there"
_EVERYTHING = frozenset({"**", "**/*"})
_NEVER = ("protected", "set_id")
"""Reasons for which a change is a violation, whatever other steps claim."""
_log = logging.getLogger(__name__)


class ObservedChanges:
    """The violations of a watched step.

    `alone` means that no other writer can have made them. `rest` describes where the changes are now.
    """

    def __init__(self, strays: list[WriteViolation], alone: bool, rest: str = "") -> None:
        self.strays = strays
        self.alone = alone
        self.rest = rest or _THERE

    def joined(self, later: ObservedChanges) -> ObservedChanges:
        """These violations and those of a later attempt of the same step."""
        known = {row.path for row in self.strays}
        more = [row for row in later.strays if row.path not in known]
        return ObservedChanges([*self.strays, *more], self.alone, later.rest if more else self.rest)


class _WatchedStep:
    def __init__(
        self, address: tuple[str, str], own: tuple[str, ...], beside: list[tuple[str, ...]], alone: bool
    ) -> None:
        self.address = address
        """The run and the path of the step, the same for all attempts."""
        self.own = own
        self.beside = beside
        self.alone = alone
        self.watch: WorkspaceWatch | None = None
        self.guard: Guard | None = None
        self.is_settled = False


class Watching:
    """The running writers of one process, and the watches over those that need one."""

    def __init__(self, spaces: Callable[[], Workspaces]) -> None:
        self._spaces = spaces
        self._sets: dict[str, tuple[str, ...]] = {}
        self._sharing: set[str] = set()
        self._watched: dict[str, _WatchedStep] = {}
        self._interrupted: dict[tuple[str, str], ObservedChanges | WorldError] = {}
        """By the address of the step: violations of interrupted attempts, or why they cannot be compared."""

    async def begin(self, order: Order[Job], *, shared: bool) -> str:
        """Register a step that is about to start. Returns the error code if it cannot be watched, else ""."""
        session, write_set = order.session, order.write_set
        for other in self._watched.values():
            other.beside.append(write_set)
            other.alone = other.alone and not shared
        address = (order.run, order.path)
        mine = _WatchedStep(address, write_set, list(self._sets.values()), not self._sharing)
        self._sets[session] = write_set
        if not shared:
            return ""
        self._sharing.add(session)
        self._watched[session] = mine
        mine.guard = await finish_despite_cancel(asyncio.to_thread(guard_for, order, self._spaces))
        if mine.guard is None and _EVERYTHING.intersection(write_set):
            return ""
        try:
            mine.watch = await finish_despite_cancel(asyncio.to_thread(lambda: self._spaces().watch()))
        except WorldError as error:
            if mine.guard is not None:
                raise
            return error.code
        return ""

    def points(self, session: str) -> Mapping[str, bool] | None:
        """The folders of git, Fanfold and dependencies when a watched step started."""
        watched = self._watched.get(session)
        return watched.watch.points if watched is not None and watched.watch is not None else None

    def is_watched(self, session: str) -> bool:
        """Whether a step is watched, so that `end` returns a result."""
        return session in self._watched

    async def end(self, session: str, others: Sequence[tuple[str, ...]] = ()) -> ObservedChanges | None:
        """The violations of a step, or None if it was not watched.

        `others` are the write-sets of writers of other runs, in any process, that shared the project tree.
        """
        watched = self._watched.get(session)
        if watched is None:
            return None
        watched.beside += others
        watched.alone = watched.alone and not others
        seen = await finish_despite_cancel(asyncio.to_thread(_settle, watched))
        before = self._interrupted.pop(watched.address, None)
        if isinstance(before, WorldError):
            raise before
        return seen if before is None else before.joined(seen)

    async def cut_short(self, session: str) -> None:
        """Check a step that was interrupted before `end`. Files that must not stay are still moved out."""
        watched = self._watched.get(session)
        if watched is None or watched.is_settled:
            return
        try:
            seen = await finish_despite_cancel(asyncio.to_thread(_settle, watched))
        except (FanfoldError, OSError) as error:
            message = f"what an earlier attempt changed in the project could not be compared: {error}"
            self._interrupted[watched.address] = WorldError("workspace.unreadable", message)
            _log.warning("what %s changed in the project could not be compared: %s", session, error)
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
        self._watched.pop(session, None)


def _settle(watched: _WatchedStep) -> ObservedChanges:
    """The violations of a step: the findings of its guard, and changes that no other step explains."""
    from fanfold.workspace.changes import WriteViolation

    watched.is_settled = True
    own = watched.guard.settle(_is_confined) if watched.guard is not None else None
    strays: list[WriteViolation] = []
    known = True
    if watched.watch is not None:
        rows, appeared = watched.watch.settle(watched.own)
        more = (
            watched.guard.settle(_is_confined, appeared, watched.watch.homes)
            if watched.guard is not None and appeared
            else None
        )
        if own is not None and more is not None:
            own = replace(
                own,
                moved=(*own.moved, *more.moved),
                changed=(*own.changed, *more.changed),
                folder=more.folder or own.folder,
            )
        arrived = watched.watch.arrived()
        beside = watched.beside
        strays = [
            row for row in rows if row.why in _NEVER or not _is_of_others(row.path, beside, arrived.paths)
        ]
        known = arrived.complete
    named = (*own.moved, *own.changed) if own is not None else ()
    made = [WriteViolation(path, "protected") for path in named]
    strays = [row for row in strays if not f"{row.path}/".startswith(tuple(f"{path}/" for path in named))]
    # Merges never add files that a guard finds, so an incomplete list of merges does not excuse those.
    return ObservedChanges([*made, *strays], watched.alone and (known or bool(made)), _where(own))


def _is_of_others(path: str, beside: Sequence[tuple[str, ...]], arrived: Collection[str]) -> bool:
    return path in arrived or any(matches(claimed, path) for claimed in beside)


def guard_for(order: Order[Job], spaces: Callable[[], Workspaces]) -> Guard | None:
    """A guard over the project tree for a writer that shares it; None for a writer without programs."""
    from fanfold.workspace.guard import Guard

    if order.step.traits.workspace == "project":
        return None
    try:
        return Guard(spaces().project)
    except WorldError:
        return None  # without a workspace no program can be started


def _where(found: GuardFindings | None) -> str:
    if found is None or not found.moved:
        return ""
    return f"{', '.join(found.moved)} did not stay in the project and is in {found.folder} now"


def _is_confined(project: Path) -> bool:
    """Whether programs run in a sandbox here. The strongest available level is always used."""
    from fanfold.workspace.sandbox import detect

    levels = detect(project)
    return levels.bubblewrap.available or levels.landlock.available
