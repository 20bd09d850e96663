"""Saving a recipe into the project's library, under a name, after the compiler had nothing against it."""

from __future__ import annotations

import re
from pathlib import Path

from fanfold.errors import AuthorError, NotFoundError
from fanfold.recipe.library import require_name, said_by_file
from fanfold.recipe.surroundings import FoundRecipe
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.recipes.checked import check_found

_NAME_LINE = re.compile(r"^name:.*$", re.MULTILINE)


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
