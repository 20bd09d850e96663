"""Asking something of a run, wherever it is driven: `pause`, `cancel`, `approve`, `reject`, `answer`."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

import click

from fanfold.cli.command import Invocation, command, option
from fanfold.cli.inputs import read_text_file, read_value
from fanfold.cli.terminal.output import plain, say
from fanfold.errors import AuthorError
from fanfold.kernel.lifecycle import PAUSED, WAITING
from fanfold.runtime.operations.runs import control
from fanfold.runtime.records.open_runs import how_to_resume
from fanfold.runtime.views.approvals import Answered
from fanfold.runtime.views.runs.rows import run_row
from fanfold.store.protocol import RunHead


@command("pause", summary="Pause a run; everything is kept")
@click.argument("run")
def pause_command(call: Invocation, run: str) -> None:
    """Pause RUN and wait until it has paused. `fanfold resume` goes on."""
    with call.open_project() as project:
        head = asyncio.run(control.pause(project, run))
    _say_head(call, head)
    if head.status in (PAUSED, WAITING) and not call.as_json:
        say(f"resume it: {how_to_resume(head.run_id)}\n")


@command("cancel", summary="Cancel a run and everything below it")
@click.argument("run")
def cancel_command(call: Invocation, run: str) -> None:
    """Cancel RUN, a whole run or a child run, and wait until nothing of it runs any more."""
    with call.open_project() as project:
        _say_head(call, asyncio.run(control.cancel(project, run)))


def _say_head(call: Invocation, head: RunHead) -> None:
    call.give(run_row(head), lambda: f"run {head.run_id} is {head.status}\n")


@command("approve", summary="Answer an approval with yes, or with one of its choices")
@click.argument("run")
@click.argument("step", required=False)
@option("--choice", metavar="C", help="One of the choices, where the approval offers some.")
@option("--comment", metavar="TEXT", help="Kept with the answer, for the steps that follow.")
@option("--edit", metavar="FILE", help="An edited text, or JSON from a .json file, for what follows.")
def approve_command(
    call: Invocation, run: str, step: str | None, choice: str | None, comment: str | None, edit: str | None
) -> None:
    """Approve STEP of RUN. A run that no process drives goes on in the background.

    STEP is a path as `fanfold inspect` shows it; on the root run also one inside a child run. It may be left
    out when only one approval waits.
    """
    _answer(call, run, step, choice or "approve", comment, edit)


@command("reject", summary="Answer an approval with no")
@click.argument("run")
@click.argument("step", required=False)
@option("--choice", metavar="C", help="One of the choices, where the approval offers some.")
@option("--comment", metavar="TEXT", help="The reason; the step fails with it.")
@option("--edit", metavar="FILE", help="A text, or JSON from a .json file, kept with the answer.")
def reject_command(
    call: Invocation, run: str, step: str | None, choice: str | None, comment: str | None, edit: str | None
) -> None:
    """Reject STEP of RUN. A run that no process drives goes on in the background."""
    _answer(call, run, step, choice or "reject", comment, edit)


@command("answer", summary="Answer the question of an ask step")
@click.argument("run")
@click.argument("step")
@click.argument("text", required=False)
@option("--file", "file", metavar="F", help="Take the answer from a file instead.")
def answer_command(call: Invocation, run: str, step: str, text: str | None, file: str | None) -> None:
    """Answer STEP of RUN with TEXT: in words, with one of its choices, or with JSON where the step has a
    schema. A run that no process drives goes on in the background.
    """
    if (text is None) == (file is None):
        message = "give the answer as TEXT or with --file"
        raise AuthorError(
            "usage.bad_answer", message, hint=f"put it behind this: fanfold answer {run} {shlex.quote(step)}"
        )
    with call.open_project() as project:
        given = text if text is not None else _read_answer(project.folder, Path(str(file)))
        done = asyncio.run(control.reply(project, run, step, given))
        root = project.resolve(done.run_id).root_run_id
    _say_answered(call, done, root)


def _read_answer(project: Path, file: Path) -> str:
    try:
        return read_text_file(project, file, "--file").decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise AuthorError("usage.bad_file", f"--file {file} cannot be used: {error}") from None


def _answer(
    call: Invocation, run: str, step: str | None, decision: str, comment: str | None, edit: str | None
) -> None:
    with call.open_project() as project:
        edited = None if edit is None else read_value(project.folder, Path(edit), "--edit")
        done = asyncio.run(control.answer(project, run, step, decision, comment, edited))
        root = project.resolve(done.run_id).root_run_id
    _say_answered(call, done, root)


def _say_answered(call: Invocation, done: Answered, root: str) -> None:
    on = f"run {root} goes on in the background; follow it: fanfold watch {root}\n" if done.detached else ""
    call.give(done, lambda: f"{plain(done.step)}: {plain(done.decision)}\n{on}")
