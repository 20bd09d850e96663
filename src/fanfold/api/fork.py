"""Fork or retry a run: start a new run that reuses the finished steps of another one.

Rules of a fork
* It reuses every finished step that the change does not affect. A step is affected if it is the one forked
  from, if its text mentions a changed input, if its prompt was replaced, or if it depends on such a step.
* The reused steps are listed before anything starts. A fork does not revert the workspace.
* A fork at a turn does not restart the step. Its agent continues the conversation of the original run, as it
  was after that turn.

Rules of a retry
* It is a new run, because a terminal status is final. A failure stays in the log of its run. The new run
  records its origin and takes everything else from there, including inputs, limits and answers of people.
* Repeated: every step that failed, timed out, was cancelled, was skipped because of a failure, or whose
  changes were undone; and every step that depends on one of them. A loop that did not converge starts again.
* Kept: every other completed step, and tolerated failures, as failures.
* The recipe is read again from its file. The current version applies, and the differences are shown. A
  completed step with a changed definition runs again too. If the file is gone, the recorded recipe is used.
* Steps that run use the current roles.
* A step whose agent is a program and was interrupted continues the program's conversation, unless its task
  has changed.
* The permission of the original run covers what its recipe declared. Additional effects need permission.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fanfold.agents.entries import Response
from fanfold.agents.role import Role
from fanfold.api.display import StepUsage, step_usage
from fanfold.api.explain import plan_steps, recipe_path
from fanfold.api.history import ResolvedRun, find_session_ref
from fanfold.api.ownership import OwnedRun, check_enabled
from fanfold.api.permission import (
    KEPT_FROM_LOG,
    Prompter,
    RunConsent,
    Spending,
    asked_about,
    consent_of,
    permit,
    plan_effects,
)
from fanfold.api.project import Project
from fanfold.api.run_options import Options
from fanfold.api.start import Lineage, check_variables, create
from fanfold.api.transcripts import session_ref_of, take_up, without_results
from fanfold.engine.run_tree import RunTree, run_status
from fanfold.errors import EXIT_PERMISSION, AuthorError, NotFoundError, WorldError
from fanfold.kernel.events import NOTHING_SPENT, Failure, Usage
from fanfold.kernel.plan import JSON, GroupAction, LeafAction, Plan, Step, WorkflowAction, find_rings
from fanfold.kernel.progress import is_tolerated, is_unsuccessful
from fanfold.kernel.state import (
    COMPLETED,
    FAILED,
    LEAF,
    LOOP,
    PAUSED,
    RUN_TERMINAL,
    SKIPPED,
    UNSUCCESSFUL,
    WAITING,
    Composite,
    Node,
    Order,
    WorkflowCall,
)
from fanfold.kernel.transitions import find_node
from fanfold.language.builder import Recipe
from fanfold.language.inputs import bind_inputs
from fanfold.language.leaf_steps import AgentBody, read_body
from fanfold.language.template import Hole, TemplateError, parse_template
from fanfold.steps.agent import interrupted
from fanfold.steps.records import is_agent
from fanfold.steps.run_config import RunConfig, TakenUp, freeze_roles, how_to_resume, is_chat, with_stages
from fanfold.steps.values import kept_artifacts
from fanfold.workspace.seal import is_adopted, is_foreign

# -----------------------------------------------------------------------------------------------------------
# The steps that a change affects, and the results that are reused
#
# A step is affected if it is named, if its definition has changed, or if it depends on an affected step. The
# containers of an affected step also end differently: their dependents and later iterations are affected.


class KeptResults(Struct, frozen=True, kw_only=True):
    """The results that a new run reuses from another one, and the steps that run again, all by tree path."""

    outputs: dict[str, str]
    """Reused steps with the blob of their output."""
    failures: dict[str, Failure]
    """Tolerated failures. Later steps received them, so they are kept."""
    left: dict[str, str]
    """Outputs of failed steps: a rejected approval has one."""
    again: tuple[str, ...]
    agents: int
    """Number of agent sessions among the steps that run again."""
    spent: Usage
    """The usage of these steps in the original run."""
    merged: dict[str, int]
    """Number of files that steps which run again had merged. These merges stay in the project."""


class AffectedNodes:
    """The nodes that a change affects, closed under dependencies and containment."""

    def __init__(self, tree: RunTree, changed: Iterable[Node]) -> None:
        self._tree = tree
        self._nodes = {id(node): node for node in changed}
        queue = list(self._nodes.values())
        while queue:
            node = queue.pop()
            reached = [*node.dependents, *(node.children if isinstance(node, Composite) else ())]
            while (outer := node.parent) is not None:
                if outer.kind == LOOP:
                    reached += [later for later in outer.children if later.order > node.order]
                reached += outer.dependents
                node = outer
            new = {id(one): one for one in reached if id(one) not in self._nodes}
            self._nodes |= new
            queue += new.values()

    def first(self) -> list[Node]:
        """Return the affected leaves that depend, with their containers, on no other affected node."""
        behind = {id(dependent) for node in self._nodes.values() for dependent in node.dependents}

        def is_behind(node: Node | None) -> bool:
            while node is not None and id(node) not in behind:
                node = node.parent if node.parent is not None else node.run.call
            return node is not None

        return [node for node in self._nodes.values() if node.kind == LEAF and not is_behind(node)]

    def settle(self) -> KeptResults:
        """Return the reused results and the steps that run again."""
        outputs: dict[str, str] = {}
        failures: dict[str, Failure] = {}
        left: dict[str, str] = {}
        again: list[Node] = []
        for node in leaves(self._tree):
            path = node.run.tree_path(node.path)
            if id(node) in self._nodes:
                again.append(node)
            elif node.status == COMPLETED and node.output is not None:
                outputs[path] = node.output
            elif node.status in UNSUCCESSFUL and node.error is not None and is_tolerated(node):
                failures[path] = node.error
                if node.output is not None:
                    left[path] = node.output
            elif node.status != SKIPPED or (node.reason == "failure" and not is_tolerated(node)):
                again.append(node)
        merged: dict[str, int] = {}
        for node in again:
            rows = self._tree.memory.changes_of(node.run.id, node.path)
            if count := sum(row.state in ("merged", "applied") for row in rows):
                merged[node.run.tree_path(node.path)] = count
        spent = [usage for node in again if (usage := self._tree.usage_of(node)) is not None]
        return KeptResults(
            outputs=outputs,
            failures=failures,
            left=left,
            again=tuple(node.run.tree_path(node.path) for node in again),
            agents=sum(node.step.traits.role is not None for node in again),
            spent=sum(spent, NOTHING_SPENT) if spent else Usage(),
            merged=merged,
        )


def leaves(tree: RunTree) -> list[Node]:
    """Return every leaf instance of the run and the runs below it, in plan order."""

    def place(node: Node) -> tuple[Order, ...]:
        call = node.run.call
        return (node.order,) if call is None else (*place(call), node.order)

    return sorted((node for node in tree.nodes() if node.kind == LEAF), key=place)


# -----------------------------------------------------------------------------------------------------------
# Differences between a recipe and the plan of an earlier run
#
# Only changes that affect a result make a finished step run again: prompt, role, values, output schema,
# conditions. Changes of execution (model, turns, time-out, retries, limits, sets) apply to steps that run
# again and keep finished steps. So raising a time-out for three items does not repeat the other ninety-seven.


class RecipeChanges(Struct, frozen=True, kw_only=True):
    """How a recipe differs from what a run was made of. Steps by their path in the recipe; those of a
    sub-workflow follow its name and a colon.
    """

    added: list[str] = []
    removed: list[str] = []
    changed: list[str] = []
    """Steps with another definition: their outputs are not reused."""
    tuned: list[str] = []
    """Steps that are executed differently: their outputs are reused."""
    roles: list[str] = []
    """Roles whose file has changed. The new role applies to steps that run again."""
    others: list[str] = []
    """Changed parts of the recipe besides its steps: inputs, output, limits."""


class ForkForecast(Struct, frozen=True):
    """The steps that would be reused and those that would run again, by tree path."""

    source_run_id: str
    reuses: list[str]
    runs_again: list[str]
    keeps_failures: list[str]
    """Tolerated failures that are kept."""
    agents: int
    last_time: StepUsage
    """The usage of the steps that run again in the original run, as an estimate."""
    merged: dict[str, int]
    """Number of files that steps which run again had merged. These merges stay in the project."""
    goes_on: dict[str, int]
    """Steps that continue a conversation, and the turn after which they continue."""
    recipe: RecipeChanges
    asks: list[str]
    """The effects that need permission. For a run with permission `auto`, only the new ones."""
    totals: list[str]
    """Summary lines of the permission question."""
    seen: str
    """A digest of the question. A start with this digest permits exactly these effects."""


_MANNER = ("model", "reasoning_effort", "max_turns")
"""Keys of a step's body that affect execution, not the result."""


