"""Waits: a resource that steps share cannot be used now, and is tried again at a known time.

The kernel treats a provider outage, a usage limit with a reset time and a daily cap in the same way: as a
subject, a reason and a time. Only the host knows which steps need the subject.

Rules
* `wait_opened` opens a wait. The host answers the `Start` of each step that needs its subject with
  `deferred`. The step releases its slot and sets. This counts neither as a failure nor as an attempt.
* When the wait is due, the first step in its queue starts alone, as the probe. `wait_closed`, or a result
  of the probe, closes the wait, and all other steps can start. Another `wait_opened` sets the next time, and
  then another step is the probe. A wait without probes closes when it is due.
* A wait outlives the owner of the run. A resume tries each wait at once, unless `keep_waits` is set.
"""

from __future__ import annotations

from zlib import crc32

from fanfold.kernel.admission import enqueue, unchoose
from fanfold.kernel.commands import Start
from fanfold.kernel.events import RunResumed, StepEvent, SubagentEvent, WaitClosed, WaitOpened
from fanfold.kernel.state import (
    COMPLETED,
    DEFERRED,
    FAILED,
    WAITING,
    Node,
    Run,
    State,
    Wait,
    require_idle,
    take,
    unexpected,
)

FIRST_DELAY_MS = 10_000
MAX_DELAY_MS = 120_000
DEFAULT_OUTAGE_MS = 3_600_000


def next_attempt(state: State, subject: str, now: int) -> int | None:
    """Return when to try again during an outage, with growing back-off; None if it exceeds its time limit."""
    limit = DEFAULT_OUTAGE_MS if state.settings.outage_ms is None else state.settings.outage_ms
    wait = state.waits.get(subject)
    since, count = (now, 0) if wait is None else (wait.since, wait.count)
    if now - since >= limit:
        return None
    ceiling = min(MAX_DELAY_MS, FIRST_DELAY_MS << min(count, 20))
    # Jitter without randomness: runs that share a provider spread, between half of the delay and all of it.
    spread = crc32(f"{state.root.id}/{subject}#{count}".encode()) % 1_000
    return min(now + ceiling // 2 + ceiling * spread // 2_000, since + limit)


def open_wait(state: State, _run: Run, data: WaitOpened) -> None:
    """Open a wait, or set the next time of an open one."""
    require_idle(state, "a wait")
    wait = state.waits.get(data.subject)
    if wait is None:
        wait = state.waits[data.subject] = Wait(data.subject, state.now)
    wait.reason, wait.until, wait.count = data.reason, data.until, data.count
    wait.probes, wait.error, wait.probe = data.probes, data.error, None


def close_wait(state: State, _run: Run, data: WaitClosed) -> None:
    """Close a wait; its steps become ready."""
    require_idle(state, "the end of a wait")
    if data.subject not in state.waits:
        raise unexpected(f"there is no open wait for {data.subject}")
    _close(state, state.waits[data.subject])


def defer(state: State, node: Node, data: StepEvent | SubagentEvent) -> None:
    """Make a chosen step release its slot and sets until its wait closes or probes it."""
    take(state, Start, node.run.id, node.path)
    wait = state.waits.get(data.reason)
    if wait is None or wait.probe is node:
        raise unexpected(f"{node.path} is deferred by {data.reason!r}, which does not hold it")
    unchoose(state, node)
    node.status = WAITING
    node.reason = DEFERRED
    node.subject = wait.subject
    node.deadline -= state.clock  # the remaining time; `_free` adds the clock again
    wait.nodes[node.ready_seq] = node
    state.deferred += 1


def fire_waits(state: State) -> None:
    """Close each due wait, or start its probe."""
    for wait in tuple(state.waits.values()):
        if wait.until > state.now or wait.probe is not None:
            continue
        if not wait.probes:
            _close(state, wait)
        elif wait.nodes:
            wait.probe = next(iter(wait.nodes.values()))
            _free(state, wait, wait.probe)


def next_wait(state: State) -> int | None:
    """Return when the next wait that has deferred steps is due."""
    due = [wait.until for wait in state.waits.values() if wait.nodes and wait.probe is None]
    return min(due, default=None)


def resume_waits(state: State, data: RunResumed) -> None:
    """Make every wait due at once, unless the resume keeps their times."""
    for wait in state.waits.values():
        wait.since = state.now
        if not data.keep_waits:
            wait.until, wait.count = min(wait.until, state.now), 0


def leave_wait(state: State, node: Node) -> None:
    """Remove a step from its wait, as a deferred step or as the probe."""
    wait = state.waits.get(node.subject)
    if node.status == WAITING and node.reason == DEFERRED:
        assert wait is not None, "a deferred step has its wait"
        del wait.nodes[node.ready_seq]
        state.deferred -= 1
    elif wait is not None and wait.probe is node:
        wait.probe = None


def note_result(state: State, node: Node, word: str) -> None:
    """Close the wait if its probe completed or failed: in both cases the subject answered."""
    wait = state.waits.get(node.subject)
    if wait is not None and wait.probe is node and word in (COMPLETED, FAILED):
        _close(state, wait)


def _close(state: State, wait: Wait) -> None:
    del state.waits[wait.subject]
    for node in tuple(wait.nodes.values()):
        _free(state, wait, node)


def _free(state: State, wait: Wait, node: Node) -> None:
    del wait.nodes[node.ready_seq]
    state.deferred -= 1
    node.reason = ""
    node.deadline += state.clock
    enqueue(state, node)
