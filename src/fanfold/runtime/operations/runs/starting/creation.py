"""Starting and creating a run: everything it will ever need is fixed and recorded before anything begins.

One question at the start covers what the recipe declares, and what it will probably take where that is much
(see `permission`). Where nobody can answer, the answer is no.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from fanfold.agents.backend_registry import MODEL, SCRIPTED
from fanfold.agents.instructions import ProjectInstructions, read_instructions
from fanfold.agents.role import Role
from fanfold.errors import EXIT_PERMISSION, AuthorError, WorldError
from fanfold.kernel.events import Created, Event, Evidence, Failure, Forked, Settings
from fanfold.kernel.plan import JSON, Plan
from fanfold.recipe.inputs import bind_inputs
from fanfold.recipe.language.syntaxes import COMMAND, FUNCTION
from fanfold.recipe.types.body import read_body
from fanfold.runtime.config import Config
from fanfold.runtime.handlers.sources import Sources, read_sources
from fanfold.runtime.hosting.clock import wall_clock_ms
from fanfold.runtime.hosting.run_tree import Reuse, RunTree, nothing_to_reuse
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.ownership import (
    Owned,
    check_enabled,
    performer_of,
    performers_of,
    supervise,
)
from fanfold.runtime.operations.runs.starting.options import Options, settings_of
from fanfold.runtime.operations.runs.starting.permission import (
    Attendant,
    asked_about,
    foresee_spending,
    permit,
)
from fanfold.runtime.records.frozen import (
    Frozen,
    TakenUp,
    all_steps_below,
    freeze_roles,
    to_json,
    with_stages,
)
from fanfold.runtime.records.ids import new_run_id
from fanfold.runtime.steps.programs import own_variables
from fanfold.runtime.steps.programs.sandboxed import Programs
from fanfold.runtime.steps.registry import type_of
from fanfold.store.journal import Journal
from fanfold.text.json_value import strict
from fanfold.workspace.artifacts import Artifact, carry_over

if TYPE_CHECKING:
    from fanfold.agents.permissions import Ask


class Lineage(Struct, frozen=True, kw_only=True):
    """Where a fork comes from, what it keeps of it, and the roles its steps had there."""

    run_id: str
    kept: dict[str, str]
    """Tree path to blob of the steps whose output is reused."""
    failures: dict[str, Failure] = {}
    """Tree path to failure of the steps whose failure was tolerated, and stays."""
    roles: dict[str, Role]
    default_model: str | None = None
    default_fast_model: str | None = None
    taken_up: dict[str, TakenUp] = {}
    """Tree path to the conversation that a step goes on with."""
    artifacts: dict[str, list[Artifact]] = {}
    """What the steps whose output is reused had published."""
    merges: dict[str, tuple[str, ...]] = {}
    """Tree path to receipts of what they had merged: it is this run's to deliver, too."""


def create(
    project: Project,
    plan: Plan,
    given: Mapping[str, JSON],
    options: Options,
    *,
    fork: Lineage | None = None,
    ask: Ask | None = None,
) -> Owned:
    """Record a new run, owned by this process. `ask` puts what agents want to do to a person."""
    check_enabled(project)
    bound = bind_inputs(plan, given)
    frozen, settings = freeze(project, plan, options, fork)
    programs = Programs(project.isolation, unsafe=frozen.unsafe)
    supervisor = supervise(project, frozen, programs, ask)
    for name in sorted(frozen.backends()):
        supervisor.backends.named(name)  # what cannot be made is refused now
    root = new_run_id()
    lease = project.store.acquire(root)
    journal = Journal(project.store, root, lease)
    performer = performer_of(project, frozen, programs, supervisor, journal)
    tree = _record(project, journal, plan, bound, frozen, settings, performer.reuse)
    if fork is not None:
        # Named in the log, or collecting the source run would take them away.
        texts = {one.text for files in fork.artifacts.values() for one in files if one.text}
        kept = tuple(sorted({*fork.kept.values(), *texts}))
        tree.report(root, tree.now_ms(), Forked(f"from {fork.run_id}", kept))
        _keep_artifacts(project, tree, fork)
    tree.commit()
    return Owned(project, tree, performers_of(project, performer, journal, ask), lease)


def _keep_artifacts(project: Project, tree: RunTree, fork: Lineage) -> None:
    """What kept steps had published is this run's too."""
    from fanfold.runtime.records.evidence import Published

    for step, files in fork.artifacts.items():
        carry_over(project.runs_folder, fork.run_id, tree.root.id, [one.path for one in files])
        fact = Published(step=step, files=tuple(files))
        tree.report(tree.root.id, tree.now_ms(), Evidence("workspace_event", fact))


def create_open(project: Project, root: str) -> None:
    """Record an open run under a name of its own, unless somebody has; nobody owns it then.

    Its slots are `max_threads`. What its children need is fixed when they are added.
    """
    lease = project.store.acquire(root)
    try:
        if project.store.head(root) is None:
            plan = Plan(name=root, open=True, steps=())
            slots = project.config.integer("sessions.max_threads")
            settings = Settings(max_concurrency=slots, timeout_ms=None)
            _record(project, Journal(project.store, root, lease), plan, {}, Frozen(), settings).commit()
    finally:
        project.store.release(lease)


