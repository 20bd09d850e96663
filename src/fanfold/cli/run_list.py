"""`fanfold runs`: the list of runs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from fanfold.api.display import (
    ListedRun,
    RunRow,
    RunUsage,
    StepUsage,
    counted,
    duration,
    elapsed_ms,
    list_runs,
    price_text,
    select_runs,
)
from fanfold.cli.command import Invocation, command, option
from fanfold.cli.output import COLOURS, paint
from fanfold.errors import AuthorError
from fanfold.kernel.state import RUN_STATUSES, RUNNING
from fanfold.language.terminal import shorten_line

if TYPE_CHECKING:
    from fanfold.api.run_documents import InspectDocument


_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"))


@command("runs", summary="List runs, newest first")
@option("--status", metavar="S", type=click.Choice(RUN_STATUSES), help="Filter by status.")
@option("--recipe", metavar="NAME", help="Filter by recipe.")
@option("--since", default="", metavar="T", help="Filter by creation: 12h, 7d, 2026-11-18.")
@option("--grep", default="", metavar="WORDS", help="Filter by words in id, recipe, inputs or error.")
@option("--limit", type=click.IntRange(1, 100_000), default=20, metavar="N", help="Return at most N.")
@option("--all", "everything", is_flag=True, help="Include child runs; apply no limit.")
def runs_command(
    call: Invocation,
    status: str | None,
    recipe: str | None,
    since: str,
    grep: str,
    limit: int,
    everything: bool,
) -> None:
    """List the runs of this project, newest first.

    A run whose process died is shown as `running` with the mark `no process`: resume it.
    """
    with call.open_project(to_read=True) as project:
        if everything and (recipe or since or grep):
            raise AuthorError(
                "usage.incompatible", "--all cannot be combined with --recipe, --since or --grep"
            )
        found: Sequence[RunRow]
        if everything:
            found = list_runs(project, status=status, children=True)
        else:
            found, _ = select_runs(project, limit, status=status, recipe=recipe, since=since, words=grep)
        nothing = (
            "no run matches\n"
            if (status or recipe or since or grep) and project.has_runs
            else "nothing has run here yet\n"
        )
    call.give(found, lambda: _table(found, call.colour) if found else nothing)


def _table(runs: Sequence[RunRow], colour: bool) -> Iterator[str]:
    cells = [_cells(run) for run in runs]
    widths = [max(len(row[i]) for row in cells) for i in range(5)]
    wide = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    room = max(0, wide - sum(widths) - 2 * len(widths))
    for run, row in zip(runs, cells, strict=True):
        name, recipe, status, age, took, facts = row
        painted = [
            paint(name.ljust(widths[0]), "cyan", colour),
            recipe.ljust(widths[1]),
            paint(status.ljust(widths[2]), COLOURS.get(run.status, "blue"), colour),
            paint(age.rjust(widths[3]), "dim", colour),
            took.rjust(widths[4]),
            paint(_that_fit(facts, room), "dim", colour),
        ]
        yield "  ".join(painted).rstrip() + "\n"


def _that_fit(facts: str, room: int) -> str:
    """Return the facts for which there is room; on a narrow terminal the price comes first."""
    parts = facts.split(", ")
    for least in (" tokens", "scripted", " agent"):
        if len(", ".join(parts)) > room:
            parts = [part for part in parts if least not in part] or parts
    return shorten_line(", ".join(parts), room) if room else ""


def _cells(run: RunRow) -> tuple[str, str, str, str, str, str]:
    status = run.status
    if status == RUNNING and not (run.owner and run.owner.alive):
        status += " (no process)"
    scripted = "scripted" if isinstance(run, ListedRun) and run.scripted else ""
    facts = ", ".join(filter(None, (scripted, usage_text(run.usage))))
    if run.parent_run_id is not None:
        facts = f"{facts}  {run.execution_path} of {run.root_run_id}"
    if run.forked_from is not None:
        facts = f"{facts}  forked from {run.forked_from}"
    ms = max(0, elapsed_ms(run.created_at) or 0)
    size, unit = next((pair for pair in _UNITS if ms >= pair[0]), (1_000, "s"))
    age = f"{ms // size} {unit} ago"
    return run.run_id, f"{run.recipe}@{run.version}", status, age, took_text(run), facts.lstrip()


def took_text(run: RunRow | InspectDocument) -> str:
    ms = elapsed_ms(run.started_at, run.ended_at) if run.ended_at else None
    return "" if ms is None else duration(ms)


def spent_text(usage: RunUsage | StepUsage) -> str:
    """Return tokens and price of a run, a chat or a step."""
    return f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out, {price_text(usage.cost_usd)}"


def usage_text(usage: RunUsage) -> str:
    tokens = usage.input_tokens + usage.output_tokens
    agents = counted(usage.agents, "agent") if usage.agents else ""
    cost = f"${usage.cost_usd:.4f}" if usage.cost_usd else ""
    return ", ".join(filter(None, (agents, f"{tokens:,} tokens" if tokens else "", cost)))
