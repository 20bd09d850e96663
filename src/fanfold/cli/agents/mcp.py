"""`fanfold mcp`: the project as an MCP server, and its entry in the configuration of MCP clients."""

from __future__ import annotations

import asyncio
import os
from typing import Literal

import click
from msgspec import Struct, structs

from fanfold.cli.command import Invocation, command, option
from fanfold.cli.inputs import read_options
from fanfold.cli.terminal.output import plain, tell
from fanfold.errors import AuthorError


class ServeFlags(Struct, frozen=True, kw_only=True):
    """What is fixed for whatever clients start."""

    permission: Literal["read_only", "ask", "auto"] | None
    model: str | None
    agent_backend: str | None
    script: str | None


@command("mcp", summary="Serve this project to an MCP client, or set a client up")
@click.argument("action", type=click.Choice(["serve", "install"]), default="serve")
@click.argument(
    "client", type=click.Choice(["claude", "codex", "cursor", "vscode", "opencode", "gemini"]), required=False
)
@option(
    "--permission",
    type=click.Choice(["read_only", "ask", "auto"]),
    help="What clients may start without asking; default: ask, through the client where it can.",
)
@option("--model", metavar="M", help="Model for steps that name none.")
@option("--agent-backend", metavar="B", help="Back end for roles that name none.")
@option("--script", metavar="FILE", help="Scripted agents instead of models, for tests.")
@option("--scope", type=click.Choice(["user", "project"]), help="install: in which file; it has a default.")
@option("--dry-run", is_flag=True, help="install: show the change and write nothing.")
@option("--remove", is_flag=True, help="install: take the entry out again.")
def mcp_command(
    call: Invocation,
    action: str,
    client: str | None,
    scope: Literal["user", "project"] | None,
    dry_run: bool,
    remove: bool,
    **given: object,
) -> None:
    """Serve MCP on stdin and stdout: the tools that let an agent run workflows and subagents here.

    Recipes are prompts, reports and transcripts are resources. What a client starts goes on when it leaves.

    install CLIENT enters `fanfold mcp` with these options in the configuration of claude, codex, cursor,
    vscode, opencode or gemini; everything else in that file stays as it is.
    """
    flags = ServeFlags(**given)  # type: ignore[arg-type]  # click gives exactly these
    if action == "install":
        _install(call, client, flags, scope, dry_run, remove)
        return
    if client is not None or scope is not None or dry_run or remove:
        raise AuthorError(
            "usage.conflict", "a client, --scope, --dry-run and --remove are for fanfold mcp install"
        )
    with call.open_project(to_read=True) as project:  # what is wrong with it is said before a client waits
        options = read_options(project.folder, **structs.asdict(flags))
        folder = project.folder
    from fanfold import __version__
    from fanfold.wiring import serve_mcp_stdio

    asyncio.run(serve_mcp_stdio(folder, options, __version__))


def _install(
    call: Invocation,
    client: str | None,
    flags: ServeFlags,
    scope: Literal["user", "project"] | None,
    dry_run: bool,
    remove: bool,
) -> None:
    from fanfold.runtime.operations.system.mcp_clients import BY_NAME
    from fanfold.runtime.operations.system.mcp_setup import ClientWish, set_up_client

    if client is None:
        raise AuthorError("usage.missing_argument", "which client?", hint=f"one of {', '.join(BY_NAME)}")
    words = [(f"--{name.replace('_', '-')}", value) for name, value in structs.asdict(flags).items()]
    arguments = tuple(word for name, value in words if value is not None for word in (name, str(value)))
    wish = ClientWish(scope=scope, arguments=arguments, remove=remove, trial=dry_run)
    done = set_up_client(BY_NAME[client], call.project, os.environ, wish)
    where = "from " if done.change == "removed" else ""  # the entry, not the file
    text = f"{done.change} {where}{plain(done.file)}\n"
    if dry_run:
        text = plain(done.difference) if done.difference else f"{plain(done.file)} stays as it is\n"
    call.give(done, lambda: text)
    if done.next_step and not dry_run and not call.as_json:
        tell(f"{done.next_step}\n")
