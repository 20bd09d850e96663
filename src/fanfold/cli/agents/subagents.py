"""`fanfold spawn`, `wait`, `send`, `close` and `ps`: subagents by hand, one bounded task each.

Rules
* What a subagent may do is settled when it is spawned, by the rules of `fanfold run`, and stands in its log.
  It works in the background, where nobody can be asked: what would have to be asked for later is denied.
* One whose host was killed is not spoken to as if nothing had happened: going on is said (`--resume`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click
import msgspec
from msgspec import Struct, structs

from fanfold.agents.backend_registry import MODEL
from fanfold.cli.agents.hand_host import start_host
from fanfold.cli.agents.subagent_text import child_document, left_something, say_none, say_result, say_table
from fanfold.cli.command import Call, command
from fanfold.cli.inputs import read_text_file
from fanfold.cli.project import open_project
from fanfold.cli.terminal.output import plain, say, say_json
from fanfold.errors import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_PERMISSION,
    EXIT_WAITING,
    AuthorError,
    NotFoundError,
    WorldError,
)
from fanfold.kernel.paths import GlobError, check_glob
from fanfold.kernel.plan import EVERYTHING
from fanfold.runtime.operations.agents.roles import find_role
from fanfold.runtime.operations.by_hand import HAND, LOOK_S, ask, is_live, is_taken, refusal, with_key
from fanfold.runtime.operations.project import Project
from fanfold.sessions.lineage import COMPLETED, DETACHED, OVER, RESTARTABLE, Child
from fanfold.sessions.opened import SPAWN_TIMEOUT_S, Merge, Permission, Settings, read_opened
from fanfold.sessions.subagents import WAIT_S, SubagentRefused
from fanfold.sessions.supervisor import Supervisor
from fanfold.wiring import supervise_by_hand, wire

if TYPE_CHECKING:
    from fanfold.agents.role import Role
    from fanfold.agents.roles.registry import Registry

START_PATIENCE_S = 30.0
_T = TypeVar("_T")


class Flags(Struct, frozen=True, kw_only=True):
    """What the command line fixes for one subagent."""

    timeout: float
    model: str | None
    write_set: tuple[str, ...]
    merge: Merge | None
    shared: bool
    permission: Permission | None
    yes: bool
    unsafe_no_sandbox: bool


class Hand(NamedTuple):
    """What these commands work with."""

    project: Project
    supervisor: Supervisor


@contextmanager
def open_hand(call: Call, *, make: bool = False) -> Iterator[Hand]:
    """The subagents of a project; refused where there are none, unless one is to be made."""
    with open_project(call) as project:
        if not make and not project.has_runs:
            raise NotFoundError(
                "subagent.not_found", "there are no subagents here", hint="fanfold spawn ROLE TASK"
            )
        yield Hand(project, supervise_by_hand(project))


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
@click.option("--model", metavar="M", help="Model to use, whatever the role names.")
@click.option("--script", metavar="FILE", help="A scripted agent instead of a model, for tests.")
@click.option(
    "--write-set", multiple=True, metavar="GLOB", help="Files it may change; may be repeated; default: all."
)
@click.option(
    "--merge",
    type=click.Choice(["auto", "propose", "discard"]),
    help="What becomes of its changes when it succeeds; default: auto, they are merged.",
)
@click.option("--shared", is_flag=True, help="Work in the project itself, not in a snapshot.")
@click.option(
    "--permission",
    type=click.Choice(["read_only", "ask", "auto"]),
    help="What may happen without asking; default: ask.",
)
@click.option("--yes", is_flag=True, help="Answer permission questions with yes.")
@click.option(
    "--unsafe-no-sandbox", is_flag=True, help="Run commands even where this machine cannot confine them."
)
def spawn_command(
    call: Call, role: str, task: str, waiting: bool, script: str | None, **given: object
) -> int:
    """Start a subagent of ROLE with TASK and print its id; over capacity it queues.

    A role that writes works in a snapshot of the project. Its changes are merged when it succeeds, all of
    them or none.
    """
    flags = Flags(**given)  # type: ignore[arg-type]  # click gives exactly these
    with open_hand(call, make=True) as hand:
        settings = _settings(hand.project, role, flags)
        text = None if script is None else _script(Path(script))
        data = {"role": role, "task": task, "script": text, "settings": msgspec.to_builtins(settings)}
        number = ask(hand.project, "spawn", data)
        child = until_taken(hand, number, lambda: with_key(hand.supervisor, settings.key))
        if waiting:
            child = _wait(hand, [child.subagent_id], flags.timeout + START_PATIENCE_S)[0]
            return say_result(call, hand.project.store, child)
        say_json(child_document(hand.project.store, child)) if call.as_json else say(f"{child.subagent_id}\n")
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
    if not wire(call.project).has_runs:
        return say_none(call)
    with open_hand(call) as hand:
        wanted = list(ids) or [child.subagent_id for child in hand.supervisor.list(HAND) if is_live(child)]
        children = _wait(hand, wanted, timeout)
        say_table(call, hand.project.store, children, with_changes=True)
    if any(child.status not in OVER and child.status != DETACHED for child in children):
        return EXIT_WAITING
    return EXIT_OK if all(child.status == COMPLETED for child in children) else EXIT_FAILED


@command("send", summary="Say something to a subagent; one that is over runs again")
@click.argument("id")
@click.argument("text", required=False)
@click.option("--resume", is_flag=True, help="Go on with one whose host was killed; TEXT may be left out.")
def send_command(call: Call, id: str, text: str | None, resume: bool) -> int:
    """Give subagent ID more input: at the end of its turn, or as the start of a new one.

    One that completed starts from the project as it is now; one that did not goes on in the workspace it
    left. It may do what it was allowed when it was spawned.
    """
    if text is None and not resume:
        raise AuthorError("usage.missing", "there is no TEXT", hint=f'fanfold send {id} "and the tests too"')
    with open_hand(call) as hand:
        child = find_child(hand, id)
        _check_spoken_to(hand, child, resume)
        resumed = resume and child.status == DETACHED
        if text is None and not resumed:
            raise SubagentRefused(
                "subagent.not_detached", f"{id} is {child.status}", hint="say something to it"
            )
        number = ask(hand.project, "resume" if resumed else "input", {"id": id, "text": text})
        until_taken(hand, number, lambda: True if is_taken(hand.project, number) else None)
        return say_result(call, hand.project.store, find_child(hand, id), brief=True)


def _check_spoken_to(hand: Hand, child: Child, resume: bool) -> None:
    if child.status in RESTARTABLE:
        if read_opened(hand.project.store, child.session_id).settings.merge == "propose":
            from fanfold.runtime.operations.hand_places import HandPlaces, proposal_waits

            places = HandPlaces(hand.project.folder)
            if child.status == COMPLETED and (proposal := places.waiting(child.session_id)):
                raise proposal_waits(child.subagent_id, proposal)
    elif not is_live(child) and not (resume and child.status == DETACHED):
        hint = (
            f"fanfold send {child.subagent_id} --resume"
            if child.status == DETACHED
            else "spawn a new subagent"
        )
        raise SubagentRefused(f"subagent.{child.status}", f"{child.subagent_id} is {child.status}", hint=hint)


@command("close", summary="Cancel a subagent that runs, or close one for good")
@click.argument("id")
def close_command(call: Call, id: str) -> int:
    """Cancel subagent ID if it is queued or running; close any other, so that it cannot run again.

    A workspace that was kept for one that did not complete is thrown away when it is closed.
    """
    with open_hand(call) as hand:
        find_child(hand, id)
        number = ask(hand.project, "close", {"id": id})
        until_taken(hand, number, lambda: True if is_taken(hand.project, number) else None)
        child = find_child(hand, id)
        say_json(child_document(hand.project.store, child)) if call.as_json else say(
            f"{id} is {child.status}\n"
        )
    return EXIT_OK


@command("ps", summary="List subagents, newest last")
@click.option("--all", "everything", is_flag=True, help="Also those that are over and left nothing to do.")
def ps_command(call: Call, everything: bool) -> int:
    """List the subagents started by hand: who, doing what, and how it stands.

    Those that are not over, and those that left something which waits for you: the workspace of one that
    did not complete, or a proposal.
    """
    if not wire(call.project).has_runs:
        return say_none(call)
    with open_hand(call) as hand:
        children = hand.supervisor.list(HAND)
        store = hand.project.store
        shown = [
            one for one in children if everything or one.status not in OVER or left_something(store, one)
        ]
        return say_table(call, hand.project.store, shown)


def _settings(project: Project, name: str, flags: Flags) -> Settings:
    role = find_role(project.roles, name)
    posture = flags.permission or "ask"
    if role.read_only:
        _refuse_writing(name, flags)
    else:
        _check_flags(flags)
    _ask_permission(name, _needs(project.roles, role), posture, flags.yes)
    backend = role.backend or MODEL
    problem = project.backends.problem(backend)
    if problem is not None:
        raise problem
    return Settings(
        backend=backend,
        key=secrets.token_hex(8),
        role=structs.replace(role, model=flags.model or role.model),
        workspace=str(project.folder),
        isolated=not role.read_only and not flags.shared,
        merge=flags.merge or "auto",
        read_only=role.read_only,
        write_set=() if role.read_only else flags.write_set or EVERYTHING,
        permission="auto" if flags.yes and posture == "ask" else posture,
        unsafe=flags.unsafe_no_sandbox,
        timeout_s=flags.timeout,
    )


def _refuse_writing(role: str, flags: Flags) -> None:
    if flags.write_set or flags.merge or flags.shared:
        option = "--write-set" if flags.write_set else "--merge" if flags.merge else "--shared"
        message = f"{option} is for roles that write; {role} only reads"
        raise AuthorError("usage.conflict", message, hint="fanfold agents tells which roles write")


def _check_flags(flags: Flags) -> None:
    if flags.shared and flags.merge:
        message = "--merge is for snapshots; with --shared there is none"
        raise AuthorError("usage.conflict", message, hint="leave one of them out")
    for pattern in flags.write_set:
        try:
            check_glob(pattern)
        except GlobError as error:
            message = f"--write-set {pattern} is not a pattern of paths: {error.message}"
            raise AuthorError(
                "usage.bad_value", message, hint='for example "src/**" or "docs/*.md"'
            ) from None


def _needs(roles: Registry, role: Role) -> list[str]:
    """What a role wants beyond reading, line by line, in the words of `fanfold run`."""
    from fanfold.runtime.operations.runs.permission import served_lines
    from fanfold.runtime.records.frozen import with_stages

    lines = [] if role.read_only else [f"the role {role.name} may change files"]
    for one in with_stages({role.name: role}, roles.find).values():
        lines += served_lines(one)
    return lines


def _ask_permission(role: str, lines: list[str], posture: str, yes: bool) -> None:
    from fanfold.cli.terminal.output import on_terminal
    from fanfold.cli.terminal.questions import confirm

    if not lines or posture == "auto" or (posture == "ask" and yes):
        return
    if posture == "ask" and on_terminal():
        listed = "".join(f"  {plain(line)}\n" for line in lines)
        if confirm(f"{plain(role)} asks for permission:\n{listed}Start it?"):
            return
    hint = "spawn it with --yes or --permission auto, or use a role that needs no permission"
    if posture == "read_only":
        hint = "--permission read_only allows reading alone; leave it out to be asked, or use another role"
    more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
    raise WorldError(
        "permission_denied",
        f"{lines[0]}{more}",
        hint=hint,
        details={"needs": lines},
        exit_status=EXIT_PERMISSION,
    )


def _script(file: Path) -> str:
    from fanfold.agents.scripts.script import Script

    return Script.load(read_text_file(file, "--script", "usage.bad_script"), str(file)).source


def find_child(hand: Hand, id: str) -> Child:
    """A subagent by its id."""
    return hand.supervisor.children.find(id)


def until_taken(hand: Hand, number: int, look: Callable[[], _T | None]) -> _T:
    """Have a host and look until it has acted on the request; raises what it refused."""
    deadline = time.monotonic() + START_PATIENCE_S
    started = 0.0
    while True:
        refused = refusal(hand.project, number) if is_taken(hand.project, number) else None
        if refused is not None:
            raise refused
        found = look()
        if found is not None:
            return found
        now = time.monotonic()
        if now > deadline:
            hint = "what it says is in .fanfold/host.log"
            raise WorldError("run.busy", "the host of the subagents does not act", hint=hint)
        if not hand.project.has_owner(HAND) and now - started > 5.0:
            start_host(hand.project)
            started = now
        time.sleep(LOOK_S)


def _wait(hand: Hand, ids: Sequence[str], timeout_s: float) -> list[Child]:
    deadline = time.monotonic() + timeout_s
    while True:
        children = [find_child(hand, one) for one in ids]
        if not any(is_live(child) for child in children) or time.monotonic() >= deadline:
            return children
        time.sleep(LOOK_S)
