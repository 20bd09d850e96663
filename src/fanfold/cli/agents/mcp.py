"""`fanfold mcp`: the project as an MCP server, and its entry in the configuration of MCP clients."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

import click
from msgspec import Struct

from fanfold.cli.command import Invocation, command
from fanfold.cli.inputs import read_text_file
from fanfold.cli.project import open_project
from fanfold.errors import EXIT_OK
from fanfold.runtime.operations.runs.options import Options


class ServeFlags(Struct, frozen=True, kw_only=True):
    """What is fixed for whatever clients start."""

    permission: Literal["read_only", "ask", "auto"] | None
    model: str | None
    agent_backend: str | None
    script: str | None


@command("mcp", summary="Serve this project to an MCP client over stdio")
@click.option(
    "--permission",
    type=click.Choice(["read_only", "ask", "auto"]),
    help="What clients may start without asking; default: ask, through the client where it can.",
)
@click.option("--model", metavar="M", help="Model for steps that name none.")
@click.option("--agent-backend", metavar="B", help="Back end for roles that name none.")
@click.option("--script", metavar="FILE", help="Scripted agents instead of models, for tests.")
def mcp_command(call: Invocation, **given: object) -> int:
    """Serve MCP on stdin and stdout: the tools that let an agent run workflows and subagents here.

    Recipes are prompts, reports and transcripts are resources. What a client starts goes on when it leaves.
    """
    flags = ServeFlags(**given)  # type: ignore[arg-type]  # click gives exactly these
    with open_project(call, to_read=True) as project:  # what is wrong with it is said before a client waits
        options = _options(project.folder, flags)
        folder = project.folder
    from fanfold import __version__
    from fanfold.wiring import serve_mcp_stdio

    asyncio.run(serve_mcp_stdio(folder, options, __version__))
    return EXIT_OK


def _options(project: Path, flags: ServeFlags) -> Options:
    script = None
    if flags.script is not None:
        from fanfold.agents.scripts.script import Script

        data = read_text_file(project, Path(flags.script), "--script", "usage.bad_script")
        script = Script.load(data, flags.script).source
    return Options(
        permission=flags.permission or "ask",
        backend=flags.agent_backend,
        model=flags.model,
        script=script,
        script_file=flags.script or "",
    )
