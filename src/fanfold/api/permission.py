"""Permission of a run (`read_only`, `ask` or `auto`), its limits, and the checks of its models.

One question at the start covers every effect of the recipe (see `effects`): commands, functions, agents that
write, programs and servers of its roles. A recipe that only reads needs no permission for its effects. But
fifty agents cost money: the user is also asked if the run will probably start more agents, or spend more,
than the user's own configuration allows. The project's configuration does not count here. No question is
asked about scripted agents, nor about spending that a budget of the run excludes.

Every surface shows the same question (`RunConsent.request`, rendered by `language.consent`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, structs

from fanfold.agents.backend_registry import MODEL, SCRIPTED, BackendRegistry
from fanfold.agents.local.weights import PROVIDER, LocalState, find_weights, local_state
from fanfold.agents.permissions import POSTURES
from fanfold.agents.role import Role
from fanfold.api.effects import FindRole, plan_effects
from fanfold.api.limits import check_agents, check_concurrency
from fanfold.api.project import Project
from fanfold.engine.config import Choice, Config, choose_model
from fanfold.engine.estimates import ModelUse, models_of
from fanfold.engine.run_tree import RunTree
from fanfold.errors import EXIT_BUDGET, EXIT_PERMISSION, AuthorError, FanfoldError, WorldError
from fanfold.kernel.events import Estimate, Settings
from fanfold.kernel.plan import JSON, Plan
from fanfold.kernel.state import TERMINAL
from fanfold.kernel.waits import DEFAULT_OUTAGE_MS
from fanfold.language.consent import ConsentRequest, Effect, count_effects
from fanfold.language.terminal import shorten, visible
from fanfold.steps.run_config import RunConfig, all_steps_below, freeze_roles, with_stages
from fanfold.store.protocol import Batch, Store
from fanfold.workspace.seal import is_adopted, permitted

if TYPE_CHECKING:
    from fanfold.agents.permissions import Action, Answer
    from fanfold.engine.estimates import Prices

# -----------------------------------------------------------------------------------------------------------
# Options of one run, and the limits that result from them


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
    """Model for steps that name none."""
    script: str | None = None
    """Text of a script. Scripted agents answer instead of models."""
    script_file: str = ""
    """The file that the script was read from, for messages."""

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
    """Return the limits: from flags, else the recipe within the user's caps, else the configuration.

    A flag out of range is refused.
    """
    check_concurrency(config, options.max_concurrency)
    check_agents(config, options.max_agents)
    limits = plan.limits
    budget = limits.budget
    return Settings(
        max_concurrency=_limit(config, "max_concurrency", plan, options),
        max_agents=_limit(config, "max_agents", plan, options),
        max_steps=limits.max_steps or 1_000,
        timeout_ms=_limit(config, "timeout_ms", plan, options),
        budget_tokens=options.budget_tokens if options.budget_tokens is not None else budget.tokens,
        budget_micro_usd=options.budget_micro_usd
        if options.budget_micro_usd is not None
        else budget.micro_usd,
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


MAX_NAMED = 5
KEPT_FROM_LOG = "it continues from results and answers in its log, which another user may have written"
AGENTS, CENTS = "permission.ask_above_agents", "permission.ask_above_cents"


class RunConsent(Struct, frozen=True, kw_only=True):
    """The effects and costs that a run needs permission for."""

    question: str
    effects: tuple[Effect, ...]
    reasons: tuple[str, ...] = ()
    """Why the user is asked, besides the effects."""
    totals: tuple[str, ...] = ()

    @property
    def needed(self) -> bool:
        return bool(self.reasons) or any(not one.permitted for one in self.effects)

    @property
    def request(self) -> ConsentRequest:
        """The question as every surface shows it."""
        counted = count_effects(self.effects)
        totals = (*self.totals, *((counted,) if counted else ()), *self.reasons)
        return ConsentRequest(self.question, tuple(one.text for one in self.effects), totals)

    @property
    def needs(self) -> list[str]:
        """Return the question as a list for programs; empty if no permission is needed."""
        texts = (*self.reasons, *(one.text for one in self.effects)) if self.needed else ()
        return [visible(text, keep="\n") for text in texts]


def consent_of(
    project: Project,
    plan: Plan,
    find_role: FindRole,
    options: Options | None = None,
    *,
    inputs: Mapping[str, JSON] | None = None,
    reasons: Sequence[str] = (),
    totals: Sequence[str] = (),
) -> RunConsent:
    """Return the permission that a run of a plan needs. An input that contains a secret is only named."""
    scripted = options is not None and options.script is not None
    backend = SCRIPTED if scripted else MODEL if options is None else options.backend
    effects = plan_effects(plan, find_role, inputs=_without_secrets(project, inputs), backend=backend)
    return RunConsent(
        question=f"{plan.name} asks for permission.",
        effects=tuple(effects),
        reasons=tuple(reasons),
        totals=tuple(totals),
    )


def _without_secrets(project: Project, inputs: Mapping[str, JSON] | None) -> dict[str, JSON] | None:
    """Return the inputs that contain no secret.

    Texts of a recipe are never redacted: a text that looks like a secret must not hide a command.
    """
    clean = project.backends.machine.redactor.json
    return None if inputs is None else {name: one for name, one in inputs.items() if clean(one) == one}


class Prompter(Protocol):
    """Asks a person while a run is started and driven."""

    def permits(self, request: ConsentRequest) -> bool:
        """Whether the person permits everything that the request shows."""
        ...

    async def allow(self, action: Action) -> Answer:
        """Whether an agent is allowed to perform an action, and for how long."""
        ...


def is_settled(posture: str, *, yes: bool) -> bool:
    """Whether no question is needed, regardless of the effects of the run."""
    return posture == "auto" or (posture == "ask" and yes)


def permit(
    consent: RunConsent, posture: str, *, yes: bool = False, attendant: Prompter | None = None
) -> bool:
    """Return whether a person was asked and agreed; raise `permission_denied` if the run may not start."""
    if is_settled(posture, yes=yes) or not consent.needed:
        return False
    if posture == "ask" and attendant is not None and attendant.permits(consent.request):
        return True
    raise _denied(consent, posture)


def _denied(consent: RunConsent, posture: str) -> WorldError:
    needs = consent.needs
    named = "; ".join(visible(one) for one in needs[:MAX_NAMED])
    more = f"; and {len(needs) - MAX_NAMED} more, which --json lists" if len(needs) > MAX_NAMED else ""
    name = consent.question.partition(" ")[0]
    return WorldError(
        "permission_denied",
        f"{name} needs permission: {named}{more}",
        hint="--permission read_only allows reading alone; leave it out to be asked, or use --permission auto"
        if posture == "read_only"
        else 'run it with --yes or --permission auto; from Python, with Options(permission="auto")',
        details={"needs": needs},
        exit_status=EXIT_PERMISSION,
    )


def permit_adopted(project: Project, tree: RunTree, *, yes: bool, attendant: Prompter | None) -> None:
    """Return if a run may continue. An adopted run requires the permission of the user here."""
    root = tree.root.id
    if not is_adopted(project.folder, root):
        return
    consent = adopted_consent(project, tree)
    permit(consent, "ask", yes=yes, attendant=attendant)
    _drop_requests(project, root)
    permitted(project.folder, root)


def _drop_requests(project: Project, root: str) -> None:
    """Delete requests (answers, new children) that came with an adopted run: another user made them."""
    left = [request.id for request in project.store.requests(root)]
    if not left:
        return
    lease = project.store.acquire(root)
    try:
        project.store.write([Batch(root=root, epoch=lease.epoch, requests_done=left)])
    finally:
        project.store.release(lease)


def adopted_consent(project: Project, tree: RunTree) -> RunConsent:
    """Return the permission that an adopted run needs, with all children of an open run and all scripts.

    Raises `run.adopted` if its log approves a delivery that was not carried out: this user did not approve
    it.
    """
    nodes = [node for run in tree.state.runs.values() for node in run.nodes.values()]
    agreed = [node.path for node in nodes if node.agreed and node.status not in TERMINAL]
    if agreed:
        message = f"the log of run {tree.root.id} agrees to the delivery {agreed[0]}, and came from elsewhere"
        hint = f"fork it, and be asked: fanfold fork {tree.root.id} --from {agreed[0]}"
        raise WorldError("run.adopted", message, hint=hint, exit_status=EXIT_PERMISSION)
    frozen = tree.frozen()
    parts = [(tree.state.plan, frozen, tree.values.inputs(tree.root))]
    if tree.state.plan.open:
        children = tree.root.scope.children
        parts = [(Plan(name=node.step.id, steps=(node.step,)), tree.frozen(node), {}) for node in children]
    effects: dict[str, Effect] = {}
    backends: set[str] = set()
    for plan, own, inputs in parts:
        backends |= own.backends() or {own.backend}
        backend = SCRIPTED if own.script is not None else own.backend
        known = _without_secrets(project, inputs)
        listed = plan_effects(plan, own.roles.get, inputs=known, backend=backend)
        for effect in (*_script(plan, own), *listed):
            effects.setdefault(effect.text, effect)
    return RunConsent(
        question=f"{tree.state.plan.name} asks for permission to continue.",
        effects=tuple(effects.values()),
        reasons=(KEPT_FROM_LOG, f"its agents work on: {', '.join(sorted(backends))}"),
    )


def _script(plan: Plan, frozen: RunConfig) -> list[Effect]:
    if frozen.script is None:
        return []
    return [Effect(plan.name, "script", "has its agents answer and act by this script", frozen.script)]


class Spending(Struct, frozen=True):
    """Expected agents and cost of a run, and its maximum of agents. An unknown price counts as 0."""

    agents: int
    micro_usd: int
    most_agents: int = 0

    def totals(self) -> tuple[str, ...]:
        """Return the numbers that the question shows first."""
        if not self.agents and not self.most_agents:
            return ()
        most = max(self.agents, self.most_agents)
        about = "" if self.agents == most else "about "
        bound = f", at most {most:,}" if about else ""
        price = f"; about ${self.micro_usd / 1_000_000:.2f}" if self.micro_usd else "; price unknown"
        return (f"{about}{self.agents:,} agent{'' if self.agents == 1 else 's'}{bound}{price}",)


def foresee_spending(project: Project, plan: Plan, inputs: Mapping[str, JSON], options: Options) -> Spending:
    """Estimate what a run of a plan will spend, within its limits.

    As in a dry run, known lists are counted, and an unknown list counts as one item.
    """
    if options.script is not None or not any(step.traits.role for step in all_steps_below(plan)):
        return Spending(0, 0)
    from fanfold.engine.dry_run import AgentBounds
    from fanfold.engine.forecast import ForecastHost, Foresight

    settings = settings_of(project.config, plan, options)
    world = Foresight(inputs)
    host = ForecastHost(plan, settings, world)
    host.drive()
    roles = [role for begun in host.begun if (role := begun.node.step.traits.role) is not None]
    estimates = usual_estimates(project, plan, options.backend, options.model)
    spent = sum(estimates[role].micro_usd for role in roles if role in estimates)
    if settings.budget_micro_usd is not None:
        spent = min(spent, settings.budget_micro_usd)
    high = AgentBounds(host.state.plan, world.assumed).of(host.state.root.scope).high
    return Spending(min(len(roles), settings.max_agents), spent, min(high, settings.max_agents))


def asked_about(config: Config, spending: Spending) -> list[str]:
    """Return why the user is asked about a run that only reads: it exceeds the user's limits for asking."""
    reasons: list[str] = []
    if spending.agents > (most := config.integer(AGENTS)):
        reasons.append(f"will probably start {spending.agents} agents (more than {most}, {AGENTS})")
    if spending.micro_usd > (cents := config.integer(CENTS)) * 10_000:
        dollars = spending.micro_usd / 1_000_000
        reasons.append(f"will probably cost ${dollars:.2f} (more than ${cents / 100:.2f}, {CENTS})")
    return reasons


