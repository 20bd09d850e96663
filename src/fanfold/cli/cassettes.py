"""`fanfold record`, `fanfold test` and `fanfold compare`: runs as tests."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from fanfold.api.cassettes import record
from fanfold.api.history import find_run
from fanfold.api.suites import RunComparison, TestReport, TestRequest, compare, junit, run_suite
from fanfold.cli.command import Invocation, command, option
from fanfold.cli.output import paint, plain
from fanfold.errors import EXIT_FAILED, EXIT_OK, AuthorError
from fanfold.language.cassettes import Difference, write_cassette
from fanfold.project_files import write_named

MAX_DIFF_LINES = 40
MAX_LISTED = 20
"""Of larger suites, only cases that did not pass are listed."""
_COLOURS = {"passed": "green", "updated": "green", "changed": "yellow", "failed": "red", "error": "red"}


@command("record", summary="Record a run as a test that costs nothing to repeat")
@click.argument("run")
@option("-o", "--output", metavar="FILE", help="Write to this file; default: tests/RECIPE.yaml.")
def record_command(call: Invocation, run: str, output: str | None) -> int:
    """Write a cassette of RUN: inputs, turns of agents, results of commands and functions.

    `fanfold test` replays it. Secrets of your environment are removed; read a cassette before you share
    it.
    """
    with call.open_project(to_read=True) as project:
        name = find_run(project, run).tree.root.plan.name
        file = Path(output) if output else call.project / "tests" / f"{name}.yaml"
        if file.suffix not in (".yaml", ".yml"):
            raise AuthorError("usage.bad_value", f"-o {file}: a cassette is a .yaml file")
        if file.exists():
            hint = "-o names another file; the command `test --update` accepts what changed"
            raise AuthorError("usage.exists", f"{file} exists already", hint=hint)
        cassette = record(project, run, file.parent)
        write_cassette(cassette, file, project.folder)
    shown, steps = os.path.relpath(file), len(cassette.steps)
    text = f"{plain(shown)}: {steps} steps\nreplay it: fanfold test {shlex.quote(shown)}\n"
    call.give({"file": shown, "recipe": cassette.recipe, "steps": steps}, lambda: [text])
    return EXIT_OK


@command("test", summary="Replay recorded runs and report what changed")
@click.argument("paths", nargs=-1)
@option(
    "--mode",
    type=click.Choice(["loose", "strict", "live-changed"]),
    help="Choose the effect of a changed prompt.",
)
@option("--update", is_flag=True, help="Accept the changes; keep the expectations.")
@option("--jobs", type=int, metavar="N", help="Use N processes; default: one for each processor.")
@option("--junit", "junit_file", metavar="FILE", help="Write a JUnit XML report.")
@option("--coverage", is_flag=True, help="Show which branches of the recipes are reached.")
@option("--generate", is_flag=True, help="Write cases for branches that no case reaches.")
@option("--model", "models", multiple=True, metavar="M", help="Run the inputs live on model M; repeatable.")
@option("--repeat", type=int, default=1, metavar="N", help="Repeat each live case N times for each model.")
@option("--budget-usd", type=float, metavar="X", help="Stop before spending more than this.")
@option("--budget-tokens", type=int, metavar="N", help="Stop before using more tokens than this.")
@option("--yes", is_flag=True, help="Permit the effects of the recipes in live runs.")
def test_command(call: Invocation, paths: Sequence[str], junit_file: str | None, **given: Any) -> int:
    """Replay the cassettes in PATHS (default: tests) through the current recipes and roles.

    No model is asked, no command is executed and nothing in the project changes. The exit status is 1 if
    a case fails. A changed prompt, role or command is reported in mode `loose` and fails the case in
    `strict`. `live-changed` asks the model again for the changed steps, within --budget-usd.
    """
    named = tuple(Path(one) for one in paths) or (call.project / "tests",)
    with call.open_project() as project:
        report = asyncio.run(run_suite(project, TestRequest(paths=named, **given)))
        if junit_file:
            write_named(project.folder, Path(junit_file), junit(report).encode())
    call.give(report, lambda: _shown(report, call.colour))
    return EXIT_OK if report.ok else EXIT_FAILED


@command("compare", summary="Compare two runs: results, steps, files, cost, time")
@click.argument("a")
@click.argument("b")
def compare_command(call: Invocation, a: str, b: str) -> int:
    """Show how runs A and B differ: requests, order, decisions, results, files, cost and time."""
    with call.open_project(to_read=True) as project:
        found = compare(project, a, b)
    call.give(found, lambda: _compared(found, call.colour))
    return EXIT_OK


def _compared(found: RunComparison, colour: bool) -> Iterator[str]:
    rows = [["run", "recipe", "status", "agents", "tokens", "cost", "seconds"]]
    for side, one in (("a", found.runs.a), ("b", found.runs.b)):
        cost = "unknown" if one.usage.cost_usd is None else f"${one.usage.cost_usd:.4f}"
        steps = [getattr(step, side) for step in found.runs.steps]
        seconds = sum(step.seconds or 0.0 for step in steps if step is not None)
        tokens = one.usage.input_tokens + one.usage.output_tokens
        figures = (one.usage.agents, f"{tokens:,}", cost, f"{seconds:.1f}")
        rows.append([one.run_id, one.recipe, one.status, *map(str, figures)])
    yield from _table(rows, colour)
    yield from _differences(found.differences)


def _shown(report: TestReport, colour: bool) -> Iterator[str]:
    for case in report.cases:
        if case.status != "passed" or len(report.cases) <= MAX_LISTED:
            yield f"{paint(case.status.ljust(7), _COLOURS[case.status], colour)} {plain(case.file)}\n"
            yield from _differences(case.differences)
    if report.cases:
        counts = ", ".join(f"{count} {word}" for word, count in report.counts.items())
        yield f"{counts} in {report.ms / 1_000:.1f} s\n"
    for one in report.coverage:
        yield f"{plain(one.recipe)}: {one.percent} % of its branches\n"
        yield from (f"  not reached: {plain(point)}\n" for point in one.missing)
    yield from (f"wrote {plain(file)}\n" for file in report.generated)
    rows = [("case", "model", "passed", "95 % interval", "cost", "time")]
    for row in report.models:
        price = "unknown" if row.usd is None else f"${row.usd:.4f}"
        bounds, passed = f"{row.low:.0%} to {row.high:.0%}", f"{row.passed}/{row.runs}"
        rows.append((row.case, row.model, passed, bounds, price, f"{row.seconds:.1f} s"))
    yield from _table(rows, colour) if report.models else ()
    yield from (f"{plain(row.model)}: {plain(one)}\n" for row in report.models for one in row.problems)


def _differences(found: Sequence[Difference]) -> Iterator[str]:
    for one in found:
        lines = one.diff.splitlines()
        more = [f"… {len(lines) - MAX_DIFF_LINES} more lines"] if len(lines) > MAX_DIFF_LINES else []
        yield f"  {one.kind}: {plain(one.message)}\n"
        yield from (f"    {plain(line)}\n" for line in (*lines[:MAX_DIFF_LINES], *more))


def _table(rows: Sequence[Sequence[str]], colour: bool) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for number, row in enumerate(rows):
        line = "  ".join(plain(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        yield f"{paint(line, 'bold', colour) if number == 0 else line}\n"
