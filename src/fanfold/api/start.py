"""Create and start a run. Everything that it needs is fixed and recorded before its first step starts.

One permission question at the start covers every effect that the recipe declares. It also covers the expected
cost if that is high (see `permission`). If no person can answer, permission is denied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct, structs
from msgspec.structs import replace

from fanfold.agents.backend_registry import MODEL, SCRIPTED
from fanfold.agents.instructions import ProjectInstructions, read_instructions
from fanfold.agents.role import Role
from fanfold.api.ownership import OwnedRun, check_enabled, performer_of, performers_of, supervise
from fanfold.api.permission import (
    Options,
    Prompter,
    RunConsent,
    asked_about,
    capped_limits,
    consent_of,
    foresee_spending,
    is_settled,
    permit,
    settings_of,
)
from fanfold.api.project import Project
from fanfold.api.recipes import CheckedRecipe, role_warnings
from fanfold.engine.config import Config
from fanfold.engine.dry_run import dry_run
from fanfold.engine.forecast_documents import DryRun, ForeseenPrompt
from fanfold.engine.run_tree import Reuse, RunTree, nothing_to_reuse, wall_clock_ms
from fanfold.errors import EXIT_PERMISSION, AuthorError, WorldError
from fanfold.kernel.events import Event, Evidence, Failure, RunCreated, RunForked, Settings
from fanfold.kernel.plan import JSON, Plan
from fanfold.kernel.state import Node
from fanfold.kernel.waits import DEFAULT_OUTAGE_MS
from fanfold.language.inputs import bind_inputs
from fanfold.language.json_text import strict
from fanfold.language.keys import COMMAND, FUNCTION
from fanfold.language.step_grammar import read_body
from fanfold.steps import command
from fanfold.steps.ids import new_run_id
from fanfold.steps.programs import Programs
from fanfold.steps.run_config import (
    RunConfig,
    Sources,
    TakenUp,
    all_steps_below,
    freeze_roles,
    read_sources,
    to_json,
    with_stages,
)
from fanfold.steps.table import type_of
from fanfold.store.journal import Journal
from fanfold.store.protocol import StoreFault
from fanfold.workspace.artifacts import Artifact, carry_over

if TYPE_CHECKING:
    from fanfold.agents.permissions import Ask


class Lineage(Struct, frozen=True, kw_only=True):
    """The run that a fork comes from, the results it reuses, and the roles of its steps there."""

    run_id: str
    kept: dict[str, str]
    """Tree path to output blob of each reused step, and of each failed step that has an output."""
    failures: dict[str, Failure] = {}
    """Tree path to failure of each step whose failure was tolerated. The fork keeps these failures."""
    roles: dict[str, Role]
    default_model: str | None = None
    default_fast_model: str | None = None
    taken_up: dict[str, TakenUp] = {}
    """Tree path to the conversation that a step continues."""
    artifacts: dict[str, list[Artifact]] = {}
    """The artifacts that the reused steps published."""
    merges: dict[str, tuple[str, ...]] = {}
    """Tree path to merge receipts of the reused steps. The fork delivers these merges, too."""


def create(
    project: Project,
    plan: Plan,
    given: Mapping[str, JSON],
    options: Options,
    *,
    fork: Lineage | None = None,
    ask: Ask | None = None,
) -> OwnedRun:
    """Record a new run that this process owns. `ask` asks a person about actions of agents."""
    check_enabled(project)
    bound = bind_inputs(plan, given)
    frozen, settings = freeze(project, plan, options, fork)
    programs = Programs(project.isolation, unsafe=frozen.unsafe)
    supervisor = supervise(project, frozen, programs, ask)
    for name in sorted(frozen.backends()):
        supervisor.backends.named(name)  # a back end that cannot be created is refused now
    root = new_run_id()
    lease = project.store.acquire(root)
    journal = Journal(project.store, root, lease)
    performer = performer_of(project, frozen, programs, supervisor, journal)
    try:
        tree = _record(project, journal, plan, bound, frozen, settings, performer.reuse)
        if fork is not None:
            # Named in the log, or `gc` would delete them together with the source run.
            texts = {one.text for files in fork.artifacts.values() for one in files if one.text}
            kept = tuple(sorted({*fork.kept.values(), *texts}))
            tree.report(root, tree.now_ms(), RunForked(f"from {fork.run_id}", kept))
            _keep_artifacts(project, tree, fork)
        tree.commit(requires="" if fork is None else fork.run_id)
    except BaseException:
        with suppress(StoreFault):
            project.store.release(lease)
        raise
    return OwnedRun(project, tree, performers_of(project, performer, journal, ask), lease)


def _keep_artifacts(project: Project, tree: RunTree, fork: Lineage) -> None:
    """Carry the artifacts of reused steps over to the new run."""
    from fanfold.steps.records import ArtifactsPublished

    for step, files in fork.artifacts.items():
        carry_over(project.runs_folder, fork.run_id, tree.root.id, [one.path for one in files])
        fact = ArtifactsPublished(step=step, files=tuple(files))
        tree.report(tree.root.id, tree.now_ms(), Evidence("workspace_event", fact))


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
    data = RunCreated(
        plan=plan,
        settings=settings,
        epoch=journal.epoch,
        inputs=inputs,
        frozen=facts,
    )
    first = Event(journal.root, wall_clock_ms(), data)
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
) -> tuple[RunConfig, Settings]:
    """Return everything besides plan and inputs that a run fixes at its start; raises if it cannot work.

    `own_roles` take precedence over roles of the project with the same name.
    """
    _check_text(options)
    _check_sandbox(project, plan, options)
    check_variables(project.config, plan)
    before = {**(fork.roles if fork is not None else {}), **(own_roles or {})}
    frozen = _freeze(project, plan, options, fork, before)
    settings = settings_of(project.config, plan, options)
    needed = frozen.backends()
    if needed - {SCRIPTED}:  # scripted agents need no model, so this import is skipped
        from fanfold.api.permission import check_backends, check_program_prices, prepare

        check_backends(frozen, project.backends)
        check_program_prices(plan, frozen, settings, project.backends)
        if MODEL in needed:
            frozen, settings = prepare(plan, frozen, settings, project.config, project.store)
    return frozen, settings


def _freeze(
    project: Project, plan: Plan, options: Options, fork: Lineage | None, before: Mapping[str, Role]
) -> RunConfig:
    scripted = options.script is not None
    if scripted and options.backend not in (None, SCRIPTED):
        message = f"a script answers for every agent, so none would work on {options.backend!r}"
        raise AuthorError("usage.conflicting_options", message, hint="leave one of them out")

    def find(name: str) -> Role | None:
        return before.get(name) or project.roles.find(name)

    return RunConfig(
        roles=with_stages(freeze_roles(plan, find), find),
        backend=options.backend or (SCRIPTED if scripted else MODEL),
        model=options.model,
        default_model=fork.default_model if fork is not None else None,
        default_fast_model=fork.default_fast_model if fork is not None else None,
        fast_model=project.config.text("workflows.model"),
        instructions=ProjectInstructions() if scripted else instructions_of(project),
        script=options.script,
        script_file=options.script_file,
        sources=_sources(project, plan),
        permission=options.permission,
        unsafe=options.unsafe_no_sandbox,
        forked_from=fork.run_id if fork is not None else None,
        reused=fork.kept if fork is not None else {},
        reused_failures=fork.failures if fork is not None else {},
        reused_merges=fork.merges if fork is not None else {},
        taken_up=fork.taken_up if fork is not None else {},
    )


def _sources(project: Project, plan: Plan) -> Sources:
    """Read the Python files as they are now if the run calls functions: it calls the permitted code."""
    calls = [step for step in all_steps_below(plan) if step.type == FUNCTION.name]
    if not calls:
        return Sources()
    from fanfold.language.leaf_steps import FunctionBody

    return read_sources(project.folder, {read_body(FunctionBody, step).handler for step in calls})


def instructions_of(project: Project) -> ProjectInstructions:
    """Return the project's instructions for agents, unless the user disabled them."""
    wanted = project.config.switch("agents.project_instructions")
    return read_instructions(str(project.folder)) if wanted else ProjectInstructions()


