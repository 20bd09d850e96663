"""File changes of steps: merged changes, open proposals, and files that a failed step left in its workspace.

Rules
* The log records merges and proposals. A patch exists as long as the proposal, or the workspace, exists.
* Applying a proposal is safe to repeat. First the merge stores that it was done; then the log of the run
  records it, also for a finished run; then the proposal is dropped. A crash in between loses nothing, and a
  repetition merges nothing twice.
* The owner of the run writes its log. If a run has no owner, the lease is acquired for a moment, also for a
  finished run.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec import Struct, structs

from fanfold.api.approvals import item_around
from fanfold.api.display import first_of
from fanfold.api.history import ResolvedRun, find_run, is_inside
from fanfold.api.ownership import OwnedRun, frozen_at_first, own
from fanfold.api.project import Project
from fanfold.api.run_documents import (
    ApplyResult,
    ArtifactList,
    PublishedFile,
    PulledChanges,
    RunChanges,
    StepChanges,
    Undone,
    UndoneStep,
    artifacts_below,
    artifacts_of,
)
from fanfold.api.run_handle import PATIENCE_S, leave, until_handled
from fanfold.engine import requests
from fanfold.engine.run_tree import RunTree, run_status
from fanfold.engine.run_trees import RunTrees, open_objects, store_snapshot, trees_folder
from fanfold.errors import AuthorError, NotFoundError, WorldError
from fanfold.kernel.state import PAUSED, RUN_TERMINAL, TERMINAL, UNSUCCESSFUL, Composite, Node, Run
from fanfold.project_files import write_whole
from fanfold.steps.ids import root_of, session_id, settling_ids, typed_path
from fanfold.steps.records import ChangedPath, RunTreeStored, home_of, turn_before
from fanfold.store.address import PostgresAddress
from fanfold.store.journal import Journal
from fanfold.store.protocol import LeaseHeld, RunHead, Store, StoreFault
from fanfold.workspace.artifacts import Artifact, is_whole, open_published, write_published
from fanfold.workspace.layout import make_folder, read_kept

if TYPE_CHECKING:
    from fanfold.workspace.merge import MergeConflict, MergeResult, PathRevision
    from fanfold.workspace.receipts import BlockedPath, Reversal
    from fanfold.workspace.workspaces import Workspaces

MAX_SAID = 5

MERGED, PROPOSED, APPLIED, GONE, KEPT = "merged", "proposed", "applied", "gone", "kept"
LEFT_OUT = "left_out"
Done: TypeAlias = requests.AppliedRequest | requests.UndoneRequest


# Reading


def diff(project: Project, run: str, step: str | None = None, at: int | None = None) -> RunChanges:
    """Return the file changes of a run with the runs below it, or of one step; `at`: up to that event."""
    found = find_run(project, run, at)
    top = None if step is None else found.step(step)
    spaces = spaces_of(project)
    leaves = leaves_below(found.tree, found.run, top)
    steps = [
        structs.replace(_with_patch(project, found.tree, node, one), item=item_around(found.tree, node))
        for node in leaves
        for one in _of_node(spaces, found.tree, found.run, node)
    ]
    if top is not None and not steps:
        raise NotFoundError("changes.none", f"{step} is {top.status}, and its changes no longer exist")
    return RunChanges(found.run.id, steps)


def changes_of_node(project: Project, tree: RunTree, node: Node) -> list[StepChanges]:
    """Return the file changes of one step instance; empty if there are none."""
    found = _of_node(spaces_of(project), tree, node.run, node)
    return [_with_patch(project, tree, node, one) for one in found]


def _with_patch(project: Project, tree: RunTree, node: Node, one: StepChanges) -> StepChanges:
    """The changes of a step with their patch from the tree of the run, if the run has one."""
    if one.patch is not None or not tree.frozen().tree:
        return one
    patch = patch_of(project, node)
    return structs.replace(one, patch=patch, state=PROPOSED if one.state == GONE else one.state)


def spaces_of(project: Project) -> Workspaces | None:
    """Return the project's workspaces; None if no step ever had one."""
    try:
        return project.isolation.spaces if project.isolation.is_used else None
    except OSError as error:
        message = f"the workspaces of {project.folder} cannot be opened: {error.strerror or error}"
        raise WorldError("workspace.own_folder", message, hint="its .fanfold must be writable") from error


