"""Commands about recipes: `list`, `show`, `plan`, `convert`, `capture`, `schema`."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import structs

from fanfold.api.authoring import (
    MODELINE,
    CaptureResult,
    capture,
    convert_file,
    recipe_of_run,
    recipe_schema,
    set_up_editors,
)
from fanfold.api.project import Project
from fanfold.api.recipes import (
    SCHEMA_FILE,
    SETTINGS_FILE,
    DraftedSpec,
    DraftRequest,
    Picture,
    RecipeDocument,
    RecipeInput,
    RecipeStep,
    require_savable,
    save_recipe,
    show_recipe,
)
from fanfold.cli.command import Invocation, command, option, read_options, write_file
from fanfold.cli.output import notify, paint, plain, print_json, print_result, print_text, to_json
from fanfold.errors import EXIT_OK, EXIT_USAGE, AuthorError, NotFoundError
from fanfold.language.convert.formats import SYSTEMS
from fanfold.language.library import ListedRecipe
from fanfold.language.terminal import one_line, visible

if TYPE_CHECKING:
    from fanfold.api.run_options import Options


# -----------------------------------------------------------------------------------------------------------
# A recipe as text: its inputs, and its steps with their agents and dependencies.

MAX_VALUE_CHARS = 60
MAX_LABEL_CHARS = 28


def recipe_lines(recipe: RecipeDocument, *, colour: bool) -> Iterator[str]:
    """Yield the name, the inputs and the steps of a recipe."""
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
    """Yield the commands of gates that the files of the project define, uncut, below the table."""
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


MIN_WORDS = 16
_ORIGINS = {"project": "This project", "user": "Yours", "builtin": "Built in"}


@command("list", summary="List the recipes of this project")
def list_command(call: Invocation) -> None:
    """List recipes by name: the project's, yours, and the built-in ones."""
    with call.open_project() as project:
        entries = project.library.list()
    call.give(entries, lambda: _table(entries, call.colour))
    for entry in entries if not call.as_json else ():
        for warning in entry.warnings:
            notify(f"warning: {plain(warning)}\n")


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
            if wide is not None:  # as with roles: descriptions are cut first
                about = visible(" ".join(about.split()), width=max(wide - width - 4, MIN_WORDS))
            yield f"  {paint(name, 'cyan', colour)}  {about}\n"


def _is_run(project: Project, name: str) -> bool:
    try:
        project.resolve(name)
    except NotFoundError:
        return False
    return True


@command("show", summary="Show inputs and graph of a recipe (text, Mermaid, SVG)")
@click.argument("recipe", metavar="NAME[@V]|RUN")
@option("--mermaid", is_flag=True, help="Print the graph as Mermaid text.")
@option("--svg", is_flag=True, help="Print the graph as SVG.")
def show_command(call: Invocation, recipe: str, mermaid: bool, svg: bool) -> None:
    """Show inputs and graph of a recipe (name or file), or the recipe text of a RUN."""
    if mermaid and svg:
        raise AuthorError("usage.conflicting_options", "--mermaid and --svg exclude each other")
    picture: Picture | None = "mermaid" if mermaid else "svg" if svg else None
    with call.open_project() as project:
        try:
            found = show_recipe(project, recipe, picture)
        except NotFoundError:
            if picture is not None or not _is_run(project, recipe):
                raise
            text = recipe_of_run(project, recipe)
            call.give({"run": recipe, "recipe": text}, lambda: print_result(text))
            return
    if picture is not None:
        call.give(found, lambda: print_result(found.graph or ""))
    else:
        call.give(found, lambda: recipe_lines(found, colour=call.colour))


