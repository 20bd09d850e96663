"""Which runs there are, and how one of them stands."""

from __future__ import annotations

import sys
from time import time

from msgspec import structs

from fanfold.runtime.operations.addresses import Addressed, find_run
from fanfold.runtime.operations.project import Project
from fanfold.runtime.views.runs import (
    InspectDocument,
    InspectStepDocument,
    OwnerDocument,
    RunRow,
    inspect_document,
    inspect_step_document,
    run_row,
    state_document,
)
from fanfold.runtime.views.step_rows import Row, run_rows
from fanfold.store.protocol import RunHead


def list_heads(
    project: Project, *, status: str | None = None, limit: int | None = None, children: bool = False
) -> list[RunHead]:
    """Runs, newest first; root runs alone unless `children` are asked for."""
    if not project.has_runs:
        return []
    most = sys.maxsize if limit is None else limit
    return project.store.heads(roots_only=not children, status=status, limit=most)


def list_runs(
    project: Project, *, status: str | None = None, limit: int | None = None, children: bool = False
) -> list[RunRow]:
    """The same, as rows with the process that drives each."""
    heads = list_heads(project, status=status, limit=limit, children=children)
    return [run_row(head, owner_of(project, head.root_run_id)) for head in heads]


def inspect(project: Project, run: str, *, with_state: bool = False) -> InspectDocument:
    """A run with its child runs, as its log is now."""
    return inspect_found(project, find_run(project, run), with_state=with_state)


def inspect_found(project: Project, found: Addressed, *, with_state: bool = False) -> InspectDocument:
    """The same, for a run that was looked up already."""
    owner = owner_of(project, found.root_id)
    head = project.store.head(found.run.id)
    forked_from = None if head is None else head.forked_from
    document = structs.replace(inspect_document(found.tree, found.run), owner=owner, forked_from=forked_from)
    return structs.replace(document, state=state_document(found.tree, owner)) if with_state else document


def step_rows(found: Addressed, *, every: bool = False) -> list[Row]:
    """Its steps in plan order, as lines say them; large fan-outs by what needs attention, unless `every`."""
    return run_rows(found.tree, found.run, int(time() * 1_000), every=every)


def inspect_step(project: Project, run: str, step: str) -> InspectStepDocument:
    """One step of a run, by its path; a subagent by its name, as its latest turn."""
    found = find_run(project, run)
    turns = found.turns(step)
    return inspect_step_document(found.tree, turns[-1] if turns else found.step(step))


def owner_of(project: Project, root: str) -> OwnerDocument | None:
    """The process that drives a run tree, or that did when it died."""
    found = project.store.owner(root)
    return None if found is None else OwnerDocument(found[0].pid, found[1])
