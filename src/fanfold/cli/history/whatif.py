"""`fanfold whatif`: what a run would have taken with another number of slots."""

from __future__ import annotations

import click

from fanfold.cli.command import Invocation, command, option
from fanfold.cli.terminal.output import paint, plain
from fanfold.runtime.operations.history.whatif import what_if
from fanfold.runtime.views.recipes.forecasts import WhatIf
from fanfold.runtime.views.times import duration

MAX_PATH_STEPS = 12


@command("whatif", summary="What a run would have taken with another number of slots")
@click.argument("run")
@option("--max-concurrency", type=int, required=True, metavar="N", help="How many steps at once.")
def whatif_command(call: Invocation, run: str, max_concurrency: int) -> None:
    """Replay the recorded durations of RUN and its child runs through the scheduler, with N slots.

    Everything else is as it was: failures and retries, conflicts, caps of groups and child runs. Waits for
    people are left out, and nothing is made up for steps that did not run. With --json: {"run_id", "recipe",
    "version", "max_concurrency": {"recorded", "asked"}, "time_ms": {"recorded", "replayed", "asked", "work"},
    "attempts", "critical_path", "critical_path_ms", "notes"}.
    """
    with call.open_project(to_read=True) as project:
        found = what_if(project, run, max_concurrency)
    call.give(found, lambda: _text(found, call.colour))


def _text(found: WhatIf, colour: bool) -> str:
    time, slots = found.time_ms, found.max_concurrency
    path = [plain(step) for step in found.critical_path]
    if len(path) > MAX_PATH_STEPS:
        path = [*path[: MAX_PATH_STEPS - 1], "…", path[-1]]
    rows = [
        (f"With {slots.asked} at once", f"{duration(time.asked)}{_change(time.replayed, time.asked)}"),
        (
            f"With {slots.recorded}, as it ran",
            f"{duration(time.replayed)}; it took {duration(time.recorded)}",
        ),
        ("All steps together", duration(time.work)),
        ("Never less than", f"{duration(found.critical_path_ms)}: {' → '.join(path)}"),
    ]
    width = max(len(name) for name, _ in rows)
    title = paint(plain(f"{found.recipe}@{found.version}"), "bold", colour)
    attempts = "1 attempt" if found.attempts == 1 else f"{found.attempts:,} attempts"
    lines = [f"{title}  run {found.run_id}, {attempts} replayed", ""]
    lines += [f"{paint(name.ljust(width), 'bold', colour)}  {value}" for name, value in rows]
    lines += ["", *(plain(note) for note in found.notes)] if found.notes else []
    return "\n".join(lines) + "\n"


def _change(before: int, after: int) -> str:
    if not before or before == after:
        return ""
    percent = round(100 * (after - before) / before)
    return f" ({percent:+d} %)"
