"""One recipe file while it is being compiled."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, field

from fanfold.kernel.plan import Input, Limits, OnFailure, Output, Plan, RetryPolicy, WorkspaceMode
from fanfold.recipe.checks.references import References
from fanfold.recipe.drafts.draft import Draft, DraftScope
from fanfold.recipe.surroundings import Surroundings
from fanfold.text.diagnostics import Source
from fanfold.text.notes import Notes
from fanfold.text.tables.entries import Entries
from fanfold.text.trees.tree import Scalar


class Defaults(Struct):
    """What steps that do not say get."""

    agent: str | None = None
    model: str | None = None
    timeout_ms: int | None = None
    retry: RetryPolicy | None = None
    workspace_mode: WorkspaceMode | None = None
    on_failure: OnFailure = "skip"


class Unit(Struct):
    """A file, what was read of it, and the plan it becomes when nothing is wrong with it."""

    source: Source
    notes: Notes
    around: Surroundings
    entries: Entries
    references: References
    inputs: dict[str, Input]
    input_nodes: dict[str, Scalar]
    source_hash: str
    narrowed: bool = False
    """The step that calls it only reads, and so does everything in it."""
    defaults: Defaults = field(default_factory=Defaults)
    limits: Limits = field(default_factory=Limits)
    scope: DraftScope = field(default_factory=DraftScope)
    output: Output | None = None
    phased: bool = False
    calls: list[Draft] = field(default_factory=list)
    """Workflow steps, in the order they are declared."""
    plan: Plan | None = None
    writes: bool = False
    """Some step inside may change files."""
    claims: str = ""
    """Path of the first step that declares a `write_set`, here or in a sub-workflow."""
    height: int = 0
    """How many levels of sub-workflows there are below."""

    @property
    def name(self) -> str:
        return self.entries.text("name") or ""

    @property
    def version(self) -> int:
        return self.entries.integer("version") or 1

    def drafts(self) -> Iterator[Draft]:
        """Every step of the file, outer before inner, in the order they are declared."""
        waiting = [iter(self.scope.drafts)]
        while waiting:
            draft = next(waiting[-1], None)
            if draft is None:
                waiting.pop()
                continue
            yield draft
            if draft.inner is not None:
                waiting.append(iter(draft.inner.drafts))