def reaches(changes: RecipeChanges, node: Node) -> bool:
    """Whether the output of an instance is not reused, because its step has another definition now."""
    call = node.run.call
    workflow = call.step.action.workflow if call and isinstance(call.step.action, WorkflowAction) else ""
    return _named(workflow, recipe_path(node.path)) in changes.changed


def compare(old: Plan, new: Plan) -> RecipeChanges:
    """Return the differences between two plans, including the recipes they call."""
    before, after = dict(_steps(old)), dict(_steps(new))
    both = [name for name in before if name in after]
    changed = [name for name in both if _meaning(before[name]) != _meaning(after[name])]
    return RecipeChanges(
        added=[name for name in after if name not in before],
        removed=[name for name in before if name not in after],
        changed=changed,
        tuned=[name for name in both if name not in changed and _alone(before[name]) != _alone(after[name])],
        others=[name for name in ("inputs", "output", "limits") if getattr(old, name) != getattr(new, name)],
    )


def _steps(plan: Plan) -> Iterator[tuple[str, Step]]:
    yield from plan_steps(plan.steps)
    for workflow, called in plan.workflows.items():
        yield from ((_named(workflow, path), step) for path, step in plan_steps(called.steps))


def _named(workflow: str, path: str) -> str:
    return f"{workflow}: {path}" if workflow else path


