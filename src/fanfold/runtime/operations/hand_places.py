"""Where subagents by hand work, and how what they changed comes home.

Rules
* A child that writes works in a snapshot of the project, made when its turn begins, unless it was told to
  share the project. One that reads shares it.
* One that shares the project is held to its write-set as a step is: the project is looked over before and
  after, also when the turn failed anyway.
* What a failed, cancelled or killed turn left is found again by the next one, which goes on in it. Otherwise
  a turn starts from the project as it is then.
* Children do not wait for each other, whatever their write-sets: each merge compares three versions under
  the workspace lock. Who comes second with a change that contradicts the first fails with class `conflict`.
* A child has one proposal, so it does not begin anew while that one waits: it would not see what it proposed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from fanfold.errors import WorldError
from fanfold.kernel.events import Failure
from fanfold.runtime.places.isolation import Isolation, Place
from fanfold.runtime.places.refusals import told
from fanfold.sessions.housing import Home
from fanfold.sessions.opened import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanfold.runtime.places.watching import Seen
    from fanfold.workspace.merges.merge import Conflict
    from fanfold.workspace.merges.results import Merged
    from fanfold.workspace.snapshots.changes import Violation
    from fanfold.workspace.snapshots.children import Child

MAX_SAID = 5
HINTS = {
    "violation": "fanfold send can tell it what to take back; fanfold close throws its work away",
    "shared": "take these changes back yourself; or spawn one with a wider --write-set",
    "conflict": "fanfold send can tell it what these files shall hold; fanfold close throws its work away",
}

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class HandIsolation(Isolation):
    """Workspaces that are entered and left by whoever has them, not by the steps of a run."""

    def __init__(self, project: Path) -> None:
        super().__init__(project)
        self.entered: dict[str, Place] = {}

    def place_of(self, session: str) -> Place:
        return self.entered.get(session) or super().place_of(session)

    async def watch(self, session: str, settings: Settings) -> str:
        """Begin to watch one that shares the project; the code of what keeps it from being watched."""
        return await self._watching.begin(session, settings, shared=True)

    async def strayed(self, session: str) -> Seen | None:
        """What one that was watched may be blamed for."""
        return await self._watching.end(session)

    def unwatch(self, session: str) -> None:
        self._watching.forget(session)


class HandPlaces:
    """Homes for the subagents that people start in one project."""

    def __init__(self, project: Path) -> None:
        self.isolation = HandIsolation(project)
        self.folder = project

    def home_of(self, session_id: str, role: str, settings: Settings) -> Home:
        """Where a child works; nothing is made yet."""
        apart = settings.isolated and not settings.read_only
        return (
            _Snapshot(self, session_id, role, settings)
            if apart
            else _Shared(self, session_id, role, settings)
        )

    async def clear(self, session_id: str) -> None:
        """Throw away what is kept of a child that will not run again."""
        if self.has_kept(session_id):
            await _in_thread(lambda: self._clear(session_id))

    def has_kept(self, session_id: str) -> bool:
        """Whether there is a workspace of a child, of whatever use."""
        return (self.folder / ".fanfold" / "subagents" / session_id).is_dir()

    def _clear(self, session_id: str) -> None:
        spaces = self.isolation.spaces
        # One that cannot be opened any more is replaced, and the new one thrown away.
        spaces.close(spaces.find_child(session_id) or spaces.open_child(session_id))

    def waiting(self, session_id: str) -> str:
        """The proposal of a child that nobody applied yet; empty without one."""
        proposals = self.isolation.spaces.proposals()
        return next((one.id for one in proposals if one.session == session_id), "")


class _Shared:
    """The project itself."""

    def __init__(self, places: HandPlaces, session_id: str, role: str, settings: Settings) -> None:
        self.path = self.shown = str(places.folder)
        self._isolation = places.isolation
        self._session_id = session_id
        self._role = role
        self._settings = settings
        self._place = Place(self.path, None)
        self._is_watched = False

    async def enter(self) -> None:
        if self._session_id in self._isolation.entered:
            return
        self._isolation.entered[self._session_id] = self._place
        try:
            unwatched = await self._isolation.watch(self._session_id, self._settings)
        except BaseException as error:
            self.abandon()
            if isinstance(error, OSError):
                raise _unusable(error) from error
            raise
        self._is_watched = True
        if unwatched:
            self._place.evidence.append({"what": "unwatched", "why": unwatched})

    async def bring_back(self) -> Failure | None:
        """It is there already; whether it may be is another question."""
        try:
            seen = await self._look()
        except OSError as error:
            raise _unusable(error) from error
        if seen is None or not seen.strays or not seen.alone:
            return None
        message = f"{self._role} changed what it may not: {_named(seen.strays)}; {seen.rest}"
        return Failure(
            "violation", "workspace.violation", message, HINTS["shared"], retryable=False, step=self._role
        )

    async def _look(self) -> Seen | None:
        """Tell once what was changed that may not be."""
        if not self._is_watched:
            return None
        self._is_watched = False
        seen = await self._isolation.strayed(self._session_id)
        if seen is not None and seen.strays:
            fact = told("violation" if seen.alone else "violation_warning", seen.strays)
            self._place.evidence.append(fact)
        return seen

    async def clear(self) -> None:
        self.abandon()

    async def keep(self, why: str) -> None:  # noqa: ARG002 - what is in the project stays there anyway
        try:
            await self._look()
        except (WorldError, OSError):
            _log.exception("what %s changed could not be looked at", self._session_id)
        finally:
            self.abandon()

    def abandon(self) -> None:
        self._is_watched = False
        self._isolation.unwatch(self._session_id)
        self._isolation.entered.pop(self._session_id, None)

    def take_evidence(self) -> list[dict[str, Any]]:
        facts, self._place.evidence = self._place.evidence, []
        return facts


class _Snapshot:
    """A snapshot of the project."""

    def __init__(self, places: HandPlaces, session_id: str, role: str, settings: Settings) -> None:
        self._places = places
        self._isolation = places.isolation
        self._session_id = session_id
        self._role = role
        self._settings = settings
        self._place: Place | None = None
        self._facts: list[dict[str, Any]] = []

    @property
    def path(self) -> str:
        assert self._place is not None, "somebody works here"
        return self._place.path

    @property
    def shown(self) -> str:
        return str(self._child.place)

    @property
    def _child(self) -> Child:
        assert self._place is not None, "somebody works here"
        assert self._place.child is not None, "a snapshot is a place of its own"
        return self._place.child

    async def enter(self) -> None:
        if self._place is None:
            child = await _in_thread(self._open)
            self._place = self._isolation.entered[self._session_id] = Place(str(child.path), child)

    def _open(self) -> Child:
        spaces = self._isolation.spaces
        child = spaces.find_child(self._session_id)
        if child is not None and self._is_merged(child):
            self._tell_merge(self._merge(child))
            spaces.close(child)
            child = None
        what = "reopened"
        if child is None:
            self._check_proposal()
            what = "replaced" if self._may_replace() else "snapshot"
            child = spaces.open_child(self._session_id, write_set=self._settings.write_set)
        self._facts.append({"what": what, "method": child.method, "session_id": self._session_id})
        return child

    def _may_replace(self) -> bool:
        """Whether there is a workspace that nobody needs. After a restart of the machine one may be there
        of which parts never reached the disk: it is not gone on with, and not thrown away unasked.
        """
        from fanfold.workspace.merges.results import Merged
        from fanfold.workspace.workspaces import MERGED

        if not self._places.has_kept(self._session_id):
            return False
        remains = self._isolation.spaces.remains
        merged = None if self._settings.merge == "propose" else remains.read(self._session_id, MERGED)
        if merged is not None:
            self._tell_merge(msgspec.json.decode(merged, type=Merged))
        elif remains.read(self._session_id, "child.json") is not None:
            raise left_before_restart(self._session_id, self._places.folder)
        return True

    def _is_merged(self, child: Child) -> bool:
        """Whether everything was in the project already when its process died, or could not clear it away."""
        from fanfold.workspace.workspaces import MERGED

        return self._settings.merge != "propose" and (child.folder / MERGED).exists()

    def _check_proposal(self) -> None:
        if self._settings.merge == "propose":
            waiting = self._places.waiting(self._session_id)
            if waiting:
                raise proposal_waits(self._session_id, waiting)

    async def bring_back(self) -> Failure | None:
        merged = await _in_thread(lambda: self._merge(self._child))
        for kind, rows in (("violation", merged.violations), ("conflict", merged.conflicts)):
            if rows:
                self._facts.append(told(kind, rows))
                return self._refusal(kind, rows)
        self._tell_merge(merged)
        return None

    def _merge(self, child: Child) -> Merged:
        from fanfold.workspace.workspaces import MERGED

        mode = self._settings.merge
        if mode == "propose":  # made of everything that is here, it replaces one that was made before
            (child.folder / MERGED).unlink(missing_ok=True)
        return self._isolation.spaces.merge(child, self._settings.write_set, mode)

    def _tell_merge(self, merged: Merged) -> None:
        if merged.changes:
            changes = [{"path": one.path, "kind": one.kind} for one in merged.changes]
            fact = {"what": "merge", "mode": self._settings.merge, "proposal": merged.proposal}
            self._facts.append({**fact, "changes": changes})

    def _refusal(self, kind: str, rows: Sequence[Violation | Conflict]) -> Failure:
        what = "changed what it may not" if kind == "violation" else "changed what somebody else changed too"
        message = f"{self._role} {what}: {_named(rows)}; nothing of it was merged"
        return Failure(kind, f"workspace.{kind}", message, HINTS[kind], retryable=False, step=self._role)

    async def clear(self) -> None:
        child = self._go()
        if child is not None:
            try:
                await _in_thread(lambda: self._isolation.spaces.close(child))
            except WorldError:  # its changes are home, which the next turn will see
                _log.exception("the workspace of %s could not be cleared away", self._session_id)

    async def keep(self, why: str) -> None:
        child = self._go()
        if child is not None:
            try:
                await _in_thread(lambda: self._isolation.spaces.close(child, keep=True, why=why))
            except WorldError:  # it stays without a word of why
                _log.exception("the workspace of %s could not be marked as kept", self._session_id)

    def abandon(self) -> None:
        child = self._go()
        if child is not None:
            child.detach()

    def _go(self) -> Child | None:
        place, self._place = self._place, None
        self._isolation.entered.pop(self._session_id, None)
        return None if place is None else place.child

    def take_evidence(self) -> list[dict[str, Any]]:
        facts, self._facts = self._facts, []
        if self._place is not None:  # what its programs left comes before what became of it
            facts, self._place.evidence = self._place.evidence + facts, []
        return facts


def proposal_waits(session_id: str, proposal: str) -> WorldError:
    """What a child is not asked to do: propose again what it would not see."""
    message = f"what {session_id} proposed is not applied yet ({proposal})"
    hint = f"fanfold apply {session_id} merges it; or spawn another subagent"
    return WorldError("subagent.proposal_waits", message, hint=hint)


def left_before_restart(session_id: str, project: Path) -> WorldError:
    """What a child does not go on with: a workspace of which nobody knows whether it is whole."""
    folder = project / ".fanfold" / "subagents" / session_id
    message = f"{session_id} left work in {folder} before this machine was restarted; parts may be missing"
    hint = f"fanfold diff {session_id} shows it; fanfold close {session_id} throws it away"
    return WorldError("workspace.before_restart", message, hint=hint)


def _named(rows: Sequence[Violation | Conflict]) -> str:
    more = f" and {len(rows) - MAX_SAID} more" if len(rows) > MAX_SAID else ""
    return ", ".join(row.path for row in rows[:MAX_SAID]) + more


async def _in_thread(work: Callable[[], _T]) -> _T:
    """Do what waits for the disk; what the disk refuses is the child's failure and not the host's."""
    try:
        return await asyncio.to_thread(work)
    except OSError as error:
        raise _unusable(error) from error


def _unusable(error: OSError) -> WorldError:
    message = f"the workspace cannot be used: {error.strerror or error}"
    return WorldError("workspace.io", message, hint="check permissions and disk space")