def has_left_work(folder: Path, node: Node) -> bool:
    """Whether a failed step left a workspace with changes. `folder` is the project's folder."""
    if node.step.workspace_mode != "isolated" or not node.write_set:
        return False
    own = folder / ".fanfold" / "subagents" / session_id(node.run.id, node.path, node.attempt)
    try:
        return next((own / "upper").iterdir(), None) is not None
    except OSError:
        return (own / "copied").exists()  # a copy: comparing it would cost too much here


def leaves_below(tree: RunTree, run: Run, top: Node | None) -> Iterator[Node]:
    wanted: Node = top if top is not None else run.scope
    for node in tree.nodes():
        if not isinstance(node, Composite) and is_inside(node, wanted):
            yield node


def _of_node(spaces: Workspaces | None, tree: RunTree, run: Run, node: Node) -> Iterator[StepChanges]:
    path = shown_path(run, node)
    rows = tree.memory.changes_of(node.run.id, node.path)
    behind = tree.memory.left_out.get((node.run.id, node.path))
    count, left = (behind.count, list(behind.paths)) if behind is not None else (0, [])
    if rows:
        changes = [ChangedPath(row.path, row.kind) for row in rows]
        state, proposal = rows[0].state, rows[0].proposal
        receipts = tree.memory.receipts.get((node.run.id, node.path), [])
        patch: str | None = None
        with suppress(NotFoundError):  # removed by gc: only the log is left
            if spaces is not None and state == PROPOSED and proposal is not None:
                patch = spaces.diff(proposal)
            elif spaces is not None and receipts:
                patch = "".join(map(spaces.diff_merged, receipts))
        if state == PROPOSED and proposal is not None and patch is None:
            state = GONE
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
        if not any(turn_before(turn) is node and turn.attempt for turn in node.dependents):
            yield from _kept(spaces, path, home_of(node, max(1, node.attempt)))
        for settling in settling_ids(session):
            yield from _kept(spaces, f"{path}/resolve", settling)


def _kept(spaces: Workspaces, path: str, session: str) -> Iterator[StepChanges]:
    kept = spaces.remains.peek(session)
    if kept is not None and kept.changes:
        changes = [ChangedPath(change.path, change.kind) for change in kept.changes]
        yield StepChanges(
            path=path, state=KEPT, changes=changes, patch=kept.patch, workspace=kept.folder, why=kept.why
        )


def shown_path(run: Run, node: Node) -> str:
    """Return a step's path relative to this run."""
    path = node.run.tree_path(node.path)
    return path.removeprefix(f"{run.path}/") if run.path else path


# Applying


async def apply(project: Project, run: str, step: str, *, dry_run: bool = False) -> ApplyResult:
    """Merge the proposal of a step into the project as it is now, and record it.

    A dry run changes nothing. Raises `NotFoundError` if there is no open proposal. Raises `WorldError` with
    code `workspace.conflict`, and the conflicts as details, if the merge has conflicts.
    """
    found = find_run(project, run)
    tree, node = found.tree, found.step(step)
    path = shown_path(found.run, node)
    rows = tree.memory.changes_of(node.run.id, node.path)
    proposal = next((row.proposal for row in rows if row.proposal), None)
    if proposal is None:
        raise _nothing_waits(path, node, bool(rows))
    spaces = spaces_of(project)
    result = ApplyResult(run_id=found.run.id, step=path, proposal=proposal, dry_run=dry_run, changes=[])
    if requests.is_applied(tree, node.run.id, proposal):
        if not dry_run:
            _drop(spaces, proposal)
        before = [ChangedPath(row.path, row.kind) for row in rows]
        return structs.replace(result, already=True, changes=before)
    if tree.frozen().tree:
        fetch_proposal(project, node)
        spaces = project.isolation.spaces
    merged: MergeResult | None = None
    with suppress(NotFoundError):
        merged = None if spaces is None else spaces.apply(proposal, dry_run=dry_run, drop=False)
    if merged is None:
        message = f"{node.run.tree_path(node.path)} proposed changes, which no longer exist"
        hint = f"fanfold fork {root_of(node)} --from {typed_path(node)} runs the step again"
        raise NotFoundError("changes.gone", message, hint=hint)
    if merged.conflicts:
        raise _conflicting(path, merged.conflicts, found.run.id)
    # The written and removed files. A file that was moved in the project has its new path.
    kinds = {change.path: change.kind for change in merged.changes}
    changes = [ChangedPath(file, kinds.get(file, "modified")) for file in merged.applied]
    if not dry_run:
        applied = requests.AppliedRequest(
            node.path, proposal, changes, requests.this_person(), merged.receipt
        )
        await record(project, project.resolve(node.run.id), applied)
        _drop(spaces, proposal)
    return structs.replace(result, changes=changes)


