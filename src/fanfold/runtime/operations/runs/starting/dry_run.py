"""What a run would do, before there is one: the forecast, and what speaks against starting it at all.

Nothing is opened that could be written to: no store, no workspace. So roles are taken to spend what is usual
for any, not what they spent here before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from fanfold.errors import WorldError
from fanfold.kernel.nodes import Node
from fanfold.kernel.plan import JSON
from fanfold.runtime.forecast.dryrun import dry_run
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.recipes.checked import CheckedRecipe, role_warnings
from fanfold.runtime.operations.runs.starting.creation import check_variables
from fanfold.runtime.operations.runs.starting.options import Options, settings_of
from fanfold.runtime.views.recipes.forecasts import DryRun


def foresee_run(
    project: Project,
    checked: CheckedRecipe,
    inputs: Mapping[str, JSON],
    options: Options,
    missing: Sequence[str] = (),
) -> tuple[DryRun, dict[str, Node]]:
    """The dry run; also the instance behind every path that starts.

    `inputs` are those that have a value; `missing` has a sentence for each that is required and has none.
    """
    plan, config = checked.runnable(), project.config
    settings = settings_of(config, plan, options)
    warnings = [d.message for d in (*role_warnings(project, [plan]).used, *checked.diagnostics)]
    enabled = config.switch("workflows.enabled")
    if not enabled:
        warnings.append(f"workflows are switched off ({config.origins['workflows.enabled']})")
    warnings += missing
    usable = True
    try:
        check_variables(config, plan)
    except WorldError as error:
        warnings.append(f"would be refused: {error.message}")
        usable = False
    if options.script is None:
        from fanfold.runtime.operations.runs.starting.preflight import foresee

        seen = foresee(project, plan, settings, options.backend, options.model)
        warnings += seen.warnings
        usable = usable and seen.usable
        settings = replace(settings, estimates=seen.estimates)
    allowed = enabled and usable and not missing
    return dry_run(plan, inputs, settings, warnings=warnings, allowed=allowed)