def _check_text(options: Options) -> None:
    """Refuse options that are not valid text: arguments from a shell may contain any bytes."""
    try:
        strict(structs.asdict(options), "what was asked for")
    except ValueError as error:
        raise AuthorError("usage.bad_value", str(error)) from None


def _check_sandbox(project: Project, plan: Plan, options: Options) -> None:
    """Refuse a run with programs that the sandbox cannot confine, before it starts."""
    if any(type_of(step).starts_programs for step in all_steps_below(plan)):
        from fanfold.workspace.sandbox import choose_level, detect

        choose_level(detect(project.folder), unsafe=options.unsafe_no_sandbox)


def check_variables(config: Config, plan: Plan) -> None:
    """Refuse a run if a command requires an environment variable that is not allowed."""
    commands = [step for step in all_steps_below(plan) if step.type == COMMAND.name]
    if not commands:
        return
    from fanfold.language.leaf_steps import CommandBody

    allowed = config.names(command.SETTING)
    for step in commands:
        withheld = command.why_withheld(read_body(CommandBody, step).env_vars, allowed)
        if withheld is not None:
            message = f"step {step.id}: {withheld.message}"
            raise WorldError(withheld.code, message, hint=withheld.hint, exit_status=EXIT_PERMISSION)


def check_functions(project: Project, plan: Plan) -> None:
    """Refuse a run if a function is not registered, not in the project and not allowed by configuration."""
    from fanfold.language.leaf_steps import FunctionBody
    from fanfold.steps.function_calls import SETTING, is_listed, is_module_name, not_allowed

    allowed = project.config.names(SETTING)
    for step in all_steps_below(plan):
        if step.type != FUNCTION.name:
            continue
        name = read_body(FunctionBody, step).handler
        if is_module_name(name) and not is_listed(name, allowed) and not project.is_own_handler(name):
            raise not_allowed(name)


