"""`fanfold list` and `fanfold show`: which recipes there are, and what one of them does."""

from __future__ import annotations

import click

from fanfold.cli.command import Invocation, command
from fanfold.cli.project import open_project
from fanfold.cli.recipes.recipe_text import recipe_text
from fanfold.cli.terminal.output import hand_over, paint, plain, say, say_json, tell
from fanfold.errors import EXIT_OK, AuthorError
from fanfold.runtime.operations.recipes.checked import Picture, list_recipes, show_recipe

_ORIGINS = {"project": "This project", "user": "Yours", "builtin": "Built in"}


@command("list", summary="List the recipes known here")
def list_command(call: Invocation) -> int:
    """List recipes by name: the project's, yours, and those built in."""
    with open_project(call) as project:
        entries = list_recipes(project)
    if call.as_json:
        say_json(entries)
        return EXIT_OK
    width = max((len(f"{entry.name}@{entry.version}") for entry in entries), default=0)
    for origin, heading in _ORIGINS.items():
        here = [entry for entry in entries if entry.origin == origin]
        if here:
            say(f"{paint(heading, 'bold', call.colour)}\n")
        for entry in here:
            name = f"{entry.name}@{entry.version}".ljust(width)
            say(f"  {paint(name, 'cyan', call.colour)}  {plain(entry.description)}\n")
            for warning in entry.warnings:
                tell(f"warning: {plain(warning)}\n")
    return EXIT_OK


@command("show", summary="Show a recipe's inputs and graph, as text, Mermaid or SVG")
@click.argument("recipe", metavar="NAME[@V]")
@click.option("--mermaid", is_flag=True, help="The graph as Mermaid text.")
@click.option("--svg", is_flag=True, help="The graph as an SVG picture.")
def show_command(call: Invocation, recipe: str, mermaid: bool, svg: bool) -> int:
    """Show what a recipe takes and does; NAME may also be a file."""
    if mermaid and svg:
        raise AuthorError("usage.conflicting_options", "--mermaid and --svg exclude each other")
    picture: Picture | None = "mermaid" if mermaid else "svg" if svg else None
    with open_project(call) as project:
        found = show_recipe(project, recipe, picture)
    if call.as_json:
        say_json(found)
    elif picture is not None:
        hand_over(found.graph or "")
    else:
        say(recipe_text(found, colour=call.colour))
    return EXIT_OK
