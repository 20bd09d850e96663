"""What subagents by hand changed: what is merged, what they proposed, what a failed one left.

Rules
* Looking needs no host. Applying is asked of the host, as everything that their history must tell of.
* Applying is safe to repeat: the merge remembers that it was done, then the child's log is told, and only
  then is the proposal dropped.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from fanfold.errors import NotFoundError, WorldError
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.changes import (
    APPLIED,
    GONE,
    KEPT,
    MERGED,
    PROPOSED,
    who_changed,
)
from fanfold.runtime.records.memory import ChangedPath
from fanfold.runtime.views.changes import StepChanges
from fanfold.sessions.lineage import QUEUED, RUNNING, Child
from fanfold.sessions.log import read_evidence
from fanfold.sessions.opened import Opened, read_opened
from fanfold.sessions.supervisor import Supervisor
from fanfold.store.protocol import Store

if TYPE_CHECKING:
    from fanfold.workspace.merges.results import Merged
    from fanfold.workspace.workspaces import Workspaces

MAX_SAID = 5


def changed(store: Store, child: Child, opened: Opened) -> dict[str, Any]:
    """What became of what a child changed in its last turn, from its own log.

    `changes` is None for one that shared the project with everybody: nobody knows whose changes those are.
    """
    settings = opened.settings
    alone = settings.isolated or settings.read_only
    changes: dict[str, Any] = {}
    told: dict[str, Any] = {"proposal": None, "violations": [], "conflicts": []}
    for fact in _facts(store, child):
        if fact["what"] == "merge":
            changes |= {change["path"]: change for change in fact["changes"]}
            told["proposal"] = fact["proposal"] or None
        elif fact["what"] == "apply":
            told["proposal"] = None
        elif fact["what"] in ("violation", "conflict"):
            told[f"{fact['what']}s"] = fact["paths"]
    return {"changes": list(changes.values()) if alone else None, **told}


def child_changes(project: Project, child: Child, opened: Opened) -> list[StepChanges]:
    """The same with patches, as far as there are any, in the words in which runs tell it."""
    spaces = project.isolation.spaces if project.isolation.is_used else None
    kept = None if spaces is None else spaces.remains.peek(child.session_id)
    if kept is not None and child.status not in (QUEUED, RUNNING):
        changes = [{"path": one.path, "kind": one.kind} for one in kept.changes]
        return [_row(child, KEPT, changes, patch=kept.patch, workspace=kept.folder, why=kept.why)]
    said = changed(project.store, child, opened)
    changes, proposal = said["changes"] or [], said["proposal"]
    if proposal is not None:
        patch = _patch(spaces, proposal)
        state = PROPOSED if patch is not None else GONE
        return [_row(child, state, changes, patch=patch, proposal=proposal)]
    if not changes or opened.settings.merge == "discard":
        return []
    return [_row(child, APPLIED if opened.settings.merge == "propose" else MERGED, changes)]


async def apply_child(project: Project, supervisor: Supervisor, child_id: str, by: str) -> None:
    """Put what a child proposed into the project, all of it or nothing, and into its log that it was done."""
    child = supervisor.children.find(child_id)
    if child.status in (QUEUED, RUNNING):
        raise WorldError("subagent.busy", f"{child_id} is {child.status}", hint="wait for it first")
    spaces = project.isolation.spaces
    proposal = await asyncio.to_thread(find_proposal, spaces, child)
    merged = await asyncio.to_thread(lambda: spaces.apply(proposal, drop=False))
    if merged.conflicts:
        raise conflicting(child_id, merged)
    opened = read_opened(project.store, child.session_id)
    log = supervisor.children.above.child_log(child, opened.root_id)
    fact = {"what": "apply", "proposal": proposal, "changes": put(merged), "by": by}
    log.append_evidence("workspace_event", {**fact, "attempt": child.attempt, "execution": child.execution})
    await asyncio.to_thread(spaces.reject, proposal)


def was_applied(store: Store, child: Child) -> dict[str, Any] | None:
    """The fact that what a child proposed in its last turn is in the project, if it is."""
    return next((fact for fact in _facts(store, child) if fact["what"] == "apply"), None)


def find_proposal(spaces: Workspaces, child: Child) -> str:
    """The proposal of a child that waits; raises NotFoundError without one."""
    for one in spaces.proposals():
        if one.session == child.session_id:
            return one.id
    message = f"{child.subagent_id} is {child.status} and proposes nothing that is not applied yet"
    raise NotFoundError("changes.none", message, hint="spawn --merge propose lets a subagent propose")


def put(merged: Merged) -> list[dict[str, Any]]:
    """What was written or removed in the project."""
    kinds = {change.path: change.kind for change in merged.changes}
    return [{"path": path, "kind": kinds.get(path, "modified")} for path in merged.applied]


def conflicting(child_id: str, merged: Merged) -> WorldError:
    """What a child proposed contradicts the project as it is now."""
    rows = merged.conflicts
    named = ", ".join(f"{one.path} ({who_changed(one)})" for one in rows[:MAX_SAID])
    more = f" and {len(rows) - MAX_SAID} more" if len(rows) > MAX_SAID else ""
    return WorldError(
        "workspace.conflict",
        f"{child_id} does not go together with the project: {named}{more}; nothing was changed",
        hint=f"fanfold diff {child_id} shows what it proposes; put one of the sides right and apply again",
        details={"conflicts": [msgspec.to_builtins(one) for one in rows]},
    )


def _facts(store: Store, child: Child) -> list[dict[str, Any]]:
    facts = read_evidence(store, child.session_id, "workspace_event")
    return [fact for fact in facts if fact["attempt"] == child.attempt]


def _patch(spaces: Workspaces | None, proposal: str) -> str | None:
    try:
        return None if spaces is None else spaces.diff(proposal)
    except NotFoundError:
        return None


def _row(child: Child, state: str, changes: list[dict[str, Any]], **rest: Any) -> StepChanges:
    paths = [ChangedPath(one["path"], one["kind"]) for one in changes]
    return StepChanges(path=child.subagent_id, state=state, changes=paths, **rest)
