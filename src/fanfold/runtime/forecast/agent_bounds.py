"""How many agents a run may take: over conditions, lists, iterations and retries that nobody can know.

The least: no attempt fails, every unknown condition is false, every unknown list empty, every loop ends after
one iteration, every cacheable step is found in the cache. The most: all of them the other way round.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fanfold.kernel.lifecycle import TERMINAL
from fanfold.kernel.nodes import Composite, Loop, Map, Node, Scope, WorkflowCall
from fanfold.kernel.plan import GroupAction, Plan, Step, WorkflowAction
from fanfold.runtime.forecast.assumptions import Assumptions


class Bounds(NamedTuple):
    low: int
    high: int

    def times(self, low: int, high: int) -> Bounds:
        return Bounds(self.low * low, self.high * high)


NONE = Bounds(0, 0)


def _sum(parts: Iterable[Bounds]) -> Bounds:
    low = high = 0
    for part in parts:
        low += part.low
        high += part.high
    return Bounds(low, high)


class AgentBounds:
    """Reads the bounds off the instances of a forecast and what was assumed for them."""

    def __init__(self, plan: Plan, assumed: Assumptions) -> None:
        self._plan = plan
        self._assumed = assumed
        self._workflows: dict[str, Bounds] = {}

    def of(self, node: Node) -> Bounds:
        begun = node.children if isinstance(node, Composite) else node.attempt
        if node.status in TERMINAL and not begun:
            return NONE  # left out, cancelled before it began, or failed for certain
        found = self._of_composite(node) if isinstance(node, Composite) else _of_work(node.step)
        return found.times(0, 1) if node in self._assumed.conditions else found

    def _of_composite(self, node: Composite) -> Bounds:
        if not node.children:
            return self._not_looked_into(node)
        inside = [self.of(child) for child in node.children]
        if node in self._assumed.lists:
            return inside[0].times(0, node.step.max_items)
        if isinstance(node, Loop) and node in self._assumed.loops:
            assert node.step.repeat is not None
            rounds, fold = inside[: node.iteration], inside[node.iteration :]
            most = max(each.high for each in rounds) * node.step.repeat.max_iterations
            return _sum((Bounds(_sum(rounds).low, most), *fold))
        return _sum(inside)

    def _not_looked_into(self, node: Composite) -> Bounds:
        """There was no room for it in the forecast."""
        if isinstance(node, Map):
            return self._of_item(node.step).times(0, node.count or 0)
        if isinstance(node, Loop):
            return self._of_loop(node.step).times(0, 1)
        if isinstance(node, Scope | WorkflowCall):
            return self._of_body(node.step).times(0, 1)
        return NONE

    # Steps that were not looked into: by what the recipe says alone

    def _of_step(self, step: Step) -> Bounds:
        item = self._of_item(step)
        return item if step.for_each is None else item.times(0, step.max_items)

    def _of_item(self, step: Step) -> Bounds:
        found = self._of_loop(step)
        return found if step.when is None else found.times(0, 1)

    def _of_loop(self, step: Step) -> Bounds:
        body = self._of_body(step)
        if step.repeat is None:
            return body
        fold = NONE if step.fold is None else self._of_step(step.fold)
        return _sum((body.times(1, step.repeat.max_iterations), fold))

    def _of_body(self, step: Step) -> Bounds:
        action = step.action
        if isinstance(action, GroupAction):
            return _sum(self._of_step(inner) for inner in action.steps)
        if isinstance(action, WorkflowAction):
            return self._of_workflow(action.workflow)
        return _of_work(step)

    def _of_workflow(self, name: str) -> Bounds:
        if name not in self._workflows:
            steps = self._plan.workflows[name].steps
            self._workflows[name] = _sum(self._of_step(step) for step in steps)
        return self._workflows[name]


def _of_work(step: Step) -> Bounds:
    if step.traits.role is None:
        return NONE
    return Bounds(0 if step.cache else 1, step.retry.attempts)
