"""`fanfold gc`: forget runs that ended long ago, with their files and workspaces."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from time import time
from typing import TYPE_CHECKING

import click

from fanfold.cli.command import Call, command
from fanfold.cli.project import open_project
from fanfold.cli.terminal.output import plain, say, say_json
from fanfold.errors import EXIT_OK, AuthorError
from fanfold.kernel.lifecycle import RUN_TERMINAL
from fanfold.runtime.operations.project import Project
from fanfold.runtime.records.ids import RUN_ID_CHARS
from fanfold.store.protocol import LeaseHeld, RunHead

if TYPE_CHECKING:
    from fanfold.workspace.remains import Collected, Fate

_AGE = re.compile(r"([0-9]{1,6})(m|h|d|w)", re.ASCII)
_RUN_ID = re.compile(rf"[0-9a-z]{{{RUN_ID_CHARS}}}", re.ASCII)
_UNIT_MS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}


@command("gc", summary="Forget runs that ended long ago, with their files")
@click.option(
    "--older-than", default="30d", metavar="AGE", help="Such as 12h, 30d (default) or 8w; 0d for all."
)
@click.option("--dry-run", is_flag=True, help="Say what would go; remove nothing.")
def gc_command(call: Call, older_than: str, dry_run: bool) -> int:
    """Remove runs that ended more than AGE ago: their logs, outputs, sessions, files and proposals.

    Workspaces that failed or interrupted steps left go too when they are that old, also those of runs that
    stay. Runs that are not over are never touched, whatever their age, nor are their workspaces. What other
    runs still refer to stays, and so does every proposal of a run that stays.
    """
    age_ms = _age(older_than)
    with open_project(call) as project:
        if not project.has_runs:
            return _report(call, [], [], None, dry_run)
        before = int(time() * 1_000) - age_ms
        doomed = [head for head in project.store.heads(limit=sys.maxsize) if _is_old(head, before)]
        gone, folders = [], _orphans(project)
        for head in doomed:
            homes = [project.runs_folder / one.run_id for one in project.store.tree_heads(head.run_id)]
            if not dry_run and not _forget(project, head):
                continue
            gone.append(head.run_id)
            folders += [home for home in homes if home.is_dir()]
        if not dry_run:
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
        collected = _collect(project, set(gone), age_ms / 1_000, dry_run)
    return _report(call, gone, folders, collected, dry_run)


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

    return project.isolation.spaces.gc(keep_for_s=age_s, judge=judge, dry_run=dry_run)


def _is_old(head: RunHead, before: int) -> bool:
    return head.status in RUN_TERMINAL and (head.ended_at or head.created_at) <= before


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


def _age(text: str) -> int:
    found = _AGE.fullmatch(text)
    if found is None:
        raise AuthorError(
            "usage.bad_value", f"--older-than {text} is not an age", hint="write 90m, 12h, 30d or 8w"
        )
    return int(found[1]) * _UNIT_MS[found[2]]


def _report(
    call: Call, runs: list[str], folders: list[Path], collected: Collected | None, dry_run: bool
) -> int:
    workspaces = list(collected.workspaces) if collected is not None else []
    proposals = list(collected.proposals) if collected is not None else []
    if call.as_json:
        names = [folder.name for folder in folders]
        facts = {"dry_run": dry_run, "runs": runs, "folders": names}
        say_json({**facts, "workspaces": workspaces, "proposals": proposals})
        return EXIT_OK
    verb = "would remove" if dry_run else "removed"
    for run in runs:
        say(f"{verb} {run}\n")
    for name in workspaces:
        say(f"{verb} workspace {plain(name)}\n")
    for name in proposals:
        say(f"{verb} proposal {plain(name)}\n")
    counts = [_count(len(runs), "run")]
    counts += [_count(len(workspaces), "workspace")] if workspaces else []
    counts += [_count(len(proposals), "proposal")] if proposals else []
    say(f"{verb} {', '.join(counts)}\n")
    return EXIT_OK


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
