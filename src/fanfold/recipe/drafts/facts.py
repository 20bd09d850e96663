"""What was found out about a step: checked and resolved values, waiting to become part of the plan."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, field

from fanfold.kernel.plan import EVERYTHING, JSON, Output, Posture, RetryPolicy, Value, WorkspaceMode
from fanfold.recipe.drafts.roles import NamedRole
from fanfold.recipe.language.known_outputs import Known
from fanfold.text.tables.entries import Entries


class PhaseParts(Struct):
    """The parts of a phase that are not steps yet."""

    review: Entries | None = None
    verify: Entries | None = None
    converge: Entries | None = None
    reviewer: NamedRole | None = None
    gate: str = ""
    judge: object = None
    """What the gate keeps of what was said about it."""


class Facts(Struct):
    """Filled in by the passes; what a step does not have keeps its default."""

    depends_on: tuple[str, ...] = ()
    when: str | None = None
    for_each: str | None = None
    inline: bool = False
    """Its failure is shown to those that come after it instead of an output."""
    until: str = ""
    inputs: dict[str, Value] = field(default_factory=dict)
    output: Output | None = None
    output_schema: JSON = None
    retry: RetryPolicy | None = None
    read_set: tuple[str, ...] = EVERYTHING
    write_set: tuple[str, ...] = ()
    templated_sets: bool = False
    posture: Posture = "read_only"
    workspace_mode: WorkspaceMode = "shared"
    role: NamedRole | None = None
    body: Struct | None = None
    """What a leaf step says with the keys of its type."""
    workflow: str = ""
    """Key of the sub-workflow in the root plan."""
    child_writes: bool = False
    """Something in the sub-workflow may write."""
    child_claims: str = ""
    """Path of the first step in the sub-workflow that declares a `write_set`."""
    phase: PhaseParts = field(default_factory=PhaseParts)
    output_names: dict[str, Known] | None = None
    gives: Callable[[], Known] | None = None
    """Works out what is known of its output, where that depends on other steps or on a sub-workflow."""
    known_output: Known | None = None
