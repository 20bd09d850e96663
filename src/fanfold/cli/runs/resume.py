"""`fanfold resume`: go on with a run that paused, waits, or lost its process."""

from __future__ import annotations

import click

from fanfold.cli.command import Invocation, command, option
from fanfold.cli.runs.foreground import Foreground
from fanfold.cli.runs.outcome import say_detached, say_outcome
from fanfold.kernel.events import Raised
from fanfold.kernel.lifecycle import RUN_TERMINAL
from fanfold.runtime.operations.runs.background import resume_detached
from fanfold.runtime.operations.runs.ownership import take_over, write_files
from fanfold.runtime.operations.runs.starting.limits import check_budget, check_raised, micro_usd
from fanfold.runtime.operations.runs.starting.permission import permit_adopted


@command("resume", summary="Go on with a run that paused, waits or was killed")
@click.argument("run")
@option("--budget-usd", type=float, metavar="X", help="Raise what the whole run may spend to this.")
@option("--budget-tokens", type=int, metavar="N", help="Raise the tokens of the whole run to this.")
@option("--max-agents", type=int, metavar="N", help="Raise how many agents the whole run may start.")
@option("--max-steps", type=int, metavar="N", help="Raise how many steps the whole run may have.")
@option("--detach", is_flag=True, help="Return at once and go on in the background.")
@option("--yes", is_flag=True, help="Permit what an adopted run does; no other asks.")
def resume_command(
    call: Invocation,
    run: str,
    budget_usd: float | None,
    budget_tokens: int | None,
    max_agents: int | None,
    max_steps: int | None,
    detach: bool,
    yes: bool,
) -> int:
    """Go on with RUN: an id, the beginning of one, or `last`.

    Needs no other flags: recipe, inputs, script and permission are those the run was started with.
    Completed steps do not run again. A run that has ended is only shown, as `fanfold run` would have, and
    gets its files under `.fanfold/runs` back if they are gone. One that was in the folder when its state was
    adopted (fanfold state) shows what it does and asks first.
    """
    check_budget(budget_usd, budget_tokens, ("--budget-usd", "--budget-tokens"))
    with call.open_project() as project:
        root = project.resolve(run).root_run_id
        seen = project.view(root)
        if seen.root.status in RUN_TERMINAL:
            write_files(project, seen, if_missing=True)
            return say_outcome(call, seen)
        raised = check_raised(
            project, seen, Raised(max_agents, max_steps, budget_tokens, micro_usd(budget_usd))
        )
        terminal = Foreground(call)
        permit_adopted(project, seen, yes=yes, attendant=terminal.attendant)
        if detach:
            resume_detached(project, root, raised)
            return say_detached(call, seen)
        ask = None if terminal.attendant is None else terminal.attendant.allow
        return terminal.drive(take_over(project, root, ask), resumed=True, raised=raised)
