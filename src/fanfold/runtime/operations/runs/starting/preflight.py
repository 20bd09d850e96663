"""Before a run is recorded: whether its agents' back ends and models can be used, and its budget be kept.

Rules
* Every back end that a role names or is given is looked at first: one that cannot be used refuses the run.
* Every model that a plan may ask is looked at: of steps, roles, stages of pipelines, the user's flag, the
  fast model of folds. One that cannot work refuses the run before it exists, with where it was named.
* A fallback that cannot work is left out and only told of: the run does not depend on it.
* Unknown is not zero: a budget in dollars is refused when the price of a model is unknown, unless a budget in
  tokens stands beside it.
* What was fine when a run began is not asked again: a resumed run keeps its models, and a fork is asked only
  about steps of which it keeps nothing.
* Nothing of this concerns scripted agents, and nothing is asked over the network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from fanfold.agents.backend_registry import MODEL, BackendRegistry
from fanfold.agents.local.weights import PROVIDER, LocalState, find_weights, local_state
from fanfold.agents.role import Role
from fanfold.errors import EXIT_BUDGET, AuthorError, FanfoldError
from fanfold.kernel.events import Estimate, Settings
from fanfold.kernel.plan import Plan
from fanfold.runtime.config import Config
from fanfold.runtime.forecast.model_uses import ModelUse, models_of
from fanfold.runtime.model_choice import Choice, choose_model
from fanfold.runtime.operations.project import Project
from fanfold.runtime.records.frozen import Frozen, freeze_roles, with_stages
from fanfold.store.protocol import Store

if TYPE_CHECKING:
    from fanfold.runtime.forecast.estimates import Prices


class ModelReport(Struct, frozen=True, kw_only=True):
    """What was found out about the models of a plan."""

    chosen: dict[str | None, Choice]
    """By the name they were asked for; None is the default."""
    refusals: tuple[FanfoldError, ...] = ()
    useless: dict[str, str] = {}
    """Fallbacks that cannot work, with the reason."""

    @property
    def warnings(self) -> list[str]:
        return [f"fallback {name} will not be used: {why}" for name, why in self.useless.items()]


def check_backends(frozen: Frozen, backends: BackendRegistry) -> None:
    """Refuse a run whose roles nobody can work for here; names one of the roles."""
    for name, role in frozen.roles.items():
        backend = frozen.backend_of(role)
        problem = backends.problem(backend, role.command) or _unkept(
            name, role, backend, backends.machine.home
        )
        if problem is not None:
            where = f'role "{name}": ' if role.backend is not None and frozen.script is None else ""
            raise _said(problem, where + problem.message, {"role": name})


def _unkept(name: str, role: Role, backend: str, home: Path) -> FanfoldError | None:
    """Why a back end that brings its own tools may not work for a role."""
    if not role.needs_our_tools and role.tools is None:
        return None
    from fanfold.agents.command.profile_files import find_profile  # few roles hold themselves to anything
    from fanfold.agents.command.profile_names import is_program

    profile = find_profile(backend, home) if is_program(backend) else None
    if profile is None:
        return None
    from fanfold.agents.command.kept_tools import unkept

    said = unkept(profile, role)
    if not said:
        return None
    message = f'role "{name}" says {said}, which "{backend}" would not keep to'
    return AuthorError("role.refused", message, hint="let a model do its work, or use another role")


def check_program_prices(plan: Plan, frozen: Frozen, settings: Settings, backends: BackendRegistry) -> None:
    """Refuse a budget in dollars alone for agents that do not tell what they cost."""
    for limited in _limited_in_dollars(plan, settings):
        for name, role in frozen.roles.items():
            backend = frozen.backend_of(role)
            if backends.tells_price(backend):
                continue
            why = f'"{backend}" does not tell what it costs'
            raise _unpriced(plan, limited, why, {"backend": backend, "where": f'role "{name}"'})


def prepare(
    plan: Plan, frozen: Frozen, settings: Settings, config: Config, store: Store
) -> tuple[Frozen, Settings]:
    """What a new run of models is recorded with; raises what refuses it."""
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
        return frozen, settings  # without a budget nothing is reserved, so nothing need be known
    from fanfold.runtime.forecast.estimates import Prices, estimates_of

    if fast is not None:
        uses = list(models_of(plan, frozen, config))  # summaries have a model of their own now
        report.chosen[fast] = choose_model(config, local, asked=fast)
    prices = Prices(report.chosen, config)
    if frozen.forked_from is None:
        _check_prices(plan, frozen, settings, config, prices)
    return frozen, structs.replace(settings, estimates=estimates_of(uses, prices, store))


class Foreseen(Struct, frozen=True, kw_only=True):
    """What a dry run has to know about back ends and models."""

    warnings: list[str]
    usable: bool
    """Whether those that are named can be used."""
    estimates: dict[str, Estimate] = {}
    """By role: what an attempt will probably spend. Only asked for where a budget is to be kept."""


def foresee(
    project: Project, plan: Plan, settings: Settings, backend: str | None, model: str | None
) -> Foreseen:
    """For a dry run: what is to be said about back ends and models.

    That there is no model at all is not said: a recipe can be looked at before there is any account.
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
        from fanfold.runtime.forecast.estimates import Prices, estimates_of

        chosen = look(uses, frozen, config, local).chosen
        estimates = estimates_of(uses, Prices(chosen, config))
    return Foreseen(warnings=[*refusals, *report.warnings], usable=not refusals, estimates=estimates)


