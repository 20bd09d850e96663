"""`fanfold spawn`, `wait`, `send`, `close` and `ps`: subagents by hand, one bounded task each."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import click
import msgspec

from fanfold.cli.command import Call, command
from fanfold.cli.hand_host import start_host
from fanfold.cli.inputs import read_text_file
from fanfold.cli.output import paint, plain, say, say_json
from fanfold.cli.roles import find_role
from fanfold.cli.stored import has_runs
from fanfold.cli.transitions import COLOURS
from fanfold.errors import EXIT_FAILED, EXIT_OK, EXIT_PERMISSION, EXIT_WAITING, NotFoundError, WorldError
from fanfold.runtime.by_hand import HAND, LOOK_S, ask, is_live, is_taken, with_key
from fanfold.runtime.project import Project
from fanfold.runtime.views import failure_document, usage_document
from fanfold.sessions.lineage import COMPLETED, DETACHED, OVER, RESTARTABLE, Child
from fanfold.sessions.opened import SPAWN_TIMEOUT_S, Settings
from fanfold.sessions.subagents import WAIT_S, SubagentRefused
from fanfold.sessions.supervisor import Supervisor
from fanfold.wiring import Wired, wire

START_PATIENCE_S = 30.0
_T = TypeVar("_T")


class Hand(NamedTuple):
    """What these commands work with."""

    wired: Wired
    project: Project
    supervisor: Supervisor


@contextmanager
def _opened(call: Call, *, make: bool = False) -> Iterator[Hand]:
    if not make and not has_runs(call):
        raise NotFoundError(
            "subagent.not_found", "there are no subagents here", hint="fanfold spawn ROLE TASK"
        )
    wired = wire(call.project)
    project = wired.open()
    try:
        yield Hand(wired, project, wired.supervise_by_hand(project))
    finally:
        project.close()


@command("spawn", summary="Delegate one task to a subagent in the background")
@click.argument("role")
@click.argument("task")
@click.option("--wait", "waiting", is_flag=True, help="Wait for it and print what it says.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.001),
    default=SPAWN_TIMEOUT_S,
    metavar="S",
    help="Seconds it may take; default 120.",
)
@click.option("--model", metavar="M", help="Model, when the role names none.")
@click.option("--script", metavar="FILE", help="A scripted agent instead of a model, for tests.")
@click.option("--yes", is_flag=True, help="Let a role that may change files do so.")
def spawn_command(
    call: Call,
    role: str,
    task: str,
    waiting: bool,
    timeout: float,
    model: str | None,
    script: str | None,
    yes: bool,
) -> int:
    """Start a subagent of ROLE with TASK and print its id; over capacity it queues."""
    with _opened(call, make=True) as hand:
        settings = _settings(hand.wired, role, timeout, model, yes)
        text = None if script is None else _script(Path(script))
        data = {"role": role, "task": task, "script": text, "settings": msgspec.to_builtins(settings)}
        ask(hand.project, "spawn", data)
        child = _until(hand, lambda: with_key(hand.supervisor, settings.key))
        if waiting:
            child = _wait(hand, [child.subagent_id], timeout + START_PATIENCE_S)[0]
            return _say_result(call, child)
        say_json(_document(child)) if call.as_json else say(f"{child.subagent_id}\n")
    return EXIT_OK


@command("wait", summary="Wait for subagents; never ends one")
@click.argument("ids", nargs=-1)
@click.option(
    "--timeout", type=click.FloatRange(min=0), default=WAIT_S, metavar="S", help="Seconds; 0 only looks."
)
def wait_command(call: Call, ids: tuple[str, ...], timeout: float) -> int:
    """Wait until the subagents IDS (default: all that run) are over, or the time is.

    Exit status 0 when all completed, 1 when one did not, 3 when one still runs.
    """
    if not has_runs(call):
        return _say_table(call, [])
    with _opened(call) as hand:
        wanted = list(ids) or [child.subagent_id for child in hand.supervisor.list(HAND) if is_live(child)]
        children = _wait(hand, wanted, timeout)
    _say_table(call, children)
    if any(child.status not in OVER and child.status != DETACHED for child in children):
        return EXIT_WAITING
    return EXIT_OK if all(child.status == COMPLETED for child in children) else EXIT_FAILED


@command("send", summary="Say something to a subagent; one that is over runs again")
@click.argument("id")
@click.argument("text")
def send_command(call: Call, id: str, text: str) -> int:
    """Give subagent ID more input: at the end of its turn, or as the start of a new one."""
    with _opened(call) as hand:
        child = _find(hand, id)
        if child.status not in RESTARTABLE and not is_live(child):
            message = f"{id} is {child.status}"
            raise SubagentRefused(f"subagent.{child.status}", message, hint="spawn a new subagent")
        number = ask(hand.project, "input", {"id": id, "text": text})
        _until(hand, lambda: True if is_taken(hand.project, number) else None)
        return _say_result(call, _find(hand, id), brief=True)


@command("close", summary="Cancel a subagent that runs, or close one for good")
@click.argument("id")
def close_command(call: Call, id: str) -> int:
    """Cancel subagent ID if it is queued or running; close any other, so that it cannot run again."""
    with _opened(call) as hand:
        _find(hand, id)
        number = ask(hand.project, "close", {"id": id})
        _until(hand, lambda: True if is_taken(hand.project, number) else None)
        child = _find(hand, id)
        say_json(_document(child)) if call.as_json else say(f"{id} is {child.status}\n")
    return EXIT_OK


@command("ps", summary="List subagents, newest last")
@click.option("--all", "everything", is_flag=True, help="Also those that are over and closed.")
def ps_command(call: Call, everything: bool) -> int:
    """List the subagents started by hand: who, doing what, and how it stands."""
    if not has_runs(call):
        return _say_table(call, [])
    with _opened(call) as hand:
        children = hand.supervisor.list(HAND)
    shown = children if everything else [child for child in children if child.status not in OVER]
    return _say_table(call, shown)


def _settings(wired: Wired, name: str, timeout: float, model: str | None, yes: bool) -> Settings:
    role = find_role(wired.roles, name)
    if not role.read_only and not yes:
        _ask_to_write(name)
    return Settings(
        backend="model",
        key=secrets.token_hex(8),
        instructions=role.instructions,
        model=model or role.model,
        reasoning_effort=role.reasoning_effort,
        max_turns=role.max_turns,
        tools=role.tools,
        workspace=str(wired.project.resolve()),
        read_only=role.read_only,
        write_set=() if role.read_only else ("**/*",),
        timeout_s=timeout,
    )


def _ask_to_write(role: str) -> None:
    from fanfold.cli.asking import confirm
    from fanfold.cli.driving import on_terminal

    if on_terminal() and confirm(f"{role} may change files of this project. Start it?"):
        return
    raise WorldError(
        "permission_denied",
        f"the role {role} may change files",
        hint="spawn it with --yes, or use a read-only role",
        exit_status=EXIT_PERMISSION,
    )


def _script(file: Path) -> str:
    from fanfold.agents.script import Script

    return Script.load(read_text_file(file, "--script", "usage.bad_script"), str(file)).source


def _find(hand: Hand, id: str) -> Child:
    return hand.supervisor.children.find(id)


def _until(hand: Hand, look: Callable[[], _T | None]) -> _T:
    """Have a host and look until it has acted."""
    deadline = time.monotonic() + START_PATIENCE_S
    started = 0.0
    while True:
        found = look()
        if found is not None:
            return found
        now = time.monotonic()
        if now > deadline:
            hint = "what it says is in .fanfold/subagents/host.log"
            raise WorldError("run.busy", "the host of the subagents does not act", hint=hint)
        if not hand.project.has_owner(HAND) and now - started > 5.0:
            start_host(hand.project)
            started = now
        time.sleep(LOOK_S)


def _wait(hand: Hand, ids: Sequence[str], timeout_s: float) -> list[Child]:
    deadline = time.monotonic() + timeout_s
    while True:
        children = [_find(hand, one) for one in ids]
        if not any(is_live(child) for child in children) or time.monotonic() >= deadline:
            return children
        time.sleep(LOOK_S)


def _say_result(call: Call, child: Child, brief: bool = False) -> int:
    if call.as_json:
        say_json(_document(child))
    elif brief or child.status != COMPLETED:
        say(f"{child.subagent_id} is {child.status}\n")
        if child.error is not None:
            say(f"  {plain(child.error.message)}\n")
    else:
        say(f"{plain(child.summary)}\n")
    return EXIT_OK if brief or child.status == COMPLETED else EXIT_FAILED


def _say_table(call: Call, children: Sequence[Child]) -> int:
    if call.as_json:
        say_json([_document(child) for child in children])
        return EXIT_OK
    if not children:
        say("no subagents\n")
    columns = ("subagent_id", "role", "status")
    widths = [max((len(getattr(child, name)) for child in children), default=0) for name in columns]
    for child in children:
        status = paint(child.status.ljust(widths[2]), COLOURS.get(child.status, "blue"), call.colour)
        name = paint(child.subagent_id.ljust(widths[0]), "cyan", call.colour)
        text = child.summary or child.task
        say(f"{name}  {child.role.ljust(widths[1])}  {status}  {_short(text)}\n")
    return EXIT_OK


def _short(text: str) -> str:
    line = plain(" ".join(text.split()))
    return line if len(line) <= 80 else line[:79] + "…"


def _document(child: Child) -> dict[str, object]:
    return {
        "id": child.subagent_id,
        "role": child.role,
        "task": child.task,
        "status": child.status,
        "summary": child.summary,
        "error": failure_document(child.error),
        "usage": usage_document(child.usage) if child.usage is not None else None,
        "depth": child.depth,
        "attempts": child.attempt,
    }
