"""The recipe format as JSON Schema, and the set-up of editors that use it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fanfold.errors import WorldError
from fanfold.runtime.operations.project import Project
from fanfold.runtime.views.recipes.documents import SCHEMA_FILE, SETTINGS_FILE, EditorSetUp
from fanfold.text.json_comments import SettingsUnreadableError, has_entry, set_entry
from fanfold.trust.project_files import read_beneath, write_beneath

MAX_BYTES = 4 * 1024 * 1024

RECIPE_GLOBS = [".fanfold/workflows/**/*.yaml", ".fanfold/workflows/**/*.yml"]
MODELINE = "# yaml-language-server: $schema=../recipe.schema.json"


def recipe_schema(project: Project) -> str:
    """The JSON Schema of recipes, with the roles known here, to be read by people too."""
    from fanfold.recipe.schema import json_schema

    document = json_schema(project.roles.names(), project.around.ceilings)
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def set_up_editors(project: Project) -> EditorSetUp:
    """Write the schema and tell VS Code about it; doing it again changes only what is out of date."""
    schema = _write(project.folder, SCHEMA_FILE, recipe_schema(project))
    before = _read(project.folder, SETTINGS_FILE)
    try:
        where = ("yaml.schemas", f"./{SCHEMA_FILE}")
        after = before if has_entry(before, where) else set_entry(before, where, RECIPE_GLOBS)
    except SettingsUnreadableError:
        line = f'"yaml.schemas": {{"./{SCHEMA_FILE}": {msgspec.json.encode(RECIPE_GLOBS).decode()}}}'
        note = f"The settings could not be understood and were left alone; add this yourself:\n  {line}"
        return EditorSetUp(schema=schema, settings="unchanged", note=note)
    return EditorSetUp(schema=schema, settings=_write(project.folder, SETTINGS_FILE, after))


def _read(top: Path, path: str) -> str:
    try:
        return read_beneath(top, top / path, MAX_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise WorldError("world.io", f"{top / path} cannot be read: {error.strerror}") from None


def _write(top: Path, path: str, text: str) -> str:
    try:
        if _read(top, path) == text:
            return "unchanged"
        write_beneath(top, path, text.encode())
    except OSError as error:
        message = f"{top / path} cannot be written: {error.strerror}"
        raise WorldError("world.io", message, hint="no link is followed there") from None
    return "written"
