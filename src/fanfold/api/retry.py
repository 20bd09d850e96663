"""Retry a run: start a new run that repeats what did not succeed in another one, and keeps the rest.

Why a new run: a terminal status is final. A failure stays in the log of its run. The new run records its
origin and takes everything else from there, including inputs, limits and answers of people.

Rules
* Repeated: every step that failed, timed out, was cancelled, was skipped because of a failure, or whose
  changes were undone; and every step that depends on one of them. A loop that did not converge starts again.
* Kept: every other completed step, and tolerated failures, as failures.
* The recipe is read again from its file. The current version applies, and the differences are shown. A
  completed step with a changed definition runs again too. If the file is gone, the recorded recipe is used.
* Steps that run use the current roles.
* The permission of the original run covers what its recipe declared. Additional effects need permission.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from fanfold.agents.role import Role
from fanfold.api.effects import plan_effects
from fanfold.api.fork import (
    SAME_AGENTS,
    AffectedNodes,
    ChosenAgents,
    Fork,
    RecipeChanges,
    check_has_plan,
    compare,
    lineage_of,
    options_of,
    reaches,
)
from fanfold.api.permission import Options
from fanfold.api.project import Project
from fanfold.engine.run_tree import RunTree, run_status
from fanfold.errors import AuthorError, NotFoundError
from fanfold.kernel.plan import JSON, Plan
from fanfold.kernel.progress import is_tolerated, is_unsuccessful
from fanfold.kernel.state import (
    COMPLETED,
    FAILED,
    LEAF,
    PAUSED,
    RUN_TERMINAL,
    WAITING,
    Composite,
    Node,
    WorkflowCall,
)
from fanfold.language.builder import Recipe
from fanfold.steps.run_config import freeze_roles, how_to_resume, with_stages
from fanfold.workspace.seal import is_adopted


class RetryOptions(Struct, frozen=True, kw_only=True):
    """Options of a retry; None keeps the value of the original run."""

    agents: ChosenAgents = SAME_AGENTS
    recipe: Recipe | None = None
    """Replaces the recipe file of the original run."""


def plan_retry(project: Project, tree: RunTree, wanted: RetryOptions | None = None) -> Fork:
    """Determine what a retry of a run keeps and repeats; raises if there is nothing to repeat."""
    wanted = wanted or RetryOptions()
    _check_over(tree)
    old = tree.state.plan
    options = options_of(tree, wanted.agents)
    new = _recipe_now(project, tree, wanted, scripted=options.script is not None)
    roles = _roles_now(project, tree, new)
    changes = compare(old, new)
    before = tree.frozen().roles
    others = [name for name, role in roles.items() if name in before and before[name] != role]
    changes = replace(changes, roles=sorted(others))
    reached = AffectedNodes(tree)
    for node in _failed(tree, changes):
        reached.add(node)
    reached.spread()
    kept = reached.settle()
    inputs = _inputs(tree, new)
    given = tree.values.inputs(tree.root)
    declared = {one.text for one in plan_effects(old, before.get, inputs=given)}
    return Fork(
        source=tree.root.id,
        plan=new,
        inputs=inputs,
        kept=kept,
        lineage=lineage_of(tree, kept, roles, {}),
        options=_limits(options, old, new),
        agents=wanted.agents,
        changes=changes,
        asks=frozenset(one.text for one in plan_effects(new, roles.get, inputs=inputs)) - declared,
    )


def _check_over(tree: RunTree) -> None:
    root = tree.root
    check_has_plan(tree)
    status = run_status(tree.state, root)
    if status not in RUN_TERMINAL:
        on = how_to_resume(root.id)
        hints = {PAUSED: f"{on} goes on with it", WAITING: f"fanfold inspect {root.id}"}
        hint = hints.get(status, f"fanfold watch {root.id} follows it; {on} if nobody does")
        raise AuthorError("run.not_over", f"run {root.id} is {status}: it has not ended", hint=hint)
    if status == COMPLETED and not any(True for _ in _undone(tree)):
        message = f"run {root.id} completed: nothing of it failed"
        first = shlex.quote(next(iter(root.nodes), ""))
        hint = f"run it again from a step on, like this: fanfold fork {root.id} --from {first}"
        raise AuthorError("run.nothing_failed", message, hint=hint)


def _failed(tree: RunTree, changes: RecipeChanges) -> Iterator[Node]:
    """Yield the steps that must run again, without those that only depend on them."""
    yield from _undone(tree)
    for run in tree.state.runs.values():
        for node in run.nodes.values():
            if reaches(changes, node) or (_has_failed(node) and not is_tolerated(node)):
                yield node


def _has_failed(node: Node) -> bool:
    return is_unsuccessful(node) and (node.kind == LEAF or _failed_itself(node))


def _failed_itself(node: Node) -> bool:
    """Whether a composite failed although none of its parts failed. Then all of it runs again."""
    if node.status != FAILED or not isinstance(node, Composite) or node.failed_child is not None:
        return False
    return not isinstance(node, WorkflowCall) or node.child is None or node.child.status == COMPLETED


def _undone(tree: RunTree) -> Iterator[Node]:
    """Yield the steps whose changes were undone: their outputs describe files that no longer exist."""
    for run, rows in tree.memory.changes.items():
        for step in dict.fromkeys(row.step for row in rows if row.state == "undone"):
            yield tree.state.runs[run].nodes[step]


def _recipe_now(project: Project, tree: RunTree, wanted: RetryOptions, *, scripted: bool) -> Plan:
    """Return the recipe as it is now, or as recorded if its file is gone."""
    old = tree.state.plan
    if wanted.recipe is not None:
        return project.plan_of(wanted.recipe, scripted=scripted)
    if not old.source_file or is_adopted(project.folder, tree.root.id):
        return old
    file = os.path.join(project.folder, old.source_file)
    try:
        return project.plan_of(file, scripted=scripted)
    except NotFoundError:
        return old


def _roles_now(project: Project, tree: RunTree, plan: Plan) -> dict[str, Role]:
    before = tree.frozen().roles

    def find(name: str) -> Role | None:
        return project.roles.find(name) or before.get(name)

    return with_stages(freeze_roles(plan, find), find)


def _inputs(tree: RunTree, plan: Plan) -> dict[str, JSON]:
    """Return the inputs of the run that the recipe still declares."""
    declared = {one.name for one in plan.inputs}
    return {name: value for name, value in tree.values.inputs(tree.root).items() if name in declared}


def _limits(options: Options, old: Plan, new: Plan) -> Options:
    """Reset the limits that the recipe has changed; others stay as they were given or raised."""
    was, now = old.limits, new.limits
    changed = {
        "max_concurrency": was.max_concurrency != now.max_concurrency,
        "max_agents": was.max_agents != now.max_agents,
        "timeout_ms": was.timeout_ms != now.timeout_ms,
        "budget_tokens": was.budget.tokens != now.budget.tokens,
        "budget_micro_usd": was.budget.micro_usd != now.budget.micro_usd,
    }
    return replace(options, **{name: None for name, differs in changed.items() if differs})
