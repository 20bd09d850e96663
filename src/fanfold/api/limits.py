"""Check the limits that people set when a run starts or resumes, and suggest higher ones."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from fanfold.api.project import Project
from fanfold.engine.config import Config, recipe_ceilings
from fanfold.errors import AuthorError
from fanfold.kernel.admission import reservation, stopped_at_budget
from fanfold.kernel.budget import Amount, Ledger
from fanfold.kernel.events import LimitsRaised
from fanfold.kernel.plan import GroupAction
from fanfold.kernel.state import BUDGET, LEAF, PENDING, READY, Composite, Map

if TYPE_CHECKING:
    from fanfold.engine.run_tree import RunTree


MAX_AGENTS = 2_000
"""The maximum of `--max-agents` without configuration."""

MIN_USD = 0.000_001
MAX_USD = 1_000_000_000

MAX_STEPS = 100_000
"""The same maximum as for `limits: {max_steps}` of a recipe."""


def check_concurrency(config: Config, value: int | None, said: str = "max_concurrency") -> None:
    """Refuse a concurrency above the configured maximum. `said` is the caller's name of the option."""
    ceiling, _ = recipe_ceilings(config)
    if value is not None and not 1 <= value <= ceiling:
        raise AuthorError(
            "usage.out_of_range",
            f"{said} must be from 1 to {ceiling}, not {value}",
            hint=f"[workflows] max_concurrent in {config.home}/config.toml raises it, to at most 1024",
        )


def check_budget(
    usd: float | None,
    tokens: int | None,
    said: tuple[str, str] = ("a budget in dollars", "a budget in tokens"),
) -> None:
    """Refuse budgets that are not positive amounts. `said` are the caller's names of the options."""
    if usd is not None and not MIN_USD <= usd <= MAX_USD:  # also refuses NaN
        message = f"{said[0]} must be at least {MIN_USD:f} and at most {MAX_USD:,}"
        raise AuthorError("usage.out_of_range", message)
    if tokens is not None and not 0 < tokens < sys.maxsize:
        raise AuthorError("usage.out_of_range", f"{said[1]} must be more than 0")


def micro_usd(usd: float | None) -> int | None:
    """Convert dollars to the unit of the ledger."""
    return None if usd is None else round(usd * 1_000_000)


def most_agents(config: Config) -> int:
    """Return the maximum of `--max-agents`: the default maximum, or a higher configured one."""
    return max(MAX_AGENTS, recipe_ceilings(config)[1])


def check_agents(config: Config, value: int | None, said: str = "max_agents") -> None:
    """Refuse a number of agents out of range. `said` is the caller's name of the option."""
    if value is not None and not 1 <= value <= most_agents(config):
        raise AuthorError(
            "usage.out_of_range",
            f"{said} must be from 1 to {most_agents(config)}, not {value}",
            hint=f"[workflows] max_agents in {config.home}/config.toml raises it",
        )


def limits_to_raise(tree: RunTree) -> LimitsRaised:
    """Suggest higher limits for a run that reached some: twice the limit, or the known need if higher.

    Empty if no value can be estimated, or if no higher limit is allowed.
    """
    state = tree.state
    reached = {limit for _, node, limit in state.starved if node.status == READY}
    agents = steps = None
    if "max_agents" in reached:
        agents = min(MAX_AGENTS, max(state.max_agents * 2, state.agents + _agents_to_come(tree)))
    if state.oversize:
        needed = sum(_instances(node) for _, node in state.oversize)
        made = state.instances + state.promised
        steps = min(MAX_STEPS, max(state.max_steps * 2, made + needed))
    agents = agents if agents is not None and agents > state.max_agents else None
    steps = steps if steps is not None and steps > state.max_steps else None
    stopped = stopped_at_budget(state)
    if BUDGET in reached or stopped:
        needs = [reservation(state, node) for _, node, limit in state.starved if limit == BUDGET]
        needs += [reservation(state, node) for node in stopped]
        tokens, money = _nearer_budget(state.ledger, max(needs, default=(1, 1)))
        return LimitsRaised(agents, steps, tokens, money)
    return LimitsRaised(agents, steps)


def how_to_raise(tree: RunTree) -> str:
    """Return the command that resumes a run with higher limits; empty if no flag raises the limit."""
    raised = limits_to_raise(tree)
    usd = None if raised.budget_micro_usd is None else f"{raised.budget_micro_usd / 1_000_000:g}"
    given = {
        "--max-agents": raised.max_agents,
        "--max-steps": raised.max_steps,
        "--budget-tokens": raised.budget_tokens,
        "--budget-usd": usd,
    }
    flags = [f"{name} {value}" for name, value in given.items() if value is not None]
    return f"fanfold resume {tree.root.id} {' '.join(flags)}" if flags else ""


def _agents_to_come(tree: RunTree) -> int:
    """Count the agents that are known to start later, each once."""
    return sum(
        node.kind == LEAF and node.step.traits.role is not None and node.status in (PENDING, READY)
        for run in tree.state.runs.values()
        for node in run.nodes.values()
    )


def _instances(node: Composite) -> int:
    """Return how many instances a composite will create."""
    if isinstance(node, Map):
        return node.count or 1
    action = node.step.action
    return len(action.steps) + 1 if isinstance(action, GroupAction) else 1


def _nearer_budget(ledger: Ledger, need: Amount) -> tuple[int | None, int | None]:
    """Return a higher value for the budget that is closer to its end: at least twice the current one.

    If prices are unknown, raise tokens: more dollars would stop the run again.
    """
    tokens, money = ledger.left()
    if ledger.max_micro_usd is not None and money is not None and not ledger.unknowable:
        left = money / max(1, ledger.max_micro_usd)
        if tokens is None or left <= tokens / max(1, ledger.max_tokens or 0):
            # Round up to cents: the printed value must not be less than the needed one.
            enough = max(ledger.max_micro_usd * 2, ledger.spent_micro_usd + 2 * need[1])
            return None, -(-enough // 10_000) * 10_000
    if ledger.max_tokens is None:
        return None, None
    return max(ledger.max_tokens * 2, ledger.spent_tokens + 2 * need[0]), None


def check_raised(project: Project, tree: RunTree, raised: LimitsRaised) -> LimitsRaised | None:
    """Check new limits for a resumed run; return None if nothing is raised."""
    check_agents(project.config, raised.max_agents, "--max-agents")
    ledger = tree.state.ledger
    _check("--max-agents", raised.max_agents, tree.state.max_agents, most_agents(project.config))
    _check("--max-steps", raised.max_steps, tree.state.max_steps, MAX_STEPS)
    for flag, given, spent in (
        ("--budget-tokens", raised.budget_tokens, ledger.spent_tokens),
        ("--budget-usd", raised.budget_micro_usd, ledger.spent_micro_usd),
    ):
        if given is not None and given <= spent:
            shown = f"{spent / 1_000_000:g}" if flag == "--budget-usd" else f"{spent}"
            message = f"{flag} must be more than the run has spent already, which is {shown}"
            raise AuthorError("usage.out_of_range", message)
    return None if raised == LimitsRaised() else raised


def _check(flag: str, value: int | None, held: int, ceiling: int, hint: str = "") -> None:
    """Check that a new limit is in range and higher than the current one."""
    if value is None:
        return
    if not 1 <= value <= ceiling:
        raise AuthorError("usage.out_of_range", f"{flag} must be from 1 to {ceiling}, not {value}", hint=hint)
    if value <= held:
        raise AuthorError("usage.out_of_range", f"{flag} {value} raises nothing: the run has {held}")
