"""From what somebody named to compiled recipes: shared by everything that takes a recipe."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct

from fanfold.errors import AuthorError, NotFoundError
from fanfold.recipe.library import require_name, said_by_file
from fanfold.recipe.surroundings import FoundRecipe
from fanfold.runtime.operations.project import Project
from fanfold.text.diagnostics import Diagnostic, Position, Range, Source
from fanfold.text.patterns import regex
from fanfold.text.refusal import FileRefused
from fanfold.text.trees.yaml import MAX_BYTES
from fanfold.trust.project_files import read_beneath

if TYPE_CHECKING:
    from fanfold.kernel.plan import Plan
    from fanfold.runtime.views.recipes.documents import RecipeDocument


MISSING = "missing"
"""Where a recipe was found that is not there."""
_NAME_LINE = regex(r"^name:.*$", re.MULTILINE)
Picture: TypeAlias = Literal["mermaid", "svg"]


class CheckedRecipe:
    """One recipe, found and compiled; `plan` is None when it has errors, `ref` empty when it is no file."""

    def __init__(
        self,
        ref: str,
        found: FoundRecipe,
        plan: Plan | None,
        diagnostics: Sequence[Diagnostic],
        sources: Mapping[str, Source],
    ) -> None:
        self.ref = ref
        self.found = found
        self.plan = plan
        self.diagnostics = tuple(diagnostics)
        self.sources = sources

    @property
    def ok(self) -> bool:
        return all(diagnostic.severity != "error" for diagnostic in self.diagnostics)

    def rendered(self, colour: bool) -> str:
        """The diagnostics in compiler style."""
        from fanfold.text.renderings import render_text

        return render_text(self.diagnostics, self.sources, colour)

    def runnable(self) -> Plan:
        """The plan, or `FileRefused`."""
        if self.plan is None or not self.ok:
            hint = f"fanfold check {shlex.quote(self.ref)}" if self.ref else ""
            raise FileRefused(self.diagnostics, self.sources, hint)
        return self.plan


def check_recipe(project: Project, ref: str, *, scripted: bool = False) -> CheckedRecipe:
    """Find a recipe by name or file, and compile it; with `scripted`, for a run with a script."""
    return check_found(project, ref, project.find_recipe(ref), scripted=scripted)


def check_found(project: Project, ref: str, found: FoundRecipe, *, scripted: bool = False) -> CheckedRecipe:
    """Compile a recipe that was found under a reference."""
    compiled = project.compile(found, scripted=scripted)
    diagnostics = [*_shadows(found), *compiled.report.diagnostics]
    if compiled.plan is not None:
        diagnostics += _misnamed(found, compiled.plan)
    return CheckedRecipe(ref, found, compiled.plan, diagnostics, compiled.sources)


def check_recipes(project: Project, refs: Sequence[str]) -> list[CheckedRecipe]:
    """Find and compile recipes. One that is not there takes nothing away from the others: that it is
    missing is then a diagnostic like any other. A single one is simply not found.
    """
    checked: list[CheckedRecipe] = []
    for ref in refs:
        try:
            checked.append(check_recipe(project, ref))
        except NotFoundError as error:
            if len(refs) == 1:
                raise
            start = Range(Position(1, 1), Position(1, 1))
            problem = Diagnostic(error.code, "error", error.message, ref, start, error.hint)
            checked.append(CheckedRecipe(ref, FoundRecipe(b"", ref, MISSING), None, [problem], {}))
    return checked


def recipes_meant(project: Project, refs: Sequence[str]) -> list[str]:
    """References as somebody gave them, with a folder standing for the recipes in it, and none for all of
    the project: those in its library, and files in its top folder that look like recipes.
    """
    meant: list[str] = []
    for ref in refs or (os.path.relpath(project.folder),):
        if ref.endswith((".yaml", ".yml")) or not os.path.isdir(ref):
            meant.append(ref)
            continue
        found = recipe_files(ref)
        here = os.path.realpath(ref) == os.fspath(project.folder)
        if here:
            kept = [one for one in project.library.list() if one.origin == "project"]
            found = [f"{one.name}@{one.version}" for one in kept] + found
        if not found:
            message = f"there is no recipe in {os.path.abspath(ref)}"
            hint = "fanfold init makes a first one" if here else "fanfold check checks those of the project"
            raise NotFoundError("recipe.unknown_workflow", message, hint=hint)
        meant += found
    return meant


def recipe_files(folder: str | os.PathLike[str]) -> list[str]:
    """The files of a folder that look like recipes, by name."""
    files = [
        os.path.join(folder, one) for one in sorted(os.listdir(folder)) if one.endswith((".yaml", ".yml"))
    ]
    return [path for path in files if _looks_like_recipe(path)]


def _looks_like_recipe(file: str) -> bool:
    """A YAML file with a name, and steps or phases: scripts and files of other tools lie beside recipes."""
    try:  # beneath its folder: a link may lead anywhere, and a pipe would wait for its other end
        lines = read_beneath(Path(os.path.dirname(file)), Path(file), MAX_BYTES).splitlines()
    except OSError:
        return False
    named = any(line.startswith(b"name:") for line in lines)
    return named and any(line.startswith((b"steps:", b"phases:")) for line in lines)


class RoleWarnings(Struct, frozen=True):
    """What is odd about the files of roles, seen from the recipes that use some of them."""

    used: list[Diagnostic]
    """About the roles that are used; told, since steps rely on them."""
    others: int = 0
    """How many files of other roles have something to say."""

    def line(self) -> str:
        """The others in one line, with the command that tells more; empty when there are none."""
        if not self.others:
            return ""
        files, have = ("file", "has") if self.others == 1 else ("files", "have")
        return f"{self.others} other role {files} {have} warnings: fanfold agents lists them"


def role_warnings(project: Project, plans: Iterable[Plan | None]) -> RoleWarnings:
    """Warnings about the files of the roles that plans use, and how many there are about others."""
    found = [notice for notice in project.roles.notices if notice.severity == "warning"]
    if not found:
        return RoleWarnings([])
    from fanfold.runtime.records.frozen import freeze_roles, with_stages

    find = project.roles.find
    used = {
        name: role
        for plan in plans
        if plan is not None
        for name, role in with_stages(freeze_roles(plan, find), find).items()
    }
    names = {name.partition("@")[0] for name in used} | {role.name for role in used.values()}
    sources = {role.source for role in used.values()}
    about = [one for one in found if one.role in names or one.file in sources]
    told = [
        Diagnostic(one.code, "warning", one.message, one.file, Range(at, at), one.help)
        for one in about
        for at in (Position(one.line, one.column),)
    ]
    return RoleWarnings(told, len({one.file for one in found} - {one.file for one in about}))


def _shadows(recipe: FoundRecipe) -> Iterator[Diagnostic]:
    """One name in two places is always said, though neither file is wrong."""
    if recipe.shadowed:
        start = Range(Position(1, 1), Position(1, 1))
        message = f"{recipe.file} shadows {', '.join(recipe.shadowed)}"
        yield Diagnostic("recipe.shadowed", "warning", message, recipe.file, start)


def _misnamed(recipe: FoundRecipe, plan: Plan) -> Iterator[Diagnostic]:
    """A file that is found under one name or version and says another: whoever refers to it is misled.

    A file that is only ever given by its path may be called anything.
    """
    from fanfold.recipe.library import said_by_file

    name, version = said_by_file(recipe.file)
    kept = recipe.origin != "path" or f"{os.sep}.fanfold{os.sep}workflows{os.sep}" in os.path.abspath(
        recipe.file
    )
    found = []
    if name is not None and kept and name != plan.name:
        found.append(("name", f'the file is called "{name}", but says its name is "{plan.name}"'))
    if version is not None and version != plan.version:
        found.append(("version", f"the file is called version {version}, but says {plan.version}"))
    for key, message in found:
        lines = recipe.data.decode().splitlines()
        line = next((i for i, text in enumerate(lines, 1) if text.startswith(f"{key}:")), 1)
        place = Range(Position(line, 1), Position(line, len(key) + 1))
        yield Diagnostic("recipe.bad_value", "warning", message, recipe.file, place, "rename one of them")


def save_recipe(project: Project, name: str, text: str, *, replace: bool = False) -> Path:
    """Save a recipe as `name` (or `name@2`) of this project; the text is made to say that name too.

    Raises `FileRefused` for a recipe with errors, and `recipe.exists` rather than replace another one.
    """
    require_savable(project, name, replace=replace)  # before it becomes a path
    text = renamed(text, name)
    file = project.memory / "workflows" / f"{name}.yaml"
    check_found(project, name, FoundRecipe(text.encode("utf-8", "replace"), str(file))).runnable()
    return project.library.save(name, text)


def require_savable(project: Project, name: str, *, replace: bool = False) -> None:
    """Raise where no recipe can be saved under this name: before one is made that would be lost."""
    require_name(name)
    if not replace and _is_there(project, name):
        hint = "choose another name, or NAME@2 for a second version; --replace writes over it"
        raise AuthorError("recipe.exists", f'this project has a recipe "{name}" already', hint=hint)


def renamed(text: str, name: str) -> str:
    """The recipe under another name (`name` or `name@2`)."""
    plain, _ = said_by_file(f"{name}.yaml")
    return text if plain is None else _NAME_LINE.sub(f"name: {plain}", text, count=1)


def _is_there(project: Project, name: str) -> bool:
    """Whether the project itself has it; a name that is built in or the user's is only shadowed."""
    try:
        return project.library.find(name).origin == "project"
    except NotFoundError:
        return False


def show_recipe(project: Project, ref: str, picture: Picture | None = None) -> RecipeDocument:
    """One recipe by name or file, with its graph drawn where that is asked for; raises `Refused`."""
    from fanfold.runtime.views.recipes.documents import recipe_document

    checked = check_recipe(project, ref)
    plan = checked.runnable()
    graph = None
    if picture == "mermaid":
        from fanfold.runtime.views.graph.mermaid import mermaid

        graph = mermaid(plan)
    elif picture == "svg":
        from fanfold.runtime.views.graph.svg import svg

        graph = svg(plan)
    return recipe_document(plan, checked.found.file, graph)
