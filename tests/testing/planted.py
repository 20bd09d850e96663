"""Defects planted into the kernel on purpose: the simulator must find every one of them.

Each is the kind of mistake that a hurried change makes: a forgotten release, an off-by-one, a case left
out. `plant` replaces one function wherever the kernel refers to it, for as long as the context lasts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from msgspec.structs import replace

from fanfold.kernel import admission, decide, progress, step_transitions, transitions
from fanfold.kernel import progress as outcomes
from fanfold.kernel import progress as sweep
from fanfold.kernel import transitions as kernel_state
from fanfold.kernel.budget import NOTHING
from fanfold.kernel.state import MAP, Composite, Loop, Map, Node, Scope

Planted = Callable[[Any], Any]

PLANTED: dict[str, tuple[Any, str, Planted]] = {}
"""By name: the module that defines the function, its name, and what makes the faulty one of it."""


def planted(module: Any, function: str) -> Callable[[Planted], Planted]:
    def register(make: Planted) -> Planted:
        PLANTED[make.__name__] = (module, function, make)
        return make

    return register


@contextmanager
def plant(name: str) -> Iterator[None]:
    """The kernel with this defect in it."""
    module, function, make = PLANTED[name]
    original = getattr(module, function)
    faulty = make(original)
    places: list[tuple[dict[str, Any], str]] = []
    for loaded in [value for key, value in sys.modules.items() if key.startswith("fanfold.")]:
        tables = [vars(loaded), *(value for value in vars(loaded).values() if isinstance(value, dict))]
        places += [(table, key) for table in tables for key, value in table.items() if value is original]
    try:
        for table, key in places:
            table[key] = faulty
        yield
    finally:
        for table, key in places:
            table[key] = original


# Admission


@planted(admission, "_drop")
def a_claim_is_never_released(real: Any) -> Any:
    def drop(state: Any, claims: Any, node: Node) -> None:
        if claims is not state.live_claims:
            real(state, claims, node)

    return drop


@planted(admission, "start_ready")
def one_slot_too_many(real: Any) -> Any:
    def start_ready(state: Any) -> None:
        state.slots += 1
        real(state)
        state.slots -= 1

    return start_ready


@planted(progress, "limit_scope")
def caps_of_scopes_are_ignored(real: Any) -> Any:
    def limit_scope(state: Any, scope: Any, slots: Any, agents: Any, ledger: Any) -> None:
        real(state, scope, None, agents, ledger)

    return limit_scope


@planted(admission, "find_blocker")
def a_parked_step_is_overtaken(real: Any) -> Any:
    def find_blocker(state: Any, node: Node) -> Node | None:
        seq = admission._latest(state, state.live_claims, node, None)
        return None if seq is None else state.claimants[seq]

    return find_blocker


@planted(admission, "enqueue")
def steps_that_became_ready_together_are_not_packed(real: Any) -> Any:
    def enqueue(state: Any, node: Node) -> None:
        real(state, node)
        node.ready_from = node.ready_seq

    return enqueue


@planted(admission, "_latest")
def shared_writers_ignore_readers(real: Any) -> Any:
    def latest(state: Any, claims: Any, node: Node, below: int | None) -> int | None:
        found: int | None = None
        if node.step.posture == "writer":
            found = claims.writes.latest(node.write_set, below)
        return found

    return latest


@planted(admission, "_choose")
def a_retry_forgets_its_attempt(real: Any) -> Any:
    def choose(state: Any, node: Node) -> None:
        node.attempt = 0
        real(state, node)

    return choose


@planted(admission, "_choose")
def retries_do_not_count_as_agents(real: Any) -> Any:
    def choose(state: Any, node: Node) -> None:
        agents = state.agents
        real(state, node)
        if node.attempt > 1:
            state.agents = agents

    return choose


@planted(admission, "_wake_waiters")
def nobody_wakes_who_waited_for_a_conflict(real: Any) -> Any:
    def wake_waiters(state: Any, node: Node) -> None:
        node.waiters = ()

    return wake_waiters


@planted(admission, "_wake_quota")
def nobody_wakes_who_waited_for_a_cap(real: Any) -> Any:
    def wake_quota(state: Any, quota: Any) -> None:
        pass

    return wake_quota


@planted(admission, "release")
def a_reservation_leaks(real: Any) -> Any:
    def release(state: Any, node: Node) -> None:
        node.reservation = NOTHING
        real(state, node)

    return release


@planted(admission, "_affordable")
def a_budget_is_not_asked(real: Any) -> Any:
    def affordable(state: Any, node: Node) -> Any:
        return real(state, node) or (1, 1)

    return affordable


@planted(admission, "enqueue")
def order_by_address_in_reverse(real: Any) -> Any:
    def enqueue(state: Any, node: Node) -> None:
        node.order = (*node.order[:-1], 1_000 - node.order[-1])
        real(state, node)

    return enqueue


@planted(admission, "start_ready")
def a_decision_depends_on_something_outside_the_log(real: Any) -> Any:
    calls = count()

    def start_ready(state: Any) -> None:
        kept = state.slots
        state.slots = max(1, kept - next(calls) % 2)
        real(state)
        state.slots = kept

    return start_ready


# Progress


@planted(progress, "enter_scope")
def a_step_starts_before_its_last_dependency_ended(real: Any) -> Any:
    def enter_scope(state: Any, scope: Scope, steps: Any) -> None:
        real(state, scope, steps)
        for node in scope.children:
            if node.unmet == 2:
                node.unmet = 1

    return enter_scope


@planted(step_transitions, "_skipped")
def a_skip_for_a_failure_does_not_reach_dependents(real: Any) -> Any:
    def skipped(state: Any, node: Node, data: Any) -> None:
        real(state, node, replace(data, reason="condition"))

    return skipped


@planted(progress, "finish")
def an_inline_failure_skips_dependents(real: Any) -> Any:
    def finish(state: Any, node: Node, status: str, reason: str = "") -> None:
        step = node.step
        node.step = replace(step, on_failure="skip") if step.on_failure == "inline" else step
        real(state, node, status, reason)
        node.step = step

    return finish


@planted(progress, "enter_scope")
def a_child_run_finishes_before_its_last_step(real: Any) -> Any:
    def enter_scope(state: Any, scope: Scope, steps: Any) -> None:
        real(state, scope, steps)
        if scope is scope.run.scope and scope.run.parent is not None and scope.open > 1:
            scope.open -= 1

    return enter_scope


@planted(progress, "expand_map")
def a_map_forgets_its_last_item(real: Any) -> Any:
    def expand_map(state: Any, node: Map, count: int) -> None:
        real(state, node, max(0, count - 1) if count > 2 else count)

    return expand_map


@planted(sweep, "_stop_leaf")
def a_cancellation_misses_the_last_item_of_a_map(real: Any) -> Any:
    def stop_leaf(state: Any, leaf: Node) -> None:
        parent = leaf.parent
        if parent is None or parent.kind != MAP or leaf is not parent.children[-1]:
            real(state, leaf)

    return stop_leaf


@planted(transitions, "_decided_until")
def a_loop_ignores_max_iterations(real: Any) -> Any:
    def decided_until(state: Any, loop: Loop, passed: bool) -> None:
        if passed:
            real(state, loop, passed)
        else:
            progress.next_iteration(state, loop)

    return decided_until


@planted(progress, "_exceeds_max_steps")
def max_steps_is_one_too_generous(real: Any) -> Any:
    def exceeds(state: Any, node: Composite, count: int) -> bool:
        return bool(real(state, node, count - 1))

    return exceeds


# Events


@planted(step_transitions, "is_current")
def results_of_lost_executions_are_applied(real: Any) -> Any:
    def is_current(node: Node, data: Any) -> bool:
        return real(node, data) or (
            node.status == "running" and node.attempt == data.attempt and node.holding
        )

    return is_current


@planted(kernel_state, "mark_late")
def a_duplicate_is_not_marked_late(real: Any) -> Any:
    def mark_late(state: Any, event: Any) -> Any:
        return event

    return mark_late


@planted(step_transitions, "spend")
def what_was_spent_is_not_settled(real: Any) -> Any:
    def spend(state: Any, node: Node, usage: Any) -> None:
        node.run.spend(usage)

    return spend


@planted(step_transitions, "_ended")
def a_result_is_paid_twice(real: Any) -> Any:
    def ended(state: Any, node: Node, data: Any) -> None:
        if data.usage is not None:
            step_transitions.spend(state, node, data.usage)
        real(state, node, data)

    return ended


@planted(transitions, "_resumed")
def a_resume_restarts_a_completed_step(real: Any) -> Any:
    def resumed(state: Any, run: Any, data: Any) -> None:
        real(state, run, data)
        for node in list(run.nodes.values()):
            if node.status == "completed" and node.kind == 0 and node.attempt:
                admission.enqueue(state, node)
                return

    return resumed


@planted(transitions, "_continuing")
def a_takeover_starts_running_executions_again(_real: Any) -> Any:
    return lambda _state, _continues: frozenset()


@planted(transitions, "_continuing")
def a_takeover_waits_for_dead_executions(_real: Any) -> Any:
    def continuing(state: Any, _continues: Any) -> frozenset[int]:
        nodes = state.in_flight.values()
        return frozenset(node.ready_seq for node in nodes if transitions.is_executing(node))

    return continuing


@planted(transitions, "_keep_executing")
def a_takeover_forgets_to_stop_what_continues(_real: Any) -> Any:
    return lambda _state, _node: None


@planted(step_transitions, "lose")
def a_crash_forgets_who_was_asked_to_stop(real: Any) -> Any:
    def lose(state: Any, node: Node, **options: Any) -> None:
        node.stopping = ""
        real(state, node, **options)

    return lose


@planted(step_transitions, "_push_timer")
def the_end_of_a_back_off_is_never_armed(real: Any) -> Any:
    def push_timer(state: Any, due: int, kind: str, node: Node) -> None:
        if kind != "back-off":
            real(state, due, kind, node)

    return push_timer


@planted(decide, "settle")
def a_pause_still_admits(real: Any) -> Any:
    def settle(state: Any) -> None:
        pausing, state.pausing = state.pausing, ""
        real(state)
        state.pausing = pausing

    return settle


@planted(transitions, "_drop_what_died")
def a_resume_forgets_what_was_decided(real: Any) -> Any:
    def drop_what_died(state: Any) -> None:
        real(state)
        state.agenda.clear()

    return drop_what_died


@planted(transitions, "_raise_limits")
def raised_limits_are_ignored(real: Any) -> Any:
    def raise_limits(state: Any, data: Any) -> None:
        pass

    return raise_limits


# Open runs


@planted(outcomes, "wind_up")
def an_open_run_ends_when_it_is_idle(real: Any) -> Any:
    def wind_up(state: Any, node: Composite) -> None:
        growing, node.run.growing = node.run.growing, False
        real(state, node)
        node.run.growing = growing

    return wind_up


@planted(transitions, "end")
def an_open_run_does_not_hear_that_it_should_end(real: Any) -> Any:
    def end(state: Any, run: Any, data: Any) -> None:
        pass

    return end


@planted(step_transitions, "_wait_to_be_resumed")
def a_takeover_pays_for_interrupted_children_again(real: Any) -> Any:
    def wait_to_be_resumed(state: Any, node: Node) -> None:
        step_transitions._restart(state, node)

    return wait_to_be_resumed


@planted(step_transitions, "_wait_to_be_resumed")
def an_interrupted_child_keeps_its_slot(real: Any) -> Any:
    def wait_to_be_resumed(state: Any, node: Node) -> None:
        real(state, node)
        state.live += 1

    return wait_to_be_resumed


@planted(admission, "_choose")
def a_resumed_child_begins_a_new_attempt(real: Any) -> Any:
    def choose(state: Any, node: Node) -> None:
        node.lost = False
        real(state, node)

    return choose


@planted(progress, "add_step")
def a_turn_does_not_wait_for_the_one_before(real: Any) -> Any:
    def add_step(state: Any, scope: Scope, step: Any) -> Node:
        node: Node = real(state, scope, step)
        if step.after:
            node.unmet = 0
        return node

    return add_step


@planted(progress, "finish")
def a_turn_is_skipped_when_the_one_before_failed(real: Any) -> Any:
    def finish(state: Any, node: Node, status: str, reason: str = "") -> None:
        real(state, node, status, reason)
        for dependent in node.dependents:
            if status == "failed" and node.step.id in dependent.step.after and not dependent.unmet:
                dependent.blocked_by = node
                state.agenda.clear()
                progress.admit(state, dependent)

    return finish


@planted(step_transitions, "_closed")
def a_closed_child_is_given_another_turn(real: Any) -> Any:
    def closed(state: Any, node: Node, data: Any) -> None:
        pass

    return closed


@planted(transitions, "_turns_from")
def a_close_leaves_the_turns_behind_it(real: Any) -> Any:
    def turns_from(node: Node) -> list[Node]:
        return [node]

    return turns_from


@planted(transitions, "close")
def a_close_is_not_heard(real: Any) -> Any:
    def close(state: Any, run: Any, data: Any) -> None:
        pass

    return close


@planted(progress, "_end_spawned")
def what_an_agent_asked_for_outlives_it(real: Any) -> Any:
    def end_spawned(state: Any, node: Node) -> None:
        pass

    return end_spawned