def _drop(spaces: Workspaces | None, proposal: str) -> None:
    with suppress(NotFoundError):  # another process dropped it
        if spaces is not None:
            spaces.reject(proposal)


def _nothing_waits(path: str, node: Node, merged: bool) -> NotFoundError:
    if isinstance(node, Composite):
        why = f"{path} holds other steps"
        hint = f"name one of them: fanfold diff {root_of(node)} lists those that wait"
    elif merged:
        back = f"fanfold undo {root_of(node)} {typed_path(node)}"
        why, hint = f"the changes of {path} were merged when it ended", f"{back} takes them back"
    else:
        why, hint = f"{path} is {node.status} and proposes nothing", "`merge: propose` lets a step propose"
    return NotFoundError("changes.none", why, hint=hint)


def _conflicting(path: str, conflicts: tuple[MergeConflict, ...], run: str) -> WorldError:
    named = first_of([f"{one.path} ({who_changed(one)})" for one in conflicts], MAX_SAID)
    rows = [{**msgspec.to_builtins(one), "sides": who_changed(one)} for one in conflicts]
    return WorldError(
        "workspace.conflict",
        f"{path} conflicts with the project: {named}; nothing was changed",
        hint=f"fanfold diff {run} {shlex.quote(path)} shows what it proposes;"
        " change one of the sides, then apply again",
        details={"conflicts": rows},
    )


def who_changed(conflict: MergeConflict) -> str:
    """Describe which side made which change."""
    if conflict.why == "CONFLICT (in the way)":
        return "another file is in the way"
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
    """Record an applied proposal or an undo in the log: by the owner, or here if the run has no owner."""
    root = head.root_run_id
    number: int | None = None
    owned: OwnedRun | None = None
    try:
        while owned is None:
            try:
                owned = own(project, root, goes_on=False)
            except LeaseHeld:
                number = leave(project, head, done) if number is None else number
                taken = await until_handled(project, root, number)
                if taken:
                    return
                if taken is None:
                    raise WorldError(
                        "run.busy",
                        "the files of the project are changed as requested, but the process that drives run"
                        f" {root} has not recorded it within {PATIENCE_S:g} s",
                        hint="repeat the command when the run has ended: nothing is done twice",
                    ) from None
        try:
            now = owned.tree.now_ms()
            if isinstance(done, requests.AppliedRequest):
                requests.note_applied(owned.tree, head.run_id, done, now)
            else:
                requests.note_undone(owned.tree, head.run_id, done, now)
            owned.tree.requests_done += [] if number is None else [number]
            owned.tree.commit()
        finally:
            owned.done()
    except StoreFault as fault:
        fault.hint = f"{fault.hint}; then say it again: the files are as asked, only the log does not say so"
        raise


# -----------------------------------------------------------------------------------------------------------
# Undo: restore the project's files as they were before the merges of a step or a run
#
# Rules
# * Only for finished runs: running steps rely on the files.
# * By hash, newest merge first, atomically. If a file was changed since, nothing is reverted. The error names
#   these files and the later changes.
# * Safe to repeat. First the receipts store that it was done; then the log of the run records it. A crash in
#   between loses nothing, and a repetition reverts nothing twice.
# * Files that steps wrote in the project itself (`workspace_mode: shared`) were never merged and cannot be
#   reverted here.

_OPPOSITE = {"added": "deleted", "deleted": "added"}


class _StepMerge(Struct, frozen=True):
    """The merges of one step: at its end, or one by one by the tool calls of a lead agent."""

    node: Node
    receipts: dict[str, int]
    """Each receipt with its time, oldest first."""
    changes: list[ChangedPath]

    @property
    def last_ns(self) -> int:
        return max(self.receipts.values())


