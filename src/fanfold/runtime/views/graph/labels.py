"""What a step is called in pictures and listings: its id, who does it, and what is special about it."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from fanfold.kernel.plan import Step
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
    kind, subtitle = label_of(step)
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
