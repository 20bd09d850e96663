"""Drafted specs and judged requests as every surface shows them."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from fanfold.runtime.views.recipes.documents import RecipeDocument
from fanfold.runtime.views.recipes.forecasts import Agents, Cost

Source: TypeAlias = Literal["model", "template"]


class Suitability(Struct, frozen=True):
    """Whether a request is work for a workflow of several agents."""

    suitable: bool
    reason: str
    by: Literal["model", "patterns"]
    pattern: str = ""
    """Of the patterns: the one that decided."""
    note: str = ""
    """Why the model was not asked, or gave no answer."""


class DraftedSpec(Struct, frozen=True, kw_only=True):
    """A recipe drafted from a task, or the reason why there is none. It was checked, and nothing has run.

    `recipe` is the text that `run_workflow` and `save_workflow` take.
    """

    task: str
    fit: bool
    """False: one agent does it better; then there is no recipe."""
    reason: str
    suggestion: str = ""
    """Where it is not fit: the command that gives it to one agent."""
    source: Source
    name: str = ""
    recipe: str = ""
    rounds: int = 0
    """How often the planner was asked."""
    runs: list[str] = []
    """The runs in which it worked."""
    document: RecipeDocument | None = None
    agents: Agents | None = None
    cost: Cost | None = None
    warnings: list[str] = []
    difference: str = ""
    """Of a refinement: what changed, as a unified diff."""
    saved: str = ""
    """The file it was saved to."""
