"""Create and start a run. Everything that it needs is fixed and recorded before its first step starts.

One permission question at the start covers every effect that the recipe declares. It also covers the expected
cost if that is high (see `permission`). If no person can answer, permission is denied.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, structs
from msgspec.structs import replace

from fanfold.agents.backend_registry import MODEL, SCRIPTED, BackendRegistry
from fanfold.agents.instructions import (
    ProjectInstructions,
    compose,
    instructions_for,
    read_instructions,
    with_limits,
)
from fanfold.agents.local.weights import PROVIDER, find_weights, local_state
from fanfold.agents.providers import Access
from fanfold.agents.role import Role, for_step
from fanfold.api.ownership import OwnedRun, RunParts, check_enabled, executor_of, executors_of, supervise
from fanfold.api.permission import Prompter, RunConsent, Spending, asked_about, consent_of, is_settled, permit
from fanfold.api.project import Project
from fanfold.api.recipes import CheckedRecipe, role_warnings
from fanfold.api.run_options import Options, capped_limits, settings_of
from fanfold.api.workers import needs_home
from fanfold.engine.config import Choice, Config, choose_model, user_home
from fanfold.engine.dry_run import AgentBounds, DryRun, ForeseenPrompt, dry_run
from fanfold.engine.estimates import ModelUse, Prices, estimates_of, models_of
from fanfold.engine.forecast import ForecastHost, Foresight
from fanfold.engine.run_tree import Reuse, RunTree, nothing_to_reuse
from fanfold.errors import EXIT_BUDGET, EXIT_PERMISSION, AuthorError, FanfoldError, WorldError
from fanfold.kernel.events import Estimate, Event, Evidence, RunCreated, RunForked, Settings
from fanfold.kernel.plan import JSON, Plan
from fanfold.kernel.state import Node
from fanfold.kernel.waits import DEFAULT_OUTAGE_MS
from fanfold.language.inputs import bind_inputs
from fanfold.language.json_text import strict
from fanfold.language.keys import FUNCTION
from fanfold.language.leaf_steps import AgentBody, CommandBody, find_body, read_body
from fanfold.steps import command
from fanfold.steps.agent import foreseen_prompt
from fanfold.steps.function_calls import SETTING, is_listed, is_module_name, not_allowed
from fanfold.steps.ids import new_run_id, read_traceparent
from fanfold.steps.programs import Programs
from fanfold.steps.records import ArtifactsPublished, RunTreeStored
from fanfold.steps.run_config import (
    RunConfig,
    Sources,
    all_steps_below,
    freeze_roles,
    read_sources,
    to_json,
    with_stages,
)
from fanfold.steps.step_type import type_of
from fanfold.store.journal import Journal
from fanfold.store.protocol import Store, StoreFault
from fanfold.workspace.artifacts import Artifact, carry_over
from fanfold.workspace.sandbox import check_reach, choose_level, detect
from fanfold.workspace.sandbox_policy import check_brought

if TYPE_CHECKING:
    from fanfold.agents.permissions import Ask
    from fanfold.agents.role import Skill
    from fanfold.agents.skills import SkillRoot


class Lineage(Struct, frozen=True):
    """The part of an original run that a fork reuses."""

    config: RunConfig
    """Its configuration: `forked_from`, roles, default models, and reused results."""
    artifacts: dict[str, list[Artifact]] = {}
    """The artifacts that the reused steps published, by tree path."""


def create(  # noqa: PLR0913 - the surfaces share one function
    project: Project,
    plan: Plan,
    bound: Mapping[str, JSON],
    options: Options,
    *,
    fork: Lineage | None = None,
    ask: Ask | None = None,
    run_id: str = "",
    parts: RunParts = RunParts(),  # noqa: B008 - it is frozen
    at_home: bool = False,
) -> OwnedRun:
    """Record a new run that this process owns, after `check_startable`. `bound` are all its inputs.

    `ask` asks a person about actions of agents. `run_id` is a chosen id; a second run of that id is refused.
    `at_home`: this process drives the run, in its folder, also if the project has workers.
    """
    frozen, settings = freeze(project, plan, options, fork, starts_programs=parts.starts_programs)
    programs = Programs(project.isolation, unsafe=frozen.unsafe)
    supervisor = supervise(project, frozen, programs, ask, parts.supervisor)
    for name in sorted(frozen.backends()):
        supervisor.backends.named(name)  # a back end that cannot be created is refused now
    root = run_id or new_run_id()
    lease = project.store.acquire(root)
    if run_id and project.store.head(root) is not None:
        project.store.release(lease)
        raise AuthorError("run.exists", f"run {root} exists already")
    journal = Journal(project.store, root, lease)
    try:
        source = needed = frozen.forked_from or ""
        snapshot: RunTreeStored | None = None
        may_leave = project.continuation.by_workers and project.store.is_remote and not at_home
        if may_leave and parts.starts_programs and not needs_home(plan):
            from fanfold.api.changes import take_snapshot  # imported late: only for a cluster

            snapshot, needed = take_snapshot(project, journal, source)
            frozen = replace(frozen, tree=snapshot.tree)
        executor = executor_of(project, frozen, programs, supervisor, journal, parts.executor)
        tree = _record(project, journal, plan, bound, frozen, settings, executor.reuse)
        if snapshot is not None:
            tree.report(root, tree.now_ms(), Evidence("workspace_event", snapshot))
        if fork is not None:
            # Named in the log, or `gc` would delete them together with the source run.
            texts = {one.text for files in fork.artifacts.values() for one in files if one.text}
            kept = tuple(sorted({*frozen.reused.values(), *texts}))
            tree.report(root, tree.now_ms(), RunForked(f"from {source}", kept))
            for step, files in fork.artifacts.items():
                carry_over(project.runs_folder, source, root, [one.path for one in files])
                fact = ArtifactsPublished(step=step, files=tuple(files))
                tree.report(root, tree.now_ms(), Evidence("workspace_event", fact))
        tree.commit(requires=needed)
    except BaseException:
        with suppress(StoreFault):
            project.store.release(lease)
        raise
    return OwnedRun(project, tree, executors_of(project, executor, journal, ask), lease)


def create_open(project: Project, root: str) -> None:
    """Record an open run with the id `root`, unless it exists. It has no owner afterwards.

    It has `max_threads` slots. The configuration of its children is fixed when they are added.
    """
    lease = project.store.acquire(root)
    try:
        if project.store.head(root) is None:
            plan = Plan(name=root, open=True, steps=())
            slots = project.config.integer("sessions.max_threads")
            settings = Settings(max_concurrency=slots, timeout_ms=None, outage_ms=DEFAULT_OUTAGE_MS)
            _record(project, Journal(project.store, root, lease), plan, {}, RunConfig(), settings).commit()
    finally:
        project.store.release(lease)


def _record(
    project: Project,
    journal: Journal,
    plan: Plan,
    bound: Mapping[str, JSON],
    frozen: RunConfig,
    settings: Settings,
    reuse: Reuse = nothing_to_reuse,
) -> RunTree:
    """Create the first event of a run and return its tree; nothing is durable yet."""
    blobs, fixed = journal.blobs, to_json(frozen)
    inputs, facts = blobs.put(dict(bound)), blobs.put(fixed)
    data = RunCreated(plan=plan, settings=settings, epoch=journal.epoch, inputs=inputs, frozen=facts)
    first = Event(journal.root, project.store.now_ms(), data)
    tree = RunTree(project.store, first, journal, reuse, forked_from=frozen.forked_from)
    tree.begin(first)
    if blobs.get(facts) is fixed:  # otherwise the redactor removed a secret
        tree.know_frozen(facts, frozen)
    return tree


def freeze(
    project: Project,
    plan: Plan,
    options: Options,
    fork: Lineage | None = None,
    own_roles: Mapping[str, Role] | None = None,
    *,
    starts_programs: bool = True,
) -> tuple[RunConfig, Settings]:
    """Return everything besides plan and inputs that a run fixes at its start; raises if it cannot work.

    `own_roles` take precedence over roles of the project with the same name.
    """
    try:
        strict(structs.asdict(options), "what was asked for")
    except ValueError as error:
        raise AuthorError("usage.bad_value", str(error)) from None
    base = RunConfig() if fork is None else fork.config
    before = {**base.roles, **(own_roles or {})}
    scripted = options.script is not None
    if scripted and options.backend not in (None, SCRIPTED):
        message = f"a script answers for every agent, so none would work on {options.backend!r}"
        raise AuthorError("usage.conflicting_options", message, hint="leave one of them out")

    frozen = replace(
        _with_agents(project, plan, options, base, before),
        instructions=ProjectInstructions() if scripted else instructions_of(project),
        script_file=options.script_file,
        # The Python files as they are now: the run calls the code that was permitted.
        sources=read_sources(project.folder, handlers) if (handlers := handlers_of(plan)) else Sources(),
        permission=options.permission,
        traceparent=options.traceparent if read_traceparent(options.traceparent) else "",
    )
    if starts_programs:
        check_confinement(project, plan, frozen)
    of_steps, of_roles = _skills(plan, frozen)
    if frozen.script is None and (of_steps or of_roles):  # a script uses no skills
        from fanfold.agents.skills import check_skills, take_skills

        roots = _skill_roots(project)
        check_skills(of_steps, of_roles, roots)
        frozen = replace(frozen, skills=take_skills((*of_steps, *of_roles), roots, project.config.home))
    settings = settings_of(project.config, plan, options)
    needed = frozen.backends()
    if needed - {SCRIPTED}:  # scripted agents need no model, so this import is skipped
        check_backends(frozen, project.backends)
        check_program_prices(plan, frozen, settings, project.backends, project.config.access)
        if MODEL in needed:
            frozen, settings = prepare(plan, frozen, settings, project.config, project.store)
    return frozen, settings


def _with_agents(
    project: Project,
    plan: Plan,
    options: Options,
    base: RunConfig = RunConfig(),  # noqa: B008 - it is frozen
    before: Mapping[str, Role] = {},
) -> RunConfig:
    """Return the part of a run's configuration that determines its models and programs."""

    def find(name: str) -> Role | None:
        return before.get(name) or project.roles.find(name)

    return replace(
        base,
        roles=with_stages(freeze_roles(plan, find), find),
        backend=options.backend or (MODEL if options.script is None else SCRIPTED),
        model=options.model,
        fast_model=project.config.text("workflows.model"),
        script=options.script,
        unsafe=options.unsafe_no_sandbox,
    )


