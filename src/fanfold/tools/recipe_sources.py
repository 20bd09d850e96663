"""Which recipe a model means: one by name, a file of the project, or one that it wrote itself.

A model may not point at files outside the project: what is wrong with a file is told with words out of it.
"""

from __future__ import annotations

import os

import msgspec

from fanfold.errors import AuthorError
from fanfold.kernel.plan import JSON
from fanfold.recipe.builder import Recipe
from fanfold.recipe.library import is_path
from fanfold.recipe.surroundings import FoundRecipe
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.recipes.checked import CheckedRecipe, check_found
from fanfold.tools.permission import denied
from fanfold.trust.project_files import LedOut, resolve_beneath

WRITTEN = "written"
"""Where a recipe was found that a model wrote."""


def find_recipe(project: Project, name: str, spec: JSON, *, scripted: bool) -> CheckedRecipe:
    """The recipe, compiled; its plan is None when it has errors. Exactly one of the two must be given."""
    if bool(name) == (spec is not None):
        message = "give either the name of a recipe or a spec"
        raise AuthorError("usage.conflict", message, hint="name for a saved one, spec for one that you wrote")
    if spec is not None:
        return check_text(project, text_of(spec), scripted=scripted)
    return check_found(project, name, found_recipe(project, name), scripted=scripted)


def found_recipe(project: Project, name: str) -> FoundRecipe:
    """A saved recipe, or a file of the project."""
    if is_path(name):
        _stay_inside(project, name)
        name = os.path.join(project.folder, name)
    return project.find_recipe(name)


def check_text(project: Project, text: str, *, scripted: bool = False) -> CheckedRecipe:
    """Compile a recipe that is no file yet; what it refers to is found from the project's folder."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise AuthorError("recipe.encoding", "the recipe is not Unicode text") from None
    file = os.path.join(project.folder, "<spec>")  # a name no file has
    return check_found(project, "", FoundRecipe(data, file, WRITTEN), scripted=scripted)


def text_of(spec: JSON) -> str:
    """A spec as the text of a recipe file."""
    if isinstance(spec, str):
        return spec
    if not isinstance(spec, dict):
        message = "spec is neither the text of a recipe nor an object"
        raise AuthorError("usage.bad_value", message, hint="begin with name and steps, or phases")
    return Recipe.from_yaml(msgspec.json.encode(spec)).to_yaml()


def _stay_inside(project: Project, path: str) -> None:
    try:
        resolve_beneath(project.folder, project.folder / path)
    except LedOut:
        raise denied(f"{path} is outside the project", "name a recipe, or a file below the project") from None