def _alone(step: Step) -> Step:
    """Return a step without the steps inside it, which are compared separately, and without descriptions."""
    if isinstance(step.action, GroupAction):
        step = replace(step, action=replace(step.action, steps=(), goal=""))
    return replace(step, description="", key="", read_by=())


def _meaning(step: Step) -> JSON:
    """Return the parts of a step that affect its result."""
    alone = _alone(step)
    action = alone.action
    meaning: object = action
    if isinstance(action, LeafAction):
        meaning = (action.type, {name: value for name, value in action.body.items() if name not in _MANNER})
    elif isinstance(action, GroupAction):
        meaning = (action.output, action.phase)
    return msgspec.to_builtins(
        (
            meaning,
            step.when,
            step.for_each,
            step.item_name,
            step.repeat.until if step.repeat is not None else None,
            None if step.fold is None else _meaning(step.fold),
            step.output_schema,
            step.outputs,
            step.inputs,
        )
    )


class ChosenAgents(Struct, frozen=True, kw_only=True):
    """The agents of a fork or retry; None keeps those of the original run."""

    model: str | None = None
    backend: str | None = None
    script: str | None = None
    """Text of a script. Scripted agents answer instead of models."""
    script_file: str = ""

    def __bool__(self) -> bool:
        return self.model is not None or self.backend is not None or self.script is not None


SAME_AGENTS = ChosenAgents()
_LIMITS = {
    "max_concurrency": attrgetter("limits.max_concurrency"),
    "max_agents": attrgetter("limits.max_agents"),
    "timeout_ms": attrgetter("limits.timeout_ms"),
    "budget_tokens": attrgetter("limits.budget.tokens"),
    "budget_micro_usd": attrgetter("limits.budget.micro_usd"),
}
"""Options that a recipe may limit, each with its value in a plan."""


