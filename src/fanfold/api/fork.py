"""Fork a run: start a new run that reuses every finished step that the change does not affect.

A step is affected if it is the one forked from, if its text mentions a changed input, if its prompt was
replaced, or if it depends on an affected step. The reused steps are listed before anything starts. A fork
does not revert the workspace.

A fork at a turn does not restart the step. Its agent continues the conversation of the original run, as it
was after that turn.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct, structs
from msgspec.structs import replace

from fanfold.agents.entries import AgentBegin, Response, ToolCall, UserInput
from fanfold.agents.role import Role
from fanfold.api.addresses import ResolvedRun, find_speaker
from fanfold.api.display import StepUsage, step_usage
from fanfold.api.explain import recipe_path
from fanfold.api.ownership import OwnedRun
from fanfold.api.permission import (
    KEPT_FROM_LOG,
    Options,
    Prompter,
    RunConsent,
    Spending,
    asked_about,
    consent_of,
    permit,
)
from fanfold.api.project import Project
from fanfold.api.start import Lineage, create
from fanfold.api.transcripts import SessionRef, speaker_of
from fanfold.engine.run_tree import RunTree
from fanfold.errors import EXIT_PERMISSION, AuthorError, NotFoundError, WorldError
from fanfold.kernel.events import NOTHING_SPENT, Failure, Usage
from fanfold.kernel.plan import JSON, GroupAction, LeafAction, Plan, Step, WorkflowAction, find_rings
from fanfold.kernel.progress import is_tolerated
from fanfold.kernel.state import COMPLETED, LEAF, LOOP, SKIPPED, UNSUCCESSFUL, Composite, Node, Order
from fanfold.kernel.transitions import find_node
from fanfold.language.leaf_steps import AgentBody
from fanfold.language.step_grammar import read_body
from fanfold.language.template import Hole, TemplateError, parse_template
from fanfold.sessions.log import read_recorded
from fanfold.steps.agent import words_of
from fanfold.steps.records import turn_before
from fanfold.steps.run_config import RecordedEntry, TakenUp, how_to_resume, is_chat
from fanfold.steps.values import kept_artifacts
from fanfold.workspace.seal import is_foreign

# -----------------------------------------------------------------------------------------------------------
# Continue a conversation in a new session, from one of its turns on
#
# A turn is one response of the model with the results of its tool calls, as `fanfold transcript` counts them.
# The entries up to the turn are copied: the new session does not need the old one.
#
# Only the conversation is restored, not the files that it changed. The prompt reports this to the agent.

GO_ON = "Go on from here."
FILES_MOVED = "The files are as they are now, which may not be as you left them: look before you rely on it."


def take_up(tree: RunTree, speaker: SessionRef, turn: int, say: str | None) -> TakenUp:
    """Copy a conversation up to a turn, with the next prompt `say`.

    `say` None: a default prompt to continue. Empty: the prompt of the step itself.
    """
    if speaker.role.pipeline:
        message = f"{speaker.step} works in stages, which begin anew when somebody speaks"
        raise AuthorError("fork.stages", message, hint="leave --turn out: the step runs again from its start")
    before = _before(tree, speaker)
    said = [*before, *_recorded(tree, speaker)]
    at = [number for number, recorded in enumerate(said) if isinstance(recorded.entry, Response)]
    if not 1 <= turn <= len(at):
        turns = f"{len(at)} turn{'' if len(at) == 1 else 's'}"
        hint = f"fanfold transcript {tree.root.id} {shlex.quote(speaker.step)}"
        raise NotFoundError("session.no_turn", f"{speaker.step} has had {turns}", hint=hint)
    entries = said if turn == len(at) else list(map(_unnamed, _without_what_was_asked(said[: at[turn]])))
    if say is None and at[turn - 1] < len(before) and _asks_behind(tree, speaker):
        say = ""
    if say is None:
        moved = any(isinstance(recorded.entry, ToolCall | AgentBegin) for recorded in entries)
        say = f"{GO_ON} {FILES_MOVED}" if moved else GO_ON
    return TakenUp(
        run_id=speaker.node.run.id,
        step=speaker.step,
        session_id=speaker.session_id,
        attempt=speaker.attempt,
        turn=turn,
        say=say,
        entries=tuple(entries),
    )


def _asks_behind(tree: RunTree, speaker: SessionRef) -> bool:
    """Whether a step of a recipe continues another step's conversation without its own prompt so far."""
    return not tree.root.plan.open and speaker.step not in speaker.frozen.taken_up


