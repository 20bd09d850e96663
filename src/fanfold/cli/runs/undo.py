"""`fanfold undo`: take back what steps merged into the project."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import click

from fanfold.cli.command import Invocation, command, option
from fanfold.cli.terminal.output import first_lines
from fanfold.runtime.operations.runs.files.undo import undo
from fanfold.runtime.views.runs.changes import Undone
from fanfold.text.terminal import one_line

MAX_FILES = 40
_WORDS = {"added": "put back", "deleted": "removed", "modified": "restored"}


@command("undo", summary="Take back what a run or a step merged into the project")
@click.argument("run")
@click.argument("step", required=False)
@option("--dry-run", is_flag=True, help="Say what would change; change nothing.")
def undo_command(call: Invocation, run: str, step: str | None, dry_run: bool) -> None:
    """Put the project's files back as they were before RUN, or only STEP of it, was merged.

    All of it or nothing: where anybody changed one of the files since, nothing is touched and the files are
    named (exit status 1); a later step or run that changed them is taken back first. RUN must have ended. The
    log says who took what back, and `fanfold retry` runs such steps again. What a step wrote in the project
    itself (`workspace_mode: shared`) was never merged. With --json: {"run_id", "dry_run", "steps": [{"path",
    "changes", "already"}], "changes": [{"path", "kind"}]}, where added means that a file comes back.
    """
    with call.open_project() as project:
        done = asyncio.run(undo(project, run, step, dry_run=dry_run))
    call.give(done, lambda: _text(done))


def _text(done: Undone) -> Iterator[str]:
    fresh = [one.path for one in done.steps if not one.already]
    if not fresh:
        yield f"{one_line(', '.join(one.path for one in done.steps))}: taken back before\n"
        return
    files = f"{len(done.changes)} file{'' if len(done.changes) == 1 else 's'}"
    yield f"{'would take back' if done.dry_run else 'took back'} {one_line(', '.join(fresh))}: {files}\n"
    lines = (f"  {_WORDS[change.kind]} {one_line(change.path)}\n" for change in done.changes)
    yield from first_lines(lines, MAX_FILES, "  … {} more\n")
