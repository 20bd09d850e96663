"""`fanfold schema`: the recipe format as JSON Schema, and the set-up of editors that use it."""

from __future__ import annotations

from pathlib import Path

import click

from fanfold.cli.command import Call, command
from fanfold.cli.project import open_project
from fanfold.cli.terminal.output import say, say_json, to_json
from fanfold.errors import EXIT_OK

SCHEMA_FILE = ".fanfold/recipe.schema.json"
RECIPE_GLOBS = [".fanfold/workflows/**/*.yaml", ".fanfold/workflows/**/*.yml"]
MODELINE = "# yaml-language-server: $schema=../recipe.schema.json"


@command("schema", summary="Print the recipe format as JSON Schema, or set up editors with --install")
@click.option("--install", is_flag=True, help=f"Write {SCHEMA_FILE} and tell VS Code about it.")
def schema_command(call: Call, install: bool) -> int:
    """Print the JSON Schema of recipes, with the roles known here.

    With --install, editors that understand YAML schemas complete and check recipes while you type.
    Doing it again updates the schema and changes nothing else.
    """
    from fanfold.recipe.schema import json_schema

    with open_project(call) as project:
        document = json_schema(project.roles.names(), project.around.ceilings)
    if not install:
        say(_pretty(document))
        return EXIT_OK
    written = _install(call.project, _pretty(document))
    if call.as_json:
        say_json({"ok": True, **written})
        return EXIT_OK
    for file in (SCHEMA_FILE, ".vscode/settings.json"):
        say(f"{written[file]}  {file}\n")
    if written["note"]:
        say(f"{written['note']}\n")
    say(f"In other editors, put this first in a recipe of .fanfold/workflows:\n  {MODELINE}\n")
    return EXIT_OK


def _install(project: Path, schema: str) -> dict[str, str]:
    from fanfold.runtime.operations.recipes.vscode import SettingsUnreadableError, add_schema

    target = project / SCHEMA_FILE
    target.parent.mkdir(parents=True, exist_ok=True)
    done = {SCHEMA_FILE: _write(target, schema), ".vscode/settings.json": "unchanged", "note": ""}
    settings = project / ".vscode" / "settings.json"
    before = settings.read_text("utf-8") if settings.exists() else ""
    try:
        after = add_schema(before, f"./{SCHEMA_FILE}", RECIPE_GLOBS)
    except SettingsUnreadableError:
        line = f'"yaml.schemas": {{"./{SCHEMA_FILE}": {to_json(RECIPE_GLOBS)}}}'
        done["note"] = (
            f"The settings could not be understood and were left alone; add this yourself:\n  {line}"
        )
        return done
    settings.parent.mkdir(exist_ok=True)
    done[".vscode/settings.json"] = _write(settings, after)
    return done


def _write(file: Path, text: str) -> str:
    if file.exists() and file.read_text("utf-8") == text:
        return "unchanged"
    file.write_text(text, "utf-8")
    return "written"


def _pretty(document: object) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
