"""What steps that share the project changed in it, and whether that was theirs to change.

Rules
* Only a writer in the project itself that does not claim every file is watched: it costs a walk over the
  project before and after. Readers and snapshots cost nothing.
* What lies in the set of any step that was under way at the same time, in any process, is not held against
  it: files do not say who wrote them, and what isolated steps changed is merged meanwhile. What other
  processes merged is not either: merges note what they put.
* The rest is a violation when no other writer shared the project in that time. Otherwise nobody can say whose
  it is, and it is a warning in the log.
* Whatever it claims, a writer in the project is guarded: names that tell programs what to do (`guard`) are
  compared before and after, and those that appeared do not stay. Functions are code of the user and readers
  cannot write, so neither is guarded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fanfold.errors import WorldError
from fanfold.kernel.nodes import Node
from fanfold.kernel.paths import matches
from fanfold.sessions.insist import insist

if TYPE_CHECKING:
    from pathlib import Path

    from fanfold.workspace.guard import Guard, GuardFindings
    from fanfold.workspace.shared import WorkspaceWatch
    from fanfold.workspace.snapshots.changes import WriteViolation
    from fanfold.workspace.workspaces import Workspaces


_THERE = "it works in the project itself, so these changes are there"
_EVERYTHING = frozenset({"**", "**/*"})
_log = logging.getLogger(__name__)


class Seen:
    """What a watched step is blamed for. `alone`: nobody else can have done it. `rest`: where it is now."""

    def __init__(self, strays: list[WriteViolation], alone: bool, rest: str = "") -> None:
        self.strays = strays
        self.alone = alone
        self.rest = rest or _THERE


class _Watched:
    def __init__(self, own: tuple[str, ...], beside: list[tuple[str, ...]], alone: bool) -> None:
        self.own = own
        self.beside = beside
        self.alone = alone
        self.watch: WorkspaceWatch | None = None
        self.guard: Guard | None = None


class Watching:
    """The writers of one process that are under way, and the watches over those that need one."""

    def __init__(self, spaces: Callable[[], Workspaces]) -> None:
        self._spaces = spaces
        self._sets: dict[str, tuple[str, ...]] = {}
        self._sharing: set[str] = set()
        self._watched: dict[str, _Watched] = {}

    async def begin(self, session: str, node: Node, *, shared: bool) -> str:
        """A step is about to work; the code of what keeps it from being watched, usually none."""
        for other in self._watched.values():
            other.beside.append(node.write_set)
            other.alone = other.alone and not shared
        mine = _Watched(node.write_set, list(self._sets.values()), not self._sharing)
        self._sets[session] = node.write_set
        if not shared:
            return ""
        self._sharing.add(session)
        self._watched[session] = mine
        mine.guard = await insist(asyncio.to_thread(guard_for, node, self._spaces))
        if _EVERYTHING.intersection(node.write_set):
            return ""
        try:
            mine.watch = await insist(asyncio.to_thread(lambda: self._spaces().watch()))
        except WorldError as error:  # a project that cannot be walked through can still be worked in
            return error.code
        return ""

    def is_watched(self, session: str) -> bool:
        """Whether `end` will have something to say."""
        return session in self._watched

    async def end(self, session: str, others: Sequence[tuple[str, ...]] = ()) -> Seen | None:
        """What a step that worked may be blamed for; None when it was not watched. `others` are the sets of
        writers of other runs, in whichever process, that shared the project with it.
        """
        watched = self._watched.get(session)
        if watched is None:
            return None
        watched.beside += others
        watched.alone = watched.alone and not others
        made, rest = await insist(asyncio.to_thread(settled, watched.guard)) if watched.guard else ([], "")
        if watched.watch is None:
            return Seen(made, watched.alone, rest)
        try:
            strays, known = await insist(asyncio.to_thread(_strays, watched, watched.watch))
        except WorldError:
            if not made:
                raise
            strays, known = [], True  # what it made may be why git does not answer
        # Merges put none of what a guard finds, so not knowing them all excuses nobody of that.
        return Seen([*made, *strays], watched.alone and (known or bool(made)), rest)

    def forget(self, session: str) -> None:
        """The step is over."""
        self._sets.pop(session, None)
        self._sharing.discard(session)
        watched = self._watched.pop(session, None)
        if watched is not None and watched.guard is not None:
            clear(watched.guard, session)  # finds nothing where the step came to its end


def _strays(watched: _Watched, watch: WorkspaceWatch) -> tuple[list[WriteViolation], bool]:
    """What nobody else is known to have changed, and whether all that others merged is known."""
    found = watch.violations(watched.own)
    strays = [one for one in found if not any(matches(claimed, one.path) for claimed in watched.beside)]
    arrived = watch.arrived()
    return [one for one in strays if one.path not in arrived.paths], arrived.complete


def guard_for(writer: object, spaces: Callable[[], Workspaces]) -> Guard | None:
    """A guard over the project for a writer that shares it; None for one that runs no programs."""
    from fanfold.workspace.guard import Guard

    if isinstance(writer, Node) and writer.step.traits.workspace == "project":
        return None
    try:
        return Guard(spaces().project)
    except WorldError:
        return None  # where no workspace can be opened no program can be started


def settled(guard: Guard) -> tuple[list[WriteViolation], str]:
    """What a step is blamed for by its guard, and where that is now."""
    from fanfold.workspace.snapshots.changes import WriteViolation

    found = guard.settle(_is_confined)
    rows = [WriteViolation(path, "protected") for path in (*found.moved, *found.changed)]
    return rows, _where(found)


def clear(guard: Guard, session: str) -> None:
    """Settle a guard whose step was cut short: nobody is told but the log of this process."""
    rows, where = settled(guard)
    if rows:
        _log.warning("%s made %s; %s", session, ", ".join(row.path for row in rows), where)


def _where(found: GuardFindings) -> str:
    if not found.moved:
        return ""
    return f"{', '.join(found.moved)} did not stay in the project and is in {found.folder} now"


def _is_confined(project: Path) -> bool:
    """Whether programs run in a sandbox here: the strongest level there is is always taken."""
    from fanfold.workspace.sandbox.levels import detect

    levels = detect(project)
    return levels.bubblewrap.available or levels.landlock.available
