"""Handlers of step events: one function per event of the table `STEP_TRANSITIONS`."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from typing import TypeAlias
from zlib import crc32

from fanfold.kernel.admission import counts_as_agent, enqueue, ledgers_of, release, return_agent, unchoose
from fanfold.kernel.budget import NOTHING, settle_history
from fanfold.kernel.commands import Conclude, Create, Queue, Retry, Skip, Start, Stop
from fanfold.kernel.events import NOTHING_SPENT, Failure, StepEvent, SubagentEvent, Usage
from fanfold.kernel.plan import GroupAction, WorkflowAction
from fanfold.kernel.progress import admit, conclude, enter_scope, finish, limit_scope, open_run, redeem
from fanfold.kernel.state import (
    ASKED,
    BACK_OFF,
    BUDGET,
    CANCELLED,
    COMPLETED,
    DEFERRED,
    EVENT_WORDS,
    FAILED,
    HELD,
    INTERRUPTED,
    RUNNING,
    SKIPPED,
    TIMED_OUT,
    WAITING,
    Composite,
    Node,
    Run,
    Scope,
    State,
    WorkflowCall,
    require_idle,
    take,
    unexpected,
)
from fanfold.kernel.waits import defer, leave_wait, note_result

Report: TypeAlias = StepEvent | SubagentEvent


def is_current(node: Node, data: Report) -> bool:
    """Whether a report is about the current execution."""
    if node.attempt != data.attempt or node.execution != data.execution or node.closing:
        return False
    if node.status == RUNNING:
        return node.holding and not node.lost
    if data.status == ASKED:
        return False  # it is waiting already: an execution asks only once
    return node.status == WAITING and (node.step.traits.waits is not None or node.reason == ASKED)


def _queued(state: State, node: Node, _data: Report) -> None:
    take(state, Queue, node.run.id, node.path)
    if node.unmet == 0:
        admit(state, node)


def _closed(state: State, node: Node, _data: Report) -> None:
    require_idle(state, "a close")
    node.closed = True


def _started(state: State, node: Node, data: Report) -> None:
    command = take(state, Start, node.run.id, node.path)
    assert isinstance(command, Start)
    if data.attempt != command.attempt or data.execution != command.execution:
        raise unexpected(f"{node.path} started as {data.attempt}.{data.execution}, not as decided")
    node.status = RUNNING
    node.started_at = state.now
    if isinstance(node, Scope):
        action = node.step.action
        assert isinstance(action, GroupAction)
        limit_scope(state, node, action.max_concurrency, action.max_agents, None)
        _arm_scope(state, node)
        redeem(state, node)
        enter_scope(state, node, action.steps)
    elif isinstance(node, WorkflowCall):
        assert isinstance(data, StepEvent)
        _open_child(state, node, data.child_run_id)
    else:
        node.lost = False
        if (
            data.execution == 1
        ):  # not when it is chosen: a deferred start leaves the earlier attempt's payments
            node.counted = NOTHING_SPENT
        state.executing += 1
        if node.step.timeout_ms is not None:
            _arm(state, node, "deadline", _time_left(state, node, node.step.timeout_ms))


def _open_child(state: State, node: WorkflowCall, run_id: str) -> None:
    action = node.step.action
    assert isinstance(action, WorkflowAction)
    if not run_id or run_id in state.runs:
        raise unexpected(f"{node.path} needs a new child run id, not {run_id!r}")
    child = Run(run_id, state.plan.workflows[action.workflow], node.run, node)
    node.child = child
    node.entered = True
    open_run(state, child, node)
    _arm_scope(state, node)
    state.agenda.append(Create(child.id, action.workflow, node.run.id, node.path))


def _waiting(state: State, node: Node, data: Report) -> None:
    take(state, Start, node.run.id, node.path)
    node.status = WAITING
    node.started_at = state.now
    if node.step.traits.waits == "timer":
        state.delays += 1
    else:
        state.approvals += 1
    if isinstance(data, StepEvent) and data.due_at:
        _push_timer(state, data.due_at, "answer", node)
    else:
        _arm(state, node, "answer", node.step.timeout_ms)


def _asked(state: State, node: Node, data: Report) -> None:
    """Wait for a person to approve the prepared work of a step. The step keeps its sets meanwhile."""
    require_idle(state, "a question")
    if not is_current(node, data):
        raise unexpected(f"{node.path} has no execution {data.attempt}.{data.execution} that could ask")
    state.executing -= 1
    if node.stopping in (CANCELLED, TIMED_OUT):
        lose(state, node)
        return
    node.status = WAITING
    node.reason = ASKED
    node.stopping = ""
    state.approvals += 1
    state.asked += 1


def _agreed(state: State, node: Node, _data: Report) -> None:
    """Continue the attempt with another execution: a person approved."""
    require_idle(state, "an agreement")
    if node.reason != ASKED:
        raise unexpected(f"{node.path} asks nobody")
    state.approvals -= 1
    state.asked -= 1
    node.reason = ""
    node.agreed = True
    node.status = RUNNING
    lose(state, node)


def _held(state: State, node: Node, _data: Report) -> None:
    """Release the slot of a step until its files are free: a run of another process uses them."""
    take(state, Start, node.run.id, node.path)
    unchoose(state, node)
    node.status = WAITING
    node.reason = HELD
    state.held[node.run.id, node.path] = node


def _freed(state: State, node: Node, _data: Report) -> None:
    """Queue a held step again: its files may be free. It requests them when it starts."""
    require_idle(state, "free files")
    if node.reason != HELD:
        raise unexpected(f"{node.path} does not wait for files")
    free(state, node)


def free(state: State, node: Node) -> None:
    """Queue a step that waits for files."""
    del state.held[node.run.id, node.path]
    node.reason = ""
    enqueue(state, node)


def _ended(state: State, node: Node, data: Report) -> None:
    """Handle completed, failed, timed_out and cancelled: an attempt's report, or the answer to a command."""
    word = EVENT_WORDS.get(data.status, data.status)
    if state.agenda:
        # An end may answer a `Start`: a cache hit, or a prompt that cannot be rendered.
        shape = Start if isinstance(state.agenda[0], Start) else Conclude
        take(state, shape, node.run.id, node.path)
        if shape is Start and data.execution <= 1 and counts_as_agent(state, node):
            return_agent(state, node)
    elif not is_current(node, data):
        raise unexpected(f"{node.path} has no execution {data.attempt}.{data.execution}: mark it late")
    if node.holding and node.status == RUNNING and not node.lost:
        state.executing -= 1
    if data.usage is not None:
        settle_attempt(state, node, data)
    if node.subject:
        note_result(state, node, word)
    error = data.error
    if word == TIMED_OUT and error is None:
        error = Failure(
            "timeout", "step.timeout", f"{node.path} timed out", step=node.path, attempt=node.attempt
        )
    if node.status == RUNNING and node.holding and error is not None and tries_again(node, word, error):
        _back_off(state, node, error)
        return
    node.error = error
    node.output = data.output
    finish(state, node, word)


