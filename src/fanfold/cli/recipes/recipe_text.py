"""A recipe for people: what it takes, and its steps with who does them and what they wait for."""

from __future__ import annotations

from collections.abc import Iterator

from fanfold.cli.terminal.output import paint, plain, to_json
from fanfold.runtime.views.recipes.documents import RecipeDocument, RecipeInput, RecipeStep
from fanfold.text.terminal import one_line

MAX_VALUE_CHARS = 60
MAX_LABEL_CHARS = 28


def recipe_text(recipe: RecipeDocument, *, colour: bool) -> str:
    """Name, inputs and steps."""
    return "".join(_lines(recipe, colour))


def _lines(recipe: RecipeDocument, colour: bool) -> Iterator[str]:
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
    yield from _commands(recipe.steps, "", colour)


def _commands(steps: list[RecipeStep], path: str, colour: bool) -> Iterator[str]:
    """Commands that say what they are for, as gates that the project's files decide do: whole, whatever the
    width of the table."""
    for step in steps:
        if step.type == "command" and step.description:
            what = f"{plain(path + step.id)}, {one_line(step.description)}"
            yield f"\n{paint(what, 'dim', colour)}:\n  {one_line(step.label)}\n"
        yield from _commands(step.steps, f"{path}{step.id}/", colour)


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
