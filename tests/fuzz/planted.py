"""Defects that the fuzzer has to find: each is one that runs once had, or might have had."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fanfold.kernel.commands import Conclude
from fanfold.kernel.state import COMPLETED
from fanfold.steps import values
from fanfold.steps.agent import AgentSteps
from fanfold.steps.order import Outcome

Plant = Callable[[pytest.MonkeyPatch], None]
PLANTED: dict[str, Plant] = {}


def planted(plant: Plant) -> Plant:
    PLANTED[plant.__name__] = plant
    return plant


@contextmanager
def defect(name: str) -> Iterator[None]:
    """Everything with this defect in it, in this process and those it forks."""
    with pytest.MonkeyPatch.context() as patch:
        PLANTED[name](patch)
        yield


@planted
def a_default_of_reject_completes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("fanfold.kernel.decide.judge", lambda *_: None)


@planted
def values_in_sets_are_patterns(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("fanfold.steps.step_type.escape", lambda text: text)


@planted
def a_digest_holds_whatever_stands_further_up(patch: pytest.MonkeyPatch) -> None:
    def before(node: Any) -> list[Any]:
        others = node.run.scope.children
        return [other for other in others if other.order < node.order and other.status == COMPLETED]

    patch.setattr(values, "_depended_on", before)


@planted
def a_failed_summary_fails_its_phase(patch: pytest.MonkeyPatch) -> None:
    def as_it_is(_self: Any, _job: Any, outcome: Outcome) -> Outcome:
        return outcome

    patch.setattr(AgentSteps, "rescue", as_it_is)


@planted
def the_end_of_a_back_off_is_a_second_result(patch: pytest.MonkeyPatch) -> None:
    def conclude(state: Any, node: Any, status: str, error: Any, reason: str = "") -> None:
        node.closing = True
        command = Conclude(node.run.id, node.path, status, node.attempt, node.execution, error, reason)
        state.agenda.append(command)

    for module in ("progress", "transitions", "step_transitions"):
        patch.setattr(f"fanfold.kernel.{module}.conclude", conclude)


@planted
def a_failed_round_ends_its_loop(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("fanfold.kernel.progress.can_be_repeated", lambda *_: False)


@planted
def nothing_is_tolerated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("fanfold.kernel.progress.is_tolerated", lambda _: False)


@planted
def everything_is_tolerated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("fanfold.kernel.progress.is_tolerated", lambda _: True)
