"""`fanfold explain`: why a run or a step is where it is, and why it ran when it did."""

from __future__ import annotations

from collections.abc import Iterator

import click

from fanfold.cli.command import Call, command
from fanfold.cli.project import open_project
from fanfold.cli.terminal.output import one_line, paint, plain, say, say_json
from fanfold.cli.terminal.progress import step_at
from fanfold.cli.terminal.transitions import COLOURS, Transition, Transitions, clock, duration
from fanfold.errors import EXIT_OK
from fanfold.kernel.explain import SENTENCES, Explanation, explain
from fanfold.kernel.lifecycle import COMPLETED, PAUSED, RUN_TERMINAL, WAITING
from fanfold.kernel.nodes import Composite, Node, Run
from fanfold.runtime.hosting.run_tree import RunTree, run_status
from fanfold.runtime.operations.addresses import find_run
from fanfold.runtime.operations.project import Project
from fanfold.runtime.views.approvals import is_open
from fanfold.runtime.views.documents import approval_document, run_error, when

MAX_STEPS = 1_000
MAX_SHOWN = 40


@command("explain", summary="Why a run or step waits, was skipped, retried, or ran then")
@click.argument("run")
@click.argument("step", required=False)
def explain_command(call: Call, run: str, step: str | None) -> int:
    """Explain RUN, or one STEP of it; STEP is a path as `fanfold inspect` shows it."""
    with open_project(call, to_read=True) as project:
        found = find_run(project, run)
        if step is None:
            _explain_run(call, project, found.tree, found.run)
        else:
            _explain_step(call, project, found.tree, found.step(step))
    return EXIT_OK


def _explain_step(call: Call, project: Project, tree: RunTree, node: Node) -> None:
    found = explain(tree.state, node)
    history = _history(project, tree, node)
    why_then = _why_then(node)
    asked = approval_document(tree, node) if is_open(node) else None
    if call.as_json:
        said = [{"at": when(one.at), "text": one.text} for one in history]
        document = {**_document(found), "ran_then": why_then, "history": said}
        say_json(document if asked is None else {**document, "approval": asked})
        return
    say(f"{paint(found.status, COLOURS.get(found.status, 'blue'), call.colour)}  {one_line(found.message)}\n")
    if why_then:
        say(f"  {why_then}\n")
    for line in "" if asked is None else f"{asked['question']}\n{asked['show']}".splitlines():
        say(f"  {paint('│', 'dim', call.colour)} {plain(line)}\n")
    for one in history:
        say(f"  {paint(clock(one.at), 'dim', call.colour)} {one.text}\n")


def _history(project: Project, tree: RunTree, node: Node) -> list[Transition]:
    """What the log says about one step, in order."""
    path = node.run.tree_path(node.path)
    transitions = Transitions(lambda run, at: step_at(tree, run, at))
    found = (transitions.read(envelope) for envelope in project.store.log(node.run.id))
    return [one for one in found if one is not None and one.path == path]


def _why_then(node: Node) -> str:
    """What a step that started had waited for."""
    if not node.started_at or isinstance(node, Composite):
        return ""
    before = [one for one in _dependencies(node) if one.ended_at]
    if not before:
        return "it depends on no other step"
    last = max(before, key=lambda one: one.ended_at)
    waited = node.started_at - last.ended_at
    text = f"it could start when {last.run.tree_path(last.path)} had ended"
    return (
        text if waited < 50 else f"{text}, and started {duration(waited)} later (slots, conflicts, retries)"
    )


def _dependencies(node: Node) -> list[Node]:
    prefix = node.path.rpartition("/")[0]
    names = [f"{prefix}/{name}" if prefix else name for name in node.step.depends_on]
    return [node.run.nodes[name] for name in names if name in node.run.nodes]


def _explain_run(call: Call, project: Project, tree: RunTree, run: Run) -> None:
    status = run_status(tree.state, run)
    reason, sentence, blockers = _reason(tree, run, status)
    open_steps = [explain(tree.state, node) for node in _interesting(tree, run)][:MAX_STEPS]
    paths = [node.run.tree_path(node.path) for node in blockers]
    driven = project.has_owner(tree.root.id)
    if run.status not in RUN_TERMINAL and not driven:
        sentence += f"; no process drives it: fanfold resume {tree.root.id}"
    if call.as_json:
        document: dict[str, object] = {"path": run.path, "status": status, "reason": reason}
        document |= {"blocked_by": paths, "message": f"run {run.id} {sentence}"}
        say_json({**document, "steps": [_document(one) for one in open_steps]})
        return
    say(f"{paint(status, COLOURS.get(status, 'blue'), call.colour)}  run {run.id} {one_line(sentence)}\n")
    for one in open_steps[:MAX_SHOWN]:
        say(f"  {one_line(one.message)}\n")
    if len(open_steps) > MAX_SHOWN:
        say(f"  … {len(open_steps) - MAX_SHOWN} more\n")


def _reason(tree: RunTree, run: Run, status: str) -> tuple[str, str, list[Node]]:
    nodes = list(run.nodes.values())
    if status in RUN_TERMINAL:
        failed = [node for node in nodes if node.status in ("failed", "timed_out")]
        error = run_error(tree, run)
        text = status.replace("_", " ") + (f": {error.message}" if error is not None else "")
        return status, text, failed
    if status == PAUSED:
        error = run_error(tree, run)
        reason = "budget" if tree.state.pausing == "budget" else "paused"
        return reason, error.message if error is not None else "is paused", []
    if status == WAITING:
        return "approval", SENTENCES["approval"], [node for node in nodes if is_open(node)]
    flying = [node for node in tree.state.in_flight.values() if node.run is run]
    return "running", "runs", sorted(flying, key=lambda node: node.order)


def _interesting(tree: RunTree, run: Run) -> Iterator[Node]:
    """Steps that did not simply complete."""
    inside = [other for other in tree.state.runs.values() if _is_below(other, run)]
    for one in inside:
        for node in one.nodes.values():
            if node.status != COMPLETED or node.attempt > 1:
                yield node


def _is_below(run: Run | None, top: Run) -> bool:
    while run is not None and run is not top:
        run = run.parent
    return run is top


def _document(found: Explanation) -> dict[str, object]:
    return {
        "path": found.path,
        "status": found.status,
        "reason": found.reason,
        "blocked_by": list(found.blocked_by),
        "message": found.message,
    }
