"""The kernel's behaviour, one situation a test, through `evolve` and `decide` alone."""

from __future__ import annotations

import pytest

from fanfold.errors import BugError
from fanfold.kernel.decide import is_waiting, next_timer
from fanfold.kernel.events import Event, ExecutionRef, Failure, LimitsRaised, RunResumed, StepEvent, Usage
from fanfold.kernel.explain import explain
from fanfold.kernel.plan import Budget, Limits, Plan, RetryPolicy
from fanfold.kernel.transitions import evolve
from tests.kernel.drive import Drive, agent, approval, call, command, function, group, plan, repeat

# Edges and slots


def test_a_chain_runs_in_order_one_after_the_other() -> None:
    run = Drive(plan(agent("a"), agent("b", "a"), agent("c", "b")))
    assert run.running() == ["a"]
    run.complete("a")
    assert run.running() == ["b"]
    run.complete_all()
    assert run.status() == "completed"
    assert run.starts == ["a", "b", "c"]


def test_independent_steps_start_together_up_to_the_number_of_slots() -> None:
    run = Drive(plan(*(agent(name) for name in "abcde")), max_concurrency=3)
    assert run.running() == ["a", "b", "c"]
    run.complete("b")
    assert run.running() == ["a", "c", "d"]


def test_a_free_slot_goes_to_the_earliest_ready_step_in_plan_order() -> None:
    """Declared first wins over ready first."""
    run = Drive(plan(agent("first"), agent("late", "first"), agent("z")), max_concurrency=1)
    run.complete("first")
    assert run.running() == ["late"]


def test_no_barrier_holds_a_step_whose_own_dependencies_ended() -> None:
    run = Drive(plan(agent("a"), agent("b"), agent("after_a", "a")))
    run.complete("a")
    assert "after_a" in run.running()


# Conflicts


def test_writers_with_overlapping_sets_run_one_after_the_other() -> None:
    run = Drive(plan(agent("a", write_set=("src/*.py",)), agent("b", write_set=("src/a.py",))))
    assert run.running() == ["a"]
    assert explain(run.state, run.node("b")).reason == "conflict"
    assert explain(run.state, run.node("b")).blocked_by == ("a",)
    run.complete("a")
    assert run.running() == ["b"]


def test_writers_with_disjoint_sets_run_together() -> None:
    run = Drive(plan(agent("a", write_set=("src/*.py",)), agent("b", write_set=("src/sub/a.py",))))
    assert run.running() == ["a", "b"]


def test_an_isolated_writer_does_not_hold_readers_back() -> None:
    run = Drive(plan(agent("w", write_set=("**/*",)), agent("r")))
    assert run.running() == ["w", "r"]


def test_a_shared_writer_waits_for_readers_of_its_files_and_later_ones_wait_for_it() -> None:
    """Readers that became ready with the writer start together; against others it holds its files."""
    shared = {"write_set": ("src/**",), "workspace_mode": "shared"}
    reads = {"read_set": ("src/a.py",)}
    run = Drive(
        plan(
            agent("r1", **reads),
            agent("w", **shared),
            agent("r2", **reads),
            agent("other", read_set=("docs/**",)),
            agent("late", "other", **reads),
        )
    )
    assert run.running() == ["r1", "r2", "other"]
    run.complete("other")
    assert run.running() == ["r1", "r2"]
    run.complete("r1", "r2")
    assert run.running() == ["w"]
    run.complete("w")
    assert run.running() == ["late"]


def test_a_process_that_cannot_use_a_wake_up_passes_it_on() -> None:
    """`both` and `p` wait in line for `first`; when that ends, `both` has to wait for `z` and lets `p` go."""
    run = Drive(
        plan(
            agent("z", write_set=("z",)),
            agent("first", write_set=("p", "q")),
            agent("both", write_set=("p", "z")),
            agent("p", write_set=("p", "q")),
        )
    )
    assert run.running() == ["z", "first"]
    run.complete("first")
    assert run.running() == ["z", "p"]
    run.complete("z")
    assert run.running() == ["p"]
    run.complete("p")
    assert run.running() == ["both"]


