"""The fold: `evolve(state, event)` is the only way a run changes.

Theory
    A run tree is a tree of scopes. Every step instance is a node with one status. `state` holds the tables
    of all transitions. An event that fits no transition is a bug: the fold raises an error and never
    guesses. Terminal statuses are final.

    An event is either the answer to the first command of the agenda or, if the agenda is empty, a
    report from outside: a result, an answer, a request, or the time (`woke`). `mark_late` marks a report
    about an attempt that has ended as `late`. The fold counts it and its spending; nothing else changes.

    Folding is incremental: the cost of an event depends on the nodes it touches (a node, its dependents,
    its parent), never on the size of the plan.

Time comes from the `at` of the events. It never runs backwards here, even if clocks did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappush
from typing import Any

import msgspec

from fanfold.errors import BugError, WorldError
from fanfold.kernel.admission import enqueue, requeue_starved
from fanfold.kernel.commands import Create, Evaluate, Finish, Pause, Queue, Skip, Start, Stop
from fanfold.kernel.decide import is_ticking, settle
from fanfold.kernel.events import (
    LOG_VERSION,
    CancelRequested,
    CloseRequested,
    EndRequested,
    Event,
    Evidence,
    ExecutionRef,
    Failure,
    LimitsRaised,
    PauseRequested,
    Payment,
    PhaseFolded,
    RequestRefused,
    ResumeRequested,
    RunCreated,
    RunFinished,
    RunForked,
    RunPaused,
    RunResumed,
    RunStarted,
    StepAdded,
    StepData,
    TimerFired,
    ValueDecided,
    WaitClosed,
    WaitOpened,
    WorkflowEvent,
)
from fanfold.kernel.plan import GroupAction, Plan, Step, WorkflowAction
from fanfold.kernel.progress import (
    add_step,
    call_outcome,
    conclude,
    end_run,
    enter_scope,
    expand_map,
    failure_of,
    is_unsuccessful,
    next_iteration,
    open_run,
    open_step,
    redeem,
    resume_oversize,
    start_fold,
    sweep,
    wind_up,
)
from fanfold.kernel.state import (
    ASKED,
    CANCELLED,
    COMPLETED,
    EVENT_WORDS,
    FAILED,
    INTERRUPTED,
    LEAF,
    PAUSED,
    PENDING,
    RUN_TRANSITIONS,
    RUNNING,
    STEP_TRANSITIONS,
    TERMINAL,
    TIMED_OUT,
    WAITING,
    Loop,
    Map,
    Node,
    Quota,
    Run,
    State,
    require_idle,
    take,
    unexpected,
)
from fanfold.kernel.step_transitions import STEP_HANDLERS, free, is_current, lose, settle_attempt, spend
from fanfold.kernel.waits import close_wait, open_wait, resume_waits

# -----------------------------------------------------------------------------------------------------------
# Handlers of each kind of `workflow_event`.


def _created(state: State, run: Run, _data: RunCreated) -> None:
    """Start the steps of a child run: its log exists."""
    take(state, Create, run.id)
    run.status = RUNNING
    assert run.call is not None
    redeem(state, run.call)
    if not run.scope.closing:  # else it was cancelled before it started, and only finishes
        enter_scope(state, run.scope, run.plan.steps)


def _run_started(state: State, run: Run, _data: RunStarted | CancelRequested) -> None:
    run.status = RUNNING
    enter_scope(state, run.scope, run.plan.steps)


def _decided(state: State, run: Run, data: ValueDecided) -> None:
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


def _apply(state: State, node: Node, data: ValueDecided) -> None:
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


def _woke(state: State, _run: Run, _data: TimerFired) -> None:
    require_idle(state, "the time")


def _pause_requested(state: State, _run: Run, data: PauseRequested) -> None:
    require_idle(state, "a pause")
    state.pausing = data.reason
    for node in sorted(state.in_flight.values(), key=lambda node: node.order):
        if node.status == RUNNING and not node.lost and not node.stopping:
            node.stopping = "pause"
            state.agenda.append(Stop(node.run.id, node.path, node.attempt, node.execution, "pause"))


def _paused(state: State, run: Run, data: RunPaused) -> None:
    take(state, Pause, run.id)
    run.status = PAUSED
    state.pausing = data.reason


def _resumed(state: State, run: Run, data: RunResumed) -> None:
    """Continue with a new owner, or after a pause.

    The executions in `continues` keep their process. All others have lost it (see `lose`).
    """
    if data.epoch <= state.epoch:
        raise BugError("lease.stale_epoch", f"epoch {data.epoch} is not newer than {state.epoch}")
    state.epoch = data.epoch
    if data.raised is not None:
        _raise_limits(state, data.raised)
    state.pausing = ""
    if run.status == PAUSED:
        run.status = RUNNING
    _drop_what_died(state)
    continuing = _continuing(state, data.continues)
    state.executing = len(continuing)
    for node in sorted(state.in_flight.values(), key=lambda node: node.order):
        if node.ready_seq in continuing:
            _keep_executing(state, node)
        elif node.status == RUNNING and not node.closing:
            lose(state, node)
    resume_waits(state, data)
    requeue_starved(state)
    resume_oversize(state)
    for node in tuple(state.held.values()):  # the new owner has not requested these files yet
        free(state, node)
    state.dirty = True


def _continuing(state: State, continues: tuple[ExecutionRef, ...]) -> frozenset[int]:
    """Return the `ready_seq` of each node whose execution continues."""
    found: list[int] = []
    for ref in continues:
        node = state.runs[ref.run].nodes[ref.step]
        if not is_executing(node) or (node.attempt, node.execution) != (ref.attempt, ref.execution):
            raise unexpected(f"{ref.step} has no execution {ref.attempt}.{ref.execution} that could continue")
        found.append(node.ready_seq)
    return frozenset(found)


def is_executing(node: Node) -> bool:
    """Whether the log has the start of the current execution, and neither its end nor its loss."""
    return node.kind == LEAF and node.status == RUNNING and not node.closing and not node.lost


def _keep_executing(state: State, node: Node) -> None:
    """Keep an execution. Request its stop again: the last owner may have ended before it did so."""
    if node.stopping in (CANCELLED, TIMED_OUT):
        state.agenda.append(Stop(node.run.id, node.path, node.attempt, node.execution, node.stopping))
    else:
        node.stopping = ""  # the resume ended the pause


def _drop_what_died(state: State) -> None:
    """Drop commands that were never recorded: stops of lost processes, pauses, and obsolete restarts."""
    kept = type(state.agenda)()
    for command in state.agenda:
        if isinstance(command, Start) and _is_restart(state, command):
            state.runs[command.run].nodes[command.step].execution -= 1
        elif not isinstance(command, Stop | Pause):
            kept.append(command)
    state.agenda = kept


def _is_restart(state: State, command: Start) -> bool:
    """Whether the command restarts a running step. A step that a person resumed is ready and stays chosen."""
    return command.execution > 1 and state.runs[command.run].nodes[command.step].status == RUNNING


def _raise_limits(state: State, raised: LimitsRaised) -> None:
    state.max_agents = max(state.max_agents, raised.max_agents or 0)
    state.max_steps = max(state.max_steps, raised.max_steps or 0)
    ledger = state.ledger
    if raised.budget_tokens is not None:
        ledger.max_tokens = max(ledger.max_tokens or 0, raised.budget_tokens)
    if raised.budget_micro_usd is not None:
        ledger.max_micro_usd = max(ledger.max_micro_usd or 0, raised.budget_micro_usd)
        ledger.unpriced = False  # the person who raises it knows why the run stopped
    state.budgeted = state.budgeted or ledger.limited
    state.raised_agents = max(state.raised_agents, raised.max_agents or 0)
    for quota in state.quotas:
        _raise_quota(quota, raised)


def _raise_quota(quota: Quota, raised: LimitsRaised) -> None:
    """Raise the cap of a scope, too, so that it does not block what the person just allowed."""
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


def _finished(state: State, run: Run, data: RunFinished) -> None:
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


def _paid(state: State, run: Run, data: Payment) -> None:
    require_idle(state, "a payment")
    node = run.nodes[data.step]
    spend(state, node, data.usage)
    if node.attempt == data.attempt:
        node.counted += data.usage


def _noted(_state: State, _run: Run, _data: PhaseFolded | RunForked | RequestRefused) -> None:
    """Change nothing: the event is evidence."""


# -----------------------------------------------------------------------------------------------------------
# Open runs: a client adds, continues, closes and resumes steps while the run is running.
#
# Rules
# * A client adds a step to the top level. The step may depend on steps added before it. It is then scheduled
#   like any other step, in plan order behind all earlier steps.
# * The next turn of a child is a separate step. It runs `after` the turn before, whatever status that turn
#   has. So a message to a running child waits until its current turn ends. No turn can follow a closed step.
# * A step that lost its process stays interrupted until a client resumes it. So a new owner of an open run
#   spends nothing by itself.
# * A step that an agent of the run requested ends with the step of that agent.
# * The run finishes after an end request, when its last step has ended; or by cancellation.


def why_not_added(run: Run, step: Step) -> str:
    """Return why this step cannot be added to the run now; empty if it can."""
    if not run.growing or run.ending:
        return f"run {run.id} accepts no more steps"
    if step.id in run.nodes:
        return f"there is a step {step.id} already"
    for name in step.depends_on + step.after:
        node = run.nodes.get(name)
        if node is None or node.parent is not run.scope:
            return f"there is no step {name} to depend on"
        if node.closed and name in step.after:
            return f"{name} is closed"
    parent = run.nodes.get(step.parent)
    if step.parent and (parent is None or parent.status != RUNNING or parent.stopping):
        return f"{step.parent} is not running"
    action = step.action
    if isinstance(action, WorkflowAction) and action.workflow not in run.plan.workflows:
        return f"the plan has no workflow {action.workflow}"
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


# -----------------------------------------------------------------------------------------------------------
# The table of handlers, and the fold.

RUN_HANDLERS: dict[type[WorkflowEvent], Callable[[State, Run, Any], None]] = {
    RunCreated: _created,
    RunForked: _noted,
    RunStarted: _run_started,
    ValueDecided: _decided,
    TimerFired: _woke,
    PauseRequested: _pause_requested,
    RunPaused: _paused,
    RunResumed: _resumed,
    WaitOpened: open_wait,
    WaitClosed: close_wait,
    CancelRequested: _cancel_requested,
    StepAdded: add,
    CloseRequested: close,
    ResumeRequested: resume_child,
    EndRequested: end,
    RequestRefused: _noted,
    PhaseFolded: _noted,
    Payment: _paid,
    RunFinished: _finished,
}
"""Each handler takes the struct of its row."""

REPORTED = frozenset((COMPLETED, FAILED, TIMED_OUT, CANCELLED, "interrupted", ASKED))
"""Statuses that end an execution; such a report can be late."""


def create_state(event: Event) -> State:
    """Return the state after `created`, the first event of a root run's log."""
    data = event.data
    if not isinstance(data, RunCreated) or data.plan is None:
        raise BugError(
            "kernel.unexpected_event", "a log must begin with the `created` event, which contains the plan"
        )
    if data.version != LOG_VERSION:
        raise WorldError(
            "log.version",
            f"run {event.run} was recorded by another Fanfold: log version {data.version}, not {LOG_VERSION}",
            hint="read it with the Fanfold that recorded it, or start the run again with this one",
            details={"found": data.version, "known": LOG_VERSION},
        )
    settings = data.limits()
    state = State(event.run, data.plan, settings, event.at)
    state.epoch = data.epoch
    # Steps added to an open run are unknown here, and claims cannot be added later.
    state.shared_writers = data.plan.open or _writes_shared(data.plan)
    open_run(state, state.root, None)
    if settings.timeout_ms is not None:
        heappush(state.run_deadlines, (settings.timeout_ms, state.root.id))
    return state


