"""Requests to a run of any process: `pause`, `cancel`, `approve`, `reject`, `answer`; and its changes."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from fanfold import __version__
from fanfold.api import run_handle
from fanfold.api.approvals import AnswerResult
from fanfold.api.changes import APPLIED, KEPT, LEFT_OUT, MERGED, PROPOSED, apply, diff, undo
from fanfold.api.display import counted, run_row
from fanfold.api.project import Project
from fanfold.api.run_documents import ApplyResult, StepChanges, Undone
from fanfold.cli.command import Invocation, command, option, read_file, read_text, read_value, write_file
from fanfold.cli.output import first_lines, notify, paint, plain, print_json, print_text
from fanfold.errors import AuthorError
from fanfold.kernel.state import PAUSED, WAITING
from fanfold.language.terminal import one_line
from fanfold.steps.run_config import how_to_resume
from fanfold.store.protocol import RunHead


@command("pause", summary="Pause a run and keep its state")
@click.argument("run")
def pause_command(call: Invocation, run: str) -> None:
    """Pause RUN and wait until it has paused. `fanfold resume` continues it."""
    with call.open_project() as project:
        head = asyncio.run(run_handle.pause(project, run))
    _print_head(call, head)
    if head.status in (PAUSED, WAITING) and not call.as_json:
        print_text(f"resume it: {how_to_resume(head.run_id)}\n")


@command("cancel", summary="Cancel a run and its child runs")
@click.argument("run")
def cancel_command(call: Invocation, run: str) -> None:
    """Cancel RUN, a whole run or a child run, and wait until all its work has stopped."""
    with call.open_project() as project:
        _print_head(call, asyncio.run(run_handle.cancel(project, run)))


def _print_head(call: Invocation, head: RunHead) -> None:
    call.give(run_row(head), lambda: f"run {head.run_id} is {head.status}\n")


@command("approve", summary="Approve a waiting step, or pick one of its choices")
@click.argument("run")
@click.argument("step", required=False)
@option("--choice", metavar="C", help="Pick one of the offered choices.")
@option("--comment", metavar="TEXT", help="Add a comment that later steps can read.")
@option("--edit", metavar="FILE", help="Pass on an edited text, or JSON of a .json file.")
def approve_command(call: Invocation, run: str, step: str | None, **given: str | None) -> None:
    """Approve STEP of RUN. A run without an owner continues in the background.

    STEP is a path as shown by `fanfold inspect`; a root run also accepts paths inside its child runs. It
    may be omitted if only one approval waits.
    """
    _answer(call, run, step, "approve", given)


@command("reject", summary="Reject a waiting step")
@click.argument("run")
@click.argument("step", required=False)
@option("--choice", metavar="C", help="Pick one of the offered choices.")
@option("--comment", metavar="TEXT", help="Give the reason; it becomes the error of the step.")
@option("--edit", metavar="FILE", help="Store a text, or JSON of a .json file, with the answer.")
def reject_command(call: Invocation, run: str, step: str | None, **given: str | None) -> None:
    """Reject STEP of RUN. A run without an owner continues in the background."""
    _answer(call, run, step, "reject", given)


@command("answer", summary="Answer the question of an ask step or an agent")
@click.argument("run")
@click.argument("step")
@click.argument("text", required=False)
@option("--file", "file", metavar="F", help="Read the answer from a file.")
def answer_command(call: Invocation, run: str, step: str, text: str | None, file: str | None) -> None:
    """Answer STEP of RUN with TEXT, one of its choices, or JSON if the step has a schema.

    A run without an owner continues in the background.
    """
    if (text is None) == (file is None):
        message = "give the answer as TEXT or with --file"
        raise AuthorError(
            "usage.bad_answer",
            message,
            hint=f"add it to the command: fanfold answer {run} {shlex.quote(step)}",
        )
    with call.open_project() as project:
        if file is not None:
            text = read_text(project.folder, Path(file), "--file").removesuffix("\n")
        _print_answer(call, project, asyncio.run(run_handle.reply(project, run, step, text or "")))


def _answer(call: Invocation, run: str, step: str | None, usual: str, given: dict[str, str | None]) -> None:
    choice, comment, edit = (given[name] for name in ("choice", "comment", "edit"))
    with call.open_project() as project:
        edited = None if edit is None else read_value(project.folder, Path(edit), "--edit")
        answering = run_handle.answer(project, run, step, choice or usual, comment, edited)
        _print_answer(call, project, asyncio.run(answering))


def _print_answer(call: Invocation, project: Project, done: AnswerResult) -> None:
    root = project.resolve(done.run_id).root_run_id
    on = f"run {root} continues in the background; follow it: fanfold watch {root}\n" if done.detached else ""
    call.give(done, lambda: f"{plain(done.step)}: {plain(done.decision)}\n{on}")


@command("export", summary="Export a run as one file that opens in any browser")
@click.argument("run")
@option("-o", "--output", "file", metavar="FILE", help="Write to FILE (-: stdout); default: RECIPE-RUN.html.")
def export_command(call: Invocation, run: str, file: str | None) -> None:
    """Write RUN and its child runs to one HTML file that opens offline, without Fanfold.

    It shows graph, answer and steps, and contains the whole record, so that `fanfold import` can read it.
    Secrets of this environment are removed.
    """
    from fanfold.api.archives import ExportResult, export_run

    with call.open_project(to_read=True) as project:
        head = project.resolve(run)
        page = export_run(project, head.root_run_id, __version__)
        top = project.folder
    if file == "-":
        sys.stdout.write(page)
        return
    target = Path(file or f"{head.recipe}-{head.root_run_id}.html")
    write_file(top, target, page)
    done = ExportResult(head.root_run_id, str(target), len(page.encode()))
    call.give(done, lambda: f"{plain(done.file)}\n")


@command("import", summary="Import a run from an exported file")
@click.argument("file")
def import_command(call: Invocation, file: str) -> None:
    """Import the run in FILE into this project, to inspect and fork it.

    The file is checked against every invariant and refused as a whole if it violates one. Nothing is
    started. Resuming or forking the run asks first.
    """
    from fanfold.api.archives import MAX_BYTES, import_run

    with call.open_project() as project:
        done = import_run(project, read_file(project.folder, Path(file), MAX_BYTES))
    call.give(done, lambda: f"{plain(done.run_id)}\n")
    if not call.as_json:
        notify(
            f"{plain(done.recipe)}, {done.status}; look at it: fanfold inspect {shlex.quote(done.run_id)}\n"
        )


# -----------------------------------------------------------------------------------------------------------
# `fanfold diff` and `fanfold apply`: show the changes of steps, and merge a proposal.
#
# A patch is written unchanged to a file or pipe; on a terminal, control characters are made visible.

MAX_FILES = 40
_COLOURS = {"diff --git ": "bold", "--- ": "bold", "+++ ": "bold", "@@": "cyan", "+": "green", "-": "red"}


@command("diff", summary="Show what steps merged, proposed or left unmerged")
@click.argument("run")
@click.argument("step", required=False)
def diff_command(call: Invocation, run: str, step: str | None) -> None:
    """Show the changes of RUN, or of STEP: merges, open proposals, and workspaces of failed steps.

    Subagents are steps of the run `hand`. A root run also accepts paths inside its child runs. The output
    is a patch for `git apply`, or for `git apply -R` of a merge. JSON: {"run_id", "steps": [{"path",
    "item", "state", "changes": [{"path", "kind"}], "patch", "proposal", "workspace", "why", "left_out",
    "left_out_count"}]}. The state is proposed, applied, merged, undone, discarded, kept, gone (the
    proposal no longer exists) or left_out (git ignores the files, nothing was merged).
    """
    with call.open_project() as project:
        found = diff(project, run, step)
    if call.as_json:
        print_json(found)
        return
    for one in found.steps:
        _show(one, found.run_id, call.colour)
    if not found.steps:
        print_text(f"no step of run {found.run_id} changed anything that is merged, proposed or kept\n")


@command("apply", summary="Merge the proposed changes of a step")
@click.argument("run")
@click.argument("step", required=False)
@option("--dry-run", is_flag=True, help="Show the changes; change nothing.")
def apply_command(call: Invocation, run: str, step: str | None, dry_run: bool) -> None:
    """Merge the proposal of STEP of RUN into the current project: all files or none.

    If both sides changed the same lines, nothing changes and the files are named (exit status 1).
    Repeating it is no error. The log of RUN records who applied it. JSON: {"run_id", "step", "proposal",
    "dry_run", "already", "changes": [{"path", "kind"}]}; conflicts are in the details of the error.
    """
    if step is None:
        hint = f"fanfold diff {run} lists what waits"
        raise AuthorError(
            "usage.missing", "STEP is missing: name the step whose proposal to apply", hint=hint
        )
    with call.open_project() as project:
        done = asyncio.run(apply(project, run, step, dry_run=dry_run))
    call.give(done, lambda: _applied(done))


def _applied(done: ApplyResult) -> Iterator[str]:
    path = one_line(done.step)
    if done.already:
        yield f"{path} was applied before\n"
    elif not done.changes:
        yield f"{path}: the project holds all of it already\n"
    else:
        files = counted(len(done.changes), "file")
        yield f"{'would apply' if done.dry_run else 'applied'} {path}: {files}\n"
        lines = (f"  {change.kind} {one_line(change.path)}\n" for change in done.changes)
        yield from first_lines(lines, MAX_FILES, "  … {} more\n")


def _show(step: StepChanges, run: str, colour: bool) -> None:
    print_text(paint(f"# {one_line(_head(step, run))}", "bold", colour) + "\n")
    if step.left_out and step.state != LEFT_OUT:
        print_text(f"# {one_line(_left_out(step))}\n")
    if step.patch is None:
        lines = (f"#   {change.kind} {one_line(change.path)}\n" for change in step.changes)
        print_text("".join(first_lines(lines, MAX_FILES, "#   … {} more\n")))
        return
    bare = [change.path for change in step.changes if not _is_in_patch(change.path, step.patch)]
    if bare:
        more = f" … {len(bare) - MAX_FILES} more" if len(bare) > MAX_FILES else ""
        print_text(f"# without a patch: {one_line(', '.join(bare[:MAX_FILES]))}{more}\n")
    if not sys.stdout.isatty():
        print_text(step.patch)
        return
    for line in step.patch.splitlines():
        shade = next((shade for start, shade in _COLOURS.items() if line.startswith(start)), "")
        text = plain(line)
        print_text((paint(text, shade, colour) if shade else text) + "\n")


def _is_in_patch(path: str, patch: str) -> bool:
    """Return whether a patch contains this path; git quotes unusual names."""
    quoted = not (path.isascii() and path.isprintable()) or bool(set(path) & {'"', "\\"})
    return quoted or f" b/{path}\n" in patch or f"a/{path} b/" in patch


def _head(step: StepChanges, run: str) -> str:
    files = counted(len(step.changes), "file")
    name = f"{step.path} {step.item}" if step.item else step.path
    if step.state == PROPOSED:
        whose = run if run == step.path else f"{run} {shlex.quote(step.path)}"
        return f"{name}: {files} proposed; apply them: fanfold apply {whose}"
    if step.state == KEPT:
        why = f" after {step.why}" if step.why else ""
        return f"{name}: {files} kept{why} in {step.workspace}"
    if step.state == LEFT_OUT:
        return f"{name}: {_left_out(step)}"
    if step.state in (MERGED, APPLIED) and step.patch is not None:
        return f"{name}: {files} {step.state}; take them back: fanfold undo {run} {shlex.quote(step.path)}"
    return f"{name}: {files} {step.state}"


def _left_out(step: StepChanges) -> str:
    more = "" if step.left_out_count == len(step.left_out) else " …"
    files = counted(step.left_out_count, "file")
    return (
        f"{files} left behind, which the project ignores and write_set does not name:"
        f" {', '.join(step.left_out)}{more}"
    )


_WORDS = {"added": "put back", "deleted": "removed", "modified": "restored"}


@command("undo", summary="Revert what a run or a step merged")
@click.argument("run")
@click.argument("step", required=False)
@option("--dry-run", is_flag=True, help="Show the changes; change nothing.")
def undo_command(call: Invocation, run: str, step: str | None, dry_run: bool) -> None:
    """Restore the project's files to their content before the merges of RUN, or only of STEP.

    All files or none: if one changed since, nothing is touched and the files are named (exit status 1).
    Undo later steps or runs that changed them first. RUN must have ended. The log records who reverted
    it, and `fanfold retry` runs such steps again. Changes of shared steps (`workspace_mode: shared`) are
    not merges. JSON: {"run_id", "dry_run", "steps": [{"path", "changes", "already"}], "changes":
    [{"path", "kind"}]}; kind added means that a file comes back.
    """
    with call.open_project() as project:
        done = asyncio.run(undo(project, run, step, dry_run=dry_run))
    call.give(done, lambda: _text(done))


def _text(done: Undone) -> Iterator[str]:
    fresh = [one.path for one in done.steps if not one.already]
    if not fresh:
        yield f"{one_line(', '.join(one.path for one in done.steps))}: taken back before\n"
        return
    files = counted(len(done.changes), "file")
    yield f"{'would take back' if done.dry_run else 'took back'} {one_line(', '.join(fresh))}: {files}\n"
    lines = (f"  {_WORDS[change.kind]} {one_line(change.path)}\n" for change in done.changes)
    yield from first_lines(lines, MAX_FILES, "  … {} more\n")