def test_a_parked_writer_is_not_overtaken_by_one_that_became_ready_later() -> None:
    """`wide` waits for `a`; `late` conflicts with `wide` alone and must not slip in before it."""
    steps = (
        agent("a", write_set=("a/**",)),
        agent("b"),
        agent("late", "b", write_set=("b/**",)),
        agent("wide", write_set=("**/*",)),
    )
    run = Drive(plan(*steps))
    run.complete("b")
    assert run.running() == ["a"]
    run.complete("a")
    assert run.running() == ["wide"]
    run.complete("wide")
    assert run.running() == ["late"]


def test_a_parked_step_keeps_its_turn_while_it_waits_for_a_slot() -> None:
    steps = (
        agent("x", write_set=("a/**",)),
        agent("y"),
        agent("late", "y", write_set=("a/**",)),
        agent("parked", write_set=("a/**",)),
    )
    run = Drive(plan(*steps), max_concurrency=2)
    run.complete("y")
    run.complete("x")
    assert run.running() == ["parked"]


# Failure


def test_a_failure_skips_dependents_and_lets_other_branches_finish() -> None:
    run = Drive(plan(agent("a"), agent("b", "a"), agent("c", "b"), agent("d")))
    run.fail("a")
    run.complete("d")
    assert run.status() == "partial"
    assert [run.status(p) for p in "abcd"] == ["failed", "skipped", "skipped", "completed"]
    assert explain(run.state, run.node("c")).reason == "failure"


def test_an_inline_failure_lets_dependents_run_but_the_run_is_not_called_completed() -> None:
    run = Drive(plan(agent("a", on_failure="inline"), agent("b", "a")))
    run.fail("a")
    run.complete("b")
    assert run.status() == "partial"


def test_stop_ends_everything_and_the_run_failed() -> None:
    run = Drive(plan(agent("a", on_failure="stop"), agent("b"), agent("c", "b")))
    run.fail("a")
    assert run.stops == [("b", "cancelled")]
    assert run.status() == "running", "a run is not over while something runs"
    run.report("b", "cancelled")
    assert run.status() == "failed"
    assert run.status("c") == "cancelled"


def test_a_run_in_which_nothing_completed_failed() -> None:
    run = Drive(plan(agent("a"), agent("b", "a")))
    run.fail("a")
    assert run.status() == "failed"


def test_a_false_condition_skips_and_dependents_run() -> None:
    run = Drive(plan(agent("a", when="no"), agent("b", "a")), values={"a": False})
    run.complete("b")
    assert run.status("a") == "skipped"
    assert run.status() == "completed"


def test_a_condition_that_cannot_be_evaluated_fails_the_step() -> None:
    broken = Failure("agent", "expression.failed", "no such key", retryable=False)
    run = Drive(plan(agent("a", when="x"), agent("b")), values={"a": broken})
    run.complete("b")
    assert run.status("a") == "failed"
    assert run.node("a").error == broken


def test_a_prompt_that_cannot_be_rendered_fails_the_step_before_it_starts() -> None:
    error = Failure("agent", "template.unresolved", "no field x", retryable=False)
    run = Drive(
        plan(agent("a"), agent("b", "a"), agent("c")), values={"a": StepEvent("a", "failed", error=error)}
    )
    run.complete("c")
    assert run.statuses() == {"a": "failed", "b": "skipped", "c": "completed"}


def test_a_cached_step_completes_without_running() -> None:
    hit = StepEvent("a", "completed", output="hash", cached=True)
    run = Drive(plan(agent("a"), agent("b", "a")), values={"a": hit})
    assert run.running() == ["b"]
    assert run.node("a").output == "hash"


# Retries and time


def test_a_retryable_failure_waits_a_recorded_back_off_and_tries_again() -> None:
    run = Drive(plan(agent("a", retry=RetryPolicy(attempts=2, backoff_ms=1_000))))
    run.fail("a", "transport")
    assert run.status("a") == "waiting"
    due = next_timer(run.state)
    assert due is not None
    assert 1_500 <= due <= 2_000
    run.wake()
    assert run.running() == ["a"]
    assert run.node("a").attempt == 2
    run.fail("a", "transport")
    assert run.status() == "failed"


def test_a_failure_of_another_class_is_not_retried() -> None:
    run = Drive(plan(agent("a", retry=RetryPolicy(attempts=5))))
    run.fail("a", "agent")
    assert run.status("a") == "failed"


