"""`fanfold explain`: why a run or a step is where it is, and why it ran when it did."""

from __future__ import annotations

import click

from fanfold.cli.command import Invocation, command
from fanfold.cli.project import open_project
from fanfold.cli.terminal.output import paint, plain, say, say_json, to_json
from fanfold.cli.terminal.statuses import COLOURS, clock
from fanfold.errors import EXIT_OK
from fanfold.runtime.operations.history.explain import explain_run, explain_step
from fanfold.runtime.views.recipes.documents import SuggestedSet
from fanfold.runtime.views.steps.explanations import Explained, ExplainedRun, ExplainedStep, UsedSets
from fanfold.text.terminal import one_line

MAX_SHOWN = 40
MAX_PATHS = 8


@command("explain", summary="Why a run or step waits, was skipped, retried, or ran then")
@click.argument("run")
@click.argument("step", required=False)
def explain_command(call: Invocation, run: str, step: str | None) -> int:
    """Explain RUN, or one STEP of it; STEP is a path as `fanfold inspect` shows it."""
    with open_project(call, to_read=True) as project:
        found = explain_run(project, run) if step is None else explain_step(project, run, step)
    if call.as_json:
        say_json(found)
        return EXIT_OK
    _say_sentence(found, call.colour)
    if isinstance(found, ExplainedRun):
        _say_steps(found)
    else:
        _say_step(found, call.colour)
    return EXIT_OK


def _say_sentence(found: Explained, colour: bool) -> None:
    status = paint(found.status, COLOURS.get(found.status, "blue"), colour)
    say(f"{status}  {one_line(found.message)}\n")


def _say_step(found: ExplainedStep, colour: bool) -> None:
    if found.ran_then:
        say(f"  {found.ran_then}\n")
    asked = f"{found.approval.question}\n{found.approval.show}" if found.approval else ""
    for line in asked.splitlines():
        say(f"  {paint('│', 'dim', colour)} {plain(line)}\n")
    if found.used:
        _say_used(found.used, found.suggested or [], colour)
    for one in found.history:
        say(f"  {paint(clock(one.at or 0), 'dim', colour)} {one.text}\n")


def _say_used(used: UsedSets, suggested: list[SuggestedSet], colour: bool) -> None:
    rows = (("read", used.reads, used.unseen_reads), ("changed", used.writes, used.unseen_writes))
    for word, paths, unseen in rows:
        if paths:
            more = f" and {len(paths) - MAX_PATHS} more" if len(paths) > MAX_PATHS else ""
            known = plain(", ".join(paths[:MAX_PATHS])) + more
            say(f"  {paint(word, 'dim', colour)} {known}{f'; perhaps more: {unseen}' if unseen else ''}\n")
    for one in suggested:
        what = one.note or f"{one.key}: {to_json(one.proposed)}"
        say(f"  {paint('suggest', 'dim', colour)} {plain(what)}\n")


def _say_steps(found: ExplainedRun) -> None:
    for one in found.steps[:MAX_SHOWN]:
        say(f"  {one_line(one.message)}\n")
    if len(found.steps) > MAX_SHOWN:
        say(f"  … {len(found.steps) - MAX_SHOWN} more\n")
