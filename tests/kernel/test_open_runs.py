"""Open runs: a plan that is written while it runs."""

from __future__ import annotations

from typing import Any

import pytest

from fanfold.errors import BugError
from fanfold.kernel.decide import is_waiting, next_timer
from fanfold.kernel.events import CloseRequested, EndRequested, ResumeRequested
from fanfold.kernel.explain import explain
from fanfold.kernel.plan import Plan, RetryPolicy
from tests.kernel.drive import Drive, agent, function, group


def hand(**settings: Any) -> Drive:
    return Drive(Plan(name="hand", open=True, steps=()), **settings)


def test_an_open_run_waits_for_people_until_its_end_is_requested():
    run = hand()
    assert (run.status(), is_waiting(run.state), next_timer(run.state)) == ("running", True, None)
    run.add(agent("a"))
    assert run.running() == ["a"]
    run.complete("a")
    assert (run.status(), is_waiting(run.state)) == ("running", True)
    run.report_run(EndRequested())
    assert run.status() == "completed"


def test_a_requested_end_comes_with_its_last_step():
    run = hand()
    run.add(agent("a"))
    run.report_run(EndRequested())
    assert run.status() == "running"
    with pytest.raises(BugError, match="accepts no more steps"):
        run.add(agent("b"))
    run.complete("a")
    assert run.status() == "completed"


def test_steps_queue_in_the_order_they_were_added_and_may_depend_on_earlier_ones():
    run = hand(max_concurrency=2)
    run.add(agent("a"), agent("b"), agent("c"), function("d", "a"), group("g", agent("in"), deps=("a",)))
    assert run.running() == ["a", "b"]
    assert explain(run.state, run.node("c")).reason == "slots"
    run.complete("a")
    assert run.running() == ["b", "c"]
    run.complete("b", "c")
    assert run.running() == ["d", "g/in"]


def test_a_step_that_is_added_behind_a_failure_is_skipped():
    run = hand()
    run.add(agent("a"))
    run.fail("a")
    run.add(agent("b", "a"))
    assert run.status("b") == "skipped"


def test_neither_time_nor_agents_nor_steps_bound_it():
    run = hand(max_agents=1, max_steps=1, timeout_ms=10, max_concurrency=8)
    run.add(agent("a"), agent("b"), agent("c"))
    assert run.running() == ["a", "b", "c"]
    assert next_timer(run.state) is None


@pytest.mark.parametrize("end", ["completed", "failed", "timed_out", "cancelled"])
def test_the_next_turn_begins_when_the_one_before_ended_however_it_ended(end: str):
    run = hand()
    run.add(agent("a"))
    second = run.send("a", 2)
    assert run.running() == ["a"]
    assert explain(run.state, run.node(second)).blocked_by == ("a",)
    if end == "failed":
        run.fail("a")
    else:
        run.report("a", end)
    assert run.running() == [second]


def test_input_for_a_finished_child_starts_it_again():
    run = hand()
    run.add(agent("a"))
    run.fail("a")
    assert run.running() == []
    run.send("a", 2)
    assert run.running() == ["a#2"]


def test_closing_a_running_child_cancels_it_and_what_waits_behind_its_turn():
    run = hand()
    run.add(agent("a"))
    run.send("a", 2)
    run.report_run(CloseRequested("a"))
    assert run.stops == [("a", "cancelled")]
    assert (run.status("a"), run.status("a#2")) == ("running", "cancelled")
    run.report("a", "cancelled")
    assert run.running() == []
    run.send("a", 3)
    assert run.running() == ["a#3"]


def test_input_for_a_closing_child_waits_for_its_end_and_is_closed_with_it():
    run = hand()
    run.add(agent("a"))
    run.send("a", 2)
    run.report_run(CloseRequested("a"))
    run.send("a", 3)
    assert run.running() == ["a"]  # never two turns of one conversation at a time
    run.report_run(CloseRequested("a"))
    assert run.status("a#3") == "cancelled"
    run.send("a", 4)
    run.report("a", "cancelled")
    assert run.running() == ["a#4"]


def test_a_closed_child_accepts_no_input():
    run = hand()
    run.add(agent("a"))
    run.complete("a")
    run.report("a", "closed")
    with pytest.raises(BugError, match="a is closed"):
        run.send("a", 2)
    run.add(agent("b", "a"))
    assert run.running() == ["b"]


def test_a_child_that_still_runs_cannot_be_marked_closed():
    run = hand()
    run.add(agent("a"))
    with pytest.raises(BugError, match="cannot take 'closed'"):
        run.report("a", "closed")


def test_taking_an_open_run_over_starts_nothing_that_was_interrupted():
    run = hand(max_concurrency=1)
    run.add(agent("a", write_set=("x",)), agent("b", write_set=("x",)))
    run.crash()
    run.resume()
    assert (run.status("a"), explain(run.state, run.node("a")).reason) == ("waiting", "interrupted")
    assert run.running() == ["b"], "the place and the files of the interrupted one are free"
    run.report_run(ResumeRequested("a"))
    assert run.running() == ["b"], "it queues like everybody"
    run.complete("b")
    assert run.running() == ["a"]
    assert (run.node("a").attempt, run.node("a").execution) == (1, 2)
    run.report("a", "completed", execution=1)
    assert (run.status("a"), run.state.late) == ("running", 1)
    run.complete("a")
    assert run.status("a") == "completed"


def test_an_interrupted_child_can_be_closed():
    run = hand()
    run.add(agent("a"))
    run.crash()
    run.resume()
    assert is_waiting(run.state)
    run.report_run(CloseRequested("a"))
    assert run.status("a") == "cancelled"
    run.report("a", "closed")
    run.report_run(EndRequested())
    assert run.status() == "failed"


def test_an_open_run_that_is_paused_still_takes_steps():
    run = hand()
    run.pause()
    run.add(agent("a"))
    assert (run.status(), run.status("a")) == ("paused", "ready")
    run.resume()
    assert run.running() == ["a"]


def test_cancelling_an_open_run_ends_it():
    run = hand()
    run.add(agent("a"))
    run.complete("a")
    run.cancel()
    assert run.status() == "cancelled"


def test_requests_of_an_agent_end_with_it():
    run = hand()
    run.add(agent("a"))
    run.add(agent("b", parent="a"), agent("c", "b", parent="a"))
    run.complete("a")
    assert run.stops == [("b", "cancelled")]
    assert run.status("c") == "cancelled"
    with pytest.raises(BugError, match="a is not running"):
        run.add(agent("d", parent="a"))


def test_a_child_that_is_closed_while_its_time_is_up_is_not_tried_again():
    run = hand()
    run.add(agent("a", timeout_ms=10, retry=RetryPolicy(attempts=3, on=("timeout",))))
    run.wake()
    assert run.stops == [("a", "timed_out")]
    run.report_run(CloseRequested("a"))
    run.report("a", "timed_out")
    assert run.status("a") == "timed_out"
