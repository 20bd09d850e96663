"""`fanfold check`: compile recipes and report all their problems."""

from __future__ import annotations

import sys

import click
from msgspec import UNSET

from fanfold.api.display import counted
from fanfold.api.recipes import (
    MISSING,
    CheckedRecipe,
    CheckReport,
    SuggestedSet,
    check_recipes,
    recipes_meant,
    role_warnings,
)
from fanfold.cli.command import Invocation, command, option
from fanfold.cli.output import notify, paint, plain, print_json, print_text, to_json
from fanfold.errors import EXIT_NOT_FOUND, EXIT_OK, EXIT_USAGE
from fanfold.language.diagnostics import render_github, render_text


@command("check", summary="Check recipes; report each problem with place and hint")
@click.argument("recipes", nargs=-1, metavar="[RECIPE…]")
@option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "github"]),
    help="Choose the format; github makes annotations.",
)
@option("--fix", is_flag=True, help="Apply mechanical fixes to the files, then check again.")
@option("--suggest", is_flag=True, help="Propose read and write sets that the latest runs used.")
def check_command(
    call: Invocation, recipes: tuple[str, ...], form: str | None, fix: bool, suggest: bool
) -> int:
    """Compile recipes without running anything.

    RECIPE is a file, the name of a recipe (fanfold list), or a folder of recipes; default: every recipe
    of the project. All problems are reported together. The exit status is 2 if a recipe has an error, 6
    if one does not exist. Warnings leave it 0.
    """
    with call.open_project() as project:
        checked = [(one, 0) for one in check_recipes(project, recipes_meant(project, recipes))]
        if fix:
            from fanfold.api import authoring

            checked = [authoring.fix(project, one) for one, _ in checked]
        about_roles = role_warnings(project, [one.plan for one, _ in checked])
        suggested: list[SuggestedSet] | None = None
        if suggest:
            from fanfold.api.authoring import suggest_sets

            plans = [one.plan for one, _ in checked if one.plan is not None]
            suggested = [found for plan in plans for found in suggest_sets(project, plan)]
    found = [one for one, _ in checked]
    chosen = "json" if call.as_json and form is None else form or "text"
    if chosen == "json":
        diagnostics = [*about_roles.used, *(diagnostic for one in found for diagnostic in one.diagnostics)]
        print_json(
            CheckReport(all(one.ok for one in found), diagnostics, UNSET if suggested is None else suggested)
        )
    elif chosen == "github":
        print_text(render_github(about_roles.used))
        print_text("".join(render_github(one.diagnostics) for one in found))
    else:
        both = call.colour and sys.stderr.isatty()
        if about_roles.used:
            notify(render_text(about_roles.used, {}, both) + "\n")
        if line := about_roles.line():
            notify(f"note: {line}\n")
        for recipe, fixed in checked:
            if recipe.diagnostics:
                notify(recipe.rendered(both) + "\n")
            print_text(f"{_verdict(recipe, fixed, call.colour)}\n")
        if suggested is not None:
            print_text("".join(map(_suggestion, suggested)) or NOTHING_SUGGESTED)
    if all(one.ok for one in found):
        return EXIT_OK
    missing = all(one.ok or one.found.origin == MISSING for one in found)
    return EXIT_NOT_FOUND if missing else EXIT_USAGE


NOTHING_SUGGESTED = "suggest  nothing: no run used more than the recipe declares\n"


def _suggestion(one: SuggestedSet) -> str:
    what = one.note or f"{one.key}: {to_json(one.proposed)}"
    evidence = f"declared: {', '.join(one.declared) or 'nothing'}; by {counted(one.runs, 'run')}"
    return f"suggest  {plain(f'{one.recipe} {one.step}  {what}  ({evidence})')}\n"


def _verdict(one: CheckedRecipe, fixed: int, colour: bool) -> str:
    errors = sum(diagnostic.severity == "error" for diagnostic in one.diagnostics)
    warnings = len(one.diagnostics) - errors
    counts = [counted(count, word) for count, word in ((errors, "error"), (warnings, "warning")) if count]
    if fixed:
        counts.append(f"{fixed} fixed")
    word = paint("error", "red", colour) if errors else paint("ok", "green", colour)
    plan = one.plan
    name = f"{plan.name}@{plan.version}" if plan is not None else one.found.file
    place = "built in" if one.found.origin == "builtin" else one.found.file
    where = "" if plan is None else f" ({place})"
    tail = f": {', '.join(counts)}" if counts else ""
    return f"{word}  {plain(name + where)}{tail}"