# -----------------------------------------------------------------------------------------------------------
# Checks before a run is recorded: back ends, models, and prices for the budget
#
# Rules
# * Every back end of a role is checked first. The run is refused if one cannot be used.
# * Every model that a plan may use is checked: of steps, roles, stages of pipelines, the user's flag, the
#   fast model of folds. The run is refused before it exists if a model cannot be used. The error names the
#   place where the model was named.
# * A fallback that cannot be used is dropped with a warning: the run does not depend on it.
# * Unknown is not zero: a budget in dollars is refused if the price of a model is unknown, unless there is
#   also a budget in tokens.
# * A check is not repeated after the start: a resumed run keeps its models. A fork is checked only for steps
#   of which it reuses nothing.
# * Scripted agents are not checked. No check uses the network.


class ModelReport(Struct, frozen=True, kw_only=True):
    """The result of checking the models of a plan."""

    chosen: dict[str | None, Choice]
    """By requested name; None is the default model."""
    refusals: tuple[FanfoldError, ...] = ()
    useless: dict[str, str] = {}
    """Fallbacks that cannot be used, with the reason."""

    @property
    def warnings(self) -> list[str]:
        return [f"fallback {name} will not be used: {why}" for name, why in self.useless.items()]


def check_backends(frozen: RunConfig, backends: BackendRegistry) -> None:
    """Refuse a run if no back end here can work for one of its roles. The error names the role."""
    for name, role in frozen.roles.items():
        named = (frozen.backend_of(role), *frozen.fallback_backends(role))
        problems = (
            backends.problem(backend, role.command) or _unkept(name, role, backend, backends.machine.home)
            for backend in named
        )
        if (problem := next((one for one in problems if one is not None), None)) is not None:
            where = f'role "{name}": ' if role.backend is not None and frozen.script is None else ""
            raise _said(problem, where + problem.message, {"role": name})


