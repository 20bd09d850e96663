"""The options of a run, written once for every surface, and the limits that result from them.

Rules
* `RunOptions` and `RaisedLimits` are what a user may set, with help and bounds. The command line derives its
  flags from them (`cli.command.options_from`), and the HTTP API takes them as bodies.
* `Options` are the options that a run is started with. Python programs use them directly.
* Every limit is checked here. An error names the option as its surface spells it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, get_args

from msgspec import Meta, Struct

from fanfold.api.project import Project
from fanfold.engine.config import Config, recipe_ceilings
from fanfold.errors import AuthorError
from fanfold.kernel.admission import reservation, stopped_at_budget
from fanfold.kernel.budget import Amount, Ledger
from fanfold.kernel.events import LimitsRaised, Settings
from fanfold.kernel.plan import GroupAction, Plan
from fanfold.kernel.state import BUDGET, LEAF, PENDING, READY, Composite, Map
from fanfold.kernel.waits import DEFAULT_OUTAGE_MS
from fanfold.language.terminal import shorten

if TYPE_CHECKING:
    from fanfold.engine.run_tree import RunTree


MAX_AGENTS = 2_000
"""The maximum of `--max-agents` without configuration."""
MIN_USD = 0.000_001
MAX_USD = 1_000_000_000
MAX_STEPS = 100_000
"""The same maximum as for `limits: {max_steps}` of a recipe."""

PRINTABLE = r"^[^\x00-\x1f\x7f]+$"
Word: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200, pattern=PRINTABLE)]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=2**53)]
Dollars: TypeAlias = Annotated[float, Meta(gt=0, le=MAX_USD)]
Whole: TypeAlias = Count | None
Usd: TypeAlias = Dollars | None
Permission: TypeAlias = Literal["read_only", "ask", "auto"]
Spelling: TypeAlias = Callable[[str], str]
"""The name of an option on one surface."""


def described(help: str, metavar: str | None = None) -> Meta:
    """Return the help text of a field, for the flag that is derived from it."""
    return Meta(extra={"help": help, "metavar": metavar})


class RunOptions(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of one run. An omitted option comes from the recipe, then from the configuration."""

    model: Annotated[Word | None, described("Use model M for steps that name none.", "M")] = None
    agent_backend: Annotated[Word | None, described("Use back end B for roles that name none.", "B")] = None
    max_concurrency: Annotated[Count | None, described("Limit the steps that run at once.", "N")] = None
    max_agents: Annotated[Count | None, described("Limit the agents of the whole run.", "N")] = None
    budget_usd: Annotated[Dollars | None, described("Pause before spending more than this.", "X")] = None
    budget_tokens: Annotated[Count | None, described("Pause before using more tokens than this.", "N")] = None
    permission: Annotated[Permission, described("Choose what needs no question; default: ask.")] = "ask"

    def checked(
        self,
        config: Config,
        *,
        script: str | None = None,
        script_file: str = "",
        unsafe_no_sandbox: bool = False,
        spell: Spelling = str,
    ) -> Options:
        """Return the options of a run; raises `usage.out_of_range` for a limit out of range."""
        check_limits(config, self.max_concurrency, self.max_agents, spell)
        check_budget(self.budget_usd, self.budget_tokens, spell)
        same = ("model", "max_concurrency", "max_agents", "budget_tokens", "permission")
        return Options(
            **{name: getattr(self, name) for name in same},
            backend=self.agent_backend,
            budget_micro_usd=micro_usd(self.budget_usd),
            script=script,
            script_file=script_file,
            unsafe_no_sandbox=unsafe_no_sandbox,
        )