def usual_estimates(
    project: Project, plan: Plan, backend: str | None, model: str | None
) -> dict[str, Estimate]:
    """By role: what one attempt will probably spend; nothing for a role whose model cannot be told."""
    from fanfold.runtime.forecast.estimates import Prices, estimates_of

    config, frozen = project.config, _foreseen(project, plan, backend, model)
    uses = list(models_of(plan, frozen, config))
    chosen = look(uses, frozen, config, local_state(config.home)).chosen
    return estimates_of(uses, Prices(chosen, config), project.store if project.has_runs else None)


def _foreseen(project: Project, plan: Plan, backend: str | None, model: str | None) -> Frozen:
    """As much of what a run would fix as decides about its models."""
    find = project.roles.find
    roles = with_stages(freeze_roles(plan, find), find)
    fast = project.config.text("workflows.model")
    return Frozen(roles=roles, backend=backend or MODEL, model=model, fast_model=fast)


def look(uses: Sequence[ModelUse], frozen: Frozen, config: Config, local: LocalState) -> ModelReport:
    """Try every model once; nothing is raised, so that a dry run can tell too."""
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
    """The same error, with who names the model."""
    message = f"{use.where}: {error.message}" if use.where and use.model is not None else error.message
    return _said(error, message, {"where": use.where, "model": use.model})


def _said(error: FanfoldError, message: str, more: Mapping[str, object]) -> FanfoldError:
    details = {**error.details, **more}
    return type(error)(error.code, message, hint=error.hint, details=details, exit_status=error.exit_status)


def _without(role: Role, useless: Mapping[str, str]) -> Role:
    kept = tuple(model for model in role.fallback_models if model not in useless)
    return role if kept == role.fallback_models else structs.replace(role, fallback_models=kept)


# Money


def _is_limited(plan: Plan, settings: Settings) -> bool:
    budgets = [(settings.budget_tokens, settings.budget_micro_usd)]
    budgets += [(kid.limits.budget.tokens, kid.limits.budget.micro_usd) for kid in plan.workflows.values()]
    return any(limit is not None for budget in budgets for limit in budget)


def _limited_in_dollars(plan: Plan, settings: Settings) -> list[Plan]:
    """The plan and its sub-workflows, as far as dollars limit them and tokens do not."""
    dollars = [plan] if settings.budget_micro_usd is not None and settings.budget_tokens is None else []
    budgets = ((kid, kid.limits.budget) for kid in plan.workflows.values())
    return dollars + [kid for kid, one in budgets if one.micro_usd is not None and one.tokens is None]


def _check_prices(plan: Plan, frozen: Frozen, settings: Settings, config: Config, prices: Prices) -> None:
    """Refuse a budget in dollars that nobody could keep."""
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
