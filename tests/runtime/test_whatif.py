"""What-if: a recorded run through the scheduler again, with the slots it had and with others."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import pairwise
from random import Random

import pytest
from msgspec.structs import replace

from fanfold.engine.forecast import ForecastHost, RecordedResults, Recording, without_deadlines
from fanfold.kernel.decide import next_timer
from fanfold.kernel.events import Event, Failure, RunCreated, RunStarted, Settings, StepEvent, TimerFired
from fanfold.kernel.plan import Plan
from fanfold.kernel.state import ASKED, RUN_TERMINAL, Node
from fanfold.steps.step_type import type_of
from fanfold.testing.world import random_plan, random_settings
from tests.testing.agreement import INPUTS, TickedRun, in_cel


class TimedRun(TickedRun):
    """Attempts take a few milliseconds each, and some fail; a person answers at once."""

    def __init__(self, plan: Plan, settings: Settings, rng: Random) -> None:
        super().__init__(plan, settings)
        self.rng = rng
        created = RunCreated(plan=plan, settings=settings, inputs=self.tree.blobs.put(INPUTS))
        self.events = [Event(self.tree.root.id, 0, created)]
        self.starts: list[tuple[int, str]] = []
        self._under_way: list[tuple[int, int, Node, StepEvent]] = []
        self._numbers: dict[tuple[Node, int], int] = {}
        self.agreements = 0

    def drive(self) -> None:
        self._tell_at(self.tree.root.id, 0, RunStarted())
        while self.tree.root.status not in RUN_TERMINAL:
            timer = next_timer(self.tree.state)
            if self._under_way and (timer is None or self._under_way[0][0] <= timer):
                now, _, node, end = heappop(self._under_way)
                self._tell_at(node.run.id, now, end)
                if node.reason == ASKED:
                    self.agreements += 1
                    self._tell_at(node.run.id, now, replace(end, status="agreed"))
            else:
                assert timer is not None
                self._tell_at(self.tree.root.id, timer, TimerFired())

    def _tell_at(self, run: str, now: int, data: RunStarted | TimerFired | StepEvent) -> None:
        self._report(self.tree.state.runs[run], now, data)
        pending = self.tree.pending
        self.events += [Event(one.run_id, one.at, one.data) for one in pending if one.type != "budget_event"]
        for node in self._started(now):
            if node.execution <= 1:
                self._numbers[node, node.attempt] = len(self.starts)
                self.starts.append((now, node.run.tree_path(node.path)))
            takes = 0 if node.step.traits.waits == "person" else self.rng.randint(1, 9)
            number = self._numbers[node, node.attempt]
            heappush(self._under_way, (now + takes, number, node, self._outcome(node)))

    def _outcome(self, node: Node) -> StepEvent:
        end = replace(self._end(node), usage=None)
        if node.step.type == "deliver" and not node.agreed:
            return replace(end, status=ASKED, output=None)
        if node.step.traits.waits is None and self.rng.random() < 0.2:
            error = Failure(self.rng.choice(("transport", "agent")), "sim.failed")
            return replace(end, status="failed", output=None, error=error)
        return end


def record(seed: int) -> TimedRun:
    rng = Random(seed)
    plan = random_plan(rng)
    slots = random_settings(rng, plan).max_concurrency
    run = TimedRun(without_deadlines(in_cel(plan, rng)), Settings(slots, 500, 5_000, None), rng)
    run.drive()
    return run


def replay(run: TimedRun, slots: int) -> tuple[ForecastHost, RecordedResults]:
    recording = Recording(run.events)
    world = RecordedResults(recording)
    settings = replace(recording.settings, max_concurrency=slots)
    host = ForecastHost(recording.plan, settings, world, run_id=recording.run_id)
    host.drive()
    return host, world


@pytest.mark.full
@pytest.mark.parametrize("first", range(1, 201, 50))
def test_with_the_slots_it_had_a_replayed_run_is_the_run_that_was(first: int):
    failed = agreements = 0
    for seed in range(first, first + 50):
        run = record(seed)
        host, world = replay(run, run.tree.state.slots)
        work = [one for one in host.begun if not type_of(one.node.step).settled]
        assert [(one.at, one.node.run.tree_path(one.node.path)) for one in work] == run.starts, seed
        assert (host.now, world.unknown) == (run.tree.state.now, 0), seed
        assert Recording(run.events).lost == 0, seed
        agreements += run.agreements
        assert host.state.root.status == run.tree.root.status, seed
        failed += run.tree.root.status != "completed"
    assert failed > 5
    assert agreements > 5


def test_with_one_slot_no_two_attempts_overlap():
    for seed in range(1, 40):
        host, _ = replay(record(seed), 1)
        work = [one for one in host.begun if one.node.step.traits.slot]
        assert all(before.until <= after.at for before, after in pairwise(work))