def _skills(plan: Plan, frozen: RunConfig) -> tuple[list[str], list[str]]:
    """Return the names of the skills of a plan's steps, and of its roles."""
    bodies = (find_body(AgentBody, step) for step in all_steps_below(plan) if step.traits.role is not None)
    of_steps = [name for body in bodies if body is not None for name in body.skills]
    return of_steps, [name for role in frozen.roles.values() for name in role.skills]


def _skill_roots(project: Project) -> list[SkillRoot]:
    from fanfold.agents.skills import skill_roots

    return skill_roots(project.folder, user_home(os.environ), project.config.home)


def handlers_of(plan: Plan) -> set[str]:
    """Return the handlers of a plan's function steps."""
    calls = [step for step in all_steps_below(plan) if step.type == FUNCTION.name]
    if not calls:
        return set()
    from fanfold.steps.function import FunctionBody

    return {read_body(FunctionBody, step).handler for step in calls}


def instructions_of(project: Project) -> ProjectInstructions:
    """Return the project's instructions for agents, unless the user disabled them."""
    wanted = project.config.switch("agents.project_instructions")
    return read_instructions(str(project.folder)) if wanted else ProjectInstructions()


def check_variables(config: Config, plan: Plan) -> None:
    """Refuse a run if a command requires an environment variable that is not allowed."""
    allowed = config.names(command.SETTING)
    for step in all_steps_below(plan):
        body = find_body(CommandBody, step)
        withheld = None if body is None else command.why_withheld(body.env_vars, allowed)
        if withheld is not None:
            message = f"step {step.id}: {withheld.message}"
            raise WorldError(withheld.code, message, hint=withheld.hint, exit_status=EXIT_PERMISSION)


