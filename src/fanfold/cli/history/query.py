"""`fanfold query`: find what agents wrote, in one run or in all of them."""

from __future__ import annotations

from collections.abc import Iterator

import click

from fanfold.cli.ages import read_moment
from fanfold.cli.command import Invocation, command, option
from fanfold.cli.terminal.output import paint, plain, say
from fanfold.runtime.operations.history.query import named_run, query
from fanfold.store.search.index import Filters, Hit


@command("query", summary="Search the outputs of steps, best match first")
@click.argument("words", nargs=-1, required=True, metavar="[RUN] WORDS...")
@option("-k", "most", type=click.IntRange(1, 1_000), default=5, metavar="N", help="At most this many.")
@option("--run", metavar="RUN", help="Only of this run and the runs below it.")
@option("--recipe", metavar="NAME", help="Only of runs of this recipe.")
@option("--phase", metavar="ID", help="Only of this phase.")
@option("--step", metavar="PATH", help="Only of this step, its items, and the steps inside it.")
@option("--role", metavar="NAME", help="Only of agents of this role.")
@option("--status", metavar="S", help="Only of steps that ended so: completed, failed …")
@option("--since", metavar="WHEN", help="Only of steps that ended since: an age (12h, 30d) or a date.")
@option("--explain", "explained", is_flag=True, help="Show what makes up each score.")
def query_command(
    call: Invocation,
    words: tuple[str, ...],
    most: int,
    run: str | None,
    since: str | None,
    explained: bool,
    **only: str | None,
) -> None:
    """Search outputs for any of WORDS; only those of RUN and the runs below it when the first word is one.

    A "phrase in quotes" is found where its words stand together, and dendr* finds every word that begins so.
    RUN is `last`, an id, or at least four characters that begin exactly one. Of equal hits the newest comes
    first.
    """
    filters = Filters(**only, since=None if since is None else read_moment("--since", since))
    with call.open_project(to_read=True) as project:
        named = named_run(project, words) if run is None else None
        asked = words if named is None else words[1:]
        found = query(project, asked, filters, run=run or named, most=most, explained=explained)
        nothing = "no output matches\n" if project.has_runs else "nothing has run here yet\n"
    call.give(found, lambda: (line for hit in found.hits for line in _text(hit, call.colour)))
    if not (found.hits or call.as_json):
        say(nothing)


def _text(hit: Hit, colour: bool) -> Iterator[str]:
    role = paint(f"  {hit.role}", "dim", colour) if hit.role else ""
    yield f"{paint(hit.run_id, 'dim', colour)} {paint(hit.path, 'cyan', colour)}{role}\n"
    yield f"  {plain(hit.excerpt)}\n"
    if not isinstance(hit.parts, list):
        return
    yield f"  score {hit.score:.3f}\n"
    for part in hit.parts:
        factors = f"rarity {part.rarity:.3f}, frequency {part.frequency:.3f}"
        yield f"    {part.score:.3f}  {plain(part.wish)}  ({factors})\n"
