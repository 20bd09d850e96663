"""What the operations on workspaces report, as data that can be logged."""

from __future__ import annotations

import msgspec

from fanfold.workspace.merges.merge import MergeConflict
from fanfold.workspace.snapshots.changes import Change, WriteViolation


class Merged(msgspec.Struct, frozen=True):
    """What became of a child's changes. Free of violations and conflicts, `auto` put them in place."""

    changes: tuple[Change, ...] = ()
    conflicts: tuple[MergeConflict, ...] = ()
    violations: tuple[WriteViolation, ...] = ()
    proposal: str = ""
    applied: tuple[str, ...] = ()
    """The paths of the parent that were written or removed."""
    receipt: str = ""
    """Of what was put, by which it can be shown and undone."""

    @property
    def ok(self) -> bool:
        return not self.conflicts and not self.violations


class Recovered(msgspec.Struct, frozen=True):
    """What opening a project found of earlier processes."""

    left: tuple[str, ...] = ()
    """Paths of a half-done merge that somebody changed since: they were left alone."""
    unmounted: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    """Sessions whose workspace is still there without a process."""
