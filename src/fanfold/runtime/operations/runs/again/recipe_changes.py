"""How a recipe differs from what a run was made of: which steps say something else now.

Only what decides about a result makes a finished step run again: what is asked, of whom, with which values,
in which shape, and whether at all. How it is carried out (model, turns, time-out, retries, limits, sets)
matters to steps that run again and leaves finished ones alone, so that raising a time-out for the three items
that needed it does not repeat the other ninety-seven.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fanfold.kernel.nodes import Node
from fanfold.kernel.plan import JSON, GroupAction, LeafAction, Plan, Step, WorkflowAction
from fanfold.runtime.views.runs.rows import StepUsage
from fanfold.runtime.views.steps.used_sets import recipe_path


class RecipeChanges(Struct, frozen=True, kw_only=True):
    """How a recipe differs from what a run was made of. Steps by their path in the recipe; those of a
    sub-workflow follow its name and a colon.
    """

    added: list[str] = []
    removed: list[str] = []
    changed: list[str] = []
    """They say something else: what they gave is not reused."""
    tuned: list[str] = []
    """They are carried out differently: what they gave is reused."""
    roles: list[str] = []
    """Roles whose file says something else; it holds for steps that run again."""
    others: list[str] = []
    """Parts of the recipe beside its steps: inputs, output, limits."""


class ForkForecast(Struct, frozen=True):
    """What would be reused and what would run again; steps are tree paths."""

    source_run_id: str
    reuses: list[str]
    runs_again: list[str]
    keeps_failures: list[str]
    """Failures that were tolerated: they stay what they are."""
    agents: int
    last_time: StepUsage
    """What the steps that run again took in the source; the best guess there is."""
    merged: dict[str, int]
    """Files that steps which run again had put into the project: they stay there."""
    goes_on: dict[str, int]
    """Steps that go on with a conversation, and behind which of its turns."""
    recipe: RecipeChanges
    asks: list[str]
    """What it needs permission for that the source was not given."""


_MANNER = ("model", "reasoning_effort", "max_turns")
"""Keys of a step's body that say how, not what."""


def reaches(changes: RecipeChanges, node: Node) -> bool:
    """Whether what an instance gave is not reused, because its step says something else now."""
    call = node.run.call
    workflow = call.step.action.workflow if call and isinstance(call.step.action, WorkflowAction) else ""
    return _named(workflow, recipe_path(node)) in changes.changed


def compare(old: Plan, new: Plan) -> RecipeChanges:
    """What a recipe, with all it calls, says that it did not say then."""
    before, after = dict(_steps(old)), dict(_steps(new))
    both = [name for name in before if name in after]
    changed = [name for name in both if _meaning(before[name]) != _meaning(after[name])]
    return RecipeChanges(
        added=[name for name in after if name not in before],
        removed=[name for name in before if name not in after],
        changed=changed,
        tuned=[name for name in both if name not in changed and _alone(before[name]) != _alone(after[name])],
        others=[name for name in ("inputs", "output", "limits") if getattr(old, name) != getattr(new, name)],
    )


def _steps(plan: Plan) -> Iterator[tuple[str, Step]]:
    yield from _below("", "", plan.steps)
    for workflow, called in plan.workflows.items():
        yield from _below(workflow, "", called.steps)


def _below(workflow: str, prefix: str, steps: tuple[Step, ...]) -> Iterator[tuple[str, Step]]:
    for step in steps:
        path = f"{prefix}{step.id}"
        yield _named(workflow, path), step
        if isinstance(step.action, GroupAction):
            yield from _below(workflow, f"{path}/", step.action.steps)


def _named(workflow: str, path: str) -> str:
    return f"{workflow}: {path}" if workflow else path


def _alone(step: Step) -> Step:
    """A step without those inside it, which are compared themselves, and without what only readers see."""
    if isinstance(step.action, GroupAction):
        step = replace(step, action=replace(step.action, steps=(), goal=""))
    return replace(step, description="", key="", read_by=())


def _meaning(step: Step) -> JSON:
    """What decides about a step's result."""
    alone = _alone(step)
    action = alone.action
    said: object = action
    if isinstance(action, LeafAction):
        said = (action.type, _without_manner(action.body))
    elif isinstance(action, GroupAction):
        said = (action.output, action.phase)
    return msgspec.to_builtins(
        (
            said,
            step.when,
            step.for_each,
            step.item_name,
            step.repeat.until if step.repeat is not None else None,
            None if step.fold is None else _meaning(step.fold),
            step.output_schema,
            step.outputs,
            step.inputs,
        )
    )


def _without_manner(body: Mapping[str, JSON]) -> dict[str, JSON]:
    return {name: value for name, value in body.items() if name not in _MANNER}