def start(
    project: Project,
    plan: Plan,
    given: Mapping[str, JSON],
    options: Options,
    *,
    yes: bool = False,
    attendant: Prompter | None = None,
) -> OwnedRun:
    """Record a new run that is allowed to do what its recipe declares; raises `permission_denied` otherwise.

    `yes` answers every permission question: this one and those that agents cause later.
    """
    bound = bind_inputs(plan, given)
    check_enabled(project)
    check_variables(project.config, plan)  # checked before the question, since no answer could help
    check_functions(project, plan)
    if not is_settled(options.permission, yes=yes):
        permit(start_consent(project, plan, bound, options), options.permission, attendant=attendant)
    if yes and options.permission == "ask":
        options = structs.replace(options, permission="auto")
    return create(project, plan, bound, options, ask=None if attendant is None else attendant.allow)


def start_consent(project: Project, plan: Plan, bound: Mapping[str, JSON], options: Options) -> RunConsent:
    """Return the permission question before a run, as every surface shows it."""
    spending = foresee_spending(project, plan, bound, options)
    reasons = asked_about(project.config, spending) if options.permission == "ask" else []
    totals = (*spending.totals(), *capped_limits(project.config, plan, options))
    find = project.roles.find
    return consent_of(project, plan, find, options, inputs=bound, reasons=reasons, totals=totals)


# -----------------------------------------------------------------------------------------------------------
# The forecast of a run, and reasons why it would be refused
#
# Nothing writable is opened: no store, no workspace. Estimates of roles are therefore the usual values, not
# values from earlier runs.


def foresee_run(
    project: Project,
    checked: CheckedRecipe,
    inputs: Mapping[str, JSON],
    options: Options,
    missing: Sequence[str] = (),
    *,
    show_prompts: bool = False,
) -> tuple[DryRun, dict[str, Node]]:
    """Return the dry run, and the node behind every path that would start.

    `inputs` are the inputs that have a value. `missing` has one sentence for each required input without a
    value.
    """
    plan, config = checked.runnable(), project.config
    settings = settings_of(config, plan, options)
    warnings = [d.message for d in (*role_warnings(project, [plan]).used, *checked.diagnostics)]
    enabled = config.switch("workflows.enabled")
    if not enabled:
        warnings.append(f"workflows are switched off ({config.origins['workflows.enabled']})")
    warnings += [*capped_limits(config, plan, options), *missing]
    usable = True
    try:
        check_variables(config, plan)
    except WorldError as error:
        warnings.append(f"would be refused: {error.message}")
        usable = False
    if options.script is None:
        from fanfold.api.permission import foresee

        seen = foresee(project, plan, settings, options.backend, options.model)
        warnings += seen.warnings
        usable = usable and seen.usable
        settings = replace(settings, estimates=seen.estimates)
    allowed = enabled and usable and not missing
    prompt = _prompts(project) if show_prompts else None
    return dry_run(plan, inputs, settings, warnings=warnings, allowed=allowed, prompt=prompt)


def _prompts(project: Project) -> Callable[[str, Node, dict[str, JSON]], ForeseenPrompt]:
    """Return a function that describes the prompt of a step, with the current roles and instructions."""
    from fanfold.agents.instructions import compose, instructions_for, with_limits
    from fanfold.agents.role import for_step
    from fanfold.language.leaf_steps import AgentBody
    from fanfold.language.step_grammar import read_body
    from fanfold.steps.agent import foreseen_prompt

    told = instructions_of(project)

    def describe(path: str, node: Node, names: dict[str, JSON]) -> ForeseenPrompt:
        body = read_body(AgentBody, node.step)
        found = project.roles.find(body.role)
        assert found is not None, "the recipe was checked"
        role = for_step(found, read_only=node.step.posture == "read_only")
        writes = node.write_set or node.step.write_set
        own = with_limits(role, folder=str(project.folder), write_set=writes)
        nested = instructions_for(told.below, (*node.step.read_set, *node.step.write_set))
        system = compose(own, told.top, nested)
        return ForeseenPrompt(path, body.role, system, foreseen_prompt(node, body, role, names))

    return describe
