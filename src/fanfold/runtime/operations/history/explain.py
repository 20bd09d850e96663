"""Why a run or a step is where it is, and why it ran when it did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import UNSET, structs

from fanfold.kernel.events import Added, event_of
from fanfold.kernel.explain import SENTENCES
from fanfold.kernel.explain import explain as explain_node
from fanfold.kernel.lifecycle import COMPLETED, HELD, INTERRUPTED, PAUSED, READY, RUN_TERMINAL, WAITING
from fanfold.kernel.nodes import LEAF, Composite, Node, Run
from fanfold.runtime.hosting.run_tree import RunTree, run_status
from fanfold.runtime.operations.addresses import find_run
from fanfold.runtime.operations.history.runs import how_to_go_on
from fanfold.runtime.operations.project import Project
from fanfold.runtime.records.open_runs import how_to_resume
from fanfold.runtime.records.values import is_below
from fanfold.runtime.views.approvals import approval_document, is_open
from fanfold.runtime.views.errors import REASON_CHARS, gist
from fanfold.runtime.views.items import named_path
from fanfold.runtime.views.runs.documents import how_to_retry, run_error
from fanfold.runtime.views.runs.rounds import last_objections
from fanfold.runtime.views.runs.transitions import Transitions, step_at
from fanfold.runtime.views.standing import status_of
from fanfold.runtime.views.steps.explanations import (
    Explained,
    ExplainedRun,
    ExplainedStep,
    HistoryEntry,
    explained,
)
from fanfold.runtime.views.steps.used_sets import (
    StepTouch,
    recipe_path,
    suggest,
    touched_by,
    works_on_files,
)
from fanfold.runtime.views.times import duration, when
from fanfold.text.excerpts import shorten_line

MAX_STEPS = 1_000
MAX_SAID_CHARS = 200
SOON_MS = 50
"""A step that starts within this time of its last dependency did not wait for anything else."""


def explain_step(project: Project, run: str, step: str) -> ExplainedStep:
    """Why one step is where it is, and what the log says about it."""
    found = find_run(project, run)
    node = found.step(step)
    return ExplainedStep(
        **structs.asdict(explain_in(found.tree, node)),
        ran_then="; ".join(
            part for part in (_why_then(node, _added_at(project, node)), _held_by(found.tree, node)) if part
        ),
        history=list(_history(project, found.tree, node)),
        approval=approval_document(found.tree, node) if is_open(node) else UNSET,
        **_used(found.tree, node),
    )


def explain_in(tree: RunTree, node: Node) -> Explained:
    """What the kernel says, and who holds the files that a step waits for."""
    found = structs.replace(explained(explain_node(tree.state, node)), status=status_of(tree, node))
    found = structs.replace(found, message=found.message.replace(found.path, named_path(tree, node), 1))
    if node.error is not None and node.error.message:
        short = gist(node.error, REASON_CHARS)
        found = structs.replace(found, message=found.message.replace(node.error.message, short))
    if said := last_objections(tree, node):
        found = structs.replace(found, message=f"{found.message}: {shorten_line(said[0], MAX_SAID_CHARS)}")
    holder = tree.memory.holders.get((node.run.id, node.path), "") if node.reason == HELD else ""
    if not holder:
        return found
    return structs.replace(found, message=f"{found.message} ({holder})", blocked_by=[holder])


def _used(tree: RunTree, node: Node) -> dict[str, Any]:
    """What a step that ran read and changed, and the sets which all instances of its step suggest."""
    if not works_on_files(node):
        return {}
    alone = StepTouch()
    alone.look_at(tree, node)
    seen: dict[str, StepTouch] = {}
    touched_by(tree, node.run, seen)
    path = recipe_path(node)
    suggested = suggest(node.run.plan.name, [(path, node.step)], seen)
    return {"used": alone.used(), "suggested": suggested}


def explain_run(project: Project, run: str) -> ExplainedRun:
    """Why a run is where it is, and its steps that did not simply complete."""
    tree, found = find_run(project, run)
    status = run_status(tree.state, found)
    reason, sentence, blockers = _reason(tree, found, status)
    if reason != "open" and found.status not in RUN_TERMINAL and not project.has_owner(tree.root.id):
        on = how_to_go_on(tree, driven=False) or how_to_resume(tree.root.id)
        sentence += f"; no process drives it: {on}"
    elif reason == "open" and (on := how_to_go_on(tree, driven=project.has_owner(tree.root.id))):
        sentence += f"; {on} goes on"
    if again := how_to_retry(tree):
        sentence += f"; {again} runs again what did not complete"
    steps = [explain_in(tree, node) for node in _interesting(tree, found)]
    return ExplainedRun(
        path=found.path,
        status=status,
        reason=reason,
        blocked_by=[node.run.tree_path(node.path) for node in blockers],
        message=f"run {found.id} {sentence}",
        steps=steps[:MAX_STEPS],
    )


def _history(project: Project, tree: RunTree, node: Node) -> Iterator[HistoryEntry]:
    """What the log says about one step, in order."""
    path = node.run.tree_path(node.path)
    transitions = Transitions(lambda run, at: step_at(tree, run, at))
    for envelope in project.store.log(node.run.id):
        one = transitions.read(envelope)
        if one is not None and one.path == path:
            yield HistoryEntry(when(one.at), one.text)


def _added_at(project: Project, node: Node) -> int:
    """When a step was added to an open run; 0 for one of a recipe."""
    if not node.run.plan.open:
        return 0
    for envelope in project.store.log(node.run.id):
        event = event_of(envelope)
        if isinstance(event.data, Added) and event.data.step.id == node.path:
            return event.at
    return 0


def _why_then(node: Node, added_at: int) -> str:
    """What a step that started had waited for."""
    if not node.started_at or isinstance(node, Composite):
        return ""
    before = [one for one in _dependencies(node) if one.ended_at]
    if added_at and all(one.ended_at <= added_at for one in before):
        waited = node.started_at - added_at
        late = f", and started {duration(waited)} later (slots, conflicts)" if waited >= SOON_MS else ""
        return f"it could start when it was asked for{late}"
    if not before:
        return "it depends on no other step"
    last = max(before, key=lambda one: one.ended_at)
    waited = node.started_at - last.ended_at
    text = f"it could start when {last.run.tree_path(last.path)} had ended"
    if waited < SOON_MS:
        return text
    return f"{text}, and started {duration(waited)} later (slots, conflicts, retries)"


def _held_by(now: RunTree, node: Node) -> str:
    """What held a step back when it was ready, last of all; read off the log, which does not forget it."""
    if node.kind != LEAF or not node.started_at:
        return ""
    envelopes = now.store.tree(now.root.id)
    tree = RunTree.reading(now.store, next(envelopes))
    told = ""
    for envelope in envelopes:
        tree.catch_up([envelope])
        run = tree.state.runs.get(node.run.id)
        then = run.nodes.get(node.path) if run is not None else None
        if then is None or then.status != READY or then.holding or tree.state.agenda:
            if then is not None and then.started_at:
                break
            continue
        why = explain_node(tree.state, then)
        names = ", ".join(why.blocked_by[:5])
        told = SENTENCES[why.reason].removeprefix("is ready; ").removeprefix("is held back: ")
        told = f"until then it was held back: {told}" + (f" ({names})" if names else "")
    return told


def _dependencies(node: Node) -> list[Node]:
    prefix = node.path.rpartition("/")[0]
    edges = node.step.depends_on + node.step.after
    names = [f"{prefix}/{name}" if prefix else name for name in edges]
    return [node.run.nodes[name] for name in names if name in node.run.nodes]


def _reason(tree: RunTree, run: Run, status: str) -> tuple[str, str, list[Node]]:
    nodes = list(run.nodes.values())
    if status in RUN_TERMINAL:
        failed = [node for node in nodes if node.status in ("failed", "timed_out")]
        error = run_error(tree, run)
        text = status.replace("_", " ") + (f": {gist(error, REASON_CHARS)}" if error is not None else "")
        return status, text, failed
    if status == PAUSED:
        error = run_error(tree, run)
        reason = "budget" if tree.state.pausing == "budget" else "paused"
        return reason, error.message.removeprefix("the run ") if error is not None else "is paused", []
    if status == WAITING and run.growing:
        lost = [node for node in nodes if node.status == WAITING and node.reason == INTERRUPTED]
        return "open", "is open: it waits for somebody to ask for something", lost
    if status == WAITING:
        return "approval", SENTENCES["approval"], [node for node in nodes if is_open(node)]
    flying = [node for node in tree.state.in_flight.values() if node.run is run]
    return "running", "runs", sorted(flying, key=lambda node: node.order)


def _interesting(tree: RunTree, run: Run) -> Iterator[Node]:
    """Steps that did not simply complete."""
    inside = [other for other in tree.state.runs.values() if is_below(other, run)]
    for one in inside:
        for node in one.nodes.values():
            if node.status != COMPLETED or node.attempt > 1:
                yield node