def test_a_back_off_holds_no_slot_and_no_files() -> None:
    steps = (agent("a", write_set=("x",)), agent("b", write_set=("x",)))
    run = Drive(plan(*steps), max_concurrency=1)
    run.fail("a", "transport")
    assert run.running() == ["b"]


def test_a_timeout_stops_the_attempt_and_only_its_report_ends_the_step() -> None:
    run = Drive(plan(agent("a", timeout_ms=500)))
    run.wake()
    assert run.stops == [("a", "timed_out")]
    assert run.status("a") == "running"
    run.report("a", "timed_out")
    assert run.status("a") == "timed_out"


def test_the_timeout_of_a_group_cancels_what_is_inside() -> None:
    run = Drive(plan(group("g", agent("x"), agent("y", "x"), timeout_ms=100), agent("z")))
    run.wake()
    run.report("g/x", "cancelled")
    assert run.statuses() == {"g": "timed_out", "g/x": "cancelled", "g/y": "cancelled", "z": "running"}


def test_the_run_timeout_does_not_count_time_waiting_for_people() -> None:
    run = Drive(plan(approval("ok"), agent("a", "ok")), timeout_ms=1_000)
    assert is_waiting(run.state)
    assert next_timer(run.state) is None
    run.at += 50_000
    run.report("ok")
    assert next_timer(run.state) == run.at + 1_000
    run.wake()
    run.report("a", "cancelled")
    assert run.status() == "timed_out"


# Approvals


def test_an_approval_holds_no_slot_and_its_answer_frees_dependents() -> None:
    run = Drive(plan(approval("ok"), agent("a"), agent("b", "ok")), max_concurrency=1)
    assert run.running() == ["a"]
    run.complete("a")
    run.report("ok")
    assert run.running() == ["b"]


def test_an_unanswered_approval_takes_its_default() -> None:
    run = Drive(plan(approval("ok", default="approve", timeout_ms=10), agent("a", "ok")))
    run.wake()
    assert run.status("ok") == "completed"


def test_an_approval_without_a_default_times_out() -> None:
    run = Drive(plan(approval("ok", timeout_ms=10), agent("a", "ok")))
    run.wake()
    assert run.status("ok") == "timed_out"
    assert run.status("a") == "skipped"


# Groups, maps, loops


def test_items_flow_through_a_group_without_a_barrier() -> None:
    pipeline = group("g", agent("x"), agent("y", "x"), for_each="list")
    run = Drive(plan(pipeline), values={"g": 2})
    run.complete("g[0]/x")
    assert run.running() == ["g[0]/y", "g[1]/x"]
    run.complete_all()
    assert run.status("g") == "completed"


def test_a_failed_item_fails_the_map_after_the_others_have_finished() -> None:
    run = Drive(plan(agent("m", for_each="list"), agent("after", "m")), values={"m": 3})
    run.fail("m[1]")
    assert run.status("m") == "running"
    run.complete("m[0]", "m[2]")
    assert run.status("m") == "failed"
    assert run.status("after") == "skipped"


def test_an_inline_map_completes_around_its_failed_items() -> None:
    run = Drive(plan(agent("m", for_each="list", on_failure="inline"), agent("after", "m")), values={"m": 2})
    run.fail("m[0]")
    run.complete("m[1]", "after")
    assert run.status("m") == "completed"
    assert run.status() == "partial"


def test_an_empty_map_completes_at_once() -> None:
    run = Drive(plan(agent("m", for_each="list"), agent("after", "m")), values={"m": 0})
    assert run.running() == ["after"]


def test_a_condition_is_judged_per_item() -> None:
    run = Drive(plan(agent("m", for_each="list", when="item")), values={"m": 2, "m[0]": False})
    run.complete("m[1]")
    assert run.statuses() == {"m": "completed", "m[0]": "skipped", "m[1]": "completed"}
    assert run.status() == "completed"


def test_a_loop_runs_until_its_gate_passes() -> None:
    run = Drive(plan(agent("l", repeat=repeat(max_iterations=5))), values={"l": [False, False, True]})
    run.complete("l#1", "l#2", "l#3")
    assert run.status("l") == "completed"


def test_a_loop_that_never_passes_fails_with_its_own_code() -> None:
    run = Drive(plan(agent("l", repeat=repeat(max_iterations=2))), values={"l": False})
    run.complete("l#1", "l#2")
    error = run.node("l").error
    assert error is not None
    assert error.code == "step.not_converged"


