"""One step with everything that the other rooms tell of it."""

from __future__ import annotations

from fanfold.errors import NotFoundError
from fanfold.runtime.operations.addresses import find_run
from fanfold.runtime.operations.history.explain import explain_in
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.files.changes import diff
from fanfold.runtime.views.runs.changes import StepChanges
from fanfold.runtime.views.steps.pages import StepPage, step_page


def show_step(project: Project, run: str, step: str, at: int | None = None) -> StepPage:
    """A step of a run, as it is now or as it was after an event."""
    found = find_run(project, run, at)
    turns = found.turns(step)
    node = turns[-1] if turns else found.step(step)
    log = project.store.log(node.run.id)
    return step_page(found.tree, node, log, _files(project, run, step, at), explain_in(found.tree, node))


def _files(project: Project, run: str, step: str, at: int | None) -> list[StepChanges]:
    try:
        return diff(project, run, step, at).steps
    except NotFoundError:
        return []
