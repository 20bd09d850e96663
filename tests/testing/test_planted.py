"""Every planted defect is found by a violated invariant, and the same schedules are clean without it."""

from __future__ import annotations

import pytest

from fanfold.testing import simulate as schedule
from fanfold.testing.simulate import run_schedule, simulate
from tests.testing.planted import PLANTED, plant

SEEDS = range(1, 2501)

CAUGHT_BY = {
    "a_close_is_not_heard": {9},
    "a_close_leaves_the_turns_behind_it": {9},
    "a_closed_child_is_given_another_turn": {10},
    "a_resumed_child_begins_a_new_attempt": {5, 13},
    "a_takeover_pays_for_interrupted_children_again": {12, 19},
    "a_turn_does_not_wait_for_the_one_before": {4, 14},
    "a_turn_is_skipped_when_the_one_before_failed": {0, 4},
    "an_interrupted_child_keeps_its_slot": {0, 19},
    "an_open_run_does_not_hear_that_it_should_end": {19},
    "an_open_run_ends_when_it_is_idle": {10},
    "a_cancellation_misses_the_last_item_of_a_map": {9},
    "a_child_run_finishes_before_its_last_step": {9, 14},
    "a_claim_is_never_released": {0, 19},
    "a_crash_forgets_who_was_asked_to_stop": {9},
    "a_decision_depends_on_something_outside_the_log": {3, 17, 19},
    "a_duplicate_is_not_marked_late": {0},
    "a_loop_ignores_max_iterations": {13},
    "a_map_forgets_its_last_item": {13},
    "a_parked_step_is_overtaken": {19},
    "a_pause_still_admits": {19},
    "a_reservation_leaks": {12},
    "a_budget_is_not_asked": {12},
    "a_result_is_paid_twice": {12},
    "a_resume_forgets_what_was_decided": {0, 19},
    "a_resume_restarts_a_completed_step": {6, 9, 10},
    "a_retry_forgets_its_attempt": {5},
    "a_skip_for_a_failure_does_not_reach_dependents": {4},
    "a_takeover_forgets_to_stop_what_continues": {9},
    "a_takeover_starts_running_executions_again": {0, 5, 9},
    "a_takeover_waits_for_dead_executions": {9, 19},
    "a_step_starts_before_its_last_dependency_ended": {4, 14},
    "an_inline_failure_skips_dependents": {4},
    "caps_of_scopes_are_ignored": {8},
    "max_steps_is_one_too_generous": {13},
    "nobody_wakes_who_waited_for_a_cap": {0, 19},
    "nobody_wakes_who_waited_for_a_conflict": {0, 19},
    "one_slot_too_many": {8},
    "raised_limits_are_ignored": {19},
    "results_of_lost_executions_are_applied": {10},
    "retries_do_not_count_as_agents": {13},
    "shared_writers_ignore_readers": {7, 19},
    "the_end_of_a_back_off_is_never_armed": {19},
    "what_an_agent_asked_for_outlives_it": {9},
    "what_was_spent_is_not_settled": {12},
}
"""Which invariants may be the first to notice; 0 is the kernel itself refusing to go on."""

LEFT_TO_THE_SLOW_SCHEDULER = {
    "order_by_address_in_reverse",
    "steps_that_became_ready_together_are_not_packed",
}


def test_every_planted_defect_has_a_test():
    assert set(PLANTED) == set(CAUGHT_BY) | LEFT_TO_THE_SLOW_SCHEDULER


@pytest.mark.full
@pytest.mark.parametrize("name", CAUGHT_BY)
def test_a_planted_defect_is_found(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(schedule, "PATIENCE_S", 3.0)
    with plant(name):
        for seed in SEEDS:
            violation = run_schedule(seed).violation
            if violation is not None:
                assert violation.number in CAUGHT_BY[name], violation
                return
    pytest.fail(f"{name} was not noticed in {len(SEEDS)} schedules")


@pytest.mark.full
def test_without_a_defect_the_same_schedules_are_clean_and_meet_every_construct_fault_and_transition():
    tally = simulate(SEEDS[0], len(SEEDS), jobs=1)
    assert tally.broken == []
    assert tally.schedules == len(SEEDS)
    assert tally.missing() == []