def check_startable(project: Project, plan: Plan) -> None:
    """Refuse a run that no permission could start: disabled, or with values or functions not allowed.

    A function is allowed if it is registered, in the project, or listed in the configuration.
    """
    check_enabled(project)
    check_variables(project.config, plan)
    allowed = project.config.names(SETTING)
    for name in sorted(handlers_of(plan)):
        if is_module_name(name) and not is_listed(name, allowed) and not project.is_own_handler(name):
            raise not_allowed(name)


def start(  # noqa: PLR0913 - the surfaces share one function
    project: Project,
    plan: Plan,
    given: Mapping[str, JSON],
    options: Options,
    *,
    yes: bool = False,
    prompter: Prompter | None = None,
    run_id: str = "",
    seen: str | None = None,
    at_home: bool = False,
) -> OwnedRun:
    """Record a new run that is allowed to do what its recipe declares; raises `permission_denied` otherwise.

    `yes` answers every permission question: this one and those that agents cause later. `seen` is the digest
    of the question that the surface showed. `at_home`: see `create`.
    """
    bound, consent = bind_inputs(plan, given), None
    if seen is not None or not is_settled(options.permission, yes=yes):
        consent = start_consent(project, plan, bound, options)
        if seen not in (None, consent.request.digest):
            message = f"the effects of {plan.name} changed since they were shown"
            raise WorldError("permission.changed", message, hint="read the new dry run, then start the run")
    check_startable(project, plan)  # before the question, since no answer could help
    if consent is not None:
        permit(consent, options.permission, yes=yes, prompter=prompter)
    if yes and options.permission == "ask":
        options = replace(options, permission="auto")
    ask = None if prompter is None else prompter.allow
    return create(project, plan, bound, options, ask=ask, run_id=run_id, at_home=at_home)


