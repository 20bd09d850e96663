"""Pictures of a plan: what each step is called, how scopes nest, and the graph as Mermaid text.

A plan is a tree of scopes and edges never leave their scope, so a picture is drawn the same way: every
scope is laid out by itself, and a group is a node of its outer scope as large as what it holds. The
layout is data (`Drawing`) that the SVG, the console and notebooks share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

from msgspec import Struct
from msgspec.structs import replace

from fanfold.kernel.plan import (
    GroupAction,
    Plan,
    Step,
)
from fanfold.runtime.steps.registry import label_of
from fanfold.runtime.views.graph.layout import place
from fanfold.text.excerpts import shorten_line

NODE_HEIGHT = 52.0
MIN_NODE_WIDTH = 132.0
MAX_NODE_WIDTH = 248.0
GROUP_PADDING = 16.0
GROUP_HEAD = 34.0
CHARACTER_WIDTH = 7.3


class Label(Struct, frozen=True):
    """What a node says: its id, who or what does it, and marks for anything special."""

    title: str
    subtitle: str
    kind: str
    """`reader`, `writer`, `command`, `function`, `workflow`, `approval` or `group`."""
    marks: tuple[str, ...]
    spoken: str
    """One sentence for a reader who cannot see the picture."""


class DrawnStep(Struct, frozen=True):
    path: str
    label: Label
    x: float
    y: float
    width: float
    height: float


class Edge(Struct, frozen=True):
    source: str
    target: str
    points: tuple[tuple[float, float], ...]


class Drawing(Struct, frozen=True):
    """Absolute positions; a group's box comes before the boxes it holds."""

    nodes: tuple[DrawnStep, ...]
    edges: tuple[Edge, ...]
    width: float
    height: float


def draw(plan: Plan) -> Drawing:
    """Lay out all steps of a plan, groups opened, sub-workflows closed."""
    return _scope(plan.steps, "")


def label(step: Step) -> Label:
    """How a step is presented in every picture and listing."""
    kind, subtitle = label_of(step)
    marks = tuple(_marks(step))
    spoken = f"{step.id}: {kind}" + (f" {subtitle}" if subtitle and subtitle != kind else "")
    if marks:
        spoken += f" ({', '.join(marks)})"
    if step.depends_on:
        spoken += f", after {', '.join(step.depends_on)}"
    return Label(step.id, subtitle, kind, marks, spoken)


def mermaid(plan: Plan) -> str:
    """The plan as a Mermaid flowchart, for Markdown pages that render it."""
    lines = ["flowchart LR"]
    writers: list[str] = []
    counter = count()
    _mermaid_scope(plan.steps, lines, writers, counter, "  ")
    if writers:
        lines.append("  classDef writer stroke:#b45309,stroke-width:2px")
        lines.append(f"  class {','.join(writers)} writer")
    return "\n".join(lines) + "\n"


def _marks(step: Step) -> Iterator[str]:
    if step.for_each is not None:
        yield "for each"
    if step.repeat is not None and step.repeat.max_iterations > 1:
        yield f"up to {step.repeat.max_iterations} times"
    if step.when is not None:
        yield "conditional"


def _scope(steps: Sequence[Step], prefix: str) -> Drawing:
    inner = {
        step.id: _scope(_children(step), f"{prefix}{step.id}/")
        for step in steps
        if isinstance(step.action, GroupAction)
    }
    labels = [label(step) for step in steps]
    sizes = [_size(labels[i], inner.get(step.id)) for i, step in enumerate(steps)]
    edges = _edges(steps)
    placed = place(sizes, edges)
    nodes: list[DrawnStep] = []
    links: list[Edge] = []
    for i, step in enumerate(steps):
        (x, y), (width, height) = placed.at[i], sizes[i]
        nodes.append(DrawnStep(f"{prefix}{step.id}", labels[i], x, y, width, height))
        if step.id in inner:
            held = inner[step.id]
            left = x + max((width - held.width) / 2, GROUP_PADDING)
            nodes += [_moved_node(node, left, y + GROUP_HEAD) for node in held.nodes]
            links += [_moved_edge(edge, left, y + GROUP_HEAD) for edge in held.edges]
    for (source, target), points in zip(edges, placed.routes, strict=True):
        links.append(Edge(f"{prefix}{steps[source].id}", f"{prefix}{steps[target].id}", points))
    return Drawing(tuple(nodes), tuple(links), placed.width, placed.height)


