"""A drawing as one self-contained SVG file.

No script, no font, no link to anywhere: it opens offline, in a README and in a notebook. Colours follow
the reader's light or dark setting; kinds differ by more than colour (a bar, a dashed frame, a word).
A reader who cannot see it gets the whole graph as text in `<desc>`.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from fanfold.kernel.plan import Plan
from fanfold.runtime.views.graph.drawing import Drawing, DrawnStep, Edge, draw, shown
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
@media (prefers-color-scheme:dark){text{fill:#e7ebf2}.page{fill:#12161d}.about,.who,.mark{fill:#9aa6b8}
.box{fill:#1c222c;stroke:#39424f}.group{fill:#171c25;stroke:#3b4553}.edge{stroke:#66738a}.tip{fill:#66738a}
.bar{fill:#6ea0f5}.writer .bar{fill:#f0a742}.command .bar,.function .bar{fill:#94a3b8}
.workflow .bar{fill:#a78bfa}.approval .bar{fill:#3ccaa0}}
"""


def svg(plan: Plan) -> str:
    """The plan's graph as an SVG document."""
    drawing = draw(plan)
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
        *(_group(node) for node in drawing.nodes if node.label.kind == "group"),
        *(_edge(edge) for edge in drawing.edges),
        *(_node(node) for node in drawing.nodes if node.label.kind != "group"),
        "</g>",
        *_legend(drawing, height - 16),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _spoken(plan: Plan, drawing: Drawing) -> str:
    steps = "; ".join(node.label.spoken for node in drawing.nodes)
    return (
        f"{plan.description}. Steps in order: {steps}." if plan.description else f"Steps in order: {steps}."
    )


def _group(node: DrawnStep) -> str:
    words = [shown(node.label.title), *node.label.marks]
    return (
        f'<g><title>{_text(node.label.spoken)}</title><rect class="box group" x="{node.x:g}" y="{node.y:g}" '
        f'width="{node.width:g}" height="{node.height:g}" rx="10"/>'
        f'<text class="title" x="{node.x + 14:g}" y="{node.y + 22:g}">{_text(words[0])}'
        f'<tspan class="mark" dx="10">{_text(" · ".join(words[1:]))}</tspan></text></g>'
    )


def _node(node: DrawnStep) -> str:
    x, y = node.x, node.y
    lines = [f'<text class="title" x="{x + 17:g}" y="{y + 23:g}">{_text(shown(node.label.title))}</text>']
    lines.append(
        f'<text class="who" x="{x + 17:g}" y="{y + 40:g}">{_text(shown(node.label.subtitle))}</text>'
    )
    if node.label.marks:
        marks = " · ".join(node.label.marks)
        lines.append(f'<text class="mark" x="{x + 17:g}" y="{y + 56:g}">{_text(marks)}</text>')
    bar = node.height - 20
    return (
        f'<g class="{node.label.kind}"><title>{_text(node.label.spoken)}</title>'
        f'<rect class="box" x="{x:g}" y="{y:g}" width="{node.width:g}" height="{node.height:g}" rx="9"/>'
        f'<rect class="bar" x="{x + 7:g}" y="{y + 10:g}" width="3.5" height="{bar:g}" rx="1.75"/>'
        f"{''.join(lines)}</g>"
    )


def _edge(edge: Edge) -> str:
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
    used = {node.label.kind for node in drawing.nodes}
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
