"""Limits that people give to a run, when it starts or when it goes on: what they may be."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

from fanfold.errors import AuthorError
from fanfold.kernel.events import Raised
from fanfold.runtime.operations.project import Project

if TYPE_CHECKING:
    from fanfold.kernel.budget import Ledger
    from fanfold.runtime.hosting.run_tree import RunTree

MAX_STEPS = 100_000
"""As for `limits: {max_steps}` of a recipe."""


def check_concurrency(project: Project, value: int | None) -> None:
    """How many steps at once is bounded by configuration."""
    ceiling = project.config.integer("ceilings.concurrency")
    if value is not None and not 1 <= value <= ceiling:
        raise AuthorError(
            "usage.out_of_range",
            f"--max-concurrency must be from 1 to {ceiling}, not {value}",
            hint="[ceilings] concurrency in .fanfold/config.toml raises the maximum, to at most 1024",
        )


def check_budget(usd: float | None, tokens: int | None) -> None:
    """Budgets are amounts one can spend."""
    if usd is not None and not (math.isfinite(usd) and usd > 0):
        raise AuthorError("usage.out_of_range", "--budget-usd must be more than 0")
    if tokens is not None and not 0 < tokens < sys.maxsize:
        raise AuthorError("usage.out_of_range", "--budget-tokens must be more than 0")


def micro_usd(usd: float | None) -> int | None:
    """Dollars as the ledger counts them."""
    return None if usd is None else round(usd * 1_000_000)


def limits_to_raise(tree: RunTree) -> Raised:
    """Limits with which a run could go on that reached some: twice those. Empty where nobody can guess."""
    state = tree.state
    reached = {limit for _, _, limit in state.starved}
    agents = state.max_agents * 2 if "max_agents" in reached else None
    steps = state.max_steps * 2 if state.oversize else None
    if (agents is None and steps is None) or "budget" in reached:
        tokens, micro_usd = _nearer_budget(state.ledger)
        return Raised(agents, steps, tokens, micro_usd)
    return Raised(agents, steps)


def _nearer_budget(ledger: Ledger) -> tuple[int | None, int | None]:
    """Twice the budget that is nearer to its end; where only a part of the run has one, whichever it is.

    Tokens, where prices are unknown: more dollars would stop the run again.
    """
    tokens, micro_usd = ledger.left()
    if ledger.max_micro_usd is not None and micro_usd is not None and not ledger.unknowable:
        left = micro_usd / max(1, ledger.max_micro_usd)
        if tokens is None or left <= tokens / max(1, ledger.max_tokens or 0):
            return None, ledger.max_micro_usd * 2
    return None if ledger.max_tokens is None else ledger.max_tokens * 2, None


def check_raised(project: Project, tree: RunTree, raised: Raised) -> Raised | None:
    """New limits for a run that goes on; None when nothing is raised."""
    ceiling = project.config.integer("ceilings.agents")
    hint = "[ceilings] agents in .fanfold/config.toml raises the maximum"
    _check("--max-agents", raised.max_agents, tree.state.max_agents, ceiling, hint)
    _check("--max-steps", raised.max_steps, tree.state.max_steps, MAX_STEPS)
    return None if raised == Raised() else raised


def _check(flag: str, value: int | None, held: int, ceiling: int, hint: str = "") -> None:
    """A new limit must be one, and must be higher than the one that holds."""
    if value is None:
        return
    if not 1 <= value <= ceiling:
        raise AuthorError("usage.out_of_range", f"{flag} must be from 1 to {ceiling}, not {value}", hint=hint)
    if value <= held:
        raise AuthorError("usage.out_of_range", f"{flag} {value} raises nothing: the run has {held}")
