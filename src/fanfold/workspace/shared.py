"""Shared mode: what changed in the workspace itself between two moments.

Both moments are described by names, inodes and times, which costs a walk and no copy. A file that was written
with what it already held is told apart only where a base has its earlier content; elsewhere it counts as
changed, since nobody can say that it did not.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack

from fanfold.workspace.files.beneath import PathProblem, open_folder, open_top
from fanfold.workspace.files.copies import same_content
from fanfold.workspace.files.ignored import Ignoring
from fanfold.workspace.files.layout import Layout
from fanfold.workspace.files.manifest import Manifest
from fanfold.workspace.files.rescan import look
from fanfold.workspace.files.scan import SnapshotLimits
from fanfold.workspace.merges.arrivals import Arrivals, Arrived
from fanfold.workspace.snapshots.bases import Base
from fanfold.workspace.snapshots.changes import Change, WriteViolation, violations


class WorkspaceWatch:
    """The parent as it was when the watch began."""

    def __init__(self, layout: Layout, ignoring: Ignoring, limits: SnapshotLimits, base: Base | None) -> None:
        self._layout, self._ignoring, self._limits, self._base = layout, ignoring, limits, base
        self._arrivals = Arrivals(layout)
        self._mark = self._arrivals.mark()
        self._before = self._look(base.manifest if base else None)

    def _look(self, known: Manifest | None) -> Manifest:
        return look(self._layout.project, known, self._ignoring, self._limits)

    @property
    def points(self) -> dict[str, bool]:
        """Where git's, ours and dependency folders were."""
        return self._before.points

    def changes(self) -> list[Change]:
        """What changed since, sorted by path."""
        before, now = self._before, self._look(self._before)
        found: list[Change] = []
        for path, entry in now.files.items():
            was = before.files.get(path)
            if was == entry:
                continue
            if was is not None and self._is_rewritten(path):
                continue
            target = self._target(path) if entry.is_link else ""
            found.append(
                Change(
                    path,
                    "modified" if was else "added",
                    "link" if entry.is_link else "file",
                    entry.git_mode,
                    was.git_mode if was else 0,
                    target,
                )
            )
        for path, was in before.files.items():
            if path not in now.files:
                found.append(Change(path, "deleted", "link" if was.is_link else "file", 0, was.git_mode))
        used = {path.rpartition("/")[0] for path in (*now.files, *now.folders)}
        found += [Change(path, "added", "folder") for path in now.folders - before.folders - used]
        used = {path.rpartition("/")[0] for path in (*before.files, *before.folders)}
        found += [Change(path, "deleted", "folder") for path in before.folders - now.folders - used]
        return sorted(found)

    def violations(self, write_set: Sequence[str]) -> list[WriteViolation]:
        """What changed since that may not be changed by who has this write-set."""
        top = open_top(self._layout.project)
        try:
            return violations(self.changes(), write_set, top)
        finally:
            os.close(top)

    def arrived(self) -> Arrived:
        """What merges put there since, by any process. Asked after `changes`, it has all that those show."""
        return self._arrivals.since(self._mark)

    def _is_rewritten(self, path: str) -> bool:
        """Whether the file holds again what it held, as far as a base can tell."""
        if self._base is None or self._base.manifest.files.get(path) != self._before.files.get(path):
            return False
        folder, _, name = path.rpartition("/")
        with ExitStack() as opened:

            def enter(top: int) -> int:
                below = open_folder(top, folder)
                opened.callback(os.close, below)
                return below

            try:
                base = opened.enter_context(self._base.opened())
                project = open_top(self._layout.project)
                opened.callback(os.close, project)
                return same_content(enter(project), enter(base.at(path)), name)
            except (OSError, PathProblem):  # a base that nobody was made from goes when there is a newer one
                return False

    def _target(self, path: str) -> str:
        try:
            return os.readlink(self._layout.project / path)
        except OSError:
            return ""