def _without_what_was_asked(entries: list[RecordedEntry]) -> list[RecordedEntry]:
    """Drop the trailing prompts: the new session sends another prompt, or none."""
    end = len(entries)
    while end and isinstance(entries[end - 1].entry, UserInput | AgentBegin):
        end -= 1
    return entries[:end]


def _unnamed(recorded: RecordedEntry) -> RecordedEntry:
    """Drop the agent program's id of the conversation, which has continued there after the turn."""
    entry = recorded.entry
    if not isinstance(entry, AgentBegin):
        return recorded
    return RecordedEntry(recorded.at, structs.replace(entry, conversation=""))


def _before(tree: RunTree, speaker: SessionRef) -> Sequence[RecordedEntry]:
    """Return the entries that the session itself was continued from."""
    taken = speaker.frozen.taken_up.get(speaker.step)
    if taken is not None:
        return taken.entries
    before = turn_before(speaker.node)
    if before is None:
        return []
    if not before.attempt:  # it was cancelled before it started, but its prompt still counts
        return [RecordedEntry(before.ended_at, UserInput(text=words_of(before)))]
    one = speaker_of(tree, before, before.attempt)
    return [*_before(tree, one), *_recorded(tree, one)]


def _recorded(tree: RunTree, speaker: SessionRef) -> list[RecordedEntry]:
    return [
        RecordedEntry(envelope.at, entry) for envelope, entry in read_recorded(tree.store, speaker.session_id)
    ]


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

    def __init__(self, tree: RunTree) -> None:
        self._tree = tree
        self._nodes: dict[int, Node] = {}
        self._queue: list[Node] = []

    def add(self, node: Node) -> None:
        if id(node) not in self._nodes:
            self._nodes[id(node)] = node
            self._queue.append(node)

    def holds(self, node: Node) -> bool:
        return id(node) in self._nodes

    def spread(self) -> None:
        while self._queue:
            node = self._queue.pop()
            for dependent in node.dependents:
                self.add(dependent)
            if isinstance(node, Composite):
                for child in node.children:
                    self.add(child)
            self._climb(node)

    def _climb(self, node: Node) -> None:
        outer = node.parent
        while outer is not None:
            if outer.kind == LOOP:
                for later in outer.children:
                    if later.order > node.order:
                        self.add(later)
            for dependent in outer.dependents:
                self.add(dependent)
            node, outer = outer, outer.parent

    def settle(self) -> KeptResults:
        """Return the reused results and the steps that run again. Call it after `spread`."""
        outputs: dict[str, str] = {}
        failures: dict[str, Failure] = {}
        left: dict[str, str] = {}
        again: list[Node] = []
        for node in leaves(self._tree):
            path = node.run.tree_path(node.path)
            if self.holds(node):
                again.append(node)
            elif node.status == COMPLETED and node.output is not None:
                outputs[path] = node.output
            elif node.status in UNSUCCESSFUL and node.error is not None and is_tolerated(node):
                failures[path] = node.error
                if node.output is not None:
                    left[path] = node.output
            elif not is_left_out(node):
                again.append(node)
        return KeptResults(
            outputs=outputs,
            failures=failures,
            left=left,
            again=tuple(node.run.tree_path(node.path) for node in again),
            agents=sum(node.step.traits.role is not None for node in again),
            spent=_spent(self._tree, again),
            merged=_merged(self._tree, again),
        )


