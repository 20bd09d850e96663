"""What steps changed: what is merged, what is proposed and waits, what a failed step left in its workspace.

Rules
* The log says what was merged and proposed. A patch is there as long as the proposal, or the workspace, is.
* Applying a proposal is safe to repeat. The merge itself remembers that it was done; then the log of the run
  is told, also when the run has ended; and only then is the proposal dropped. So dying anywhere in between
  loses nothing, and doing it again merges nothing twice.
* Whoever drives the run writes its log. When nobody does, the lease is taken for a moment; also of a run that
  has ended.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec import structs

from fanfold.errors import NotFoundError, WorldError
from fanfold.kernel.lifecycle import UNSUCCESSFUL
from fanfold.kernel.nodes import Composite, Node, Run
from fanfold.runtime.hosting.requests import (
    AppliedRequest,
    UndoneRequest,
    is_applied,
    note_applied,
    note_undone,
    this_person,
)
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.operations.addresses import find_run
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.control import PATIENCE_S, leave, until_taken
from fanfold.runtime.operations.runs.ownership import own
from fanfold.runtime.records.evidence import ChangedPath
from fanfold.runtime.records.ids import root_of, session_id, settling_ids, typed_path
from fanfold.runtime.records.subagents import home_of, turn_before
from fanfold.runtime.views.items import item_around
from fanfold.runtime.views.runs.changes import Applied, RunChanges, StepChanges
from fanfold.store.protocol import LeaseHeld, RunHead, StoreFault

if TYPE_CHECKING:
    from fanfold.workspace.merges.merge import MergeConflict, Merged
    from fanfold.workspace.workspaces import Workspaces


MAX_SAID = 5

MERGED, PROPOSED, APPLIED, GONE, KEPT = "merged", "proposed", "applied", "gone", "kept"
LEFT_OUT = "left_out"
Done: TypeAlias = AppliedRequest | UndoneRequest


# Looking


def diff(project: Project, run: str, step: str | None = None, at: int | None = None) -> RunChanges:
    """What the steps of a run and of the runs below it changed, or only one step and what is in it; with
    `at` up to an event of the tree.
    """
    found = find_run(project, run, at)
    top = None if step is None else found.step(step)
    spaces = spaces_of(project)
    leaves = leaves_below(found.tree, found.run, top)
    steps = [
        structs.replace(one, item=item_around(found.tree, node))
        for node in leaves
        for one in _of_node(spaces, found.tree, found.run, node)
    ]
    if top is not None and not steps:
        raise NotFoundError("changes.none", f"{step} is {top.status}, and nothing that it changed is there")
    return RunChanges(found.run.id, steps)


def spaces_of(project: Project) -> Workspaces | None:
    """The project's workspaces; None where no step ever had one."""
    try:
        return project.isolation.spaces if project.isolation.is_used else None
    except OSError as error:
        message = f"the workspaces of {project.folder} cannot be opened: {error.strerror or error}"
        raise WorldError("workspace.own_folder", message, hint="its .fanfold must be writable") from error


def has_left_work(folder: Path, node: Node) -> bool:
    """Whether a failed step left a workspace in which it changed something; `folder` is the project's."""
    if node.step.workspace_mode != "isolated" or not node.write_set:
        return False
    own = folder / ".fanfold" / "subagents" / session_id(node.run.id, node.path, node.attempt)
    try:
        return next((own / "upper").iterdir(), None) is not None
    except OSError:
        return (own / "copied").exists()  # a copy, which nobody compares just to say this


def leaves_below(tree: RunTree, run: Run, top: Node | None) -> Iterator[Node]:
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
    path = shown_path(run, node)
    rows = [row for row in tree.memory.changes.get(node.run.id, []) if row.step == node.path]
    behind = tree.memory.left_out.get((node.run.id, node.path))
    count, left = (behind.count, list(behind.paths)) if behind is not None else (0, [])
    if rows:
        changes = [ChangedPath(row.path, row.kind) for row in rows]
        state, proposal = rows[0].state, rows[0].proposal
        if state == PROPOSED and proposal is not None:
            patch = _patch(spaces, proposal)
            state = state if patch is not None else GONE
        else:
            patch = _patch_of_merge(spaces, tree.memory.receipts.get((node.run.id, node.path), []))
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
        if not _goes_on(node):
            yield from _kept(spaces, path, home_of(node, max(1, node.attempt)))
        for settling in settling_ids(session):
            yield from _kept(spaces, f"{path}/resolve", settling)


def _goes_on(node: Node) -> bool:
    """Whether a later turn works, or worked, in what this one left: then it is that one's to tell."""
    return any(turn_before(turn) is node and turn.attempt for turn in node.dependents)


def _kept(spaces: Workspaces, path: str, session: str) -> Iterator[StepChanges]:
    kept = spaces.remains.peek(session)
    if kept is not None and kept.changes:
        changes = [ChangedPath(change.path, change.kind) for change in kept.changes]
        yield StepChanges(
            path=path, state=KEPT, changes=changes, patch=kept.patch, workspace=kept.folder, why=kept.why
        )


def _patch(spaces: Workspaces | None, proposal: str) -> str | None:
    try:
        return spaces.diff(proposal) if spaces is not None else None
    except NotFoundError:
        return None


def _patch_of_merge(spaces: Workspaces | None, receipts: Sequence[str]) -> str | None:
    if spaces is None or not receipts:
        return None
    try:
        return "".join(spaces.diff_merged(receipt) for receipt in receipts)
    except NotFoundError:
        return None  # cleared away: the log is all that is left


