"""What each kind of `workflow_event` does to a run and to the tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fanfold.errors import BugError
from fanfold.kernel.commands import Create, Evaluate, Finish, Pause, Skip, Start, Stop
from fanfold.kernel.events import (
    Added,
    CancelRequested,
    CloseRequested,
    Created,
    Decided,
    EndRequested,
    Failure,
    Finished,
    Folded,
    Forked,
    Paused,
    PauseRequested,
    Raised,
    Refused,
    Resumed,
    ResumeRequested,
    Started,
    Woke,
    WorkflowEvent,
)
from fanfold.kernel.fold.admission import requeue_starved
from fanfold.kernel.fold.agenda import require_idle, take, unexpected
from fanfold.kernel.fold.open_runs import add, close, end, resume_child
from fanfold.kernel.fold.outcomes import call_outcome, conclude, failure_of
from fanfold.kernel.fold.progress import (
    enter_scope,
    expand_map,
    next_iteration,
    open_step,
    redeem,
    resume_oversize,
    start_fold,
)
from fanfold.kernel.fold.step_events import free, lose
from fanfold.kernel.fold.sweep import end_run
from fanfold.kernel.fold.tolerance import is_unsuccessful
from fanfold.kernel.lifecycle import CANCELLED, COMPLETED, FAILED, PAUSED, PENDING, RUNNING, STEP_TRANSITIONS
from fanfold.kernel.nodes import Loop, Map, Node, Quota, Run, State


def _created(state: State, run: Run, _data: Created) -> None:
    """The child's log exists; its steps may begin."""
    take(state, Create, run.id)
    run.status = RUNNING
    assert run.call is not None
    redeem(state, run.call)
    if not run.scope.closing:  # else it was cancelled before it began, and only finishes
        enter_scope(state, run.scope, run.plan.steps)


def _run_started(state: State, run: Run, _data: Started | CancelRequested) -> None:
    run.status = RUNNING
    enter_scope(state, run.scope, run.plan.steps)


def _decided(state: State, run: Run, data: Decided) -> None:
    command = take(state, Evaluate, run.id, data.step)
    assert isinstance(command, Evaluate)
    if data.what != command.what:
        raise unexpected(f"{data.step}: {data.what} was decided, {command.what} is due")
    node = run.nodes[data.step]
    allowed = STEP_TRANSITIONS.get((node.status, data.kind))
    if allowed is None:
        raise unexpected(f"{node.path} is {node.status} and nothing can be decided about it")
    _apply(state, node, data)
    if node.status not in allowed:
        raise BugError("kernel.bad_transition", f"{node.path}: what was decided led to {node.status}")


def _apply(state: State, node: Node, data: Decided) -> None:
    if data.error is not None:
        conclude(state, node, FAILED, data.error)
    elif isinstance(node, Map):
        if not isinstance(data.value, int) or not 0 <= data.value <= node.step.max_items:
            raise unexpected(f"{node.path}: {data.value} items, {node.step.max_items} allowed")
        expand_map(state, node, data.value)
    elif data.what == "until":
        assert isinstance(node, Loop)
        _decided_until(state, node, bool(data.value))
    elif data.value is False:
        node.closing = True
        state.agenda.append(Skip(node.run.id, node.path, "condition"))
    else:
        if data.read_set is not None:
            node.read_set = data.read_set
        if data.write_set is not None:
            node.write_set = data.write_set
        open_step(state, node)


def _decided_until(state: State, loop: Loop, passed: bool) -> None:
    repeat, body = loop.step.repeat, loop.children[loop.iteration - 1]
    assert repeat is not None
    failed = is_unsuccessful(body)
    passed = passed and not failed
    if passed and loop.step.fold is not None:
        start_fold(state, loop)
    elif passed:
        conclude(state, loop, COMPLETED, None)
    elif loop.iteration < repeat.max_iterations:
        next_iteration(state, loop)
    elif repeat.on_exhausted == "continue":
        loop.exhausted = True
        conclude(state, loop, COMPLETED, None)
    else:
        times = "1 iteration" if loop.iteration == 1 else f"{loop.iteration} iterations"
        message = f"{loop.path} did not pass its gate in {times}"
        if failed:
            message += (
                f"; in the last, {body.path} {body.status.replace('_', ' ')}: {failure_of(body).message}"
            )
        failure = Failure("agent", "step.not_converged", message, retryable=False, step=loop.path)
        conclude(state, loop, FAILED, failure)


def _woke(state: State, _run: Run, _data: Woke) -> None:
    require_idle(state, "the time")


def _pause_requested(state: State, _run: Run, data: PauseRequested) -> None:
    require_idle(state, "a pause")
    state.pausing = data.reason
    for node in sorted(state.in_flight.values(), key=lambda node: node.order):
        if node.status == RUNNING and not node.lost and not node.stopping:
            node.stopping = "pause"
            state.agenda.append(Stop(node.run.id, node.path, node.attempt, node.execution, "pause"))


