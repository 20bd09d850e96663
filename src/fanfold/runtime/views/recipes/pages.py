"""Recipes as a console shows them: in a list with what their runs were like, and one with its text."""

from __future__ import annotations

from msgspec import Struct

from fanfold.runtime.views.graph.drawing import Drawing
from fanfold.runtime.views.recipes.documents import CheckReport, RecipeDocument, RecipeInput


class LastRun(Struct, frozen=True):
    run_id: str
    status: str
    created_at: str | None


class RecipeRow(Struct, frozen=True, kw_only=True):
    """A recipe in a list. What nobody knows is None: its runs so far say, or there were none."""

    name: str
    version: int
    description: str
    source: str
    """`project`, `user` or `builtin`."""
    file: str
    warnings: list[str]
    inputs: list[RecipeInput] | None
    """None where it cannot be compiled; then its warnings say why."""
    runs: int
    last_run: LastRun | None
    median_s: float | None
    median_usd: float | None


class RecipeRows(Struct, frozen=True):
    items: list[RecipeRow]
    next: None = None


class RecipePage(Struct, frozen=True, kw_only=True):
    """One recipe: its text, what is wrong with it, and what it is where nothing is."""

    name: str
    source: str
    file: str
    text: str
    digest: str
    """Of the text: what is changed is the text that was seen."""
    writable: bool
    check: CheckReport
    recipe: RecipeDocument | None
    graph: Drawing | None
    needs: list[str]
    """What a run of it has to be permitted, line by line."""


class CheckedText(CheckReport, frozen=True, kw_only=True):
    """What is wrong with a text, and its picture where nothing is."""

    graph: Drawing | None
    needs: list[str]