def start_consent(project: Project, plan: Plan, bound: Mapping[str, JSON], options: Options) -> RunConsent:
    """Return the permission question before a run, as every surface shows it."""
    spending = _estimate_spending(project, plan, bound, options)
    reasons = asked_about(project.config, spending) if options.permission == "ask" else []
    totals = (*spending.totals(), *capped_limits(project.config, plan, options))
    find = project.roles.find
    return consent_of(project, plan, find, options, inputs=bound, reasons=reasons, totals=totals)


# -----------------------------------------------------------------------------------------------------------
# The forecast of a run, and reasons why it would be refused
#
# Nothing writable is opened: no store, no workspace. Estimates of roles are therefore the usual values, not
# values from earlier runs.


def forecast_run(
    project: Project,
    checked: CheckedRecipe,
    inputs: Mapping[str, JSON],
    options: Options,
    missing: Sequence[str] = (),
    *,
    show_prompts: bool = False,
) -> tuple[DryRun, dict[str, Node]]:
    """Return the dry run, and the node behind every path that would start.

    `inputs` are the known inputs. `missing` has one sentence for each required input without a value.
    """
    plan, config = checked.runnable(), project.config
    settings = settings_of(config, plan, options)
    warnings = [d.message for d in (*role_warnings(project, [plan]).used, *checked.diagnostics)]
    enabled = config.switch("workflows.enabled")
    if not enabled:
        warnings.append(f"workflows are disabled ({config.origins['workflows.enabled']})")
    warnings += [*capped_limits(config, plan, options), *missing]
    usable, frozen = True, _with_agents(project, plan, options)
    try:
        check_variables(config, plan)
    except WorldError as error:
        warnings.append(f"would be refused: {error.message}")
        usable = False
    try:
        check_confinement(project, plan, frozen)
        if any(named := _skills(plan, frozen)):
            from fanfold.agents.skills import check_skills

            warnings += check_skills(*named, _skill_roots(project))
    except FanfoldError as error:
        warnings.append(f"would be refused: {error.message}; {error.hint}")
        usable = False
    if options.script is None:
        refusals, unused, estimates = _check_models_for_forecast(project, plan, settings, frozen)
        warnings += [*(f"would be refused: {error.message}" for error in refusals), *unused]
        usable = usable and not refusals
        settings = replace(settings, estimates=estimates)
    allowed = enabled and usable and not missing
    prompt = _prompts(project) if show_prompts else None
    return dry_run(plan, inputs, settings, warnings=warnings, allowed=allowed, prompt=prompt)


