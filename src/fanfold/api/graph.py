"""Drawings of graphs with positions, for SVG, the console, notebooks and exports.

Positions are absolute. A box comes before the boxes inside it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from html import escape
from itertools import count, groupby, takewhile
from math import ceil, sqrt
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from fanfold.api.approvals import KINDS, MARKS, item_name, status_of
from fanfold.api.graph_layout import ROW_GAP, GraphLayout, place
from fanfold.engine.run_tree import RunTree
from fanfold.kernel.plan import GroupAction, Plan, Step
from fanfold.kernel.state import LEAF, LOOP, MAP, PENDING, SCOPE, Composite, Node, Run, WorkflowCall
from fanfold.language.terminal import shorten_line
from fanfold.steps.step_type import label_of

# -----------------------------------------------------------------------------------------------------------
# A graph before layout: nested boxes, and the edges between the boxes of one scope
#
# A plan is a tree of scopes, and edges never leave their scope. So every scope is laid out separately. An
# open box is a box of its outer scope, as large as its contents.

MAX_SHOWN_CHARS = 28


class Label(Struct, frozen=True):
    """The text of a node: its id, the role or program, and marks for special properties."""

    title: str
    subtitle: str
    kind: str
    """`reader`, `writer`, `command`, `function`, `workflow`, `approval` or `group`."""
    marks: tuple[str, ...]
    spoken: str
    """One sentence for a reader who cannot see the picture."""


def label(step: Step) -> Label:
    """Return the label of a step for every picture and listing."""
    shown = label_of(step)
    kind, subtitle = shown.kind, shown.who
    times = 1 if step.repeat is None else step.repeat.max_iterations
    marks = ["for each"] if step.for_each is not None else []
    marks += [f"up to {times} times"] if times > 1 else []
    marks += ["conditional"] if step.when is not None else []
    spoken = f"{step.id}: {kind}" + (f" {subtitle}" if subtitle and subtitle != kind else "")
    if marks:
        spoken += f" ({', '.join(marks)})"
    if step.depends_on:
        spoken += f", after {', '.join(step.depends_on)}"
    return Label(step.id, subtitle, kind, tuple(marks), spoken)


def shown(text: str) -> str:
    """Shorten text to one line that fits a node."""
    return shorten_line(text, MAX_SHOWN_CHARS)


MAX_CELLS = 300
"""Maximum of cells in a strip. If there are more items, each cell shows the worst status of several."""
_WORST_FIRST = (
    "failed", "timed_out", "waiting", "running", "cancelled", "ready", "pending", "skipped", "completed",
)  # fmt: skip


class Box(Struct, frozen=True, kw_only=True):
    """One step, or a container. If open, `inside` is drawn; if closed, `held` is drawn as a strip."""

    path: str
    label: Label
    kind: str
    """`step`, `group`, `phase`, `map`, `loop` or `run`."""
    status: str = ""
    inside: Boxes | None = None
    held: tuple[str, ...] | None = None
    """Statuses of the contents, in order; None for a step."""
    run_id: str | None = None
    """The child run of a call."""


class Boxes(Struct, frozen=True):
    """One scope. Items without edges are placed in a grid instead of one long column."""

    boxes: tuple[Box, ...]
    edges: tuple[tuple[int, int], ...]
    grid: bool = False
    added_one_by_one: bool = False
    """Whether boxes may be added while the graph is shown: existing boxes then keep their order."""


def kind_of(step: Step) -> str:
    """Return the kind of box for a declared step."""
    if step.for_each is not None:
        return "map"
    if step.repeat is not None and step.repeat.max_iterations > 1:
        return "loop"
    if isinstance(step.action, GroupAction):
        return "phase" if step.action.phase else "group"
    return "run" if step.type == "workflow" else "step"


def cells_of(held: Sequence[str]) -> list[str]:
    """Return at most `MAX_CELLS` statuses for a strip."""
    if len(held) <= MAX_CELLS:
        return list(held)
    bounds = [i * len(held) // MAX_CELLS for i in range(MAX_CELLS + 1)]
    return [min(held[bounds[i] : bounds[i + 1]], key=_WORST_FIRST.index) for i in range(MAX_CELLS)]


def tally_of(held: Sequence[str]) -> dict[str, int]:
    """Count the statuses; those that need attention come first."""
    found = Counter(held)
    return {word: found[word] for word in _WORST_FIRST if found[word]}


def boxes_of_steps(
    steps: Sequence[Step], prefix: str, otherwise: str, statuses: Mapping[str, str] | None = None
) -> Boxes:
    """Return the declared steps of one scope: groups opened, sub-workflows closed.

    `statuses` of a run are by path; a step without one has the status `otherwise`.
    """
    known = statuses or {}
    boxes = []
    for step in steps:
        path, kind, inside, held = f"{prefix}{step.id}", kind_of(step), None, None
        if isinstance(step.action, GroupAction):
            inside = boxes_of_steps(steps_inside(step), f"{path}/", otherwise, known)
        if kind == "map":
            items = takewhile(bool, (known.get(f"{path}[{i}]") for i in count()))
            held = tuple(filter(None, items))
        status = known.get(path, otherwise)
        boxes.append(Box(path=path, label=label(step), kind=kind, status=status, inside=inside, held=held))
    return Boxes(tuple(boxes), tuple(edges_of(steps)))


def edges_of(steps: Sequence[Step]) -> list[tuple[int, int]]:
    """Return edges as pairs of indexes in `steps`, without edges that a longer path already implies."""
    index = {step.id: i for i, step in enumerate(steps)}
    edges = (dict.fromkeys((*step.depends_on, *step.after)) for step in steps)
    needs = [[index[before] for before in names if before in index] for names in edges]
    above: dict[int, int] = {}  # bit set of all steps before a step
    for i in TopologicalSorter(dict(enumerate(needs))).static_order():
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
    """Return the steps of a group. Its fold runs once at the end and is shown as its last step."""
    assert isinstance(step.action, GroupAction)
    if step.fold is None:
        return step.action.steps
    held = step.action.steps
    leads_on = {before for inner in held for before in inner.depends_on}
    ends = tuple(inner.id for inner in held if inner.id not in leads_on)
    return (*held, replace(step.fold, depends_on=ends))


NODE_HEIGHT = 52.0
MARK_HEIGHT = 16.0
STRIP_HEIGHT = 14.0
MIN_NODE_WIDTH = 132.0
MAX_NODE_WIDTH = 248.0
GROUP_PADDING = 16.0
GROUP_HEAD = 34.0
CHARACTER_WIDTH = 7.3
CELL_WIDTH = 5.0
"""Minimum width of a cell, until the box reaches its maximum width."""


class DrawnStep(Struct, frozen=True, omit_defaults=True):
    """One box. `cells` is a strip of statuses for what is closed, `tally` counts all that is inside."""

    path: str
    x: float
    y: float
    w: float
    h: float
    kind: str
    look: str
    """The kind of step, for colours and shapes: `reader`, `writer`, `command`, `approval` …"""
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
    return draw_boxes(boxes_of_steps(plan.steps, "", "" if statuses is None else PENDING, statuses))


def draw_boxes(boxes: Boxes) -> Drawing:
    """Lay out all boxes."""
    scope = _Scope(boxes)
    nodes: list[DrawnStep] = []
    edges: list[DrawnEdge] = []
    scope.collect(0.0, 0.0, None, nodes, edges)
    return Drawing(tuple(nodes), tuple(edges), scope.placed.width, scope.placed.height)


class _Scope:
    """One scope with positions relative to its top left corner, and the open scopes inside it."""

    def __init__(self, boxes: Boxes) -> None:
        self._boxes = boxes
        self._inner = {i: _Scope(box.inside) for i, box in enumerate(boxes.boxes) if box.inside is not None}
        self._sizes = [_size(box, self._inner.get(i)) for i, box in enumerate(boxes.boxes)]
        if boxes.grid:
            self.placed = _grid(self._sizes)
        else:
            self.placed = place(tuple(self._sizes), boxes.edges, boxes.added_one_by_one)

    def collect(
        self, dx: float, dy: float, parent: str | None, nodes: list[DrawnStep], edges: list[DrawnEdge]
    ) -> None:
        """Add all boxes and edges of this scope and of inner scopes, moved by `dx` and `dy`."""
        names = [box.path for box in self._boxes.boxes]
        for i, box in enumerate(self._boxes.boxes):
            (x, y), (width, height), held = self.placed.at[i], self._sizes[i], box.held
            step = DrawnStep(
                path=box.path,
                x=round(x + dx, 1),
                y=round(y + dy, 1),
                w=round(width, 1),
                h=height,
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
            nodes.append(step)
            if (inner := self._inner.get(i)) is not None:
                left = x + max((width - inner.placed.width) / 2, GROUP_PADDING)
                inner.collect(left + dx, y + dy + GROUP_HEAD, box.path, nodes, edges)
        for (source, target), points in zip(self._boxes.edges, self.placed.routes, strict=True):
            moved = tuple((round(x + dx, 1), round(y + dy, 1)) for x, y in points) if dx or dy else points
            edges.append(DrawnEdge(names[source], names[target], moved))


def _size(box: Box, inner: _Scope | None) -> tuple[float, float]:
    text = box.label
    if inner is not None:
        head = (len(text.title) + sum(len(mark) + 3 for mark in text.marks)) * CHARACTER_WIDTH + 40
        held = inner.placed.width + 2 * GROUP_PADDING
        return max(held, min(head, 480.0)), inner.placed.height + GROUP_HEAD + GROUP_PADDING
    longest = max(len(shown(text.title)) * 1.05, len(shown(text.subtitle)) * 0.9)
    width = min(max(longest * CHARACTER_WIDTH + 58, MIN_NODE_WIDTH), MAX_NODE_WIDTH)
    height = NODE_HEIGHT
    if box.held:
        # The number of finished items comes before the subtitle, and a button after it.
        counted = (len(shown(text.subtitle)) + 2 * len(str(len(box.held))) + 4) * 0.9 * CHARACTER_WIDTH + 64
        width = min(max(width, counted, len(box.held) * CELL_WIDTH + 32), MAX_NODE_WIDTH)
        height += STRIP_HEIGHT
    return width, height + (MARK_HEIGHT if text.marks else 0.0)


def _grid(sizes: list[tuple[float, float]]) -> GraphLayout:
    """Place boxes in rows of equal cells, about as wide as high, from left to right."""
    if not sizes:
        return GraphLayout((), (), 0.0, 0.0)
    width, height = max(w for w, _ in sizes) + ROW_GAP, max(h for _, h in sizes) + ROW_GAP
    columns = min(len(sizes), max(1, ceil(sqrt(len(sizes) * height * 1.6 / width))))
    at = tuple((i % columns * width, i // columns * height) for i in range(len(sizes)))
    rows = ceil(len(sizes) / columns)
    return GraphLayout(at, (), round(columns * width - ROW_GAP, 1), round(rows * height - ROW_GAP, 1))


# -----------------------------------------------------------------------------------------------------------
# A run as boxes: its plan with the status of each step, and closed strips for many items
#
# All declared steps are drawn from the start, so that a picture keeps its shape while the run continues. Only
# parts that are unknown before (items, iterations, child runs, steps added to an open run) are added later.

MAX_OPEN_BY_ITSELF = 24
"""A group with more children is closed until the reader opens it."""


class ExpandedNodes(Struct, frozen=True):
    """The nodes that a reader opened and closed, by tree path; all others have their default."""

    opened: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()


def parse_opened(text: str) -> ExpandedNodes:
    """Parse `path,path,-path`: opened paths, and closed ones with a minus."""
    words = [word for word in text.split(",") if word]
    return ExpandedNodes(
        frozenset(word for word in words if not word.startswith("-")),
        frozenset(word[1:] for word in words if word.startswith("-")),
    )


def draw_run(tree: RunTree, run: Run | None = None, opened: ExpandedNodes | None = None) -> Drawing:
    """Lay out a run as its tree is now."""
    return draw_boxes(_Boxer(tree, opened or ExpandedNodes()).boxes_of_run(run or tree.root))


class _Boxer:
    def __init__(self, tree: RunTree, opened: ExpandedNodes) -> None:
        self._tree = tree
        self._opened = opened
        self._labels: dict[int, Label] = {}

    def boxes_of_run(self, run: Run) -> Boxes:
        children = run.scope.children
        if not children and not run.plan.open:
            return boxes_of_steps(run.plan.steps, f"{run.path}/" if run.path else "", PENDING)
        return self._scope(children, growing=run.plan.open)

    def _scope(self, nodes: Sequence[Node], *, growing: bool = False) -> Boxes:
        steps = [node.step for node in nodes]
        if growing:  # an edge from the parent shows which agent requested a step
            steps = [replace(one, after=(*one.after, one.parent)) if one.parent else one for one in steps]
        boxes, edges = tuple(self._box(node) for node in nodes), tuple(edges_of(steps))
        return Boxes(boxes, edges, added_one_by_one=growing)

    def _box(self, node: Node) -> Box:
        path = node.run.tree_path(node.path)
        held = None if node.kind == LEAF else tuple(self._statuses_inside(node))
        child = node.child if isinstance(node, WorkflowCall) else None
        return Box(
            path=path,
            label=self._label(node),
            kind=KINDS.get(node.kind) or ("phase" if kind_of(node.step) == "phase" else "group"),
            status=status_of(self._tree, node),
            inside=self._inside(node, path, held) if held is not None else None,
            held=held,
            run_id=child.id if child is not None else None,
        )

    def _inside(self, node: Node, path: str, held: tuple[str, ...]) -> Boxes | None:
        assert isinstance(node, Composite)
        if path in self._opened.closed or not held:
            return None
        by_itself = node.kind in (SCOPE, LOOP) and len(held) <= MAX_OPEN_BY_ITSELF
        if node.kind == LOOP and not isinstance(node.step.action, GroupAction):
            by_itself = False
        if not by_itself and path not in self._opened.opened:
            return None
        if isinstance(node, WorkflowCall):
            return self.boxes_of_run(node.child) if node.child is not None else None
        if node.kind == SCOPE and not node.children:
            return boxes_of_steps(steps_inside(node.step), f"{path}/", node.status)
        if node.kind == SCOPE:
            return self._scope(node.children)
        boxes = tuple(self._box(child) for child in node.children)
        if node.kind == MAP:
            return Boxes(boxes, (), grid=True)
        return Boxes(boxes, tuple((i, i + 1) for i in range(len(boxes) - 1)))

    def _statuses_inside(self, node: Node) -> Iterable[str]:
        assert isinstance(node, Composite)
        if node.kind == SCOPE and not node.children:
            return [PENDING] * len(steps_inside(node.step))
        children = node.children
        if isinstance(node, WorkflowCall):
            children = [] if node.child is None else node.child.scope.children
        return [status_of(self._tree, child) for child in children]

    def _label(self, node: Node) -> Label:
        step = node.step
        known = self._labels.get(id(step))
        if known is None:
            known = self._labels[id(step)] = label(step)
        if node.parent is None or node.parent.kind not in (MAP, LOOP):
            return known
        name = item_name(self._tree, node) or node.path.rpartition("/")[2]
        return Label(name, known.subtitle, known.kind, (), f"{name}: {known.kind} {known.subtitle}".rstrip())


# -----------------------------------------------------------------------------------------------------------
# The graph of a plan as Mermaid text, for Markdown pages that render it


def mermaid(plan: Plan) -> str:
    """Return the plan as a Mermaid flowchart."""
    lines = ["flowchart LR"]
    writers: list[str] = []
    _draw_scope(plan.steps, lines, writers, count(), "  ")
    if writers:
        lines.append("  classDef writer stroke:#b45309,stroke-width:2px")
        lines.append(f"  class {','.join(writers)} writer")
    return "\n".join(lines) + "\n"


def _draw_scope(
    steps: Sequence[Step], lines: list[str], writers: list[str], counter: Iterator[int], indent: str
) -> None:
    # Ids may be reserved words of Mermaid (`end`), so nodes get neutral names.
    names = {step.id: f"s{next(counter)}" for step in steps}
    for step in steps:
        text, name = label(step), names[step.id]
        words = (shown(word) for word in (text.title, text.subtitle, *text.marks) if word)
        # Every character that is syntax in Mermaid or HTML becomes an entity code.
        coded = (re.sub(r"[^\w ./@:,…*()+=-]", lambda found: f"#{ord(found[0])};", word) for word in words)
        label_text = "<br/>".join(coded)
        if text.kind == "writer":
            writers.append(name)
        if isinstance(step.action, GroupAction):
            lines.append(f'{indent}subgraph {name}["{label_text}"]')
            _draw_scope(steps_inside(step), lines, writers, counter, indent + "  ")
            lines.append(f"{indent}end")
        else:
            left, right = {"approval": ("{{", "}}"), "workflow": ("[[", "]]")}.get(text.kind, ("[", "]"))
            lines.append(f'{indent}{name}{left}"{label_text}"{right}')
    for before, after in edges_of(steps):
        lines.append(f"{indent}{names[steps[before].id]} --> {names[steps[after].id]}")


# -----------------------------------------------------------------------------------------------------------
# A drawing as one self-contained SVG file
#
# It has no script, font or external link: it opens offline, in a README and in a notebook. Colours follow the
# reader's light or dark setting. Kinds differ by more than colour (a bar, a dashed frame, a word). The
# `<desc>` element has the whole graph as text, for a reader who cannot see it.

MARGIN = 24.0
HEAD = 60.0
FOOT = 34.0
MIN_WIDTH = 460.0
_LEGEND = {"reader": "reads", "writer": "writes", "command": "command or function", "approval": "person"}

_STYLE = Path(__file__).parent / "templates" / "graph.css"


def svg(plan: Plan, drawing: Drawing | None = None) -> str:
    """Return the plan's graph as an SVG document; with the drawing of a run, it shows statuses."""
    drawing = drawing or draw(plan)
    width = max(drawing.width + 2 * MARGIN, MIN_WIDTH)
    height = drawing.height + HEAD + FOOT + MARGIN
    title = f"{plan.name}@{plan.version}"
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    named = 'role="img" aria-labelledby="fanfold-title fanfold-desc"'
    spoken = f"Steps in order: {'; '.join(_spoken(node) for node in drawing.nodes)}."
    spoken = f"{plan.description}. {spoken}" if plan.description else spoken
    about = shorten_line(plan.description, int((width - 2 * MARGIN) / 6.0))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {named}>',
        f'<title id="fanfold-title">{_text(title)}</title>',
        f'<desc id="fanfold-desc">{_text(spoken)}</desc>',
        f"<style>{_STYLE.read_text()}</style>",
        f'<rect class="page" width="{width:g}" height="{height:g}" rx="12"/>',
        f'<text class="name" x="{MARGIN:g}" y="30">{_text(title)}</text>',
        f'<text class="about" x="{MARGIN:g}" y="48">{_text(about)}</text>',
        f'<g transform="translate({MARGIN:g} {HEAD + 8:g})">',
        *(_group(node) for node in drawing.nodes if node.open),
        *(_edge(edge) for edge in drawing.edges),
        *(_node(node) for node in drawing.nodes if not node.open),
        "</g>",
        *_legend(drawing, height - 16),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _spoken(node: DrawnStep) -> str:
    """Return the sentence of a box, for a reader who cannot see the picture."""
    return f"{node.spoken} [{node.status}]" if node.status else node.spoken