def test_a_loop_with_a_fold_ends_with_its_fold() -> None:
    phase = group("p", agent("t"), repeat=repeat(), fold=agent("fold"))
    run = Drive(plan(phase, agent("after", "p")))
    run.complete("p#1/t")
    assert run.running() == ["p/fold"]
    run.complete("p/fold", "after")
    assert run.status() == "completed"


def test_a_loop_inside_a_map_is_addressed_by_item_then_iteration() -> None:
    step = agent("m", for_each="list", repeat=repeat())
    run = Drive(plan(step), values={"m": 2, "m[0]": [False, True], "m[1]": True})
    run.complete("m[0]#1", "m[0]#2", "m[1]#1")
    assert run.status() == "completed"


def test_a_scope_with_a_cap_leaves_slots_to_others() -> None:
    capped = group("g", agent("a"), agent("b"), agent("c"), max_concurrency=1)
    run = Drive(plan(capped, agent("z")))
    assert run.running() == ["g/a", "z"]
    assert explain(run.state, run.node("g/b")).reason == "scope_slots"
    run.complete("g/a")
    assert run.running() == ["g/b", "z"]


def test_sets_resolved_per_item_decide_conflicts() -> None:
    step = agent("m", for_each="list", write_set=("{{item}}",), templated_sets=True)
    sets = {"m[0]": {"write_set": ("a/**",)}, "m[1]": {"write_set": ("a/x",)}, "m[2]": {"write_set": ("b",)}}
    run = Drive(plan(step), values={"m": 3, **sets})
    assert run.running() == ["m[0]", "m[2]"]


# Child runs


def child_plan(*steps: object, **limits: object) -> dict[str, object]:
    return {"workflows": {"kid": plan(*steps, limits=Limits(**limits))}}  # type: ignore[arg-type]  # test data


def test_a_workflow_step_runs_as_a_child_and_ends_with_it() -> None:
    run = Drive(
        plan(call("c", "kid"), agent("after", "c"), workflows={"kid": plan(agent("x"), agent("y", "x"))})
    )
    assert run.running() == ["c/x"]
    assert set(run.state.runs) == {"r", "run-c"}
    run.complete("c/x", "c/y")
    assert run.status("c") == "completed"
    assert run.running() == ["after"]


def test_a_child_that_lost_work_fails_its_step() -> None:
    run = Drive(plan(call("c", "kid"), workflows={"kid": plan(agent("x"), agent("y"))}))
    run.fail("c/x")
    run.complete("c/y")
    assert run.state.runs["run-c"].status == "partial"
    assert run.status("c") == "failed"


def test_a_stop_inside_a_child_ends_the_child_alone() -> None:
    kid = plan(agent("x", on_failure="stop"), agent("y"))
    run = Drive(plan(call("c", "kid"), agent("z"), workflows={"kid": kid}))
    run.fail("c/x")
    run.report("c/y", "cancelled")
    assert run.state.runs["run-c"].status == "failed"
    run.complete("z")
    assert run.status() == "partial"


def test_slots_and_conflicts_span_the_whole_tree() -> None:
    kid = plan(agent("w", write_set=("a",)), agent("r"))
    run = Drive(
        plan(agent("w", write_set=("a",)), call("c", "kid"), workflows={"kid": kid}), max_concurrency=2
    )
    assert run.running() == ["w", "c/r"]


def test_cancelling_a_child_leaves_its_siblings_alone() -> None:
    kid = plan(agent("x"), agent("y", "x"))
    run = Drive(plan(call("c", "kid"), agent("z"), workflows={"kid": kid}))
    run.cancel("run-c")
    run.report("c/x", "cancelled")
    assert run.status("c") == "cancelled"
    run.complete("z")
    assert run.status() == "partial"


def test_a_child_nested_too_deep_fails_its_step() -> None:
    kids = {f"k{i}": plan(call("c", f"k{i + 1}")) for i in range(7)} | {"k7": plan(agent("x"))}
    run = Drive(plan(call("c", "k0"), agent("z"), workflows=kids))
    run.complete("z")
    assert run.status() == "partial"
    assert max(r.depth for r in run.state.runs.values()) == 5


# Cancel, pause, crash


