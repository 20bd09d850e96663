"""A graph before it has places: boxes that hold boxes, and the edges between those of one scope.

A plan is a tree of scopes and edges never leave their scope, so a picture is made the same way: every scope
is laid out by itself, and what is open is a box of its outer scope as large as what it holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import count

from msgspec import Struct
from msgspec.structs import replace

from fanfold.kernel.lifecycle import PENDING
from fanfold.kernel.plan import GroupAction, Plan, Step
from fanfold.runtime.steps.registry import label_of
from fanfold.text.excerpts import shorten_line

MAX_SHOWN_CHARS = 28


class Label(Struct, frozen=True):
    """What a node says: its id, who or what does it, and marks for anything special."""

    title: str
    subtitle: str
    kind: str
    """`reader`, `writer`, `command`, `function`, `workflow`, `approval` or `group`."""
    marks: tuple[str, ...]
    spoken: str
    """One sentence for a reader who cannot see the picture."""


def label(step: Step) -> Label:
    """How a step is presented in every picture and listing."""
    shown = label_of(step)
    kind, subtitle = shown.kind, shown.who
    marks = tuple(_marks(step))
    spoken = f"{step.id}: {kind}" + (f" {subtitle}" if subtitle and subtitle != kind else "")
    if marks:
        spoken += f" ({', '.join(marks)})"
    if step.depends_on:
        spoken += f", after {', '.join(step.depends_on)}"
    return Label(step.id, subtitle, kind, marks, spoken)


def shown(text: str) -> str:
    """Text cut to what fits a node, on one line."""
    return shorten_line(text, MAX_SHOWN_CHARS)


def _marks(step: Step) -> Iterator[str]:
    if step.for_each is not None:
        yield "for each"
    if step.repeat is not None and step.repeat.max_iterations > 1:
        yield f"up to {step.repeat.max_iterations} times"
    if step.when is not None:
        yield "conditional"


MAX_CELLS = 300
"""Cells of a strip. Of more, each stands for several, and shows the one that needs attention most."""
_WORST_FIRST = (
    "failed", "timed_out", "waiting", "running", "cancelled", "ready", "pending", "skipped", "completed",
)  # fmt: skip


class Box(Struct, frozen=True, kw_only=True):
    """One step, or something that holds others: open, `inside` is drawn; closed, `held` is a strip."""

    path: str
    label: Label
    kind: str
    """`step`, `group`, `phase`, `map`, `loop` or `run`."""
    status: str = ""
    inside: Boxes | None = None
    held: tuple[str, ...] | None = None
    """Statuses of what is inside, in order; None for a step."""
    run_id: str | None = None
    """Of a call: the child run."""


class Boxes(Struct, frozen=True):
    """One scope. Without edges between them items stand in a grid instead of one endless column."""

    boxes: tuple[Box, ...]
    edges: tuple[tuple[int, int], ...]
    grid: bool = False
    added_one_by_one: bool = False
    """Boxes come to it while somebody looks: those that are there keep their order."""


def boxes_of_plan(plan: Plan, statuses: Mapping[str, str] | None = None) -> Boxes:
    """All steps of a plan: groups opened, sub-workflows closed. `statuses` by path, where it was run."""
    return _scope(plan.steps, "", statuses or {}, "" if statuses is None else PENDING)


def boxes_of_steps(steps: Sequence[Step], prefix: str, status: str) -> Boxes:
    """The steps of one scope as they are declared, each of them in `status`."""
    return _scope(steps, prefix, {}, status)


def kind_of(step: Step) -> str:
    """What is drawn for a declared step."""
    if step.for_each is not None:
        return "map"
    if step.repeat is not None and step.repeat.max_iterations > 1:
        return "loop"
    if isinstance(step.action, GroupAction):
        return "phase" if step.action.phase else "group"
    return "run" if step.type == "workflow" else "step"


def cells_of(held: Sequence[str]) -> list[str]:
    """At most `MAX_CELLS` statuses for a strip."""
    if len(held) <= MAX_CELLS:
        return list(held)
    bounds = [i * len(held) // MAX_CELLS for i in range(MAX_CELLS + 1)]
    return [min(held[bounds[i] : bounds[i + 1]], key=_WORST_FIRST.index) for i in range(MAX_CELLS)]


def tally_of(held: Sequence[str]) -> dict[str, int]:
    """How many are in each status, those that need attention first."""
    found = Counter(held)
    return {word: found[word] for word in _WORST_FIRST if found[word]}


def _scope(steps: Sequence[Step], prefix: str, statuses: Mapping[str, str], otherwise: str) -> Boxes:
    boxes = tuple(_box(step, prefix, statuses, otherwise) for step in steps)
    return Boxes(boxes, tuple(edges_of(steps)))


def _box(step: Step, prefix: str, statuses: Mapping[str, str], otherwise: str) -> Box:
    path, kind = f"{prefix}{step.id}", kind_of(step)
    inside = None
    if isinstance(step.action, GroupAction):
        inside = _scope(steps_inside(step), f"{path}/", statuses, otherwise)
    return Box(
        path=path,
        label=label(step),
        kind=kind,
        status=statuses.get(path, otherwise),
        inside=inside,
        held=tuple(_items(path, statuses)) if kind == "map" else None,
    )


def _items(path: str, statuses: Mapping[str, str]) -> Iterator[str]:
    for i in count():
        if (status := statuses.get(f"{path}[{i}]")) is None:
            return
        yield status


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
