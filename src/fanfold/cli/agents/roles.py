"""`fanfold agents`: the roles that steps may delegate to, where they come from, what is wrong with them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable

import click
from msgspec import structs

from fanfold.cli.command import Invocation, command
from fanfold.cli.terminal.output import paint, plain, say, say_json, tell
from fanfold.runtime.operations.agents.roles import RoleDocument, RoleList, RoleNotice, list_roles, show_role
from fanfold.text.terminal import cells, visible

MAX_LINE = 200
"""Where no terminal says how much fits."""
MIN_WORDS = 16


@command("agents", summary="List roles: what each is for, where it comes from, warnings")
@click.argument("name", required=False)
def agents_command(call: Invocation, name: str | None) -> None:
    """List the roles known here, or those of a version by @VERSION, or show one by NAME or NAME@VERSION."""
    with call.open_project() as project:
        if name is None or name.startswith("@"):
            found: RoleList | RoleDocument = list_roles(project, name[1:] if name else None)
        else:
            found = show_role(project, name)
        top = str(project.folder)
    if call.as_json:
        say_json(found)
    elif isinstance(found, RoleList):
        _say_list(found, call.colour, top)
        _say_notices(found.warnings)
    else:
        say(_text(found, call.colour))
        _say_notices(found.notices or ())


def _say_list(found: RoleList, colour: bool, top: str) -> None:
    """One line a role, on a terminal no wider than it: what it is for gives way first."""
    longest = max(cells(role.name) for role in found.roles)
    wide = shutil.get_terminal_size().columns if sys.stdout.isatty() else MAX_LINE
    for role in found.roles:
        what = "reads" if role.read_only else "writes"
        source = visible(f"({_place(role.source, top)})", width=max(wide // 3, MIN_WORDS))
        left = max(wide - longest - cells(source) - len("  writes    "), MIN_WORDS)
        about = visible(" ".join(role.description.split()), width=left)
        shown = paint(role.name + " " * (longest - cells(role.name)), "cyan", colour)
        say(f"{shown}  {what.ljust(6)}  {about}  {paint(source, 'dim', colour)}\n")


def _place(source: str, top: str) -> str:
    """Where a role comes from, the shorter way: from the project, or from the root."""
    return min(source, os.path.relpath(source, top), key=len) if os.sep in source else source


def _say_notices(notices: Iterable[RoleNotice]) -> None:
    for notice in notices:
        place = f"{plain(notice.file)}:{notice.line}:{notice.column}"
        tell(f"{notice.severity or 'warning'}: {place}: {plain(notice.message)}\n")
        if notice.help:
            tell(f"  hint: {plain(notice.help)}\n")


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
    if key in ("network", "isolated"):  # as it is with nearly all roles
        return value is True
    if key == "asks":
        return value is False
    return value != () or key == "tools"  # that there are none is worth saying
