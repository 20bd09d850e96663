"""A dry run foretells what the embedded host starts, in which order and together with what.

5,000 plans are compared by `make agree`; here a sample, and dry runs with a defect, which must be noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from fanfold.engine.forecast import ForecastHost, Foresight
from tests.testing import agreement
from tests.testing.agreement import compare, find_disagreements, main

SEEDS = range(1, 301)


@pytest.mark.full
@pytest.mark.parametrize("first", range(SEEDS.start, SEEDS.stop, 100))
def test_dry_run_and_run_agree_on_random_plans(first: int):
    assert find_disagreements(range(first, first + 100)) == []


def test_bounds_of_a_forecast_apply_to_a_run_whose_cap_of_agents_was_lifted():
    assert compare(1243) is None


def one_slot_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ForecastHost.__init__

    def init(self: Any, plan: Any, settings: Any, *rest: Any) -> None:
        real(self, plan, replace(settings, max_concurrency=settings.max_concurrency + 1), *rest)

    monkeypatch.setattr(ForecastHost, "__init__", init)


def the_last_to_begin_is_heard_first(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ForecastHost._begin

    def begin(self: Any, start: Any) -> None:
        before = len(self._under_way)
        real(self, start)
        if len(self._under_way) > before:
            self._under_way[:] = sorted((until, -abs(n), *rest) for until, n, *rest in self._under_way)

    monkeypatch.setattr(ForecastHost, "_begin", begin)


def conditions_always_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Foresight, "admits", lambda *_: True)


def loops_never_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Foresight, "converged", lambda *_: True)


def sets_claim_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Foresight, "sets", lambda *_: (("**/*",), ("**/*",)))


DEFECTS = (
    one_slot_too_many,
    the_last_to_begin_is_heard_first,
    conditions_always_hold,
    loops_never_turn,
    sets_claim_everything,
)


@pytest.mark.parametrize("plant", DEFECTS, ids=lambda plant: plant.__name__)
def test_a_dry_run_with_a_defect_is_noticed(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
):
    plant(monkeypatch)
    assert any(compare(seed) is not None for seed in SEEDS)


def test_a_disagreement_names_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    one_slot_too_many(monkeypatch)
    seed = next(seed for seed in SEEDS if compare(seed) is not None)
    assert main(["--seed", str(seed), "--count", "1", "--jobs", "1"]) == 1
    out = capsys.readouterr().out
    assert f"python -m {agreement.__name__} --seed {seed} --count 1" in out
    assert "foretold" in out
