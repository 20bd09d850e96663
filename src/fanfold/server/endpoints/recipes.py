"""Recipes: found, looked at, tried, changed."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from fanfold.runtime.operations.agents.capture import Captured, capture
from fanfold.runtime.operations.overview.recipes import (
    CheckedText,
    RecipePage,
    RecipeRows,
    list_shelf,
    save_text,
    show_page,
    try_text,
)
from fanfold.server.desk import Desk
from fanfold.server.endpoints.parameters import RecipeName, RunAsked, Word
from fanfold.server.routes import NoParameters, Routes

ROUTES = Routes()
Text = Annotated[str, Meta(max_length=512 * 1024)]


class RecipeAsked(NoParameters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: RecipeName


class TextGiven(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A recipe that is being written."""

    text: Text
    name: RecipeName = "recipe"


class TextChanged(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A new text; `seen` is the digest of the one it takes the place of, None where there is none."""

    text: Text
    seen: Annotated[str, Meta(max_length=64)] | None


class CaptureBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What of an open run becomes a recipe. With a `name` it is kept; `request` is what was asked for."""

    subagents: Annotated[list[Word], Meta(max_length=500)] = []
    name: RecipeName | None = None
    replace: bool = False
    request: Annotated[str, Meta(max_length=100_000)] = ""


@ROUTES.change("POST", "/api/runs/{run}/capture", "What was delegated, as a recipe")
def capture_run(desk: Desk, asked: RunAsked, body: CaptureBody) -> Captured:
    return capture(
        desk.fresh(),
        asked.run,
        children=body.subagents,
        name=body.name or "",
        request=body.request,
        save=body.name is not None,
        replace=body.replace,
    )


@ROUTES.get("/api/recipes", "Recipes of the project, the user, and built in")
def list_recipes(desk: Desk) -> RecipeRows:
    return list_shelf(desk.fresh())


@ROUTES.get("/api/recipes/{name}", "One recipe with its text and picture")
def show_recipe(desk: Desk, asked: RecipeAsked) -> RecipePage:
    return show_page(desk.fresh(), asked.name)


@ROUTES.change("POST", "/api/check", "What is wrong with a text")
def check_recipe(desk: Desk, body: TextGiven) -> CheckedText:
    return try_text(desk.fresh(), body.text, body.name)


@ROUTES.change("PUT", "/api/recipes/{name}", "Keep a text")
def save_recipe(desk: Desk, asked: RecipeAsked, body: TextChanged) -> RecipePage:
    return save_text(desk.fresh(), asked.name, body.text, body.seen)
