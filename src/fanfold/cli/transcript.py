"""Commands about past work: `transcript`, `whatif`, `costs`, `replay`, `verify`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import get_args

import click

from fanfold.api.archives import Audit, digest_run, replay_run, verify_all, verify_run
from fanfold.api.display import duration, since_ms
from fanfold.api.explain import what_if
from fanfold.api.history import By, Costs, costs, find_run, follow_transcript, only_session_path, transcript
from fanfold.api.project import Project
from fanfold.api.transcripts import TranscriptEntry, TranscriptWriter, closing, heading
from fanfold.cli.command import Invocation, command, option
from fanfold.cli.output import paint, plain, print_json, print_text
from fanfold.engine.dry_run import WhatIf
from fanfold.errors import EXIT_FAILED, EXIT_OK, AuthorError
from fanfold.kernel.invariants import InvariantViolation


@command("transcript", summary="Show prompts, replies and tool calls of an agent")
@click.argument("run")
@click.argument("name", metavar="[STEP|SESSION]", required=False)
@option("--attempt", type=click.IntRange(1), metavar="N", help="Show attempt N instead of the latest.")
@option("-f", "--follow", "following", is_flag=True, help="Follow until the step has ended.")
def transcript_command(
    call: Invocation, run: str, name: str | None, attempt: int | None, following: bool
) -> None:
    """Print the conversation of one agent of RUN: system prompt, turns, tool calls and their results.

    STEP is a path as shown by `fanfold inspect`, or the name of a subagent, which shows all its turns. It
    may be omitted if RUN has only one agent. With --follow and --json there is one line per entry.
    """
    with call.open_project(to_read=True) as project:
        name = only_session_path(find_run(project, run)) if name is None else name
        if following:
            import asyncio  # only --follow needs an event loop

            asyncio.run(_follow(call, project, run, name, attempt))
        elif call.as_json:
            print_json(transcript(project, run, name, attempt))
        else:
            document = transcript(project, run, name, attempt)
            _print(call, heading(document))
            _print_entries(call, TranscriptWriter(), document.entries)
            _print(call, closing(document))


async def _follow(call: Invocation, project: Project, run: str, name: str, attempt: int | None) -> None:
    found = find_run(project, run)
    if not call.as_json:
        _print(call, heading(transcript(project, run, name, attempt)))
    writer = TranscriptWriter()
    async for entries in follow_transcript(project, found, name, attempt):
        _print_entries(call, writer, entries)
        sys.stdout.flush()
    if not call.as_json:
        _print(call, closing(transcript(project, run, name, attempt)))


def _print_entries(call: Invocation, writer: TranscriptWriter, entries: Iterable[TranscriptEntry]) -> None:
    for entry in entries:
        if call.as_json:
            print_json(entry)
        else:
            _print(call, writer.text(entry))


def _print(call: Invocation, text: str) -> None:
    """Print a transcript. Text of agents is indented, so that no line of it looks like a heading."""
    for line in plain(text).splitlines():
        print_text(paint(line, "bold", call.colour and line.startswith("#")) + "\n")


@command("replay", summary="Fold the log of a run again without running anything")
@click.argument("run")
@option("--verify", "checked", is_flag=True, help="Check every invariant on the way.")
@option("--digest", "digested", is_flag=True, help="Print the facts of each step, without times and ids.")
def replay_command(call: Invocation, run: str, checked: bool, digested: bool) -> int:
    """Fold the log of RUN from its first event to its last and print the resulting state.

    Nothing is executed and nothing is spent. Two replays of one log print the same fingerprint. Runs with
    the same recipe, inputs and results have the same --digest, on any store and with any number of
    workers. JSON of --digest: {"digest", "in_order", "facts": [{"path", "attempt", "status", "value",
    "error"}]}.
    """
    if checked and digested:
        raise AuthorError("usage.conflicting_options", "use --verify or --digest, not both")
    with call.open_project(to_read=True) as project:
        if digested:
            found = digest_run(project, run)
            call.give(found, lambda: [f"{len(found.facts)} facts, digest {found.digest}\n"])
            return EXIT_OK
        audited = replay_run(project, run, checked=checked)
    where = f"{audited.events} events, {audited.status}, state {audited.fingerprint}\n"
    call.give(audited, lambda: [where, *_violations(audited.violations, call.colour)])
    return EXIT_OK if audited.ok else EXIT_FAILED


@command("verify", summary="Verify the hash chain and invariants of stored runs")
@click.argument("run", required=False)
@option("--all", "everything", is_flag=True, help="Check all stored runs.")
def verify_command(call: Invocation, run: str | None, everything: bool) -> int:
    """Check RUN (default: `last`), or all stored runs, against every invariant and the hash chain.

    Each commit of a log carries a hash of all earlier commits and of the resulting state, keyed with your
    secret, so any later change, removal or reordering is found. Events without a key (older ones, or
    those of another user whose state you adopted) are named.
    """
    if run is not None and everything:
        raise AuthorError("usage.conflicting_options", "name a run, or --all, not both")
    with call.open_project(to_read=True) as project:
        audit = verify_all(project) if everything else verify_run(project, run or "last")
    call.give(audit, lambda: _text(audit, call.colour))
    return EXIT_OK if audit.ok else EXIT_FAILED


def _text(audit: Audit, colour: bool) -> Iterator[str]:
    for one in audit.runs:
        word = paint("ok", "green", colour) if one.ok else paint("broken", "red", colour)
        facts = f"{one.events} events, {one.status or 'unreadable'}"
        if one.unkeyed:  # these events are not signed with the user's secret
            facts += (
                f", not keyed: events 1 to {one.unkeyed}"
                if one.unkeyed < one.events
                else ", none of them keyed"
            )
        yield f"{one.run_id}  {word}  {facts}\n"
        yield from _violations(one.violations, colour)
    if audit.violations:
        yield f"store  {paint('broken', 'red', colour)}\n"
        yield from _violations(audit.violations, colour)
    if not audit.runs and not audit.violations:
        yield "nothing has run here yet\n"


def _violations(found: Iterable[InvariantViolation], colour: bool) -> Iterator[str]:
    for one in found:
        yield f"  {paint(f'invariant {one.number}', 'red', colour)}: {plain(one.message)}\n"


MAX_PATH_STEPS = 12


@command("whatif", summary="Forecast a recorded run with other concurrency")
@click.argument("run")
@option("--max-concurrency", type=int, required=True, metavar="N", help="Assume N steps at once.")
def whatif_command(call: Invocation, run: str, max_concurrency: int) -> None:
    """Replay the recorded durations of RUN and its child runs through the scheduler, with N slots.

    Failures, retries, conflicts and caps are as recorded. Waits for people and steps that did not run are
    left out. JSON: {"run_id", "recipe", "version", "max_concurrency": {"recorded", "asked"}, "time_ms":
    {"recorded", "replayed", "asked", "work"}, "attempts", "critical_path", "critical_path_ms", "notes"}.
    """
    with call.open_project(to_read=True) as project:
        found = what_if(project, run, max_concurrency)
    call.give(found, lambda: _text_whatif(found, call.colour))


def _text_whatif(found: WhatIf, colour: bool) -> str:
    time, slots = found.time_ms, found.max_concurrency
    path = [plain(step) for step in found.critical_path]
    if len(path) > MAX_PATH_STEPS:
        path = [*path[: MAX_PATH_STEPS - 1], "…", path[-1]]
    percent = round(100 * (time.asked - time.replayed) / time.replayed) if time.replayed else 0
    change = f" ({percent:+d} %)" if time.asked != time.replayed and time.replayed else ""
    rows = [
        (f"With {slots.asked} at once", f"{duration(time.asked)}{change}"),
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


COLUMNS = ("runs", "requests", "input_tokens", "cached_tokens", "output_tokens", "cache_hits")


@command("costs", summary="Show spending by recipe, model, day or run")
@option("--since", metavar="WHEN", help="Count from an age (12h, 7d) or a date.")
@option("--by", type=click.Choice(get_args(By)), default="recipe", help="Group the sums.")
@option("--csv", "as_csv", is_flag=True, help="Print comma-separated values.")
def costs_command(call: Invocation, since: str | None, by: By, as_csv: bool) -> None:
    """Show the costs of the runs of this project: requests, tokens, and dollars at known prices.

    Cached tokens are input that a provider read from its cache. Cache hits are steps whose output was
    reused. Requests without a known price are counted separately: set `[models.prices]` in your
    configuration.
    """
    if as_csv and call.as_json:
        raise AuthorError("usage.conflicting_options", "--csv and --json are two formats: choose one")
    moment = None if since is None else since_ms(since)
    with call.open_project(to_read=True) as project:
        found = costs(project, by, moment)
        nothing = "nothing was spent\n" if project.has_runs else "nothing has run here yet\n"
    if as_csv:
        call.give(found, lambda: _csv(found))
    else:
        call.give(found, lambda: _table(found, call.colour) if found.lines else nothing)


def _csv(found: Costs) -> Iterator[str]:
    yield ",".join((found.by, *COLUMNS, "cost_usd", "unpriced")) + "\n"
    for line in found.lines:
        name = f'"{line.name.replace(chr(34), chr(34) * 2)}"' if set(line.name) & set(',"\n\r') else line.name
        numbers = [str(getattr(line, column)) for column in COLUMNS]
        yield ",".join((name, *numbers, f"{line.cost_usd:.6f}", str(line.unpriced))) + "\n"


def _table(found: Costs, colour: bool) -> Iterator[str]:
    rows = [("", *(column.replace("_tokens", "").replace("_", " ") for column in COLUMNS), "cost")]
    for line in (*found.lines, found.total):
        price = f"${line.cost_usd:.4f}" + (f" + {line.unpriced} of unknown price" if line.unpriced else "")
        rows.append((line.name, *(f"{getattr(line, column):,}" for column in COLUMNS), price))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for number, row in enumerate(rows):
        name, *numbers = row
        text = "  ".join(cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True))
        shown = f"{name.ljust(widths[0])}  {text}".rstrip()
        yield paint(shown, "dim", colour and number in (0, len(rows) - 1)) + "\n"
