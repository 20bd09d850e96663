"""One sentence per state: every status and reason is brought about, and what is said about it is true."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fanfold.kernel.events import Event, StepEvent, WaitOpened
from fanfold.kernel.explain import SENTENCES, Explanation, explain
from fanfold.kernel.plan import LeafAction, RetryPolicy, Step, Traits
from fanfold.kernel.state import STEP_STATUSES, TERMINAL, UNSUCCESSFUL
from tests.kernel.drive import Drive, agent, approval, call, group, plan

STATUSES = {
    "pending": {"dependencies", "deciding", "max_steps"},
    "ready": {"slots", "scope_slots", "conflict", "max_agents", "budget", "paused", "chosen"},
    "running": {"children", "running", "stopping", "interrupted", "out_of_budget", "max_steps"},
    "waiting": {"approval", "timer", "back-off", "held", "outage", "limit", "daily_cap", "interrupted"},
    "completed": {"completed"},
    "failed": {"failed"},
    "skipped": {"condition", "failure", "ended"},
    "cancelled": {"cancelled"},
    "timed_out": {"timed_out"},
}
"""The reasons that each status of the lifecycle table may have."""
WAITING_WORDS = ("waits", "is ready", "is held back", "is about to", "continues when", "until its")


class Watched(Drive):
    """Reads the sentence of every step after every event."""

    seen: list[Explanation]

    def _append(self, event: Event) -> None:
        super()._append(event)
        if not hasattr(self, "seen"):
            self.seen = []
        for run in self.state.runs.values():
            for node in run.nodes.values():
                found = explain(self.state, node)
                self.seen.append(found)
                check(self, found)


def check(run: Drive, found: Explanation) -> None:
    """What a sentence claims is so."""
    assert found.reason in STATUSES[found.status], found
    assert found.message.startswith(f"{found.path} {SENTENCES[found.reason]}"), found
    if found.status in TERMINAL:
        assert not any(word in found.message for word in WAITING_WORDS), found
    blockers = [run.node(path) for path in found.blocked_by]
    if found.reason in ("dependencies", "children", "slots", "scope_slots", "conflict"):
        assert all(node.status not in TERMINAL for node in blockers), found
    if found.reason in ("dependencies", "conflict", "slots"):
        assert blockers, found
    if found.reason == "failure":
        assert blockers
        assert blockers[0].status in UNSUCCESSFUL | {"skipped"}, found
    if found.status in UNSUCCESSFUL and blockers:
        assert blockers[0].status in UNSUCCESSFUL, found


def timer(id: str, timeout_ms: int) -> Step:
    return Step(
        id=id,
        action=LeafAction("novel", {}, Traits(slot=False, workspace="none", waits="timer")),
        timeout_ms=timeout_ms,
    )


def running() -> Watched:
    return Watched(plan(agent("a"), agent("b", "a"), group("g", agent("x"), agent("y", "x"), deps=("b",))))


def slots() -> Watched:
    return Watched(plan(agent("a"), agent("b")), max_concurrency=1)


def scope_slots() -> Watched:
    return Watched(plan(group("g", agent("a"), agent("b"), max_concurrency=1)))


def conflict() -> Watched:
    return Watched(plan(agent("a", write_set=("src/*.py",)), agent("b", write_set=("src/a.py",))))


def max_agents() -> Watched:
    run = Watched(plan(agent("a"), agent("b", "a")), max_agents=1)
    run.complete("a")
    return run


def budget() -> Watched:
    run = Watched(plan(agent("a"), agent("b", "a"), agent("c", "b")), budget_tokens=25)
    run.complete("a", tokens=10)
    run.complete("b", tokens=10)
    return run


def out_of_budget() -> Watched:
    run = Watched(plan(agent("a")), budget_tokens=25)
    run.report("a", "interrupted", reason="budget")
    return run


def max_steps() -> Watched:
    return Watched(plan(agent("m", for_each="list")), values={"m": 3}, max_steps=2)


def pausing() -> Watched:
    run = Watched(plan(agent("a"), agent("b"), agent("c")), max_concurrency=1)
    run.pause()
    return run


def paused() -> Watched:
    run = pausing()
    run.report("a", "interrupted")
    return run


def question() -> Watched:
    return Watched(plan(agent("before"), approval("ok", "before"), agent("after", "ok")))


def asked() -> Watched:
    run = question()
    run.complete("before")
    return run


def approved() -> Watched:
    run = asked()
    run.report("ok", "completed")
    return run


def timed() -> Watched:
    return Watched(plan(timer("t", timeout_ms=50)))


def back_off() -> Watched:
    run = Watched(plan(agent("a", retry=RetryPolicy(attempts=2, backoff_ms=5))))
    run.fail("a", "transport")
    return run


def held() -> Watched:
    return Watched(plan(agent("a")), values={"a": StepEvent("a", "held", summary="files")})


def waiting_for(reason: str) -> Callable[[], Watched]:
    def build() -> Watched:
        run = Watched(plan(agent("a"), agent("b", "a")), values={"b": StepEvent("b", "deferred", reason="p")})
        run.report_run(WaitOpened(subject="p", reason=reason, until=run.at + 1_000))
        run.complete("a")
        return run

    return build


def failed() -> Watched:
    run = Watched(plan(agent("m", for_each="list"), agent("after", "m")), values={"m": 2})
    run.fail("m[0]")
    run.complete_all()
    return run


def timed_out() -> Watched:
    run = Watched(plan(agent("a", timeout_ms=50)))
    run.wake()
    run.report("a", "timed_out")
    return run


def condition() -> Watched:
    return Watched(plan(agent("a", when="no")), values={"a": False})


def cancelled() -> Watched:
    run = running()
    run.cancel()
    run.report("a", "cancelled")
    return run


def ended() -> Watched:
    end = Step(id="end", action=LeafAction("end", {}, Traits(slot=False, workspace="none", ends="completed")))
    run = Watched(plan(end, agent("b", "end")))
    run.complete("end")
    return run


def child() -> Watched:
    return Watched(plan(call("c", "kid"), workflows={"kid": plan(agent("x"), agent("y", "x"))}))


CASES: dict[str, tuple[Callable[[], Watched], str, str, str]] = {
    "dependencies": (running, "b", "pending", "b waits for the steps it depends on (a)"),
    "slots": (slots, "b", "ready", "b is ready; every slot is taken (a)"),
    "scope_slots": (
        scope_slots,
        "g/b",
        "ready",
        "g/b is ready; the concurrency cap of its phase or run is reached (g/a)",
    ),
    "conflict": (conflict, "b", "ready", "b is ready; another step that uses the same files is first (a)"),
    "max_agents": (max_agents, "b", "ready", "b is held back: no agents are left under the limit"),
    "budget": (budget, "c", "ready", "c is held back: its reservation does not fit the budget"),
    "out_of_budget": (
        out_of_budget,
        "a",
        "running",
        "a stopped after its last recorded turn: the budget is used up",
    ),
    "max_steps": (
        max_steps,
        "m",
        "pending",
        "m is held back: expanding it would exceed the number of steps allowed",
    ),
    "stopping": (pausing, "a", "running", "a is running and was asked to stop"),
    "paused": (paused, "b", "ready", "b is held back: the run is paused"),
    "interrupted": (paused, "a", "running", "a was interrupted; it continues when the run is resumed"),
    "children": (child, "c", "running", "c is running until its steps have ended (c/x, c/y)"),
    "running": (running, "a", "running", "a is running"),
    "approval": (asked, "ok", "waiting", "ok waits for your answer"),
    "completed": (approved, "ok", "completed", "ok completed"),
    "timer": (timed, "t", "waiting", "t waits until its time is reached"),
    "back-off": (back_off, "a", "waiting", "a failed and waits for its next attempt: it broke"),
    "held": (held, "a", "waiting", "a waits for files that a run of another process uses"),
    "outage": (waiting_for("outage"), "b", "waiting", "b waits for a provider that is not available"),
    "limit": (waiting_for("limit"), "b", "waiting", "b waits for a usage limit to reset"),
    "daily_cap": (
        waiting_for("daily_cap"),
        "b",
        "waiting",
        "b waits for the next day: your daily cap is used up",
    ),
    "failed": (failed, "m", "failed", "m failed because m[0] failed: it broke"),
    "failure": (
        failed,
        "after",
        "skipped",
        "after was skipped: a step it depends on did not complete (m)",
    ),
    "timed_out": (timed_out, "a", "timed_out", "a timed out"),
    "condition": (condition, "a", "skipped", "a was skipped: its condition was false"),
    "ended": (ended, "b", "skipped", "b was skipped: another step ended the run"),
    "cancelled": (cancelled, "a", "cancelled", "a was cancelled"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_sentence_about_a_state_is_true(name: str) -> None:
    build, path, status, sentence = CASES[name]
    run = build()
    found = explain(run.state, run.node(path))
    assert (found.status, found.message) == (status, sentence)


def test_every_status_and_every_reason_was_seen() -> None:
    seen = {(one.status, one.reason) for build, *_ in CASES.values() for one in build().seen}
    assert {status for status, _ in seen} == set(STEP_STATUSES)
    assert {reason for _, reason in seen} == set(SENTENCES)
