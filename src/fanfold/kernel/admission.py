"""Admission: which ready steps start, by slots, agents, budget and conflicts.

Rules, in the order in which they are checked
1. Ready steps start in plan order while a slot is free, in the tree and in every scope with a cap. Steps
   that need no slot come first: this rule does not apply to them.
2. The number of agents must stay within every cap. With a budget, the reservation must fit every ledger.
3. Two steps conflict if their write-sets overlap, or if one writes files in the shared workspace that the
   other reads. A step that conflicts with a running step is *parked* on it.
4. A parked step reserves its sets against steps that became ready in a later decision. So no step starves.
   It does not reserve them against steps that became ready in the same decision: as many of these start as
   fit.

A decision is one walk over the ready steps. A parked step waits for the youngest step that blocks it. Steps
that wait for the same step and write the same pattern form a line, because only one of them can run. An end
wakes the first step of the line. That step either starts and so blocks the others, or it passes the wake-up
on. A queue of n conflicting writers costs n wake-ups, not n².

A blocked step waits in exactly one queue: a quota's `waiting`, a node's `waiters`, or `state.starved` for
limits that only a settlement or a person can change. When the blocker ends, the step returns to
`state.ready`. A decision examines only entries of `ready`; nothing polls.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

import msgspec

from fanfold.kernel.budget import NOTHING, Amount, Ledger, estimate
from fanfold.kernel.commands import Start
from fanfold.kernel.events import (
    UNBOUNDED,
    UNCOUNTED,
    Evidence,
    RunPaused,
    RunResumed,
    WorkflowEvent,
)
from fanfold.kernel.state import BUDGET, LEAF, READY, TERMINAL, Claims, Node, Order, Quota, State


def enqueue(state: State, node: Node) -> None:
    """Mark a step as ready and queue it for the next decision."""
    node.status = READY
    state.ready_count += 1
    node.ready_seq = state.ready_count
    node.ready_from = state.ready_from
    _offer(state, node)
    state.dirty = True


def _offer(state: State, node: Node) -> None:
    """Queue a ready step for the next walk."""
    heappush(state.ready if node.step.action.traits.slot else state.slotless, (node.order, node))


def start_ready(state: State) -> None:
    """Walk over the ready steps once; put a `Start` on the agenda for every step that fits."""
    state.dirty = False
    state.ready_from = state.ready_count + 1
    if state.slotless:
        _walk(state, state.slotless, UNBOUNDED)
    _walk(state, state.ready, state.slots)


def _walk(state: State, ready: list[tuple[Order, Node]], slots: int) -> None:
    while ready and state.live < slots:
        node = heappop(ready)[1]
        waits = node.status == READY and not node.closing and not node.holding
        if waits and _fits(state, node):
            _choose(state, node)
        else:
            _pass_on(state, node)
            # The step did not use its slot under the caps: let the next step of the same scope try.
            for quota in node.quotas:
                _wake_quota(state, quota)


def _fits(state: State, node: Node) -> bool:
    traits = node.step.action.traits
    for quota in node.quotas if traits.slot else ():
        if quota.max_concurrency is not None and quota.live >= quota.max_concurrency:
            heappush(quota.waiting, (node.order, node))
            return False
    agent = traits.role is not None
    if agent and not _agent_left(state, node):
        heappush(state.starved, (node.order, node, "max_agents"))
        return False
    if (node.write_set or state.shared_writers) and _parks(state, node):
        return False
    if agent and state.budgeted:
        amount = _affordable(state, node)
        if amount is None:
            heappush(state.starved, (node.order, node, "budget"))
            return False
        node.reservation = amount
    return True


def _agent_left(state: State, node: Node) -> bool:
    if state.agents >= state.max_agents:
        return False
    return all(quota.max_agents is None or quota.agents < quota.max_agents for quota in node.quotas)


def _choose(state: State, node: Node) -> None:
    node.holding = True
    again = node.lost
    if again:
        node.execution += 1
    else:
        node.attempt += 1
        node.execution = 1
    action = node.step.action
    slot = action.traits.slot
    state.live += slot
    state.in_flight[node.ready_seq] = node
    agent = not again and counts_as_agent(state, node)  # a lost attempt was counted when it started
    if agent:
        state.agents += 1
        node.run.agents += 1
    for quota in node.quotas:
        quota.live += slot
        quota.agents += agent
    if node.reserving:
        _drop(state, state.parked_claims, node)
        node.reserving = False
    if node.write_set or state.shared_writers:
        _hold(state, state.live_claims, node)
    if node.reservation != NOTHING:
        for ledger in ledgers_of(state, node):
            ledger.reserve(node.reservation)
    state.agenda.append(
        Start(node.run.id, node.path, action.type, node.attempt, node.execution, *node.reservation)
    )


def release(state: State, node: Node) -> None:
    """Release the slot, the sets and the reservation of an attempt that ended, and wake its waiters."""
    node.holding = False
    node.lost = False
    node.stopping = ""
    if node.reason == BUDGET:
        node.reason = ""
        state.out_of_budget -= 1
    slot = node.step.action.traits.slot
    state.live -= slot
    del state.in_flight[node.ready_seq]
    state.dirty = True
    for quota in node.quotas:
        quota.live -= slot
        _wake_quota(state, quota)
    if node.write_set or state.shared_writers:
        _drop(state, state.live_claims, node)
    if node.reservation != NOTHING:
        for ledger in ledgers_of(state, node):
            ledger.release(node.reservation)
        node.reservation = NOTHING
        _wake_budget(state)
    _wake_waiters(state, node)


def unchoose(state: State, node: Node) -> None:
    """Revert the choice of a step whose `Start` was not executed."""
    again = node.lost
    if again:
        node.execution -= 1
    else:
        if counts_as_agent(state, node):
            return_agent(state, node)
        node.attempt -= 1
        node.execution = 0
    release(state, node)
    node.lost = again


def counts_as_agent(state: State, node: Node) -> bool:
    """Whether the attempt of a chosen step counts as one more agent.

    A retry after a connection error or a rate limit counts as the same agent.
    """
    if node.step.traits.role is None:
        return False
    retries = node.attempt > 1 and node.error is not None and state.settings.outage_ms is not None
    return not (retries and node.error is not None and node.error.kind in UNCOUNTED)


def return_agent(state: State, node: Node) -> None:
    """Uncount the agent of a step that did not start: not executed, cached, or not rendered."""
    state.agents -= 1
    node.run.agents -= 1
    for quota in node.quotas:
        quota.agents -= 1
    requeue_starved(state)


def withdraw(state: State, node: Node) -> None:
    """Release the reserved sets of a step that ends without having started, and wake its waiters."""
    if node.reserving:
        _drop(state, state.parked_claims, node)
        node.reserving = False
    _wake_waiters(state, node)


def requeue_starved(state: State) -> None:
    """Queue every step that a limit blocks, after limits were raised or the last running attempt ended."""
    while state.starved:
        _, node, _ = heappop(state.starved)
        if node.status == READY:
            _offer(state, node)
            state.dirty = True


# Conflicts


def find_blocker(state: State, node: Node) -> Node | None:
    """Return the youngest step that this one must wait for, or None if no step conflicts."""
    parked = _latest(state, state.parked_claims, node, node.ready_from)
    seq = parked if parked is not None else _latest(state, state.live_claims, node, None)
    return None if seq is None else state.claimants[seq]


def _latest(state: State, claims: Claims, node: Node, below: int | None) -> int | None:
    found: int | None = None
    step = node.step
    if step.posture == "writer":
        found = claims.writes.latest(node.write_set, below)
        if step.workspace_mode == "shared":
            found = _later(found, claims.reads.latest(node.write_set, below))
    if state.shared_writers:
        found = _later(found, claims.shared_writes.latest(node.read_set, below))
    return found


def _later(a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return b if a is None else a
    return max(b, a)


def _parks(state: State, node: Node) -> bool:
    blocker = find_blocker(state, node)
    if blocker is None:
        return False
    node.waits_for = blocker.ready_seq
    node.line = ""
    ahead = _ahead(state, node) or blocker
    if ahead.waiters:
        ahead.waiters.append(node)
    else:
        ahead.waiters = [node]
    if not node.reserving:
        node.reserving = True
        _hold(state, state.parked_claims, node)
    return True


def _ahead(state: State, node: Node) -> Node | None:
    """Return the last step in line for the same blocker, if it is earlier in plan order and its line fits."""
    if not node.write_set:
        return None
    seq = state.parked_claims.writes.latest(node.write_set, node.ready_seq)
    other = None if seq is None else state.claimants[seq]
    if other is None or other.waits_for != node.waits_for or other.order > node.order:
        return None
    if not other.line:
        other.line = next((pattern for pattern in other.write_set if pattern in node.write_set), "")
    if not other.line or other.line not in node.write_set:
        return None
    node.line = other.line
    return other


def _hold(state: State, claims: Claims, node: Node) -> None:
    seq, step = node.ready_seq, node.step
    state.claimants[seq] = node
    if step.posture == "writer":
        claims.writes.add(seq, node.write_set)
        if step.workspace_mode == "shared":
            claims.shared_writes.add(seq, node.write_set)
    if state.shared_writers:
        claims.reads.add(seq, node.read_set)


def _drop(state: State, claims: Claims, node: Node) -> None:
    seq, step = node.ready_seq, node.step
    del state.claimants[seq]
    if step.posture == "writer":
        claims.writes.remove(seq, node.write_set)
        if step.workspace_mode == "shared":
            claims.shared_writes.remove(seq, node.write_set)
    if state.shared_writers:
        claims.reads.remove(seq, node.read_set)


# Waking


def _wake_waiters(state: State, node: Node) -> None:
    """Queue the steps that were parked on a step that ended."""
    if node.waiters:
        _wake(state, node.waiters)
        node.waiters = ()
        state.dirty = True


def _pass_on(state: State, node: Node) -> None:
    """Wake the steps that became ready with this one and are behind it in line; this one did not start."""
    if node.waiters:
        behind = [waiter for waiter in node.waiters if waiter.ready_from <= node.ready_seq]
        if behind:
            node.waiters = [waiter for waiter in node.waiters if waiter.ready_from > node.ready_seq]
            _wake(state, behind)


def _wake(state: State, waiters: Sequence[Node]) -> None:
    for waiter in waiters:
        waiter.waits_for = 0
        if waiter.status == READY:
            _offer(state, waiter)


def _wake_quota(state: State, quota: Quota) -> None:
    """Wake one step for one free slot. If it does not use the slot, `start_ready` tries the next step."""
    if quota.max_concurrency is not None and quota.live >= quota.max_concurrency:
        return
    while quota.waiting:
        node = heappop(quota.waiting)[1]
        if node.status == READY and not node.closing:
            _offer(state, node)
            state.dirty = True
            return


def _wake_budget(state: State) -> None:
    """Queue steps that the budget blocks, in plan order, as many as could start: budget was released."""
    back: list[tuple[tuple[int, ...], Node, str]] = []
    woken = 0
    while state.starved and woken < state.slots:
        entry = heappop(state.starved)
        if entry[2] == "budget" and entry[1].status == READY:
            _offer(state, entry[1])
            woken += 1
        else:
            back.append(entry)
            if len(back) > state.slots:
                break
    for entry in back:
        heappush(state.starved, entry)


# Budget


def ledgers_of(state: State, node: Node) -> list[Ledger]:
    """Return the ledger of the tree and those of the scopes around a step.

    The ledger of the tree counts even without a limit: a limit may be set while attempts run.
    """
    return [state.ledger, *(quota.ledger for quota in node.quotas if quota.ledger is not None)]


def reservation(state: State, node: Node) -> Amount:
    """Return the reservation for the next attempt of a step, whether or not it fits."""
    return estimate(
        node.step.traits.role or "", state.settings.estimates, state.history, ledgers_of(state, node)
    )


def _affordable(state: State, node: Node) -> Amount | None:
    amount = reservation(state, node)
    return amount if all(ledger.fits(amount) for ledger in ledgers_of(state, node)) else None


# -----------------------------------------------------------------------------------------------------------
# `budget_event`: the limits and the spending of a run, and the steps that did not fit.
#
# The host records one when a run pauses at a limit, and when a resume raises limits. It is computed from the
# state, so folding the log again gives the same numbers. The kernel itself never reads it.

HELD = "held"
RAISED = "raised"
MAX_WAITING = 20
"""How many of the steps that did not fit are listed; all are counted."""


def budget_news(state: State, data: WorkflowEvent) -> Evidence | None:
    """Return the evidence to record after an event that was just folded; None for most events."""
    if isinstance(data, RunPaused) and data.reason == BUDGET:
        return Evidence("budget_event", {"what": HELD, **_numbers(state), **_waiting(state)})
    if isinstance(data, RunResumed) and data.raised is not None:
        raised = msgspec.to_builtins(data.raised)
        return Evidence("budget_event", {"what": RAISED, "raised": raised, **_numbers(state)})
    return None


def _numbers(state: State) -> dict[str, Any]:
    ledger = state.ledger
    return {
        "tokens": {
            "limit": ledger.max_tokens,
            "spent": ledger.spent_tokens,
            "reserved": ledger.reserved_tokens,
        },
        "micro_usd": {
            "limit": ledger.max_micro_usd,
            "spent": None if ledger.unpriced else ledger.spent_micro_usd,
            "reserved": ledger.reserved_micro_usd,
        },
        "agents": {"limit": state.max_agents, "started": state.agents},
        "steps": {"limit": state.max_steps, "made": state.instances},
    }


def _waiting(state: State) -> dict[str, Any]:
    """Return the steps that did not fit, in plan order, each with the limit and the reservation it needs."""
    found: list[dict[str, Any]] = []
    starved = [entry for entry in state.starved if entry[1].status == READY]
    starved.sort(key=lambda entry: entry[0])
    for _, node, limit in starved[:MAX_WAITING]:
        wants: dict[str, Any] = {"step": node.run.tree_path(node.path), "limit": limit}
        if limit == BUDGET and node.step.traits.role is not None:
            wants["tokens"], wants["micro_usd"] = reservation(state, node)
        found.append(wants)
    stopped = sorted(stopped_at_budget(state), key=lambda node: node.order)
    found += [
        {"step": node.run.tree_path(node.path), "limit": BUDGET, "attempt": node.attempt}
        for node in stopped[: MAX_WAITING - len(found)]
    ]
    for _, node in state.oversize[: MAX_WAITING - len(found)]:
        found.append({"step": node.run.tree_path(node.path), "limit": "max_steps"})
    return {"waiting": found, "waiting_total": len(starved) + len(stopped) + len(state.oversize)}


def stopped_at_budget(state: State) -> list[Node]:
    """Return the steps whose sessions stopped because a budget is used up."""
    if not state.out_of_budget:
        return []
    return [node for node in state.in_flight.values() if node.reason == BUDGET]


def held_back(state: State) -> list[str]:
    """Return the ready steps that have not started, whether a slot, files, a limit or a pause blocks them."""
    waiting: list[Node] = [
        node
        for run in state.runs.values()
        for node in run.nodes.values()
        if node.kind == LEAF and node.status == READY and not node.holding
    ]
    waiting += [node for _, node in state.oversize if node.status not in TERMINAL]
    return [node.run.tree_path(node.path) for node in sorted(waiting, key=lambda node: node.order)]
