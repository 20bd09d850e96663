"""`fanfold gc`: forget runs that ended long ago, with their files and workspaces."""

from __future__ import annotations

from fanfold.cli.ages import read_age
from fanfold.cli.command import Invocation, command, option
from fanfold.cli.terminal.output import plain
from fanfold.runtime.operations.system.gc import collect


@command("gc", summary="Forget runs that ended long ago, with their files")
@option("--older-than", default="30d", metavar="AGE", help="Such as 12h, 30d (default) or 8w; 0d for all.")
@option("--dry-run", is_flag=True, help="Say what would go; remove nothing.")
def gc_command(call: Invocation, older_than: str, dry_run: bool) -> None:
    """Remove runs that ended more than AGE ago: their logs, outputs, sessions, files and proposals.

    Workspaces that failed or interrupted steps left go too when they are that old, also those of runs that
    stay. Runs that are not over are never touched, whatever their age, nor are their workspaces; only the run
    of subagents goes when everybody in it is over for that long and nothing waits. What other runs still
    refer to stays, and so does every proposal of a run that stays.
    """
    age_ms = read_age("--older-than", older_than)
    with call.open_project() as project:
        removed = collect(project, age_ms, dry_run=dry_run)
    verb = "would remove" if dry_run else "removed"
    named = [("", removed.runs), ("workspace ", removed.workspaces), ("proposal ", removed.proposals)]
    lines = [f"{verb} {word}{plain(name)}\n" for word, names in named for name in names]
    counts = [_count(len(names), word.strip()) for word, names in named[1:] if names]
    lines.append(f"{verb} {', '.join([_count(len(removed.runs), 'run'), *counts])}\n")
    call.give(removed, lambda: lines)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
