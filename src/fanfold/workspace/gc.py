"""Garbage collection of kept workspaces, pending proposals and other leftover files.

Rules
* Inspection changes nothing: the overlay of a kept workspace is mounted temporarily, under the workspace
  lock.
* The workspace of a live process is neither inspected nor deleted.
* This module does not know which files are still needed. The caller that opened a step workspace set its
  `origin`, and the caller of the clean-up decides by that name.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Container
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from fanfold.errors import WorldError
from fanfold.process_identity import this_process
from fanfold.project_files import Closing
from fanfold.workspace import changes as overlay
from fanfold.workspace import children, homes, sandbox, sandbox_limits
from fanfold.workspace import layout as trash
from fanfold.workspace.bases import Bases
from fanfold.workspace.beneath import open_top
from fanfold.workspace.changes import Change
from fanfold.workspace.children import Child
from fanfold.workspace.guard import REFUSED
from fanfold.workspace.ignored import Ignoring
from fanfold.workspace.layout import Layout, read_kept
from fanfold.workspace.merge import LayeredContent, Objects, TreeContent, revise
from fanfold.workspace.receipts import Proposals, Receipts, draw_diff, keep_content

Fate: TypeAlias = Literal["needed", "ages", "orphaned"]
"""The decision about the files of an origin: keep them, delete them after some time, or delete them now."""
Judge: TypeAlias = Callable[[str], Fate]


class KeptWorkspace(msgspec.Struct, frozen=True):
    """A workspace that was kept after its step: the reason, the folder of its files, and its changes."""

    session: str
    why: str
    folder: str
    changes: tuple[Change, ...]
    patch: str


class CollectedFiles(msgspec.Struct, frozen=True):
    """The files that a clean-up deleted, or would delete."""

    workspaces: tuple[str, ...] = ()
    proposals: tuple[str, ...] = ()


class WorkspaceRemains:
    """The leftover workspaces of one project, and their clean-up."""

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
        """Read a file in the folder of a session, even if its workspace is unusable.

        None if it is missing.
        """
        try:
            return read_kept(self._layout.child(session_id) / name)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def peek(self, session_id: str) -> KeptWorkspace | None:
        """Return the content of a workspace that no process uses; None if there is none."""
        folder = self._layout.child(session_id)
        with self._layout.lock():
            found = children.find(folder, self._bases)
            if found is None:
                return None
            record, base = found
            if overlay.mounts_below(folder):
                return None  # a process uses it
            still = msgspec.structs.replace(record, read_only=True)
            child = children.lay_again(folder, still, base, self._ignoring)
            try:
                changes = tuple(child.changes())
                patch = draw_child(child, changes, self._objects)
            finally:
                child.detach()
                for left in folder.glob("work.*"):
                    trash.throw_away(left, self._layout.trash)
        # An unmounted overlay is empty; its written files are in the upper layer.
        files = "upper" if record.method.startswith("overlay") else "workspace"
        return KeptWorkspace(session_id, record.kept, str(folder / files), changes, patch)

    # ------------------------------------------------------------------------------- cleaning up

    def sessions(self) -> list[str]:
        """Return the sessions that have a folder."""
        return [folder.name for folder in self.folders()]

    def folders(self) -> list[Path]:
        return [folder for folder in self._layout.children.iterdir() if folder.is_dir()]

    def find_orphans(self) -> tuple[list[str], list[str]]:
        """Return the sessions without a live process, and those of them that were just unmounted."""
        orphans: list[str] = []
        unmounted: list[str] = []
        for folder in self.folders():
            try:
                record = children.read_record(folder)
            except WorldError:
                if not (folder / "child.json").exists():
                    self.throw_away(folder)  # its process died while it created the folder
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
        keep_for_s: float | None = None,
        judge: Judge = lambda _: "ages",
        relied_on: Callable[[], Container[str]] = frozenset,
        *,
        dry_run: bool = False,
    ) -> CollectedFiles:
        """Delete unneeded files, or with `dry_run` only list them.

        These are old bases, trash, content without a proposal, and files of orphaned origins. With
        `keep_for_s`, also workspaces that were kept or abandoned longer ago. `relied_on` returns receipts
        that other runs still need.
        """
        with self._layout.lock():
            old = [folder for folder in self.folders() if self._may_go(folder, keep_for_s, judge)]
            dropped = [one.id for one in self._proposals.all() if judge(one.origin) == "orphaned"]
            found = CollectedFiles(tuple(sorted(folder.name for folder in old)), tuple(dropped))
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
                if keep_for_s is None:
                    self.prune_prepared()
                revised = [file for one in self._proposals.all() for file in one.revision.files]
                revised += [file for one in self._receipts.all() for file in one.files]
                sides = [side for file in revised for side in (file.before, file.after) if side is not None]
                self._objects.drop_all_but({side.oid for side in sides})
            self.clear_launches()
            self._clear_old(keep_for_s, judge)
        trash.empty(self._layout.trash)
        return found

    def clear_launches(self) -> None:
        """Remove the temporary files of launches of dead processes."""
        for scratch in sandbox.abandoned(self._layout.scratch):
            trash.throw_away(scratch, self._layout.trash)
        sandbox_limits.sweep()

    def _clear_old(self, keep_for_s: float | None, judge: Judge) -> None:
        """Delete homes of agents, and files that guards moved out of the project.

        Both after `keep_for_s`; the home of an agent whose run is deleted at once.
        """
        before = 0.0 if keep_for_s is None else time.time() - keep_for_s
        for folder, origin, begun_at in homes.all_homes(self._layout):
            fate = judge(origin)
            if fate == "orphaned" or (fate == "ages" and begun_at < before):
                homes.throw_away(self._layout, folder)
        refused = self._layout.private / REFUSED
        for name in os.listdir(refused) if refused.is_dir() else ():
            if os.lstat(refused / name).st_ctime < before:
                trash.throw_away(refused / name, self._layout.trash)

    def discard(self, session_id: str, *, over: bool = False) -> None:
        """Delete the folder of a session, unless it is kept or a live process uses it.

        With `over`, no process will continue it. Then a kept folder, and one that this process left, is
        deleted too.
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

    def prune_prepared(self, newest: Path | None = None) -> None:
        """Delete what setup commands made, except the newest and what a step workspace uses."""
        used = {str(newest)}
        for folder in self.folders():
            with suppress(WorldError):
                used.add(str(Path(children.read_record(folder).prepared).parent))
        for made in self._layout.prepared.iterdir():
            if str(made) not in used:
                trash.throw_away(made, self._layout.trash)

    def prune_bases(self, unused_for_s: float | None = None) -> None:
        """Delete bases that no step workspace and no proposal uses.

        The newest base stays, because it makes the next snapshot fast. With `unused_for_s`, it is deleted too
        if it was created, or found unchanged, longer ago.
        """
        newest = self._bases.newest_name()
        used = set[str]()
        if newest is not None:
            try:
                age_s = time.time() - (self._layout.bases / newest / "manifest").stat().st_mtime
            except OSError:
                age_s = 0.0
            if unused_for_s is None or age_s <= unused_for_s:
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
    """Return the changes of an open step workspace as a patch; stores their content."""
    with Closing(open_top(child.path)) as tree:
        with child.base.opened() as base:
            revision = revise([change for change in changes if change.what != "special"], base, tree)
            keep_content(revision, LayeredContent(base), TreeContent(tree), objects)
        return draw_diff(revision, objects)
