"""The fold: `evolve(state, event)` is the only way a run changes.

The theory
    A run tree is a tree of scopes. Every step instance is a node with one status; `lifecycle` holds the
    table of the transitions there are, and an event that fits none of them is refused as a bug, never
    guessed at. Statuses only move forward; terminal is final.

    An event is either the answer to the first command of the agenda or, when the agenda is empty, a
    report from outside: a result, an answer, a request, or the time (`woke`). A report about an attempt
    that is over is marked `late` by `mark_late`, counted, and changes nothing else.

    Folding is incremental: an event costs what it touches (a node, its dependents, its parent), never
    the size of the plan.

Time enters through the events' `at`. It never runs backwards here, whatever the clocks did.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappush

import msgspec

from fanfold.errors import BugError, WorldError
from fanfold.kernel.decide import is_ticking, settle
from fanfold.kernel.events import (
    LOG_VERSION,
    Created,
    Event,
    Evidence,
    Resumed,
    Started,
    StepEvent,
    SubagentEvent,
    WorkflowEvent,
)
from fanfold.kernel.fold.agenda import unexpected
from fanfold.kernel.fold.progress import open_run
from fanfold.kernel.fold.run_events import RUN_HANDLERS
from fanfold.kernel.fold.step_events import STEP_HANDLERS, is_current, spend
from fanfold.kernel.lifecycle import (
    ASKED,
    CANCELLED,
    COMPLETED,
    EVENT_WORDS,
    FAILED,
    RUN_TRANSITIONS,
    STEP_TRANSITIONS,
    TIMED_OUT,
)
from fanfold.kernel.nodes import Node, Run, State
from fanfold.kernel.plan import GroupAction, Plan, Step

REPORTED = frozenset((COMPLETED, FAILED, TIMED_OUT, CANCELLED, "interrupted", ASKED))
"""Words that end an execution; these can come late."""


def create_state(event: Event) -> State:
    """The state after the first event of a root run's log, its `created`."""
    data = event.data
    if not isinstance(data, Created) or data.plan is None:
        raise BugError("kernel.unexpected_event", "a log begins with the `created` event that holds the plan")
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
    # Nobody knows what will be added to an open run, and a claim cannot be made good later.
    state.shared_writers = data.plan.open or _writes_shared(data.plan)
    open_run(state, state.root, None)
    if settings.timeout_ms is not None:
        heappush(state.run_deadlines, (settings.timeout_ms, state.root.id))
    return state


def fold(events: Iterable[Event]) -> State:
    """The state after all these events; the whole of resume and replay."""
    stream = iter(events)
    state = create_state(next(stream))
    for event in stream:
        evolve(state, event)
    return state


def evolve(state: State, event: Event) -> State:
    """Fold one event in and settle what it makes possible. Updates `state` in place."""
    data = event.data
    if type(data) is Evidence:
        return state
    _advance_time(state, event)
    if isinstance(data, WorkflowEvent):
        _fold_run(state, state.runs[event.run], data)
    else:
        assert isinstance(data, StepEvent | SubagentEvent)
        word = EVENT_WORDS.get(data.status, data.status)
        if data.late:
            state.late += 1
            if data.usage is not None:
                spend(state, state.runs[event.run].nodes[data.step], data.usage)
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
    """The event as it must be recorded: marked late when its execution is already over.

    Hosts pass every report of an attempt through this before they append it.
    """
    data = event.data
    if not isinstance(data, StepEvent | SubagentEvent) or data.late:
        return event
    if EVENT_WORDS.get(data.status, data.status) not in REPORTED:
        return event
    node = state.runs[event.run].nodes[data.step]
    if is_current(node, data):
        return event
    return Event(event.run, event.at, msgspec.structs.replace(data, late=True))


def find_node(state: State, tree_path: str) -> Node | None:
    """The instance at a tree path (`kids[0]/up`), across child runs."""
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
        if isinstance(event.data, Started):
            lived = 0
        elif isinstance(event.data, Resumed):  # nobody lived in between, but for the end of the last owner
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
