"""`fanfold resume`: go on with a run that paused, waits, or lost its process."""

from __future__ import annotations

from collections.abc import Mapping

import click

from fanfold.cli.command import Call, command
from fanfold.cli.stored import stored
from fanfold.errors import AuthorError
from fanfold.kernel.lifecycle import RUN_TERMINAL
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.operations.project import Project, raised
from fanfold.store.protocol import LeaseHeld

MAX_STEPS = 100_000
"""As for `limits: {max_steps}` of a recipe."""


@command("resume", summary="Go on with a run that paused, waits or was killed")
@click.argument("run")
@click.option("--budget-usd", type=float, metavar="X", help="Raise what the whole run may spend to this.")
@click.option("--budget-tokens", type=int, metavar="N", help="Raise the tokens of the whole run to this.")
@click.option("--max-agents", type=int, metavar="N", help="Raise how many agents the whole run may start.")
@click.option("--max-steps", type=int, metavar="N", help="Raise how many steps the whole run may have.")
@click.option("--detach", is_flag=True, help="Return at once and go on in the background.")
def resume_command(
    call: Call,
    run: str,
    budget_usd: float | None,
    budget_tokens: int | None,
    max_agents: int | None,
    max_steps: int | None,
    detach: bool,
) -> int:
    """Go on with RUN: an id, the beginning of one, or `last`.

    Needs no other flags: recipe, inputs, script and permission are those the run was started with.
    Completed steps do not run again. A run that has ended is only shown, as `fanfold run` would have.
    """
    from fanfold.cli.runs.outcome import say_outcome
    from fanfold.cli.runs.run import check_budget

    check_budget(budget_usd, budget_tokens)
    with stored(call) as project:
        root = project.resolve(run).root_run_id
        seen = project.view(root)
        if seen.root.status in RUN_TERMINAL:
            return say_outcome(call, seen)
        agents_ceiling = project.config.integer("ceilings.agents")
        hint = "[ceilings] agents in .fanfold/config.toml raises the maximum"
        _check_raised("--max-agents", max_agents, seen.state.max_agents, agents_ceiling, hint)
        _check_raised("--max-steps", max_steps, seen.state.max_steps, MAX_STEPS)
        if detach:
            given = {"--budget-usd": budget_usd, "--budget-tokens": budget_tokens}
            return _detach(
                call, project, seen, {**given, "--max-agents": max_agents, "--max-steps": max_steps}
            )
        micro_usd = None if budget_usd is None else round(budget_usd * 1_000_000)
        from fanfold.cli.runs.foreground import go_on

        limits = raised(max_agents, budget_tokens, micro_usd, max_steps)
        return go_on(call, project, take(project, root), limits)


def take(project: Project, root: str) -> RunTree:
    """Own a run, or say which process does."""
    try:
        return project.own(root)
    except LeaseHeld as held:
        pid = held.details.get("pid")
        held.hint = f"fanfold watch {root} follows it; fanfold pause {root} stops process {pid} safely"
        raise


def _check_raised(flag: str, value: int | None, held: int, ceiling: int, hint: str = "") -> None:
    """A new limit must be one, and must be higher than the one that holds."""
    if value is None:
        return
    if not 1 <= value <= ceiling:
        raise AuthorError("usage.out_of_range", f"{flag} must be from 1 to {ceiling}, not {value}", hint=hint)
    if value <= held:
        raise AuthorError("usage.out_of_range", f"{flag} {value} raises nothing: the run has {held}")


def _detach(call: Call, project: Project, tree: RunTree, given: Mapping[str, float | None]) -> int:
    from fanfold.cli.runs.background import hand_over

    owner = project.store.owner(tree.root.id)
    if owner is not None and owner[1]:
        take(project, tree.root.id)  # refused with the words for it
    flags = [part for name, value in given.items() if value is not None for part in (name, str(value))]
    return hand_over(call, project, tree, *flags)
