"""Capture the recipe of a run. For an open run it is recovered from its delegations.

The delegations are read from the run's log, converted to a recipe (`language.capture`), and checked by the
compiler. With a name, the recipe is saved in the project. An existing recipe is only replaced on request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from fanfold.agents.entries import Response
from fanfold.api.addresses import ResolvedRun, find_run
from fanfold.api.project import Project
from fanfold.api.recipes import renamed, save_recipe
from fanfold.api.subagents import SPAWN_TIMEOUT_MS
from fanfold.engine.children import no_subagent
from fanfold.engine.run_tree import RunTree
from fanfold.errors import NotFoundError
from fanfold.kernel.events import StepAdded, SubagentEvent, event_of
from fanfold.kernel.plan import EVERYTHING, JSON
from fanfold.kernel.state import COMPLETED, Node
from fanfold.language.capture.quotes import Delegation, Emission, OmittedChild, StandsFor
from fanfold.language.capture.recover import recover
from fanfold.language.compile import compile_recipe
from fanfold.language.diagnostics import Diagnostic
from fanfold.language.leaf_steps import AgentBody
from fanfold.language.step_grammar import read_body
from fanfold.sessions.log import read_entries
from fanfold.steps.agent import words_of
from fanfold.steps.records import child_name, is_agent, is_lead, session_of

# -----------------------------------------------------------------------------------------------------------
# The delegations of an open run, read from its log for `language.capture`
#
# Each child is one delegation, regardless of its number of turns: a turn after a failed turn is a retry. A
# turn after a completed turn is a separate delegation, which continues that conversation.

_MERGED = frozenset({"merged", "applied"})


def find_delegations(
    tree: RunTree, children: Sequence[str] = (), usual_timeout_ms: int = 0
) -> list[Delegation]:
    """List the delegations of an open run in the order they were requested; only of `children`, if given."""
    asked, ended = _moments(tree)
    found: list[Delegation] = []
    for node in tree.root.scope.children:
        child = child_name(node.path)
        if not is_agent(node) or is_lead(node) or (children and child not in children):
            continue
        one = _delegation(tree, node, usual_timeout_ms)
        one = replace(one, asked=asked.get(node.path, 0), ended=ended.get(node.path, 0))
        before = next((n for n in range(len(found) - 1, -1, -1) if child_name(found[n].name) == child), None)
        if before is None:
            found.append(one)
        elif found[before].status == COMPLETED:
            found.append(replace(one, continues=found[before].name))
        else:  # a retry: the step keeps the first prompt
            failed = found[before]
            found[before] = replace(
                one,
                name=failed.name,
                prompt=failed.prompt,
                asked=failed.asked,
                failed_as=(*failed.failed_as, failed.failure) if failed.failure else failed.failed_as,
            )
    return found


def _moments(tree: RunTree) -> tuple[dict[str, int], dict[str, int]]:
    """Return the event numbers at which each step was requested and at which it ended."""
    asked: dict[str, int] = {}
    ended: dict[str, int] = {}
    for envelope in tree.store.tree(tree.root.id):
        if envelope.log != tree.root.id:
            continue
        data = event_of(envelope).data
        if isinstance(data, StepAdded):
            asked[data.step.id] = envelope.tree_seq
        elif isinstance(data, SubagentEvent) and data.status not in ("queued", "started", "input"):
            ended[data.step] = envelope.tree_seq
    return asked, ended


def _delegation(tree: RunTree, node: Node, usual_timeout_ms: int) -> Delegation:
    said = read_body(AgentBody, node.step)
    number = node.path.removeprefix(f"{said.agent}-")
    return Delegation(
        name=node.path,
        chosen=not number.isdecimal(),
        role=said.role,
        prompt=words_of(node),
        output=tree.values.output(node),
        status=node.status,
        failure=node.error.kind if node.error is not None else "",
        asked=0,
        ended=0,
        settings=dict(_settings(tree, node, said, usual_timeout_ms)),
        leaves_files=_leaves_files(tree, node),
        tools=tuple(_tools_used(tree, node)),
    )


def _settings(
    tree: RunTree, node: Node, said: AgentBody, usual_timeout_ms: int
) -> Iterator[tuple[str, JSON]]:
    """Yield the keys of the step that differ from the defaults of a recipe."""
    step = node.step
    role = tree.frozen(node).roles.get(said.role)
    if step.posture == "read_only" and role is not None and not role.read_only:
        yield "posture", "read_only"
    if step.posture == "writer" and step.write_set != EVERYTHING:
        yield "write_set", list(step.write_set)
    if step.posture == "writer" and step.workspace_mode == "shared":
        yield "workspace_mode", "shared"
    if step.merge != "auto":
        yield "merge", step.merge
    if step.on_conflict != "fail":
        yield "on_conflict", step.on_conflict
    if said.model is not None:
        yield "model", said.model
    if said.tools is not None:
        yield "tools", list(said.tools)
    if step.output_schema is not None:
        yield "output_schema", step.output_schema
    if step.timeout_ms is not None and step.timeout_ms != usual_timeout_ms:
        yield "timeout", _duration(step.timeout_ms)


def _duration(ms: int) -> str:
    return f"{ms // 1_000}s" if ms % 1_000 == 0 else f"{ms}ms"


def _leaves_files(tree: RunTree, node: Node) -> bool:
    if node.step.posture != "writer":
        return False
    rows = tree.memory.changes_of(node.run.id, node.path)
    return node.step.workspace_mode == "shared" or any(row.state in _MERGED for row in rows)


def _tools_used(tree: RunTree, node: Node) -> Iterator[str]:
    for entry in read_entries(tree.store, session_of(node)) if node.attempt else ():
        if isinstance(entry, Response):
            yield from (call.tool for call in entry.tool_calls)


class CaptureResult(Struct, frozen=True, kw_only=True):
    """A recipe that was recovered from a run. `file` is where it was saved, if it was."""

    run_id: str
    name: str
    recipe: str
    """The text of the recipe."""
    made_of: dict[str, list[str]]
    """The children that each of its steps replaces, in the order of its items."""
    recognised: Sequence[str]
    guessed: Sequence[str]
    stands_for: Sequence[StandsFor]
    """Placeholders in prompts that will not produce exactly the recorded text."""
    left_out: Sequence[OmittedChild]
    diagnostics: Sequence[Diagnostic]
    file: str | None = None


def capture(
    project: Project,
    run: str,
    *,
    children: Sequence[str] = (),
    name: str = "",
    request: str = "",
    save: bool = False,
    replace: bool = False,
) -> CaptureResult:
    """Return the recipe of a run, or of some children of an open run. `save` saves it under its name.

    The recipe of an open run is recovered from its delegations; any other run has its own recipe. `request`
    is the user's request, for an open run whose log does not contain it.
    """
    found = find_run(project, run)
    if not found.run.plan.open:
        return _own_recipe(project, found, name, save=save, replace=replace)
    for child in children:
        if not found.turns(child):
            raise no_subagent(child, {child_name(node.path) for node in found.run.scope.children})
    delegations = find_delegations(found.tree, children, SPAWN_TIMEOUT_MS)
    request = request or "\n".join(words_of(node) for node in found.run.scope.children if is_lead(node))
    emission = recover(delegations, request=request, name=name)
    if emission.recipe is None:
        hint = f"fanfold inspect {found.run.id} shows who worked"
        raise NotFoundError("capture.nothing", _why_nothing(found, emission), hint=hint)
    compiled = emission.recipe.compile(project.surroundings(scripted=True), project.folder)
    diagnostics = compiled.report.diagnostics
    text = emission.recipe.to_yaml()
    saved = save and compiled.plan is not None
    file = str(save_recipe(project, emission.recipe.name, text, replace=replace)) if saved else None
    return CaptureResult(
        run_id=found.run.id,
        name=emission.recipe.name,
        recipe=text,
        made_of=emission.made_of,
        recognised=emission.recognised,
        guessed=emission.guessed,
        stands_for=emission.stands_for,
        left_out=emission.left_out,
        diagnostics=diagnostics,
        file=file,
    )


def recipe_of_run(project: Project, run: str) -> str:
    """Return the text of the recipe that a run was started with."""
    return _text_of(find_run(project, run))


def _text_of(found: ResolvedRun) -> str:
    plan = found.run.plan
    if plan.source:
        return plan.source
    if plan.open:
        message, hint = f"run {found.run.id} is open: it has no recipe", f"fanfold capture {found.run.id}"
    else:
        message = f"the log of run {found.run.id} has no text of its recipe {plan.name}@{plan.version}"
        hint = f"fanfold inspect {found.run.id} shows its steps"
    raise NotFoundError("recipe.no_text", message, hint=hint)


def _own_recipe(
    project: Project, found: ResolvedRun, name: str, *, save: bool, replace: bool
) -> CaptureResult:
    """Return the recipe that a run was started with, unchanged except for its name."""
    plan, text = found.run.plan, _text_of(found)
    name = name or plan.name
    text = renamed(text, name)
    compiled = compile_recipe(
        text.encode(), str(project.folder / "<run>"), project.surroundings(scripted=True)
    )
    saved = save and compiled.plan is not None
    file = str(save_recipe(project, name, text, replace=replace)) if saved else None
    return CaptureResult(
        run_id=found.run.id,
        name=name,
        recipe=text,
        made_of={},
        recognised=[f"the recipe of run {found.run.id}, unchanged"],
        guessed=(),
        stands_for=(),
        left_out=(),
        diagnostics=compiled.report.diagnostics,
        file=file,
    )


def _why_nothing(found: ResolvedRun, emission: Emission) -> str:
    if not emission.left_out:
        return f"nothing was delegated in run {found.run.id}"
    told = "; ".join(f"{one.name}: {one.why}" for one in emission.left_out[:3])
    return f"nothing that was delegated in run {found.run.id} completed: {told}"
