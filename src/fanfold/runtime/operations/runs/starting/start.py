"""Starting a recipe: its inputs bound, its permission asked for, the run recorded.

One question at the start covers what the recipe declares, and what it will probably take where that is much
(see `spending`). Where nobody can answer, the answer is no.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from fanfold.kernel.plan import JSON, Plan
from fanfold.recipe.inputs import bind_inputs
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.ownership import Owned, check_enabled
from fanfold.runtime.operations.runs.starting.creation import check_variables, create
from fanfold.runtime.operations.runs.starting.options import Options
from fanfold.runtime.operations.runs.starting.permission import Attendant, permit
from fanfold.runtime.operations.runs.starting.spending import asked_about, foresee_spending


def start(
    project: Project,
    plan: Plan,
    given: Mapping[str, JSON],
    options: Options,
    *,
    yes: bool = False,
    attendant: Attendant | None = None,
) -> Owned:
    """Record a new run that may do what its recipe declares; raises `permission_denied` otherwise.

    `yes` answers every question about permission, this one and those that agents cause later.
    """
    bound = bind_inputs(plan, given)
    check_enabled(project)
    check_variables(project.config, plan)  # no question is asked whose answer would change nothing
    scripted = options.script is not None
    also: list[str] = []
    if options.permission == "ask" and not yes:
        also = asked_about(project.config, foresee_spending(project, plan, bound, options))
    permit(
        plan,
        project.roles.find,
        options.permission,
        yes=yes,
        attendant=attendant,
        also=also,
        scripted=scripted,
    )
    if yes and options.permission == "ask":
        options = structs.replace(options, permission="auto")
    return create(project, plan, bound, options, ask=None if attendant is None else attendant.allow)