def _prompts(project: Project) -> Callable[[str, Node, dict[str, JSON]], ForeseenPrompt]:
    """Return a function that describes the prompt of a step, with the current roles and instructions."""
    instructions = instructions_of(project)

    def describe(path: str, node: Node, names: dict[str, JSON]) -> ForeseenPrompt:
        body = read_body(AgentBody, node.step)
        found = project.roles.find(body.role)
        assert found is not None, "the recipe was checked"
        skills: tuple[Skill, ...] = ()
        if named := (*found.skills, *body.skills):
            from fanfold.agents.skills import take_skills

            skills = tuple(take_skills(named, _skill_roots(project), None).values())
        role = for_step(found, read_only=node.step.posture == "read_only", skills=skills)
        writes = node.write_set or node.step.write_set
        own = with_limits(role, folder=str(project.folder), write_set=writes)
        nested = instructions_for(instructions.below, (*node.step.read_set, *node.step.write_set))
        system = compose(own, instructions.top, nested)
        return ForeseenPrompt(path, body.role, system, foreseen_prompt(node, body, role, names))

    return describe


# -----------------------------------------------------------------------------------------------------------
# Checks before a run is recorded: back ends, models, and prices for the budget
#
# Rules
# * The sandbox of commands and of agents that are programs is checked first: a run is refused if this machine
#   cannot confine one of them.
# * Every back end of a role is checked next. The run is refused if one cannot be used.
# * Every model that a plan may use is checked: of steps, roles, stages of pipelines, the user's flag, the
#   fast model of folds. The run is refused before it exists if a model cannot be used. The error names the
#   place where the model was named.
# * A fallback that cannot be used is dropped with a warning: the run does not depend on it.
# * Unknown is not zero: a budget in dollars is refused if the price of a model is unknown, unless there is
#   also a budget in tokens.
# * A check is not repeated after the start: a resumed run keeps its models. A fork is checked only for steps
#   of which it reuses nothing.
# * Scripted agents are not checked. No check uses the network.


def check_confinement(project: Project, plan: Plan, frozen: RunConfig) -> None:
    """Refuse a run if this machine cannot confine one of its commands or agents that are programs."""
    from fanfold.agents.command.profile import is_program

    named = ((role, _backends(frozen, role)) for role in frozen.roles.values())
    agents = [(role, backend) for role, backends in named for backend in backends if is_program(backend)]
    if not agents and not any(type_of(step).starts_programs for step in all_steps_below(plan)):
        return
    from fanfold.agents.command.profile_files import find_profile

    levels = detect(project.folder)
    level = choose_level(levels, unsafe=frozen.unsafe)
    for role, backend in agents:
        if not (role.network or role.offline):
            check_reach(levels, unsafe=frozen.unsafe)
        profile = find_profile(backend, project.config.home)
        if profile is not None and not frozen.unsafe:
            check_brought(level, project.folder, profile.state.brought)


def _backends(frozen: RunConfig, role: Role) -> tuple[str, ...]:
    return (frozen.backend_of(role), *frozen.fallback_backends(role))


