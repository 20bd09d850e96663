"""`fanfold serve`: the console and the HTTP API of a project."""

from __future__ import annotations

import click

from fanfold.cli.command import Invocation, command, option
from fanfold.cli.terminal.output import plain, tell
from fanfold.runtime.views.installation import Served


@command("serve", summary="Serve the console and the HTTP API of this project")
@option(
    "--port",
    type=click.IntRange(0, 65_535),
    metavar="N",
    default=8420,
    show_default=True,
    help="0: any free one.",
)
@option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="One of this machine.",
)
@option("--take-over", is_flag=True, help="Go on with runs whose process has died.")
@option(
    "--new-token",
    type=click.Choice(["operator", "viewer"]),
    help="Make a token for an address that others can reach, and serve nothing.",
)
def serve_command(call: Invocation, port: int, host: str, take_over: bool, new_token: str | None) -> None:
    """Serve the console, the API under /api, and MCP at /mcp, until Ctrl-C.

    The link that is printed lets a browser in; it is shown this once. Runs that are started here have
    processes of their own, as with `fanfold run --detach`: they go on when the server stops.

    On any other address than this machine's own, only tokens count whose digests stand in your own
    configuration (server.operators, server.viewers); --new-token makes one.
    """
    if new_token is not None:
        _make_token(call, new_token)
        return
    from fanfold import __version__
    from fanfold.wiring import serve

    def said(served: Served) -> None:
        _say(call, served)

    serve(call.project, host, port, version=__version__, take_over=take_over, tell=said)


def _say(call: Invocation, served: Served) -> None:
    import sys

    call.give(served, lambda: f"{served.link or served.url}\n")
    if not call.as_json:
        for run in served.taken_over:
            tell(f"run {plain(run)} goes on\n")
        tell("Ctrl-C stops the server; runs go on\n")
    sys.stdout.flush()  # whoever started us may read it from a pipe


def _make_token(call: Invocation, role: str) -> None:
    import os

    from fanfold.runtime.config import fanfold_home
    from fanfold.runtime.operations.system.tokens import make_token

    made = make_token(role, fanfold_home(os.environ))
    call.give(made, lambda: f"{made.token}\n")
    if not call.as_json:
        tell(f"shown this once. In your own configuration, {made.file}:\n\n[server]\n{made.line}\n")
