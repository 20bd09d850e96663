"""Text of a recipe to the plan that the kernel schedules, or everything that is wrong with it.

    compiled = compile_recipe(data, "research.yaml", around)
    compiled.plan        # None when there are errors
    compiled.report      # all problems of the file and of its sub-workflows, with positions

Compiling executes nothing and reads no file but sub-workflows. The work is done by `passes` (one file),
`closure` (the files it calls) and `assembly` (the plan).
"""

from __future__ import annotations

import os

from msgspec import Struct
from msgspec.structs import replace

from fanfold.kernel.plan import Plan
from fanfold.recipe.closure import Closure
from fanfold.recipe.surroundings import Surroundings
from fanfold.text.diagnostics import Source
from fanfold.text.report import Report
from fanfold.text.trees.yaml import RECIPE, TextFormat


class Compiled(Struct):
    """What became of a recipe."""

    plan: Plan | None
    """None exactly when the report holds errors."""
    report: Report
    sources: dict[str, Source]
    """The text of every file that was read, for showing diagnostics."""


def compile_recipe(data: bytes, file: str, around: Surroundings, *, form: TextFormat = RECIPE) -> Compiled:
    """Compile a recipe and all it calls.

    `form` is another one for text made from a recipe built in code: limits on files do not hold for it.
    """
    report = Report("recipe")
    closure = Closure(around, report, file)
    root = closure.enter(data, file, os.path.realpath(file), form=form)
    plan: Plan | None = None
    if report.ok and root is not None and root.plan is not None:
        plan = replace(root.plan, workflows=closure.called(root.plan)) if closure.plans else root.plan
    sources = {file: Source(data.decode("utf-8", "replace"), file)}
    sources |= {unit.source.file: unit.source for unit in closure.units.values() if unit is not None}
    return Compiled(plan, report, sources)