async def undo(project: Project, run: str, step: str | None = None, *, dry_run: bool = False) -> Undone:
    """Revert the merges of a run, or of one of its steps, and record it.

    Raises `NotFoundError` if nothing was merged, and `WorldError` with code `changes.changed_since` if the
    files were changed since. A dry run changes nothing.
    """
    found = find_run(project, run)
    top = None if step is None else found.step(step)
    _check_over(found, top)
    merges = _merges(project, found, top)
    if not merges:
        raise _nothing(found, top)
    spaces = spaces_of(project)
    assert spaces is not None, "what has a receipt was merged"
    recorded = {
        id(one.node) for one in merges if requests.is_undone(found.tree, one.node.run.id, one.node.path)
    }
    times = {receipt: at for one in merges for receipt, at in one.receipts.items()}
    newest_first = sorted(times, key=lambda receipt: times[receipt], reverse=True)
    before = {receipt for receipt in newest_first if spaces.receipts.is_undone(receipt)}
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
                done = requests.UndoneRequest(one.node.path, last, back[id(one.node)], requests.this_person())
                await record(project, project.resolve(one.node.run.id), done)
    shown = ((one, shown_path(found.run, one.node), id(one.node) in recorded) for one in merges)
    steps = [UndoneStep(path=path, changes=one.changes, already=already) for one, path, already in shown]
    return Undone(run_id=found.run.id, dry_run=dry_run, steps=steps, changes=changes)


def _check_over(found: ResolvedRun, top: Node | None) -> None:
    tree, root = found.tree, found.tree.root
    if root.plan.open:  # an open run never ends by itself, but its subagents do
        asked = list(leaves_below(tree, found.run, top))
        live = next((node for node in asked if node.status not in TERMINAL), None)
        if live is not None:
            message = f"{live.path} is {live.status}: its merges may still be needed"
            raise AuthorError("run.not_over", message, hint=f"fanfold wait {shlex.quote(live.path)}")
        return
    status = run_status(tree.state, root)
    if status not in RUN_TERMINAL:
        hint = f"fanfold cancel {root.id} ends it; its merges can be reverted then"
        if status == PAUSED:
            hint = f"fanfold resume {root.id} continues it; {hint}"
        message = f"run {root.id} is {status}: its steps rely on the files"
        raise AuthorError("run.not_over", message, hint=hint)


def _merges(project: Project, found: ResolvedRun, top: Node | None) -> list[_StepMerge]:
    """Return the merges whose receipts still exist, newest first."""
    tree = found.tree
    known: list[_StepMerge] = []
    spaces = spaces_of(project)
    for node in leaves_below(tree, found.run, top):
        receipts = tree.memory.receipts.get((node.run.id, node.path))
        if not receipts or spaces is None:
            continue
        try:
            times = {receipt: spaces.receipts.get(receipt).merged_ns for receipt in receipts}
        except NotFoundError:
            continue
        rows = tree.memory.changes_of(node.run.id, node.path)
        known.append(_StepMerge(node, times, [ChangedPath(row.path, row.kind) for row in rows]))
    return sorted(known, key=lambda one: one.last_ns, reverse=True)


def _kind(step: PathRevision) -> str:
    if step.before is None:
        return "added"
    return "deleted" if step.after is None else "modified"


def _taken_back(merge: _StepMerge, reversal: Reversal, before: set[str]) -> list[ChangedPath]:
    """Return the changes of undoing one step, for its record.

    `before` are receipts that an earlier undo reverted, but was interrupted before it recorded that.
    """
    if before.issuperset(merge.receipts):
        return [ChangedPath(one.path, _OPPOSITE.get(one.kind, one.kind)) for one in merge.changes]
    own = {change.path for change in merge.changes}
    return [ChangedPath(step.path, _kind(step)) for step in reversal.steps if step.path in own]


def _nothing(found: ResolvedRun, top: Node | None) -> NotFoundError:
    run, tree = found.run.id, found.tree
    rows = [row for other in tree.memory.changes.values() for row in other]
    if any(row.state == "proposed" for row in rows):
        hint = f"pending proposals are not merged: fanfold diff {run} shows it"
    elif any(row.state in ("merged", "applied") for row in rows):
        hint = "the earlier content is no longer stored: gc may have deleted it"
    else:
        hint = f"fanfold diff {run} shows what its steps changed"
    whose = f"run {run}" if top is None else shown_path(found.run, top)
    if tree.frozen().tree:
        hint = f"the run changed its own tree; revert with git what fanfold pull {run} merged here"
    elif top is not None and not isinstance(top, Composite) and top.step.workspace_mode == "shared":
        hint = "it works in the project itself, so there is no merge to revert"
    return NotFoundError(
        "changes.none", f"nothing of {whose} was merged, so there is nothing to revert", hint=hint
    )


