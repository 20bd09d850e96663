"""The recipe format as JSON Schema, and the set-up of editors that use it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.recipes.vscode import SettingsUnreadableError, add_schema
from fanfold.runtime.views.recipes import SCHEMA_FILE, SETTINGS_FILE, EditorSetUp

RECIPE_GLOBS = [".fanfold/workflows/**/*.yaml", ".fanfold/workflows/**/*.yml"]
MODELINE = "# yaml-language-server: $schema=../recipe.schema.json"


def recipe_schema(project: Project) -> str:
    """The JSON Schema of recipes, with the roles known here, to be read by people too."""
    from fanfold.recipe.schema import json_schema

    document = json_schema(project.roles.names(), project.around.ceilings)
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def set_up_editors(project: Project) -> EditorSetUp:
    """Write the schema and tell VS Code about it; doing it again changes only what is out of date."""
    target = project.folder / SCHEMA_FILE
    target.parent.mkdir(parents=True, exist_ok=True)
    schema = _write(target, recipe_schema(project))
    settings = project.folder / SETTINGS_FILE
    before = settings.read_text("utf-8") if settings.exists() else ""
    try:
        after = add_schema(before, f"./{SCHEMA_FILE}", RECIPE_GLOBS)
    except SettingsUnreadableError:
        line = f'"yaml.schemas": {{"./{SCHEMA_FILE}": {msgspec.json.encode(RECIPE_GLOBS).decode()}}}'
        note = f"The settings could not be understood and were left alone; add this yourself:\n  {line}"
        return EditorSetUp(schema=schema, settings="unchanged", note=note)
    settings.parent.mkdir(exist_ok=True)
    return EditorSetUp(schema=schema, settings=_write(settings, after))


def _write(file: Path, text: str) -> str:
    if file.exists() and file.read_text("utf-8") == text:
        return "unchanged"
    file.write_text(text, "utf-8")
    return "written"
