"""`fanfold` alone: what to do next here. What waits for a person comes first, then what can go on."""

from __future__ import annotations

import shlex

from msgspec import Struct

from fanfold.cli.command import Invocation, command
from fanfold.cli.project import open_project
from fanfold.cli.terminal.output import paint, plain, say, say_json
from fanfold.errors import EXIT_OK
from fanfold.kernel.lifecycle import RUN_TERMINAL, RUNNING
from fanfold.recipe.library import ListedRecipe
from fanfold.runtime.operations.history.listing import list_runs
from fanfold.runtime.operations.recipes.catalogue import list_recipes
from fanfold.runtime.views.runs.rows import RunRow

MAX_RUNS = 5
FIRST_RECIPE = "research-and-brief"


class Suggestion(Struct, frozen=True):
    """Something that can be done here, and the command that does it."""

    what: str
    command: str


@command("", summary="What to do next here")
def next_command(call: Invocation) -> int:
    """Say what waits for you in this project, and what you can do next."""
    with open_project(call, to_read=True) as project:
        runs = list_runs(project, limit=MAX_RUNS)
        recipes = list_recipes(project)
    found = [*(_about(run) for run in runs), *_about_recipes(recipes, bool(runs))]
    if call.as_json:
        say_json(found)
        return EXIT_OK
    for one in found:
        say(f"{plain(one.what)}\n  {paint(one.command, 'cyan', call.colour)}\n")
    say(f"All commands\n  {paint('fanfold --help', 'cyan', call.colour)}\n")
    return EXIT_OK


def _about(run: RunRow) -> Suggestion:
    named = f"{run.recipe}, run {run.run_id},"
    if run.status == RUNNING:
        if run.owner and run.owner.alive:
            return Suggestion(f"{named} is running", f"fanfold watch {run.run_id}")
        return Suggestion(f"{named} lost its process", f"fanfold resume {run.run_id}")
    if run.status not in RUN_TERMINAL:
        waits = run.status.replace("_", " ")
        verb = "explain" if waits.startswith("waiting") else "resume"
        return Suggestion(f"{named} is {waits}", f"fanfold {verb} {run.run_id}")
    verb = "inspect" if run.status == "completed" else "explain"
    return Suggestion(f"{named} is {run.status}", f"fanfold {verb} {run.run_id}")


def _about_recipes(recipes: list[ListedRecipe], has_runs: bool) -> list[Suggestion]:
    own = [one for one in recipes if one.origin == "project"]
    if own:
        name = shlex.quote(own[0].name)
        many = f"{len(own)} recipes of this project, " if len(own) > 1 else ""
        return [Suggestion(f"{many}what {own[0].name} does and takes", f"fanfold show {name}")]
    found = [Suggestion("Begin a project: a recipe to look at, and its script", "fanfold init")]
    if not has_runs:
        told = f'fanfold run {FIRST_RECIPE} -i topic="solid-state batteries" --dry-run'
        found.append(Suggestion("See what a built-in recipe would do, without running it", told))
    return found
