"""Recipes as every surface shows them: what they take and do, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType, field

from fanfold.kernel.plan import JSON, GroupAction, Input, Limits, Plan, Step
from fanfold.recipe.types.agent import AgentBody
from fanfold.recipe.types.body import find_body
from fanfold.text.diagnostics import Diagnostic

SCHEMA_FILE = ".fanfold/recipe.schema.json"
SETTINGS_FILE = ".vscode/settings.json"


class RecipeInput(Struct, frozen=True):
    name: str
    type: str | None
    required: bool
    default: JSON
    enum: tuple[JSON, ...] | None
    description: str


class RecipeStep(Struct, frozen=True):
    """A step of a recipe; a group holds others."""

    id: str
    type: str
    label: str
    """Who or what does it."""
    marks: tuple[str, ...]
    """What is special about it, in words: `for each`, `conditional`."""
    description: str
    role: str | None
    posture: str
    depends_on: tuple[str, ...]
    when: str | None
    for_each: str | None
    max_iterations: int | None
    read_set: tuple[str, ...]
    write_set: tuple[str, ...]
    steps: list[RecipeStep]


class RecipeDocument(Struct, frozen=True):
    """What a recipe takes and does; `graph` where a picture was asked for."""

    name: str
    version: int
    description: str
    file: str
    inputs: list[RecipeInput]
    steps: list[RecipeStep]
    limits: Limits
    graph: str | UnsetType = UNSET


class SuggestedSet(Struct, frozen=True, kw_only=True):
    """A set that a step could declare. `step` is its path in the recipe, `runs` how many were looked at."""

    recipe: str
    step: str
    key: str
    declared: list[str]
    proposed: list[str]
    runs: int
    note: str = ""


class CheckReport(Struct, frozen=True):
    """What is wrong with recipes; warnings alone leave them ok."""

    ok: bool
    diagnostics: Sequence[Diagnostic]
    suggestions: Sequence[SuggestedSet] | UnsetType = UNSET
    """Only where they were asked for."""


class EditorSetUp(Struct, frozen=True, kw_only=True):
    """`written` or `unchanged`, for each file; `note` says what is left to do by hand."""

    ok: bool = True
    schema: str = field(name=SCHEMA_FILE)
    settings: str = field(name=SETTINGS_FILE)
    note: str = ""


def recipe_document(plan: Plan, file: str, graph: str | None = None) -> RecipeDocument:
    """A compiled recipe."""
    return RecipeDocument(
        name=plan.name,
        version=plan.version,
        description=plan.description,
        file=file,
        inputs=[_input(one) for one in plan.inputs],
        steps=[_step(step) for step in plan.steps],
        limits=plan.limits,
        graph=UNSET if graph is None else graph,
    )


def _input(one: Input) -> RecipeInput:
    return RecipeInput(one.name, one.type, one.required, one.default, one.enum, one.description)


def _step(step: Step) -> RecipeStep:
    from fanfold.runtime.views.graph.boxes import label

    inner = step.action.steps if isinstance(step.action, GroupAction) else ()
    said = find_body(AgentBody, step)
    text = label(step)
    return RecipeStep(
        id=step.id,
        type=step.type,
        label=text.subtitle,
        marks=text.marks,
        description=step.description,
        role=None if said is None else said.agent,
        posture=step.posture,
        depends_on=step.depends_on,
        when=step.when,
        for_each=step.for_each,
        max_iterations=step.repeat.max_iterations if step.repeat is not None else None,
        read_set=step.read_set,
        write_set=step.write_set,
        steps=[_step(one) for one in inner],
    )
