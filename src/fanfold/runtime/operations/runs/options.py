"""What a caller may fix for one run, and the limits that hold for it then."""

from __future__ import annotations

from msgspec import Struct

from fanfold.kernel.events import Settings
from fanfold.kernel.plan import Plan
from fanfold.runtime.config import Config


class Options(Struct, frozen=True, kw_only=True):
    """None leaves it to recipe and configuration."""

    max_concurrency: int | None = None
    max_agents: int | None = None
    budget_tokens: int | None = None
    budget_micro_usd: int | None = None
    timeout_ms: int | None = None
    permission: str = "ask"
    unsafe_no_sandbox: bool = False
    """Run programs even where this machine cannot confine them."""
    backend: str | None = None
    model: str | None = None
    script: str | None = None
    script_file: str = ""


def settings_of(config: Config, plan: Plan, options: Options) -> Settings:
    """Flags, then the recipe, then configuration."""
    limits = plan.limits
    budget = limits.budget
    return Settings(
        max_concurrency=options.max_concurrency
        or limits.max_concurrency
        or config.integer("workflows.max_concurrent"),
        max_agents=options.max_agents or limits.max_agents or config.integer("workflows.max_agents"),
        max_steps=limits.max_steps or 1_000,
        timeout_ms=options.timeout_ms or limits.timeout_ms or config.integer("workflows.timeout_ms"),
        budget_tokens=options.budget_tokens if options.budget_tokens is not None else budget.tokens,
        budget_micro_usd=options.budget_micro_usd
        if options.budget_micro_usd is not None
        else budget.micro_usd,
    )
