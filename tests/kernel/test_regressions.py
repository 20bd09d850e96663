"""Defects that simulation found, each as the smallest run that showed it."""

from __future__ import annotations

from fanfold.kernel.events import Failure, LimitsRaised, Payment, StepEvent, Usage, WaitOpened
from fanfold.kernel.plan import Budget, Limits, RetryPolicy, Step
from fanfold.language.leaf_steps import AgentBody
from fanfold.steps.deliver import DeliverBody
from fanfold.steps.set_and_end import EndBody
from tests.kernel.drive import Drive, agent, call, function, group, plan, repeat

TRIED_AGAIN = RetryPolicy(attempts=3, backoff_ms=100, on=("timeout", "transport"))


def test_a_timed_out_attempt_lost_in_a_crash_is_tried_again_after_its_back_off():
    """Its conclusion was already decided; the retry must not look as if it were still to be concluded."""
    run = Drive(plan(agent("a", timeout_ms=50, retry=TRIED_AGAIN)))
    run.wake()
    run.crash()
    run.resume()
    assert run.status("a") == "waiting"
    run.wake()
    assert run.running() == ["a"]
    run.complete_all()
    assert run.status() == "completed"


def test_a_child_run_stopped_before_its_log_exists_is_created_and_finished_empty():
    """`stop` fires between the start of a call and the creation of its child run."""
    child = plan(agent("inner"))
    root = plan(
        agent("first"),
        function("bad", "first", when="x", on_failure="stop"),
        call("kid", "child", "first"),
        workflows={"child": child},
    )
    run = Drive(root, values={"bad": Failure("agent", "expression.failed")})
    run.complete("first")
    assert run.status() == "failed"
    assert run.status("kid") == "cancelled"
    assert "kid/inner" not in run.starts


def test_groups_that_open_together_do_not_exceed_max_steps_together():
    first, second = (group(name, *(agent(f"{name}{n}") for n in range(4))) for name in ("x", "y"))
    run = Drive(plan(first, second), max_steps=7)
    assert run.state.instances <= 7
    run.complete_all()
    assert run.status() == "paused"
    run.resume(LimitsRaised(max_steps=100))
    run.complete_all()
    assert run.status() == "completed"


def test_reservations_of_a_cancelled_group_are_released():
    inner = group("g", agent("x"), agent("y"))
    root = plan(
        agent("first"),
        function("bad", "first", when="c", on_failure="stop"),
        group("late", inner, deps=("first",)),
    )
    run = Drive(root, values={"bad": Failure("agent", "expression.failed")})
    run.complete("first")
    assert run.status() == "failed"
    assert run.state.promised == 0


def test_a_fold_counts_as_a_step():
    fold = Step(id="fold", action=AgentBody(prompt="fold").action())
    run = Drive(plan(agent("a", repeat=repeat(), fold=fold)), max_steps=1)
    run.complete_all()
    assert run.status() == "paused"
    run.resume(LimitsRaised(max_steps=2))
    assert run.running() == ["a/fold"]
    run.complete_all()
    assert run.status() == "completed"


def test_a_fold_that_writes_in_the_shared_workspace_keeps_readers_away():
    fold = Step(
        id="fold",
        action=AgentBody(prompt="fold").action(),
        posture="writer",
        write_set=("src/**",),
        workspace_mode="shared",
    )
    run = Drive(plan(agent("reader"), agent("a", repeat=repeat(), fold=fold)))
    run.complete("a#1")
    assert run.running() == ["reader"]
    run.complete("reader")
    assert run.running() == ["a/fold"]


def test_a_budget_set_while_attempts_run_releases_only_what_it_reserved():
    child = plan(agent("inner"), limits=Limits(budget=Budget(tokens=100)))
    run = Drive(plan(call("kid", "child"), workflows={"child": child}))
    run.crash()
    run.resume(LimitsRaised(budget_tokens=50))
    run.complete("kid/inner", tokens=5)
    assert run.status() == "completed"
    assert run.state.ledger.reserved_tokens == 0


def test_a_spent_dollar_budget_admits_no_agent_even_a_cheap_one():
    dear = Step(id="dear", action=AgentBody("expensive").action(), depends_on=("free",))
    run = Drive(plan(agent("free"), dear, agent("again", "dear")), budget_micro_usd=10)
    run.report("free", usage=Usage(1, 1, 0))
    run.report("dear", usage=Usage(1, 1, 95))
    assert run.status() == "paused"
    assert "again" not in run.starts


