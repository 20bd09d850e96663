"""`fanfold agents`: the roles that steps may delegate to, where they come from, what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterable

import click
from msgspec import structs

from fanfold.cli.command import Invocation, command
from fanfold.cli.project import open_project
from fanfold.cli.terminal.output import paint, plain, say, say_json, tell
from fanfold.errors import EXIT_OK
from fanfold.runtime.operations.agents.roles import list_roles, show_role
from fanfold.runtime.views.recipes.roles import RoleDocument, RoleList, RoleNotice


@command("agents", summary="List roles: what each is for, where it comes from, warnings")
@click.argument("name", required=False)
def agents_command(call: Invocation, name: str | None) -> int:
    """List the roles known here, or show one by NAME or NAME@VERSION."""
    with open_project(call) as project:
        found = list_roles(project) if name is None else show_role(project, name)
    if call.as_json:
        say_json(found)
    elif isinstance(found, RoleList):
        _say_list(found, call.colour)
        _say_notices(found.warnings)
    else:
        say(_text(found, call.colour))
        _say_notices(found.notices or ())
    return EXIT_OK


def _say_list(found: RoleList, colour: bool) -> None:
    width = max(len(role.name) for role in found.roles)
    for role in found.roles:
        what = "reads" if role.read_only else "writes"
        source = paint(f"({plain(role.source)})", "dim", colour)
        shown = paint(role.name.ljust(width), "cyan", colour)
        say(f"{shown}  {what.ljust(6)}  {plain(role.description)}  {source}\n")


def _say_notices(notices: Iterable[RoleNotice]) -> None:
    for notice in notices:
        place = f"{plain(notice.file)}:{notice.line}:{notice.column}"
        tell(f"{notice.severity or 'warning'}: {place}: {plain(notice.message)}\n")


def _text(role: RoleDocument, colour: bool) -> str:
    lines = [f"{paint(role.name, 'bold', colour)}  {plain(role.description)}"]
    shown = {key: value for key, value in structs.asdict(role).items() if _is_said(key, value)}
    width = max(map(len, shown))
    for key, value in shown.items():
        text = (", ".join(value) or "none") if isinstance(value, tuple) else str(value)
        lines.append(f"  {paint(key.ljust(width), 'dim', colour)} {plain(text)}")
    if role.instructions:
        lines += ["", plain(role.instructions)]
    return "\n".join(lines) + "\n"


def _is_said(key: str, value: object) -> bool:
    if key in ("name", "description", "instructions", "notices") or value is None:
        return False
    if key == "network":  # as it is with nearly all roles
        return value is True
    return value != () or key == "tools"  # that there are none is worth saying
