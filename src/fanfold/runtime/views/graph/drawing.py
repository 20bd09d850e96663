"""A graph with its places: what the SVG, the console, notebooks and exports draw.

Positions are absolute, and a box comes before the boxes it holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil, sqrt

from msgspec import Struct, field

from fanfold.kernel.plan import Plan
from fanfold.runtime.views.graph.boxes import Box, Boxes, Label, boxes_of_plan, cells_of, shown, tally_of
from fanfold.runtime.views.graph.layout import ROW_GAP, Placed, place

NODE_HEIGHT = 52.0
MARK_HEIGHT = 16.0
STRIP_HEIGHT = 14.0
MIN_NODE_WIDTH = 132.0
MAX_NODE_WIDTH = 248.0
GROUP_PADDING = 16.0
GROUP_HEAD = 34.0
CHARACTER_WIDTH = 7.3
CELL_WIDTH = 5.0
"""The least a cell of a strip is given, until the box is as wide as it may be."""


class DrawnStep(Struct, frozen=True, omit_defaults=True):
    """One box. `cells` is a strip of statuses for what is closed, `tally` counts all that is inside."""

    path: str
    x: float
    y: float
    w: float
    h: float
    kind: str
    look: str
    """Who does it, for colours and shapes: `reader`, `writer`, `command`, `approval` …"""
    title: str
    subtitle: str
    status: str
    spoken: str
    marks: tuple[str, ...] = ()
    open: bool = False
    parent: str | None = None
    run_id: str | None = None
    count: int | None = None
    cells: list[str] | None = None
    tally: dict[str, int] | None = None


class DrawnEdge(Struct, frozen=True):
    source: str = field(name="from")
    target: str = field(name="to")
    points: tuple[tuple[float, float], ...]


class Drawing(Struct, frozen=True):
    nodes: tuple[DrawnStep, ...]
    edges: tuple[DrawnEdge, ...]
    width: float
    height: float


def draw(plan: Plan, statuses: Mapping[str, str] | None = None) -> Drawing:
    """Lay out all steps of a plan, groups opened, sub-workflows closed; `statuses` are by path."""
    return draw_boxes(boxes_of_plan(plan, statuses))


def draw_boxes(boxes: Boxes) -> Drawing:
    """Give every box its place."""
    scope = _Scope(boxes)
    nodes: list[DrawnStep] = []
    edges: list[DrawnEdge] = []
    scope.collect(0.0, 0.0, None, nodes, edges)
    return Drawing(tuple(nodes), tuple(edges), scope.placed.width, scope.placed.height)


class _Scope:
    """One scope with places of its own, from its top left corner; what is open inside it likewise."""

    def __init__(self, boxes: Boxes) -> None:
        self._boxes = boxes
        self._inner = {i: _Scope(box.inside) for i, box in enumerate(boxes.boxes) if box.inside is not None}
        self._sizes = [_size(box, self._inner.get(i)) for i, box in enumerate(boxes.boxes)]
        if boxes.grid:
            self.placed = _grid(self._sizes)
        else:
            self.placed = place(self._sizes, boxes.edges, in_turn=boxes.added_one_by_one)

    def collect(
        self, dx: float, dy: float, parent: str | None, nodes: list[DrawnStep], edges: list[DrawnEdge]
    ) -> None:
        """Add everything here and below, moved to where this scope stands."""
        names = [box.path for box in self._boxes.boxes]
        for i, box in enumerate(self._boxes.boxes):
            (x, y), (width, height) = self.placed.at[i], self._sizes[i]
            nodes.append(_drawn(box, round(x + dx, 1), round(y + dy, 1), (width, height), parent))
            if (inner := self._inner.get(i)) is not None:
                left = x + max((width - inner.placed.width) / 2, GROUP_PADDING)
                inner.collect(left + dx, y + dy + GROUP_HEAD, box.path, nodes, edges)
        for (source, target), points in zip(self._boxes.edges, self.placed.routes, strict=True):
            moved = tuple((round(x + dx, 1), round(y + dy, 1)) for x, y in points) if dx or dy else points
            edges.append(DrawnEdge(names[source], names[target], moved))


def _drawn(box: Box, x: float, y: float, size: tuple[float, float], parent: str | None) -> DrawnStep:
    held = box.held
    return DrawnStep(
        path=box.path,
        x=x,
        y=y,
        w=round(size[0], 1),
        h=size[1],
        kind=box.kind,
        look=box.label.kind,
        title=box.label.title,
        subtitle=box.label.subtitle,
        status=box.status,
        spoken=box.label.spoken,
        marks=box.label.marks,
        open=box.inside is not None,
        parent=parent,
        run_id=box.run_id,
        count=None if held is None else len(held),
        cells=cells_of(held) if held and box.inside is None else None,
        tally=tally_of(held) if held else None,
    )


def _size(box: Box, inner: _Scope | None) -> tuple[float, float]:
    text = box.label
    if inner is not None:
        head = (len(text.title) + sum(len(mark) + 3 for mark in text.marks)) * CHARACTER_WIDTH + 40
        held = inner.placed.width + 2 * GROUP_PADDING
        return max(held, min(head, 480.0)), inner.placed.height + GROUP_HEAD + GROUP_PADDING
    width = _text_width(text)
    height = NODE_HEIGHT
    if box.held:
        # How many of how many are done stands before the subtitle, and a button behind it.
        counted = (len(shown(text.subtitle)) + 2 * len(str(len(box.held))) + 4) * 0.9 * CHARACTER_WIDTH + 64
        width = min(max(width, counted, len(box.held) * CELL_WIDTH + 32), MAX_NODE_WIDTH)
        height += STRIP_HEIGHT
    return width, height + (MARK_HEIGHT if text.marks else 0.0)


def _text_width(text: Label) -> float:
    longest = max(len(shown(text.title)) * 1.05, len(shown(text.subtitle)) * 0.9)
    return min(max(longest * CHARACTER_WIDTH + 58, MIN_NODE_WIDTH), MAX_NODE_WIDTH)


def _grid(sizes: list[tuple[float, float]]) -> Placed:
    """Rows of equal cells, about as wide as high, read from left to right."""
    if not sizes:
        return Placed((), (), 0.0, 0.0)
    width, height = max(w for w, _ in sizes) + ROW_GAP, max(h for _, h in sizes) + ROW_GAP
    columns = min(len(sizes), max(1, ceil(sqrt(len(sizes) * height * 1.6 / width))))
    at = tuple((i % columns * width, i // columns * height) for i in range(len(sizes)))
    rows = ceil(len(sizes) / columns)
    return Placed(at, (), round(columns * width - ROW_GAP, 1), round(rows * height - ROW_GAP, 1))


def spoken_in_order(drawing: Drawing) -> Iterator[str]:
    """Every box in one sentence, for a reader who cannot see the picture."""
    for node in drawing.nodes:
        yield f"{node.spoken} [{node.status}]" if node.status else node.spoken
