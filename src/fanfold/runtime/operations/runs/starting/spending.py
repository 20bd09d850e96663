"""What a run will probably take, and whether that is so much that somebody is asked first.

A recipe that only reads needs no permission for what it does, but fifty agents are a bill. So a run that will
probably start more agents, or spend more, than the user's own configuration lets pass is asked about at its
start, like one that writes. A project's configuration has no say in it. Nobody is asked about scripted
agents, nor about what a budget of the run rules out.

The forecast is that of the dry run: lists that are known are counted, any other stands for one item.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fanfold.kernel.plan import JSON, Plan
from fanfold.runtime.config import Config
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.starting.options import Options, settings_of
from fanfold.runtime.records.frozen import all_steps_below

AGENTS, CENTS = "permission.ask_above_agents", "permission.ask_above_cents"


class Spending(NamedTuple):
    """What a run will probably take; a price that nobody knows counts as nothing."""

    agents: int
    micro_usd: int


def foresee_spending(project: Project, plan: Plan, inputs: Mapping[str, JSON], options: Options) -> Spending:
    """What a run of a plan will probably take, within the limits that it has."""
    if options.script is not None or not any(step.traits.role for step in all_steps_below(plan)):
        return Spending(0, 0)
    from fanfold.runtime.forecast.foresight import Foresight
    from fanfold.runtime.forecast.host import ForecastHost
    from fanfold.runtime.operations.runs.starting.preflight import usual_estimates

    settings = settings_of(project.config, plan, options)
    host = ForecastHost(plan, settings, Foresight(inputs))
    host.drive()
    roles = [role for begun in host.begun if (role := begun.node.step.traits.role) is not None]
    estimates = usual_estimates(project, plan, options.backend, options.model)
    spent = sum(estimates[role].micro_usd for role in roles if role in estimates)
    if settings.budget_micro_usd is not None:
        spent = min(spent, settings.budget_micro_usd)
    return Spending(min(len(roles), settings.max_agents), spent)


def asked_about(config: Config, spending: Spending) -> list[str]:
    """What is said in the question at the start, if it is so much that there is one."""
    told: list[str] = []
    if spending.agents > (most := config.integer(AGENTS)):
        told.append(f"will probably start {spending.agents} agents (more than {most}, {AGENTS})")
    if spending.micro_usd > (cents := config.integer(CENTS)) * 10_000:
        dollars = spending.micro_usd / 1_000_000
        told.append(f"will probably cost ${dollars:.2f} (more than ${cents / 100:.2f}, {CENTS})")
    return told
