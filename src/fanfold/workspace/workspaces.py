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
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from fanfold.trust.project_files import write_whole
from fanfold.workspace import homes
from fanfold.workspace.confines import make_policy
from fanfold.workspace.files import trash
from fanfold.workspace.files.beneath import open_top
from fanfold.workspace.files.ignored import Ignoring
from fanfold.workspace.files.layout import Layout, read_kept
from fanfold.workspace.files.scan import SnapshotLimits
from fanfold.workspace.merges import disputes
from fanfold.workspace.merges.disputes import Dispute
from fanfold.workspace.merges.merge import Merged, Recovered
from fanfold.workspace.merges.objects import Objects
from fanfold.workspace.merges.receipts import (
    Proposal,
    Proposals,
    Receipt,
    Receipts,
    Reversal,
    draw_diff,
    keep_content,
)
from fanfold.workspace.merges.revision import LayeredContent, StoredContent, TreeContent, revise
from fanfold.workspace.parent import Arriving, Parent
from fanfold.workspace.remains import Collected, Judge, Remains, draw_child
from fanfold.workspace.sandbox.policy import Policy, ProcessLimits, Rooms
from fanfold.workspace.shared import WorkspaceWatch
from fanfold.workspace.snapshots import children
from fanfold.workspace.snapshots.bases import Base, Bases
from fanfold.workspace.snapshots.changes import violations
from fanfold.workspace.snapshots.children import Child

if TYPE_CHECKING:
    from fanfold.workspace.delivery.deliveries import Deliveries


