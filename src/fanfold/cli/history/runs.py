"""`fanfold runs` and `fanfold inspect`: which runs there are, and how one of them stands."""

from __future__ import annotations

from collections.abc import Iterator
from time import time

import click
from msgspec import structs

from fanfold.cli.command import Invocation, command
from fanfold.cli.project import open_project
from fanfold.cli.terminal.output import one_line, paint, plain, say, say_json, to_json
from fanfold.cli.terminal.statuses import COLOURS
from fanfold.errors import EXIT_OK
from fanfold.kernel.events import Usage
from fanfold.kernel.lifecycle import RUN_STATUSES, RUN_TERMINAL, RUNNING
from fanfold.kernel.nodes import Run
from fanfold.runtime.hosting.run_tree import RunTree, run_status
from fanfold.runtime.operations.addresses import find_run
from fanfold.runtime.operations.history.runs import inspect, list_heads, list_runs, owner_of
from fanfold.runtime.operations.project import Project
from fanfold.runtime.views.runs import as_text, run_error, state_document, when
from fanfold.runtime.views.transitions import duration
from fanfold.store.protocol import RunHead

MAX_OUTPUT_LINES = 20


@command("runs", summary="List runs, newest first")
@click.option("--status", metavar="S", type=click.Choice(RUN_STATUSES), help="Only runs in this status.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=20, metavar="N", help="At most this many.")
@click.option("--all", "everything", is_flag=True, help="Child runs too, and no limit.")
def runs_command(call: Invocation, status: str | None, limit: int, everything: bool) -> int:
    """List the runs of this project, newest first.

    A run whose process died is shown as `running` with the mark `no process`: resume it.
    """
    with open_project(call, to_read=True) as project:
        most = None if everything else limit
        if call.as_json:
            say_json(list_runs(project, status=status, limit=most, children=everything))
            return EXIT_OK
        heads = list_heads(project, status=status, limit=most, children=everything)
        if heads:
            say("".join(_table(project, heads, call.colour)))
        else:
            say("no run is in this status\n" if status and project.has_runs else "nothing has run here yet\n")
    return EXIT_OK


def _table(project: Project, heads: list[RunHead], colour: bool) -> Iterator[str]:
    now = int(time() * 1_000)
    cells = [_cells(project, head, now) for head in heads]
    widths = [max(len(row[i]) for row in cells) for i in range(5)]
    for head, row in zip(heads, cells, strict=True):
        name, recipe, status, age, took, facts = row
        painted = [
            paint(name.ljust(widths[0]), "cyan", colour),
            recipe.ljust(widths[1]),
            paint(status.ljust(widths[2]), COLOURS.get(head.status, "blue"), colour),
            paint(age.rjust(widths[3]), "dim", colour),
            took.rjust(widths[4]),
            paint(facts, "dim", colour),
        ]
        yield "  ".join(painted).rstrip() + "\n"


def _cells(project: Project, head: RunHead, now: int) -> tuple[str, str, str, str, str, str]:
    status = head.status
    if status == RUNNING and not project.has_owner(head.root_run_id):
        status += " (no process)"
    took = duration(head.ended_at - head.started_at) if head.started_at and head.ended_at else ""
    facts = _facts(head.usage, head.agents)
    if head.parent_run_id is not None:
        facts = f"{head.execution_path} of {head.root_run_id}  {facts}".rstrip()
    if head.forked_from is not None:
        facts = f"forked from {head.forked_from}  {facts}".rstrip()
    return head.run_id, f"{head.recipe}@{head.version}", status, _age(now - head.created_at), took, facts


def _age(ms: int) -> str:
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min")):
        if ms >= size:
            return f"{ms // size} {unit} ago"
    return f"{max(0, ms) // 1_000} s ago"


def _facts(usage: Usage, agents: int) -> str:
    parts = [f"{agents} agent{'' if agents == 1 else 's'}"] if agents else []
    if usage.tokens:
        parts.append(f"{usage.tokens:,} tokens")
    if usage.micro_usd:
        parts.append(f"${usage.micro_usd / 1_000_000:.4f}")
    return ", ".join(parts)


@command("inspect", summary="Show a run: its steps, child runs, result and cost")
@click.argument("run")
@click.option("--steps", is_flag=True, help="Every step, also of large fan-outs, with outputs and errors.")
@click.option(
    "--state", is_flag=True, help="Also what the scheduler knows: limits, slots, what is held back."
)
def inspect_command(call: Invocation, run: str, steps: bool, state: bool) -> int:
    """Show RUN as its log is now: an id, the beginning of one, or `last`."""
    with open_project(call, to_read=True) as project:
        if call.as_json:
            say_json(inspect(project, run, with_state=state))
        else:
            found = find_run(project, run)
            say("".join(_text(project, found.tree, found.run, steps, state, call.colour)))
    return EXIT_OK


def _text(project: Project, tree: RunTree, run: Run, steps: bool, state: bool, colour: bool) -> Iterator[str]:
    from fanfold.cli.terminal.step_text import step_lines

    head = tree.head(run)
    status = run_status(tree.state, run)
    yield f"{paint(f'{head.recipe}@{head.version}', 'bold', colour)}  run {run.id}  "
    yield paint(status, COLOURS.get(status, "blue"), colour)
    if run.status not in RUN_TERMINAL and not project.has_owner(tree.root.id):
        yield paint("  no process drives it", "yellow", colour)
    yield "\n"
    for name, value in _heading(tree, run, head):
        yield f"  {paint(name.ljust(9), 'dim', colour)} {value}\n"
    yield f"\n{paint('Steps', 'bold', colour)}\n"
    yield from step_lines(tree, run, every=steps, colour=colour)
    if state:
        yield f"\n{paint('State', 'bold', colour)}\n"
        known = structs.asdict(state_document(tree, owner_of(project, tree.root.id)))
        yield from (f"  {name}: {plain(to_json(value))}\n" for name, value in known.items())
    output = tree.blobs.get(run.output) if run.output is not None else None
    if output is not None:
        yield f"\n{paint('Output', 'bold', colour)}\n"
        lines = plain(as_text(output)).splitlines()
        yield from (f"  {one}\n" for one in (lines if steps else lines[:MAX_OUTPUT_LINES]))
        if len(lines) > MAX_OUTPUT_LINES and not steps:
            yield f"  … {len(lines) - MAX_OUTPUT_LINES} more lines: fanfold inspect {run.id} --steps\n"


def _heading(tree: RunTree, run: Run, head: RunHead) -> Iterator[tuple[str, str]]:
    yield "created", when(head.created_at) or ""
    if head.started_at and head.ended_at:
        yield "took", duration(head.ended_at - head.started_at)
    if head.parent_run_id is not None:
        yield "called by", f"{head.execution_path} of run {head.parent_run_id}"
    frozen_from = head.forked_from
    if frozen_from is not None:
        yield "forked", f"from run {frozen_from}"
    for name, value in tree.values.inputs(run).items():
        yield "input", f"{name} = {one_line(as_text(value), 80)}"
    facts = _facts(head.usage, head.agents)
    if facts:
        yield "used", facts
    error = run_error(tree, run)
    if error is not None:
        yield "because", one_line(f"{error.message} [{error.code}]")
