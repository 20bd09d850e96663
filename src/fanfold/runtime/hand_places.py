"""Where subagents by hand work, and how what they changed comes home.

Rules
* A child that writes works in a snapshot of the project, made when its turn begins, unless it was told to
  share the project. One that reads shares it.
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

from fanfold.errors import WorldError
from fanfold.kernel.events import Failure
from fanfold.runtime.isolation import Isolation, Place
from fanfold.runtime.refusals import told
from fanfold.sessions.housing import Home
from fanfold.sessions.opened import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanfold.workspace.changes import Violation
    from fanfold.workspace.children import Child
    from fanfold.workspace.merge import Conflict
    from fanfold.workspace.results import Merged

MAX_SAID = 5
HINTS = {
    "violation": "fanfold send can tell it what to take back; fanfold close throws its work away",
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


class HandPlaces:
    """Homes for the subagents that people start in one project."""

    def __init__(self, project: Path) -> None:
        self.isolation = HandIsolation(project)
        self.folder = project

    def home_of(self, session_id: str, role: str, settings: Settings) -> Home:
        """Where a child works; nothing is made yet."""
        apart = settings.isolated and not settings.read_only
        return _Snapshot(self, session_id, role, settings) if apart else _Shared(self, session_id)

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

    def __init__(self, places: HandPlaces, session_id: str) -> None:
        self.path = self.shown = str(places.folder)
        self._entered = places.isolation.entered
        self._session_id = session_id
        self._place = Place(self.path, None)

    async def enter(self) -> None:
        self._entered[self._session_id] = self._place

    async def bring_back(self) -> Failure | None:
        return None

    async def clear(self) -> None:
        self.abandon()

    async def keep(self, why: str) -> None:  # noqa: ARG002 - what is in the project stays there anyway
        self.abandon()

    def abandon(self) -> None:
        self._entered.pop(self._session_id, None)

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
            # After a restart of the machine a layer may be there that nobody can rely on any more.
            what = "replaced" if self._places.has_kept(self._session_id) else "snapshot"
            child = spaces.open_child(self._session_id, write_set=self._settings.write_set)
        self._facts.append({"what": what, "method": child.method, "session_id": self._session_id})
        return child

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
        more = f" and {len(rows) - MAX_SAID} more" if len(rows) > MAX_SAID else ""
        paths = ", ".join(row.path for row in rows[:MAX_SAID]) + more
        what = "changed what it may not" if kind == "violation" else "changed what somebody else changed too"
        message = f"{self._role} {what}: {paths}; nothing of it was merged"
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


async def _in_thread(work: Callable[[], _T]) -> _T:
    """Do what waits for the disk; what the disk refuses is the child's failure and not the host's."""
    try:
        return await asyncio.to_thread(work)
    except OSError as error:
        message = f"the workspace cannot be used: {error.strerror or error}"
        raise WorldError("workspace.io", message, hint="check permissions and disk space") from error
