"""`fanfold run`: check the recipe, bind its inputs, then run it or predict the run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import Struct, structs

from fanfold.cli.command import PERMISSION, UNSAFE, Invocation, command, option
from fanfold.cli.inputs import given_inputs, read_options
from fanfold.cli.terminal.output import tell
from fanfold.errors import EXIT_OK
from fanfold.kernel.plan import JSON, Plan
from fanfold.recipe.inputs import bind_inputs, bind_known
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.recipes.checked import (
    CheckedRecipe,
    check_recipe,
    role_warnings,
)
from fanfold.runtime.operations.runs.starting.limits import (
    check_agents,
    check_budget,
    check_concurrency,
    micro_usd,
)
from fanfold.text.terminal import one_line

if TYPE_CHECKING:
    from fanfold.runtime.operations.runs.starting.options import Options


class RunFlags(Struct, frozen=True, kw_only=True):
    """What the command line fixes for one run."""

    model: str | None
    agent_backend: str | None
    max_concurrency: int | None
    max_agents: int | None
    budget_usd: float | None
    budget_tokens: int | None
    permission: str | None
    yes: bool
    unsafe_no_sandbox: bool
    script: str | None


@command("run", summary="Run a recipe, or predict the run with --dry-run")
@click.argument("recipe")
@option("-i", "--input", "pairs", multiple=True, metavar="NAME=VALUE", help="One input; may be repeated.")
@option("--inputs", "file", metavar="FILE", help="Inputs as a JSON or YAML map; -i wins over it.")
@option("--model", metavar="M", help="Model for steps that name none.")
@option("--agent-backend", metavar="B", help="Back end for roles that name none.")
@option("--max-concurrency", type=int, metavar="N", help="How many steps may run at once.")
@option("--max-agents", type=int, metavar="N", help="How many agents the whole run may start.")
@option("--budget-usd", type=float, metavar="X", help="Pause before spending more than this.")
@option("--budget-tokens", type=int, metavar="N", help="Pause before using more tokens than this.")
@PERMISSION
@option("--dry-run", is_flag=True, help="Show waves, conflicts, critical path and bounds; write nothing.")
@option("--detach", is_flag=True, help="Return at once and go on in the background.")
@option("--yes", is_flag=True, help="Answer permission questions with yes; never an approval step.")
@UNSAFE
@option("--script", metavar="FILE", help="Scripted agents instead of models, for tests.")
def run_command(
    call: Invocation,
    recipe: str,
    pairs: tuple[str, ...],
    file: str | None,
    dry_run: bool,
    detach: bool,
    **given: object,
) -> int:
    """Run RECIPE, a file or the name of a recipe (fanfold list).

    The result goes to stdout, progress to stderr. Ctrl-C pauses the run so that it can be resumed; a
    second one stops at once. SIGTERM and a terminal that is closed pause it too.
    """
    flags = RunFlags(**given)  # type: ignore[arg-type]  # click gives exactly these
    with call.open_project() as project:
        checked = check_recipe(project, recipe, scripted=flags.script is not None)
        plan = checked.runnable()
        check_concurrency(project.config, flags.max_concurrency, "--max-concurrency")
        check_agents(project.config, flags.max_agents, "--max-agents")
        check_budget(flags.budget_usd, flags.budget_tokens, ("--budget-usd", "--budget-tokens"))
        typed = given_inputs(project.folder, plan, pairs, file)
        if dry_run:
            _predict(call, project, checked, *bind_known(plan, typed), flags)
            return EXIT_OK
        inputs = bind_inputs(plan, typed)
        for one in role_warnings(project, [plan]).used:
            place = f"{one.file}:{one.range.start.line}"
            tell(f"warning[{one.code}]: {one_line(one.message)} ({one_line(place)})\n")
        return _run(call, project, plan, inputs, flags, detach)


def _run(
    call: Invocation, project: Project, plan: Plan, inputs: dict[str, JSON], flags: RunFlags, detach: bool
) -> int:
    # A prediction needs none of what carries out a run.
    from fanfold.cli.runs.foreground import Foreground
    from fanfold.runtime.operations.runs.starting.creation import start

    options = _options(project.folder, flags, flags.script)
    terminal = Foreground(call)
    owned = start(project, plan, inputs, options, yes=flags.yes, attendant=terminal.attendant)
    for name in owned.tree.frozen().instructions.cut:
        tell(f"warning[instructions.cut]: {one_line(name)} is too long: agents are told its first sections\n")
    if detach:
        from fanfold.cli.runs.outcome import say_detached
        from fanfold.runtime.operations.runs.background import hand_over

        hand_over(owned)
        return say_detached(call, owned.tree)
    return terminal.drive(owned)


def _options(project: Path, flags: RunFlags, script: str | None) -> Options:
    given = structs.asdict(structs.replace(flags, script=script))
    given["budget_micro_usd"] = micro_usd(given.pop("budget_usd"))
    del given["yes"]
    return read_options(project, **given)


def _predict(
    call: Invocation,
    project: Project,
    checked: CheckedRecipe,
    inputs: dict[str, JSON],
    missing: list[str],
    flags: RunFlags,
) -> None:
    from fanfold.runtime.operations.runs.starting.dry_run import foresee_run

    # Whether there is a script matters, not what it says.
    options = structs.replace(_options(project.folder, flags, None), script=flags.script)
    result, steps = foresee_run(project, checked, inputs, options, missing)

    def text() -> str:
        from fanfold.cli.runs.dry_run_text import render

        return render(checked.runnable(), result, steps, call.colour)

    call.give(result, text)