def fold(events: Iterable[Event]) -> State:
    """Return the state after all these events. Resume and replay need nothing else."""
    stream = iter(events)
    state = create_state(next(stream))
    for event in stream:
        evolve(state, event)
    return state


def evolve(state: State, event: Event) -> State:
    """Fold one event into `state`, in place, and settle its consequences. Returns `state`."""
    data = event.data
    if type(data) is Evidence:
        return state
    _advance_time(state, event)
    if isinstance(data, WorkflowEvent):
        _fold_run(state, state.runs[event.run], data)
    else:
        assert isinstance(data, StepData)
        word = EVENT_WORDS.get(data.status, data.status)
        if data.late:
            state.late += 1
            if data.usage is not None:
                settle_attempt(state, state.runs[event.run].nodes[data.step], data)
        else:
            node = state.runs[event.run].nodes[data.step]
            allowed = STEP_TRANSITIONS.get((node.status, word))
            if allowed is None:
                raise unexpected(f"{node.path} is {node.status} and cannot take {word!r}")
            STEP_HANDLERS[word](state, node, data)
            if node.status not in allowed:
                raise BugError("kernel.bad_transition", f"{node.path}: {word!r} led to {node.status}")
    if not state.agenda:
        settle(state)
    return state


def _fold_run(state: State, run: Run, data: WorkflowEvent) -> None:
    root = state.root
    allowed = RUN_TRANSITIONS.get((run.status, data.kind))
    if allowed is None:
        raise unexpected(f"run {run.id} is {run.status} and cannot take {data.kind!r}")
    before = root.status
    RUN_HANDLERS[type(data)](state, run, data)
    if run.status not in allowed:
        raise BugError("kernel.bad_transition", f"run {run.id}: {data.kind!r} led to {run.status}")
    if root.status != before and root.status not in RUN_TRANSITIONS.get((before, data.kind), ()):
        raise BugError("kernel.bad_transition", f"run {root.id}: {data.kind!r} below led to {root.status}")


