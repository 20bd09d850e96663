"""What a caller may fix for one run, and the limits that hold for it then."""

from __future__ import annotations

from msgspec import Struct

from fanfold.agents.permissions import POSTURES
from fanfold.errors import AuthorError
from fanfold.kernel.events import Settings
from fanfold.kernel.plan import Plan
from fanfold.runtime.config import Config
from fanfold.runtime.operations.runs.starting.limits import check_agents, check_concurrency
from fanfold.text.excerpts import shorten


class Options(Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """What holds for one run. None leaves it to the recipe, then to the configuration; a value that means
    nothing is refused with `usage.bad_value`.
    """

    max_concurrency: int | None = None
    """How many steps may run at once, up to 16 or to `[ceilings] concurrency` of the configuration."""
    max_agents: int | None = None
    """How many agents the whole run may start, up to 2,000; then it pauses."""
    budget_tokens: int | None = None
    """The run pauses before it uses more tokens than this."""
    budget_micro_usd: int | None = None
    """The run pauses before it spends more than this, in millionths of a dollar."""
    timeout_ms: int | None = None
    """How long the run may take, people's time not counted."""
    permission: str = "ask"
    """`read_only`: what writes or runs programs is refused. `ask`: somebody is asked, and where nobody can be
    it is refused. `auto`: the recipe may do what it declares, and agents what they choose."""
    unsafe_no_sandbox: bool = False
    """Run programs even where this machine cannot confine them."""
    backend: str | None = None
    """Who does the work of roles that name no back end: `model`, `local`, a program such as `claude`."""
    model: str | None = None
    """Model for steps that name none."""
    script: str | None = None
    """Text of a script: scripted agents answer instead of models."""
    script_file: str = ""
    """Where that text stood, for messages about it."""

    def __post_init__(self) -> None:
        if self.permission not in POSTURES:
            raise _meaningless("permission", self.permission, f"one of {', '.join(POSTURES)}")
        for name in ("max_concurrency", "max_agents", "budget_tokens", "budget_micro_usd", "timeout_ms"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise _meaningless(name, value, "a whole number above 0, or None")
        for name in ("backend", "model", "script"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and (value.strip() or name == "script")):
                raise _meaningless(name, value, "text, or None")


def _meaningless(name: str, value: object, wanted: str) -> AuthorError:
    message = f"{name} cannot be {shorten(repr(value), 80)}: it is {wanted}"
    return AuthorError("usage.bad_value", message, details={"option": name})


def settings_of(config: Config, plan: Plan, options: Options) -> Settings:
    """Flags, then the recipe, then configuration; raises where a flag goes beyond what may be asked for."""
    check_concurrency(config, options.max_concurrency)
    check_agents(config, options.max_agents)
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
