"""Workspaces of one project: children for isolated steps, and their changes brought home.

    spaces = Workspaces(project)
    spaces.recover()                                       # once, when the project is opened
    child = spaces.open_child("s1", write_set=["src/**"])  # a snapshot of the project as it is now
    ...                                                    # the step works in child.path
    merged = spaces.merge(child, ["src/**"], "auto")       # all of it, or a reason why not
    spaces.close(child)                                    # nothing of it is left

Rules
* Every method may be called from any thread and beside other processes. Those that look at or write the
  parent hold the workspace lock; none may be called from an event loop, for they wait.
* `merge` returns what happened as data: violations and conflicts leave the parent untouched and are no
  exceptions. Exceptions are for a disk or a git that failed.
* A merge is remembered in the child's folder before anyone is told of it: merging again, also by a process
  that took the session over, returns the same and does nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from fanfold.errors import WorldError
from fanfold.kernel.paths import matches
from fanfold.workspace import homes
from fanfold.workspace.confines import make_policy
from fanfold.workspace.files import trash
from fanfold.workspace.files.beneath import open_top
from fanfold.workspace.files.ignored import Ignoring
from fanfold.workspace.files.layout import Layout, write_whole
from fanfold.workspace.files.scan import SnapshotLimits
from fanfold.workspace.merges import disputes
from fanfold.workspace.merges.disputes import Dispute
from fanfold.workspace.merges.journal import MergeJournal, Moved, Note
from fanfold.workspace.merges.merge import (
    MergeConflict,
    MergeOutcome,
    content_of,
    gather,
    is_in_place,
    merge_fully,
    merge_simply,
)
from fanfold.workspace.merges.objects import FileState, Objects
from fanfold.workspace.merges.proposals import Proposal, Proposals, draw_diff, keep_content
from fanfold.workspace.merges.results import Merged, Recovered
from fanfold.workspace.merges.revision import Content, Revision, StoredContent, TreeContent, revise, state_at
from fanfold.workspace.remains import Collected, Judge, Remains, draw_child
from fanfold.workspace.sandbox.policy import Policy, ProcessLimits, Rooms
from fanfold.workspace.shared import WorkspaceWatch
from fanfold.workspace.snapshots import children
from fanfold.workspace.snapshots.bases import Base, Bases
from fanfold.workspace.snapshots.changes import Change, violations
from fanfold.workspace.snapshots.children import Child

Mode: TypeAlias = Literal["auto", "propose", "discard"]
MAX_TRIES = 5
MERGED = "merged.json"
"""In a child's folder: what became of its changes."""
CLOSE_S = 0.02
"""How long closing a child may spend on deleting what it left."""


