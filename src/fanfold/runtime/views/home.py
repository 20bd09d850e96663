"""What a console shows first: what needs a person, what runs, what was spent."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from fanfold.runtime.views.runs.costs import Spend
from fanfold.runtime.views.runs.rows import RunRow

NeedKind: TypeAlias = Literal["approval", "question", "delivery", "stuck", "paused", "failed"]


class Need(Struct, frozen=True):
    """Something that waits for a person."""

    kind: NeedKind
    run_id: str
    recipe: str
    step: str | None
    message: str
    since: str | None


class SpendDocument(Struct, frozen=True):
    today: Spend
    week: Spend


class Home(Struct, frozen=True):
    needs: list[Need]
    running: list[RunRow]
    spend: SpendDocument
    recipes: int
    runs: int
    """How many there are, up to a thousand."""
