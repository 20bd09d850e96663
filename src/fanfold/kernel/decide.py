"""What to do next, as a function of the state alone.

The theory
    A run is a fold over its log. `evolve` folds one event in; whatever that makes possible is settled at
    once, deterministically, into an *agenda* of commands. `decide` only reads the agenda. So a decision
    is a property of the log: folding the same events again gives the same agenda at every point, which
    is why resume, replay, fork and audit need no memory besides the log.

Rules
* The host answers the whole agenda, in order, one event a command, before it reports anything else.
  After every report the agenda is settled anew; two reports are never weighed together, so the start
  order depends on the order of results and on nothing else.
* Pure questions come first: conditions, lists, skips, ends of composites. Slots are handed out only
  when none of these is open, so that plan order holds among everything that is ready.
* Time is what the events say. A timer is due when an event with that time arrives; the host sends
  `woke` when nothing else does.
* Total: a run that is not over has a command on the agenda, an attempt running, a timer, an open
  approval, a step that waits for files of another run, an interrupted child, is open for more steps, or
  is paused with a reason. If a limit is all that holds it, it pauses and names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop

from fanfold.errors import BugError
from fanfold.kernel.commands import Command, Pause, Stop
from fanfold.kernel.events import Failure
from fanfold.kernel.fold.admission import enqueue, requeue_starved, start_ready
from fanfold.kernel.fold.outcomes import conclude
from fanfold.kernel.fold.sweep import end_run, sweep
from fanfold.kernel.lifecycle import (
    BACK_OFF,
    COMPLETED,
    FAILED,
    PAUSED,
    RUN_TERMINAL,
    RUNNING,
    TERMINAL,
    TIMED_OUT,
    WAITING,
)
from fanfold.kernel.nodes import Composite, Node, State
from fanfold.kernel.replies import BY_DEFAULT, judge


def decide(state: State) -> Sequence[Command]:
    """The commands to carry out now, in order. Empty: wait for a report or for `next_timer`."""
    return state.agenda


def next_timer(state: State) -> int | None:
    """When the host must wake the run if nothing else happens, in milliseconds since the epoch."""
    if state.root.status in RUN_TERMINAL or state.root.status == PAUSED:
        return None
    due = state.timers[0][0] if state.timers else None
    if is_ticking(state):
        for heap in (state.run_deadlines, state.scope_deadlines):
            if heap:
                deadline = state.now + heap[0][0] - state.clock
                due = deadline if due is None else min(due, deadline)
    return due


def is_ticking(state: State) -> bool:
    """Whether time counts against run timeouts: not while paused or only people are waited for."""
    return state.root.status == RUNNING and not is_waiting(state)


def is_waiting(state: State) -> bool:
    """Only people or the time can go on: nothing runs, and no step waits for its next attempt, or for files
    that another run works on.
    """
    busy = _is_at_work(state) or state.backoffs or state.held or state.agenda
    return not busy and _awaits(state)


def _is_at_work(state: State) -> bool:
    """Whether an attempt was chosen or runs; one that waits for a person to agree to it does not."""
    return len(state.in_flight) > state.asked


def needs_people(state: State) -> bool:
    """Only people can go on: by an answer, by taking up what was interrupted, by adding to an open run."""
    return is_waiting(state) and state.delays == 0


def _awaits(state: State) -> bool:
    return state.approvals > 0 or state.delays > 0 or state.interrupted > 0 or state.root.growing


def settle(state: State) -> None:
    """Called when the agenda is empty: fire what is due, hand out slots, pause, or go on waiting."""
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
    if not _is_at_work(state) and not state.agenda and (state.starved or state.oversize):
        _give_up_on_limits(state)
    if not state.agenda and not _has_something_to_wait_for(state):
        raise BugError("kernel.stuck", "the run has nothing to do and nothing to wait for")


def _give_up_on_limits(state: State) -> None:
    """Nothing runs and a limit holds the rest: try each once more, then pause and name the limit."""
    requeue_starved(state)
    start_ready(state)
    state.oversize = [
        held for held in state.oversize if not held[1].closing and held[1].status not in TERMINAL
    ]
    waits = _is_at_work(state) or state.backoffs or state.held
    if not waits and (state.starved or state.oversize):
        state.agenda.append(Pause(state.root.id, "budget"))


def _has_something_to_wait_for(state: State) -> bool:
    return _is_at_work(state) or bool(state.held) or state.backoffs > 0 or _awaits(state)


# Timers


def _fire_due(state: State) -> None:
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
            message = f"nobody answered {node.path} in time"
            conclude(state, node, TIMED_OUT, Failure("timeout", "approval.timeout", message, step=node.path))
    else:
        node.stopping = TIMED_OUT
        state.agenda.append(Stop(node.run.id, node.path, node.attempt, node.execution, TIMED_OUT))
