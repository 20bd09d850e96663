"""`fanfold list` and `fanfold show`: which recipes there are, and what one of them does."""

from __future__ import annotations

from collections.abc import Iterator

import click

from fanfold.cli.command import Invocation, command
from fanfold.cli.project import open_project
from fanfold.cli.terminal.output import hand_over, paint, plain, say, say_json, tell, to_json
from fanfold.errors import EXIT_OK, AuthorError
from fanfold.runtime.operations.recipes.catalogue import Picture, list_recipes, show_recipe
from fanfold.runtime.views.recipes import RecipeDocument, RecipeInput, RecipeStep
from fanfold.text.terminal import one_line

MAX_VALUE_CHARS = 60
MAX_LABEL_CHARS = 28
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
        say("".join(_text(found, call.colour)))
    return EXIT_OK


def _text(recipe: RecipeDocument, colour: bool) -> Iterator[str]:
    yield paint(f"{recipe.name}@{recipe.version}", "bold", colour) + "\n"
    if recipe.description:
        yield f"{plain(recipe.description)}\n"
    if recipe.inputs:
        yield f"\n{paint('Inputs', 'bold', colour)}\n"
        names = max(len(one.name) for one in recipe.inputs)
        kinds = max(len(_needed(one)) for one in recipe.inputs)
        for one in recipe.inputs:
            row = f"  {paint(one.name.ljust(names), 'cyan', colour)}  {_needed(one).ljust(kinds)}  "
            yield f"{row}{plain(one.description)}".rstrip() + "\n"
    yield f"\n{paint('Steps', 'bold', colour)}\n"
    rows = list(_step_rows(recipe.steps, ""))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1, 2)]
    for name, who, marks, after in rows:
        named = paint(name.ljust(widths[0]), "cyan", colour)
        line = f"  {named}  {who.ljust(widths[1])}  {marks.ljust(widths[2])}  {paint(after, 'dim', colour)}"
        yield line.rstrip() + "\n"


def _needed(one: RecipeInput) -> str:
    kind = one.type or "any"
    if one.required:
        return f"{kind}, required"
    return kind if one.default is None else f"{kind} = {one_line(to_json(one.default), MAX_VALUE_CHARS)}"


def _step_rows(steps: list[RecipeStep], indent: str) -> Iterator[tuple[str, str, str, str]]:
    for step in steps:
        does = step.type if step.role is None else "writes" if step.posture == "writer" else "reads"
        who = one_line(step.label, MAX_LABEL_CHARS) if step.type != "group" else ""
        marks = ", ".join(step.marks if step.type == "group" and step.marks else (does, *step.marks))
        after = f"after {', '.join(step.depends_on)}" if step.depends_on else ""
        yield f"{indent}{step.id}", who, marks, after
        yield from _step_rows(step.steps, indent + "  ")
