"""Which recipes there are, and what one of them takes and does."""

from __future__ import annotations

from typing import Literal, TypeAlias

from fanfold.recipe.library import ListedRecipe
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.recipes.checked import check_recipe
from fanfold.runtime.views.recipes.documents import RecipeDocument, recipe_document

Picture: TypeAlias = Literal["mermaid", "svg"]


def list_recipes(project: Project) -> list[ListedRecipe]:
    """Recipes by name: the project's, the user's, and those built in."""
    return project.library.list()


def show_recipe(project: Project, ref: str, picture: Picture | None = None) -> RecipeDocument:
    """One recipe by name or file, with its graph drawn where that is asked for; raises `Refused`."""
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
