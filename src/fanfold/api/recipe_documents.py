"""Documents of recipes, their checks and drafts, as every surface shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType, field

from fanfold.api.display import RunUsage
from fanfold.engine.forecast_documents import Agents, Cost
from fanfold.kernel.plan import JSON, GroupAction, Input, Limits, Plan, Step
from fanfold.language.diagnostics import Diagnostic
from fanfold.language.leaf_steps import AgentBody
from fanfold.language.step_grammar import find_body

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
    """The role or program that does the work."""
    marks: tuple[str, ...]
    """Special properties of the step: `for each`, `conditional`."""
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
    """Only if requested."""


class EditorSetUp(Struct, frozen=True, kw_only=True):
    """The result per file, `written` or `unchanged`; `note` has the remaining manual steps."""

    ok: bool = True
    schema: str = field(name=SCHEMA_FILE)
    settings: str = field(name=SETTINGS_FILE)
    note: str = ""


def recipe_document(plan: Plan, file: str, graph: str | None = None) -> RecipeDocument:
    """Return the document of a compiled recipe."""
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
    from fanfold.api.graph import label

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


# -----------------------------------------------------------------------------------------------------------
# Documents of drafted recipes and judged requests

Source: TypeAlias = Literal["model", "template"]


class Suitability(Struct, frozen=True):
    """Whether a request suits a workflow of several agents."""

    suitable: bool
    reason: str
    by: Literal["model", "patterns"]
    pattern: str = ""
    """The pattern that decided, if patterns answered."""
    note: str = ""
    """Why the model was not asked, or gave no answer."""
    usage: RunUsage | None = None
    """The usage of the model's answer."""


class DraftedSpec(Struct, frozen=True, kw_only=True):
    """A recipe drafted from a task, or the reason why there is none. It was checked, and nothing has run.

    `recipe` is the text that `run_workflow` and `save_workflow` take.
    """

    task: str
    fit: bool
    """False: one agent is better, and there is no recipe."""
    reason: str
    suggestion: str = ""
    """If it is not fit: the command that delegates the task to one agent."""
    source: Source
    name: str = ""
    recipe: str = ""
    rounds: int = 0
    """Number of rounds of the planner."""
    runs: list[str] = []
    """The runs of the planner."""
    document: RecipeDocument | None = None
    agents: Agents | None = None
    cost: Cost | None = None
    warnings: list[str] = []
    difference: str = ""
    """For a refinement: the changes as a unified diff."""
    saved: str = ""
    """The file it was saved to."""
