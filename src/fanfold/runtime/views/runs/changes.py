"""What steps changed in files, as every surface shows it."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from fanfold.kernel.nodes import Run
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.records.evidence import ChangedPath
from fanfold.runtime.records.memory import FileChange
from fanfold.runtime.records.values import is_below


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


def came_home(tree: RunTree, run: Run) -> list[FileChange]:
    """What a run and those below it did to the project's files all in all, by path.

    Each file has the last step that changed it, by its path in the tree.
    """
    found: dict[str, FileChange] = {}
    for other in tree.state.runs.values():
        if not is_below(other, run):
            continue
        for row in tree.memory.changes.get(other.id, []):
            if row.state in ("merged", "applied"):
                before = found.pop(row.path, None)
                kind = row.kind if before is None else _together(before.kind, row.kind)
                if kind:
                    found[row.path] = replace(row, kind=kind, step=other.tree_path(row.step))
    return sorted(found.values(), key=lambda row: row.path)


def _together(first: str, then: str) -> str:
    """What two changes of a file come to; nothing, where the second takes back the first.

    >>> _together("added", "modified"), _together("deleted", "added"), _together("added", "deleted")
    ('added', 'modified', '')
    """
    if first == "added":
        return "" if then == "deleted" else "added"
    return "modified" if first == "deleted" and then == "added" else then
