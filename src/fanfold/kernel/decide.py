"""Decisions: the next commands, as a function of the state alone.

Theory
    The state of a run is a fold over its log. `evolve` folds one event into the state. It then settles all
    consequences of that event, deterministically, into an *agenda* of commands. `decide` only reads the
    agenda. So a decision is a property of the log: the same events give the same agenda at every point.
    This is why resume, replay, fork and audit need no memory besides the log.

Rules
* The host answers the whole agenda, in order, with one event per command, before it reports anything else.
  The kernel settles the agenda again after every report. It never considers two reports together, so the
  start order depends only on the order of results.
* Pure questions come first: conditions, lists, skips, ends of composites. The kernel assigns slots only
  when none of these is open. This keeps all ready steps in plan order.
* Time comes from the events. A timer is due when an event with that time arrives. The host sends
  `woke` if no other event arrives.
* Total: every unfinished run has at least one of these: a command on the agenda, a running attempt, a timer,
  an open approval, an open wait, a step that waits for files of another run, an interrupted child; or it is
  open for more steps, or paused with a reason. If only a limit blocks the run, the run pauses and names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop

from fanfold.errors import BugError
from fanfold.kernel.admission import enqueue, requeue_starved, start_ready
from fanfold.kernel.commands import Command, Pause, Stop
from fanfold.kernel.events import Failure
from fanfold.kernel.progress import conclude, end_run, sweep
from fanfold.kernel.state import (
    BACK_OFF,
    BUDGET,
    BY_DEFAULT,
    COMPLETED,
    FAILED,
    PAUSED,
    RUN_TERMINAL,
    RUNNING,
    TERMINAL,
    TIMED_OUT,
    WAITING,
    Composite,
    Node,
    State,
    judge,
)
from fanfold.kernel.waits import fire_waits, next_wait


def decide(state: State) -> Sequence[Command]:
    """Return the commands to execute now, in order. Empty: wait for a report or for `next_timer`."""
    return state.agenda


def next_timer(state: State) -> int | None:
    """Return when the host must send `woke` if no other event arrives, in milliseconds since the epoch."""
    if state.root.status in RUN_TERMINAL or state.root.status == PAUSED:
        return None
    due = state.timers[0][0] if state.timers else None
    if state.deferred and (tried := next_wait(state)) is not None:
        due = tried if due is None else min(due, tried)
    if is_ticking(state):
        for heap in (state.run_deadlines, state.scope_deadlines):
            if heap:
                deadline = state.now + heap[0][0] - state.clock
                due = deadline if due is None else min(due, deadline)
    return due


def is_ticking(state: State) -> bool:
    """Whether time counts against run timeouts. It does not while the run is paused or waiting."""
    return state.root.status == RUNNING and not is_waiting(state)


def is_waiting(state: State) -> bool:
    """Whether the run waits only for a person, a timer or a wait (`state.Wait`).

    Then no attempt runs, and no step waits for its next attempt or for files that another run uses.
    """
    busy = _is_at_work(state) or state.backoffs or state.held or state.agenda
    return not busy and _awaits(state)


def _is_at_work(state: State) -> bool:
    """Whether an attempt is chosen or running. Attempts that wait for a person or a budget do not count."""
    return len(state.in_flight) > state.asked + state.out_of_budget


def needs_people(state: State) -> bool:
    """Whether only a person can continue the run.

    The person can approve, resume an interrupted step, or add a step to an open run.
    """
    return is_waiting(state) and state.delays == 0 and state.deferred == 0


def _awaits(state: State) -> bool:
    waiting = state.approvals or state.delays or state.deferred or state.interrupted
    return waiting > 0 or state.root.growing


def settle(state: State) -> None:
    """Fire due timers, assign slots, pause, or keep waiting. Called when the agenda is empty."""
    if state.root.status != RUNNING:
        return
    _fire_due(state)
    if state.agenda:
        return
    if state.pausing:
        if state.executing == 0:
            state.agenda.append(Pause(state.root.id, state.pausing))
        return
    if state.dirty:
        start_ready(state)
    if not _is_at_work(state) and not state.agenda and _is_limited(state):
        _give_up_on_limits(state)
    if not state.agenda and not _has_something_to_wait_for(state):
        raise BugError("kernel.stuck", "the run has nothing to do and nothing to wait for")


def _give_up_on_limits(state: State) -> None:
    """Try each step that a limit blocks once more, then pause with the limit as reason. No attempt runs."""
    requeue_starved(state)
    start_ready(state)
    state.oversize = [
        held for held in state.oversize if not held[1].closing and held[1].status not in TERMINAL
    ]
    # Steps that are deferred behind a probe wait for that probe, which a limit may block.
    deferred = state.deferred and next_wait(state) is not None
    waits = _is_at_work(state) or state.backoffs or state.held or deferred
    if not waits and _is_limited(state):
        state.agenda.append(Pause(state.root.id, BUDGET))


def _is_limited(state: State) -> bool:
    """Whether a limit blocks a ready step, a composite, or a session that has started."""
    return bool(state.starved or state.oversize or state.out_of_budget)


def _has_something_to_wait_for(state: State) -> bool:
    return _is_at_work(state) or bool(state.held) or state.backoffs > 0 or _awaits(state)


# Timers


def _fire_due(state: State) -> None:
    if state.waits:
        fire_waits(state)
    timers = state.timers
    while timers and (timers[0][0] <= state.now or _is_stale(timers[0])):
        entry = heappop(timers)
        if not _is_stale(entry):
            _fire(state, entry[2], entry[3])
    deadlines = state.run_deadlines
    while deadlines and (deadlines[0][0] <= state.clock or state.runs[deadlines[0][1]].ending):
        run = state.runs[heappop(deadlines)[1]]
        if not run.ending and run.status not in RUN_TERMINAL:
            end_run(state, run, TIMED_OUT)
    scopes = state.scope_deadlines
    while scopes and (scopes[0][0] <= state.clock or _is_over(scopes[0][2])):
        scope = heappop(scopes)[2]
        if not _is_over(scope):
            sweep(state, scope, TIMED_OUT)


def _is_over(scope: Composite) -> bool:
    return scope.status in TERMINAL or scope.closing or bool(scope.stopping)


def _is_stale(entry: tuple[int, int, str, Node, int, int]) -> bool:
    _, _, kind, node, attempt, execution = entry
    if node.closing or node.attempt != attempt or node.execution != execution:
        return True
    if kind == "deadline":
        return node.status != RUNNING or node.lost or node.stopping not in ("", "pause")
    return node.status != WAITING


def _fire(state: State, kind: str, node: Node) -> None:
    if kind == BACK_OFF:
        state.backoffs -= 1
        node.reason = ""
        enqueue(state, node)
    elif node.step.traits.waits is not None:
        default = node.step.traits.default
        if node.step.traits.waits == "timer":
            conclude(state, node, COMPLETED, None)
        elif default is not None:
            failure = judge(node, default, BY_DEFAULT)
            conclude(state, node, COMPLETED if failure is None else FAILED, failure, BY_DEFAULT)
        else:
            message = f"{node.path} was not answered in time"
            conclude(state, node, TIMED_OUT, Failure("timeout", "approval.timeout", message, step=node.path))
    else:
        node.stopping = TIMED_OUT
        state.agenda.append(Stop(node.run.id, node.path, node.attempt, node.execution, TIMED_OUT))
