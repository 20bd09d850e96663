"""The shapes that are measured, as plans and as plain graphs."""

from __future__ import annotations

import random

from fanfold.kernel.plan import GroupAction, Plan, Step
from fanfold.steps.function import FunctionBody

LAYER = 50
FAN_IN = 3


def chain(size: int) -> Plan:
    steps = [_step(i, (i - 1,) if i else ()) for i in range(size)]
    return Plan(name="chain", steps=tuple(steps))


def fan_out(size: int) -> Plan:
    """One step, many that depend on it, one that depends on all of them."""
    middle = [_step(i, (0,)) for i in range(1, size - 1)]
    last = _step(size - 1, tuple(range(1, size - 1)))
    return Plan(name="fan-out", steps=(_step(0, ()), *middle, last))


def layered(size: int) -> Plan:
    """Random edges between neighbouring layers; the same graph each time."""
    chance = random.Random(size)
    steps = []
    for i in range(size):
        layer = i // LAYER
        below = range((layer - 1) * LAYER, layer * LAYER)
        steps.append(_step(i, tuple(sorted(chance.sample(below, FAN_IN))) if layer else ()))
    return Plan(name="layered", steps=tuple(steps))


def conflicting(size: int) -> Plan:
    """Writers that all claim the whole workspace: the scheduler must serialise them."""
    steps = [
        _step(i, (), posture="writer", write_set=("**/*",), workspace_mode="isolated") for i in range(size)
    ]
    return Plan(name="conflicting writers", steps=tuple(steps))


def pipeline(size: int, stages: int = 5) -> Plan:
    """Items that flow through five stages each, every item's writer confined to its own folder."""
    claim = {"posture": "writer", "write_set": ("out/{{item}}/**",), "workspace_mode": "isolated"}
    inner = tuple(_step(i, (i - 1,) if i else (), templated_sets=True, **claim) for i in range(stages))
    items = size // stages
    group = Step(
        id="items", action=GroupAction(steps=inner), for_each="inputs.items", max_items=max(items, 1)
    )
    return Plan(name="pipeline", steps=(group,))


def _step(index: int, needs: tuple[int, ...], **more: object) -> Step:
    edges = tuple(f"s{i}" for i in needs)
    return Step(id=f"s{index}", action=FunctionBody(handler="h").action(), depends_on=edges, **more)  # type: ignore[arg-type]  # keywords of Step
