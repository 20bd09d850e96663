"""Text of a recipe to the plan that the kernel schedules, or everything that is wrong with it.

    compiled = compile_recipe(data, "research.yaml", around)
    compiled.plan        # None when there are errors
    compiled.report      # all problems of the file and of its sub-workflows, with positions

Compiling executes nothing and reads no file but sub-workflows. The work is done by `passes` (one file),
`closure` (the files it calls) and `assembly` (the plan).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from fanfold.kernel.plan import JSON, Plan
from fanfold.recipe.checks.unit import Unit
from fanfold.recipe.closure import Closure
from fanfold.recipe.inputs import problems_with
from fanfold.recipe.surroundings import Surroundings
from fanfold.text.diagnostics import Range, Source
from fanfold.text.report import Report
from fanfold.text.trees.yaml import RECIPE, TextFormat


class Compiled(Struct):
    """What became of a recipe."""

    plan: Plan | None
    """None exactly when the report holds errors."""
    report: Report
    sources: dict[str, Source] = field(default_factory=dict)
    """The text of every file that was read, for showing diagnostics."""
    positions: dict[str, dict[str, Range]] = field(default_factory=dict)
    """File to step path (`audit/scan`) to where the step's id stands."""


def compile_recipe(
    data: bytes,
    file: str,
    around: Surroundings,
    *,
    inputs: Mapping[str, JSON] | None = None,
    form: TextFormat = RECIPE,
) -> Compiled:
    """Compile a recipe and all it calls; with `inputs`, also check that they fit what it declares.

    `form` is another one for text made from a recipe built in code: limits on files do not hold for it.
    """
    report = Report("recipe")
    closure = Closure(around, report, file)
    root = closure.enter(data, file, os.path.realpath(file), form=form)
    if root is not None and inputs is not None:
        _check_inputs(root, inputs)
    units = [unit for unit in closure.units.values() if unit is not None]
    plan: Plan | None = None
    if report.ok and root is not None and root.plan is not None:
        plan = replace(root.plan, workflows=closure.plans) if closure.plans else root.plan
    return Compiled(
        plan=plan,
        report=report,
        sources={file: Source(data.decode("utf-8", "replace"), file)}
        | {u.source.file: u.source for u in units},
        positions={unit.source.file: _positions(unit) for unit in units},
    )


def _check_inputs(unit: Unit, given: Mapping[str, JSON]) -> None:
    for name, code, message, hint in problems_with(tuple(unit.inputs.values()), given):
        at = unit.input_nodes.get(name) or unit.entries.keys.get("inputs") or unit.entries.head()
        unit.notes.error(code, message, at, hint)


def _positions(unit: Unit) -> dict[str, Range]:
    found: dict[str, Range] = {}
    for draft in unit.drafts():
        node = draft.entries.nodes.get("id")
        if node is not None:
            found.setdefault(draft.path, unit.source.range(node.start, node.end))
    return found
