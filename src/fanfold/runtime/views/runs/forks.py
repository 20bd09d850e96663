"""What a fork or a retry would do, as every surface shows it before anything starts."""

from __future__ import annotations

from msgspec import Struct

from fanfold.runtime.views.runs.rows import StepUsage


class RecipeChanges(Struct, frozen=True, kw_only=True):
    """How a recipe differs from what a run was made of. Steps by their path in the recipe; those of a
    sub-workflow follow its name and a colon.
    """

    added: list[str] = []
    removed: list[str] = []
    changed: list[str] = []
    """They say something else: what they gave is not reused."""
    tuned: list[str] = []
    """They are carried out differently: what they gave is reused."""
    roles: list[str] = []
    """Roles whose file says something else; it holds for steps that run again."""
    others: list[str] = []
    """Parts of the recipe beside its steps: inputs, output, limits."""


class ForkForecast(Struct, frozen=True):
    """What would be reused and what would run again; steps are tree paths."""

    source_run_id: str
    reuses: list[str]
    runs_again: list[str]
    keeps_failures: list[str]
    """Failures that were tolerated: they stay what they are."""
    agents: int
    last_time: StepUsage
    """What the steps that run again took in the source; the best guess there is."""
    merged: dict[str, int]
    """Files that steps which run again had put into the project: they stay there."""
    goes_on: dict[str, int]
    """Steps that go on with a conversation, and behind which of its turns."""
    recipe: RecipeChanges
    asks: list[str]
    """What it needs permission for that the source was not given."""
