"""`fanfold resume`: go on with a run that paused, waits, or lost its process."""

from __future__ import annotations

import click

from fanfold.cli.command import Call, command
from fanfold.cli.stored import stored
from fanfold.errors import AuthorError
from fanfold.kernel.lifecycle import RUN_TERMINAL
from fanfold.runtime.project import Project, raised
from fanfold.runtime.run_tree import RunTree
from fanfold.store.protocol import LeaseHeld


@command("resume", summary="Go on with a run that paused, waits or was killed")
@click.argument("run")
@click.option("--budget-usd", type=float, metavar="X", help="Raise what the whole run may spend to this.")
@click.option("--budget-tokens", type=int, metavar="N", help="Raise the tokens of the whole run to this.")
@click.option("--max-agents", type=int, metavar="N", help="Raise how many agents the whole run may start.")
@click.option("--detach", is_flag=True, help="Return at once and go on in the background.")
def resume_command(
    call: Call,
    run: str,
    budget_usd: float | None,
    budget_tokens: int | None,
    max_agents: int | None,
    detach: bool,
) -> int:
    """Go on with RUN: an id, the beginning of one, or `last`.

    Needs no other flags: recipe, inputs, script and permission are those the run was started with.
    Completed steps do not run again. A run that has ended is only shown, as `fanfold run` would have.
    """
    from fanfold.cli.outcome import say_outcome
    from fanfold.cli.run import check_budget

    check_budget(budget_usd, budget_tokens)
    with stored(call) as project:
        root = project.resolve(run).root_run_id
        seen = project.view(root)
        if seen.root.status in RUN_TERMINAL:
            return say_outcome(call, seen)
        _check_agents(project, seen, max_agents)
        if detach:
            return _detach(call, project, seen, budget_usd, budget_tokens, max_agents)
        micro_usd = None if budget_usd is None else round(budget_usd * 1_000_000)
        from fanfold.cli.driving import go_on

        return go_on(call, project, take(project, root), raised(max_agents, budget_tokens, micro_usd))


def take(project: Project, root: str) -> RunTree:
    """Own a run, or say which process does."""
    try:
        return project.own(root)
    except LeaseHeld as held:
        pid = held.details.get("pid")
        held.hint = f"fanfold watch {root} follows it; fanfold pause {root} stops process {pid} safely"
        raise


def _check_agents(project: Project, tree: RunTree, agents: int | None) -> None:
    ceiling = project.config.integer("ceilings.agents")
    if agents is not None and not 1 <= agents <= ceiling:
        raise AuthorError(
            "usage.out_of_range",
            f"--max-agents must be from 1 to {ceiling}, not {agents}",
            hint="[ceilings] agents in .fanfold/config.toml raises the maximum",
        )
    if agents is not None and agents <= tree.state.max_agents:
        raise AuthorError(
            "usage.out_of_range", f"--max-agents {agents} raises nothing: the run has {tree.state.max_agents}"
        )


def _detach(
    call: Call, project: Project, tree: RunTree, usd: float | None, tokens: int | None, agents: int | None
) -> int:
    from fanfold.cli.detaching import hand_over

    owner = project.store.owner(tree.root.id)
    if owner is not None and owner[1]:
        take(project, tree.root.id)  # refused with the words for it
    given = {"--budget-usd": usd, "--budget-tokens": tokens, "--max-agents": agents}
    flags = [part for name, value in given.items() if value is not None for part in (name, str(value))]
    return hand_over(call, project, tree, *flags)
