"""Tools for recipes: draft one from a task, and keep one in the project's library."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, structs

from fanfold.errors import AuthorError
from fanfold.kernel.plan import JSON
from fanfold.runtime.operations.agents import subagents
from fanfold.runtime.operations.agents.capture import Captured, capture
from fanfold.runtime.operations.recipes.checked import CheckedRecipe, require_savable, save_recipe
from fanfold.runtime.operations.specs.draft import Wanted, checked_wish, draft_spec
from fanfold.runtime.views.recipes.forecasts import Agents, Cost
from fanfold.text.excerpts import shorten
from fanfold.tools.caller import Caller
from fanfold.tools.following import narrated
from fanfold.tools.permission import permit
from fanfold.tools.recipe_sources import check_text, found_recipe, text_of
from fanfold.tools.subagents import DryRunFlag
from fanfold.tools.tool import shared_fields, tool


class PlanWorkflow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    task: Annotated[str, Meta(min_length=1, description="what is to be done, in a few sentences")]
    name: Annotated[str, Meta(description="what to call the recipe")] = ""
    refine: Annotated[str, Meta(description="a saved recipe that `task` says how to change")] = ""
    use_model: Annotated[
        bool, Meta(description="false fills in a template for this kind of task instead; it costs nothing")
    ] = True
    dry_run: DryRunFlag = False


class PlannedWorkflow(Struct, frozen=True, kw_only=True):
    """A checked draft; nothing of it has run. Hand `recipe` to run_workflow or save_workflow."""

    ok: bool
    fit: bool
    """False: one agent does it better, for the reason given; use task or spawn_agent."""
    reason: str
    name: str = ""
    recipe: str = ""
    difference: str = ""
    agents: Agents | None = None
    cost: Cost | None = None
    warnings: list[str] = []
    runs: list[str] = []
    would: str = ""


class SaveWorkflow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, description="name, or name@2 for a second version")]
    recipe: Annotated[
        str | dict[str, JSON] | None, Meta(description="a recipe, as YAML text or as an object")
    ] = None
    agents: Annotated[
        list[str],
        Meta(
            description="instead of a recipe: subagents of yours, whose work becomes one that does it again"
        ),
    ] = []
    replace: Annotated[bool, Meta(description="also over a recipe of that name")] = False
    dry_run: Annotated[bool, Meta(description="only check it; nothing is written")] = False


class SavedWorkflow(Struct, frozen=True, kw_only=True):
    ok: bool
    name: str
    file: str
    """Empty where it was only tried."""
    warnings: list[str]
    recipe: str = ""
    """Where it was made from the work of subagents: its text."""
    guessed: list[str] = []
    """What of it a person should look at."""


@tool(
    "Draft a workflow",
    "Draft a recipe in phases from a task (or refine a saved one): checked and"
    " priced, never run. Use it when the work has several phases or will be wanted again. It says"
    " when one agent would do better. Show the draft to the user, then run_workflow with it as"
    " `spec`, or save_workflow.",
    mutates=True,
)
async def plan_workflow(caller: Caller, asked: PlanWorkflow) -> PlannedWorkflow:
    refine = found_recipe(caller.project, asked.refine) if asked.refine else None
    wanted = Wanted(
        task=asked.task,
        name=asked.name or None,
        refine=refine,
        use_model=asked.use_model,
        no_model="use_model: false",
    )
    wanted = checked_wish(wanted)
    if asked.dry_run:
        would = "ask the planner for a draft" if asked.use_model else "fill in a template"
        return PlannedWorkflow(ok=True, fit=True, reason="", would=would)
    if asked.use_model:
        await permit(caller, "have a workflow planned", [f"the task: {shorten(asked.task, 500)}"])
    async with narrated(caller) as narrate:
        drafted = await draft_spec(caller.project, wanted, caller.options, narrate=narrate)
    return PlannedWorkflow(ok=True, **shared_fields(drafted, PlannedWorkflow))


@tool(
    "Keep a workflow",
    "Save a recipe in this project's library, so that it can be run again by its"
    " name. Give its text, or the subagents whose work it is to repeat. It is checked first; one"
    " with errors is refused with its diagnostics.",
    mutates=True,
)
async def save_workflow(caller: Caller, asked: SaveWorkflow) -> SavedWorkflow:
    text, made = _wanted(caller, asked)
    checked = check_text(caller.project, text)
    plan = checked.runnable()
    steps = _steps(checked)
    require_savable(caller.project, asked.name, replace=asked.replace)
    saved = SavedWorkflow(
        ok=True,
        name=asked.name,
        file="",
        warnings=[one.message for one in checked.diagnostics],
        recipe=text if made is not None else "",
        guessed=list(made.guessed) if made is not None else [],
    )
    if asked.dry_run:
        return saved
    lines = [f"recipe {plan.name}: {steps}", "replaces one of that name" if asked.replace else ""]
    await permit(caller, f"save the recipe {asked.name}", [line for line in lines if line])
    file = save_recipe(caller.project, asked.name, text, replace=asked.replace)
    return structs.replace(saved, file=str(file))


def _wanted(caller: Caller, asked: SaveWorkflow) -> tuple[str, Captured | None]:
    """The text to save, and what it was recovered from, if it was."""
    if (asked.recipe is None) == (not asked.agents):
        raise AuthorError("usage.conflict", "give either a recipe or the subagents that did the work")
    if asked.recipe is not None:
        return text_of(asked.recipe), None
    run = caller.open_run or subagents.current_run(caller.project)
    made = capture(caller.project, run, children=asked.agents, name=asked.name.partition("@")[0])
    return made.recipe, made


def _steps(checked: CheckedRecipe) -> str:
    ids = [step.id for step in checked.runnable().steps]
    if not ids:
        raise AuthorError("recipe.missing_key", "a recipe without steps is not worth keeping")
    return f"{', '.join(ids[:10])}{' …' if len(ids) > 10 else ''}"
