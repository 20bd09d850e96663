"""A digest contains what happened to each step, and nothing that depends on time or place."""

from __future__ import annotations

from fanfold.kernel.digest import digest
from fanfold.kernel.events import Event, Failure, RunCreated, Settings, StepEvent


def facts(*events: StepEvent, slots: int = 4) -> str:
    created = RunCreated(settings=Settings(max_concurrency=slots))
    return digest([Event("r", 0, created), *(Event("r", 1, event) for event in events)]).digest


def test_a_digest_contains_neither_executions_nor_interruptions_nor_late_results():
    calm = facts(StepEvent("a", "started", 1, 1), StepEvent("a", "completed", 1, 1, output="b1"))
    assert calm == facts(
        StepEvent("a", "started", 1, 1),
        StepEvent("a", "interrupted", 1, 1),
        StepEvent("a", "started", 1, 2),
        StepEvent("a", "completed", 1, 1, output="b2", late=True),
        StepEvent("a", "completed", 1, 2, output="b1"),
    )


def test_a_digest_contains_outputs_attempts_and_the_codes_of_failures():
    failed = StepEvent("a", "failed", 1, 1, error=Failure("tool", "tool.failed", "at 12:00"))
    same = StepEvent("a", "failed", 1, 1, error=Failure("tool", "tool.failed", "at 13:00"))
    others = [
        StepEvent("a", "failed", 1, 1, error=Failure("tool", "tool.other")),
        StepEvent("a", "failed", 2, 1, error=Failure("tool", "tool.failed")),
        StepEvent("b", "failed", 1, 1, error=Failure("tool", "tool.failed")),
        StepEvent("a", "completed", 1, 1, output="b1"),
        StepEvent("a", "completed", 1, 1, output="b2"),
    ]
    assert facts(failed) == facts(same)
    assert len({facts(event) for event in (failed, *others)}) == 6


def test_the_order_of_steps_counts_with_one_slot_only():
    one, two = StepEvent("a", "completed", 1, 1), StepEvent("b", "completed", 1, 1)
    assert facts(one, two) == facts(two, one)
    assert facts(one, two, slots=1) != facts(two, one, slots=1)