def _group(node: DrawnStep) -> str:
    marks = [*node.marks, node.status] if node.status else node.marks
    return (
        f'<g><title>{_text(node.spoken)}</title><rect class="box group" x="{node.x:g}" y="{node.y:g}" '
        f'width="{node.w:g}" height="{node.h:g}" rx="10"/>'
        f'<text class="title" x="{node.x + 14:g}" y="{node.y + 22:g}">{_text(shown(node.title))}'
        f'<tspan class="mark" dx="10">{_text(" · ".join(marks))}</tspan></text></g>'
    )


def _node(node: DrawnStep) -> str:
    x, y = node.x, node.y
    lines = [f'<text class="title" x="{x + 17:g}" y="{y + 23:g}">{_text(shown(node.title))}</text>']
    lines.append(f'<text class="who" x="{x + 17:g}" y="{y + 40:g}">{_text(shown(node.subtitle))}</text>')
    if node.marks:
        marks = " · ".join(node.marks)
        line = y + (56 if node.subtitle else 40)
        lines.append(f'<text class="mark" x="{x + 17:g}" y="{line:g}">{_text(marks)}</text>')
    if node.cells:  # adjacent cells of the same status are one rectangle, which keeps the file small
        left, width, at = x + 17, (node.w - 27) / len(node.cells), 0
        for cell, run in groupby(node.cells):
            many = len(list(run))
            lines.append(
                f'<rect class="cell at-{cell}" x="{left + at * width:.1f}" y="{y + node.h - 15:g}" '
                f'width="{max(many * width - 0.6, 0.6):.1f}" height="7" rx="1"/>'
            )
            at += many
    bar = node.h - 20
    status = mark = ""
    if node.status:  # also as a sign, because colour alone is not accessible
        status, sign = f" at-{node.status}", MARKS.get(node.status, MARKS[PENDING])[0]
        mark = f'<text class="sign" x="{x + node.w - 20:g}" y="{y + 23:g}">{sign}</text>'
    return (
        f'<g class="{node.look}{status}"><title>{_text(_spoken(node))}</title>'
        f'<rect class="box" x="{x:g}" y="{y:g}" width="{node.w:g}" height="{node.h:g}" rx="9"/>'
        f'<rect class="bar" x="{x + 7:g}" y="{y + 10:g}" width="3.5" height="{bar:g}" rx="1.75"/>'
        f"{mark}{''.join(lines)}</g>"
    )