def mark_late(state: State, event: Event) -> Event:
    """Return the event to record: marked late if its execution has already ended.

    Hosts must call this for every report of an attempt before they append it.
    """
    data = event.data
    if not isinstance(data, StepData) or data.late:
        return event
    if EVENT_WORDS.get(data.status, data.status) not in REPORTED:
        return event
    node = state.runs[event.run].nodes[data.step]
    if is_current(node, data):
        return event
    return Event(event.run, event.at, msgspec.structs.replace(data, late=True))


def find_node(state: State, tree_path: str) -> Node | None:
    """Return the instance at a tree path (`kids[0]/up`), across child runs, or None."""
    for run in state.runs.values():
        prefix = f"{run.path}/" if run.path else ""
        if tree_path.startswith(prefix):
            node = run.nodes.get(tree_path[len(prefix) :])
            if node is not None:
                return node
    return None


def _advance_time(state: State, event: Event) -> None:
    elapsed = event.at - state.now
    if elapsed > 0:
        lived = elapsed
        if isinstance(event.data, RunStarted):
            lived = 0
        elif isinstance(event.data, RunResumed):  # no owner lived in between, except the last one for a while
            lived = max(0, min(elapsed, event.data.alive_at - state.now))
        if is_ticking(state):
            state.clock += lived
        state.now = event.at


def _writes_shared(plan: Plan) -> bool:
    stack: list[Step] = list(plan.steps)
    for other in plan.workflows.values():
        stack.extend(other.steps)
    while stack:
        step = stack.pop()
        if step.posture == "writer" and step.workspace_mode == "shared":
            return True
        if step.fold is not None:
            stack.append(step.fold)
        if isinstance(step.action, GroupAction):
            stack.extend(step.action.steps)
    return False
