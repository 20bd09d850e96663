"""Which runs there are, and how one of them stands."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from time import time

from msgspec import structs

from fanfold.kernel.lifecycle import PAUSED, RUN_TERMINAL, RUNNING, WAITING
from fanfold.runtime.hosting.children import is_interrupted
from fanfold.runtime.hosting.clock import wall_clock_ms
from fanfold.runtime.hosting.run_tree import RunTree, run_status
from fanfold.runtime.operations.addresses import Addressed, find_run
from fanfold.runtime.operations.history.listing import owner_of
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.starting.limits import how_to_raise
from fanfold.runtime.records.open_runs import how_to_resume, is_chat
from fanfold.runtime.records.subagents import child_name
from fanfold.runtime.views.approvals import due_at, how_to_answer, open_approvals
from fanfold.runtime.views.runs.documents import (
    InspectDocument,
    InspectStepDocument,
    inspect_document,
    inspect_step_document,
    state_document,
)
from fanfold.runtime.views.runs.step_rows import Row, run_rows


def inspect(project: Project, run: str, *, with_state: bool = False) -> InspectDocument:
    """A run with its child runs, as its log is now."""
    return inspect_found(project, find_run(project, run), with_state=with_state)


def inspect_found(
    project: Project, found: Addressed, *, with_state: bool = False, only: Collection[str] | None = None
) -> InspectDocument:
    """The same, for a run that was looked up already; with `only` these steps, by their path in the tree."""
    owner = owner_of(project, found.root_id)
    head = project.store.head(found.run.id)
    forked_from = None if head is None else head.forked_from
    document = inspect_document(found.tree, found.run, only)
    document = structs.replace(document, owner=owner, forked_from=forked_from)
    return structs.replace(document, state=state_document(found.tree, owner)) if with_state else document


def step_rows(found: Addressed, *, every: bool = False) -> list[Row]:
    """Its steps in plan order, as lines say them; large fan-outs by what needs attention, unless `every`."""
    return run_rows(found.tree, found.run, int(time() * 1_000), every=every)


def inspect_step(project: Project, run: str, step: str) -> InspectStepDocument:
    """One step of a run, by its path; a subagent by its name, as its latest turn."""
    found = find_run(project, run)
    turns = found.turns(step)
    return inspect_step_document(found.tree, turns[-1] if turns else found.step(step))


def how_to_go_on(tree: RunTree, *, driven: bool) -> str:
    """The command that answers, raises what is reached, or resumes; empty for a run that is over, or that is
    open with nothing in it that could go on.

    What time has answered, or is to answer, happens when somebody drives the run.
    """
    status = run_status(tree.state, tree.root)
    if status in RUN_TERMINAL:
        return ""
    if tree.root.growing:
        return "" if driven else _how_to_go_on_open(tree, status)
    if status == WAITING:
        now = wall_clock_ms()
        asked = [one for one in open_approvals(tree) if (due_at(tree, one.path) or now) >= now]
        if asked:
            return how_to_answer(tree.root.id, asked[0].path, asked[0])
        return "" if driven else how_to_resume(tree.root.id)
    if tree.state.pausing == "budget":
        return how_to_raise(tree)
    return how_to_resume(tree.root.id) if tree.state.pausing else ""


def _how_to_go_on_open(tree: RunTree, status: str) -> str:
    """A chat goes on when something is said; others when they are resumed, or the subagent is that lost its
    process."""
    root = tree.root
    if is_chat(root.id) or status == PAUSED:
        return how_to_resume(root.id)
    lost = next(
        (path for path, node in root.nodes.items() if is_interrupted(node) or node.status == RUNNING), None
    )
    return "" if lost is None else f"fanfold send {shlex.quote(child_name(lost))} --resume"
