"""`fanfold list` and `fanfold show`: which recipes there are, and what one of them does."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator

import click

from fanfold.cli.command import Invocation, command, option
from fanfold.cli.recipes.recipe_text import recipe_text
from fanfold.cli.terminal.output import hand_over, paint, plain, tell
from fanfold.errors import AuthorError
from fanfold.recipe.library import ListedRecipe
from fanfold.runtime.operations.recipes.checked import Picture, show_recipe
from fanfold.text.terminal import visible

MIN_WORDS = 16
_ORIGINS = {"project": "This project", "user": "Yours", "builtin": "Built in"}


@command("list", summary="List the recipes known here")
def list_command(call: Invocation) -> None:
    """List recipes by name: the project's, yours, and those built in."""
    with call.open_project() as project:
        entries = project.library.list()
    call.give(entries, lambda: _table(entries, call.colour))
    for entry in entries if not call.as_json else ():
        for warning in entry.warnings:
            tell(f"warning: {plain(warning)}\n")


def _table(entries: list[ListedRecipe], colour: bool) -> Iterator[str]:
    width = max((len(f"{entry.name}@{entry.version}") for entry in entries), default=0)
    wide = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for origin, heading in _ORIGINS.items():
        here = [entry for entry in entries if entry.origin == origin]
        if here:
            yield f"{paint(heading, 'bold', colour)}\n"
        for entry in here:
            name = f"{entry.name}@{entry.version}".ljust(width)
            about = plain(entry.description)
            if wide is not None:  # as with roles: what it is for gives way
                about = visible(" ".join(about.split()), width=max(wide - width - 4, MIN_WORDS))
            yield f"  {paint(name, 'cyan', colour)}  {about}\n"


@command("show", summary="Show a recipe's inputs and graph, as text, Mermaid or SVG")
@click.argument("recipe", metavar="NAME[@V]")
@option("--mermaid", is_flag=True, help="The graph as Mermaid text.")
@option("--svg", is_flag=True, help="The graph as an SVG picture.")
def show_command(call: Invocation, recipe: str, mermaid: bool, svg: bool) -> None:
    """Show what a recipe takes and does; NAME may also be a file."""
    if mermaid and svg:
        raise AuthorError("usage.conflicting_options", "--mermaid and --svg exclude each other")
    picture: Picture | None = "mermaid" if mermaid else "svg" if svg else None
    with call.open_project() as project:
        found = show_recipe(project, recipe, picture)
    if picture is not None:
        call.give(found, lambda: hand_over(found.graph or ""))
    else:
        call.give(found, lambda: recipe_text(found, colour=call.colour))
