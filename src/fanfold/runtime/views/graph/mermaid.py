"""The graph of a plan as Mermaid text, for Markdown pages that render it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

from fanfold.kernel.plan import GroupAction, Plan, Step
from fanfold.runtime.views.graph.boxes import edges_of, label, shown, steps_inside


def mermaid(plan: Plan) -> str:
    """The plan as a Mermaid flowchart."""
    lines = ["flowchart LR"]
    writers: list[str] = []
    counter = count()
    _draw_scope(plan.steps, lines, writers, counter, "  ")
    if writers:
        lines.append("  classDef writer stroke:#b45309,stroke-width:2px")
        lines.append(f"  class {','.join(writers)} writer")
    return "\n".join(lines) + "\n"


def _draw_scope(
    steps: Sequence[Step], lines: list[str], writers: list[str], counter: Iterator[int], indent: str
) -> None:
    # Ids may be words of Mermaid's own (`end`), so nodes get neutral names.
    names = {step.id: f"s{next(counter)}" for step in steps}
    for step in steps:
        text, name = label(step), names[step.id]
        said = "<br/>".join(
            _escaped(shown(word)) for word in (text.title, text.subtitle, *text.marks) if word
        )
        if text.kind == "writer":
            writers.append(name)
        if isinstance(step.action, GroupAction):
            lines.append(f'{indent}subgraph {name}["{said}"]')
            _draw_scope(steps_inside(step), lines, writers, counter, indent + "  ")
            lines.append(f"{indent}end")
        else:
            left, right = {"approval": ("{{", "}}"), "workflow": ("[[", "]]")}.get(text.kind, ("[", "]"))
            lines.append(f'{indent}{name}{left}"{said}"{right}')
    for before, after in edges_of(steps):
        lines.append(f"{indent}{names[steps[before].id]} --> {names[steps[after].id]}")


def _escaped(text: str) -> str:
    """Entity codes for everything Mermaid or HTML would read as syntax."""
    return "".join(c if c.isalnum() or c in " _-./@:,…*()+=" else f"#{ord(c)};" for c in text)
