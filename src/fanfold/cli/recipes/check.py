"""`fanfold check`: compile recipes and say everything that is wrong with them."""

from __future__ import annotations

import sys

import click

from fanfold.cli.command import Call, command
from fanfold.cli.recipes.opening import Opened, open_all, open_project, role_warnings
from fanfold.cli.terminal.output import paint, plain, say, say_json
from fanfold.errors import EXIT_NOT_FOUND, EXIT_OK, EXIT_USAGE
from fanfold.text.diagnostics import Diagnostic, render_text


@command("check", summary="Check recipes and explain every problem, with its place and a hint")
@click.argument("recipes", nargs=-1, required=True, metavar="RECIPE…")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "github"]),
    help="How to report; github makes annotations in pull requests. --json is --format json.",
)
@click.option("--fix", is_flag=True, help="Repair in place what is mechanical, then check again.")
def check_command(call: Call, recipes: tuple[str, ...], form: str | None, fix: bool) -> int:
    """Compile recipes without running anything.

    RECIPE is a file or the name of a recipe (fanfold list). All problems are reported together. The exit
    status is 2 when any recipe has an error, 6 when one is not there; warnings alone leave it 0.
    """
    project = open_project(call)
    opened = open_all(project, recipes)
    if fix:
        from fanfold.cli.recipes.fixes import fix_and_recheck

        opened = fix_and_recheck(project, opened)
    chosen = "json" if call.as_json and form is None else form or "text"
    if chosen == "json":
        say_json(_document(role_warnings(project), opened))
    elif chosen == "github":
        from fanfold.text.diagnostics import render_github

        say(render_github(role_warnings(project)))
        say("".join(render_github(one.diagnostics) for one in opened))
    else:
        _say_text(role_warnings(project), opened, call.colour)
    if all(one.ok for one in opened):
        return EXIT_OK
    missing = all(one.ok or one.found.origin == "missing" for one in opened)
    return EXIT_NOT_FOUND if missing else EXIT_USAGE


def _document(about_roles: list[Diagnostic], opened: list[Opened]) -> dict[str, object]:
    diagnostics = [*about_roles, *(diagnostic for one in opened for diagnostic in one.diagnostics)]
    return {"ok": all(one.ok for one in opened), "diagnostics": diagnostics}


def _say_text(about_roles: list[Diagnostic], opened: list[Opened], colour: bool) -> None:
    both = colour and sys.stderr.isatty()
    if about_roles:
        sys.stderr.write(render_text(about_roles, {}, both) + "\n")
    for one in opened:
        if one.diagnostics:
            sys.stderr.write(one.rendered(both) + "\n")
        sys.stderr.flush()  # a verdict stands below its diagnostics, also when both go to one pipe
        say(f"{_verdict(one, colour)}\n")


def _verdict(one: Opened, colour: bool) -> str:
    errors = sum(diagnostic.severity == "error" for diagnostic in one.diagnostics)
    warnings = len(one.diagnostics) - errors
    counts = [_count(errors, "error")] * bool(errors) + [_count(warnings, "warning")] * bool(warnings)
    if one.fixed:
        counts.append(f"{one.fixed} fixed")
    word = paint("error", "red", colour) if errors else paint("ok", "green", colour)
    plan = one.plan
    name = f"{plan.name}@{plan.version}" if plan is not None else one.found.file
    where = ""
    if plan is not None:
        where = " (built in)" if one.found.origin == "builtin" else f" ({one.found.file})"
    tail = f": {', '.join(counts)}" if counts else ""
    return f"{word}  {plain(name + where)}{tail}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
