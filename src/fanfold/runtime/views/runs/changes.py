"""What steps changed in files, as every surface shows it."""

from __future__ import annotations

from msgspec import Struct

from fanfold.runtime.records.evidence import ChangedPath


class StepChanges(Struct, frozen=True, kw_only=True):
    """What one step changed. `path` is relative to the run that was asked about."""

    path: str
    item: str = ""
    """What the item is called that it worked on; empty outside of maps."""
    state: str
    """merged, discarded, proposed, applied, undone, gone (a proposal that nobody has any more), kept, or
    left_out (nothing but ignored files)."""
    changes: list[ChangedPath]
    patch: str | None = None
    """What it did to the project, or would do; None where the log is all that is left."""
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


class UndoneStep(Struct, frozen=True, kw_only=True):
    """What is put back of one step. `already`: it was before."""

    path: str
    changes: list[ChangedPath]
    """What the step had done."""
    already: bool = False


class Undone(Struct, frozen=True, kw_only=True):
    """What taking merges back changed in the project, or would change; newest merge first."""

    run_id: str
    dry_run: bool
    steps: list[UndoneStep]
    changes: list[ChangedPath]
    """What it does to the project: added means that a file comes back."""
