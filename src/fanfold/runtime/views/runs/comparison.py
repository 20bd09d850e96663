"""Two runs side by side."""

from __future__ import annotations

from msgspec import Struct

from fanfold.kernel.plan import JSON
from fanfold.runtime.views.runs.forks import RecipeChanges
from fanfold.runtime.views.runs.rows import RunRow, StepUsage


class ComparedInput(Struct, frozen=True):
    name: str
    a: JSON
    b: JSON
    same: bool


class ComparedSide(Struct, frozen=True):
    """A step in one of the two."""

    status: str
    output: JSON
    usage: StepUsage | None
    """None for what spends nothing."""
    seconds: float | None


class ComparedStep(Struct, frozen=True):
    """`same`: both ended alike, with the same output. A side is None where the run has no such step."""

    path: str
    a: ComparedSide | None
    b: ComparedSide | None
    same: bool


class Comparison(Struct, frozen=True):
    a: RunRow
    b: RunRow
    recipe: RecipeChanges
    inputs: list[ComparedInput]
    steps: list[ComparedStep]
    left_off: int
    """Steps beyond those that are shown."""