class ModelReport(Struct, frozen=True, kw_only=True):
    """The result of checking the models of a plan."""

    chosen: dict[str | None, Choice]
    """By requested name; None is the default model."""
    refusals: tuple[FanfoldError, ...] = ()
    useless: dict[str, str] = {}
    """Fallbacks that cannot be used, with the reason."""


def check_backends(frozen: RunConfig, backends: BackendRegistry) -> None:
    """Refuse a run if no back end here can work for one of its roles. The error names the role."""
    for name, role in frozen.roles.items():
        home = backends.machine.home
        for backend in _backends(frozen, role):
            problem = backends.problem(backend, role.command) or _unkept(name, role, backend, home)
            if problem is not None:
                where = f'role "{name}": ' if role.backend is not None and frozen.script is None else ""
                raise _with_message(problem, where + problem.message, {"role": name})


def _unkept(name: str, role: Role, backend: str, home: Path) -> FanfoldError | None:
    """Return why a back end that brings its own tools is not allowed to work for a role."""
    if not role.needs_our_tools and role.tools is None:
        return None
    from fanfold.agents.command.profile import is_program
    from fanfold.agents.command.profile_files import find_profile, unkept

    profile = find_profile(backend, home) if is_program(backend) else None
    if profile is None or not (violated := unkept(profile, role)):
        return None
    message = f'role "{name}" says {violated}, which "{backend}" does not enforce'
    return AuthorError("role.refused", message, hint="use a model for this role, or another role")


def check_program_prices(
    plan: Plan, frozen: RunConfig, settings: Settings, backends: BackendRegistry, access: Access
) -> None:
    """Refuse a budget in dollars alone if a back end does not report its cost and its model has no price."""
    bodies = [find_body(AgentBody, step) for step in all_steps_below(plan)]
    for limited in _limited_in_dollars(plan, settings):
        for name, role in frozen.roles.items():
            models = {frozen.model_of(body) for body in bodies if body is not None and body.role == name}
            rates = [access.rate_of(model) for model in models or {frozen.model or role.model}]
            for backend in _backends(frozen, role):
                if backends.tells_price(backend) or None not in rates:
                    continue
                why = f'"{backend}" does not report its costs, and role "{name}" names no model with a price'
                raise _unpriced(plan, limited, why, {"backend": backend, "where": f'role "{name}"'})


def prepare(
    plan: Plan, frozen: RunConfig, settings: Settings, config: Config, store: Store
) -> tuple[RunConfig, Settings]:
    """Return the configuration and settings that a new run of models is recorded with; raises a refusal."""
    uses = list(models_of(plan, frozen, config))
    report = look(uses, frozen, config)
    if report.refusals:
        raise report.refusals[0]
    default = report.chosen.get(None)
    fast = frozen.default_fast_model or (None if default is None else default.fast_model)
    roles = {}
    for name, role in frozen.roles.items():
        usable = tuple(model for model in role.fallback_models if model not in report.useless)
        roles[name] = replace(role, fallback_models=usable)
    model = frozen.default_model if default is None else default.model
    frozen = replace(frozen, default_model=model, default_fast_model=fast, roles=roles)
    if not _is_limited(plan, settings):
        return frozen, settings  # without a budget no estimates are needed
    if fast is not None:
        uses = list(models_of(plan, frozen, config))  # summaries now have their own model
        report.chosen[fast] = choose_model(config, local_state(config.home), asked=fast)
    prices = Prices(report.chosen, config)
    for limited in _limited_in_dollars(plan, settings) if frozen.forked_from is None else ():
        for use in models_of(replace(limited, workflows=plan.workflows), frozen, config):
            if (unpriced := prices.unpriced(use.model)) is not None:
                where = use.where or "--model"
                why = f'the price of "{unpriced}" is unknown ({where})'
                raise _unpriced(plan, limited, why, {"model": unpriced, "where": where})
    return frozen, replace(settings, estimates=estimates_of(uses, prices, store))


