"""`fanfold pause`, `cancel`, `approve` and `reject`: asking something of a run, wherever it is driven.

A request is a row in the store; the run's owner acts on it. These commands wait until it has, because
"cancelled" must mean cancelled. If nobody owns the run, a pause or cancellation is carried out here, and an
answer lets the run go on in the background.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection
from pathlib import Path

import click

from fanfold.cli.command import Call, command
from fanfold.cli.inputs import read_value
from fanfold.cli.stored import stored
from fanfold.cli.terminal.output import plain, say, say_json
from fanfold.errors import EXIT_OK, AuthorError, WorldError
from fanfold.kernel.lifecycle import PAUSED, RUN_TERMINAL, WAITING
from fanfold.kernel.plan import JSON
from fanfold.runtime.hosting.requests import Verdict, check_recorded, this_person
from fanfold.runtime.operations.project import Project
from fanfold.runtime.views.documents import head_document
from fanfold.store.protocol import LeaseHeld, RunHead

PERIOD_S = 0.05
PATIENCE_S = 60.0
"""An owner that does not act for this long is stuck, or its machine is."""


@command("pause", summary="Pause a run; everything is kept")
@click.argument("run")
def pause_command(call: Call, run: str) -> int:
    """Pause RUN and wait until it has paused. `fanfold resume` goes on."""
    with stored(call) as project:
        head = project.resolve(project.resolve(run).root_run_id)
        if head.status in RUN_TERMINAL:
            raise AuthorError("run.ended", f"run {head.run_id} is {head.status} already")
        if head.status != PAUSED:
            _ask_and_wait(project, head, "pause", {*RUN_TERMINAL, PAUSED})
        return _say_head(call, project, head.run_id, f"resume it: fanfold resume {head.run_id}")


@command("cancel", summary="Cancel a run and everything below it")
@click.argument("run")
def cancel_command(call: Call, run: str) -> int:
    """Cancel RUN, a whole run or a child run, and wait until nothing of it runs any more."""
    with stored(call) as project:
        head = project.resolve(run)
        if head.status not in RUN_TERMINAL:
            _ask_and_wait(project, head, "cancel", RUN_TERMINAL)
        elif head.status != "cancelled":
            raise AuthorError("run.ended", f"run {head.run_id} is {head.status} already")
        return _say_head(call, project, head.run_id, "")


@command("approve", summary="Answer an approval with yes, or with one of its choices")
@click.argument("run")
@click.argument("step")
@click.option("--choice", metavar="C", help="One of the choices, where the approval offers some.")
@click.option("--comment", metavar="TEXT", help="Kept with the answer, for the steps that follow.")
@click.option("--edit", metavar="FILE", help="An edited text, or JSON from a .json file, for what follows.")
def approve_command(
    call: Call, run: str, step: str, choice: str | None, comment: str | None, edit: str | None
) -> int:
    """Approve STEP of RUN. A run that no process drives goes on in the background.

    STEP is a path as `fanfold inspect` shows it; on the root run also one inside a child run.
    """
    edited = None if edit is None else read_value(Path(edit), "--edit")
    return _answer(call, run, step, choice or "approve", comment, edited)


@command("reject", summary="Answer an approval with no")
@click.argument("run")
@click.argument("step")
@click.option("--choice", metavar="C", help="One of the choices, where the approval offers some.")
@click.option("--comment", metavar="TEXT", help="The reason; the step fails with it.")
@click.option("--edit", metavar="FILE", help="A text, or JSON from a .json file, kept with the answer.")
def reject_command(
    call: Call, run: str, step: str, choice: str | None, comment: str | None, edit: str | None
) -> int:
    """Reject STEP of RUN. A run that no process drives goes on in the background."""
    edited = None if edit is None else read_value(Path(edit), "--edit")
    return _answer(call, run, step, choice or "reject", comment, edited)


def _answer(call: Call, run: str, step: str, decision: str, comment: str | None, edited: JSON) -> int:
    from fanfold.cli.runs.background import detach

    with stored(call) as project:
        head = project.resolve(run)
        verdict = Verdict(decision, this_person(), comment, edited)
        number = project.answer(head, step, decision, comment, edited)
        root = head.root_run_id
        pid: int | None = None
        if not _until_taken(project, root, number):
            # Nobody drives it. A process that starts takes the request with it.
            pid = detach(project, root)
            taken = _until_taken(project, root, number, pid)
            if not taken and project.resolve(root).status not in RUN_TERMINAL:
                raise _not_taken_over(project, root)
        check_recorded(project.view(root), head.run_id, step, verdict)
        if call.as_json:
            say_json({"run_id": head.run_id, "step": step, "decision": decision, "detached": pid is not None})
        else:
            say(f"{plain(step)}: {plain(decision)}\n")
            if pid is not None:
                say(f"run {root} goes on in the background; follow it: fanfold watch {root}\n")
    return EXIT_OK


def _until_taken(project: Project, root: str, number: int, starting: int = 0) -> bool:
    """Whether the owner acted on a request; False when there is no owner to act.

    `starting` is a process that is about to become the owner: as long as it lives there may be one.
    """
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        owned = bool(starting and not _has_ended(starting)) or project.has_owner(root)
        # Looked at last: whoever was the owner, or ended, had done so by then.
        if all(request.id != number for request in project.store.requests(root)):
            return True
        if not owned:
            return False
        time.sleep(PERIOD_S)
    raise _stuck(project, root)


def _has_ended(pid: int) -> bool:
    """Whether a process that was started here has ended."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _not_taken_over(project: Project, root: str) -> WorldError:
    from fanfold.cli.runs.background import log_file

    return WorldError(
        "run.not_taken_over",
        f"the answer is kept, but the process that was to go on with run {root} ended at once",
        hint=f"{log_file(project, root)} says why; fanfold resume {root} goes on",
    )


def _ask_and_wait(project: Project, head: RunHead, kind: str, until: Collection[str]) -> None:
    """Have the owner do it; without one, do it here. Returns when it is done."""
    root = head.root_run_id
    project.ask(head, kind, {"by": "command line"})
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        now = project.store.head(head.run_id)
        if now is None or now.status in until:
            return
        if not project.has_owner(root):
            _carry_out(project, head)
            continue
        time.sleep(PERIOD_S)
    raise _stuck(project, root)


def _carry_out(project: Project, head: RunHead) -> None:
    """Own the run just long enough to act on what was asked."""
    root = head.root_run_id
    if head.parent_run_id is not None:
        # Only a part of the run was meant; the rest rests as it did, and does not go on in here.
        project.ask(project.resolve(root), "pause", {"by": "command line"})
    try:
        tree = project.own(root)
    except LeaseHeld:
        return  # somebody else took it over meanwhile and will act
    try:
        asyncio.run(project.host(tree).resume())
    finally:
        project.done(tree)


def _stuck(project: Project, root: str) -> WorldError:
    owner = project.store.owner(root)
    who = f"process {owner[0].pid}" if owner is not None else "its process"
    return WorldError(
        "run.busy",
        f"{who} has not acted on the request within {PATIENCE_S:g} s",
        hint=f"the request stays; if the process hangs, end it and use fanfold resume {root}",
    )


def _say_head(call: Call, project: Project, run: str, hint: str) -> int:
    head = project.resolve(run)
    if call.as_json:
        say_json(head_document(head))
        return EXIT_OK
    say(f"run {head.run_id} is {head.status}\n")
    if hint and head.status in (PAUSED, WAITING):
        say(f"{hint}\n")
    return EXIT_OK
