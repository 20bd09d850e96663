"""Early ends: a step, a scope, or a whole run, is wound up before its steps are done.

What runs is asked to stop, what does not run is cancelled, and the composites then end by the ordinary
rule. So a parent is never terminal before its descendants, whatever ended it. Where a step of the plan ended
the run, as its author meant it to, what had not begun is skipped instead.
"""

from __future__ import annotations

from fanfold.kernel.commands import Command, Evaluate, Queue, Retry, Skip, Start, Stop
from fanfold.kernel.fold.admission import unchoose
from fanfold.kernel.fold.outcomes import conclude, wind_up
from fanfold.kernel.lifecycle import CANCELLED, ENDED, PENDING, READY, RUNNING, TERMINAL, WAITING
from fanfold.kernel.nodes import CALL, Composite, Node, Run, State, WorkflowCall


def end_run(state: State, run: Run, why: str) -> None:
    """Wind a run up early. `why`: cancelled, timed_out, stop, or end (a step of the plan says so)."""
    run.ending = why
    sweep(state, run.scope, CANCELLED, skipped_in=run if why == ENDED else None)


def sweep(state: State, top: Node, reason: str, skipped_in: Run | None = None) -> None:
    """Stop what runs at or below `top` and cancel what does not; composites then end by themselves.

    What has not begun in the run `skipped_in` is skipped instead.
    """
    state.agenda = type(state.agenda)(
        command for command in state.agenda if not _obsolete(state, command, top)
    )
    stack: list[Node] = [top]
    leaves: list[Node] = []
    composites: list[Composite] = []
    while stack:
        node = stack.pop()
        if node.status in TERMINAL or node.closing:
            continue
        if node.run is skipped_in and _has_not_begun(node):
            _skip(state, node)
        elif isinstance(node, Composite):
            node.stopping = node.stopping or (reason if node is top else CANCELLED)
            composites.append(node)
            if isinstance(node, WorkflowCall) and node.child is not None and not node.child.ending:
                node.child.ending = CANCELLED
            stack.extend(reversed(node.children))
        else:
            leaves.append(node)
    for leaf in leaves:
        _stop_leaf(state, leaf)
    for composite in reversed(composites):
        if composite.open == 0 and not composite.closing and composite.kind != CALL:
            wind_up(state, composite)
        elif not composite.entered and composite.kind == CALL and not composite.closing:
            conclude(state, composite, CANCELLED, None)


def _has_not_begun(node: Node) -> bool:
    """Whether nothing of it is under way: it waits for its turn, for a person or for a time."""
    if isinstance(node, Composite):
        return node.status in (PENDING, READY) and not node.entered
    asked = node.status == WAITING and node.holding  # it has begun, and waits for a person to agree
    return node.status in (PENDING, READY, WAITING) and not node.lost and not asked


def _skip(state: State, node: Node) -> None:
    if node.holding:
        unchoose(state, node)
    node.closing = True
    state.agenda.append(Skip(node.run.id, node.path, "ended"))


def _obsolete(state: State, command: Command, top: Node) -> bool:
    if not isinstance(command, Evaluate | Queue | Start | Retry):
        return False
    node: Node | None = state.runs[command.run].nodes[command.step]
    while node is not None and node is not top:
        node = node.parent
    return node is top


def _stop_leaf(state: State, leaf: Node) -> None:
    if leaf.status == RUNNING and not leaf.lost:
        if leaf.stopping in ("", "pause"):
            command = Stop(leaf.run.id, leaf.path, leaf.attempt, leaf.execution, CANCELLED)
            state.agenda.append(command)
        leaf.stopping = CANCELLED  # also where it was asked before for its time: it is not tried again
        return
    if leaf.status == READY and leaf.holding:
        unchoose(state, leaf)
    conclude(state, leaf, CANCELLED, None)
