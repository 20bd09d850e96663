"""The parent workspace, the project itself, as merges change it: what arrives is put there, and taken back.

Rules
* Everything here holds the workspace lock over a parent that is whole.
* All of it or nothing, through the journal; what a program or a person did a moment ago is seen, never
  overwritten.
* Nothing is replaced of which the private store has no copy (see `receipts`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from fanfold.errors import WorldError
from fanfold.kernel.paths import matches
from fanfold.workspace.files.beneath import PathProblem, open_top
from fanfold.workspace.files.layout import Layout
from fanfold.workspace.files.manifest import OpenLayers, differing
from fanfold.workspace.merges.journal import MergeJournal, Moved, Note
from fanfold.workspace.merges.merge import (
    MergeConflict,
    Merged,
    MergeOutcome,
    content_of,
    gather,
    is_in_place,
    merge_fully,
    merge_simply,
)
from fanfold.workspace.merges.objects import FileState, Objects
from fanfold.workspace.merges.receipts import Blocked, Receipt, Receipts, Reversal, draw_diff
from fanfold.workspace.merges.revision import (
    Content,
    LayeredContent,
    Revised,
    Revision,
    StoredContent,
    TreeContent,
    state_at,
)
from fanfold.workspace.snapshots.bases import Base, Bases
from fanfold.workspace.snapshots.changes import Change

MAX_TRIES = 5


class Arriving(msgspec.Struct, frozen=True):
    """What a child, or a proposal of one, brings home."""

    changes: tuple[Change, ...]
    revision: Revision
    content: Content
    base: Base | None
    write_set: Sequence[str] | None
    origin: str
    session: str


class Parent:
    """The parent of one project's children."""

    def __init__(self, layout: Layout, objects: Objects, bases: Bases, receipts: Receipts) -> None:
        self._layout = layout
        self._objects = objects
        self._bases = bases
        self._receipts = receipts
        self._journal = MergeJournal(layout)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Hold the lock over a parent that is whole: what a merge left half done, whoever died over it since
        this project was opened, is put back first.
        """
        with self._layout.lock():
            self._journal.recover()
            yield

    def recover(self) -> list[str]:
        """Put back what was left half done, with the lock held; the paths that were not ours any more."""
        return self._journal.recover()

    # Putting

    def put(
        self,
        arriving: Arriving,
        note: Path,
        check: Callable[[], None] | None = None,
        *,
        dry_run: bool = False,
    ) -> Merged:
        """Merge what arrives; `note` is where it is written down that it was. `check` raises when it may not
        be merged any more, once nobody else can.
        """
        moved = ""
        with self.whole():
            if check is not None:
                check()
            for _ in range(MAX_TRIES):
                outcome = self._decide(arriving)
                conflicts = outcome.conflicts + _outside(outcome, arriving.write_set)
                applied = tuple(step.path for step in outcome.steps)
                merged = Merged(arriving.changes, conflicts, applied=() if conflicts else applied)
                if conflicts or dry_run:
                    return merged
                try:
                    return self._apply(arriving, outcome, merged, note)
                except Moved as signal:
                    moved = signal.path
                except OSError as error:
                    raise _cannot_apply(error) from error
        # Something keeps changing there, or ignored files are where a file would have to be.
        return Merged(arriving.changes, (MergeConflict(moved, "CONFLICT (in the way)"),))

    def _apply(self, arriving: Arriving, outcome: MergeOutcome, merged: Merged, note: Path) -> Merged:
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
        told = (*notes, Note(str(note), msgspec.json.encode(merged)))
        self._journal.apply(outcome.steps, contents, revision.folders_made, revision.folders_gone, told)
        return merged

    def _decide(self, arriving: Arriving) -> MergeOutcome:
        revision, content, base = arriving.revision, arriving.content, arriving.base
        with self._opened() as parent:
            simple = merge_simply(revision, parent)
            if simple is not None:
                return simple
            if base is None:  # the store has both sides of every path, which is all that is left to go by
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
        """What the parent changed since a base: of the revision's paths, or everywhere where that counts."""
        paths = {file.path for file in revision.files}
        if not is_in_place(revision, parent):
            now = self._bases.look(base.manifest)
            paths |= differing(base.manifest, now) | (base.manifest.files.keys() - now.files.keys())
        found = {path: (state_at(tree.at(path), path), state_at(parent, path)) for path in paths}
        return {path: states for path, states in found.items() if states[0] != states[1]}

    # Taking back

    def undo(self, receipts: Sequence[str], *, dry_run: bool = False) -> Reversal:
        """Put back what was there before these merges: all of it, or nothing and what is in the way."""
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
                        tuple(self._receipts.undone_note(one) for one in receipts),
                        reversal.modes,
                    )
                except Moved as signal:
                    moved = signal.path
                    continue
                except OSError as error:
                    raise _cannot_apply(error) from error
                return reversal
        return Reversal(blocked=(Blocked(moved),))

    def _keep(self, steps: Sequence[Revised]) -> None:
        """Copy what is about to be replaced into the store."""
        with self._opened() as parent:
            now = TreeContent(parent)
            for step in steps:
                if step.before is not None:
                    try:
                        now.keep(step.path, step.before, self._objects)
                    except (WorldError, FileNotFoundError, PathProblem):
                        raise Moved(step.path) from None

    def draw(self, receipt: Receipt) -> str:
        """What a merge did, as a patch; large files are drawn as long as the project still has them."""
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


def _outside(outcome: MergeOutcome, write_set: Sequence[str] | None) -> tuple[MergeConflict, ...]:
    """Where a rename by the parent would carry a change to a path the step may not write."""
    if write_set is None:
        return ()
    return tuple(
        MergeConflict(step.path, "CONFLICT (outside write_set)")
        for step in outcome.steps
        if not matches(write_set, step.path)
    )