def test_cancel_reaches_everything_and_is_recorded_only_when_all_has_stopped() -> None:
    kid = plan(agent("x"), approval("ok"))
    run = Drive(
        plan(agent("a"), call("c", "kid"), group("g", agent("i"), deps=("a",)), workflows={"kid": kid})
    )
    run.cancel()
    assert run.status() == "running"
    run.report("a", "cancelled")
    run.report("c/x", "cancelled")
    assert run.status() == "cancelled"
    assert set(run.statuses().values()) == {"cancelled"}


def test_pause_admits_nothing_new_and_resume_continues() -> None:
    run = Drive(plan(agent("a"), agent("b", "a"), agent("c")))
    run.pause()
    run.complete("a")
    run.report("c", "interrupted")
    assert run.status() == "paused"
    run.resume()
    assert run.running() == ["b", "c"]
    assert (run.node("c").attempt, run.node("c").execution) == (1, 2)


def test_a_crash_runs_again_what_was_running_and_nothing_else() -> None:
    run = Drive(plan(agent("a"), agent("b"), agent("c", "a")))
    run.complete("a")
    run.crash()
    run.resume()
    assert run.running() == ["b", "c"]
    assert run.node("b").execution == 2
    assert run.node("a").execution == 1
    run.complete_all()
    assert run.status() == "completed"


def test_a_cancel_interrupted_by_a_crash_is_finished_on_resume() -> None:
    run = Drive(plan(agent("a")))
    run.cancel()
    run.crash()
    run.resume()
    assert run.status() == "cancelled"


def test_a_result_of_a_lost_execution_is_recorded_as_late_and_not_applied() -> None:
    run = Drive(plan(agent("a")))
    run.crash()
    run.resume()
    run.report("a", "completed", execution=1)
    assert run.status("a") == "running"
    assert run.state.late == 1
    run.complete("a")
    run.report("a", "failed", error=Failure("agent", "x"))
    assert run.status() == "completed"
    assert run.state.late == 2


def test_an_execution_that_continues_under_a_new_owner_is_not_started_again() -> None:
    run = Drive(plan(agent("a"), agent("b"), agent("c", "a", "b")))
    run.crash()
    run.resume(continues=("a",))
    assert run.running() == ["a", "b"]
    assert (run.node("a").execution, run.node("b").execution) == (1, 2)
    run.report("a", "completed", execution=1)
    run.complete("b")
    assert run.running() == ["c"]


def test_a_cancelled_execution_that_continues_is_stopped_again_and_ends_the_run() -> None:
    run = Drive(plan(agent("a")))
    run.cancel()
    run.crash()
    run.resume(continues=("a",))
    assert run.status() == "running"
    assert sum(b'"stopping"' in line for line in run.lines) == 2
    run.report("a", "cancelled", execution=1)
    assert run.status() == "cancelled"


def test_an_execution_that_was_paused_continues_without_the_pause() -> None:
    run = Drive(plan(agent("a"), agent("b", "a")))
    run.pause()
    run.crash()
    run.resume(continues=("a",))
    run.report("a", "interrupted", execution=1)
    assert (run.running(), run.node("a").execution) == (["a"], 2)


def test_a_child_of_an_open_run_that_continues_is_not_interrupted() -> None:
    run = Drive(Plan(name="hand", open=True, steps=()))
    run.add(agent("a"))
    run.add(agent("b"))
    run.crash()
    run.resume(continues=("b",))
    assert (run.status("a"), run.status("b")) == ("waiting", "running")


@pytest.mark.parametrize("status", ["completed", "interrupted"])
def test_an_execution_that_has_ended_cannot_continue(status: str) -> None:
    run = Drive(plan(agent("a"), agent("b")))
    run.report("a", status, execution=1)
    with pytest.raises(BugError, match="that could continue"):
        run.report_run(RunResumed(2, continues=(ExecutionRef("r", "a", 1, 1),)))


def test_an_event_that_fits_no_transition_is_refused() -> None:
    run = Drive(plan(agent("a"), agent("b", "a")))
    with pytest.raises(BugError, match="cannot take"):
        evolve(run.state, Event("r", run.at, StepEvent("b", "completed", 1, 1)))


def test_an_owner_with_an_old_epoch_is_refused() -> None:
    run = Drive(plan(agent("a")))
    with pytest.raises(BugError, match="epoch"):
        run.report_run(RunResumed(1))