def _record(
    project: Project,
    journal: Journal,
    plan: Plan,
    bound: Mapping[str, JSON],
    frozen: Frozen,
    settings: Settings,
    reuse: Reuse = nothing_to_reuse,
) -> RunTree:
    """The first event of a run; nothing is durable yet."""
    blobs, fixed = journal.blobs, to_json(frozen)
    inputs, facts = blobs.put(dict(bound)), blobs.put(fixed)
    data = Created(
        plan=plan,
        settings=settings,
        epoch=journal.epoch,
        inputs=inputs,
        frozen=facts,
    )
    first = Event(journal.root, wall_clock_ms(), data)
    tree = RunTree(project.store, first, journal, reuse, forked_from=frozen.forked_from)
    tree.begin(first)
    if blobs.get(facts) is fixed:  # else a secret was taken out of it
        tree.know_frozen(facts, frozen)
    return tree


def freeze(
    project: Project,
    plan: Plan,
    options: Options,
    fork: Lineage | None = None,
    own_roles: Mapping[str, Role] | None = None,
) -> tuple[Frozen, Settings]:
    """Everything beside plan and inputs that must not be looked up again later; raises what cannot work.

    `own_roles` are taken as they are, whatever files of the project call themselves by these names.
    """
    _check_text(options)
    _check_sandbox(project, plan, options)
    check_variables(project.config, plan)
    before = {**(fork.roles if fork is not None else {}), **(own_roles or {})}
    frozen = _freeze(project, plan, options, fork, before)
    settings = settings_of(project.config, plan, options)
    needed = frozen.backends()
    if needed - {SCRIPTED}:  # scripted agents need no model, and no import of what knows them
        from fanfold.runtime.operations.runs.starting.preflight import (
            check_backends,
            check_program_prices,
            prepare,
        )

        check_backends(frozen, project.backends)
        check_program_prices(plan, frozen, settings, project.backends)
        if MODEL in needed:
            frozen, settings = prepare(plan, frozen, settings, project.config, project.store)
    return frozen, settings


def _freeze(
    project: Project, plan: Plan, options: Options, fork: Lineage | None, before: Mapping[str, Role]
) -> Frozen:
    scripted = options.script is not None
    if scripted and options.backend not in (None, SCRIPTED):
        message = f"a script answers for every agent, so none would work on {options.backend!r}"
        raise AuthorError("usage.conflicting_options", message, hint="leave one of them out")

    def find(name: str) -> Role | None:
        return before.get(name) or project.roles.find(name)

    return Frozen(
        roles=with_stages(freeze_roles(plan, find), find),
        backend=options.backend or (SCRIPTED if scripted else MODEL),
        model=options.model,
        default_model=fork.default_model if fork is not None else None,
        default_fast_model=fork.default_fast_model if fork is not None else None,
        fast_model=project.config.text("workflows.model"),
        instructions=ProjectInstructions() if scripted else _instructions(project),
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
    """The Python files as they are now, if the run calls functions: what was permitted is what is called."""
    calls = [step for step in all_steps_below(plan) if step.type == FUNCTION.name]
    if not calls:
        return Sources()
    from fanfold.recipe.types.function import FunctionBody

    return read_sources(project.folder, {read_body(FunctionBody, step).handler for step in calls})


def _instructions(project: Project) -> ProjectInstructions:
    wanted = project.config.switch("agents.project_instructions")
    return read_instructions(str(project.folder)) if wanted else ProjectInstructions()


def _check_text(options: Options) -> None:
    """What a shell hands over may be any bytes; what a run remembers is text."""
    try:
        strict(structs.asdict(options), "what was asked for")
    except ValueError as error:
        raise AuthorError("usage.bad_value", str(error)) from None


def _check_sandbox(project: Project, plan: Plan, options: Options) -> None:
    """Commands that could not be confined are refused before anything began."""
    if any(type_of(step).starts_programs for step in all_steps_below(plan)):
        from fanfold.workspace.sandbox.levels import detect
        from fanfold.workspace.sandbox.start import choose_level

        choose_level(detect(project.folder), unsafe=options.unsafe_no_sandbox)


def check_variables(config: Config, plan: Plan) -> None:
    """Refuse a run one of whose commands asks for a variable that it would not be given."""
    commands = [step for step in all_steps_below(plan) if step.type == COMMAND.name]
    if not commands:
        return
    from fanfold.recipe.types.command import CommandBody

    allowed = config.names(own_variables.SETTING)
    for step in commands:
        withheld = own_variables.why_withheld(read_body(CommandBody, step).env_vars, allowed)
        if withheld is not None:
            message = f"step {step.id}: {withheld.message}"
            raise WorldError(withheld.code, message, hint=withheld.hint, exit_status=EXIT_PERMISSION)


def start(
    project: Project,
    plan: Plan,
    given: Mapping[str, JSON],
    options: Options,
    *,
    yes: bool = False,
    attendant: Attendant | None = None,
) -> Owned:
    """Record a new run that may do what its recipe declares; raises `permission_denied` otherwise.

    `yes` answers every question about permission, this one and those that agents cause later.
    """
    bound = bind_inputs(plan, given)
    check_enabled(project)
    check_variables(project.config, plan)  # no question is asked whose answer would change nothing
    scripted = options.script is not None
    also: list[str] = []
    if options.permission == "ask" and not yes:
        also = asked_about(project.config, foresee_spending(project, plan, bound, options))
    permit(
        plan,
        project.roles.find,
        options.permission,
        yes=yes,
        attendant=attendant,
        also=also,
        scripted=scripted,
        inputs=lambda name: _shown(project, bound.get(name)),
    )
    if yes and options.permission == "ask":
        options = structs.replace(options, permission="auto")
    return create(project, plan, bound, options, ask=None if attendant is None else attendant.allow)


def _shown(project: Project, value: JSON) -> JSON:
    """An input as a question may show it: nothing of one that holds a secret."""
    redactor = project.backends.machine.redactor
    return value if isinstance(value, str) and redactor.text(value) == value else None