def _check_models_for_forecast(
    project: Project, plan: Plan, settings: Settings, frozen: RunConfig
) -> tuple[Sequence[FanfoldError], list[str], dict[str, Estimate]]:
    """Check back ends and models for a dry run: refusals, warnings, and estimates if there is a budget.

    A missing default model is not reported: users may inspect a recipe before they have an account.
    """
    config = project.config
    try:
        check_backends(frozen, project.backends)
    except FanfoldError as error:
        return [error], [], {}
    uses = list(models_of(plan, frozen, config))
    report = look([use for use in uses if use.model is not None], frozen, config)
    unused = [f"fallback {name} will not be used: {why}" for name, why in report.useless.items()]
    if not _is_limited(plan, settings):
        return report.refusals, unused, {}
    chosen = look(uses, frozen, config).chosen
    return report.refusals, unused, estimates_of(uses, Prices(chosen, config))


def look(uses: Sequence[ModelUse], frozen: RunConfig, config: Config) -> ModelReport:
    """Check every model once. Refusals are returned, not raised, so that a dry run can show them."""
    chosen: dict[str | None, Choice] = {}
    refusals: list[FanfoldError] = []
    useless: dict[str, str] = {}
    refused: set[str | None] = set()
    local = local_state(config.home)
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
                place = f"{use.where}: " if use.where and model is not None else ""
                where = {"where": use.where, "model": model}
                refusals.append(_with_message(error, f"{place}{error.message}", where))
                refused.add(model)
        else:
            chosen[model] = choice
    return ModelReport(chosen=chosen, refusals=tuple(refusals), useless=useless)


def _with_message(error: FanfoldError, message: str, more: Mapping[str, object]) -> FanfoldError:
    details = {**error.details, **more}
    return type(error)(error.code, message, hint=error.hint, details=details, exit_status=error.exit_status)


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


def _unpriced(plan: Plan, limited: Plan, why: str, details: dict[str, str]) -> AuthorError:
    whose = "" if limited is plan else f' of "{limited.name}"'
    tokens = "set --budget-tokens too" if not whose else "give `limits.budget` of that recipe `tokens` too"
    hint = f"set the price in [models.prices] of your own config.toml, or {tokens}"
    message = f"the budget{whose} in dollars cannot be enforced: {why}"
    return AuthorError("budget.unpriced", message, hint=hint, details=details, exit_status=EXIT_BUDGET)


def _estimate_spending(
    project: Project, plan: Plan, inputs: Mapping[str, JSON], options: Options
) -> Spending:
    """Estimate what a run of a plan will spend, within its limits.

    As in a dry run, known lists are counted, and an unknown list counts as a few items.
    """
    if options.script is not None or not any(step.traits.role for step in all_steps_below(plan)):
        return Spending(0, 0)
    config, frozen = project.config, _with_agents(project, plan, options)
    uses = list(models_of(plan, frozen, config))
    prices = Prices(look(uses, frozen, config).chosen, config)
    # By role: the expected spending of one attempt. Roles whose model is unknown are missing.
    estimates = estimates_of(uses, prices, project.store if project.has_runs else None)
    settings = settings_of(config, plan, options)
    world = Foresight(inputs)
    host = ForecastHost(plan, settings, world)
    host.drive()
    roles = [role for begun in host.begun if (role := begun.node.step.traits.role) is not None]
    bounds = AgentBounds(host.state.plan, world.assumed).of(host.state.root.scope)
    agents = min(bounds.expected, settings.max_agents)
    spent = sum(estimates[role].micro_usd for role in roles if role in estimates)
    spent = spent * agents // max(1, len(roles))  # the items of an unknown list are counted, but not driven
    if settings.budget_micro_usd is not None:
        spent = min(spent, settings.budget_micro_usd)
    return Spending(agents, spent, min(bounds.high, settings.max_agents))
