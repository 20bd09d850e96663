"""Emission: an open run as the recipe that would do the same again.

What was delegated is read from the run's log, recovered as a recipe (`recipe.emission`), and checked by the
same compiler as any other. With a name it is kept among the project's recipes; one that is there is not
replaced unless that is said.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from fanfold.errors import AuthorError, NotFoundError
from fanfold.recipe.emission.delegations import Emission, Omitted, StandsFor
from fanfold.recipe.emission.recover import recover
from fanfold.runtime.hosting.children import no_subagent
from fanfold.runtime.operations.addresses import Addressed, find_run
from fanfold.runtime.operations.agents.delegation import SPAWN_TIMEOUT_MS
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.recipes.checked import save_recipe
from fanfold.runtime.records.subagents import is_lead
from fanfold.runtime.steps.agent import words_of
from fanfold.runtime.views.sessions.delegations import find_delegations
from fanfold.text.diagnostics import Diagnostic


class Captured(Struct, frozen=True, kw_only=True):
    """A recipe that was recovered from a run. `file` is where it was saved, if it was."""

    run_id: str
    name: str
    recipe: str
    """Its text."""
    made_of: dict[str, list[str]]
    """The children that each of its steps stands for, in the order of its items."""
    recognised: Sequence[str]
    guessed: Sequence[str]
    stands_for: Sequence[StandsFor]
    """Holes of prompts that will not give the very words that stood there."""
    left_out: Sequence[Omitted]
    diagnostics: Sequence[Diagnostic]
    file: str | None = None


def capture(
    project: Project,
    run: str,
    *,
    children: Sequence[str] = (),
    name: str = "",
    request: str = "",
    save: bool = False,
    replace: bool = False,
) -> Captured:
    """The recipe of an open run, or of some of its children; saved under its name if that is asked for.

    `request` is what the user had asked for, where the run itself does not know it.
    """
    found = find_run(project, run)
    _check_open(found)
    for child in children:
        if not found.turns(child):
            raise no_subagent(child)
    delegations = find_delegations(found.tree, children, SPAWN_TIMEOUT_MS)
    request = request or "\n".join(words_of(node) for node in found.run.scope.children if is_lead(node))
    emission = recover(delegations, request=request, name=name)
    if emission.recipe is None:
        hint = f"fanfold inspect {found.run.id} shows who worked"
        raise NotFoundError("capture.nothing", _why_nothing(found, emission), hint=hint)
    compiled = emission.recipe.compile(project.surroundings(scripted=True), project.folder)
    diagnostics = compiled.report.diagnostics
    text = emission.recipe.to_yaml()
    saved = save and compiled.plan is not None
    file = str(save_recipe(project, emission.recipe.name, text, replace=replace)) if saved else None
    return Captured(
        run_id=found.run.id,
        name=emission.recipe.name,
        recipe=text,
        made_of=emission.made_of,
        recognised=emission.recognised,
        guessed=emission.guessed,
        stands_for=emission.stands_for,
        left_out=emission.left_out,
        diagnostics=diagnostics,
        file=file,
    )


def _check_open(found: Addressed) -> None:
    if not found.run.plan.open:
        run = found.run
        message = f"run {run.id} was made from a recipe: {run.plan.name}@{run.plan.version}"
        raise AuthorError("capture.not_open", message, hint=f"fanfold inspect {run.id} shows what it did")


def _why_nothing(found: Addressed, emission: Emission) -> str:
    if not emission.left_out:
        return f"nothing was delegated in run {found.run.id}"
    told = "; ".join(f"{one.name}: {one.why}" for one in emission.left_out[:3])
    return f"nothing that was delegated in run {found.run.id} completed: {told}"
