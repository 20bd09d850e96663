"""Retrying: a new run that does again what did not succeed in another one, and keeps the rest.

Why a new run: terminal is final. What failed stays in the log of the run in which it failed; the new one says
where it comes from and has everything else from there, inputs, limits and answers of people included.

Rules
* Again: every step that failed, timed out, was cancelled, was skipped for a failure, or whose changes were
  taken back; and all that depends on one of them. A loop that did not converge begins anew.
* Kept: whatever completed beyond that, and failures that were tolerated, as failures.
* The recipe is read again from where it was. What it says now holds, and what differs is shown: a completed
  step that says something else runs again too. A recipe that is gone is taken as the run recorded it.
* Roles are those of today, for the steps that run.
* The run had a permission for what its recipe declared; what is declared beyond that is asked for.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from fanfold.agents.role import Role
from fanfold.errors import AuthorError, NotFoundError
from fanfold.kernel.fold.tolerance import is_tolerated, is_unsuccessful
from fanfold.kernel.lifecycle import COMPLETED, FAILED, PAUSED, RUN_TERMINAL, WAITING
from fanfold.kernel.nodes import LEAF, Composite, Node, WorkflowCall
from fanfold.kernel.plan import JSON, Plan
from fanfold.recipe.builder import Recipe
from fanfold.runtime.hosting.run_tree import RunTree, run_status
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.again.fork import (
    SAME_AGENTS,
    ChosenAgents,
    Fork,
    check_has_plan,
    lineage_of,
    options_of,
)
from fanfold.runtime.operations.runs.again.reached import Reached
from fanfold.runtime.operations.runs.again.recipe_changes import RecipeChanges, compare, reaches
from fanfold.runtime.operations.runs.starting.options import Options
from fanfold.runtime.operations.runs.starting.permission import needs_permission
from fanfold.runtime.records.frozen import freeze_roles, with_stages
from fanfold.runtime.records.open_runs import how_to_resume
from fanfold.trust.adopted import is_adopted


class Retried(Struct, frozen=True, kw_only=True):
    """What is different in a retry; None leaves it as it was."""

    agents: ChosenAgents = SAME_AGENTS
    recipe: Recipe | None = None
    """Instead of the file that the run came from."""


def plan_retry(project: Project, tree: RunTree, wanted: Retried | None = None) -> Fork:
    """Work out what a retry of a run keeps and what it runs again; raises when there is nothing to do."""
    wanted = wanted or Retried()
    _check_over(tree)
    old = tree.state.plan
    options = options_of(tree, wanted.agents)
    new = _recipe_now(project, tree, wanted, scripted=options.script is not None)
    roles = _roles_now(project, tree, new)
    changes = compare(old, new)
    before = tree.frozen().roles
    others = [name for name, role in roles.items() if name in before and before[name] != role]
    changes = replace(changes, roles=sorted(others))
    reached = Reached(tree)
    for node in _failed(tree, changes):
        reached.add(node)
    reached.spread()
    kept = reached.settle()
    declared = set(needs_permission(old, before.get))
    return Fork(
        source=tree.root.id,
        plan=new,
        inputs=_inputs(tree, new),
        kept=kept,
        lineage=lineage_of(tree, kept, roles, {}),
        options=_limits(options, old, new),
        agents=wanted.agents,
        changes=changes,
        asks=tuple(line for line in needs_permission(new, roles.get) if line not in declared),
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
    """What has to run again for its own sake."""
    yield from _undone(tree)
    for run in tree.state.runs.values():
        for node in run.nodes.values():
            if reaches(changes, node) or (_has_failed(node) and not is_tolerated(node)):
                yield node


def _has_failed(node: Node) -> bool:
    return is_unsuccessful(node) and (node.kind == LEAF or _failed_itself(node))


def _failed_itself(node: Node) -> bool:
    """Whether a composite failed although all in it is as it should be: all of it must be done again."""
    if node.status != FAILED or not isinstance(node, Composite) or node.failed_child is not None:
        return False
    return not isinstance(node, WorkflowCall) or node.child is None or node.child.status == COMPLETED


def _undone(tree: RunTree) -> Iterator[Node]:
    """Steps whose changes were taken back: what they gave says what is not there any more."""
    for run, rows in tree.memory.changes.items():
        for step in dict.fromkeys(row.step for row in rows if row.state == "undone"):
            yield tree.state.runs[run].nodes[step]


def _recipe_now(project: Project, tree: RunTree, wanted: Retried, *, scripted: bool) -> Plan:
    """The recipe as it is now, or as it was if nobody has it any more."""
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
    """What the run was given, as far as the recipe still asks for it."""
    declared = {one.name for one in plan.inputs}
    return {name: value for name, value in tree.values.inputs(tree.root).items() if name in declared}


def _limits(options: Options, old: Plan, new: Plan) -> Options:
    """Limits that the recipe has changed are its own again; others stay as they were given or raised."""
    was, now = old.limits, new.limits
    changed = {
        "max_concurrency": was.max_concurrency != now.max_concurrency,
        "max_agents": was.max_agents != now.max_agents,
        "timeout_ms": was.timeout_ms != now.timeout_ms,
        "budget_tokens": was.budget.tokens != now.budget.tokens,
        "budget_micro_usd": was.budget.micro_usd != now.budget.micro_usd,
    }
    return replace(options, **{name: None for name, differs in changed.items() if differs})