def test_a_place_under_a_cap_passes_to_the_next_when_the_one_called_up_is_cancelled():
    """The step that was woken waited for a slot of the tree when its own group timed out."""
    inner = group("inner", function("b"), timeout_ms=100, on_failure="inline")
    capped = group("capped", function("a"), inner, function("c"), max_concurrency=1)
    later = (function(name, "x") for name in ("u", "v", "w"))
    run = Drive(plan(function("x"), *later, capped), max_concurrency=3)
    assert run.running() == ["x", "capped/a"]
    run.complete("x", "capped/a")
    assert run.running() == ["u", "v", "w"]
    run.wake()
    assert run.status("capped/inner/b") == "cancelled"
    run.complete("u")
    assert run.running() == ["v", "w", "capped/c"]


def test_a_step_cancelled_with_its_group_does_not_stop_the_run():
    """The group's own policy answers for its timeout; a `stop` inside is for failures inside."""
    inner = agent("slow", on_failure="stop")
    run = Drive(plan(group("g", inner, timeout_ms=50, on_failure="inline"), agent("after", "g")))
    run.wake()
    run.report("g/slow", "cancelled")
    assert run.status("g") == "timed_out"
    assert run.running() == ["after"]


def test_a_cache_hit_uses_up_no_agent():
    """`max_agents` counts sessions, and a cache hit starts none."""
    hit = StepEvent("a", "completed", 1, 1, cached=True)
    run = Drive(plan(agent("a"), agent("b", "a")), values={"a": hit}, max_agents=1)
    assert run.running() == ["b"]
    run.complete("b")
    assert run.status() == "completed"


def test_a_released_agent_slot_goes_to_the_step_that_the_cap_delayed():
    hit = StepEvent("a", "completed", 1, 1, cached=True)
    run = Drive(plan(agent("a"), agent("b"), function("f")), values={"a": hit}, max_agents=1)
    assert run.running() == ["b", "f"]


def test_a_question_that_is_reported_twice_is_asked_once():
    run = Drive(plan(Step(id="d", action=DeliverBody(branch="b", message="m").action())))
    run.report("d", "asked")
    run.report("d", "asked")
    assert run.status("d") == "waiting"
    run.report("d", "agreed")
    run.complete_all()
    assert run.status() == "completed"


def test_a_run_that_is_stopped_by_an_end_step_that_failed_is_not_completed():
    ends = Step(id="e", action=EndBody().action(), when="x", on_failure="stop")
    run = Drive(plan(agent("a"), ends), values={"e": Failure("agent", "expression.failed")})
    run.report("a", "cancelled")
    assert run.status() == "failed"


def test_a_deferred_retry_keeps_the_payments_of_the_attempt_before_it():
    """A late report of that attempt counts only what exceeds its payments."""
    run = Drive(plan(agent("a", retry=TRIED_AGAIN)))
    run.report_run(Payment(step="a", attempt=1, usage=Usage(25, 5, 19)))
    run.report("a", "failed", error=Failure("transport", "connection.reset"), usage=Usage(37, 5, 25))
    run.values["a"] = StepEvent("a", "held", 2, 1, reason="another run writes its files")
    run.wake()
    assert run.status("a") == "waiting"
    run.report("a", attempt=1, execution=1, usage=Usage(27, 5, 20))
    assert run.state.ledger.spent_tokens == 30 + (42 - 30) + (32 - 30)


def test_a_run_whose_probe_exceeds_the_budget_pauses_although_steps_wait_for_it():
    names = "a", "b", "c"
    run = Drive(
        plan(function("x"), *(agent(name, "x", retry=TRIED_AGAIN) for name in names)), budget_tokens=100
    )
    run.report_run(WaitOpened(subject="provider", reason="outage", until=run.at + 1_000, probes=True))
    run.values |= {name: StepEvent(name, "deferred", reason="provider") for name in names}
    run.complete("x")
    run.values.clear()
    run.wake()
    assert run.running() == ["a"]
    run.report("a", "timed_out", usage=Usage(200, 0, 0))
    run.wake()
    assert run.status() == "paused"