class RaisedLimits(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits that are raised when a run is resumed."""

    budget_usd: Annotated[Usd, described("Raise the spending of the whole run.", "X")] = None
    budget_tokens: Annotated[Whole, described("Raise the tokens of the whole run.", "N")] = None
    max_agents: Annotated[Whole, described("Raise the agents of the whole run.", "N")] = None
    max_steps: Annotated[Whole, described("Raise the steps of the whole run.", "N")] = None

    def limits(self, spell: Spelling = str) -> LimitsRaised:
        """Return the new limits. `check_raised` compares them with those of the run."""
        check_budget(self.budget_usd, self.budget_tokens, spell)
        return LimitsRaised(self.max_agents, self.max_steps, self.budget_tokens, micro_usd(self.budget_usd))


class Options(Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """Options of one run. An invalid value is refused with `usage.bad_value`.

    None leaves an option to the recipe, then to the configuration.
    """

    max_concurrency: int | None = None
    """How many steps may run at once: at most 16, or more if the user's configuration allows it."""
    max_agents: int | None = None
    """How many agents the whole run may start, at most 2,000. Then the run pauses."""
    budget_tokens: int | None = None
    """The run pauses before it uses more tokens than this."""
    budget_micro_usd: int | None = None
    """The run pauses before it spends more than this, in millionths of a dollar."""
    timeout_ms: int | None = None
    """How long the run may take, without the time it waits for people."""
    permission: str = "ask"
    """`read_only`: steps that write or run programs are refused.

    `ask`: a person is asked; if no person can be asked, the action is refused. `auto`: the recipe may do what
    it declares, and agents may do what they choose.
    """
    unsafe_no_sandbox: bool = False
    """Run programs even if this machine cannot confine them."""
    backend: str | None = None
    """The back end of roles that name none: `model`, `local`, or a program such as `claude`."""
    model: str | None = None
    """Use model M for steps that name none."""
    script: str | None = None
    """Text of a script. Scripted agents answer instead of models."""
    script_file: str = ""
    """The file that the script was read from, for messages."""
    traceparent: str = ""
    """The W3C trace context of the caller; an invalid one is ignored."""

    def __post_init__(self) -> None:
        if self.permission not in get_args(Permission):
            raise _meaningless("permission", self.permission, f"one of {', '.join(get_args(Permission))}")
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


def check_limits(
    config: Config, max_concurrency: int | None, max_agents: int | None, spell: Spelling = str
) -> None:
    """Refuse limits above the configured maximum."""
    for name, value, most, hint in (
        ("max_concurrency", max_concurrency, recipe_ceilings(config)[0], ", to at most 1024"),
        ("max_agents", max_agents, most_agents(config), ""),
    ):
        if value is not None and not 1 <= value <= most:
            key = "max_concurrent" if name == "max_concurrency" else name
            raise AuthorError(
                "usage.out_of_range",
                f"{spell(name)} must be from 1 to {most}, not {value}",
                hint=f"[workflows] {key} in {config.home}/config.toml raises it{hint}",
            )


def check_budget(usd: float | None, tokens: int | None, spell: Spelling = str) -> None:
    """Refuse budgets that are not positive amounts."""
    if usd is not None and not MIN_USD <= usd <= MAX_USD:  # also refuses NaN
        message = f"{spell('budget_usd')} must be at least {MIN_USD:f} and at most {MAX_USD:,}"
        raise AuthorError("usage.out_of_range", message)
    if tokens is not None and not 0 < tokens < sys.maxsize:
        raise AuthorError("usage.out_of_range", f"{spell('budget_tokens')} must be more than 0")


def micro_usd(usd: float | None) -> int | None:
    """Convert dollars to the unit of the ledger."""
    return None if usd is None else round(usd * 1_000_000)


def most_agents(config: Config) -> int:
    """Return the maximum of `--max-agents`: the default maximum, or a higher configured one."""
    return max(MAX_AGENTS, recipe_ceilings(config)[1])


def settings_of(config: Config, plan: Plan, options: Options) -> Settings:
    """Return the limits: from flags, else the recipe within the user's caps, else the configuration."""
    check_limits(config, options.max_concurrency, options.max_agents)
    limits, budget, dollars = plan.limits, plan.limits.budget, options.budget_micro_usd
    return Settings(
        max_concurrency=_limit(config, "max_concurrency", plan, options),
        max_agents=_limit(config, "max_agents", plan, options),
        max_steps=limits.max_steps or 1_000,
        timeout_ms=_limit(config, "timeout_ms", plan, options),
        budget_tokens=budget.tokens if options.budget_tokens is None else options.budget_tokens,
        budget_micro_usd=budget.micro_usd if dollars is None else dollars,
        outage_ms=DEFAULT_OUTAGE_MS if limits.outage_ms is None else limits.outage_ms,
    )


_CAPPED = {
    "max_concurrency": "workflows.max_concurrent",
    "max_agents": "workflows.max_agents",
    "timeout_ms": "workflows.timeout_ms",
}


def _limit(config: Config, name: str, plan: Plan, options: Options) -> int:
    key = _CAPPED[name]
    cap = config.cap(key)
    flag: int | None = getattr(options, name)
    if flag is not None:
        return flag  # a flag is the user's own choice for this run
    value: int = getattr(plan.limits, name) or config.integer(key)
    return value if cap is None else min(value, cap[0])


def capped_limits(config: Config, plan: Plan, options: Options) -> list[str]:
    """Return one line for each limit in which the recipe exceeds the user's caps."""
    lines = []
    for name, key in _CAPPED.items():
        cap, wanted = config.cap(key), getattr(plan.limits, name)
        if getattr(options, name) is None and cap is not None and wanted is not None and wanted > cap[0]:
            lines.append(f"{name} is {cap[0]}, your cap ({cap[1]}), not {wanted} as {plan.name} says")
    return lines


# -----------------------------------------------------------------------------------------------------------
# Higher limits for a run that reached some


def limits_to_raise(tree: RunTree) -> LimitsRaised:
    """Suggest higher limits for a run that reached some: twice the limit, or the known need if higher.

    Empty if no value can be estimated, or if no higher limit is allowed.
    """
    state = tree.state
    reached = {limit for _, node, limit in state.starved if node.status == READY}
    agents = steps = None
    if "max_agents" in reached:
        open_nodes = (node for node in tree.nodes() if node.kind == LEAF and node.status in (PENDING, READY))
        to_come = sum(node.step.traits.role is not None for node in open_nodes)
        agents = min(MAX_AGENTS, max(state.max_agents * 2, state.agents + to_come))
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
    config, state = project.config, tree.state
    check_limits(config, None, raised.max_agents, lambda _: "--max-agents")
    for name, value, current, most in (
        ("--max-agents", raised.max_agents, state.max_agents, most_agents(config)),
        ("--max-steps", raised.max_steps, state.max_steps, MAX_STEPS),
    ):
        if value is None:
            continue
        if not 1 <= value <= most:
            raise AuthorError("usage.out_of_range", f"{name} must be from 1 to {most}, not {value}")
        if value <= current:
            raise AuthorError("usage.out_of_range", f"{name} {value} is not a raise: the run has {current}")
    tokens, usd = state.ledger.spent_tokens, state.ledger.spent_micro_usd
    for name, value, spent, shown in (
        ("--budget-tokens", raised.budget_tokens, tokens, f"{tokens}"),
        ("--budget-usd", raised.budget_micro_usd, usd, f"{usd / 1_000_000:g}"),
    ):
        if value is not None and value <= spent:
            message = f"{name} must be more than the run has spent already, which is {shown}"
            raise AuthorError("usage.out_of_range", message)
    return None if raised == LimitsRaised() else raised