def _unkept(name: str, role: Role, backend: str, home: Path) -> FanfoldError | None:
    """Return why a back end that brings its own tools is not allowed to work for a role."""
    if not role.needs_our_tools and role.tools is None:
        return None
    from fanfold.agents.command.profile import is_program
    from fanfold.agents.command.profile_files import find_profile  # few roles restrict their tools

    profile = find_profile(backend, home) if is_program(backend) else None
    if profile is None:
        return None
    from fanfold.agents.command.profile_files import unkept

    said = unkept(profile, role)
    if not said:
        return None
    message = f'role "{name}" says {said}, which "{backend}" would not keep to'
    return AuthorError("role.refused", message, hint="let a model do its work, or use another role")


def check_program_prices(
    plan: Plan, frozen: RunConfig, settings: Settings, backends: BackendRegistry
) -> None:
    """Refuse a budget in dollars alone if a back end does not report its cost."""
    for limited in _limited_in_dollars(plan, settings):
        for name, role in frozen.roles.items():
            backend = frozen.backend_of(role)
            if backends.tells_price(backend):
                continue
            why = f'"{backend}" does not tell what it costs'
            raise _unpriced(plan, limited, why, {"backend": backend, "where": f'role "{name}"'})


def prepare(
    plan: Plan, frozen: RunConfig, settings: Settings, config: Config, store: Store
) -> tuple[RunConfig, Settings]:
    """Return the configuration and settings that a new run of models is recorded with; raises a refusal."""
    uses = list(models_of(plan, frozen, config))
    local = local_state(config.home)
    report = look(uses, frozen, config, local)
    if report.refusals:
        raise report.refusals[0]
    default = report.chosen.get(None)
    fast = frozen.default_fast_model or (None if default is None else default.fast_model)
    frozen = structs.replace(
        frozen,
        default_model=frozen.default_model if default is None else default.model,
        default_fast_model=fast,
        roles={name: _without(role, report.useless) for name, role in frozen.roles.items()},
    )
    if not _is_limited(plan, settings):
        return frozen, settings  # without a budget no estimates are needed
    from fanfold.engine.estimates import Prices, estimates_of

    if fast is not None:
        uses = list(models_of(plan, frozen, config))  # summaries now have their own model
        report.chosen[fast] = choose_model(config, local, asked=fast)
    prices = Prices(report.chosen, config)
    if frozen.forked_from is None:
        _check_prices(plan, frozen, settings, config, prices)
    return frozen, structs.replace(settings, estimates=estimates_of(uses, prices, store))


