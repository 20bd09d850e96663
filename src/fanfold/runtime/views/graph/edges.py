"""The edges of one scope that are worth drawing, and the steps that stand in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from fanfold.kernel.plan import GroupAction, Step


def edges_of(steps: Sequence[Step]) -> list[tuple[int, int]]:
    """Pairs of places in `steps`; an edge that a longer way already implies would only add lines."""
    index = {step.id: i for i, step in enumerate(steps)}
    needs = [
        [index[before] for before in dict.fromkeys((*step.depends_on, *step.after)) if before in index]
        for step in steps
    ]
    above: dict[int, int] = {}  # bit set of everything a step comes after
    for i in _topological(needs):
        above[i] = 0
        for before in needs[i]:
            above[i] |= above[before] | 1 << before
    return [
        (before, i)
        for i, befores in enumerate(needs)
        for before in befores
        if not any(above[other] >> before & 1 for other in befores)
    ]


def steps_inside(step: Step) -> tuple[Step, ...]:
    """What a group holds. Its fold runs once after everything else, and is shown as its last step."""
    assert isinstance(step.action, GroupAction)
    if step.fold is None:
        return step.action.steps
    held = step.action.steps
    leads_on = {before for inner in held for before in inner.depends_on}
    ends = tuple(inner.id for inner in held if inner.id not in leads_on)
    return (*held, replace(step.fold, depends_on=ends))


def _topological(needs: Sequence[Sequence[int]]) -> Iterator[int]:
    """Steps may be declared in any order."""
    waiting = [len(befores) for befores in needs]
    after: list[list[int]] = [[] for _ in needs]
    for i, befores in enumerate(needs):
        for before in befores:
            after[before].append(i)
    ready = [i for i, left in enumerate(waiting) if not left]
    for i in ready:
        yield i
        for later in after[i]:
            waiting[later] -= 1
            if not waiting[later]:
                ready.append(later)
