"""Which runs there are, and which process drives each."""

from __future__ import annotations

import sys

from fanfold.kernel.lifecycle import PAUSED
from fanfold.runtime.operations.project import Project
from fanfold.runtime.views.runs.rows import OwnerDocument, RunRow, run_row
from fanfold.store.protocol import RunHead


def list_heads(
    project: Project, *, status: str | None = None, limit: int | None = None, children: bool = False
) -> list[RunHead]:
    """Runs, newest first; root runs alone unless `children` are asked for."""
    if not project.has_runs:
        return []
    most = sys.maxsize if limit is None else limit
    return project.store.heads(roots_only=not children, status=status, limit=most)


def list_runs(
    project: Project, *, status: str | None = None, limit: int | None = None, children: bool = False
) -> list[RunRow]:
    """The same, as rows with the process that drives each."""
    heads = list_heads(project, status=status, limit=limit, children=children)
    return [listed(project, head) for head in heads]


def listed(project: Project, head: RunHead) -> RunRow:
    """A run as lists show it: who drives it, and where its time stopped."""
    root = head.root_run_id
    stopped = last_event_at(project, root) if head.status == PAUSED else None
    return run_row(head, owner_of(project, root), stopped)


def last_event_at(project: Project, root: str) -> int | None:
    """When a tree last recorded something."""
    last = next(project.store.tree(root, project.store.reach(root) - 1), None)
    return None if last is None else last.at


def owner_of(project: Project, root: str) -> OwnerDocument | None:
    """The process that drives a run tree, or that did when it died."""
    found = project.store.owner(root)
    return None if found is None else OwnerDocument(found[0].pid, found[1])
