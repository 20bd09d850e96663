"""What steps changed: what is merged, what is proposed and waits, what a failed step left in its workspace.

Rules
* The log says what was merged and proposed. A patch is there as long as the proposal, or the workspace, is.
* Applying a proposal is safe to repeat. The merge itself remembers that it was done; then the log of the run
  is told, also when the run has ended; and only then is the proposal dropped. So dying anywhere in between
  loses nothing, and doing it again merges nothing twice.
* Whoever drives the run writes its log. When nobody does, the lease is taken for a moment.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from fanfold.errors import NotFoundError, WorldError
from fanfold.kernel.lifecycle import UNSUCCESSFUL
from fanfold.kernel.nodes import Composite, Node, Run
from fanfold.runtime.hosting.host import now_ms
from fanfold.runtime.hosting.requests import is_applied, note_applied, this_person
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.operations.project import Project
from fanfold.runtime.records.ids import session_id, settling_ids
from fanfold.store.protocol import LeaseHeld, RunHead

if TYPE_CHECKING:
    from fanfold.workspace.merges.merge import Conflict
    from fanfold.workspace.merges.results import Merged
    from fanfold.workspace.workspaces import Workspaces

PATIENCE_S = 60.0
PERIOD_S = 0.05
MAX_SAID = 5

MERGED, PROPOSED, APPLIED, GONE, KEPT = "merged", "proposed", "applied", "gone", "kept"
LEFT_OUT = "left_out"


class StepChanges(Struct, frozen=True, kw_only=True):
    """What one step changed. `path` is relative to the run that was asked about."""

    path: str
    state: str
    """merged, proposed, applied, gone (a proposal that nobody has any more), kept, or left_out (nothing but
    ignored files)."""
    changes: list[dict[str, Any]]
    patch: str | None = None
    """None where the log is all that is left."""
    proposal: str | None = None
    workspace: str | None = None
    """Where a failed step left its files."""
    why: str = ""
    left_out: list[str] = []
    """The first of the new files that stayed behind because the project ignores them."""
    left_out_count: int = 0


class Applied(Struct, frozen=True, kw_only=True):
    """What applying a proposal changed in the project, or would change."""

    path: str
    proposal: str
    changes: list[dict[str, Any]]
    already: bool = False
    """It was applied before."""


# Looking


def step_changes(project: Project, tree: RunTree, run: Run, top: Node | None = None) -> list[StepChanges]:
    """What the steps of a run and of the runs below it changed, or only those in `top`."""
    spaces = _spaces(project)
    return [found for node in _leaves(tree, run, top) for found in _of_node(spaces, tree, run, node)]


def _spaces(project: Project) -> Workspaces | None:
    """The project's workspaces; None where no step ever had one."""
    try:
        return project.isolation.spaces if project.isolation.is_used else None
    except OSError as error:
        message = f"the workspaces of {project.folder} cannot be opened: {error.strerror or error}"
        raise WorldError("workspace.own_folder", message, hint="its .fanfold must be writable") from error


def _leaves(tree: RunTree, run: Run, top: Node | None) -> Iterator[Node]:
    wanted: Node = top if top is not None else run.scope
    for other in tree.state.runs.values():
        for node in other.nodes.values():
            if not isinstance(node, Composite) and (node is wanted or _is_inside(node, wanted)):
                yield node


def _is_inside(node: Node, scope: Node) -> bool:
    above = node.parent
    while above is not None and above is not scope:
        above = above.parent
    return above is scope


def _of_node(spaces: Workspaces | None, tree: RunTree, run: Run, node: Node) -> Iterator[StepChanges]:
    path = _shown(run, node)
    rows = [row for row in tree.memory.changes.get(node.run.id, []) if row["step"] == node.path]
    count, left = tree.memory.left_out.get((node.run.id, node.path), (0, []))
    if rows:
        changes = [{"path": row["path"], "kind": row["kind"]} for row in rows]
        state, proposal, patch = rows[0]["state"], rows[0]["proposal"], None
        if state == PROPOSED:
            patch = _patch(spaces, proposal)
            state = state if patch is not None else GONE
        yield StepChanges(
            path=path,
            state=state,
            changes=changes,
            patch=patch,
            proposal=proposal,
            left_out=left,
            left_out_count=count,
        )
    elif count and node.status not in UNSUCCESSFUL:
        yield StepChanges(path=path, state=LEFT_OUT, changes=[], left_out=left, left_out_count=count)
    elif spaces is not None and node.status in UNSUCCESSFUL and node.step.workspace_mode == "isolated":
        session = session_id(node.run.id, node.path, node.attempt)
        yield from _kept(spaces, path, session)
        for settling in settling_ids(session):
            yield from _kept(spaces, f"{path}/resolve", settling)


def _kept(spaces: Workspaces, path: str, session: str) -> Iterator[StepChanges]:
    kept = spaces.remains.peek(session)
    if kept is not None and kept.changes:
        changes = [{"path": change.path, "kind": change.kind} for change in kept.changes]
        yield StepChanges(
            path=path, state=KEPT, changes=changes, patch=kept.patch, workspace=kept.folder, why=kept.why
        )


