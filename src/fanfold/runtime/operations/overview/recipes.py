"""The recipes of a project as a console shows them: the list, one with its text, a text on trial, a new text.

A recipe is named here, never given by a path: what may be looked at over a network is what the library lists.
"""

from __future__ import annotations

from hashlib import sha256
from statistics import median

from msgspec import Struct, structs

from fanfold.errors import AuthorError, FanfoldError, NotFoundError, WorldError
from fanfold.recipe.library import ListedRecipe, is_path, said_by_file
from fanfold.recipe.surroundings import FoundRecipe
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.recipes.checked import CheckedRecipe, check_found
from fanfold.runtime.operations.runs.starting.permission import needs_permission
from fanfold.runtime.views.graph.drawing import Drawing, draw
from fanfold.runtime.views.recipes.documents import CheckReport, RecipeDocument, RecipeInput, recipe_document
from fanfold.runtime.views.times import when


class LastRun(Struct, frozen=True):
    run_id: str
    status: str
    created_at: str | None


class RecipeRow(Struct, frozen=True, kw_only=True):
    """A recipe in a list. What nobody knows is None: its runs so far say, or there were none."""

    name: str
    version: int
    description: str
    source: str
    """`project`, `user` or `builtin`."""
    file: str
    warnings: list[str]
    inputs: list[RecipeInput] | None
    """None where it cannot be compiled; then its warnings say why."""
    runs: int
    last_run: LastRun | None
    median_s: float | None
    median_usd: float | None


class RecipeRows(Struct, frozen=True):
    items: list[RecipeRow]
    next: None = None


class RecipePage(Struct, frozen=True, kw_only=True):
    """One recipe: its text, what is wrong with it, and what it is where nothing is."""

    name: str
    source: str
    file: str
    text: str
    digest: str
    """Of the text: what is changed is the text that was seen."""
    writable: bool
    check: CheckReport
    recipe: RecipeDocument | None
    graph: Drawing | None
    needs: list[str]
    """What a run of it has to be permitted, line by line."""


class CheckedText(CheckReport, frozen=True, kw_only=True):
    """What is wrong with a text, and its picture where nothing is."""

    graph: Drawing | None
    needs: list[str]


LOOKED_AT = 50
"""The newest runs of a recipe, from which its usual time and price are told."""
PROJECT = "project"


def list_shelf(project: Project) -> RecipeRows:
    """Every recipe known here, with what its runs were like."""
    return RecipeRows([_row(project, one) for one in project.library.list()])


def _row(project: Project, one: ListedRecipe) -> RecipeRow:
    warnings = list(one.warnings)
    try:
        checked = find_named(project, f"{one.name}@{one.version}")
        plan = checked.plan
        warnings += [found.message for found in checked.diagnostics if found.severity == "error"]
    except FanfoldError as error:
        plan = None
        warnings.append(error.message)
    heads = project.heads(recipe=one.name, limit=LOOKED_AT)
    done = [head for head in heads if head.status == "completed"]
    prices = [head.usage.micro_usd / 1_000_000 for head in done if head.usage.micro_usd is not None]
    times = [(head.ended_at - head.started_at) / 1_000 for head in done if head.ended_at and head.started_at]
    return RecipeRow(
        name=one.name,
        version=one.version,
        description=one.description,
        source=one.origin,
        file=one.file,
        warnings=list(dict.fromkeys(warnings)),
        inputs=None if plan is None else recipe_document(plan, one.file).inputs,
        runs=len(heads),
        last_run=LastRun(heads[0].run_id, heads[0].status, when(heads[0].created_at)) if heads else None,
        median_s=median(times) if times else None,
        median_usd=median(prices) if prices else None,
    )


def find_named(project: Project, name: str, *, scripted: bool = False) -> CheckedRecipe:
    """A recipe of the library by its name, compiled; anything that is no name is not found."""
    if is_path(name):
        message = f'there is no recipe "{name[:80]}"'
        raise NotFoundError("recipe.unknown_workflow", message, hint="GET /api/recipes lists them")
    return check_found(project, name, project.library.find(name), scripted=scripted)


def show_page(project: Project, name: str) -> RecipePage:
    """One recipe with its text."""
    checked = find_named(project, name)
    found = checked.found
    return RecipePage(
        name=name,
        source=found.origin,
        file=found.file,
        text=found.data.decode("utf-8", "replace"),
        digest=sha256(found.data).hexdigest(),
        writable=_own_name(found) is not None,
        check=CheckReport(checked.ok, checked.diagnostics),
        recipe=recipe_document(checked.plan, found.file) if checked.plan is not None else None,
        graph=draw(checked.plan) if checked.plan is not None else None,
        needs=needs_of(project, checked),
    )


def needs_of(project: Project, checked: CheckedRecipe) -> list[str]:
    """What a run of a recipe has to be permitted."""
    return [] if checked.plan is None else needs_permission(checked.plan, project.roles.find)


def try_text(project: Project, text: str, name: str = "recipe") -> CheckedText:
    """What is wrong with a text, as if it stood in the project's folder of recipes; nothing is written."""
    checked = _tried(project, text, name)
    return CheckedText(
        **structs.asdict(CheckReport(checked.ok, checked.diagnostics)),
        graph=draw(checked.plan) if checked.ok and checked.plan is not None else None,
        needs=needs_of(project, checked),
    )


def _tried(project: Project, text: str, name: str) -> CheckedRecipe:
    if is_path(name) or "\0" in name:
        raise AuthorError("recipe.bad_value", f'"{name[:80]}" cannot be the name of a recipe')
    file = project.memory / "workflows" / f"{name}.yaml"
    found = FoundRecipe(text.encode("utf-8", "surrogatepass"), str(file), PROJECT)
    return check_found(project, name, found)


def save_text(project: Project, name: str, text: str, seen: str | None) -> RecipePage:
    """Keep a text under a name in the project. `seen` is the digest of what it takes the place of.

    Raises `recipe.changed` when that is not what is there any more, and `FileRefused` for a text with errors.
    """
    try:
        now = find_named(project, name).found
    except NotFoundError:
        now = None
    there = None if now is None else sha256(now.data).hexdigest()
    if there != seen:
        message = f'recipe "{name}" is not what you saw any more' if there else f'there is no recipe "{name}"'
        raise WorldError("recipe.changed", message, hint="look at it again", details={"digest": there})
    own = name if now is None or now.origin != PROJECT else _own_name(now)
    if own is None:
        raise AuthorError("recipe.not_writable", f"{now.file if now else name} is not kept by name")
    _tried(project, text, own).runnable()
    project.library.save(own, text)
    return show_page(project, name)


def _own_name(found: FoundRecipe) -> str | None:
    """The name under which a recipe of the project can be saved again; None for one that is not kept so."""
    if found.origin != PROJECT:
        return None
    name, version = said_by_file(found.file)
    stem = name if version is None else f"{name}@{version}"
    return stem if stem is not None and found.file.endswith(f"/workflows/{stem}.yaml") else None
