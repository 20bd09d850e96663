"""`fanfold state`: state that came with a checkout or was copied; show it, take it over, throw it away."""

from __future__ import annotations

import os
import sys

import click

from fanfold.cli.command import Invocation, command, option
from fanfold.cli.terminal.output import tell
from fanfold.errors import EXIT_PERMISSION, WorldError
from fanfold.runtime.config import fanfold_home
from fanfold.runtime.operations.history.listing import list_heads
from fanfold.runtime.operations.system.state import StateView, adopt_state, remove_state, show_state
from fanfold.text.terminal import one_line

_KIB = 1024


@command("state", summary="Show, adopt or remove the state of a cloned or copied project")
@click.argument("action", type=click.Choice(["show", "adopt", "remove"]), default="show")
@option("--yes", is_flag=True, help="adopt, remove: do not ask.")
def state_command(call: Invocation, action: str, yes: bool) -> None:
    """Decide about what Fanfold remembers of this project.

    State (runs, snapshots, merges under way) counts only if your own Fanfold made it for this very folder;
    any other is refused by every command. show says what there is and why it is refused; nothing in it is
    opened. adopt takes it over as it is: for a project of your own that was moved, copied or restored. A
    run in it that is not over goes on only after you permitted it again (fanfold resume). remove deletes it;
    recipes, roles and configuration stay.
    """
    home = fanfold_home(os.environ)
    seen = show_state(call.project, home)
    wanted = seen.standing == "foreign" if action == "adopt" else seen.standing != "none"
    if action != "show" and wanted and not yes:
        _ask(call, seen, action)
    if action == "remove":
        seen = remove_state(call.project, home)
    elif action == "adopt":
        seen = adopt_state(call.project, home, lambda: _roots(call))
    call.give(seen, lambda: _text(seen))


def _roots(call: Invocation) -> list[str]:
    with call.open_project(to_read=True) as project:
        return [head.run_id for head in list_heads(project) if head.parent_run_id is None]


def _ask(call: Invocation, seen: StateView, action: str) -> None:
    if call.as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        message = f"nobody is here to confirm: {action} {seen.folder}"
        raise WorldError("state.unconfirmed", message, hint="add --yes", exit_status=EXIT_PERMISSION)
    tell(_text(seen))
    question = "Take it over as it is?" if action == "adopt" else "Delete it?"
    if not click.confirm(question, err=True):
        raise WorldError("state.unconfirmed", "nothing was changed", exit_status=EXIT_PERMISSION)


def _text(seen: StateView) -> str:
    words = {"none": "no state", "ours": "yours", "foreign": f"not yours: {seen.why}"}
    lines = [f"{one_line(seen.folder)}: {one_line(words[seen.standing])}"]
    lines += [f"  removed {one_line(name)}" for name in seen.removed]
    lines += [f"  {one_line(part.name)}  {_kind(part.kind, part.bytes)}" for part in seen.parts]
    if seen.standing == "foreign":
        lines.append("fanfold state adopt takes it over, fanfold state remove deletes it")
    return "\n".join(lines) + "\n"


def _kind(kind: str, size: int) -> str:
    return kind if kind == "link" else f"{kind}, {max(1, size // _KIB) if size else 0:,} KiB"