def tries_again(node: Node, word: str, error: Failure) -> bool:
    """Whether another attempt follows one that ended with this status and failure."""
    retry = node.step.retry
    if word not in (FAILED, TIMED_OUT) or node.attempt >= retry.attempts or not error.retryable:
        return False
    return error.kind in retry.on and not node.run.ending and not _is_stopping(node)


def _is_stopping(node: Node) -> bool:
    if node.stopping == CANCELLED:
        return True
    parent = node.parent
    while parent is not None:
        if parent.stopping:
            return True
        parent = parent.parent
    return False


def _back_off(state: State, node: Node, error: Failure) -> None:
    if node.subject:
        leave_wait(state, node)
    release(state, node)
    node.status = WAITING
    node.closing = False  # a lost execution was being concluded, but a retry follows
    node.error = error
    node.reason = ""
    retry = node.step.retry
    ceiling = min(retry.max_backoff_ms, retry.backoff_ms << min(node.attempt - 1, 20))
    # Jitter without randomness: spread by address, between half of the delay and all of it.
    spread = crc32(f"{node.run.id}/{node.path}#{node.attempt}".encode()) % 1_000
    delay = ceiling // 2 + ceiling * spread // 2_000
    state.agenda.append(Retry(node.run.id, node.path, node.attempt + 1, state.now + delay))


def _retrying(state: State, node: Node, data: Report) -> None:
    take(state, Retry, node.run.id, node.path)
    node.reason = BACK_OFF
    state.backoffs += 1
    _push_timer(state, data.retry_at, BACK_OFF, node)


def _skipped(state: State, node: Node, data: Report) -> None:
    take(state, Skip, node.run.id, node.path)
    finish(state, node, SKIPPED, data.reason)


