"""Forking: a new run that keeps every finished step the change does not reach.

A step is reached when it is the one forked from, when its text mentions a changed input, when its prompt
was replaced, or when it depends on a step that is reached. What is kept is named before anything starts.
A fork does not rewind the workspace.

A fork at a turn does not begin the step anew: its agent goes on with the conversation of the run it comes
from, as it was after that turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fanfold.agents.role import Role
from fanfold.errors import EXIT_PERMISSION, AuthorError, NotFoundError, WorldError
from fanfold.kernel.graph import find_rings
from fanfold.kernel.nodes import Node
from fanfold.kernel.plan import JSON, GroupAction, Plan, Step
from fanfold.kernel.state import find_node
from fanfold.recipe.types.agent import AgentBody
from fanfold.recipe.types.body import read_body
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.operations.addresses import Addressed, find_speaker
from fanfold.runtime.operations.conversations import take_up
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.again.reached import KeptResults, Reached
from fanfold.runtime.operations.runs.again.recipe_changes import ForkForecast, RecipeChanges
from fanfold.runtime.operations.runs.ownership import Owned
from fanfold.runtime.operations.runs.starting.creation import Lineage, create
from fanfold.runtime.operations.runs.starting.options import Options
from fanfold.runtime.operations.runs.starting.permission import (
    KEPT_FROM_LOG,
    Attendant,
    Spending,
    asked_about,
    permit,
    permit_lines,
)
from fanfold.runtime.records.artifacts import kept_artifacts
from fanfold.runtime.records.frozen import TakenUp
from fanfold.runtime.records.open_runs import how_to_resume, is_chat
from fanfold.runtime.views.runs.rows import step_usage
from fanfold.text.template import Hole, TemplateError, parse_template
from fanfold.trust.adopted import is_adopted


class ChosenAgents(Struct, frozen=True, kw_only=True):
    """Who works instead of the agents that the other run had; None leaves it as it was."""

    model: str | None = None
    backend: str | None = None
    script: str | None = None
    """Text of a script: its agents answer instead of models."""
    script_file: str = ""

    def __bool__(self) -> bool:
        return self.model is not None or self.backend is not None or self.script is not None


SAME_AGENTS = ChosenAgents()


def options_of(source: RunTree, chosen: ChosenAgents) -> Options:
    """The limits and permission of a run, and its agents as far as no others were chosen."""
    settings, frozen = source.state.settings, source.frozen()
    options = Options(
        max_concurrency=settings.max_concurrency,
        max_agents=settings.max_agents,
        budget_tokens=settings.budget_tokens,
        budget_micro_usd=settings.budget_micro_usd,
        timeout_ms=settings.timeout_ms,
        permission=frozen.permission,
        backend=frozen.backend,
        model=frozen.model,
        script=frozen.script,
        script_file=frozen.script_file,
    )
    return with_agents(options, chosen)


def with_agents(options: Options, chosen: ChosenAgents) -> Options:
    """The same with other agents. A script that was chosen answers for all, as it does for a new run; whoever
    chose a model or a back end wants that to answer, and not the script of the other run.
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
    """Where in a step's conversation to go on, and with which words; None: to go on."""

    turn: int
    say: str | None = None


def at_turn(turn: int | None, say: str | None, *, said: tuple[str, str] = ("turn", "say")) -> AtTurn | None:
    """Where to go on, if anywhere; `said` is how whoever asks calls the two."""
    if turn is None and say is not None:
        raise AuthorError("usage.conflict", f"{said[1]} goes on with a conversation", hint=f"add {said[0]} N")
    return None if turn is None else AtTurn(turn, say)


class Fork(Struct, frozen=True, kw_only=True):
    """What a fork would do."""

    source: str
    """Id of the run it comes from."""
    plan: Plan
    inputs: dict[str, JSON]
    kept: KeptResults
    lineage: Lineage
    options: Options
    agents: ChosenAgents = SAME_AGENTS
    """Who was chosen to work, whatever the run it comes from had."""
    changes: RecipeChanges = RecipeChanges()
    """For a retry: what its recipe says that it did not say then."""
    asks: tuple[str, ...] = ()
    """What it declares beyond what the run it comes from was permitted."""


