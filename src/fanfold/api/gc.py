"""Delete runs that ended long ago, with their files and workspaces."""

from __future__ import annotations

import shutil
from functools import partial
from time import time
from typing import TYPE_CHECKING

from fanfold.agents.tools.files import PUBLISHED
from fanfold.api.doctor import GcResult
from fanfold.api.ownership import frozen_at_first
from fanfold.api.project import Project
from fanfold.api.run_documents import waiting_proposals
from fanfold.api.run_list import folders_without_run, list_heads
from fanfold.kernel.state import PAUSED, RUN_TERMINAL, TERMINAL, WAITING
from fanfold.steps.run_config import is_kept_open
from fanfold.store.protocol import LeaseHeld, RunHead

if TYPE_CHECKING:
    from fanfold.workspace.gc import CollectedFiles, Fate


def collect(project: Project, age_ms: int, *, dry_run: bool = False) -> GcResult:
    """Delete runs that ended at least `age_ms` ago: their logs, outputs, sessions, files and proposals.

    Workspaces that failed or interrupted steps left are deleted at the same age, also those of runs that
    stay. Folders of runs that are not in the database are deleted, too. Unfinished runs and their workspaces
    are never deleted. Exception: an open run is deleted with its subagents if all of them finished that long
    ago and nothing waits. Data that other runs refer to stays, and so does every proposal of a run that
    stays.
    """
    if not project.has_runs:
        return GcResult(dry_run, [], [], [], [])
    before = int(time() * 1_000) - age_ms
    gone: list[str] = []
    folders = [path for path in folders_without_run(project) if int(path.stat().st_mtime * 1_000) <= before]
    for head in list_heads(project):
        is_over = _is_old(head, before)
        if not is_over and not _is_at_rest(project, head, before):
            continue
        tops = (project.runs_folder, project.memory.joinpath(*PUBLISHED.split("/")))
        homes = [top / one.run_id for one in project.store.tree_heads(head.run_id) for top in tops]
        if not dry_run and not (_forget if is_over else partial(_end, before=before))(project, head):
            continue
        gone.append(head.run_id)
        folders += [home for home in homes if home.is_dir()]
    if not dry_run:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
    spaces = _collect(project, set(gone), age_ms / 1_000, dry_run)
    return GcResult(
        dry_run,
        gone,
        sorted({folder.name for folder in folders}),
        [] if spaces is None else list(spaces.workspaces),
        [] if spaces is None else list(spaces.proposals),
    )


def _collect(project: Project, gone: set[str], age_s: float, dry_run: bool) -> CollectedFiles | None:
    """Delete workspaces that are no longer needed; None if there never was one."""
    if not project.isolation.is_used:
        return None

    def judge(origin: str) -> Fate:
        # Looked up one by one: a run that starts meanwhile is in the store before it has a workspace.
        head = project.store.head(origin) if origin else None
        if origin and (head is None or origin in gone):
            return "orphaned"
        return "needed" if head is not None and head.status not in RUN_TERMINAL else "ages"

    def relied_on() -> set[str]:
        """Return merges of deleted runs that their forks may still have to deliver."""
        forks = [head.run_id for head in list_heads(project) if head.forked_from]
        merges = (frozen_at_first(project, fork).reused_merges for fork in forks)
        return {receipt for kept in merges for receipts in kept.values() for receipt in receipts}

    return project.isolation.spaces.remains.collect(age_s, judge, relied_on, dry_run=dry_run)


def _is_old(head: RunHead, before: int) -> bool:
    return head.status in RUN_TERMINAL and (head.ended_at or head.created_at) <= before


def _is_at_rest(project: Project, head: RunHead, before: int) -> bool:
    """Whether an open run has had only finished subagents, and nothing that waits, since `before`."""
    if head.status not in (WAITING, PAUSED) or not is_kept_open(head.run_id):
        return False
    if project.store.requests(head.run_id):
        return False
    tree = project.view(head.run_id)
    nodes = tree.root.nodes.values()
    last = max((node.ended_at for node in nodes), default=head.created_at)
    return (
        tree.state.plan.open
        and last <= before
        and all(node.status in TERMINAL for node in nodes)
        and not waiting_proposals(tree)
    )


def _end(project: Project, head: RunHead, before: int) -> bool:
    """Delete an open run, unless it received a request meanwhile."""
    try:
        lease = project.store.acquire(head.run_id)
    except LeaseHeld:
        return False
    try:
        return _is_at_rest(project, head, before) and _forget(project, head)
    finally:
        project.store.release(lease)


def _forget(project: Project, head: RunHead) -> bool:
    try:
        project.store.delete_tree(head.run_id)
    except LeaseHeld:
        return False  # a process is about to release it
    return True
