"""`fanfold init`: a project's first files, none of which replaces one that is there."""

from __future__ import annotations

from fanfold.cli.command import Invocation, command
from fanfold.cli.terminal.output import paint
from fanfold.runtime.operations.system.init import RECIPE_NAME, SCRIPT_FILE, initialise


@command("init", summary="Set up a project: configuration, an example recipe and its script")
def init_command(call: Invocation) -> None:
    """Make `.fanfold/` with a commented configuration and an example; existing files are kept."""
    made = initialise(call.project)
    lines = [f"{paint('created', 'green', call.colour)} {name}\n" for name in made.created]
    lines += [f"{paint('kept', 'dim', call.colour)}    {name}\n" for name in made.kept]
    lines.append(f"\nTry it, without any model:\n  fanfold run {RECIPE_NAME} --script {SCRIPT_FILE}\n")
    call.give(made, lambda: lines)