def _blocked(
    project: Project, found: ResolvedRun, blocked: Sequence[BlockedPath], free: Node | None
) -> WorldError:
    """Return the error for a blocked undo. `free` is the latest step that can be undone alone."""
    rows = [{"path": one.path, "by": _whose(project, found.tree, one.by)} for one in blocked]
    named = first_of([f"{row['path']} ({row['by'] or 'changed since'})" for row in rows], MAX_SAID)
    later = next((row["by"] for row in rows if row["by"]), "")
    run = found.run.id
    hint = f"fanfold diff {run} shows what was merged; correct it by hand"
    if later:
        other, _, step = later.partition(" ")
        hint = f"revert that first: fanfold undo {other} {shlex.quote(step)}"
    if free is not None:
        step = shlex.quote(shown_path(found.run, free))
        hint = f"step by step, unchanged files can be reverted: fanfold undo {run} {step}; {hint}"
    return WorldError(
        "changes.changed_since",
        f"files were changed after the merge: {named}; nothing was reverted",
        hint=hint,
        details={"changed": rows},
    )


def _whose(project: Project, tree: RunTree, receipt: str) -> str:
    """Return the run and step of a later merge; empty if unknown."""
    spaces = spaces_of(project) if receipt else None
    if spaces is None:
        return ""
    origin = spaces.receipts.get(receipt).origin
    try:
        other = tree if origin == tree.root.id else project.view(origin)
    except NotFoundError:
        return ""
    for (run, step), known in other.memory.receipts.items():
        if receipt in known:
            return f"{other.root.id} {other.state.runs[run].tree_path(step)}"
    return ""


# -----------------------------------------------------------------------------------------------------------
# Artifacts of a run


class OpenedArtifact(Struct, frozen=True):
    """An open file and its recorded data. The caller closes the file."""

    about: PublishedFile
    file: BufferedReader

    def check(self) -> None:
        """Raise unless the file still has the published content. Reads the whole file."""
        if not is_whole(self.file, self.about.size, self.about.sha256):
            message = (
                f"artifacts/{self.about.name} of run {self.about.run_id} differs from the published file"
            )
            raise WorldError("artifact.changed", message, hint="fork from the step that made it")


def list_artifacts(project: Project, run: str, at: int | None = None) -> ArtifactList:
    """List the artifacts of a run and of the runs below it."""
    found = find_run(project, run, at)
    return ArtifactList(list(artifacts_below(found.tree, found.run)))


def open_artifact(project: Project, run: str, name: str) -> OpenedArtifact:
    """Open a published file by its name below `artifacts/`. Only files in the log can be opened."""
    found = find_run(project, run)
    about = next((one for one in artifacts_of(found.tree, found.run) if one.name == name), None)
    if about is None:
        hint = f"GET /api/runs/{found.run.id}/artifacts lists them"
        raise NotFoundError("artifact.not_found", f"run {found.run.id} published no such file", hint=hint)
    published = found.tree.memory.artifacts.get(found.run.id, {}).get(name)
    try:
        if published is not None and published[1].parts:
            fetch_artifacts(project.store, project.runs_folder, found.run.id, [published[1]])
        file = open_published(project.runs_folder, found.run.id, name)
    except OSError:
        message = f"artifacts/{name} of run {found.run.id} is gone"
        hint = "it was removed, or the run was imported without its files; fork from the step that made it"
        raise NotFoundError("artifact.lost", message, hint=hint) from None
    return OpenedArtifact(about, file)


# -----------------------------------------------------------------------------------------------------------
# Runs of a cluster with a tree of their own: the snapshot at their start, and `fanfold pull`
#
# Rules
# * `pull` merges what the run changed since the last pull into the user's folder: all of it, or nothing.
# * Conflicts are data, as for proposals. After a conflict nothing has changed, and the user can pull again.

EARLIER_RUNS = 5
"""The latest runs among which a snapshot looks for one to build on."""


def cache_folder(project: Project) -> Path:
    """The folder of this user with the trees of a project in a shared database."""
    address = project.address
    name = address.project if isinstance(address, PostgresAddress) else str(project.folder)
    return trees_folder(project.config.home, name)


def run_folder(cache: Path, root: str, purpose: str) -> Path:
    """A folder for the tree of a run. The driver and the workers of a machine have one each."""
    folder = cache / "runs"
    for name in ("", root, purpose):
        folder = folder / name
        make_folder(folder)
    return folder


