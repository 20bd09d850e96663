"""What the scheduler makes of the traits of a step whose type it has never heard of."""

from __future__ import annotations

from typing import Any

import msgspec

from fanfold.kernel.decide import is_waiting, needs_people, next_timer
from fanfold.kernel.explain import explain
from fanfold.kernel.plan import LeafAction, Plan, Step, Traits
from tests.kernel.drive import Drive, agent, plan


def step(id: str, *deps: str, traits: Traits, **more: Any) -> Step:
    if "write_set" in more:
        more.setdefault("posture", "writer")
    return Step(id=id, action=LeafAction("novel", {"word": id}, traits), depends_on=deps, **more)


def timer(id: str, *deps: str, **more: Any) -> Step:
    traits = Traits(slot=False, workspace="none", waits="timer")
    return step(id, *deps, traits=traits, **more)


def test_traits_that_are_the_usual_ones_are_not_written() -> None:
    text = msgspec.json.encode(Step(id="a", action=LeafAction("novel", {"word": "a"})))
    assert text == b'{"id":"a","action":{"kind":"leaf","type":"novel","body":{"word":"a"}}}'


def test_a_body_comes_back_from_json_as_it_was() -> None:
    before = plan(step("a", traits=Traits(slot=False)))
    assert msgspec.json.decode(msgspec.json.encode(before), type=Plan) == before


def test_a_step_without_a_slot_starts_when_all_slots_are_taken_and_takes_none() -> None:
    run = Drive(plan(agent("a"), step("b", traits=Traits(slot=False)), agent("c")), max_concurrency=1)
    assert run.running() == ["a", "b"]
    run.complete("a")
    assert run.running() == ["b", "c"]
    run.complete_all()
    assert run.status() == "completed"


def test_a_step_without_a_slot_starts_inside_a_run_that_has_none_left() -> None:
    run = Drive(plan(agent("a"), step("b", "a", traits=Traits(slot=False)), agent("c")), max_concurrency=1)
    run.complete("a")
    assert run.running() == ["b", "c"]


def test_a_step_with_a_role_counts_as_an_agent_whether_or_not_it_holds_a_slot() -> None:
    lead = Traits(slot=False, role="lead")
    run = Drive(plan(step("a", traits=lead), step("b", "a", traits=lead)), max_agents=1)
    run.complete("a", tokens=7)
    assert run.status() == "paused"
    assert explain(run.state, run.node("b")).reason == "max_agents"
    assert run.state.history == {"lead": [1, 7, 0]}


def test_a_step_without_a_slot_still_claims_its_files() -> None:
    lead = Traits(slot=False)
    run = Drive(plan(agent("a", write_set=("src/**",)), step("b", traits=lead, write_set=("src/a.py",))))
    assert run.running() == ["b"]
    assert explain(run.state, run.node("a")).blocked_by == ("b",)
    run.complete("b")
    assert run.running() == ["a"]


def test_a_step_that_touches_no_files_conflicts_with_none() -> None:
    apart = Traits(workspace="none")
    run = Drive(plan(agent("a", write_set=("**/*",), workspace_mode="shared"), step("b", traits=apart)))
    assert run.running() == ["a", "b"]


def test_a_pause_stops_a_step_without_a_slot_and_a_resume_runs_it_again() -> None:
    run = Drive(plan(step("a", traits=Traits(slot=False))))
    run.pause()
    assert run.stops == [("a", "pause")]
    run.report("a", "interrupted")
    assert run.status() == "paused"
    run.resume()
    assert run.node("a").execution == 2


def test_a_timer_ends_at_its_recorded_time_and_holds_no_slot() -> None:
    run = Drive(plan(timer("a", timeout_ms=50), agent("b", "a")), max_concurrency=1)
    assert run.status("a") == "waiting"
    assert explain(run.state, run.node("a")).reason == "timer"
    assert is_waiting(run.state)
    assert not needs_people(run.state)
    assert next_timer(run.state) == run.at + 50
    run.wake()
    assert run.status("a") == "completed"
    assert run.running() == ["b"]


def test_a_timer_that_came_due_without_an_owner_fires_at_the_takeover() -> None:
    run = Drive(plan(timer("a", timeout_ms=50), agent("b", "a")))
    run.crash()
    run.at += 10_000
    run.resume()
    assert run.running() == ["b"]


def test_a_question_that_fails_at_its_time_out_fails_and_one_with_a_default_completes() -> None:
    asks = Traits(slot=False, workspace="none", waits="person")
    falls_back = Traits(slot=False, workspace="none", waits="person", default="yes")
    run = Drive(plan(step("a", traits=asks, timeout_ms=50), step("b", traits=falls_back, timeout_ms=50)))
    run.wake()
    assert (run.status("a"), run.status("b")) == ("timed_out", "completed")