def options_of(source: RunTree, chosen: ChosenAgents) -> Options:
    """Return the limits, permission and agents of a run, with the chosen agents instead if given."""
    settings, frozen = source.state.settings, source.frozen()
    limits = {name: getattr(settings, name) for name in _LIMITS}
    names = ("permission", "backend", "model", "script", "script_file")
    agents = {name: getattr(frozen, name) for name in names}
    return with_agents(Options(**limits, **agents), chosen)


def with_agents(options: Options, chosen: ChosenAgents) -> Options:
    """Return the options with other agents.

    A chosen script answers for all roles, as in a new run. A chosen model or back end replaces the script of
    the original run.
    """
    if not chosen:
        return options
    if chosen.script is not None or options.script is not None:
        return replace(
            options,
            backend=chosen.backend,
            model=chosen.model,
            script=chosen.script,
            script_file=chosen.script_file,
        )
    return replace(options, backend=chosen.backend or options.backend, model=chosen.model or options.model)


class AtTurn(Struct, frozen=True):
    """A turn of a step's conversation, and the next prompt; None is a default prompt to continue."""

    turn: int
    say: str | None = None


def at_turn(turn: int | None, say: str | None, *, names: tuple[str, str] = ("turn", "say")) -> AtTurn | None:
    """Return the turn to continue from, or None. `names` are the caller's names of the two options."""
    if turn is None and say is not None:
        raise AuthorError(
            "usage.conflict",
            f"{names[1]} needs --turn: it continues a conversation",
            hint=f"add {names[0]} N",
        )
    return None if turn is None else AtTurn(turn, say)


class Fork(Struct, frozen=True, kw_only=True):
    """A planned fork."""

    source: str
    """Id of the original run."""
    plan: Plan
    inputs: dict[str, JSON]
    kept: KeptResults
    lineage: Lineage
    options: Options
    agents: ChosenAgents = SAME_AGENTS
    """Chosen agents that replace those of the original run."""
    changes: RecipeChanges = RecipeChanges()
    """For a retry: the changes of its recipe since the original run."""
    asks: frozenset[str] = frozenset()
    """Effects that were not permitted in the original run."""


def plan_fork(
    tree: RunTree,
    step: str | None,
    changed: Mapping[str, JSON],
    prompts: Mapping[str, str],
    at: AtTurn | None = None,
    agents: ChosenAgents = SAME_AGENTS,
) -> Fork:
    """Determine which results a fork of a run reuses and which steps run again. `at`: a turn of the step."""
    if step is None and not changed and not prompts:
        hint = "--from STEP, -i NAME=VALUE or --prompt STEP=FILE"
        raise AuthorError("usage.missing_option", "a fork needs a change", hint=hint)
    check_has_plan(tree)
    inputs = dict(tree.values.inputs(tree.root))
    unknown = [name for name in changed if name not in inputs]
    if unknown:
        raise AuthorError("recipe.unknown_input", f"the run has no input {unknown[0]!r}")
    names = [name for name, value in changed.items() if inputs[name] != value]
    affected = list(_touched(tree, names, prompts))
    taken_up: dict[str, TakenUp] = {}
    if at is not None:
        if step is None:
            raise AuthorError("usage.missing_option", "--turn needs --from STEP", hint="add --from STEP")
        ref = find_session_ref(ResolvedRun(tree, tree.root), step, None)
        new_prompt = "" if ref.node.step.id in prompts else None
        taken_up = {ref.step: take_up(tree, ref, at.turn, new_prompt if at.say is None else at.say)}
    if step is not None:
        named = find_node(tree.state, step)
        if named is None:
            hint = f"fanfold inspect {tree.root.id} --steps lists them"
            raise NotFoundError("step.not_found", f"run {tree.root.id} has no step {step}", hint=hint)
        affected.append(named)
    kept = AffectedNodes(tree, affected).settle()
    return Fork(
        source=tree.root.id,
        plan=_with_prompts(tree.state.plan, prompts),
        inputs={**inputs, **changed},
        kept=kept,
        lineage=lineage_of(tree, kept, tree.frozen().roles, taken_up),
        options=options_of(tree, agents),
        agents=agents,
    )


