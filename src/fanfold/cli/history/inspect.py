"""`fanfold inspect`: how a run or one of its steps stands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import click
from msgspec import structs

from fanfold.cli.command import Invocation, command, option
from fanfold.cli.history.runs import took_text, usage_text
from fanfold.cli.terminal.change_text import change_lines
from fanfold.cli.terminal.output import hand_over, paint, plain, say, say_json, to_json
from fanfold.cli.terminal.statuses import COLOURS
from fanfold.kernel.lifecycle import RUN_TERMINAL
from fanfold.runtime.operations.addresses import find_run
from fanfold.runtime.operations.history.runs import (
    how_to_go_on,
    inspect,
    inspect_found,
    inspect_step,
    step_rows,
)
from fanfold.runtime.views.approvals import how_to_answer
from fanfold.runtime.views.errors import REASON_CHARS, gist
from fanfold.runtime.views.runs.documents import InspectDocument, InspectStepDocument, how_to_retry, indented
from fanfold.runtime.views.runs.rows import FailureDocument, StepUsage
from fanfold.runtime.views.runs.step_rows import Row
from fanfold.text.terminal import one_line

MAX_OUTPUT_LINES = 20
MAX_HELD = 12


@command("inspect", summary="Show a run: its steps, child runs, result and cost")
@click.argument("run")
@click.argument("step", required=False)
@option("--steps", is_flag=True, help="Every step, also of large fan-outs, with outputs and errors.")
@option("--state", is_flag=True, help="Also what the scheduler knows: limits, slots, what is held back.")
@option("--output", is_flag=True, help="Nothing but the output of the run or STEP, as it is.")
def inspect_command(
    call: Invocation, run: str, step: str | None, steps: bool, state: bool, output: bool
) -> None:
    """Show RUN as its log is now: an id, the beginning of one, or `last`; or one STEP of it, by its path."""
    with call.open_project(to_read=True) as project:
        if output:
            given = inspect(project, run) if step is None else inspect_step(project, run, step)
            text = "" if given.output is None else f"{indented(given.output)}\n"
            call.give(given.output, lambda: hand_over(text))
            return
        if step is not None:
            one = inspect_step(project, run, step)
            call.give(one, lambda: _step_text(one, call.colour))
            return
        found = find_run(project, run)
        if call.as_json:
            say_json(inspect_found(project, found, with_state=state))
        else:
            rows = step_rows(found, every=steps)
            document = inspect_found(project, found, with_state=state, only={row.path for row in rows})
            say("".join(_text(document, rows, steps, call.colour)))
            if changed := "".join(change_lines(found.tree, found.run)):
                say(f"\n{paint('Changed', 'bold', call.colour)}\n{changed}")
            if again := how_to_retry(found.tree):
                say(f"\n{paint(f'run again what did not complete: {again}', 'dim', call.colour)}\n")
            elif on := how_to_go_on(found.tree, driven=bool(document.owner and document.owner.alive)):
                say(f"\n{paint(f'go on with it: {on}', 'dim', call.colour)}\n")


def _text(run: InspectDocument, rows: list[Row], steps: bool, colour: bool) -> Iterator[str]:
    from fanfold.cli.terminal.step_text import step_lines

    yield f"{paint(f'{run.recipe}@{run.version}', 'bold', colour)}  run {run.run_id}  "
    yield paint(run.status, COLOURS.get(run.status, "blue"), colour)
    if run.status not in RUN_TERMINAL and not (run.owner and run.owner.alive):
        yield paint("  no process drives it", "yellow", colour)
    yield "\n"
    for name, value in _heading(run):
        yield f"  {paint(name.ljust(9), 'dim', colour)} {value}\n"
    yield f"\n{paint('Steps', 'bold', colour)}\n"
    yield from step_lines(run, rows, every=steps, colour=colour)
    if run.state:
        yield f"\n{paint('State', 'bold', colour)}\n"
        known = structs.asdict(run.state)
        yield from (f"  {name}: {plain(to_json(value))}\n" for name, value in known.items())
    if run.output is not None:
        yield f"\n{paint('Output', 'bold', colour)}\n"
        lines = plain(indented(run.output)).splitlines() or [paint("(empty)", "dim", colour)]
        yield from (f"  {one}\n" for one in (lines if steps else lines[:MAX_OUTPUT_LINES]))
        if len(lines) > MAX_OUTPUT_LINES and not steps:
            yield f"  … {len(lines) - MAX_OUTPUT_LINES} more lines: fanfold inspect {run.run_id} --steps\n"


def _step_text(step: InspectStepDocument, colour: bool) -> Iterator[str]:
    status = paint(step.status, COLOURS.get(step.status, "blue"), colour)
    item = f" {plain(step.item)}" if step.item else ""
    yield f"{paint(plain(step.path), 'bold', colour)}{item}  {step.role or step.type}  {status}"
    yield f" ({step.reason})\n" if step.reason else "\n"
    facts = [
        ("asked", one_line(step.task, 200)),
        ("attempts", str(step.attempts) if step.attempts > 1 else ""),
        ("started", step.started_at or ""),
        ("ended", step.ended_at or ""),
        ("reads", plain(", ".join(step.read_set))),
        ("may write", plain(", ".join(step.write_set))),
        ("used", _spent(step.usage)),
        ("holds", _listed(step.holds)),
        ("because", "" if step.error is None else _because(step.error)),
    ]
    yield from (f"  {paint(name.ljust(9), 'dim', colour)} {value}\n" for name, value in facts if value)
    for row in step.changes:
        yield f"  {paint(row.state.ljust(9), 'dim', colour)} {plain(row.path)} ({row.kind})\n"
    if step.approval is not None:
        from fanfold.cli.terminal.step_text import question_lines

        yield f"\n{paint('Asks', 'bold', colour)}\n"
        yield from question_lines(step.approval, colour)
        words = how_to_answer(step.run_id, step.path, step.approval)
        yield f"\n{paint(f'answer it: {plain(words)}', 'dim', colour)}\n"
    if step.output is not None:
        yield f"\n{paint('Output', 'bold', colour)}\n"
        yield from (f"  {line}\n" for line in plain(indented(step.output)).splitlines())
    if step.session_id is not None:
        said = f"what its agent said: fanfold transcript {step.run_id} {plain(shlex.quote(step.path))}"
        yield f"\n{paint(said, 'dim', colour)}\n"


def _because(error: FailureDocument) -> str:
    """The whole of it: what a program said line by line, as it stood."""
    first, *rest = plain(f"{error.message} [{error.code}]").splitlines() or [error.code]
    return "\n".join([first, *(f"{' ' * 12}{line}" for line in rest)])


def _listed(paths: list[str]) -> str:
    more = f" and {len(paths) - MAX_HELD} more" if len(paths) > MAX_HELD else ""
    return plain(", ".join(paths[:MAX_HELD])) + more


def _spent(usage: StepUsage | None) -> str:
    if usage is None:
        return ""
    price = "price unknown" if usage.cost_usd is None else f"${usage.cost_usd:.4f}"
    return f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out, {price}"


def _heading(run: InspectDocument) -> Iterator[tuple[str, str]]:
    yield "created", run.created_at or ""
    if took := took_text(run):
        yield "took", took
    if run.parent_run_id is not None:
        yield "called by", f"{run.execution_path} of run {run.parent_run_id}"
    if run.forked_from is not None:
        yield "forked", f"from run {run.forked_from}"
    for name, value in run.inputs.items():
        yield "input", f"{name} = {one_line(indented(value), 80)}"
    if used := usage_text(run.usage):
        yield "used", used
    if run.error is not None:
        yield "because", f"{gist(run.error, REASON_CHARS)} [{run.error.code}]"
