"""Open runs: steps are added while the run goes on, given a next turn, closed, and taken up again.

Rules
* A step is added to the top level and may depend on those before it. From there on it is a step like any
  other: it takes its place in the queue, in plan order behind all that were added before.
* The next turn of a child is a step of its own that comes `after` the one before, however that ended; so
  what is said to a running child waits behind its turn. Nothing can be added behind a closed one.
* What lost its process stays interrupted until somebody asks for it: taking an open run over spends nothing.
* What an agent of the run asked for ends with it.
* The run ends when somebody says so and its last step has ended, or by cancellation.
"""

from __future__ import annotations

from collections.abc import Sequence

from fanfold.kernel.commands import Queue
from fanfold.kernel.events import Added, CloseRequested, EndRequested, ResumeRequested
from fanfold.kernel.fold.admission import enqueue
from fanfold.kernel.fold.agenda import require_idle, unexpected
from fanfold.kernel.fold.outcomes import wind_up
from fanfold.kernel.fold.progress import add_step
from fanfold.kernel.fold.sweep import sweep
from fanfold.kernel.lifecycle import CANCELLED, INTERRUPTED, RUNNING, TERMINAL, WAITING
from fanfold.kernel.nodes import Node, Run, State
from fanfold.kernel.plan import Step, WorkflowAction


def why_not_added(run: Run, step: Step) -> str:
    """What speaks against adding this step to a run now; nothing: it may be added."""
    if not run.growing or run.ending:
        return f"run {run.id} takes no more steps"
    if step.id in run.nodes:
        return f"there is a step {step.id} already"
    for name in step.depends_on + step.after:
        node = run.nodes.get(name)
        if node is None or node.parent is not run.scope:
            return f"there is no step {name} to come after"
        if node.closed and name in step.after:
            return f"{name} is closed"
    parent = run.nodes.get(step.parent)
    if step.parent and (parent is None or parent.status != RUNNING or parent.stopping):
        return f"{step.parent} does not run"
    action = step.action
    if isinstance(action, WorkflowAction) and action.workflow not in run.plan.workflows:
        return f"the run knows no workflow {action.workflow}"
    before = action.traits.continues
    if before is not None and before not in step.depends_on + step.after:
        return f"{step.id} continues {before} without waiting for it"
    return ""


def comes_after(turns: Sequence[Node]) -> tuple[str, ...]:
    """What a child's next turn waits for: the last one, and any before it that still run.

    Turns that were queued when their child was closed have ended while the one before them is being stopped.
    """
    *before, last = turns
    return (*(turn.path for turn in before if turn.status not in TERMINAL), last.path)


def add(state: State, run: Run, data: Added) -> None:
    require_idle(state, "a new step")
    refusal = why_not_added(run, data.step)
    if refusal:
        raise unexpected(refusal)
    node = add_step(state, run.scope, data.step)
    state.agenda.append(Queue(run.id, node.path))


def close(state: State, run: Run, data: CloseRequested) -> None:
    """The step ends, and so do the turns queued behind it: last first, so that none of them begins."""
    require_idle(state, "a close")
    node = _open_child(run, data.step)
    for turn in reversed(_turns_from(node)):
        if turn.status not in TERMINAL and not turn.closing:
            sweep(state, turn, CANCELLED)


def _turns_from(node: Node) -> list[Node]:
    turns = [node]
    for turn in turns:
        turns += [next_ for next_ in turn.dependents if turn.step.id in next_.step.after]
    return turns


def resume_child(state: State, run: Run, data: ResumeRequested) -> None:
    require_idle(state, "a resume")
    node = run.nodes.get(data.step)
    if node is None or node.status != WAITING or node.reason != INTERRUPTED:
        raise unexpected(f"{data.step} was not interrupted")
    state.interrupted -= 1
    node.reason = ""
    enqueue(state, node)


def end(state: State, run: Run, _data: EndRequested) -> None:
    require_idle(state, "an end")
    if not run.plan.open:
        raise unexpected(f"run {run.id} ends by itself")
    run.growing = False
    if run.scope.open == 0:
        wind_up(state, run.scope)


def _open_child(run: Run, path: str) -> Node:
    node = run.nodes.get(path)
    if node is None or not run.plan.open or node.parent is not run.scope:
        raise unexpected(f"{path} is no step that was added to run {run.id}")
    return node