def plan_fork(
    tree: RunTree,
    step: str | None,
    changed: Mapping[str, JSON],
    prompts: Mapping[str, str],
    at: AtTurn | None = None,
    agents: ChosenAgents = SAME_AGENTS,
) -> Fork:
    """Work out what a fork of a run keeps and what it runs again; `at` is a turn of the step, `agents` who
    does it.
    """
    if step is None and not changed and not prompts:
        raise AuthorError(
            "usage.missing_option",
            "a fork needs a change",
            hint="--from STEP, -i NAME=VALUE or --prompt STEP=FILE",
        )
    check_has_plan(tree)
    inputs = dict(tree.values.inputs(tree.root))
    unknown = [name for name in changed if name not in inputs]
    if unknown:
        raise AuthorError("recipe.unknown_input", f"the run has no input {unknown[0]!r}")
    names = [name for name, value in changed.items() if inputs[name] != value]
    reached = Reached(tree)
    for node in _touched(tree, names, prompts):
        reached.add(node)
    taken_up: dict[str, TakenUp] = {}
    if at is not None:
        taken_up = _taken_up(tree, step, prompts, at)
    if step is not None:
        named = find_node(tree.state, step)
        if named is None:
            hint = f"fanfold inspect {tree.root.id} --steps lists them"
            raise NotFoundError("step.not_found", f"run {tree.root.id} has no step {step}", hint=hint)
        reached.add(named)
    reached.spread()
    kept = reached.settle()
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
    """Refuse an open run: what is to be done again there is asked for."""
    if tree.state.plan.open:
        message = f"run {tree.root.id} is open: there is no plan to run again"
        hint = "fanfold ps --all lists its subagents, to whom more can be said"
        if is_chat(tree.root.id):
            hint = f"{how_to_resume(tree.root.id)} goes on with it"
        raise AuthorError("run.open", message, hint=hint)


def lineage_of(
    tree: RunTree, kept: KeptResults, roles: dict[str, Role], taken_up: dict[str, TakenUp]
) -> Lineage:
    """Where a run comes from that is made of this one."""
    frozen, runs = tree.frozen(), tree.state.runs
    own = {runs[run].tree_path(step): tuple(ids) for (run, step), ids in tree.memory.receipts.items()}
    merges = {path: ids for path, ids in (frozen.reused_merges | own).items() if path in kept.outputs}
    return Lineage(
        run_id=tree.root.id,
        kept=kept.outputs,
        failures=kept.failures,
        artifacts=kept_artifacts(tree.memory, tree.root.id, kept.outputs),
        merges=merges,
        roles=roles,
        default_model=frozen.default_model,
        default_fast_model=frozen.default_fast_model,
        taken_up=taken_up,
    )


def _touched(tree: RunTree, inputs: list[str], prompts: Mapping[str, str]) -> Iterator[Node]:
    """The steps whose text mentions a changed input, or whose prompt was replaced."""
    pattern = _mentions(inputs)
    for node in tree.root.nodes.values():
        if node.step.id in prompts or (pattern is not None and pattern.search(_texts(node.step))):
            yield node


def _taken_up(tree: RunTree, step: str | None, prompts: Mapping[str, str], at: AtTurn) -> dict[str, TakenUp]:
    """The conversation that the step goes on with."""
    if step is None:
        raise AuthorError("usage.missing_option", "--turn is a turn of a step", hint="add --from STEP")
    speaker = find_speaker(Addressed(tree, tree.root), step, None)
    new_prompt = "" if speaker.node.step.id in prompts else None
    return {speaker.step: take_up(tree, speaker, at.turn, new_prompt if at.say is None else at.say)}


def foretell(fork: Fork) -> ForkForecast:
    """What a fork would do, for whoever decides about it."""
    kept = fork.kept
    return ForkForecast(
        source_run_id=fork.source,
        reuses=list(kept.outputs),
        runs_again=list(kept.again),
        keeps_failures=list(kept.failures),
        agents=kept.agents,
        last_time=step_usage(kept.spent),
        merged=kept.merged,
        goes_on={path: taken.turn for path, taken in fork.lineage.taken_up.items()},
        recipe=fork.changes,
        asks=list(fork.asks),
    )