def leaves(tree: RunTree) -> list[Node]:
    """Return every leaf instance of the run and the runs below it, in plan order."""
    found = (node for run in tree.state.runs.values() for node in run.nodes.values() if node.kind == LEAF)
    return sorted(found, key=_place)


def _place(node: Node) -> tuple[Order, ...]:
    """Return the position of an instance in the plans around it, outermost first."""
    places = [node.order]
    while (call := node.run.call) is not None:
        node = call
        places.append(node.order)
    return tuple(reversed(places))


def is_left_out(node: Node) -> bool:
    """Whether a step was skipped for another reason than a failure that is not tolerated."""
    return node.status == SKIPPED and (node.reason != "failure" or is_tolerated(node))


def _spent(tree: RunTree, nodes: list[Node]) -> Usage:
    known = [tree.memory.usage.get((node.run.id, node.path)) for node in nodes]
    spent = [usage for usage in known if usage is not None]
    return sum(spent, NOTHING_SPENT) if spent else Usage()


def _merged(tree: RunTree, nodes: list[Node]) -> dict[str, int]:
    found: dict[str, int] = {}
    for node in nodes:
        rows = tree.memory.changes_of(node.run.id, node.path)
        count = sum(row.state in ("merged", "applied") for row in rows)
        if count:
            found[node.run.tree_path(node.path)] = count
    return found


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
    """What would be reused and what would run again; steps are tree paths."""

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
    return _named(workflow, recipe_path(node)) in changes.changed


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
    yield from _below("", "", plan.steps)
    for workflow, called in plan.workflows.items():
        yield from _below(workflow, "", called.steps)


