"""`fanfold convert`: a recipe from another system's workflow."""

from __future__ import annotations

from pathlib import Path

import click

from fanfold.cli.command import Invocation, command, option
from fanfold.cli.terminal.output import hand_over, plain, say_json, tell
from fanfold.errors import EXIT_OK, EXIT_USAGE, AuthorError
from fanfold.recipe.conversion.formats import SYSTEMS
from fanfold.runtime.operations.recipes.convert import convert_file
from fanfold.trust.project_files import write_named


@command("convert", summary="Make a recipe of another system's workflow, and say what it lacks")
@click.argument("file")
@option("--from", "system", type=click.Choice(SYSTEMS), help="Whose workflow it is; else told by the file.")
@option("-o", "--output", metavar="FILE", help="Write the recipe there instead of to standard output.")
def convert_command(call: Invocation, file: str, system: str | None, output: str | None) -> int:
    """Convert FILE: a workflow of protoAgent, Conductor, Archon or CrewAI, or a script of Claude Code.

    It is read, never executed. What cannot be carried over is listed with its line on standard error.
    """
    with call.open_project() as project:
        try:
            made = convert_file(project, Path(file), system)
        except OSError as error:
            hint = "name the file of the workflow in it" if Path(file).is_dir() else ""
            message = f"{file} cannot be read: {error.strerror}"
            raise AuthorError("convert.unreadable", message, hint=hint) from None
        top = project.folder
    if call.as_json:
        say_json(made)
        return EXIT_OK if made.ok else EXIT_USAGE
    if output is not None:
        try:
            write_named(top, Path(output), made.text.encode(), replace=False)
        except OSError as error:
            hint = "say another name, or remove it" if isinstance(error, FileExistsError) else ""
            hint = "name a file in it" if isinstance(error, IsADirectoryError) else hint
            message = f"{output} cannot be written: {error.strerror}"
            raise AuthorError("usage.bad_file", message, hint=hint) from None
        tell(f"wrote {plain(output)}\n")
    else:
        hand_over(made.text)
    for one in made.lost:
        why = f": {plain(one.why)}" if one.why else ""
        where = plain(str(Path(file).parent / one.file) if one.file else file)
        tell(f"{where}:{one.line}: not carried over: {plain(one.what)}{why}\n")
    for problem in made.diagnostics:
        place = f"{plain(output or 'recipe')}:{problem.range.start.line}"
        tell(f"{place}: {plain(problem.message)} [{problem.code}]\n")
        if problem.help:
            tell(f"  hint: {plain(problem.help)}\n")
    return EXIT_OK if made.ok else EXIT_USAGE
