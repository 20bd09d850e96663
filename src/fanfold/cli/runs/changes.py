"""`fanfold diff` and `fanfold apply`: what steps changed, and putting a proposal into the project.

A patch that goes into a file or a program is written as it is; on a terminal nothing in it can act.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Iterator

import click

from fanfold.cli.command import Invocation, command, option
from fanfold.cli.terminal.output import first_lines, paint, plain, say
from fanfold.errors import AuthorError
from fanfold.runtime.operations.runs.files.changes import (
    APPLIED,
    KEPT,
    LEFT_OUT,
    MERGED,
    PROPOSED,
    apply,
    diff,
)
from fanfold.runtime.views.runs.changes import Applied, RunChanges, StepChanges
from fanfold.text.terminal import one_line

MAX_FILES = 40
_COLOURS = (
    ("diff --git ", "bold"),
    ("--- ", "bold"),
    ("+++ ", "bold"),
    ("@@", "cyan"),
    ("+", "green"),
    ("-", "red"),
)


@command("diff", summary="Show what steps merged or proposed, or changed before they failed")
@click.argument("run")
@click.argument("step", required=False)
def diff_command(call: Invocation, run: str, step: str | None) -> None:
    """Show what the steps of RUN changed, or only STEP: a patch of what was merged, of each proposal that
    waits, and of what a failed step left in its workspace. Subagents are steps of the run `hand`.

    STEP is a path as `fanfold inspect` shows it; on the root run also one inside a child run. The output is a
    patch for `git apply`, or `git apply -R` of what is merged. With --json: {"run_id", "steps": [{"path",
    "item", "state", "changes": [{"path", "kind"}], "patch", "proposal", "workspace", "why", "left_out",
    "left_out_count"}]}, where state is proposed, applied, merged, undone, discarded, kept, gone for a
    proposal that nobody has any more, or left_out for a step of which nothing came home because the project
    ignores its files.
    """
    with call.open_project() as project:
        found = diff(project, run, step)
    call.give(found, lambda: _say_changes(found, call.colour))


@command("apply", summary="Merge what a step proposed into the project")
@click.argument("run")
@click.argument("step", required=False)
@option("--dry-run", is_flag=True, help="Say what would change; change nothing.")
def apply_command(call: Invocation, run: str, step: str | None, dry_run: bool) -> None:
    """Merge what STEP of RUN proposed into the project as it is now: all of it, or nothing.

    Where both sides changed the same lines nothing is changed and the files are named (exit status 1). What
    was applied before is not applied again, which is no error. The run's log says who applied what, also
    when the run has ended. With --json: {"run_id", "step", "proposal", "dry_run", "already", "changes":
    [{"path", "kind"}]}; conflicts are in the details of the error.
    """
    if step is None:
        hint = f"fanfold diff {run} lists what waits"
        raise AuthorError("usage.missing", "there is no STEP: whose proposal is to be applied?", hint=hint)
    with call.open_project() as project:
        done = asyncio.run(apply(project, run, step, dry_run=dry_run))
    call.give(done, lambda: _applied(done))


def _say_changes(found: RunChanges, colour: bool) -> None:
    for one in found.steps:
        _show(one, found.run_id, colour)
    if not found.steps:
        say(f"no step of run {found.run_id} changed anything that is merged, proposed or kept\n")


def _applied(done: Applied) -> Iterator[str]:
    path = one_line(done.step)
    if done.already:
        yield f"{path} was applied before\n"
    elif not done.changes:
        yield f"{path}: the project holds all of it already\n"
    else:
        yield f"{'would apply' if done.dry_run else 'applied'} {path}: {_files(len(done.changes))}\n"
        lines = (f"  {change.kind} {one_line(change.path)}\n" for change in done.changes)
        yield from first_lines(lines, MAX_FILES, "  … {} more\n")


def _show(step: StepChanges, run: str, colour: bool) -> None:
    say(paint(f"# {one_line(_head(step, run))}", "bold", colour) + "\n")
    if step.left_out and step.state != LEFT_OUT:
        say(f"# {one_line(_left_out(step))}\n")
    if step.patch is None:
        lines = (f"#   {change.kind} {one_line(change.path)}\n" for change in step.changes)
        say("".join(first_lines(lines, MAX_FILES, "#   … {} more\n")))
        return
    bare = [change.path for change in step.changes if not _is_drawn(change.path, step.patch)]
    if bare:
        more = f" … {len(bare) - MAX_FILES} more" if len(bare) > MAX_FILES else ""
        say(f"# without a patch: {one_line(', '.join(bare[:MAX_FILES]))}{more}\n")
    if not sys.stdout.isatty():
        say(step.patch)
        return
    for line in step.patch.splitlines():
        shade = next((shade for start, shade in _COLOURS if line.startswith(start)), "")
        text = plain(line)
        say((paint(text, shade, colour) if shade else text) + "\n")


def _is_drawn(path: str, patch: str) -> bool:
    """Whether a patch has this path; git quotes names that are not plain."""
    shown = path if path.isascii() and path.isprintable() and not set(path) & {'"', "\\"} else None
    return shown is None or f" b/{shown}\n" in patch or f"a/{shown} b/" in patch


def _head(step: StepChanges, run: str) -> str:
    files = _files(len(step.changes))
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
    return (
        f"{_files(step.left_out_count)} left behind, which the project ignores and write_set does not name:"
        f" {', '.join(step.left_out)}{more}"
    )


def _files(count: int) -> str:
    return f"{count} file{'' if count == 1 else 's'}"