def _edge(edge: DrawnEdge) -> str:
    (x, y), *rest = edge.points
    path = [f"M{x:g} {y:g}"]
    end = len(rest) - 1
    for i, (nx, ny) in enumerate(rest):
        if i == end:
            nx -= 7  # noqa: PLW2901 - the arrow head takes the last seven units
        if ny == y:
            path.append(f"H{nx:g}")
        else:
            middle = (x + nx) / 2
            path.append(f"C{middle:g} {y:g} {middle:g} {ny:g} {nx:g} {ny:g}")
        x, y = nx, ny
    tip = f'<path class="tip" d="M{x + 7:g} {y:g}l-8 -4.2v8.4z"/>'
    return f'<path class="edge" d="{" ".join(path)}"/>{tip}'


def _legend(drawing: Drawing, y: float) -> Iterator[str]:
    used = {node.look for node in drawing.nodes}
    x = MARGIN
    for kind, word in _LEGEND.items():
        if kind not in used and not (kind == "command" and "function" in used):
            continue
        yield (
            f'<g class="{kind}"><rect class="bar" x="{x:g}" y="{y - 9:g}" width="3.5" height="12" rx="1.75"/>'
            f'<text class="mark" x="{x + 9:g}" y="{y:g}">{word}</text></g>'
        )
        x += 9 + len(word) * 5.6 + 18


def _text(text: str) -> str:
    """Escape text, without characters that XML does not allow."""
    allowed = "".join(c for c in text if c.isprintable() or c in "\t\n")
    return escape(allowed, quote=True)
