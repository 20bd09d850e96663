"""List runs, with the process that drives each."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from fanfold.api.display import OwnerDocument, RunRow, run_row
from fanfold.api.project import Project
from fanfold.kernel.state import PAUSED
from fanfold.steps.ids import RUN_ID_CHARS
from fanfold.store.protocol import RunHead

_RUN_ID = rf"(?a)[0-9a-z]{{{RUN_ID_CHARS}}}"


def list_heads(
    project: Project, *, status: str | None = None, limit: int | None = None, children: bool = False
) -> list[RunHead]:
    """List runs, newest first; only root runs unless `children`."""
    if not project.has_runs:
        return []
    most = sys.maxsize if limit is None else limit
    return project.store.heads(roots_only=not children, status=status, limit=most)


def list_runs(
    project: Project, *, status: str | None = None, limit: int | None = None, children: bool = False
) -> list[RunRow]:
    """List runs as rows, with the process that drives each."""
    heads = list_heads(project, status=status, limit=limit, children=children)
    return [listed(project, head) for head in heads]


def listed(project: Project, head: RunHead) -> RunRow:
    """Return the row of a run, with its owner and the time when its clock stopped."""
    root = head.root_run_id
    stopped = last_event_at(project, root) if head.status == PAUSED else None
    return run_row(head, owner_of(project, root), stopped)


def last_event_at(project: Project, root: str) -> int | None:
    """Return when a tree recorded its last event."""
    last = next(project.store.tree(root, project.store.reach(root) - 1), None)
    return None if last is None else last.at


def owner_of(project: Project, root: str) -> OwnerDocument | None:
    """Return the process that drives a run tree, or drove it when it died."""
    found = project.store.owner(root)
    return None if found is None else OwnerDocument(found[0].pid, found[1])


def folders_without_run(project: Project) -> list[Path]:
    """List folders of runs that are not in the database: it was lost, or a removal was interrupted."""
    try:
        found = sorted(path for path in project.runs_folder.iterdir() if path.is_dir())
    except FileNotFoundError:
        return []
    return [path for path in found if re.fullmatch(_RUN_ID, path.name) and not _is_known(project, path.name)]


def _is_known(project: Project, run_id: str) -> bool:
    """Whether a run is stored or being created.

    A fork creates its folder after it acquired its lease and before its first commit, so the owner is read
    first.
    """
    if not project.has_runs:
        return False
    owner = project.store.owner(run_id)
    return (owner is not None and owner[1]) or project.store.head(run_id) is not None
