"""`fanfold init`: a project's first files, none of which replaces one that is there."""

from __future__ import annotations

from fanfold.cli.command import Invocation, command
from fanfold.cli.terminal.output import paint, say, say_json
from fanfold.errors import EXIT_OK
from fanfold.runtime.operations.system.init import RECIPE_NAME, SCRIPT_FILE, initialise


@command("init", summary="Set up a project: configuration, an example recipe and its script")
def init_command(call: Invocation) -> int:
    """Make `.fanfold/` with a commented configuration and an example; existing files are kept."""
    made = initialise(call.project)
    if call.as_json:
        say_json(made)
        return EXIT_OK
    for name in made.created:
        say(f"{paint('created', 'green', call.colour)} {name}\n")
    for name in made.kept:
        say(f"{paint('kept', 'dim', call.colour)}    {name}\n")
    say("\nTry it, without any model:\n")
    say(f"  fanfold run {RECIPE_NAME} --script {SCRIPT_FILE}\n")
    return EXIT_OK
