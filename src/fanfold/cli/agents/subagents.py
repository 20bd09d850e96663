"""`fanfold spawn`, `wait`, `send`, `close` and `ps`: subagents, one bounded task each.

They work in the background, where nobody can be asked: what would have to be asked for later is denied.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator, Sequence
from typing import Literal

import click
from msgspec import Struct

from fanfold.cli.command import PERMISSION, UNSAFE, Invocation, command, option
from fanfold.cli.inputs import read_options
from fanfold.cli.terminal.output import first_lines, on_terminal, paint, plain, say, say_json, tell
from fanfold.cli.terminal.progress import open_progress
from fanfold.cli.terminal.statuses import COLOURS
from fanfold.errors import EXIT_FAILED, EXIT_OK, EXIT_WAITING, AuthorError, NotFoundError
from fanfold.kernel.lifecycle import COMPLETED
from fanfold.runtime.operations.agents import subagents
from fanfold.runtime.operations.agents.delegation import SPAWN_TIMEOUT_MS, Merge, Task
from fanfold.runtime.operations.agents.subagents import WAIT_S
from fanfold.runtime.views.sessions.subagents import LIVE, OVER, Subagent
from fanfold.text.terminal import one_line

MAX_LINES = 20
PATIENCE_S = 30.0
"""How long `spawn --wait` waits beyond the time that its subagent has."""


class Flags(Struct, frozen=True, kw_only=True):
    """What the command line fixes for one subagent."""

    name: str | None
    timeout: float
    model: str | None
    script: str | None
    write_set: tuple[str, ...]
    merge: Merge | None
    on_conflict: Literal["fail", "resolve"]
    shared: bool
    permission: Literal["read_only", "ask", "auto"] | None
    yes: bool
    unsafe_no_sandbox: bool


@command("spawn", summary="Delegate one task to a subagent in the background")
@click.argument("role")
@click.argument("task")
@option("--wait", "waiting", is_flag=True, help="Wait for it and print what it says.")
@option("--name", metavar="NAME", help="What to call it; default: its role and a number.")
@option(
    "--timeout",
    type=click.FloatRange(min=0.001),
    default=SPAWN_TIMEOUT_MS / 1_000,
    metavar="S",
    help="Seconds a turn may take; default 120.",
)
@option("--model", metavar="M", help="Model to use, whatever the role names.")
@option("--script", metavar="FILE", help="A scripted agent instead of a model, for tests.")
@option(
    "--write-set", multiple=True, metavar="GLOB", help="Files it may change; may be repeated; default: all."
)
@option(
    "--merge",
    type=click.Choice(["auto", "propose", "discard"]),
    help="What becomes of its changes when it succeeds; default: auto, they are merged.",
)
@option(
    "--on-conflict",
    type=click.Choice(["fail", "resolve"]),
    default="fail",
    help="What to do when its changes contradict the project's: fail, or let an agent settle it.",
)
@option("--shared", is_flag=True, help="Work in the project itself, not in a snapshot.")
@PERMISSION
@option("--yes", is_flag=True, help="Answer permission questions with yes.")
@UNSAFE
def spawn_command(call: Invocation, role: str, task: str, waiting: bool, **given: object) -> int:
    """Start a subagent of ROLE with TASK and print its name; over capacity it queues.

    A role that writes works in a snapshot of the project. Its changes are merged when it succeeds, all of
    them or none. It is a step of the run `hand`: logs, inspect, explain, diff and query show it there.
    """
    flags = Flags(**given)  # type: ignore[arg-type]  # click gives exactly these
    wanted = Task(
        role=role,
        task=task,
        name=flags.name or "",
        timeout_ms=round(flags.timeout * 1_000),
        write_set=flags.write_set,
        merge=flags.merge,
        on_conflict=flags.on_conflict,
        shared=flags.shared,
    )
    with call.open_project() as project:
        attendant = None
        if on_terminal():
            from fanfold.cli.terminal.questions import Questions

            attendant = Questions(open_progress(call.no_color))
        options = read_options(
            project.folder,
            model=flags.model,
            script=flags.script,
            permission=flags.permission,
            unsafe_no_sandbox=flags.unsafe_no_sandbox,
        )
        child = asyncio.run(subagents.spawn(project, wanted, options, yes=flags.yes, attendant=attendant))
        if waiting:
            found = asyncio.run(subagents.wait(project, [child.id], flags.timeout + PATIENCE_S))
            return _say_result(call, next(iter(found.values()))[0])
    call.give(child, lambda: f"{child.id}\n")
    return EXIT_OK


@command("wait", summary="Wait for subagents; never ends one")
@click.argument("names", nargs=-1)
@option("--timeout", type=click.FloatRange(min=0), default=WAIT_S, metavar="S", help="Seconds; 0 only looks.")
def wait_command(call: Invocation, names: tuple[str, ...], timeout: float) -> int:
    """Wait until the subagents NAMES (default: all that run) are over, or the time is.

    Exit status 0 when all completed, 1 when one did not, 3 when one still runs.
    """
    with call.open_project() as project:
        if not project.has_runs and not names:
            say_subagents(call, [])
            return EXIT_OK
        found = asyncio.run(subagents.wait(project, names, timeout)) if project.has_runs else _none()
        over = 0 if any(found.values()) else len(subagents.list_subagents(project))
    children = [child for bucket in found.values() for child in bucket]
    if names:
        children.sort(key=lambda child: names.index(child.id))
    say_subagents(call, children, with_changes=True, over=over)
    if any(child.status in LIVE for child in children):
        return EXIT_WAITING
    return EXIT_OK if all(child.status == COMPLETED for child in children) else EXIT_FAILED


def _none() -> dict[str, list[Subagent]]:
    raise NotFoundError(
        "subagent.not_found",
        "there are no subagents here",
        hint="fanfold agents lists who can be asked, fanfold spawn --help says how",
    )


@command("send", summary="Say something to a subagent; one that is over runs again")
@click.argument("name")
@click.argument("text", required=False)
@option("--resume", is_flag=True, help="Go on with one that lost its process; TEXT may be left out.")
def send_command(call: Invocation, name: str, text: str | None, resume: bool) -> None:
    """Give subagent NAME more input: its next turn, behind the one that runs.

    A turn behind one that completed starts from the project as it is then; any other goes on in the
    workspace that was left. It may do what it was allowed when it was spawned.
    """
    if text is None and not resume:
        raise AuthorError(
            "usage.missing", "there is no TEXT", hint=f'fanfold send {shlex.quote(name)} "and the tests too"'
        )
    with call.open_project() as project:
        if not project.has_runs:
            _none()
        child = asyncio.run(subagents.send_input(project, name, text, resume=resume))
    _say_status(call, child)


@command("close", summary="Cancel a subagent that runs, or close one for good")
@click.argument("name")
def close_command(call: Invocation, name: str) -> None:
    """Cancel subagent NAME if it is queued or running; close any other, so that it cannot run again.

    A workspace that was kept for one that did not complete is thrown away when it is closed.
    """
    with call.open_project() as project:
        if not project.has_runs:
            _none()
        child = asyncio.run(subagents.close(project, name))
    _say_status(call, child)


@command("ps", summary="List subagents, newest last")
@option("--all", "everything", is_flag=True, help="Also those that are over and left nothing to do.")
def ps_command(call: Invocation, everything: bool) -> None:
    """List the subagents that were spawned here: who, doing what, and how it stands.

    Those that are not over, and those that left something which waits for you: the workspace of one that
    did not complete, or a proposal.
    """
    with call.open_project(to_read=True) as project:
        found = subagents.list_subagents(project) if project.has_runs else []
    shown = [one for one in found if everything or one.status not in OVER or one.left_something]
    say_subagents(call, shown, over=len(found) - len(shown))


# Saying


def _say_result(call: Invocation, child: Subagent) -> int:
    """What came of one; the exit status."""
    if call.as_json:
        say_json(child)
    elif child.status != COMPLETED:
        _say_status(call, child)
    else:
        say(f"{plain(child.summary)}\n")
        tell("".join(f"{line}\n" for line in _changes(child)))
    return EXIT_OK if child.status == COMPLETED else EXIT_FAILED


def _say_status(call: Invocation, child: Subagent) -> None:
    words = (child.error.message, child.error.hint) if child.error is not None else ()
    lines = [f"{child.id} is {child.status}\n", *(f"  {plain(one)}\n" for one in words if one)]
    call.give(child, lambda: lines)


def say_subagents(
    call: Invocation, children: Sequence[Subagent], *, with_changes: bool = False, over: int = 0
) -> None:
    """One line for each, or one document for all. Where there are none, how many are `over` already."""
    none = f"nobody runs; fanfold ps --all lists the {over} that ended\n" if over else "no subagents\n"
    call.give(list(children), lambda: _rows(children, with_changes, call.colour) if children else none)


def _rows(children: Sequence[Subagent], with_changes: bool, colour: bool) -> Iterator[str]:
    columns = ("id", "role", "status")
    widths = [max(len(getattr(child, name)) for child in children) for name in columns]
    for child in children:
        status = paint(child.status.ljust(widths[2]), COLOURS.get(child.status, "blue"), colour)
        name = paint(child.id.ljust(widths[0]), "cyan", colour)
        text = child.summary or child.task
        yield f"{name}  {child.role.ljust(widths[1])}  {status}  {one_line(text, 80)}\n"
        yield from (f"  {line}\n" for line in _changes(child) if with_changes)


def _changes(child: Subagent) -> list[str]:
    """What a subagent changed and what became of it, as lines."""
    changes = child.changes or []
    named = (f"{one.kind} {one_line(one.path)}" for one in changes)
    lines = list(first_lines(named, MAX_LINES, "and {} more"))
    if child.proposal:
        seen = f"fanfold diff {child.run_id} {shlex.quote(child.id)}"
        lines.append(f"proposed: the project is as it was; {seen} shows it")
    elif changes and child.merge == "discard":
        lines.append("discarded: the project is as it was")
    return lines