def start_fork(
    project: Project,
    fork: Fork,
    *,
    yes: bool = False,
    confirm: Callable[[], bool] | None = None,
    attendant: Attendant | None = None,
) -> Owned:
    """Record the run that a fork makes. `confirm` asks a person who has seen what the fork would do."""
    known = fork.lineage.roles.get
    if is_adopted(project.folder, fork.lineage.run_id):
        fork = _as_a_stranger_s(fork)
        permit(fork.plan, known, "ask", yes=yes, attendant=attendant, also=[KEPT_FROM_LOG])
    if fork.options.permission == "ask" and fork.options.script is None and not yes and confirm is None:
        taken = Spending(fork.kept.agents, fork.kept.spent.micro_usd or 0)
        permit_lines(fork.plan, asked_about(project.config, taken), "ask", attendant=attendant)
    if fork.asks and fork.options.permission == "auto":
        permit_lines(fork.plan, fork.asks, "ask", yes=yes, attendant=attendant)
    scripted = fork.options.script is not None
    permit(fork.plan, known, fork.options.permission, yes=yes or confirm is not None, scripted=scripted)
    if not yes and confirm is not None and not confirm():
        raise WorldError("permission_denied", "the fork was not started", exit_status=EXIT_PERMISSION)
    ask = None if attendant is None else attendant.allow
    return create(project, fork.plan, fork.inputs, fork.options, fork=fork.lineage, ask=ask)


def _as_a_stranger_s(fork: Fork) -> Fork:
    """Without what somebody else may have chosen for it: permission, back end, model, script."""
    options = replace(fork.options, permission="ask", backend=None, model=None, script=None, script_file="")
    options = with_agents(options, fork.agents)
    lineage = replace(fork.lineage, default_model=None, default_fast_model=None)
    return replace(fork, options=options, lineage=lineage)


def _mentions(inputs: list[str]) -> re.Pattern[str] | None:
    if not inputs:
        return None
    words = "|".join(re.escape(name) + "|" + re.escape(name.replace("-", "_")) for name in inputs)
    # The text is JSON, so a quoted name (`inputs["x"]`) has its quotes escaped.
    return re.compile(rf"inputs(?:\.|\[\s*\\?['\"])(?:{words})(?![\w-])")


def _texts(step: Step) -> str:
    """Everything a step says, as one text; the steps inside a group are looked at themselves."""
    if isinstance(step.action, GroupAction):
        step = msgspec.structs.replace(step, action=msgspec.structs.replace(step.action, steps=()))
    return msgspec.json.encode(step).decode()


def _with_prompts(plan: Plan, prompts: Mapping[str, str]) -> Plan:
    known = {step.id: step for step in plan.steps}
    for name in prompts:
        if name not in known or known[name].type != AgentBody.syntax.name:
            raise AuthorError("fork.bad_prompt", f"{name!r} is not a top-level agent step of this run")
    steps = tuple(
        _with_prompt(plan, step, prompts[step.id]) if step.id in prompts else step for step in plan.steps
    )
    rings = find_rings({step.id: step.depends_on for step in steps})
    if rings:
        raise AuthorError(
            "recipe.cycle", f"with that prompt, {' → '.join([*rings[0], rings[0][0]])} wait for each other"
        )
    return msgspec.structs.replace(plan, steps=steps)


def _with_prompt(plan: Plan, step: Step, prompt: str) -> Step:
    """A step with another prompt, its references checked and its edges made, as for a recipe."""
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
            raise AuthorError("recipe.bad_template", f"{hole.path.text!r} means nothing in {where}")
        if root == "steps" and first not in edges:
            edges.append(first)
    ordered = tuple(name for name in known if name in edges)
    action = msgspec.structs.replace(read_body(AgentBody, step), prompt=prompt).action()
    return msgspec.structs.replace(step, action=action, depends_on=ordered)