def check_has_plan(tree: RunTree) -> None:
    """Refuse an open run: it has no plan, and its work is repeated by new requests."""
    if tree.state.plan.open:
        message = f"run {tree.root.id} is open: there is no plan to run again"
        hint = "fanfold ps --all lists its subagents, which take further prompts"
        if is_chat(tree.root.id):
            hint = f"{how_to_resume(tree.root.id)} continues it"
        raise AuthorError("run.open", message, hint=hint)


def lineage_of(
    tree: RunTree, kept: KeptResults, roles: dict[str, Role], taken_up: dict[str, TakenUp]
) -> Lineage:
    """Return the lineage of a run that is made from this one."""
    frozen, runs = tree.frozen(), tree.state.runs
    own = {runs[run].tree_path(step): tuple(ids) for (run, step), ids in tree.memory.receipts.items()}
    merges = frozen.reused_merges | own
    config = RunConfig(
        roles=roles,
        default_model=frozen.default_model,
        default_fast_model=frozen.default_fast_model,
        forked_from=tree.root.id,
        reused=kept.outputs | kept.left,
        reused_failures=kept.failures,
        reused_merges={path: ids for path, ids in merges.items() if path in kept.outputs},
        taken_up=taken_up,
    )
    return Lineage(config, kept_artifacts(tree.memory, tree.root.id, kept.outputs))


def _touched(tree: RunTree, inputs: list[str], prompts: Mapping[str, str]) -> Iterator[Node]:
    """Yield the steps whose text mentions a changed input, or whose prompt was replaced."""
    words = "|".join(re.escape(name) + "|" + re.escape(name.replace("-", "_")) for name in inputs)
    # The text is JSON, so a quoted name (`inputs["x"]`) has its quotes escaped.
    mention = re.compile(rf"inputs(?:\.|\[\s*\\?['\"])(?:{words})(?![\w-])")
    for node in tree.root.nodes.values():
        step = node.step
        if isinstance(step.action, GroupAction):  # the steps inside a group have their own nodes
            step = replace(step, action=replace(step.action, steps=()))
        if step.id in prompts or (inputs and mention.search(msgspec.json.encode(step).decode())):
            yield node


def forecast_fork(project: Project, fork: Fork) -> ForkForecast:
    """Return the forecast of a fork, and the effects that need permission."""
    kept, consent = fork.kept, _consent(project, fork)
    return ForkForecast(
        source_run_id=fork.source,
        reuses=list(kept.outputs),
        runs_again=list(kept.again),
        keeps_failures=list(kept.failures),
        agents=kept.agents,
        last_time=step_usage(kept.spent),
        merged=kept.merged,
        goes_on={path: taken.turn for path, taken in fork.lineage.config.taken_up.items()},
        recipe=fork.changes,
        asks=consent.needs,
        totals=list(consent.request.totals),
        seen=consent.request.digest,
    )


def start_fork(
    project: Project,
    fork: Fork,
    *,
    yes: bool = False,
    confirm: Callable[[], bool] | None = None,
    prompter: Prompter | None = None,
    seen: str | None = None,
) -> OwnedRun:
    """Record the run of a fork.

    `confirm` asks a person who has seen the forecast. `seen` is the digest of the question that another
    surface showed.
    """
    bound = bind_inputs(fork.plan, fork.inputs)
    check_enabled(project)
    check_variables(project.config, fork.plan)  # checked before the question, since no answer could help
    consent = _consent(project, fork)
    if is_foreign(project.folder, fork.source):
        fork = _without_foreign_choices(fork)
    if seen is not None and seen != consent.request.digest:
        message = "the forecast of this fork changed since it was shown"
        raise WorldError("permission.changed", message, hint="review the new forecast, then start it")
    posture = "ask" if consent.needed and fork.options.permission == "auto" else fork.options.permission
    asked = permit(consent, posture, yes=yes, prompter=prompter)
    if not asked and not yes and confirm is not None and not confirm():
        raise WorldError("permission_denied", "the fork was not started", exit_status=EXIT_PERMISSION)
    ask = None if prompter is None else prompter.allow
    return create(project, fork.plan, bound, fork.options, fork=fork.lineage, ask=ask)