def _stopping(state: State, node: Node, _data: Report) -> None:
    take(state, Stop, node.run.id, node.path)


def _interrupted(state: State, node: Node, data: Report) -> None:
    """Handle an execution that ended without a result. A new execution of the attempt follows later."""
    require_idle(state, "an interruption")
    if not is_current(node, data):
        raise unexpected(f"{node.path} has no execution {data.attempt}.{data.execution} to interrupt")
    state.executing -= 1
    if data.reason == BUDGET and not state.plan.open and node.stopping not in (CANCELLED, TIMED_OUT):
        node.lost = True
        node.stopping = ""
        node.reason = BUDGET
        state.out_of_budget += 1
    else:
        lose(state, node, waits=data.error is not None and bool(data.error.subject))


def lose(state: State, node: Node, *, waits: bool = False) -> None:
    """Handle the loss of a step's execution.

    In an open run, only a step that `waits` for a provider restarts by itself.
    """
    node.lost = True
    if node.stopping in (CANCELLED, TIMED_OUT):
        failure = None
        if node.stopping == TIMED_OUT:
            failure = Failure("timeout", "step.timeout", f"{node.path} timed out", step=node.path)
        conclude(state, node, node.stopping, failure)
        return
    node.stopping = ""
    if node.reason == BUDGET:
        node.reason = ""
        state.out_of_budget -= 1
    if state.plan.open and not waits:
        _wait_to_be_resumed(state, node)
    elif not state.pausing:
        _restart(state, node)


def _wait_to_be_resumed(state: State, node: Node) -> None:
    if node.subject:
        leave_wait(state, node)
    release(state, node)
    node.lost = True
    node.status = WAITING
    node.reason = INTERRUPTED
    state.interrupted += 1


def _restart(state: State, node: Node) -> None:
    node.execution += 1
    kind = node.step.type
    state.agenda.append(Start(node.run.id, node.path, kind, node.attempt, node.execution, *node.reservation))


def settle_attempt(state: State, node: Node, data: Report) -> None:
    """Count the total spending of an attempt, less the payments that its sessions reported before."""
    assert data.usage is not None, "the caller looked"
    role = node.step.traits.role
    if role is not None:
        settle_history(state.history, role, data.usage)
    counted = node.counted if data.attempt == node.attempt else NOTHING_SPENT
    spend(state, node, data.usage.beyond(counted))


def spend(state: State, node: Node, usage: Usage) -> None:
    """Count spending in every ledger. A reservation of the attempt shrinks by the same amount."""
    node.run.spend(usage)
    used = (0, 0)
    if node.reservation != NOTHING:
        tokens, micro_usd = node.reservation
        used = min(tokens, usage.tokens), min(micro_usd, usage.micro_usd or 0)
        node.reservation = (tokens - used[0], micro_usd - used[1])
    for ledger in ledgers_of(state, node):
        ledger.release(used)
        ledger.spend(usage)


def _time_left(state: State, node: Node, timeout_ms: int) -> int:
    """Return the time until the deadline of a started step.

    After a restart a session continues, so it keeps its deadline. Other steps start over with full time.
    """
    if node.execution <= 1 or node.step.traits.role is None:
        node.deadline = state.clock + timeout_ms
    return max(0, node.deadline - state.clock)


def _arm_scope(state: State, node: Composite) -> None:
    if node.step.timeout_ms is not None:
        state.timer_count += 1
        heappush(state.scope_deadlines, (state.clock + node.step.timeout_ms, state.timer_count, node))


def _arm(state: State, node: Node, kind: str, timeout_ms: int | None) -> None:
    if timeout_ms is not None:
        _push_timer(state, state.now + timeout_ms, kind, node)


def _push_timer(state: State, due: int, kind: str, node: Node) -> None:
    state.timer_count += 1
    heappush(state.timers, (due, state.timer_count, kind, node, node.attempt, node.execution))


STEP_HANDLERS: dict[str, Callable[[State, Node, Report], None]] = {
    "queued": _queued,
    "started": _started,
    "waiting": _waiting,
    ASKED: _asked,
    "agreed": _agreed,
    HELD: _held,
    "freed": _freed,
    DEFERRED: defer,
    COMPLETED: _ended,
    FAILED: _ended,
    TIMED_OUT: _ended,
    CANCELLED: _ended,
    SKIPPED: _skipped,
    "retrying": _retrying,
    "stopping": _stopping,
    "interrupted": _interrupted,
    "closed": _closed,
}
