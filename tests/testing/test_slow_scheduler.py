"""The kernel starts what a slow and obviously right scheduler starts, in the same order."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fanfold.kernel.commands import Command, Pause, Start
from fanfold.kernel.events import Data, Event, StepEvent
from fanfold.kernel.plan import GroupAction, Limits, Plan, RetryPolicy, Step
from fanfold.kernel.state import LEAF
from fanfold.language.leaf_steps import ApprovalBody, find_body
from fanfold.testing.simulate import create_run, live
from fanfold.testing.world import DELIVER, Owner, SimulatedWorld
from tests.testing.planted import plant
from tests.testing.slow_scheduler import Address, SlowScheduler
from tests.testing.test_planted import LEFT_TO_THE_SLOW_SCHEDULER


def without_trouble(plan: Plan) -> Plan:
    """The same plan with nothing that fails, times out or costs; what is left is scheduling."""
    limits = Limits(plan.limits.max_concurrency, plan.limits.max_agents)
    workflows = {name: without_trouble(other) for name, other in plan.workflows.items()}
    steps = tuple(step_without_trouble(step) for step in plan.steps)
    return replace(plan, steps=steps, limits=limits, workflows=workflows)


def with_deliveries(plan: Plan) -> Plan:
    """The same plan with steps that ask in the middle and then begin again: random plans have few of them."""
    workflows = {name: with_deliveries(other) for name, other in plan.workflows.items()}
    return replace(plan, steps=tuple(map(_as_delivery, plan.steps)), workflows=workflows)


def _as_delivery(step: Step) -> Step:
    if isinstance(step.action, GroupAction):
        inner = tuple(map(_as_delivery, step.action.steps))
        return replace(step, action=replace(step.action, steps=inner))
    return replace(step, action=DELIVER) if step.type == "command" else step


def step_without_trouble(step: Step) -> Step:
    action = step.action
    if isinstance(action, GroupAction):
        action = replace(action, steps=tuple(step_without_trouble(inner) for inner in action.steps))
    elif (asked := find_body(ApprovalBody, step)) is not None:
        action = replace(asked, default=None).action()
    when = "true" if step.when == "error" else step.when
    items = "items:2" if step.for_each == "error" else step.for_each
    return replace(
        step, action=action, timeout_ms=None, retry=RetryPolicy(attempts=1), when=when, for_each=items
    )


class Compared(Owner):
    """An owner that asks the slow scheduler whenever the kernel has handed out slots."""

    slow: SlowScheduler
    wave: list[Address]
    waves = 0
    agreed = 0
    """Deliveries that began again."""

    def record(self, run: str, data: Data, command: Command | None = None) -> None:
        super().record(run, data, command)
        self.slow.observe(Event(run, self.world.now, data), self.state)
        if isinstance(command, Start) and self.wave[:1] == [(command.run, command.step)]:
            self.wave.pop(0)
        if self.wave or self.state.root.status != "running":
            return
        agenda = list(self.state.agenda)
        if any(not isinstance(due, Pause) and not self.is_handed_out(due) for due in agenda):
            return  # there are questions to be answered before slots are handed out
        starts = [(due.run, due.step) for due in agenda if isinstance(due, Start)]
        self.agreed += isinstance(data, StepEvent) and data.execution > 1
        assert starts == self.slow.wave(self.state)
        self.wave = starts
        self.waves += bool(starts)

    def is_handed_out(self, command: Command) -> bool:
        if not isinstance(command, Start) or command.execution > 1:
            return False  # what begins again, because a person agreed, has its place already
        node = self.state.runs[command.run].nodes[command.step]
        return node.kind == LEAF and node.step.traits.waits is None


def compare(seed: int) -> tuple[int, int]:
    """Drive one random plan with both schedulers; the number of waves they agreed on, and of deliveries."""
    world = SimulatedWorld(seed)
    world.plan = without_trouble(world.plan if world.plan.open else with_deliveries(world.plan))
    world.additions = tuple(step_without_trouble(step) for step in world.additions)
    world.settings = replace(world.settings, timeout_ms=None, budget_tokens=None, budget_micro_usd=None)
    world.faults.rates = {}
    world.faults.calm = True
    owner = create_run(world, Compared)
    assert isinstance(owner, Compared)
    owner.slow, owner.wave = SlowScheduler(world.settings, is_open=world.plan.open), []
    live(owner)
    return owner.waves, owner.agreed


@pytest.mark.full
@pytest.mark.parametrize("first", range(0, 600, 100))
def test_both_schedulers_start_the_same_steps_in_the_same_order(first: int):
    counts = [compare(seed) for seed in range(first, first + 100)]
    assert sum(waves for waves, _ in counts) > 300
    assert sum(agreed for _, agreed in counts) > 50


@pytest.mark.parametrize("defect", sorted(LEFT_TO_THE_SLOW_SCHEDULER))
def test_a_scheduler_that_starts_others_or_in_another_order_is_noticed(defect: str):
    """Whatever it starts breaks no invariant as long as it is always the same; only this test sees it."""
    with plant(defect), pytest.raises(AssertionError):
        list(map(compare, range(50)))
