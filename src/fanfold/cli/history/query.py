"""`fanfold query`: find what agents wrote, in one run or in all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from fanfold.cli.command import Call, command
from fanfold.cli.project import open_project
from fanfold.cli.terminal.output import paint, plain, say, say_json
from fanfold.errors import EXIT_OK, FanfoldError
from fanfold.runtime.operations.project import Project

MIN_PREFIX = 4
"""Shorter words are not taken for the beginning of a run's id."""


@command("query", summary="Search the outputs of steps, best match first")
@click.argument("words", nargs=-1, required=True, metavar="[RUN] WORDS...")
@click.option("-k", "most", type=click.IntRange(1, 1_000), default=5, metavar="N", help="At most this many.")
def query_command(call: Call, words: tuple[str, ...], most: int) -> int:
    """Search outputs for any of WORDS; only those of RUN and the runs below it when the first word is one.

    RUN is `last`, an id, or at least four characters that begin exactly one.
    """
    with open_project(call, to_read=True) as project:
        if not project.has_runs:
            say_json({"hits": []}) if call.as_json else say("nothing has run here yet\n")
            return EXIT_OK
        from fanfold.store.search import Search

        run = _run(project, words)
        text = " ".join(words if run is None else words[1:])
        with _index_folder(project) as folder:
            hits = Search(project.store, folder).query(text, run=run, k=most)
    if call.as_json:
        keys = ("run_id", "path", "role", "score", "excerpt")
        say_json({"hits": [{key: getattr(hit, key) for key in keys} for hit in hits]})
        return EXIT_OK
    for hit in hits:
        role = paint(f"  {hit.role}", "dim", call.colour) if hit.role else ""
        say(f"{paint(hit.run_id, 'dim', call.colour)} {paint(hit.path, 'cyan', call.colour)}{role}\n")
        say(f"  {plain(hit.excerpt)}\n")
    if not hits:
        say("no output matches\n")
    return EXIT_OK


@contextmanager
def _index_folder(project: Project) -> Iterator[Path]:
    """Where the index is kept; where nothing may be written, one that is made for this question alone."""
    folder = project.folder / ".fanfold"
    if os.access(folder, os.W_OK | os.X_OK):
        yield folder
        return
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="fanfold-query-") as temporary:
        yield Path(temporary)


def _run(project: Project, words: tuple[str, ...]) -> str | None:
    """The run that the first word names, if more words follow it."""
    if len(words) < 2 or (len(words[0]) < MIN_PREFIX):
        return None
    try:
        return project.store.resolve(words[0])
    except FanfoldError:
        return None