@command("capture", summary="Turn a run into a recipe")
@click.argument("run")
@click.argument("children", nargs=-1, metavar="[SUBAGENT…]")
@option("--name", metavar="N", help="Save it as a recipe of the project.")
@option("--replace", is_flag=True, help="Overwrite a recipe of that name.")
@option("--request", metavar="TEXT", default="", help="State the request; its words become inputs.")
def capture_command(
    call: Invocation, run: str, children: tuple[str, ...], name: str | None, replace: bool, request: str
) -> int:
    """Show RUN as a recipe, with recognised parts and guesses; --name saves it.

    A run of a workflow gives its own recipe. RUN may also be an open run, such as a chat or hand (fanfold
    ps); SUBAGENT selects some of its children. Outputs in later prompts become references, prompts of one
    shape become a map, words of the request become inputs.
    """
    with call.open_project(to_read=name is None) as project:
        found = capture(
            project,
            run,
            children=children,
            name=name or "",
            request=request,
            save=name is not None,
            replace=replace,
        )
    wrong = any(one.severity == "error" for one in found.diagnostics)
    call.give(found, lambda: print_result(found.recipe))
    if not call.as_json:
        notify(notes_text(found, call.colour))
    return EXIT_USAGE if wrong else EXIT_OK


def notes_text(found: CaptureResult, colour: bool) -> str:
    """Yield notes about a capture: recognised, guessed and omitted parts, and the saved file."""
    left_out = [f"{one.name}: {one.why}" for one in found.left_out]
    problems = [f"{one.severity}[{one.code}]: {one.message}" for one in found.diagnostics]
    lines = []
    for heading, notes in (
        ("Recognised", found.recognised),
        ("Guessed, look at it", found.guessed),
        ("Left out", left_out),
        ("Problems", problems),
    ):
        if notes:
            lines += [paint(heading, "bold", colour), *(f"  {plain(note)}" for note in notes)]
    if found.file is not None:
        lines += [f"saved as {plain(found.file)}", f"fanfold run {found.name} runs it"]
    else:
        lines.append(f"fanfold capture {found.run_id} --name {found.name} saves it")
    return "".join(f"{line}\n" for line in lines)


@command("convert", summary="Convert a workflow of another system; list the losses")
@click.argument("file")
@option(
    "--from",
    "system",
    type=click.Choice(SYSTEMS),
    help="Name the system; default: detected from the file.",
)
@option("-o", "--output", metavar="FILE", help="Write the recipe to a file instead of stdout.")
def convert_command(call: Invocation, file: str, system: str | None, output: str | None) -> int:
    """Convert FILE: a workflow of protoAgent, Conductor, Archon or CrewAI, or a script of Claude Code.

    The file is read, never executed. Parts without a counterpart are listed with their lines on stderr.
    """
    with call.open_project() as project:
        try:
            made = convert_file(project, Path(file), system)
        except OSError as error:
            hint = "name the workflow file in the folder" if Path(file).is_dir() else ""
            message = f"{file} cannot be read: {error.strerror}"
            raise AuthorError("convert.unreadable", message, hint=hint) from None
        top = project.folder
    if call.as_json:
        print_json(made)
        return EXIT_OK if made.ok else EXIT_USAGE
    if output is not None:
        hints = {FileExistsError: "say another name, or remove it", IsADirectoryError: "name a file in it"}
        write_file(top, Path(output), made.text, hints=hints)
        notify(f"wrote {plain(output)}\n")
    else:
        print_result(made.text)
    for one in made.lost:
        why = f": {plain(one.why)}" if one.why else ""
        where = plain(str(Path(file).parent / one.file) if one.file else file)
        notify(f"{where}:{one.line}: not carried over: {plain(one.what)}{why}\n")
    for problem in made.diagnostics:
        place = f"{plain(output or 'recipe')}:{problem.range.start.line}"
        notify(f"{place}: {plain(problem.message)} [{problem.code}]\n")
        if problem.help:
            notify(f"  hint: {plain(problem.help)}\n")
    return EXIT_OK if made.ok else EXIT_USAGE