class Foreseen(Struct, frozen=True, kw_only=True):
    """The checks of back ends and models for a dry run."""

    warnings: list[str]
    usable: bool
    """Whether the named back ends and models can be used."""
    estimates: dict[str, Estimate] = {}
    """By role: the expected spending of an attempt. Only filled if there is a budget."""


def foresee(
    project: Project, plan: Plan, settings: Settings, backend: str | None, model: str | None
) -> Foreseen:
    """Check back ends and models for a dry run.

    A missing default model is not reported: users may inspect a recipe before they have an account.
    """
    config, frozen = project.config, _foreseen(project, plan, backend, model)
    try:
        check_backends(frozen, project.backends)
    except FanfoldError as error:
        return Foreseen(warnings=[f"would be refused: {error.message}"], usable=False)
    uses = list(models_of(plan, frozen, config))
    local = local_state(config.home)
    report = look([use for use in uses if use.model is not None], frozen, config, local)
    refusals = [f"would be refused: {error.message}" for error in report.refusals]
    estimates: dict[str, Estimate] = {}
    if _is_limited(plan, settings):
        from fanfold.engine.estimates import Prices, estimates_of

        chosen = look(uses, frozen, config, local).chosen
        estimates = estimates_of(uses, Prices(chosen, config))
    return Foreseen(warnings=[*refusals, *report.warnings], usable=not refusals, estimates=estimates)


