"""What children leave behind: workspaces that are kept, proposals that wait, and what of it may go.

Rules
* Looking changes nothing: a kept layer is laid for the moment, under the workspace lock, and lifted again.
* What a live process works in is neither looked into nor deleted.
* Who may still need something is not known here. Whoever opened a child named its `origin`; whoever cleans
  up judges by that name.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Container
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from fanfold.errors import WorldError
from fanfold.process_identity import this_process
from fanfold.workspace import homes
from fanfold.workspace.files import trash
from fanfold.workspace.files.beneath import open_top
from fanfold.workspace.files.ignored import Ignoring
from fanfold.workspace.files.layout import Layout, read_kept
from fanfold.workspace.guard import REFUSED
from fanfold.workspace.merges.objects import Objects
from fanfold.workspace.merges.receipts import Proposals, Receipts, draw_diff, keep_content
from fanfold.workspace.merges.revision import LayeredContent, TreeContent, revise
from fanfold.workspace.sandbox import cgroups, landlock
from fanfold.workspace.snapshots import children, overlay
from fanfold.workspace.snapshots.bases import Bases
from fanfold.workspace.snapshots.changes import Change
from fanfold.workspace.snapshots.children import Child

Fate: TypeAlias = Literal["needed", "ages", "orphaned"]
"""Of what an origin left: it must stay, it goes with time, or nobody can want it any more."""
Judge: TypeAlias = Callable[[str], Fate]


class Kept(msgspec.Struct, frozen=True):
    """A workspace that outlived its step: why, where its files are, and what differs in it."""

    session: str
    why: str
    folder: str
    changes: tuple[Change, ...]
    patch: str


class Collected(msgspec.Struct, frozen=True):
    """What cleaning up deleted, or would."""

    workspaces: tuple[str, ...] = ()
    proposals: tuple[str, ...] = ()


class Remains:
    """What the children of one project left."""

    def __init__(
        self,
        layout: Layout,
        bases: Bases,
        ignoring: Ignoring,
        objects: Objects,
        proposals: Proposals,
        receipts: Receipts,
    ) -> None:
        self._layout = layout
        self._bases = bases
        self._ignoring = ignoring
        self._objects = objects
        self._proposals = proposals
        self._receipts = receipts

    def read(self, session_id: str, name: str) -> bytes | None:
        """A note in the folder of a session, whether or not its workspace can still be used."""
        try:
            return read_kept(self._layout.child(session_id) / name)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def peek(self, session_id: str) -> Kept | None:
        """What is in a workspace that nobody works in; None when there is none."""
        folder = self._layout.child(session_id)
        with self._layout.lock():
            found = children.find(folder, self._bases)
            if found is None:
                return None
            record, base = found
            if overlay.mounts_below(folder):
                return None  # somebody is in there
            still = msgspec.structs.replace(record, read_only=True)
            child = children.lay_again(folder, still, base, self._ignoring)
            try:
                changes = tuple(child.changes())
                patch = draw_child(child, changes, self._objects)
            finally:
                child.detach()
                for left in folder.glob("work.*"):
                    trash.throw_away(left, self._layout.trash)
        # An overlay that is lifted shows nothing; what was written is in its layer.
        files = "upper" if record.method.startswith("overlay") else "workspace"
        return Kept(session_id, record.kept, str(folder / files), changes, patch)

    # ------------------------------------------------------------------------------- cleaning up

    def sessions(self) -> list[str]:
        """Whose folders are there."""
        return [folder.name for folder in self.folders()]

    def folders(self) -> list[Path]:
        return [folder for folder in self._layout.children.iterdir() if folder.is_dir()]

    def find_orphans(self) -> tuple[list[str], list[str]]:
        """The sessions whose process is gone, and those of them whose mounts were lifted just now."""
        orphans: list[str] = []
        unmounted: list[str] = []
        for folder in self.folders():
            try:
                record = children.read_record(folder)
            except WorldError:
                if not (folder / "child.json").exists():
                    self.throw_away(folder)  # died while it was made
                continue
            if record.has_live_owner:
                continue
            orphans.append(record.session)
            if overlay.mounts_below(folder):
                overlay.lift(folder / "workspace")
                unmounted.append(record.session)
        return orphans, unmounted

    def collect(
        self,
        keep_for_s: float | None,
        judge: Judge,
        relied_on: Callable[[], Container[str]] = frozenset,
        *,
        dry_run: bool,
    ) -> Collected:
        """Delete what nobody needs: old bases, thrown-away trees, content without a proposal, what orphans
        left, and, when a time is given, workspaces kept or abandoned longer ago than that. `relied_on` gives
        the receipts that somebody needs whose merge it was not.
        """
        with self._layout.lock():
            old = [folder for folder in self.folders() if self._may_go(folder, keep_for_s, judge)]
            dropped = [one.id for one in self._proposals.all() if judge(one.origin) == "orphaned"]
            found = Collected(tuple(sorted(folder.name for folder in old)), tuple(dropped))
            if dry_run:
                return found
            for folder in old:
                self.throw_away(folder)
            for proposal in dropped:
                self._proposals.drop(proposal)
            orphaned = [one.id for one in self._receipts.all() if judge(one.origin) == "orphaned"]
            needed = relied_on() if orphaned else ()
            for receipt in orphaned:
                if receipt not in needed:
                    self._receipts.drop(receipt)
            self.prune_bases(unused_for_s=keep_for_s)
            for name in os.listdir(self._layout.bases):
                if name.startswith("."):
                    trash.throw_away(self._layout.bases / name, self._layout.trash)
            if not self.folders():
                self._objects.drop_all_but(self._needed())
            self.clear_launches()
            self._clear_homes(keep_for_s, judge)
            self._clear_refused(keep_for_s)
        trash.empty(self._layout.trash)
        return found

    def _needed(self) -> set[str]:
        """The contents that proposals and receipts refer to."""
        revised = [file for one in self._proposals.all() for file in one.revision.files]
        revised += [file for one in self._receipts.all() for file in one.files]
        return {side.oid for file in revised for side in (file.before, file.after) if side is not None}

    def clear_launches(self) -> None:
        """Remove what launches of dead processes needed outside; those of live ones are left alone."""
        for scratch in landlock.abandoned(self._layout.scratch):
            trash.throw_away(scratch, self._layout.trash)
        cgroups.sweep()

    def _clear_homes(self, keep_for_s: float | None, judge: Judge) -> None:
        """Throw away what agents remember of runs that are gone, or were over longer ago than that."""
        for folder, origin, begun_at in homes.all_homes(self._layout):
            fate = judge(origin)
            aged = keep_for_s is not None and time.time() - begun_at > keep_for_s
            if fate == "orphaned" or (fate == "ages" and aged):
                homes.throw_away(self._layout, folder)

    def _clear_refused(self, keep_for_s: float | None) -> None:
        """Throw away what guards took out of the project longer ago than that."""
        refused = self._layout.private / REFUSED
        for name in os.listdir(refused) if keep_for_s is not None and refused.is_dir() else ():
            if keep_for_s is not None and time.time() - os.lstat(refused / name).st_ctime > keep_for_s:
                trash.throw_away(refused / name, self._layout.trash)

    def discard(self, session_id: str, *, over: bool = False) -> None:
        """Throw the folder of a session away, unless it is kept or a process that lives works in it.

        `over`: nobody will go on with it, so what is kept, or was left by this process, goes too.
        """
        folder = self._layout.child(session_id)
        with self._layout.lock():
            try:
                record = children.read_record(folder)
            except WorldError:
                return
            ours = over and record.maker == this_process()
            if (over or not record.kept) and (ours or not record.has_live_owner):
                self.throw_away(folder)

    def throw_away(self, folder: Path) -> None:
        overlay.lift(folder / "workspace")
        trash.throw_away(folder, self._layout.trash)

    def prune_bases(self, unused_for_s: float | None = None) -> None:
        """Throw away bases that no child and no proposal lies on. The newest stays, from which the next
        snapshot is made fast, unless a time is given and it was made, or found unchanged, longer ago.
        """
        newest = self._bases.newest_name()
        used = set[str]()
        if newest is not None and (unused_for_s is None or self._base_age_s(newest) <= unused_for_s):
            used.add(newest)
        used.update(proposal.base for proposal in self._proposals.all())
        for folder in self.folders():
            try:
                used.add(children.read_record(folder).base)
            except WorldError:
                continue
        used |= self._bases.roots(used)
        for name in self._bases.names():
            if name not in used:
                trash.throw_away(self._layout.bases / name, self._layout.trash)

    def _base_age_s(self, name: str | None) -> float:
        try:
            return time.time() - (self._layout.bases / (name or "") / "manifest").stat().st_mtime
        except OSError:
            return 0.0

    def _may_go(self, folder: Path, keep_for_s: float | None, judge: Judge) -> bool:
        try:
            record = children.read_record(folder)
            age_s = time.time() - (folder / "child.json").stat().st_mtime
        except (WorldError, OSError):
            return keep_for_s is not None
        fate = judge(record.origin)
        if fate == "needed" or (record.has_live_owner and not record.kept):
            return False
        return fate == "orphaned" or (keep_for_s is not None and age_s > keep_for_s)


def draw_child(child: Child, changes: tuple[Change, ...], objects: Objects) -> str:
    """The changes of an open child as a patch; its content is in the store afterwards."""
    tree = open_top(child.path)
    try:
        with child.base.opened() as base:
            revision = revise([change for change in changes if change.what != "special"], base, tree)
            keep_content(revision, LayeredContent(base), TreeContent(tree), objects)
        return draw_diff(revision, objects)
    finally:
        os.close(tree)