def _consent(project: Project, fork: Fork) -> RunConsent:
    """Return the permission that a fork needs: for all effects or, with permission `auto`, for new ones."""
    foreign = is_foreign(project.folder, fork.source)
    options = _without_foreign_choices(fork).options if foreign else fork.options
    reasons = [KEPT_FROM_LOG] if foreign else []
    spending = Spending(fork.kept.agents, fork.kept.spent.micro_usd or 0)
    if options.permission == "ask" and options.script is None:
        reasons += asked_about(project.config, spending)
    find, totals = fork.lineage.config.roles.get, spending.totals()
    consent = consent_of(
        project, fork.plan, find, options, inputs=fork.inputs, reasons=reasons, totals=totals
    )
    if options.permission != "auto":
        return consent
    return replace(consent, effects=tuple(one for one in consent.effects if one.text in fork.asks))


def _without_foreign_choices(fork: Fork) -> Fork:
    """Drop the choices that another user may have made: permission, back end, model, script."""
    options = replace(fork.options, permission="ask", backend=None, model=None, script=None, script_file="")
    options = with_agents(options, fork.agents)
    config = replace(fork.lineage.config, default_model=None, default_fast_model=None)
    return replace(fork, options=options, lineage=replace(fork.lineage, config=config))


def _with_prompts(plan: Plan, prompts: Mapping[str, str]) -> Plan:
    known = {step.id: step for step in plan.steps}
    for name in prompts:
        if name not in known or known[name].type != AgentBody.syntax.name:
            raise AuthorError("fork.bad_prompt", f"{name!r} is not a top-level agent step of this run")
    new = {name: _with_prompt(plan, known[name], prompt) for name, prompt in prompts.items()}
    steps = tuple(new.get(step.id, step) for step in plan.steps)
    if rings := find_rings({step.id: step.depends_on for step in steps}):
        ring = " → ".join([*rings[0], rings[0][0]])
        raise AuthorError("recipe.cycle", f"with that prompt, {ring} wait for each other")
    return replace(plan, steps=steps)


def _with_prompt(plan: Plan, step: Step, prompt: str) -> Step:
    """Return a step with another prompt. Its references are checked and its edges are set, as in a recipe."""
    known = [other.id for other in plan.steps]
    inputs = [declared.name for declared in plan.inputs]
    own = {"iteration", "feedback"} if step.repeat is not None else set()
    own |= {step.item_name, "index"} if step.for_each is not None else set()
    edges = list(step.depends_on)
    try:
        holes = [part for part in parse_template(prompt) if isinstance(part, Hole)]
    except TemplateError as error:
        raise AuthorError("recipe.bad_template", f"the prompt of {step.id}: {error.message}") from None
    where = f"the prompt of {step.id}"
    for hole in holes:
        root, first = hole.path.root, str(hole.path.parts[0]) if hole.path.parts else ""
        if root == "inputs" and first not in inputs:
            raise AuthorError("recipe.unknown_input", f"{where} names the unknown input {first!r}")
        if root == "steps" and first not in known:
            raise AuthorError("recipe.unknown_step", f"{where} names the unknown step {first!r}")
        if root not in ("inputs", "steps", *own):
            raise AuthorError("recipe.bad_template", f"{hole.path.text!r} is unknown in {where}")
        if root == "steps" and first not in edges:
            edges.append(first)
    ordered = tuple(name for name in known if name in edges)
    body = read_body(AgentBody, step)
    placed = {hole.path.parts[0] for hole in holes if hole.path.root == "steps" and hole.path.parts}
    summaries = tuple(name for name in body.summaries if name not in placed)
    action = replace(body, prompt=prompt, summaries=summaries).action()
    return replace(step, action=action, depends_on=ordered)


# -----------------------------------------------------------------------------------------------------------
# Retry a run