class Workspaces:
    """The workspaces of one project."""

    def __init__(self, project: Path, limits: SnapshotLimits | None = None) -> None:
        self._layout = Layout(project)
        self._layout.prepare()
        self._limits = limits or SnapshotLimits()
        self._objects = Objects(self._layout.store, self._layout.project)
        self._objects.prepare()
        self._ignoring = Ignoring(self._layout.project, self._layout.store)
        self._bases = Bases(self._layout, self._ignoring, self._limits)
        self._journal = MergeJournal(self._layout)
        self._proposals = Proposals(self._layout, self._objects)
        self.remains = Remains(self._layout, self._bases, self._ignoring, self._objects, self._proposals)

    @property
    def project(self) -> Path:
        """The parent workspace, with every link in its path resolved."""
        return self._layout.project

    def open_child(
        self,
        session_id: str,
        *,
        read_only: bool = False,
        write_set: Sequence[str] | None = None,
        origin: str = "",
    ) -> Child:
        """Snapshot the parent as it is now for one session; an older workspace of it is thrown away.

        `origin` says what it is for; who cleans up is asked by that name whether it may go.
        """
        folder = self._layout.child(session_id)
        kept = None if write_set is None else tuple(write_set)
        with self._whole():
            if folder.exists():
                self.remains.throw_away(folder)
            base = self._bases.current()
            try:
                return children.make(
                    folder,
                    session_id,
                    base,
                    self._ignoring,
                    read_only=read_only,
                    write_set=kept,
                    origin=origin,
                )
            except BaseException:
                self.remains.throw_away(folder)
                raise

    def open_disputed(self, session_id: str, source: Child) -> tuple[Child, Dispute]:
        """A workspace of the parent as it is now, in which the conflicts of `source` wait to be settled."""
        was = source.record
        child = self.open_child(session_id, write_set=was.write_set, origin=was.origin)
        try:
            dispute = disputes.lay_out(source, child, self._objects)
            write_whole(child.folder / disputes.NOTE, msgspec.json.encode(dispute))
        except BaseException:
            self.close(child)
            raise
        return child, dispute

    def unsettled(self, child: Child, dispute: Dispute) -> list[str]:
        """What is left of a dispute; what was put beside for it is taken away."""
        disputes.clear(child, dispute)
        return disputes.unsettled(child, dispute, self._objects)

    def find_child(self, session_id: str) -> Child | None:
        """The workspace an earlier process left for this session, opened as it was; None without one."""
        folder = self._layout.child(session_id)
        with self._layout.lock():
            found = children.find(folder, self._bases)
            if found is None:
                return None
            record, base = found
            same_boot = record.maker is not None and record.maker.is_of_this_boot()
            if record.method.startswith("overlay") and not same_boot:
                return None  # what the layer held may never have reached the disk
            return children.attach(folder, record, base, self._ignoring)

    def watch(self) -> WorkspaceWatch:
        """Begin to watch the parent for a shared step; its `changes()` are what changed since."""
        with self._whole():
            name = self._bases.newest_name()
            try:
                base = self._bases.get(name) if name else None
            except FileNotFoundError:
                base = None
            return WorkspaceWatch(self._layout, self._ignoring, self._limits, base)

    def policy(
        self,
        child: Child | None,
        *,
        read_only: bool = False,
        network: bool = False,
        environment: Mapping[str, str] | None = None,
        limits: ProcessLimits | None = None,
        rooms: Rooms | None = None,
    ) -> Policy:
        """The confines of a command in a child, or in the shared workspace when there is none."""
        return make_policy(
            self._layout,
            child,
            child.base.manifest.points if child else self.watch().points,
            read_only=read_only,
            network=network,
            environment=environment or {},
            limits=limits or ProcessLimits(),
            rooms=rooms or Rooms(),
        )

    def home_of(self, session_id: str, origin: str, earlier: str = "") -> Path:
        """The private home of a session's agent, made where there is none; `earlier` is copied then."""
        return homes.open_home(self._layout, session_id, origin, earlier)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Hold the lock over a parent that is whole: what a merge left half done, whoever died over it since
        this project was opened, is put back first.
        """
        with self._layout.lock():
            self._journal.recover()
            yield

    # ------------------------------------------------------------------------------ coming home

    def merge(self, child: Child, write_set: Sequence[str] | None = None, mode: Mode = "auto") -> Merged:
        """Bring a child's changes home: put them into the parent, keep them as a proposal, or drop them."""
        known = _recall(child.folder / MERGED)
        if known is not None:
            return known
        changes = tuple(child.changes())
        allowed = () if child.read_only else write_set
        base, tree = open_top(child.base.tree), open_top(child.path)
        try:
            bad = tuple(violations(changes, allowed, tree))
            if bad or mode == "discard" or not changes:
                return Merged(changes, violations=bad)
            revision = revise(changes, base, tree)
            content = TreeContent(tree)
            if mode == "propose":
                keep_content(revision, TreeContent(base), content, self._objects)
                kept = None if write_set is None else tuple(write_set)
                with self._layout.lock():
                    proposal = self._proposals.add(
                        child.session_id, child.base.id, kept, changes, revision, child.record.origin
                    )
                merged = Merged(changes, proposal=proposal.id)
                write_whole(child.folder / MERGED, msgspec.json.encode(merged))
                return merged
            return self._put(changes, revision, content, child.base, write_set, child.folder / MERGED)
        finally:
            os.close(base)
            os.close(tree)

    def apply(self, proposal_id: str, *, dry_run: bool = False, drop: bool = True) -> Merged:
        """Put a proposal into the parent as it is now; a dry run only says what would happen.

        Without `drop` it stays, applied, until it is rejected: applying again returns the same and does
        nothing, so that nobody forgets it who dies before having told of it.
        """
        proposal = self._proposals.get(proposal_id)
        note = self._proposals.note(proposal_id)
        known = _recall(note)
        if known is not None:
            return known
        try:
            base: Base | None = self._bases.get(proposal.base)
        except FileNotFoundError:
            base = None
        content = StoredContent(self._objects)
        merged = self._put(
            proposal.changes, proposal.revision, content, base, proposal.write_set, note, dry_run=dry_run
        )
        if merged.ok and not dry_run and drop:
            self._proposals.drop(proposal_id)
        return merged

    def proposals(self) -> list[Proposal]:
        """Everything that waits to be applied, oldest first."""
        return self._proposals.all()

    def reject(self, proposal_id: str) -> None:
        """Drop a proposal."""
        self._proposals.get(proposal_id)
        self._proposals.drop(proposal_id)

    def diff(self, what: Child | str) -> str:
        """The changes of a child, or of a proposal by its id, as a patch."""
        if isinstance(what, str):
            return draw_diff(self._proposals.get(what).revision, self._objects)
        return draw_child(what, tuple(what.changes()), self._objects)

    def content(self, side: str) -> bytes:
        """What a side of a conflict (`mode hash`) holds."""
        return self._objects.get(side.rpartition(" ")[2])

    def _put(
        self,
        changes: tuple[Change, ...],
        revision: Revision,
        content: Content,
        base: Base | None,
        write_set: Sequence[str] | None,
        note: Path | None,
        *,
        dry_run: bool = False,
    ) -> Merged:
        moved = ""
        with self._whole():
            for _ in range(MAX_TRIES):
                outcome = self._decide(revision, content, base)
                conflicts = outcome.conflicts + _outside(outcome, write_set)
                merged = Merged(changes, conflicts, applied=tuple(step.path for step in outcome.steps))
                if conflicts or dry_run:
                    return msgspec.structs.replace(merged, applied=()) if conflicts else merged
                told = Note(str(note), msgspec.json.encode(merged)) if note else None
                try:
                    self._journal.apply(
                        outcome.steps,
                        content_of(outcome, content, self._objects),
                        revision.folders_made,
                        revision.folders_gone,
                        told,
                    )
                except Moved as signal:
                    moved = signal.path
                    continue
                except OSError as error:
                    message = f"the changes could not be put into the workspace: {error}"
                    hint = "nothing was changed; check permissions and disk space"
                    raise WorldError("workspace.cannot_apply", message, hint=hint) from error
                return merged
        # Something keeps changing there, or ignored files are where a file would have to be.
        return Merged(changes, (MergeConflict(moved, "CONFLICT (in the way)"),))

    def _decide(self, revision: Revision, content: Content, base: Base | None) -> MergeOutcome:
        parent = open_top(self._layout.project)
        try:
            simple = merge_simply(revision, parent)
            if simple is not None:
                return simple
            if base is None:  # the store has both sides of every path, which is all that is left to go by
                ours = {file.path: (file.before, state_at(parent, file.path)) for file in revision.files}
                stored = StoredContent(self._objects)
                sides = gather(revision, content, ours, self._objects, stored, TreeContent(parent))
                return merge_fully(*sides, self._objects)
            tree = open_top(base.tree)
            try:
                ours = self._parent_changes(base, tree, parent, revision)
                known, now = TreeContent(tree), TreeContent(parent)
                return merge_fully(*gather(revision, content, ours, self._objects, known, now), self._objects)
            finally:
                os.close(tree)
        finally:
            os.close(parent)

    def _parent_changes(
        self, base: Base, tree: int, parent: int, revision: Revision
    ) -> dict[str, tuple[FileState | None, FileState | None]]:
        """What the parent changed since a base: of the revision's paths, or everywhere where that counts."""
        paths = {file.path for file in revision.files}
        if not is_in_place(revision, parent):
            now = self._bases.look(base.manifest)
            before = base.manifest.files
            for path in before.keys() | now.files.keys():
                entry = now.files.get(path)
                if before.get(path) != entry or (entry is not None and not base.manifest.settled(entry)):
                    paths.add(path)
        found = {path: (state_at(tree, path), state_at(parent, path)) for path in paths}
        return {path: states for path, states in found.items() if states[0] != states[1]}

    # ------------------------------------------------------------------------------- the end of it

    def close(self, child: Child, *, keep: bool = False, why: str = "") -> None:
        """End a child: nothing of it is left, or its folder is kept and says why."""
        child.detach()
        if keep:
            record = msgspec.structs.replace(child.record, kept=why or "kept")
            write_whole(child.folder / "child.json", msgspec.json.encode(record))
            return
        with self._layout.lock():
            self.remains.throw_away(child.folder)
            self.remains.prune_bases()
        trash.empty(self._layout.trash, budget_s=CLOSE_S)

    def recover(self) -> Recovered:
        """Finish or undo what dead processes left; called when the project is opened."""
        with self._layout.lock():
            left = self._journal.recover()
            orphans, unmounted = self.remains.find_orphans()
            self.remains.clear_launches()
        return Recovered(tuple(left), tuple(unmounted), tuple(orphans))

    def gc(
        self, *, keep_for_s: float | None = None, judge: Judge = lambda _: "ages", dry_run: bool = False
    ) -> Collected:
        """Delete what nobody needs, or say what that would be: see `Remains.collect`."""
        return self.remains.collect(keep_for_s, judge, dry_run=dry_run)


def _recall(note: Path) -> Merged | None:
    """A merge that was done before."""
    try:
        return msgspec.json.decode(note.read_bytes(), type=Merged)
    except FileNotFoundError:
        return None


def _outside(outcome: MergeOutcome, write_set: Sequence[str] | None) -> tuple[MergeConflict, ...]:
    """Where a rename by the parent would carry a change to a path the step may not write."""
    if write_set is None:
        return ()
    return tuple(
        MergeConflict(step.path, "CONFLICT (outside write_set)")
        for step in outcome.steps
        if not matches(write_set, step.path)
    )