def shown_path(run: Run, node: Node) -> str:
    """A step's path as one names it when asking about this run."""
    path = node.run.tree_path(node.path)
    return path.removeprefix(f"{run.path}/") if run.path else path


# Applying


async def apply(project: Project, run: str, step: str, *, dry_run: bool = False) -> Applied:
    """Merge what a step proposed into the project as it is now, and record it; a dry run changes nothing.

    Raises `NotFoundError` when nothing waits, and `WorldError` with code `workspace.conflict` and the
    conflicts as details when it does not go together with the project.
    """
    found = find_run(project, run)
    tree, node = found.tree, found.step(step)
    path = shown_path(found.run, node)
    rows = [row for row in tree.memory.changes.get(node.run.id, []) if row.step == node.path]
    proposal = next((row.proposal for row in rows if row.proposal), None)
    if proposal is None:
        raise _nothing_waits(path, node, bool(rows))
    spaces = spaces_of(project)
    if is_applied(tree, node.run.id, proposal):
        if not dry_run:
            _drop(spaces, proposal)
        changes = [ChangedPath(row.path, row.kind) for row in rows]
        return Applied(
            run_id=found.run.id, step=path, proposal=proposal, dry_run=dry_run, already=True, changes=changes
        )
    merged = _merge(spaces, proposal, node, dry_run)
    if merged.conflicts:
        raise _conflicting(path, merged.conflicts, found.run.id)
    changes = _as_put(merged)
    if not dry_run:
        applied = AppliedRequest(node.path, proposal, changes, this_person(), merged.receipt)
        await record(project, project.resolve(node.run.id), applied)
        _drop(spaces, proposal)
    return Applied(run_id=found.run.id, step=path, proposal=proposal, dry_run=dry_run, changes=changes)


def _merge(spaces: Workspaces | None, proposal: str, node: Node, dry_run: bool) -> Merged:
    try:
        if spaces is not None:
            return spaces.apply(proposal, dry_run=dry_run, drop=False)
    except NotFoundError:
        pass
    path = node.run.tree_path(node.path)
    message = f"{path} proposed changes, but nobody has them any more"
    hint = f"fanfold fork {root_of(node)} --from {typed_path(node)} runs the step again"
    raise NotFoundError("changes.gone", message, hint=hint)


def _as_put(merged: Merged) -> list[ChangedPath]:
    """What was written or removed; a file that moved meanwhile is followed to where it is now."""
    kinds = {change.path: change.kind for change in merged.changes}
    return [ChangedPath(path, kinds.get(path, "modified")) for path in merged.applied]


def _drop(spaces: Workspaces | None, proposal: str) -> None:
    try:
        if spaces is not None:
            spaces.reject(proposal)
    except NotFoundError:
        pass  # somebody else was first


def _nothing_waits(path: str, node: Node, merged: bool) -> NotFoundError:
    if isinstance(node, Composite):
        why, hint = (
            f"{path} holds other steps",
            f"name one of them: fanfold diff {root_of(node)} lists those that wait",
        )
    elif merged:
        back = f"fanfold undo {root_of(node)} {typed_path(node)}"
        why, hint = f"the changes of {path} were merged when it ended", f"{back} takes them back"
    else:
        why, hint = f"{path} is {node.status} and proposes nothing", "`merge: propose` lets a step propose"
    return NotFoundError("changes.none", why, hint=hint)


def _conflicting(path: str, conflicts: tuple[MergeConflict, ...], run: str) -> WorldError:
    named = ", ".join(f"{one.path} ({who_changed(one)})" for one in conflicts[:MAX_SAID])
    more = f" and {len(conflicts) - MAX_SAID} more" if len(conflicts) > MAX_SAID else ""
    rows = [{**msgspec.to_builtins(one), "sides": who_changed(one)} for one in conflicts]
    return WorldError(
        "workspace.conflict",
        f"{path} does not go together with the project: {named}{more}; nothing was changed",
        hint=f"fanfold diff {run} {shlex.quote(path)} shows what it proposes;"
        " put one of the sides right and apply again",
        details={"conflicts": rows},
    )


def who_changed(conflict: MergeConflict) -> str:
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


async def record(project: Project, head: RunHead, done: Done) -> None:
    """Have it in the log of the run: by its owner, or here when nobody owns it."""
    try:
        await _record(project, head, done)
    except StoreFault as fault:
        fault.hint = f"{fault.hint}; then say it again: the files are as asked, only the log does not say so"
        raise


async def _record(project: Project, head: RunHead, done: Done) -> None:
    root = head.root_run_id
    number: int | None = None
    while True:
        try:
            owned = own(project, root, goes_on=False)
        except LeaseHeld:
            number = leave(project, head, done) if number is None else number
            taken = await until_taken(project, root, number)
            if taken:
                return
            if taken is None:
                raise _unrecorded(root) from None
            continue
        try:
            now = owned.tree.now_ms()
            if isinstance(done, AppliedRequest):
                note_applied(owned.tree, head.run_id, done, now)
            else:
                note_undone(owned.tree, head.run_id, done, now)
            owned.tree.requests_done += [] if number is None else [number]
            owned.tree.commit()
        finally:
            owned.done()
        return


def _unrecorded(root: str) -> WorldError:
    return WorldError(
        "run.busy",
        f"the files of the project are as asked, but the process that drives run {root} has not recorded it"
        f" within {PATIENCE_S:g} s",
        hint="say it again when it has ended: nothing is done twice",
    )