def _below(workflow: str, prefix: str, steps: tuple[Step, ...]) -> Iterator[tuple[str, Step]]:
    for step in steps:
        path = f"{prefix}{step.id}"
        yield _named(workflow, path), step
        if isinstance(step.action, GroupAction):
            yield from _below(workflow, f"{path}/", step.action.steps)


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
    said: object = action
    if isinstance(action, LeafAction):
        said = (action.type, _without_manner(action.body))
    elif isinstance(action, GroupAction):
        said = (action.output, action.phase)
    return msgspec.to_builtins(
        (
            said,
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


def _without_manner(body: Mapping[str, JSON]) -> dict[str, JSON]:
    return {name: value for name, value in body.items() if name not in _MANNER}


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


def options_of(source: RunTree, chosen: ChosenAgents) -> Options:
    """Return the limits, permission and agents of a run, with the chosen agents instead if given."""
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


def at_turn(turn: int | None, say: str | None, *, said: tuple[str, str] = ("turn", "say")) -> AtTurn | None:
    """Return the turn to continue from, or None. `said` are the caller's names of the two options."""
    if turn is None and say is not None:
        raise AuthorError("usage.conflict", f"{said[1]} goes on with a conversation", hint=f"add {said[0]} N")
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
    """Determine which results a fork of a run reuses and which steps run again.

    `at` is a turn of the step; `agents` are the agents of the fork.
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
    reached = AffectedNodes(tree)
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
    """Refuse an open run: it has no plan, and its work is repeated by new requests."""
    if tree.state.plan.open:
        message = f"run {tree.root.id} is open: there is no plan to run again"
        hint = "fanfold ps --all lists its subagents, to whom more can be said"
        if is_chat(tree.root.id):
            hint = f"{how_to_resume(tree.root.id)} goes on with it"
        raise AuthorError("run.open", message, hint=hint)


def lineage_of(
    tree: RunTree, kept: KeptResults, roles: dict[str, Role], taken_up: dict[str, TakenUp]
) -> Lineage:
    """Return the lineage of a run that is made from this one."""
    frozen, runs = tree.frozen(), tree.state.runs
    own = {runs[run].tree_path(step): tuple(ids) for (run, step), ids in tree.memory.receipts.items()}
    merges = {path: ids for path, ids in (frozen.reused_merges | own).items() if path in kept.outputs}
    return Lineage(
        run_id=tree.root.id,
        kept=kept.outputs | kept.left,
        failures=kept.failures,
        artifacts=kept_artifacts(tree.memory, tree.root.id, kept.outputs),
        merges=merges,
        roles=roles,
        default_model=frozen.default_model,
        default_fast_model=frozen.default_fast_model,
        taken_up=taken_up,
    )


def _touched(tree: RunTree, inputs: list[str], prompts: Mapping[str, str]) -> Iterator[Node]:
    """Yield the steps whose text mentions a changed input, or whose prompt was replaced."""
    pattern = _mentions(inputs)
    for node in tree.root.nodes.values():
        if node.step.id in prompts or (pattern is not None and pattern.search(_texts(node.step))):
            yield node


def _taken_up(tree: RunTree, step: str | None, prompts: Mapping[str, str], at: AtTurn) -> dict[str, TakenUp]:
    """Return the conversation that the step continues."""
    if step is None:
        raise AuthorError("usage.missing_option", "--turn is a turn of a step", hint="add --from STEP")
    speaker = find_speaker(ResolvedRun(tree, tree.root), step, None)
    new_prompt = "" if speaker.node.step.id in prompts else None
    return {speaker.step: take_up(tree, speaker, at.turn, new_prompt if at.say is None else at.say)}


def foretell(project: Project, fork: Fork) -> ForkForecast:
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
        goes_on={path: taken.turn for path, taken in fork.lineage.taken_up.items()},
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
    attendant: Prompter | None = None,
    seen: str | None = None,
) -> OwnedRun:
    """Record the run of a fork.

    `confirm` asks a person who has seen the forecast. `seen` is the digest of the question that another
    surface showed.
    """
    consent = _consent(project, fork)
    if is_foreign(project.folder, fork.lineage.run_id):
        fork = _as_a_stranger_s(fork)
    if seen is not None and seen != consent.request.digest:
        message = "what this fork does changed since it was shown"
        raise WorldError("permission.changed", message, hint="look at it again, then start it")
    posture = "ask" if consent.needed and fork.options.permission == "auto" else fork.options.permission
    asked = permit(consent, posture, yes=yes, attendant=attendant)
    if not asked and not yes and confirm is not None and not confirm():
        raise WorldError("permission_denied", "the fork was not started", exit_status=EXIT_PERMISSION)
    ask = None if attendant is None else attendant.allow
    return create(project, fork.plan, fork.inputs, fork.options, fork=fork.lineage, ask=ask)


def _consent(project: Project, fork: Fork) -> RunConsent:
    """Return the permission that a fork needs: for all effects or, with permission `auto`, for new ones."""
    foreign = is_foreign(project.folder, fork.lineage.run_id)
    options = _as_a_stranger_s(fork).options if foreign else fork.options
    reasons = [KEPT_FROM_LOG] if foreign else []
    spending = Spending(fork.kept.agents, fork.kept.spent.micro_usd or 0)
    if options.permission == "ask" and options.script is None:
        reasons += asked_about(project.config, spending)
    find, totals = fork.lineage.roles.get, spending.totals()
    consent = consent_of(
        project, fork.plan, find, options, inputs=fork.inputs, reasons=reasons, totals=totals
    )
    if options.permission != "auto":
        return consent
    return replace(consent, effects=tuple(one for one in consent.effects if one.text in fork.asks))


def _as_a_stranger_s(fork: Fork) -> Fork:
    """Drop the choices that another user may have made: permission, back end, model, script."""
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
    """Return the definition of a step as one text, without the steps inside a group."""
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
            raise AuthorError("recipe.bad_template", f"{hole.path.text!r} means nothing in {where}")
        if root == "steps" and first not in edges:
            edges.append(first)
    ordered = tuple(name for name in known if name in edges)
    body = read_body(AgentBody, step)
    placed = {hole.path.parts[0] for hole in holes if hole.path.root == "steps" and hole.path.parts}
    summaries = tuple(name for name in body.summaries if name not in placed)
    action = msgspec.structs.replace(body, prompt=prompt, summaries=summaries).action()
    return msgspec.structs.replace(step, action=action, depends_on=ordered)
