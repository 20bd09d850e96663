"""Forgetting runs that ended long ago, with their files and workspaces."""

from __future__ import annotations

import re
import shutil
from functools import partial
from pathlib import Path
from time import time
from typing import TYPE_CHECKING

from fanfold.agents.toolbox.published import PUBLISHED
from fanfold.kernel.lifecycle import PAUSED, RUN_TERMINAL, TERMINAL, WAITING
from fanfold.runtime.operations.history.listing import list_heads
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.ownership import frozen_at_first
from fanfold.runtime.records.ids import RUN_ID_CHARS
from fanfold.runtime.records.open_runs import is_kept_open
from fanfold.runtime.views.installation import Removed
from fanfold.runtime.views.runs.documents import waiting_proposals
from fanfold.store.protocol import LeaseHeld, RunHead

if TYPE_CHECKING:
    from fanfold.workspace.remains import Collected, Fate

_RUN_ID = re.compile(rf"[0-9a-z]{{{RUN_ID_CHARS}}}", re.ASCII)


def collect(project: Project, age_ms: int, *, dry_run: bool = False) -> Removed:
    """Remove runs that ended so long ago: their logs, outputs, sessions, files and proposals.

    Workspaces that failed or interrupted steps left go too when they are that old, also those of runs that
    stay. Runs that are not over are never touched, whatever their age, nor are their workspaces; only an open
    run in which everybody is over for so long, and nothing waits, goes with its subagents. What other runs
    still refer to stays, and so does every proposal of a run that stays.
    """
    if not project.has_runs:
        return Removed(dry_run, [], [], [], [])
    before = int(time() * 1_000) - age_ms
    gone: list[str] = []
    folders = _orphans(project)
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
    return Removed(
        dry_run,
        gone,
        sorted({folder.name for folder in folders}),
        [] if spaces is None else list(spaces.workspaces),
        [] if spaces is None else list(spaces.proposals),
    )


def _collect(project: Project, gone: set[str], age_s: float, dry_run: bool) -> Collected | None:
    """Clear away workspaces that nobody can need; None where there never was one."""
    if not project.isolation.is_used:
        return None

    def judge(origin: str) -> Fate:
        # Asked for one by one: a run that begins meanwhile is in the store before it has a workspace.
        head = project.store.head(origin) if origin else None
        if origin and (head is None or origin in gone):
            return "orphaned"
        return "needed" if head is not None and head.status not in RUN_TERMINAL else "ages"

    def relied_on() -> set[str]:
        """Merges of runs that are gone which those that went on from them may have to deliver."""
        forks = [head.run_id for head in list_heads(project) if head.forked_from]
        merges = (frozen_at_first(project, fork).reused_merges for fork in forks)
        return {receipt for kept in merges for receipts in kept.values() for receipt in receipts}

    return project.isolation.spaces.remains.collect(age_s, judge, relied_on, dry_run=dry_run)


def _is_old(head: RunHead, before: int) -> bool:
    return head.status in RUN_TERMINAL and (head.ended_at or head.created_at) <= before


def _is_at_rest(project: Project, head: RunHead, before: int) -> bool:
    """Whether it is an open run whose subagents are all over, nothing of whom waits, since that long ago."""
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
    """Forget an open run, unless somebody has asked something of it meanwhile."""
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
        return False  # a process that is just about to let go of it
    return True


def _orphans(project: Project) -> list[Path]:
    """Folders of runs that the store does not know: what an interrupted removal left behind."""
    try:
        found = sorted(path for path in project.runs_folder.iterdir() if path.is_dir())
    except FileNotFoundError:
        return []
    return [path for path in found if _RUN_ID.fullmatch(path.name) and project.store.head(path.name) is None]
