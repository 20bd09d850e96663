"""Sets that steps of a recipe could declare, by what its runs really touched."""

from __future__ import annotations

from fanfold.kernel.plan import Plan
from fanfold.runtime.operations.project import Project
from fanfold.runtime.views.recipes.documents import SuggestedSet
from fanfold.runtime.views.steps.used_sets import StepTouch, plan_steps, suggest, touched_by

MAX_RUNS = 20
"""The latest of them are looked at."""


def suggest_sets(project: Project, plan: Plan) -> list[SuggestedSet]:
    """What the latest runs of a recipe suggest, as root runs and as child runs."""
    if not project.has_runs:
        return []
    heads = [head for head in project.store.heads(roots_only=False, limit=-1) if head.recipe == plan.name]
    seen: dict[str, StepTouch] = {}
    for head in heads[:MAX_RUNS]:
        tree = project.view(head.root_run_id)
        run = tree.state.runs.get(head.run_id)
        if run is not None:
            touched_by(tree, run, seen)
    return suggest(plan.name, plan_steps(plan.steps), seen)
