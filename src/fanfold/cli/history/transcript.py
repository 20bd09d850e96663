"""`fanfold transcript`: what an agent was told, said and did."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import click

from fanfold.cli.command import Invocation, command, option
from fanfold.cli.terminal.output import paint, plain, say, say_json
from fanfold.runtime.operations.addresses import find_run, find_speaker, only_speaker
from fanfold.runtime.operations.history.transcripts import (
    follow_transcript,
    transcript,
    transcript_found,
)
from fanfold.runtime.operations.project import Project
from fanfold.runtime.views.sessions.transcript_text import TranscriptWriter, closing, heading
from fanfold.runtime.views.sessions.transcripts import TranscriptEntry


@command("transcript", summary="What an agent was told, said and did, with tokens and prices")
@click.argument("run")
@click.argument("name", metavar="[STEP|SESSION]", required=False)
@option("--attempt", type=click.IntRange(1), metavar="N", help="Another attempt of the step than its latest.")
@option("-f", "--follow", "following", is_flag=True, help="Go on until the step is over.")
def transcript_command(
    call: Invocation, run: str, name: str | None, attempt: int | None, following: bool
) -> None:
    """Print the conversation of one agent of RUN: system prompt, turns, tool calls and their results.

    STEP is a path as `fanfold inspect` shows it, or the name of a subagent, whose turns are then shown
    together; where one agent alone worked, it need not be named. With --follow and --json there is one line
    for each entry.
    """
    with call.open_project(to_read=True) as project:
        name = only_speaker(find_run(project, run)) if name is None else name
        if following:
            import asyncio  # only who follows needs an event loop

            asyncio.run(_follow(call, project, run, name, attempt))
        elif call.as_json:
            say_json(transcript(project, run, name, attempt))
        else:
            told = transcript(project, run, name, attempt)
            _say(call, heading(told))
            _say_entries(call, TranscriptWriter(), told.entries)
            _say(call, closing(told))


async def _follow(call: Invocation, project: Project, run: str, name: str, attempt: int | None) -> None:
    found = find_run(project, run)
    if not call.as_json:
        _say(call, heading(transcript_found(project, found, find_speaker(found, name, attempt))))
    writer = TranscriptWriter()
    async for entries in follow_transcript(project, found, name, attempt):
        _say_entries(call, writer, entries)
        sys.stdout.flush()
    if not call.as_json:
        _say(call, closing(transcript(project, run, name, attempt)))


def _say_entries(call: Invocation, writer: TranscriptWriter, entries: Iterable[TranscriptEntry]) -> None:
    for entry in entries:
        if call.as_json:
            say_json(entry)
        else:
            _say(call, writer.text(entry))


def _say(call: Invocation, text: str) -> None:
    """Text of ours and of others: what others said never begins a line as our headings do."""
    for line in plain(text).splitlines():
        say(paint(line, "bold", call.colour and line.startswith("#")) + "\n")
