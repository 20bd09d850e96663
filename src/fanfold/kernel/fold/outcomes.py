"""What came of it: how the ends of children make the end of their parent, and of a run.

Rules
* A composite that was told to stop ended so; else its failure is that of its first failed child in plan
  order; else it completed.
* An iteration that failed is false, unless its failure is of a class that another try would not change, or
  a `stop`: then it is the failure of its loop.
* A run that a step of its plan ended is what that step says.
* Any other is `completed` only if nothing in it failed, timed out, was cancelled, or was skipped for a
  failure that was not tolerated; it `failed` if a `stop` fired or nothing completed; anything between is
  `partial`.
"""

from __future__ import annotations

from fanfold.kernel.commands import Conclude, Finish
from fanfold.kernel.events import Failure
from fanfold.kernel.fold.tolerance import untolerated
from fanfold.kernel.lifecycle import CANCELLED, COMPLETED, FAILED, PARTIAL, SKIPPED, TIMED_OUT, WAITING
from fanfold.kernel.nodes import Composite, Loop, Node, Run, State, WorkflowCall
from fanfold.kernel.plan import GroupAction

REPEATED = frozenset(("agent", "tool", "timeout", "invalid_output"))
"""Classes of failures that make an iteration false; any other ends the loop."""


def wind_up(state: State, node: Composite) -> None:
    """All children have ended: conclude the composite, or finish the run whose top scope it is."""
    run = node.run
    if node.closing or (node is run.scope and run.growing and not run.ending):
        return
    if node is run.scope:
        node.closing = True
        state.agenda.append(Finish(run.id, *_run_outcome(run)))
    elif node.stopping:
        conclude(state, node, TIMED_OUT if node.stopping == TIMED_OUT else CANCELLED, _stop_failure(node))
    elif node.failed_child is not None:
        conclude(state, node, FAILED, failure_of(node.failed_child))
    else:
        conclude(state, node, COMPLETED, None)


def can_be_repeated(loop: Loop, body: Node) -> bool:
    """Whether an iteration that failed leaves its loop to the next one."""
    repeat, action = loop.step.repeat, loop.step.action
    assert repeat is not None
    if isinstance(action, GroupAction) and action.phase and repeat.max_iterations == 1:
        return False  # a phase that does not iterate is no loop to whoever wrote it
    if body.status not in (FAILED, TIMED_OUT) or body.step.on_failure == "stop":
        return False
    return failure_of(body).kind in REPEATED


def conclude(state: State, node: Node, status: str, error: Failure | None, reason: str = "") -> None:
    node.closing = True
    attempt, execution = (node.attempt, node.execution) if _is_under_way(node) else (0, 0)
    state.agenda.append(Conclude(node.run.id, node.path, status, attempt, execution, error, reason))


def _is_under_way(node: Node) -> bool:
    """Whether an attempt ends with the step: one that waits for its next has had the result of its last."""
    asks = node.status == WAITING and node.step.traits.waits is not None
    return node.holding or node.lost or asks or isinstance(node, Composite)


def failure_of(node: Node) -> Failure:
    """The failure a parent inherits from a child: the root cause, with its address."""
    while node.error is None and node.status == SKIPPED and node.blocked_by is not None:
        node = node.blocked_by
    if node.error is not None:
        return node.error
    return Failure(CANCELLED, f"step.{node.status}", f"{node.path} was {node.status}", step=node.path)


def _stop_failure(node: Node) -> Failure | None:
    if node.stopping == TIMED_OUT:
        limit = node.step.timeout_ms
        return Failure("timeout", "step.timeout", f"{node.path} took longer than {limit} ms", step=node.path)
    return None


def _run_outcome(run: Run) -> tuple[str, Failure | None]:
    first = run.scope.failed_child
    error = failure_of(first) if first is not None else None
    if run.ending == CANCELLED:
        return CANCELLED, None
    if run.ending == TIMED_OUT:
        return TIMED_OUT, Failure("timeout", "run.timeout", "the run took longer than its limit")
    ended_by = run.ended_by
    if ended_by is not None and ended_by.step.traits.ends is not None:
        return ended_by.step.traits.ends, ended_by.error
    if run.ending == "stop":
        return FAILED, failure_of(run.stopped_by) if run.stopped_by is not None else error
    if run.unsuccessful == 0 or (run.completed and next(untolerated(run), None) is None):
        return COMPLETED, None
    return (PARTIAL if run.completed else FAILED), error


def call_outcome(call: WorkflowCall, child: Run) -> tuple[str, Failure | None]:
    """What the end of a child run means for the step that called it."""
    if call.stopping == TIMED_OUT:
        return TIMED_OUT, _stop_failure(call)
    if child.status in (COMPLETED, CANCELLED):
        return child.status, None
    inner = child.error.message if child.error is not None else ""
    message = f"child run {child.id} is {child.status}" + (f": {inner}" if inner else "")
    kind = "timeout" if child.status == TIMED_OUT else "agent"
    failure = Failure(kind, f"run.{child.status}", message, retryable=False, step=call.path)
    return (TIMED_OUT if child.status == TIMED_OUT else FAILED), failure