def _children(step: Step) -> tuple[Step, ...]:
    assert isinstance(step.action, GroupAction)
    if step.fold is None:
        return step.action.steps
    # The fold runs once after everything else in the phase; the picture shows it as its last step.
    held = step.action.steps
    leads_on = {before for inner in held for before in inner.depends_on}
    ends = tuple(inner.id for inner in held if inner.id not in leads_on)
    return (*held, replace(step.fold, depends_on=ends))


def _size(text: Label, inner: Drawing | None) -> tuple[float, float]:
    longest = max(len(shown(text.title)) * 1.05, len(shown(text.subtitle)) * 0.9)
    width = min(max(longest * CHARACTER_WIDTH + 44, MIN_NODE_WIDTH), MAX_NODE_WIDTH)
    if inner is None:
        return width, NODE_HEIGHT + (16.0 if text.marks else 0.0)
    head = (len(text.title) + sum(len(mark) + 3 for mark in text.marks)) * CHARACTER_WIDTH + 40
    held = inner.width + 2 * GROUP_PADDING
    return max(held, min(head, 480.0)), inner.height + GROUP_HEAD + GROUP_PADDING


def shown(text: str) -> str:
    """Text cut to what fits a node, on one line."""
    return shorten_line(text, int((MAX_NODE_WIDTH - 40) / CHARACTER_WIDTH))


def _moved_node(node: DrawnStep, dx: float, dy: float) -> DrawnStep:
    return DrawnStep(
        node.path, node.label, round(node.x + dx, 1), round(node.y + dy, 1), node.width, node.height
    )


def _moved_edge(edge: Edge, dx: float, dy: float) -> Edge:
    moved = tuple((round(x + dx, 1), round(y + dy, 1)) for x, y in edge.points)
    return Edge(edge.source, edge.target, moved)


def _mermaid_scope(
    steps: Sequence[Step], lines: list[str], writers: list[str], counter: Iterator[int], indent: str
) -> None:
    # Ids may be words of Mermaid's own (`end`), so nodes get neutral names.
    names = {step.id: f"s{next(counter)}" for step in steps}
    for step in steps:
        text, name = label(step), names[step.id]
        said = "<br/>".join(
            _mermaid_text(shown(word)) for word in (text.title, text.subtitle, *text.marks) if word
        )
        if text.kind == "writer":
            writers.append(name)
        if isinstance(step.action, GroupAction):
            lines.append(f'{indent}subgraph {name}["{said}"]')
            _mermaid_scope(_children(step), lines, writers, counter, indent + "  ")
            lines.append(f"{indent}end")
        else:
            left, right = {"approval": ("{{", "}}"), "workflow": ("[[", "]]")}.get(text.kind, ("[", "]"))
            lines.append(f'{indent}{name}{left}"{said}"{right}')
    for before, after in _edges(steps):
        lines.append(f"{indent}{names[steps[before].id]} --> {names[steps[after].id]}")


def _edges(steps: Sequence[Step]) -> list[tuple[int, int]]:
    """The edges worth drawing: one that a longer way already implies would only add lines."""
    index = {step.id: i for i, step in enumerate(steps)}
    needs = [[index[before] for before in step.depends_on] for step in steps]
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


def _mermaid_text(text: str) -> str:
    """Entity codes for everything Mermaid or HTML would read as syntax."""
    return "".join(c if c.isalnum() or c in " _-./@:,…*()+=" else f"#{ord(c)};" for c in text)