def _paused(state: State, run: Run, data: Paused) -> None:
    take(state, Pause, run.id)
    run.status = PAUSED
    state.pausing = data.reason


def _resumed(state: State, run: Run, data: Resumed) -> None:
    """A new owner, or the end of a pause: whatever was running lost its process (see `lose`)."""
    if data.epoch <= state.epoch:
        raise BugError("lease.stale_epoch", f"epoch {data.epoch} is not newer than {state.epoch}")
    state.epoch = data.epoch
    if data.raised is not None:
        _raise_limits(state, data.raised)
    state.pausing = ""
    if run.status == PAUSED:
        run.status = RUNNING
    _drop_what_died(state)
    state.executing = 0
    for node in sorted(state.in_flight.values(), key=lambda node: node.order):
        if node.status == RUNNING and not node.closing:
            lose(state, node)
    requeue_starved(state)
    resume_oversize(state)
    for node in tuple(state.held.values()):  # what the last owner waited for, this one has not asked for yet
        free(state, node)
    state.dirty = True


def _drop_what_died(state: State) -> None:
    """Decided but never recorded: stops of lost processes, and restarts that are decided anew."""
    kept = type(state.agenda)()
    for command in state.agenda:
        if isinstance(command, Start) and _is_restart(state, command):
            state.runs[command.run].nodes[command.step].execution -= 1
        elif not isinstance(command, Stop | Pause):
            kept.append(command)
    state.agenda = kept


def _is_restart(state: State, command: Start) -> bool:
    """Whether the step runs by the log; one that a person resumed is ready, and its choice holds."""
    return command.execution > 1 and state.runs[command.run].nodes[command.step].status == RUNNING


def _raise_limits(state: State, raised: Raised) -> None:
    state.max_agents = max(state.max_agents, raised.max_agents or 0)
    state.max_steps = max(state.max_steps, raised.max_steps or 0)
    ledger = state.ledger
    if raised.budget_tokens is not None:
        ledger.max_tokens = max(ledger.max_tokens or 0, raised.budget_tokens)
    if raised.budget_micro_usd is not None:
        ledger.max_micro_usd = max(ledger.max_micro_usd or 0, raised.budget_micro_usd)
        ledger.unpriced = False  # whoever raises it was told why it stopped
    state.budgeted = state.budgeted or ledger.limited
    state.raised_agents = max(state.raised_agents, raised.max_agents or 0)
    for quota in state.quotas:
        _raise_quota(quota, raised)


def _raise_quota(quota: Quota, raised: Raised) -> None:
    """A raise is for the tree: a scope's own cap must not hold what the person just allowed."""
    if quota.max_agents is not None:
        quota.max_agents = max(quota.max_agents, raised.max_agents or 0)
    ledger = quota.ledger
    if ledger is not None and ledger.max_tokens is not None:
        ledger.max_tokens = max(ledger.max_tokens, raised.budget_tokens or 0)
    if ledger is not None and ledger.max_micro_usd is not None and raised.budget_micro_usd is not None:
        ledger.max_micro_usd = max(ledger.max_micro_usd, raised.budget_micro_usd)
        ledger.unpriced = False


def _cancel_requested(state: State, run: Run, data: CancelRequested) -> None:
    require_idle(state, "a cancellation")
    if run.ending:
        return
    if run is state.root:
        state.pausing = ""
    if run.status == PENDING:
        _run_started(state, run, data)
    if state.root.status == PAUSED:
        state.root.status = RUNNING
    end_run(state, run, CANCELLED)


def _finished(state: State, run: Run, data: Finished) -> None:
    command = take(state, Finish, run.id)
    assert isinstance(command, Finish)
    if data.status != command.status:
        raise unexpected(f"run {run.id} finished as {data.status}, decided was {command.status}")
    run.status = data.status
    run.output = data.output
    run.error = data.error
    run.scope.status = data.status
    if run.call is not None:
        run.call.open = 0
        conclude(state, run.call, *call_outcome(run.call, run))


def _noted(_state: State, _run: Run, _data: Folded | Forked | Refused) -> None:
    """Evidence."""


RUN_HANDLERS: dict[type[WorkflowEvent], Callable[[State, Run, Any], None]] = {
    Created: _created,
    Forked: _noted,
    Started: _run_started,
    Decided: _decided,
    Woke: _woke,
    PauseRequested: _pause_requested,
    Paused: _paused,
    Resumed: _resumed,
    CancelRequested: _cancel_requested,
    Added: add,
    CloseRequested: close,
    ResumeRequested: resume_child,
    EndRequested: end,
    Refused: _noted,
    Folded: _noted,
    Finished: _finished,
}
"""Each handler takes the struct of its row."""
