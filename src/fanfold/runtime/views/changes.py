"""What steps changed in files, as every surface shows it."""

from __future__ import annotations

from msgspec import Struct

from fanfold.runtime.records.evidence import ChangedPath


class StepChanges(Struct, frozen=True, kw_only=True):
    """What one step changed. `path` is relative to the run that was asked about."""

    path: str
    state: str
    """merged, discarded, proposed, applied, gone (a proposal that nobody has any more), kept, or left_out
    (nothing but ignored files)."""
    changes: list[ChangedPath]
    patch: str | None = None
    """None where the log is all that is left."""
    proposal: str | None = None
    workspace: str | None = None
    """Where a failed step left its files."""
    why: str = ""
    left_out: list[str] = []
    """The first of the new files that stayed behind because the project ignores them."""
    left_out_count: int = 0


class RunChanges(Struct, frozen=True):
    """What the steps of a run changed."""

    run_id: str
    steps: list[StepChanges]


class Applied(Struct, frozen=True, kw_only=True):
    """What applying a proposal changed in the project, or would change."""

    run_id: str
    step: str
    proposal: str
    dry_run: bool
    already: bool = False
    """It was applied before."""
    changes: list[ChangedPath]