Mode: TypeAlias = Literal["auto", "propose", "discard"]
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
        self._proposals = Proposals(self._layout, self._objects)
        self._receipts = Receipts(self._layout, self._objects)
        self._parent = Parent(self._layout, self._objects, self._bases, self._receipts)
        self.remains = Remains(
            self._layout, self._bases, self._ignoring, self._objects, self._proposals, self._receipts
        )

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
        epoch: int = 0,
        asked_ns: int | None = None,
    ) -> Child:
        """Snapshot the parent as it is now for one session; an older workspace of it is thrown away.

        Whoever lives and has it with a higher `epoch` keeps it, and this raises `workspace.taken_over`.
        `origin` says what it is for; who cleans up is asked by that name whether it may go. `asked_ns` is the
        moment (`time.monotonic_ns`) since which any state of the parent will do, now unless it is given.
        """
        asked_ns = time.monotonic_ns() if asked_ns is None else asked_ns
        folder = self._layout.child(session_id)
        kept = None if write_set is None else tuple(write_set)
        with self._parent.whole():
            if folder.exists():
                children.check_turn(folder, epoch)
                self.remains.throw_away(folder)
            base = self._bases.current(asked_ns)
            try:
                return children.make(
                    folder,
                    session_id,
                    base,
                    self._ignoring,
                    read_only=read_only,
                    write_set=kept,
                    origin=origin,
                    epoch=epoch,
                )
            except BaseException:
                self.remains.throw_away(folder)
                raise

    def open_disputed(self, session_id: str, source: Child) -> tuple[Child, Dispute]:
        """A workspace of the parent as it is now, in which the conflicts of `source` wait to be settled."""
        was = source.record
        child = self.open_child(session_id, write_set=was.write_set, origin=was.origin, epoch=was.epoch)
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

    def find_child(self, session_id: str, epoch: int = 0) -> Child | None:
        """The workspace an earlier process left for this session, opened as it was; None without one. Who has
        it with a higher `epoch` keeps it, as in `open_child`.
        """
        folder = self._layout.child(session_id)
        with self._layout.lock():
            found = children.find(folder, self._bases)
            if found is None:
                return None
            record, base = found
            children.check_turn(folder, epoch)
            same_boot = record.maker is not None and record.maker.is_of_this_boot()
            if record.method.startswith("overlay") and not same_boot:
                return None  # what the layer held may never have reached the disk
            return children.attach(folder, record, base, self._ignoring, epoch)

    def watch(self) -> WorkspaceWatch:
        """Begin to watch the parent for a shared step; its `changes()` are what changed since."""
        with self._parent.whole():
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

    # ------------------------------------------------------------------------------ coming home

    def merge(self, child: Child, write_set: Sequence[str] | None = None, mode: Mode = "auto") -> Merged:
        """Bring a child's changes home: put them into the parent, keep them as a proposal, or drop them."""
        child.require_held()
        known = _recall(child.folder / MERGED)
        if known is not None:
            return known
        changes = tuple(child.changes())
        allowed = () if child.read_only else write_set
        tree = open_top(child.path)
        try:
            bad = tuple(violations(changes, allowed, tree))
            if bad or mode == "discard" or not changes:
                return Merged(changes, violations=bad)
            content = TreeContent(tree)
            with child.base.opened() as base:
                revision = revise(changes, base, tree)
                if mode == "propose":
                    keep_content(revision, LayeredContent(base), content, self._objects)
            if mode == "propose":
                kept = None if write_set is None else tuple(write_set)
                with self._layout.lock():
                    child.require_held()
                    proposal = self._proposals.add(
                        child.session_id, child.base.id, kept, changes, revision, child.record.origin
                    )
                merged = Merged(changes, proposal=proposal.id)
                write_whole(child.folder / MERGED, msgspec.json.encode(merged))
                return merged
            arriving = Arriving(
                changes, revision, content, child.base, write_set, child.record.origin, child.session_id
            )
            return self._parent.put(arriving, child.folder / MERGED, child.require_held)
        finally:
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
        arriving = Arriving(
            proposal.changes,
            proposal.revision,
            content,
            base,
            proposal.write_set,
            proposal.origin,
            proposal.session,
        )
        merged = self._parent.put(arriving, note, dry_run=dry_run)
        if merged.ok and not dry_run and drop:
            self._proposals.drop(proposal_id)
        return merged

    def undo(self, receipts: Sequence[str], *, dry_run: bool = False) -> Reversal:
        """Take merges back, all of them or none, as long as nobody changed their files since."""
        return self._parent.undo(receipts, dry_run=dry_run)

    def receipt(self, receipt_id: str) -> Receipt:
        """What one merge put into the parent, and what had been there."""
        return self._receipts.get(receipt_id)

    def is_taken_back(self, receipt_id: str) -> bool:
        """Whether a merge was undone."""
        return self._receipts.is_undone(receipt_id)

    def deliveries(self, project: Path, begin: Callable[[], None]) -> Deliveries:
        """What deliver steps make of merges, in the repository of a project; `begin` raises when not."""
        from fanfold.workspace.delivery.deliveries import Deliveries

        return Deliveries(project, self._layout, self._objects, begin)

    def diff_merged(self, receipt_id: str) -> str:
        """What one merge did to the parent, as a patch; without files of which nobody has both sides."""
        return self._parent.draw(self._receipts.get(receipt_id))

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

    # ------------------------------------------------------------------------------- the end of it

    def close(self, child: Child, *, keep: bool = False, why: str = "") -> None:
        """End a child: nothing of it is left, or its folder is kept and says why. One that somebody else has
        taken over is that one's to end.
        """
        with self._layout.lock():
            if not self._detach(child):
                return
            if keep:
                record = msgspec.structs.replace(child.record, kept=why or "kept")
                write_whole(child.folder / "child.json", msgspec.json.encode(record))
                return
            self.remains.throw_away(child.folder)
            self.remains.prune_bases()
        trash.empty(self._layout.trash, budget_s=CLOSE_S)

    def leave(self, child: Child) -> None:
        """Go away from a child: what was written to it stays, for whoever goes on with it or does already."""
        with self._layout.lock():
            self._detach(child)

    def _detach(self, child: Child) -> bool:
        """Take a child's layer away, with the lock held; whether it was still ours."""
        held = child.is_held()
        child.detach(held=held)
        return held

    def recover(self) -> Recovered:
        """Finish or undo what dead processes left; called when the project is opened."""
        with self._layout.lock():
            left = self._parent.recover()
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
        return msgspec.json.decode(read_kept(note), type=Merged)
    except FileNotFoundError:
        return None
