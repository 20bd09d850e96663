"""Limits that people give to a run, when it starts or when it goes on: what they may be."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from fanfold.errors import AuthorError
from fanfold.kernel.budget import Amount, Ledger
from fanfold.kernel.events import Raised
from fanfold.kernel.fold.admission import reservation
from fanfold.kernel.lifecycle import PENDING, READY
from fanfold.kernel.nodes import LEAF, Composite, Map
from fanfold.kernel.plan import GroupAction
from fanfold.runtime.config import Config
from fanfold.runtime.operations.project import Project

if TYPE_CHECKING:
    from fanfold.runtime.hosting.run_tree import RunTree


MAX_AGENTS = 2_000
"""What `--max-agents` may say without any configuration."""

MIN_USD = 0.000_001
MAX_USD = 1_000_000_000

MAX_STEPS = 100_000
"""As for `limits: {max_steps}` of a recipe."""


def check_concurrency(config: Config, value: int | None, said: str = "max_concurrency") -> None:
    """How many steps at once is bounded by configuration; `said` is how whoever asks calls it."""
    ceiling = config.integer("ceilings.concurrency")
    if value is not None and not 1 <= value <= ceiling:
        raise AuthorError(
            "usage.out_of_range",
            f"{said} must be from 1 to {ceiling}, not {value}",
            hint=f"[ceilings] concurrency in {config.home}/config.toml raises it, to at most 1024",
        )


def check_budget(
    usd: float | None,
    tokens: int | None,
    said: tuple[str, str] = ("a budget in dollars", "a budget in tokens"),
) -> None:
    """Budgets are amounts one can spend; `said` is how whoever asks calls the two."""
    if usd is not None and not MIN_USD <= usd <= MAX_USD:  # neither is what is no number
        message = f"{said[0]} must be at least {MIN_USD:f} and at most {MAX_USD:,}"
        raise AuthorError("usage.out_of_range", message)
    if tokens is not None and not 0 < tokens < sys.maxsize:
        raise AuthorError("usage.out_of_range", f"{said[1]} must be more than 0")


def micro_usd(usd: float | None) -> int | None:
    """Dollars as the ledger counts them."""
    return None if usd is None else round(usd * 1_000_000)


def most_agents(config: Config) -> int:
    """How far `--max-agents` goes: as far as anybody may want without configuring it, or further."""
    return max(MAX_AGENTS, config.integer("ceilings.agents"))


def check_agents(config: Config, value: int | None, said: str = "max_agents") -> None:
    """How many agents a run may start; `said` is how whoever asks calls it."""
    if value is not None and not 1 <= value <= most_agents(config):
        raise AuthorError(
            "usage.out_of_range",
            f"{said} must be from 1 to {most_agents(config)}, not {value}",
            hint=f"[ceilings] agents in {config.home}/config.toml raises it",
        )


def limits_to_raise(tree: RunTree) -> Raised:
    """Limits with which a run could go on that reached some: twice those, or all that is known to be needed.

    Empty where nobody can guess, or where no limit that may be given is higher.
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
    if "budget" in reached:
        needs = [reservation(state, node) for _, node, limit in state.starved if limit == "budget"]
        tokens, money = _nearer_budget(state.ledger, max(needs, default=(1, 1)))
        return Raised(agents, steps, tokens, money)
    return Raised(agents, steps)


def how_to_raise(tree: RunTree) -> str:
    """The command with which a run goes on that reached a limit; empty where no flag lifts it."""
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
    """Agents that are known to be still to start, each of them once."""
    return sum(
        node.kind == LEAF and node.step.traits.role is not None and node.status in (PENDING, READY)
        for run in tree.state.runs.values()
        for node in run.nodes.values()
    )


def _instances(node: Composite) -> int:
    """How many instances a composite makes when it may."""
    if isinstance(node, Map):
        return node.count or 1
    action = node.step.action
    return len(action.steps) + 1 if isinstance(action, GroupAction) else 1


def _nearer_budget(ledger: Ledger, need: Amount) -> tuple[int | None, int | None]:
    """Of the budget that is nearer to its end: twice it, or more where more is spent and needed already.

    Tokens, where prices are unknown: more dollars would stop the run again.
    """
    tokens, money = ledger.left()
    if ledger.max_micro_usd is not None and money is not None and not ledger.unknowable:
        left = money / max(1, ledger.max_micro_usd)
        if tokens is None or left <= tokens / max(1, ledger.max_tokens or 0):
            # To the cent above: what is printed must not be less than what is needed.
            enough = max(ledger.max_micro_usd * 2, ledger.spent_micro_usd + 2 * need[1])
            return None, -(-enough // 10_000) * 10_000
    if ledger.max_tokens is None:
        return None, None
    return max(ledger.max_tokens * 2, ledger.spent_tokens + 2 * need[0]), None


def check_raised(project: Project, tree: RunTree, raised: Raised) -> Raised | None:
    """New limits for a run that goes on; None when nothing is raised."""
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
    return None if raised == Raised() else raised


def _check(flag: str, value: int | None, held: int, ceiling: int, hint: str = "") -> None:
    """A new limit must be one, and must be higher than the one that holds."""
    if value is None:
        return
    if not 1 <= value <= ceiling:
        raise AuthorError("usage.out_of_range", f"{flag} must be from 1 to {ceiling}, not {value}", hint=hint)
    if value <= held:
        raise AuthorError("usage.out_of_range", f"{flag} {value} raises nothing: the run has {held}")