# Limits and budgets


def test_the_run_pauses_without_agents_left_and_resumes_with_more() -> None:
    run = Drive(plan(agent("a"), agent("b", "a"), function("f")), max_agents=1)
    run.complete("a")
    assert explain(run.state, run.node("b")).reason == "max_agents"
    run.complete("f")
    assert run.status() == "paused"
    run.resume(LimitsRaised(max_agents=2))
    run.complete("b")
    assert run.status() == "completed"


def test_retries_count_as_agents() -> None:
    run = Drive(plan(agent("a")), max_agents=1)
    run.fail("a", "transport")
    run.wake()
    assert run.status() == "paused"


def test_expanding_beyond_max_steps_pauses_the_run() -> None:
    run = Drive(plan(agent("m", for_each="list")), values={"m": 3}, max_steps=2)
    assert run.status() == "paused"
    assert explain(run.state, run.node("m")).reason == "max_steps"
    run.resume(LimitsRaised(max_steps=3))
    run.complete_all()
    assert run.status() == "completed"


def test_a_budget_pauses_before_it_is_exceeded_and_a_raise_resumes() -> None:
    run = Drive(plan(agent("a"), agent("b", "a"), agent("c", "b")), budget_tokens=25)
    run.complete("a", tokens=10)
    run.complete("b", tokens=10)
    assert run.status() == "paused"
    run.resume(LimitsRaised(budget_tokens=100))
    run.complete("c", tokens=10)
    assert run.status() == "completed"
    assert run.state.ledger.spent_tokens == 30


def test_parallel_reservations_do_not_overbook_the_budget() -> None:
    run = Drive(plan(agent("a"), agent("b", "a"), agent("c", "a"), agent("d", "a")), budget_tokens=35)
    run.complete("a", tokens=10)
    assert run.running() == ["b", "c"]


def test_a_budget_of_a_child_is_part_of_its_parents() -> None:
    kid = plan(agent("x"), agent("y", "x"), limits=Limits(budget=Budget(tokens=15)))
    run = Drive(plan(call("c", "kid"), agent("z"), workflows={"kid": kid}), budget_tokens=1_000)
    run.report("c/x", usage=Usage(10, 0, 0))
    run.report("z", usage=Usage(10, 0, 0))
    assert run.status() == "paused"
    assert run.state.ledger.spent_tokens == 20


def test_commands_and_functions_need_no_agents_or_budget() -> None:
    run = Drive(plan(command("x"), function("y")), max_agents=1, budget_tokens=1)
    assert run.running() == ["x", "y"]


def test_a_raise_on_resume_lifts_the_caps_of_scopes_too() -> None:
    run = Drive(plan(group("g", agent("a"), agent("b", "a"), max_agents=1)))
    run.complete("g/a")
    assert run.status() == "paused"
    run.resume(LimitsRaised(max_agents=2))
    run.complete("g/b")
    assert run.status() == "completed"


def test_the_timeout_of_a_group_does_not_count_paused_time() -> None:
    run = Drive(plan(group("g", agent("x"), timeout_ms=3_000)))
    run.pause()
    run.report("g/x", "interrupted")
    run.at += 60_000
    run.resume()
    assert run.running() == ["g/x"]
    assert next_timer(run.state) == run.at + 3_000


def test_a_money_budget_admits_nothing_after_spending_at_an_unknown_price() -> None:
    run = Drive(plan(agent("a"), agent("b", "a")), budget_micro_usd=1_000_000)
    run.report("a", usage=Usage(10, 5))
    assert run.status() == "paused"


def test_a_raise_never_lowers_a_limit() -> None:
    run = Drive(plan(agent("a"), agent("b", "a")), budget_tokens=100, max_agents=1)
    run.complete("a", tokens=10)
    run.resume(LimitsRaised(budget_tokens=5, max_agents=2))
    assert run.state.ledger.max_tokens == 100
    assert run.running() == ["b"]


def test_a_stopped_run_names_the_step_that_stopped_it() -> None:
    run = Drive(plan(agent("victim"), agent("culprit", on_failure="stop")))
    run.fail("culprit")
    run.report("victim", "cancelled")
    error = run.state.root.error
    assert error is not None
    assert error.code == "agent.test"
