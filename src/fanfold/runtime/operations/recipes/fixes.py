"""`check --fix`: carry out the mechanical repairs that diagnostics propose.

A repair is applied only to the file the user named, never to built-in recipes or to files it refers to.
After each round the file is compiled again, because one repair may make the next one visible; when
nothing is left to repair the file is not touched, so a second call changes nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

from fanfold.errors import WorldError
from fanfold.kernel.plan import Plan
from fanfold.recipe.surroundings import FoundRecipe
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.recipes.checked import MISSING, CheckedRecipe, check_found
from fanfold.runtime.views.recipes.documents import SuggestedSet
from fanfold.runtime.views.steps.used_sets import StepTouch, plan_steps, suggest, touched_by
from fanfold.text.diagnostics import Fix, Position
from fanfold.trust.project_files import write_whole

MAX_ROUNDS = 20
_LINE_END = re.compile(r"\r\n|\n|\r")
MAX_RUNS = 20
"""The latest of them are looked at."""


def fix(project: Project, recipe: CheckedRecipe) -> tuple[CheckedRecipe, int]:
    """Repair what can be repaired: the recipe as it is afterwards, and how many repairs were made."""
    if recipe.found.origin in ("builtin", MISSING):
        return recipe, 0
    fixed = 0
    seen = {recipe.found.data}
    for _ in range(MAX_ROUNDS):
        fixes = [d.fix for d in recipe.diagnostics if d.fix is not None and d.file == recipe.found.file]
        if not fixes:
            break
        text, count = apply_fixes(recipe.found.data.decode(), fixes)
        data = text.encode()
        if not count or data in seen:  # two repairs that undo each other must not go on for ever
            break
        seen.add(data)
        fixed += count
        old = recipe.found
        recipe = check_found(project, recipe.ref, FoundRecipe(data, old.file, old.origin, old.shadowed))
    if fixed:
        _replace(Path(recipe.found.file), recipe.found.data)
    return recipe, fixed


def apply_fixes(text: str, fixes: list[Fix]) -> tuple[str, int]:
    """The repaired text and how many repairs were made; of two that overlap the first is made."""
    ends = list(_LINE_END.finditer(text))
    starts = [0, *(match.end() for match in ends)]
    line_end = ends[0][0] if ends else "\n"  # a repair that adds lines ends them as the file does

    def offset(position: Position) -> int:
        return min(starts[min(position.line, len(starts)) - 1] + position.column - 1, len(text))

    spans = sorted({(offset(fix.range.start), offset(fix.range.end), fix.text) for fix in fixes})
    parts: list[str] = []
    at = count = 0
    previous = -1
    for start, end, replacement in spans:
        if start < at or start == previous:
            continue
        parts += [text[at:start], replacement.replace("\n", line_end)]
        at, previous = end, start
        count += 1
    return "".join([*parts, text[at:]]), count


def _replace(file: Path, data: bytes) -> None:
    """Write what a link leads to only where that is in the folder one works in."""
    target = file.resolve()
    if file.is_symlink() and not target.is_relative_to(Path.cwd().resolve()):
        hint = f"fix the file that it leads to: {target}"
        raise WorldError("world.io", f"{file} is a link that leads out of this folder", hint=hint)
    write_whole(target, data, mode=target.stat().st_mode & 0o7777, exactly=True)


def suggest_sets(project: Project, plan: Plan) -> list[SuggestedSet]:
    """What the latest runs of a recipe suggest, as root runs and as child runs."""
    if not project.has_runs:
        return []
    heads = [head for head in project.store.heads(roots_only=False, limit=-1) if head.recipe == plan.name]
    seen: dict[str, StepTouch] = {}
    for head in heads[:MAX_RUNS]:
        tree = project.view(head.root_run_id)
        run = tree.state.runs.get(head.run_id)
        if run is not None:
            touched_by(tree, run, seen)
    return suggest(plan.name, plan_steps(plan.steps), seen)
