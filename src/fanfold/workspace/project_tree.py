"""The project tree: applies merges to it and reverts them.

Rules
* All methods hold the workspace lock, and see a project tree without half-applied merges.
* Changes are applied atomically, through the journal. Recent changes by a program or a user are detected and
  never overwritten.
* A file is replaced only if the private store has a copy of it (see `receipts`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from fanfold.errors import WorldError
from fanfold.kernel.paths import matches
from fanfold.workspace.bases import Base, Bases
from fanfold.workspace.beneath import OpenLayers, PathProblem, differing, open_top
from fanfold.workspace.changes import Change, TreeLook, WriteViolation, folders_of, look_at, violations
from fanfold.workspace.layout import Layout
from fanfold.workspace.merge import (
    Content,
    FileState,
    LayeredContent,
    MergeConflict,
    MergeOutcome,
    MergeResult,
    Objects,
    PathRevision,
    Revision,
    StoredContent,
    TreeContent,
    content_of,
    gather,
    is_in_place,
    merge_fully,
    merge_simply,
    state_at,
)
from fanfold.workspace.merge_journal import MergeJournal, Note, ProjectMoved
from fanfold.workspace.receipts import BlockedPath, Receipt, Receipts, Reversal, draw_diff

MAX_TRIES = 5


class Arriving(msgspec.Struct, frozen=True):
    """The changes of a step workspace or of a proposal, ready to be merged."""

    changes: tuple[Change, ...]
    revision: Revision
    content: Content
    base: Base | None
    write_set: Sequence[str] | None
    origin: str
    session: str


class ProjectTree:
    """The project tree that step workspaces are merged into."""

    def __init__(self, layout: Layout, objects: Objects, bases: Bases, receipts: Receipts) -> None:
        self._layout = layout
        self._objects = objects
        self._bases = bases
        self._receipts = receipts
        self._journal = MergeJournal(layout)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Hold the workspace lock; an interrupted merge of a dead process is rolled back first."""
        with self._layout.lock():
            self._journal.recover()
            yield

    def recover(self) -> list[str]:
        """Roll back interrupted merges, with the lock held; return the paths that were changed since."""
        return self._journal.recover()

    # Merging

    def put(
        self,
        arriving: Arriving,
        note: Path,
        check: Callable[[], None] | None = None,
        *,
        dry_run: bool = False,
    ) -> MergeResult:
        """Merge changes and record the result in `note`; `check` may forbid it under the lock."""
        moved = ""
        with self.whole():
            if check is not None:
                check()
            if bad := self._violations(arriving):
                return MergeResult(arriving.changes, violations=bad)
            for _ in range(MAX_TRIES):
                outcome = self._decide(arriving)
                conflicts = outcome.conflicts + outside_write_set(outcome, arriving.write_set)
                applied = tuple(step.path for step in outcome.steps)
                merged = MergeResult(arriving.changes, conflicts, applied=() if conflicts else applied)
                if conflicts or dry_run:
                    return merged
                try:
                    return self._apply(arriving, outcome, merged, note)
                except ProjectMoved as signal:
                    moved = signal.path
                except OSError as error:
                    raise _cannot_apply(error) from error
        # Another program keeps changing these files, or ignored files block the path of a new file.
        return MergeResult(arriving.changes, (MergeConflict(moved, "CONFLICT (in the way)"),))

    def _violations(self, arriving: Arriving) -> tuple[WriteViolation, ...]:
        """Return the changes that are forbidden together with files that other steps merged since."""
        links = {change.path: change.target for change in arriving.changes if change.what == "link"}
        left = [change.path for change in arriving.changes if change.kind != "deleted"]
        added = {*left, *(folder for path in left for folder in folders_of(path))}
        with self._opened() as parent:
            there = look_at(parent)
            look = TreeLook(
                lambda path: (links.get(path) or None) if path in added else there.link_at(path),
                lambda path: path in added or there.exists(path),
            )
            return tuple(violations(arriving.changes, None, look))

    def _apply(
        self, arriving: Arriving, outcome: MergeOutcome, merged: MergeResult, note: Path
    ) -> MergeResult:
        contents = content_of(outcome, arriving.content, self._objects)
        notes: list[Note] = []
        if outcome.steps:
            self._keep(outcome.steps)
            with self._opened() as parent:
                receipt = self._receipts.prepare(
                    outcome.steps,
                    arriving.revision,
                    parent,
                    contents,
                    origin=arriving.origin,
                    session=arriving.session,
                )
            notes.append(self._receipts.note(receipt))
            merged = msgspec.structs.replace(merged, receipt=receipt.id)
        revision = arriving.revision
        all_notes = (*notes, Note(str(note), msgspec.json.encode(merged)))
        self._journal.apply(outcome.steps, contents, revision.folders_made, revision.folders_gone, all_notes)
        return merged

    def _decide(self, arriving: Arriving) -> MergeOutcome:
        revision, content, base = arriving.revision, arriving.content, arriving.base
        with self._opened() as parent:
            simple = merge_simply(revision, parent)
            if simple is not None:
                return simple
            if base is None:  # only the stored sides of each path are left to merge with
                ours = {file.path: (file.before, state_at(parent, file.path)) for file in revision.files}
                stored = StoredContent(self._objects)
                sides = gather(revision, content, ours, self._objects, stored, TreeContent(parent))
                return merge_fully(*sides, self._objects)
            with base.opened() as tree:
                ours = self._changes_since(base, tree, parent, revision)
                known, now = LayeredContent(tree), TreeContent(parent)
                return merge_fully(*gather(revision, content, ours, self._objects, known, now), self._objects)

    def _changes_since(
        self, base: Base, tree: OpenLayers, parent: int, revision: Revision
    ) -> dict[str, tuple[FileState | None, FileState | None]]:
        """Return the changes since a base; only of the revision's paths if they decide the merge."""
        paths = {file.path for file in revision.files}
        if not is_in_place(revision, parent):
            now = self._bases.look(base.manifest)
            paths |= differing(base.manifest, now) | (base.manifest.files.keys() - now.files.keys())
        found = {path: (state_at(tree.at(path), path), state_at(parent, path)) for path in paths}
        return {path: states for path, states in found.items() if states[0] != states[1]}

    # Reverting

    def undo(self, receipts: Sequence[str], *, dry_run: bool = False) -> Reversal:
        """Restore the files from before these merges atomically; otherwise return the paths that block it."""
        moved = ""
        with self.whole():
            for _ in range(MAX_TRIES):
                with self._opened() as parent:
                    reversal = self._receipts.reverse(receipts, parent)
                    if dry_run or reversal.blocked:
                        return reversal
                stored = StoredContent(self._objects)
                try:
                    self._keep(reversal.steps)
                    self._journal.apply(
                        reversal.steps,
                        {step.path: stored for step in reversal.steps},
                        reversal.folders_made,
                        reversal.folders_gone,
                        tuple(self._receipts.undone_note(receipt) for receipt in receipts),
                        reversal.modes,
                    )
                except ProjectMoved as signal:
                    moved = signal.path
                    continue
                except OSError as error:
                    raise _cannot_apply(error) from error
                return reversal
        return Reversal(blocked=(BlockedPath(moved),))

    def _keep(self, steps: Sequence[PathRevision]) -> None:
        """Copy files that are about to be replaced into the store."""
        with self._opened() as parent:
            now = TreeContent(parent)
            for step in steps:
                if step.before is not None:
                    try:
                        now.keep(step.path, step.before, self._objects)
                    except (WorldError, FileNotFoundError, PathProblem):
                        raise ProjectMoved(step.path) from None

    def draw(self, receipt: Receipt) -> str:
        """Return the changes of a merge as a patch, with large files only while the project has them."""
        with self._opened() as parent:
            now = TreeContent(parent)
            for file in receipt.files:
                if file.after is None or self._objects.has(file.after.oid):
                    continue
                if state_at(parent, file.path) == file.after:
                    now.keep(file.path, file.after, self._objects)
        has = self._objects.has
        sides = ((file, [side.oid for side in (file.before, file.after) if side]) for file in receipt.files)
        known = tuple(file for file, oids in sides if all(has(oid) for oid in oids))
        return draw_diff(Revision(known), self._objects)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        handle = open_top(self._layout.project)
        try:
            yield handle
        finally:
            os.close(handle)


def _cannot_apply(error: OSError) -> WorldError:
    message = f"the changes could not be put into the workspace: {error}"
    hint = "nothing was changed; check permissions and disk space"
    return WorldError("workspace.cannot_apply", message, hint=hint)


def outside_write_set(outcome: MergeOutcome, write_set: Sequence[str] | None) -> tuple[MergeConflict, ...]:
    """Return conflicts for changes that a rename in the project tree moved outside the write-set."""
    if write_set is None:
        return ()
    return tuple(
        MergeConflict(step.path, "CONFLICT (outside write_set)")
        for step in outcome.steps
        if not matches(write_set, step.path)
    )