def _patch(spaces: Workspaces | None, proposal: str) -> str | None:
    try:
        return spaces.diff(proposal) if spaces is not None else None
    except NotFoundError:
        return None


def _shown(run: Run, node: Node) -> str:
    """A step's path as one names it when asking about this run."""
    path = node.run.tree_path(node.path)
    return path.removeprefix(f"{run.path}/") if run.path else path


# Applying


def apply_proposal(
    project: Project, tree: RunTree, head: RunHead, node: Node, *, dry_run: bool = False
) -> Applied:
    """Merge what a step proposed into the project as it is now, and record it; a dry run changes nothing.

    Raises `NotFoundError` when nothing waits, and `WorldError` with code `workspace.conflict` and the
    conflicts as details when it does not go together with the project.
    """
    path = _shown(tree.state.runs[head.run_id], node)
    rows = [row for row in tree.memory.changes.get(node.run.id, []) if row["step"] == node.path]
    proposal = next((row["proposal"] for row in rows if row["proposal"]), None)
    if proposal is None:
        raise _nothing_waits(path, node, bool(rows))
    spaces = _spaces(project)
    if is_applied(tree, node.run.id, proposal):
        if not dry_run:
            _drop(spaces, proposal)
        changes = [{"path": row["path"], "kind": row["kind"]} for row in rows]
        return Applied(path=path, proposal=proposal, changes=changes, already=True)
    merged = _merge(spaces, proposal, path, dry_run)
    if merged.conflicts:
        raise _conflicting(path, merged.conflicts, head.run_id)
    changes = _as_put(merged)
    if not dry_run:
        told = {"what": "apply", "step": node.path, "proposal": proposal, "changes": changes}
        _record(project, project.resolve(node.run.id), {**told, "by": this_person()})
        _drop(spaces, proposal)
    return Applied(path=path, proposal=proposal, changes=changes)


def _merge(spaces: Workspaces | None, proposal: str, path: str, dry_run: bool) -> Merged:
    try:
        if spaces is not None:
            return spaces.apply(proposal, dry_run=dry_run, drop=False)
    except NotFoundError:
        pass
    message = f"{path} proposed changes, but nobody has them any more"
    raise NotFoundError("changes.gone", message, hint="fanfold fork runs the step again")


def _as_put(merged: Merged) -> list[dict[str, Any]]:
    """What was written or removed; a file that moved meanwhile is followed to where it is now."""
    kinds = {change.path: change.kind for change in merged.changes}
    return [{"path": path, "kind": kinds.get(path, "modified")} for path in merged.applied]


def _drop(spaces: Workspaces | None, proposal: str) -> None:
    try:
        if spaces is not None:
            spaces.reject(proposal)
    except NotFoundError:
        pass  # somebody else was first


def _nothing_waits(path: str, node: Node, merged: bool) -> NotFoundError:
    if isinstance(node, Composite):
        why, hint = f"{path} holds other steps", "name one of them: fanfold diff RUN lists those that wait"
    elif merged:
        why, hint = f"the changes of {path} were merged when it ended", ""
    else:
        why, hint = f"{path} is {node.status} and proposes nothing", "`merge: propose` lets a step propose"
    return NotFoundError("changes.none", why, hint=hint)


def _conflicting(path: str, conflicts: tuple[Conflict, ...], run: str) -> WorldError:
    named = ", ".join(f"{one.path} ({who_changed(one)})" for one in conflicts[:MAX_SAID])
    more = f" and {len(conflicts) - MAX_SAID} more" if len(conflicts) > MAX_SAID else ""
    rows = [{**msgspec.to_builtins(one), "sides": who_changed(one)} for one in conflicts]
    return WorldError(
        "workspace.conflict",
        f"{path} does not go together with the project: {named}{more}; nothing was changed",
        hint=f"fanfold diff {run} {path} shows what it proposes; put one of the sides right and apply again",
        details={"conflicts": rows},
    )


def who_changed(conflict: Conflict) -> str:
    """Which side did what, in words."""
    if conflict.why == "CONFLICT (in the way)":
        return "something else is in the way"
    if conflict.why == "CONFLICT (outside write_set)":
        return "moved in the project to where the step may not write"
    if conflict.base is None:
        return "added on both sides"
    if conflict.ours is None:
        return "deleted in the project, changed by the step"
    if conflict.theirs is None:
        return "changed in the project, deleted by the step"
    return "changed on both sides"


def _record(project: Project, head: RunHead, told: dict[str, Any]) -> None:
    """Have it in the log of the run: by its owner, or here when nobody owns it."""
    number: int | None = None
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            tree = project.own(head.root_run_id)
        except LeaseHeld:
            if number is None:
                number = project.ask(head, "applied", told)
            elif all(request.id != number for request in project.store.requests(head.root_run_id)):
                return
            time.sleep(PERIOD_S)
            continue
        try:
            note_applied(tree, head.run_id, told, now_ms())
            tree.requests_done += [] if number is None else [number]
            tree.commit()
        finally:
            project.done(tree)
        return
    raise WorldError(
        "run.busy",
        f"the changes are in the project, but the process that drives run {head.root_run_id} has not"
        f" recorded it within {PATIENCE_S:g} s",
        hint="apply again when it has ended: nothing is merged twice",
    )
