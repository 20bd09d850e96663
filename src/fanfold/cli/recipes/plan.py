"""`fanfold plan`: draft a recipe from a task, or change one that is there; shown, checked, never run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click
from msgspec import Struct, structs

from fanfold.cli.command import Invocation, command, option
from fanfold.cli.inputs import read_options
from fanfold.cli.recipes.recipe_text import recipe_text
from fanfold.cli.terminal.output import hand_over, paint, plain, tell
from fanfold.errors import AuthorError
from fanfold.runtime.views.recipes.specs import DraftedSpec
from fanfold.text.terminal import one_line

if TYPE_CHECKING:
    from fanfold.runtime.operations.project import Project
    from fanfold.runtime.operations.runs.starting.options import Options


class PlanFlags(Struct, frozen=True, kw_only=True):
    """What the command line says besides the task."""

    save: str | None
    replace: bool
    refine: str | None
    model: str | None
    no_model: bool
    anyway: bool
    script: str | None


@command("plan", summary="Draft a recipe in phases from a task, or refine one")
@click.argument("task")
@option("--save", metavar="NAME", help="Save it as a recipe of this project.")
@option("--replace", is_flag=True, help="With --save: also over a recipe of that name.")
@option("--refine", metavar="FILE", help="Change this recipe (a file or a name) as TASK says.")
@option("--model", metavar="M", help="Model of the planner; default: FANFOLD_WORKFLOW_MODEL.")
@option("--no-model", is_flag=True, help="Fill in a template for this kind of task.")
@option("--anyway", is_flag=True, help="Fill in a template also for what looks like one agent's work.")
@option("--script", metavar="FILE", help="A scripted planner instead of a model, for tests.")
def plan_command(call: Invocation, task: str, **given: object) -> None:
    """Draft a recipe for TASK: phases, agents, gates. It is checked and priced, and nothing of it runs.

    The recipe goes to stdout, what is to be said about it to stderr. A planner drafts it where there is a
    model, and is told what the compiler says until the draft is valid; otherwise a template is filled in.
    What one agent does better is said to be so.
    """
    flags = PlanFlags(**given)  # type: ignore[arg-type]  # click gives exactly these
    if flags.no_model and (flags.model or flags.script):
        raise AuthorError("usage.conflicting_options", "--no-model excludes --model and --script")
    with call.open_project() as project:
        options = read_options(project.folder, model=flags.model, script=flags.script)
        asyncio.run(plan_and_show(call, project, task, flags, options))


async def plan_and_show(
    call: Invocation, project: Project, task: str, flags: PlanFlags, options: Options
) -> None:
    """Draft what is asked for, save it where that is wanted too, and show it."""
    from fanfold.runtime.operations.recipes.checked import require_savable, save_recipe
    from fanfold.runtime.operations.specs.draft import Wanted, draft_spec

    if flags.save is not None and not flags.replace:
        require_savable(project, flags.save)
    wanted = Wanted(
        task=task,
        name=flags.save,
        refine=None if flags.refine is None else project.find_recipe(flags.refine),
        use_model=not flags.no_model,
        anyway=flags.anyway,
        no_model="--no-model",
    )

    def narrate(line: str) -> None:
        if not call.as_json:
            tell(paint(f"  · {one_line(line, 160)}", "dim", call.colour) + "\n")

    drafted = await draft_spec(project, wanted, options, narrate=narrate)
    if flags.save is not None and drafted.fit:
        file = save_recipe(project, flags.save, drafted.recipe, replace=flags.replace)
        drafted = structs.replace(drafted, saved=str(file))
    call.give(drafted, lambda: _show(call, drafted, flags))


def _show(call: Invocation, drafted: DraftedSpec, flags: PlanFlags) -> None:
    if not drafted.fit:
        tell(f"Not for a workflow: {one_line(drafted.reason, 500)}\n")
        tell(f"One agent does it: {plain(drafted.suggestion)}\n")
        if flags.save is not None:
            tell("Nothing was saved.\n")
        return
    assert drafted.document is not None, "a draft that is fit was compiled"
    hand_over(drafted.difference or drafted.recipe)
    tell("\n" + recipe_text(drafted.document, colour=False))
    tell(f"\n{_origin(drafted)}\n{_size(drafted)}\n")
    for warning in drafted.warnings:
        tell(f"warning: {one_line(warning)}\n")
    if drafted.saved:
        tell(f"{paint('saved', 'green', call.colour)} {plain(drafted.saved)}\n")
        tell(f"Run it: {_how_to_run(drafted, str(flags.save))}\n")
    else:
        tell("Nothing was saved; --save NAME keeps it.\n")


def _how_to_run(drafted: DraftedSpec, name: str) -> str:
    assert drafted.document is not None, "it was saved"
    needed = [one.name for one in drafted.document.inputs if one.required]
    return " ".join([f"fanfold run {name}", *(f"-i {one}=…" for one in needed)])


def _origin(drafted: DraftedSpec) -> str:
    if drafted.source == "template":
        return f"From a template: {one_line(drafted.reason, 500)}"
    rounds = "in one round" if drafted.rounds == 1 else f"in {drafted.rounds} rounds"
    return f"Drafted by the planner {rounds}: {one_line(drafted.reason, 500)}"


def _size(drafted: DraftedSpec) -> str:
    agents, cost = drafted.agents, drafted.cost
    assert agents is not None
    bound = cost.usd_max if cost is not None else None
    price = "price unknown" if bound is None else f"at most ${bound:.2f}"
    return f"{agents.min:,} to {agents.max:,} agents, {price}"