@command("plan", summary="Draft a recipe from a task, or refine one")
@click.argument("task")
@option("--save", metavar="NAME", help="Save it as a recipe of this project.")
@option("--replace", is_flag=True, help="With --save: overwrite a recipe of that name.")
@option("--refine", metavar="FILE", help="Change this recipe (file or name) as TASK describes.")
@option("--model", metavar="M", help="Draft with M; default: FANFOLD_WORKFLOW_MODEL.")
@option("--no-model", is_flag=True, help="Fill in a template instead of asking a model.")
@option("--anyway", is_flag=True, help="Draft a recipe even for work that suits one agent.")
@option("--script", metavar="FILE", help="Use a scripted planner instead of a model.")
def plan_command(
    call: Invocation, task: str, replace: bool, no_model: bool, anyway: bool, **given: str | None
) -> None:
    """Draft a recipe for TASK with phases, agents and gates. It is checked and priced, and not run.

    The recipe goes to stdout, notes to stderr. With a model, a planner drafts it and gets compiler errors
    until it is valid; otherwise a template is filled in. For work that suits one agent, the command names
    that agent instead.
    """
    if no_model and (given["model"] or given["script"]):
        raise AuthorError("usage.conflicting_options", "--no-model excludes --model and --script")
    with call.open_project() as project:
        options = read_options(project, model=given["model"], script=given["script"])
        found = None if (refine := given["refine"]) is None else project.find_recipe(refine)
        name = given["save"]
        wanted = DraftRequest(task=task, name=name, refine=found, use_model=not no_model, anyway=anyway)
        asyncio.run(plan_and_show(call, project, wanted, options, replace=replace))


async def plan_and_show(
    call: Invocation, project: Project, wanted: DraftRequest, options: Options, *, replace: bool
) -> DraftedSpec:
    """Draft a recipe for a task, save it if a name is given, and show it."""
    from fanfold.api.planning import draft_spec

    if wanted.name is not None and not replace:
        require_savable(project, wanted.name)

    def narrate(line: str) -> None:
        if not call.as_json:
            notify(paint(f"  · {one_line(line, 160)}", "dim", call.colour) + "\n")

    wanted = structs.replace(wanted, no_model="--no-model")
    drafted = await draft_spec(project, wanted, options, narrate=narrate)
    if wanted.name is not None and drafted.fit:
        file = save_recipe(project, wanted.name, drafted.recipe, replace=replace)
        drafted = structs.replace(drafted, saved=str(file))
    call.give(drafted, lambda: _show(call, drafted, wanted.name))
    return drafted


def _show(call: Invocation, drafted: DraftedSpec, name: str | None) -> None:
    if not drafted.fit:
        notify(f"Not for a workflow: {one_line(drafted.reason, 500)}\n")
        notify(f"One agent does it: {plain(drafted.suggestion)}\n")
        if name is not None:
            notify("Nothing was saved.\n")
        return
    assert drafted.document is not None, "a draft that is fit was compiled"
    print_result(drafted.difference or drafted.recipe)
    notify("".join(["\n", *recipe_lines(drafted.document, colour=False)]))
    assert drafted.agents is not None, "and priced"
    origin = "From a template"
    if drafted.source != "template":
        rounds = "in one round" if drafted.rounds == 1 else f"in {drafted.rounds} rounds"
        origin = f"Drafted by the planner {rounds}"
    bound = drafted.cost.usd_max if drafted.cost is not None else None
    price = "price unknown" if bound is None else f"at most ${bound:.2f}"
    notify(f"\n{origin}: {one_line(drafted.reason, 500)}\n{drafted.agents.told()}, {price}\n")
    for warning in drafted.warnings:
        notify(f"warning: {one_line(warning)}\n")
    if drafted.saved:
        notify(f"{paint('saved', 'green', call.colour)} {plain(drafted.saved)}\n")
        needed = [f" -i {one.name}=…" for one in drafted.document.inputs if one.required]
        notify(f"Run it: fanfold run {name}{''.join(needed)}\n")
    else:
        notify("Nothing was saved; --save NAME keeps it.\n")


@command("schema", summary="Print the JSON Schema of recipes, or set up editors")
@option("--install", is_flag=True, help=f"Write {SCHEMA_FILE} and register it in VS Code.")
def schema_command(call: Invocation, install: bool) -> None:
    """Print the JSON Schema of recipes, with the roles known here.

    With --install, editors that support YAML schemas complete and check recipes while you type. Repeat it
    to update the schema.
    """
    with call.open_project() as project:
        if not install:
            print_text(recipe_schema(project))
            return
        done = set_up_editors(project)
    lines = [f"{done.schema}  {SCHEMA_FILE}", f"{done.settings}  {SETTINGS_FILE}", *filter(None, [done.note])]
    lines += ["In other editors, put this first in a recipe of .fanfold/workflows:", f"  {MODELINE}"]
    call.give(done, lambda: (f"{line}\n" for line in lines))