def plan_retry(
    project: Project, tree: RunTree, agents: ChosenAgents = SAME_AGENTS, recipe: Recipe | None = None
) -> Fork:
    """Determine which steps a retry keeps and repeats. `recipe` replaces the file of the original run."""
    root = tree.root
    check_has_plan(tree)
    status = run_status(tree.state, root)
    if status not in RUN_TERMINAL:
        on = how_to_resume(root.id)
        hints = {PAUSED: f"{on} continues it", WAITING: f"fanfold inspect {root.id}"}
        hint = hints.get(status, f"fanfold watch {root.id} follows it; {on} if it has no owner")
        raise AuthorError("run.not_over", f"run {root.id} is {status}: it has not ended", hint=hint)
    if status == COMPLETED and not any(True for _ in _undone(tree)):
        message = f"run {root.id} completed: no step failed"
        first = shlex.quote(next(iter(root.nodes), ""))
        hint = f"to run it again from a step: fanfold fork {root.id} --from {first}"
        raise AuthorError("run.nothing_failed", message, hint=hint)
    old = tree.state.plan
    options = options_of(tree, agents)
    new = _recipe_now(project, tree, recipe, scripted=options.script is not None)
    before = tree.frozen().roles

    def find(name: str) -> Role | None:
        return project.roles.find(name) or before.get(name)

    roles = with_stages(freeze_roles(new, find), find)
    changes = compare(old, new)
    others = [name for name, role in roles.items() if name in before and before[name] != role]
    changes = replace(changes, roles=sorted(others))
    affected = AffectedNodes(tree, _failed(tree, changes))
    kept = affected.settle()
    given, still = tree.values.inputs(root), {one.name for one in new.inputs}
    inputs = {name: value for name, value in given.items() if name in still}
    declared = {one.text for one in plan_effects(old, before.get, inputs=given)}
    return Fork(
        source=root.id,
        plan=new,
        inputs=inputs,
        kept=kept,
        lineage=lineage_of(tree, kept, roles, dict(_continued(tree, affected, changes))),
        # Limits that the recipe has changed apply; others stay as they were given or raised.
        options=replace(options, **{name: None for name, of in _LIMITS.items() if of(old) != of(new)}),
        agents=agents,
        changes=changes,
        asks=frozenset(one.text for one in plan_effects(new, roles.get, inputs=inputs)) - declared,
    )


def _failed(tree: RunTree, changes: RecipeChanges) -> Iterator[Node]:
    """Yield the steps that must run again, without those that only depend on them."""
    yield from _undone(tree)
    for node in tree.nodes():
        itself = node.kind == LEAF
        if isinstance(node, Composite) and node.status == FAILED and node.failed_child is None:
            # It failed although none of its parts failed, so all of it runs again.
            child = node.child if isinstance(node, WorkflowCall) else None
            itself = child is None or child.status == COMPLETED
        if reaches(changes, node) or (itself and is_unsuccessful(node) and not is_tolerated(node)):
            yield node


def _continued(
    tree: RunTree, affected: AffectedNodes, changes: RecipeChanges
) -> Iterator[tuple[str, TakenUp]]:
    """Yield the conversations that steps continue: the agent was interrupted, and its task is the same."""
    for node in affected.first():
        if not is_agent(node) or node.status not in UNSUCCESSFUL or reaches(changes, node):
            continue
        ref = session_ref_of(tree, node, max(1, node.attempt))
        turns = sum(isinstance(entry, Response) for entry in interrupted(tree.store, node, ref.attempt))
        if turns and not ref.role.pipeline:
            yield ref.step, without_results(take_up(tree, ref, turns, None))


def _undone(tree: RunTree) -> Iterator[Node]:
    """Yield the steps whose changes were undone: their outputs describe files that no longer exist."""
    for run, rows in tree.memory.changes.items():
        for step in dict.fromkeys(row.step for row in rows if row.state == "undone"):
            yield tree.state.runs[run].nodes[step]


def _recipe_now(project: Project, tree: RunTree, recipe: Recipe | None, *, scripted: bool) -> Plan:
    """Return the recipe as it is now, or as recorded if its file is gone."""
    old = tree.state.plan
    if recipe is not None:
        return project.plan_of(recipe, scripted=scripted)
    if not old.source_file or is_adopted(project.folder, tree.root.id):
        return old
    file = os.path.join(project.folder, old.source_file)
    try:
        return project.plan_of(file, scripted=scripted)
    except NotFoundError:
        return old
