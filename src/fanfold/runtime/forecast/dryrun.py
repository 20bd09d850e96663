"""Dry run: what a run would do, computed from the plan alone. Starts nothing, writes nothing.

`DryRun` has exactly the keys that scripts read from `run --dry-run --json`; the instances beside it give
a surface what it needs to present the same facts to a person.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from fanfold.kernel.plan import JSON, Plan
from fanfold.runtime.forecast.expansion import MAX_INSTANCES, Expansion, Instance
from fanfold.runtime.forecast.waves import critical_path, find_conflicts, find_waves

DEFAULT_MAX_CONCURRENCY = 4
DEFAULT_MAX_AGENTS = 64
DEFAULT_MAX_STEPS = 1_000


class Conflict(Struct, frozen=True):
    """Two steps that no edge orders but that may not run at once; `on` is a path both claim."""

    a: str
    b: str
    on: str


class Agents(Struct, frozen=True):
    """Bounds of the sessions in the whole run tree, retries and iterations included."""

    min: int
    max: int


class Cost(Struct, frozen=True):
    usd_max: float | None
    """None: no bound is known."""


class DryRun(Struct, frozen=True):
    """The facts, in the shape scripts rely on."""

    waves: list[list[str]]
    conflicts: list[Conflict]
    conflicts_total: int
    critical_path: list[str]
    agents: Agents
    cost: Cost
    would_run: bool
    warnings: list[str]


def dry_run(
    plan: Plan,
    inputs: Mapping[str, JSON],
    *,
    max_concurrency: int | None = None,
    default_concurrency: int = DEFAULT_MAX_CONCURRENCY,
    default_agents: int = DEFAULT_MAX_AGENTS,
    budget_usd: float | None = None,
    warnings: Sequence[str] = (),
    allowed: bool = True,
) -> tuple[DryRun, dict[str, Instance]]:
    """Predict a run of `plan`; also the instance behind every path, for presentation.

    The flag's concurrency wins over the recipe's, and that over configuration.
    """
    expansion = Expansion(plan, inputs)
    nodes = expansion.nodes
    slots = max_concurrency or plan.limits.max_concurrency or default_concurrency
    waves = find_waves(expansion, slots)
    conflicts, total = find_conflicts(expansion)
    limits = list(_limit_warnings(plan, expansion, default_agents))
    result = DryRun(
        waves=[[nodes[i].path for i in wave] for wave in waves],
        conflicts=[Conflict(a, b, on) for a, b, on in conflicts],
        conflicts_total=total,
        critical_path=[nodes[i].path for i in critical_path(expansion)],
        agents=Agents(expansion.agents_min, expansion.agents_max),
        cost=Cost(_usd_max(plan, expansion, budget_usd)),
        would_run=allowed
        and not any(blocking for _, blocking in limits)
        and not any("would fail" in warning for warning in expansion.warnings),
        warnings=[*warnings, *expansion.warnings, *(text for text, _ in limits)],
    )
    return result, {node.path: node for node in nodes if node.step is not None}


def _usd_max(plan: Plan, expansion: Expansion, budget_usd: float | None) -> float | None:
    if expansion.agents_max == 0:
        return 0.0
    if budget_usd is not None:
        return budget_usd
    micro = plan.limits.budget.micro_usd
    return None if micro is None else micro / 1_000_000


def _limit_warnings(plan: Plan, expansion: Expansion, default_agents: int) -> list[tuple[str, bool]]:
    """What the limits mean for this run; True marks one that it cannot get past."""
    found: list[tuple[str, bool]] = []
    agents = plan.limits.max_agents or default_agents
    if expansion.agents_min > agents:
        found.append((f"needs at least {expansion.agents_min} agents, but max_agents is {agents}", True))
    elif expansion.agents_max > agents:
        text = f"may need up to {expansion.agents_max} agents; it would pause at max_agents ({agents})"
        found.append((text, False))
    steps = sum(node.step is not None for node in expansion.nodes)
    most = plan.limits.max_steps or DEFAULT_MAX_STEPS
    if steps > most or not expansion.complete:
        found.append((f"has more step instances than max_steps allows ({most})", steps > most))
    if not expansion.complete:
        found.append((f"only the first {MAX_INSTANCES:,} instances are shown", False))
    return found
