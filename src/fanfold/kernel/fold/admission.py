"""Who may start: slots, agents, budget, and freedom from conflicts.

The rules, in the order they are asked
1. Ready steps are taken in plan order while a slot is free, in the tree and in every scope with a cap. Those
   that hold no slot come first: nothing of this rule concerns them.
2. An agent needs an agent left under every cap; with a budget its reservation must fit every ledger.
3. Two steps conflict when their write-sets overlap, or when one writes in the shared workspace what the
   other reads. A step that conflicts with a running step is *parked* on it.
4. A parked step reserves its sets against steps that became ready in a later decision, so that nobody
   starves. Steps that became ready together do not: of these, as many as fit start.

A decision is one walk over what is ready. Who is parked waits for the youngest step that blocks it. Those who
wait for the same step and all write one and the same pattern stand in line, because only one of them can
run: an end wakes the first, who either starts and so blocks the others, or passes the wake-up on. A queue of
n conflicting writers costs n wake-ups, not n².

What is held back waits in exactly one place and is pushed back to `state.ready` by the end of what
holds it: a quota's `waiting`, a node's `waiters`, or `state.starved` for limits that only a settlement
or a person can move. Only entries of `ready` are ever examined; nothing polls.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from fanfold.kernel.budget import NOTHING, Amount, Ledger, estimate
from fanfold.kernel.commands import Start
from fanfold.kernel.events import UNBOUNDED
from fanfold.kernel.lifecycle import READY
from fanfold.kernel.nodes import Claims, Node, Order, Quota, State


def enqueue(state: State, node: Node) -> None:
    """The step has everything but a place: it is ready."""
    node.status = READY
    state.ready_count += 1
    node.ready_seq = state.ready_count
    node.ready_from = state.ready_from
    _offer(state, node)
    state.dirty = True


def _offer(state: State, node: Node) -> None:
    """Have a ready step examined in the next walk."""
    heappush(state.ready if node.step.action.traits.slot else state.slotless, (node.order, node))


def start_ready(state: State) -> None:
    """One walk over the ready steps; every step that fits gets its `Start` on the agenda."""
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
            # Its place under the caps was not used: let the next one of the same scope try.
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
    agent = action.traits.role is not None and not again  # its session was counted when the attempt began
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
        for ledger in _ledgers(state, node):
            ledger.reserve(node.reservation)
    state.agenda.append(
        Start(node.run.id, node.path, action.type, node.attempt, node.execution, *node.reservation)
    )


def release(state: State, node: Node) -> None:
    """The attempt is over: give back the slot, the sets and the reservation, and wake who waited."""
    node.holding = False
    node.lost = False
    node.stopping = ""
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
        for ledger in _ledgers(state, node):
            ledger.release(node.reservation)
        node.reservation = NOTHING
        _wake_budget(state)
    _wake_waiters(state, node)


def unchoose(state: State, node: Node) -> None:
    """Take back a choice whose `Start` was never carried out."""
    again = node.lost
    if again:
        node.execution -= 1
    else:
        node.attempt -= 1
        node.execution = 0
        return_agent(state, node)
    release(state, node)
    node.lost = again


def return_agent(state: State, node: Node) -> None:
    """The agent chosen for this step never began: not carried out, cached, or not rendered."""
    if node.step.traits.role is None:
        return
    state.agents -= 1
    node.run.agents -= 1
    for quota in node.quotas:
        quota.agents -= 1
    requeue_starved(state)


def withdraw(state: State, node: Node) -> None:
    """A step that never started ends: it no longer stands in anybody's way."""
    if node.reserving:
        _drop(state, state.parked_claims, node)
        node.reserving = False
    _wake_waiters(state, node)


def requeue_starved(state: State) -> None:
    """Limits were raised, or the last running attempt ended: examine everything once more."""
    while state.starved:
        _, node, _ = heappop(state.starved)
        if node.status == READY:
            _offer(state, node)
            state.dirty = True


# Conflicts


def find_blocker(state: State, node: Node) -> Node | None:
    """The youngest step that this one must wait for, or None when nothing conflicts."""
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
    """The last in line for the step that this one waits for, if it has its turn earlier and its line fits."""
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
    """What they waited for has ended."""
    if node.waiters:
        _wake(state, node.waiters)
        node.waiters = ()
        state.dirty = True


def _pass_on(state: State, node: Node) -> None:
    """The step did not start: those who became ready with it and stand behind it in line may."""
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
    """One free place, one step to try: whoever does not use it passes it on (see `start_ready`)."""
    if quota.max_concurrency is not None and quota.live >= quota.max_concurrency:
        return
    while quota.waiting:
        node = heappop(quota.waiting)[1]
        if node.status == READY and not node.closing:
            _offer(state, node)
            state.dirty = True
            return


def _wake_budget(state: State) -> None:
    """Money came back: as many as could start are examined again, in plan order."""
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


def _ledgers(state: State, node: Node) -> list[Ledger]:
    """The tree's, limited or not (a limit may be set while attempts run), and those of the scopes."""
    return [state.ledger, *(quota.ledger for quota in node.quotas if quota.ledger is not None)]


def reservation(state: State, node: Node) -> Amount:
    """What the next attempt of a step asks for, whether or not there is that much."""
    return estimate(
        node.step.traits.role or "", state.settings.estimates, state.history, _ledgers(state, node)
    )


def _affordable(state: State, node: Node) -> Amount | None:
    amount = reservation(state, node)
    return amount if all(ledger.fits(amount) for ledger in _ledgers(state, node)) else None