def usual_estimates(
    project: Project, plan: Plan, backend: str | None, model: str | None
) -> dict[str, Estimate]:
    """By role: the expected spending of one attempt, without roles whose model is unknown."""
    from fanfold.engine.estimates import Prices, estimates_of

    config, frozen = project.config, _foreseen(project, plan, backend, model)
    uses = list(models_of(plan, frozen, config))
    chosen = look(uses, frozen, config, local_state(config.home)).chosen
    return estimates_of(uses, Prices(chosen, config), project.store if project.has_runs else None)


def _foreseen(project: Project, plan: Plan, backend: str | None, model: str | None) -> RunConfig:
    """Return the part of a run's configuration that determines its models."""
    find = project.roles.find
    roles = with_stages(freeze_roles(plan, find), find)
    fast = project.config.text("workflows.model")
    return RunConfig(roles=roles, backend=backend or MODEL, model=model, fast_model=fast)


def look(uses: Sequence[ModelUse], frozen: RunConfig, config: Config, local: LocalState) -> ModelReport:
    """Check every model once. Refusals are returned, not raised, so that a dry run can show them."""
    chosen: dict[str | None, Choice] = {}
    refusals: list[FanfoldError] = []
    useless: dict[str, str] = {}
    refused: set[str | None] = set()
    for use in sorted(uses, key=lambda use: use.fallback):
        model = use.model
        if use.fallback and model is not None and model.startswith(f"{PROVIDER}:"):
            useless[model] = "a local model cannot stand in for another"
        if model in chosen or model in useless or model in refused:
            continue
        try:
            flag = frozen.model if model is not None else frozen.default_model  # of the run that is forked
            choice = choose_model(config, local, asked=model, flag=flag)
            if choice.provider is None:
                find_weights(choice.model, config.home)
        except FanfoldError as error:
            if use.fallback:
                useless[str(model)] = error.message
            else:
                refusals.append(_told(error, use))
                refused.add(model)
        else:
            chosen[model] = choice
    return ModelReport(chosen=chosen, refusals=tuple(refusals), useless=useless)


def _told(error: FanfoldError, use: ModelUse) -> FanfoldError:
    """Return the same error with the place that names the model."""
    message = f"{use.where}: {error.message}" if use.where and use.model is not None else error.message
    return _said(error, message, {"where": use.where, "model": use.model})


def _said(error: FanfoldError, message: str, more: Mapping[str, object]) -> FanfoldError:
    details = {**error.details, **more}
    return type(error)(error.code, message, hint=error.hint, details=details, exit_status=error.exit_status)


def _without(role: Role, useless: Mapping[str, str]) -> Role:
    kept = tuple(model for model in role.fallback_models if model not in useless)
    return role if kept == role.fallback_models else structs.replace(role, fallback_models=kept)


# Prices and budgets


def _is_limited(plan: Plan, settings: Settings) -> bool:
    budgets = [(settings.budget_tokens, settings.budget_micro_usd)]
    budgets += [(kid.limits.budget.tokens, kid.limits.budget.micro_usd) for kid in plan.workflows.values()]
    return any(limit is not None for budget in budgets for limit in budget)


def _limited_in_dollars(plan: Plan, settings: Settings) -> list[Plan]:
    """Return the plan and its sub-workflows that have a limit in dollars but none in tokens."""
    dollars = [plan] if settings.budget_micro_usd is not None and settings.budget_tokens is None else []
    budgets = ((kid, kid.limits.budget) for kid in plan.workflows.values())
    return dollars + [kid for kid, one in budgets if one.micro_usd is not None and one.tokens is None]


def _check_prices(plan: Plan, frozen: RunConfig, settings: Settings, config: Config, prices: Prices) -> None:
    """Refuse a budget in dollars if the price of a model is unknown."""
    for limited in _limited_in_dollars(plan, settings):
        part = structs.replace(limited, workflows=plan.workflows)
        for use in models_of(part, frozen, config):
            model = prices.unpriced(use.model)
            if model is not None:
                where = use.where or "--model"
                why = f'the price of "{model}" is not known ({where})'
                raise _unpriced(plan, limited, why, {"model": model, "where": where})


def _unpriced(plan: Plan, limited: Plan, why: str, details: dict[str, str]) -> AuthorError:
    whose = "" if limited is plan else f' of "{limited.name}"'
    hint = "set --budget-tokens too" if not whose else "give `limits.budget` of that recipe `tokens` too"
    message = f"the budget{whose} in dollars cannot be kept: {why}"
    return AuthorError("budget.unpriced", message, hint=hint, details=details, exit_status=EXIT_BUDGET)
