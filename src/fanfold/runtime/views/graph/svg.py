"""A drawing as one self-contained SVG file.

No script, no font, no link to anywhere: it opens offline, in a README and in a notebook. Colours follow
the reader's light or dark setting; kinds differ by more than colour (a bar, a dashed frame, a word).
A reader who cannot see it gets the whole graph as text in `<desc>`.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import groupby

from fanfold.kernel.lifecycle import PENDING
from fanfold.kernel.plan import Plan
from fanfold.runtime.views.graph.boxes import shown
from fanfold.runtime.views.graph.drawing import Drawing, DrawnEdge, DrawnStep, draw, spoken_in_order
from fanfold.runtime.views.standing import MARKS
from fanfold.text.excerpts import shorten_line

MARGIN = 24.0
HEAD = 60.0
FOOT = 34.0
MIN_WIDTH = 460.0
_LEGEND = (
    ("reader", "reads"),
    ("writer", "writes"),
    ("command", "command or function"),
    ("approval", "person"),
)

_STYLE = """\
text{font-family:ui-sans-serif,system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1c2330}
.page{fill:#fbfcfe}.name{font-size:17px;font-weight:650}.about{font-size:12.5px;fill:#5b6577}
.box{fill:#ffffff;stroke:#cdd5e1;stroke-width:1.2}.group{fill:#eef2f8;stroke:#c3cddc;stroke-dasharray:5 4}
.title{font-size:13.5px;font-weight:600}.who{font-size:11.5px;fill:#5b6577}.mark{font-size:10.5px;fill:#5b6577}
.edge{fill:none;stroke:#8b97aa;stroke-width:1.5}.tip{fill:#8b97aa}
.bar{fill:#3f7ae0}.writer .bar{fill:#d97706}.command .bar,.function .bar{fill:#64748b}
.workflow .bar{fill:#7c5cd6}.approval .bar{fill:#0f9d76}
.sign{font-size:12px;font-weight:700;fill:#5b6577}.cell{fill:#d5dbe5}
.at-completed .sign{fill:#15803d}.cell.at-completed{fill:#16a34a}
.at-running .sign{fill:#2563eb}.cell.at-running{fill:#3b82f6}
.at-failed .sign,.at-timed_out .sign{fill:#b91c1c}.cell.at-failed,.cell.at-timed_out{fill:#dc2626}
.at-waiting .sign{fill:#b45309}.cell.at-waiting{fill:#d97706}.cell.at-cancelled,.cell.at-skipped{fill:#94a3b8}
@media (prefers-color-scheme:dark){text{fill:#e7ebf2}.page{fill:#12161d}.about,.who,.mark{fill:#9aa6b8}
.box{fill:#1c222c;stroke:#39424f}.group{fill:#171c25;stroke:#3b4553}.edge{stroke:#66738a}.tip{fill:#66738a}
.bar{fill:#6ea0f5}.writer .bar{fill:#f0a742}.command .bar,.function .bar{fill:#94a3b8}
.workflow .bar{fill:#a78bfa}.approval .bar{fill:#3ccaa0}.sign{fill:#9aa6b8}.cell{fill:#39424f}
.at-completed .sign{fill:#4ade80}.at-running .sign{fill:#60a5fa}
.at-failed .sign,.at-timed_out .sign{fill:#f87171}
.at-waiting .sign{fill:#fbbf24}}
"""


def svg(plan: Plan, drawing: Drawing | None = None) -> str:
    """The plan's graph as an SVG document; with the drawing of a run of it, what became of each step."""
    drawing = drawing or draw(plan)
    width = max(drawing.width + 2 * MARGIN, MIN_WIDTH)
    height = drawing.height + HEAD + FOOT + MARGIN
    title = f"{plan.name}@{plan.version}"
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    named = 'role="img" aria-labelledby="fanfold-title fanfold-desc"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {named}>',
        f'<title id="fanfold-title">{_text(title)}</title>',
        f'<desc id="fanfold-desc">{_text(_spoken(plan, drawing))}</desc>',
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{width:g}" height="{height:g}" rx="12"/>',
        f'<text class="name" x="{MARGIN:g}" y="30">{_text(title)}</text>',
        f'<text class="about" x="{MARGIN:g}" y="48">{_text(_cut(plan.description, width))}</text>',
        f'<g transform="translate({MARGIN:g} {HEAD + 8:g})">',
        *(_group(node) for node in drawing.nodes if node.open),
        *(_edge(edge) for edge in drawing.edges),
        *(_node(node) for node in drawing.nodes if not node.open),
        "</g>",
        *_legend(drawing, height - 16),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _spoken(plan: Plan, drawing: Drawing) -> str:
    steps = "; ".join(spoken_in_order(drawing))
    return (
        f"{plan.description}. Steps in order: {steps}." if plan.description else f"Steps in order: {steps}."
    )


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
    if node.cells:
        lines += _strip(node, node.cells)
    bar = node.h - 20
    status = f" at-{node.status}" if node.status else ""
    spoken = f"{node.spoken} [{node.status}]" if node.status else node.spoken
    return (
        f'<g class="{node.look}{status}"><title>{_text(spoken)}</title>'
        f'<rect class="box" x="{x:g}" y="{y:g}" width="{node.w:g}" height="{node.h:g}" rx="9"/>'
        f'<rect class="bar" x="{x + 7:g}" y="{y + 10:g}" width="3.5" height="{bar:g}" rx="1.75"/>'
        f"{_mark(node)}{''.join(lines)}</g>"
    )


def _mark(node: DrawnStep) -> str:
    """How it ended, as a sign: colour alone would not do."""
    if not node.status:
        return ""
    sign = MARKS.get(node.status, MARKS[PENDING])[0]
    return f'<text class="sign" x="{node.x + node.w - 20:g}" y="{node.y + 23:g}">{sign}</text>'


def _strip(node: DrawnStep, cells: list[str]) -> Iterator[str]:
    """Neighbours of one status are one rectangle: three hundred cells are seldom more than a dozen."""
    left, width, y = node.x + 17, (node.w - 27) / len(cells), node.y + node.h - 15
    at = 0
    for status, run in groupby(cells):
        many = len(list(run))
        yield (
            f'<rect class="cell at-{status}" x="{left + at * width:.1f}" y="{y:g}" '
            f'width="{max(many * width - 0.6, 0.6):.1f}" height="7" rx="1"/>'
        )
        at += many


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
    for kind, word in _LEGEND:
        if kind not in used and not (kind == "command" and "function" in used):
            continue
        yield (
            f'<g class="{kind}"><rect class="bar" x="{x:g}" y="{y - 9:g}" width="3.5" height="12" rx="1.75"/>'
            f'<text class="mark" x="{x + 9:g}" y="{y:g}">{word}</text></g>'
        )
        x += 9 + len(word) * 5.6 + 18


def _cut(text: str, width: float) -> str:
    return shorten_line(text, int((width - 2 * MARGIN) / 6.0))


def _text(text: str) -> str:
    """Escaped, and without characters that XML does not allow."""
    allowed = "".join(c for c in text if c.isprintable() or c in "\t\n")
    return escape(allowed, quote=True)
