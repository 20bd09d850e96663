"""`fanfold explain`: why a run or a step is where it is, and why it ran when it did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from fanfold.cli.command import Invocation, command
from fanfold.cli.terminal.output import first_lines, paint, plain, to_json
from fanfold.cli.terminal.statuses import COLOURS, clock
from fanfold.kernel.explain import SENTENCES
from fanfold.kernel.lifecycle import FAILED, TIMED_OUT
from fanfold.runtime.operations.history.explain import MAX_STEPS, explain_run, explain_step
from fanfold.runtime.views.recipes.documents import SuggestedSet
from fanfold.runtime.views.steps.explanations import Explained, ExplainedRun, ExplainedStep, UsedSets
from fanfold.text.patterns import regex
from fanfold.text.terminal import one_line

MAX_SHOWN = 40
MAX_PATHS = 8
MIN_ALIKE = 3
_NUMBER = regex(r"(?<=\[)\d+(?=\])|(?<=#)\d+")
"""Of an item or a round, in a path."""


@command("explain", summary="Why a run or step waits, was skipped, retried, or ran then")
@click.argument("run")
@click.argument("step", required=False)
def explain_command(call: Invocation, run: str, step: str | None) -> None:
    """Explain RUN, or one STEP of it; STEP is a path as `fanfold inspect` shows it."""
    with call.open_project(to_read=True) as project:
        found = explain_run(project, run) if step is None else explain_step(project, run, step)
    call.give(found, lambda: _text(found, call.colour))


def _text(found: ExplainedRun | ExplainedStep, colour: bool) -> Iterator[str]:
    status = paint(found.status, COLOURS.get(found.status, "blue"), colour)
    yield f"{status}  {one_line(found.message)}\n"
    if isinstance(found, ExplainedRun):
        steps = (f"  {one_line(line)}\n" for line in _alike_together(found.steps))
        yield from first_lines(steps, MAX_SHOWN, "  … {} more\n")
        if len(found.steps) == MAX_STEPS:
            yield f"  of the first {MAX_STEPS:,} steps that did not simply complete\n"
    else:
        yield from _step(found, colour)


def _alike_together(steps: Sequence[Explained]) -> Iterator[str]:
    """A line for each step; one for all instances of a step that are where they are for the same reason.

    What failed is told one by one: each may be another thing to mend.
    """
    groups: dict[tuple[str, str], list[Explained]] = {}
    for one in steps:
        why = _NUMBER.sub("…", _why(one))
        path = one.path if one.status in (FAILED, TIMED_OUT) else _NUMBER.sub("…", one.path)
        groups.setdefault((path, why), []).append(one)
    for (_, why), alike in groups.items():
        if len(alike) >= MIN_ALIKE:
            yield f"{alike[0].path} … {alike[-1].path} ({len(alike)} steps): each {why}"
        else:
            yield from (one.message for one in alike)


def _why(one: Explained) -> str:
    """Its message without who it is about, which a step called `runs` is as well."""
    begins = one.message.find(f" {SENTENCES.get(one.reason, '')}", len(one.path))
    return one.message[begins + 1 :]


def _step(found: ExplainedStep, colour: bool) -> Iterator[str]:
    if found.ran_then:
        yield f"  {found.ran_then}\n"
    asked = f"{found.approval.question}\n{found.approval.show}" if found.approval else ""
    for line in asked.splitlines():
        yield f"  {paint('│', 'dim', colour)} {plain(line)}\n"
    if found.used:
        yield from _used(found.used, found.suggested or [], colour)
    for one in found.history:
        yield f"  {paint(clock(one.at or 0), 'dim', colour)} {one.text}\n"


def _used(used: UsedSets, suggested: list[SuggestedSet], colour: bool) -> Iterator[str]:
    rows = (("read", used.reads, used.unseen_reads), ("changed", used.writes, used.unseen_writes))
    for word, paths, unseen in rows:
        if paths:
            more = f" and {len(paths) - MAX_PATHS} more" if len(paths) > MAX_PATHS else ""
            known = plain(", ".join(paths[:MAX_PATHS])) + more
            yield f"  {paint(word, 'dim', colour)} {known}{f'; perhaps more: {unseen}' if unseen else ''}\n"
    for one in suggested:
        what = one.note or f"{one.key}: {to_json(one.proposed)}"
        yield f"  {paint('suggest', 'dim', colour)} {plain(what)}\n"
