"""Taking merges back: the project's files as they were before a step, or a whole run, changed them.

Rules
* Not while the run lives: its steps rely on the files.
* By hash, newest merge first, all of it or nothing. Files that anybody changed since stay as they are, are
  named with who changed them, and nothing else is touched either.
* Safe to repeat. That it was done is remembered with the files; then the log of the run is told. Dying
  anywhere in between loses nothing, and doing it again undoes nothing twice.
* What steps wrote in the project itself (`workspace_mode: shared`) was never merged and has no way back here.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from fanfold.errors import AuthorError, NotFoundError, WorldError
from fanfold.kernel.lifecycle import PAUSED, RUN_TERMINAL, TERMINAL
from fanfold.kernel.nodes import Composite, Node
from fanfold.runtime.hosting.requests import UndoneRequest, is_undone, this_person
from fanfold.runtime.hosting.run_tree import RunTree, run_status
from fanfold.runtime.operations.addresses import Addressed, find_run
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.files.changes import (
    MAX_SAID,
    leaves_below,
    record,
    shown_path,
    spaces_of,
)
from fanfold.runtime.records.evidence import ChangedPath
from fanfold.runtime.views.runs.changes import Undone, UndoneStep

if TYPE_CHECKING:
    from fanfold.workspace.merges.receipts import Blocked, Reversal
    from fanfold.workspace.merges.revision import Revised


_OPPOSITE = {"added": "deleted", "deleted": "added"}


class _Merged(Struct, frozen=True):
    """What was merged of a step: at its end, or by the calls of a lead one after the other."""

    node: Node
    receipts: dict[str, int]
    """Each with its time, oldest first."""
    changes: list[ChangedPath]

    @property
    def last_ns(self) -> int:
        return max(self.receipts.values())


async def undo(project: Project, run: str, step: str | None = None, *, dry_run: bool = False) -> Undone:
    """Put back what was there before a run, or one step of it, was merged, and record it.

    Raises `NotFoundError` when nothing was merged, and `WorldError` with code `changes.changed_since` when
    somebody changed the files since. A dry run changes nothing.
    """
    found = find_run(project, run)
    top = None if step is None else found.step(step)
    _check_over(found, top)
    merges = _merges(project, found, top)
    if not merges:
        raise _nothing(found, top)
    spaces = spaces_of(project)
    assert spaces is not None, "what has a receipt was merged"
    recorded = {id(one.node) for one in merges if is_undone(found.tree, one.node.run.id, one.node.path)}
    times = {receipt: at for one in merges for receipt, at in one.receipts.items()}
    newest_first = sorted(times, key=lambda receipt: times[receipt], reverse=True)
    before = {receipt for receipt in newest_first if spaces.is_taken_back(receipt)}
    reversal = spaces.undo(newest_first, dry_run=dry_run)
    if reversal.blocked:
        open_ones = [one for one in merges if id(one.node) not in recorded] if top is None else []
        free = (one.node for one in open_ones if not spaces.undo(list(one.receipts), dry_run=True).blocked)
        raise _blocked(project, found, reversal.blocked, next(free, None))
    changes = [ChangedPath(one.path, _kind(one)) for one in reversal.steps]
    back = {id(one.node): _taken_back(one, reversal, before) for one in merges}
    if not dry_run:
        for one in merges:
            if id(one.node) not in recorded:
                last = list(one.receipts)[-1]
                done = UndoneRequest(one.node.path, last, back[id(one.node)], this_person())
                await record(project, project.resolve(one.node.run.id), done)
    steps = [
        UndoneStep(
            path=shown_path(found.run, one.node), changes=one.changes, already=id(one.node) in recorded
        )
        for one in merges
    ]
    return Undone(run_id=found.run.id, dry_run=dry_run, steps=steps, changes=changes)


def _check_over(found: Addressed, top: Node | None) -> None:
    tree, root = found.tree, found.tree.root
    if root.plan.open:  # it never ends by itself; its subagents do
        asked = list(leaves_below(tree, found.run, top))
        live = next((node for node in asked if node.status not in TERMINAL), None)
        if live is not None:
            message = f"{live.path} is {live.status}: what it merged may still be needed"
            raise AuthorError("run.not_over", message, hint=f"fanfold wait {shlex.quote(live.path)}")
        return
    status = run_status(tree.state, root)
    if status not in RUN_TERMINAL:
        hint = f"fanfold cancel {root.id} ends it; what it merged can be taken back then"
        if status == PAUSED:
            hint = f"fanfold resume {root.id} goes on with it; {hint}"
        raise AuthorError(
            "run.not_over", f"run {root.id} is {status}: its steps rely on the files", hint=hint
        )


def _merges(project: Project, found: Addressed, top: Node | None) -> list[_Merged]:
    """What was merged and is not known to be cleared away, newest first."""
    tree = found.tree
    known: list[_Merged] = []
    spaces = spaces_of(project)
    for node in leaves_below(tree, found.run, top):
        receipts = tree.memory.receipts.get((node.run.id, node.path))
        if not receipts or spaces is None:
            continue
        try:
            times = {receipt: spaces.receipt(receipt).merged_ns for receipt in receipts}
        except NotFoundError:
            continue
        rows = [row for row in tree.memory.changes.get(node.run.id, []) if row.step == node.path]
        known.append(_Merged(node, times, [ChangedPath(row.path, row.kind) for row in rows]))
    return sorted(known, key=lambda one: one.last_ns, reverse=True)


def _kind(step: Revised) -> str:
    if step.before is None:
        return "added"
    return "deleted" if step.after is None else "modified"


def _taken_back(merge: _Merged, reversal: Reversal, before: set[str]) -> list[ChangedPath]:
    """What the undoing of one step did, for its record; with the receipts in `before` somebody did it who was
    cut short before it was recorded.
    """
    if before.issuperset(merge.receipts):
        return [ChangedPath(one.path, _OPPOSITE.get(one.kind, one.kind)) for one in merge.changes]
    own = {change.path for change in merge.changes}
    return [ChangedPath(step.path, _kind(step)) for step in reversal.steps if step.path in own]


def _nothing(found: Addressed, top: Node | None) -> NotFoundError:
    run, tree = found.run.id, found.tree
    rows = [row for other in tree.memory.changes.values() for row in other]
    if any(row.state == "proposed" for row in rows):
        hint = f"what waits is not merged yet: fanfold diff {run} shows it"
    elif any(row.state in ("merged", "applied") for row in rows):
        hint = "what was there before is not known any more: gc may have cleared it away"
    else:
        hint = f"fanfold diff {run} shows what its steps changed"
    whose = f"run {run}" if top is None else shown_path(found.run, top)
    if top is not None and not isinstance(top, Composite) and top.step.workspace_mode == "shared":
        hint = "it works in the project itself, so there was no merge to take back"
    return NotFoundError("changes.none", f"nothing of {whose} was merged that could be taken back", hint=hint)


def _blocked(project: Project, found: Addressed, blocked: Sequence[Blocked], free: Node | None) -> WorldError:
    """What stands in the way of undoing; `free` is the latest step that can be taken back by itself."""
    rows = [{"path": one.path, "by": _whose(project, found.tree, one.by)} for one in blocked]
    named = ", ".join(f"{row['path']} ({row['by'] or 'changed since'})" for row in rows[:MAX_SAID])
    more = f" and {len(rows) - MAX_SAID} more" if len(rows) > MAX_SAID else ""
    later = next((row["by"] for row in rows if row["by"]), "")
    run = found.run.id
    hint = f"fanfold diff {run} shows what was merged; put it right by hand"
    if later:
        other, _, step = later.partition(" ")
        hint = f"take that back first: fanfold undo {other} {shlex.quote(step)}"
    if free is not None:
        step = shlex.quote(shown_path(found.run, free))
        hint = f"step by step, what nobody changed can be taken back: fanfold undo {run} {step}; {hint}"
    return WorldError(
        "changes.changed_since",
        f"somebody changed what was merged: {named}{more}; nothing was taken back",
        hint=hint,
        details={"changed": rows},
    )


def _whose(project: Project, tree: RunTree, receipt: str) -> str:
    """The run and step that a later merge belongs to; empty when it is not known."""
    spaces = spaces_of(project) if receipt else None
    if spaces is None:
        return ""
    origin = spaces.receipt(receipt).origin
    try:
        other = tree if origin == tree.root.id else project.view(origin)
    except NotFoundError:
        return ""
    for (run, step), known in other.memory.receipts.items():
        if receipt in known:
            return f"{other.root.id} {other.state.runs[run].tree_path(step)}"
    return ""