def take_snapshot(project: Project, journal: Journal, source: str) -> tuple[RunTreeStored, str]:
    """Store the project's folder as it is now for a new run; see `store_snapshot`.

    `source` is the run that is forked, if any: the snapshot builds on no other run then.
    """
    heads = [] if source else project.heads(limit=EARLIER_RUNS)
    earlier = [source] if source else [head.run_id for head in heads]
    objects = open_objects(cache_folder(project))
    snapshot, needed = store_snapshot(
        project.store, journal.blobs, journal.root, project.isolation.spaces, objects, earlier
    )
    return snapshot, needed or source


def trees_of(project: Project, root: str) -> RunTrees:
    """The trees of a run; raises `AuthorError` if the run works in the user's folder."""
    trees = RunTrees(project.store, root, open_objects(cache_folder(project)))
    trees.read()
    if not trees.start:
        raise AuthorError(
            "run.no_tree",
            f"run {root} works in the project's folder itself",
            hint="only runs of a cluster with a PostgreSQL store have their own tree",
        )
    return trees


def has_tree(project: Project, root: str) -> bool:
    """Whether a run has its own tree."""
    return bool(frozen_at_first(project, root).tree)


def pull(project: Project, run: str) -> PulledChanges:
    """Merge the changes of a run into the project's folder; raises `workspace.conflict` if it cannot."""
    root = find_run(project, run).tree.root.id
    trees = trees_of(project, root)
    spaces = project.isolation.spaces
    folder = project.memory / "workspace" / "pulled"
    make_folder(folder)
    note = folder / root
    try:
        base = read_kept(note).decode()
        trees.fetch(base)
    except (FileNotFoundError, WorldError):
        base = trees.start
        trees.fetch(base)
    trees.fetch(trees.tip)
    files = trees.objects.files
    merged = spaces.bring(root, files(base), files(trees.tip), trees.objects)
    if merged.violations:
        named = ", ".join(row.path for row in merged.violations[:MAX_SAID])
        raise WorldError("workspace.violation", f"run {root} changed protected files: {named}")
    if merged.conflicts:
        named = first_of([one.path for one in merged.conflicts], MAX_SAID)
        raise WorldError(
            "workspace.conflict",
            f"the changes of run {root} conflict with the folder: {named}; nothing was changed",
            hint=f"commit or move your own changes away, then: fanfold pull {root}",
            details={"conflicts": [msgspec.to_builtins(one) for one in merged.conflicts]},
        )
    write_whole(note, trees.tip.encode())
    kinds = {change.path: change.kind for change in merged.changes}
    changes = [ChangedPath(path, kinds.get(path, "modified")) for path in merged.applied]
    return PulledChanges(run_id=root, tree=trees.tip, changes=changes)


def patch_of(project: Project, node: Node) -> str | None:
    """The changes of a step in the tree of its run, as a patch; None without changes."""
    trees = trees_of(project, root_of(node))
    merges = trees.merges.get((node.run.id, node.path), [])
    for _, tree in merges:
        trees.fetch(tree)
    return "".join(trees.objects.draw_trees(base, tree) for base, tree in merges) or None


def fetch_proposal(project: Project, node: Node) -> None:
    """Have the proposal of a step on this machine, which another machine made."""
    root = root_of(node)
    trees = trees_of(project, root)
    base, tree = trees.merges[node.run.id, node.path][-1]
    trees.fetch(tree)
    files, session = trees.objects.files, session_id(node.run.id, node.path, node.attempt)
    spaces = project.isolation.spaces
    if all(one.session != session for one in spaces.proposals()):
        spaces.add_proposal(session, files(base), files(tree), trees.objects, node.write_set, root)


def fetch_artifacts(store: Store, runs: Path, run: str, artifacts: Iterable[Artifact]) -> None:
    """Have the artifacts of a run on this machine that other machines published."""
    for one in artifacts:
        if not one.parts:
            continue
        try:
            with open_published(runs, run, one.path) as file:
                if is_whole(file, one.size, one.sha256):
                    continue
        except OSError:
            pass
        data = b"".join(map(store.blob, one.parts))
        if len(data) != one.size or sha256(data).hexdigest() != one.sha256:
            message = f"artifacts/{one.path} of run {run} differs from the published file"
            raise WorldError("artifact.changed", message)
        write_published(runs, run, one.path, data)
