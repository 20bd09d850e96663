"""`fanfold schema`: the recipe format as JSON Schema, and the set-up of editors that use it."""

from __future__ import annotations

from fanfold.cli.command import Invocation, command, option
from fanfold.cli.terminal.output import say
from fanfold.runtime.operations.recipes.editors import MODELINE, recipe_schema, set_up_editors
from fanfold.runtime.views.recipes.documents import SCHEMA_FILE, SETTINGS_FILE


@command("schema", summary="Print the recipe format as JSON Schema, or set up editors")
@option("--install", is_flag=True, help=f"Write {SCHEMA_FILE} and tell VS Code about it.")
def schema_command(call: Invocation, install: bool) -> None:
    """Print the JSON Schema of recipes, with the roles known here.

    With --install, editors that understand YAML schemas complete and check recipes while you type.
    Doing it again updates the schema and changes nothing else.
    """
    with call.open_project() as project:
        if not install:
            say(recipe_schema(project))
            return
        done = set_up_editors(project)
    lines = [f"{done.schema}  {SCHEMA_FILE}", f"{done.settings}  {SETTINGS_FILE}", *filter(None, [done.note])]
    lines += ["In other editors, put this first in a recipe of .fanfold/workflows:", f"  {MODELINE}"]
    call.give(done, lambda: (f"{line}\n" for line in lines))
