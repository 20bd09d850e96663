"""`fanfold list` and `fanfold show`: which recipes there are, and what one of them does."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from fanfold.cli.command import Invocation, command
from fanfold.cli.project import open_project
from fanfold.cli.terminal.output import hand_over, one_line, paint, plain, say, say_json, to_json
from fanfold.errors import EXIT_OK, AuthorError
from fanfold.kernel.plan import GroupAction, Input, Plan, Step
from fanfold.runtime.operations.recipes.catalogue import Picture, list_recipes, show_recipe
from fanfold.runtime.operations.recipes.checked import check_recipe

MAX_VALUE_CHARS = 60
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
                sys.stderr.write(f"warning: {plain(warning)}\n")
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
        if not call.as_json and picture is None:
            say("".join(_plan_text(check_recipe(project, recipe).runnable(), call.colour)))
            return EXIT_OK
        shown = show_recipe(project, recipe, picture)
    if call.as_json:
        say_json(shown)
    else:
        hand_over(shown.graph or "")
    return EXIT_OK


def _plan_text(plan: Plan, colour: bool) -> Iterator[str]:
    yield paint(f"{plan.name}@{plan.version}", "bold", colour) + "\n"
    if plan.description:
        yield f"{plain(plan.description)}\n"
    if plan.inputs:
        yield f"\n{paint('Inputs', 'bold', colour)}\n"
        names = max(len(one.name) for one in plan.inputs)
        kinds = max(len(_needed(one)) for one in plan.inputs)
        for one in plan.inputs:
            row = f"  {paint(one.name.ljust(names), 'cyan', colour)}  {_needed(one).ljust(kinds)}  "
            yield f"{row}{plain(one.description)}".rstrip() + "\n"
    yield f"\n{paint('Steps', 'bold', colour)}\n"
    rows = list(_step_rows(plan.steps, ""))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1, 2)]
    for name, who, marks, after in rows:
        named = paint(name.ljust(widths[0]), "cyan", colour)
        line = f"  {named}  {who.ljust(widths[1])}  {marks.ljust(widths[2])}  {paint(after, 'dim', colour)}"
        yield line.rstrip() + "\n"


def _needed(one: Input) -> str:
    kind = one.type or "any"
    if one.required:
        return f"{kind}, required"
    if not one.has_default:
        return kind
    return f"{kind} = {one_line(to_json(one.default), MAX_VALUE_CHARS)}"


def _step_rows(steps: tuple[Step, ...], indent: str) -> Iterator[tuple[str, str, str, str]]:
    from fanfold.runtime.views.graph.drawing import label, shown

    for step in steps:
        text = label(step)
        does = {"reader": "reads", "writer": "writes"}.get(text.kind, text.kind)
        who = plain(shown(text.subtitle)) if text.kind != "group" else ""
        marks = ", ".join([does, *text.marks]) if text.kind != "group" else ", ".join(text.marks) or "group"
        after = f"after {', '.join(step.depends_on)}" if step.depends_on else ""
        yield f"{indent}{step.id}", who, marks, after
        if isinstance(step.action, GroupAction):
            yield from _step_rows(step.action.steps, indent + "  ")
