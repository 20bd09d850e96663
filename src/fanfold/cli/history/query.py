"""`fanfold query`: find what agents wrote, in one run or in all of them."""

from __future__ import annotations

import click

from fanfold.cli.command import Invocation, command
from fanfold.cli.project import open_project
from fanfold.cli.terminal.output import paint, plain, say, say_json
from fanfold.errors import EXIT_OK
from fanfold.runtime.operations.history.query import named_run, query


@command("query", summary="Search the outputs of steps, best match first")
@click.argument("words", nargs=-1, required=True, metavar="[RUN] WORDS...")
@click.option("-k", "most", type=click.IntRange(1, 1_000), default=5, metavar="N", help="At most this many.")
def query_command(call: Invocation, words: tuple[str, ...], most: int) -> int:
    """Search outputs for any of WORDS; only those of RUN and the runs below it when the first word is one.

    RUN is `last`, an id, or at least four characters that begin exactly one.
    """
    with open_project(call, to_read=True) as project:
        run = named_run(project, words)
        found = query(project, words if run is None else words[1:], run=run, most=most)
        nothing = "no output matches\n" if project.has_runs else "nothing has run here yet\n"
    if call.as_json:
        say_json(found)
        return EXIT_OK
    for hit in found.hits:
        role = paint(f"  {hit.role}", "dim", call.colour) if hit.role else ""
        say(f"{paint(hit.run_id, 'dim', call.colour)} {paint(hit.path, 'cyan', call.colour)}{role}\n")
        say(f"  {plain(hit.excerpt)}\n")
    if not found.hits:
        say(nothing)
    return EXIT_OK
