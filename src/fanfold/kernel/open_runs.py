"""Open runs: a client adds, continues, closes and resumes steps while the run is running.

Rules
* A client adds a step to the top level. The step may depend on steps added before it. It is then scheduled
  like any other step, in plan order behind all earlier steps.
* The next turn of a child is a separate step. It runs `after` the turn before, whatever status that turn has.
  So a message to a running child waits until its current turn ends. No turn can follow a closed step.
* A step that lost its process stays interrupted until a client resumes it. So a new owner of an open run
  spends nothing by itself.
* A step that an agent of the run requested ends with the step of that agent.
* The run finishes after an end request, when its last step has ended; or by cancellation.
"""

from __future__ import annotations

from collections.abc import Sequence

from fanfold.kernel.admission import enqueue
from fanfold.kernel.commands import Queue
from fanfold.kernel.events import CloseRequested, EndRequested, ResumeRequested, StepAdded
from fanfold.kernel.plan import Step, WorkflowAction
from fanfold.kernel.progress import add_step, sweep, wind_up
from fanfold.kernel.state import (
    CANCELLED,
    INTERRUPTED,
    RUNNING,
    TERMINAL,
    WAITING,
    Node,
    Run,
    State,
    require_idle,
    unexpected,
)


def why_not_added(run: Run, step: Step) -> str:
    """Return why this step cannot be added to the run now; empty if it can."""
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
    """Return the paths that a child's next turn waits for: the last turn, and earlier unfinished ones.

    A close ends queued turns at once, while the running turn before them is still stopping.
    """
    *before, last = turns
    return (*(turn.path for turn in before if turn.status not in TERMINAL), last.path)


def add(state: State, run: Run, data: StepAdded) -> None:
    """Add a step to an open run and put its `Queue` on the agenda."""
    require_idle(state, "a new step")
    refusal = why_not_added(run, data.step)
    if refusal:
        raise unexpected(refusal)
    node = add_step(state, run.scope, data.step)
    state.agenda.append(Queue(run.id, node.path))


def close(state: State, run: Run, data: CloseRequested) -> None:
    """Cancel a step and the turns queued behind it, last turn first, so that no queued turn starts."""
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
    """Put an interrupted step of an open run back into the queue."""
    require_idle(state, "a resume")
    node = run.nodes.get(data.step)
    if node is None or node.status != WAITING or node.reason != INTERRUPTED:
        raise unexpected(f"{data.step} was not interrupted")
    state.interrupted -= 1
    node.reason = ""
    enqueue(state, node)


def end(state: State, run: Run, _data: EndRequested) -> None:
    """Accept no more steps; finish the run if all its steps have ended."""
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
