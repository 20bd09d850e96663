"""Putting Fanfold into the configuration of an MCP client, or taking it out again.

The file is the user's: one entry of it is ours, and everything else stays as it is. A file that is not
understood is left alone, and what to add is said. It is replaced as a whole or not at all.
"""

from __future__ import annotations

import difflib
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from fanfold.errors import AuthorError, WorldError
from fanfold.runtime.operations.system.mcp_clients import McpClient, Scope
from fanfold.text.json_comments import SettingsUnreadableError, remove_entry, set_entry
from fanfold.text.json_value import as_text
from fanfold.text.toml_tables import remove_table, set_table
from fanfold.trust.project_files import NotAFile, read_beneath, write_beneath, write_whole
from fanfold.workspace.files.programs import find_program

MAX_BYTES = 64 * 1024 * 1024
_BYTE_ORDER_MARK = "\ufeff"


class ClientSetUp(Struct, frozen=True, kw_only=True):
    """`change` is `written`, `removed` or `unchanged`; of a trial, what it would be."""

    client: str
    file: str
    change: str
    trial: bool
    difference: str
    next_step: str


class ClientWish(Struct, frozen=True, kw_only=True):
    """What is to become of a client's configuration."""

    scope: Scope | None = None
    arguments: tuple[str, ...] = ()
    """For `fanfold mcp`."""
    remove: bool = False
    trial: bool = False


def set_up_client(
    client: McpClient, project: Path, environment: Mapping[str, str], wish: ClientWish
) -> ClientSetUp:
    """Write the entry of a client, or take it away; doing it again changes nothing."""
    scope = wish.scope or client.scope
    file = project / client.project_file if scope == "project" else client.user_file(environment)
    before = _read(project, file, scope)
    after = _edited(client, project, file, before, wish)
    change = "unchanged" if after == before else "removed" if wish.remove else "written"
    if change != "unchanged" and not wish.trial:
        _write(project, file, scope, after)
    return ClientSetUp(
        client=client.name,
        file=str(file),
        change=change,
        trial=wish.trial,
        difference=_difference(file, before, after),
        next_step="" if wish.remove else client.next_step,
    )


def _own_command(project: Path) -> list[str]:
    """What starts this very Fanfold, wherever it is called from."""
    beside = Path(sys.executable).with_name("fanfold")
    found = str(beside) if beside.exists() else find_program("fanfold", project)
    # -P: a client starts it in a project, whose files are not modules of ours.
    return [found] if found else [sys.executable, "-P", "-m", "fanfold.cli.main"]


def _edited(client: McpClient, project: Path, file: Path, before: str, wish: ClientWish) -> str:
    entry = client.entry([*_own_command(project), "mcp", *client.in_project, *wish.arguments])
    mark = _BYTE_ORDER_MARK if before.startswith(_BYTE_ORDER_MARK) else ""
    text = before.removeprefix(mark)
    try:
        if client.toml:
            text = remove_table(text, client.where) if wish.remove else set_table(text, client.where, entry)
        else:
            text = remove_entry(text, client.where) if wish.remove else set_entry(text, client.where, entry)
        return mark + text
    except SettingsUnreadableError:
        what = f"{'.'.join(client.where)} = {as_text(entry)}"
        raise AuthorError(
            "mcp.unreadable",
            f"{file} could not be understood and was left alone",
            hint=f"{'take out' if wish.remove else 'add this yourself:'} {what}",
        ) from None


def _read(project: Path, file: Path, scope: Scope) -> str:
    try:
        if scope == "project":
            return read_beneath(project, file, MAX_BYTES).decode()
        if not stat.S_ISREG(file.stat().st_mode):
            raise NotAFile(file)  # a pipe would be waited for
        return file.read_bytes().decode()
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        raise AuthorError("mcp.unreadable", f"{file} is not UTF-8 text and was left alone") from None
    except OSError as error:
        raise WorldError("world.io", f"{file} cannot be read: {error.strerror}") from None


def _write(project: Path, file: Path, scope: Scope, text: str) -> None:
    try:
        if scope == "project":
            write_beneath(project, str(file.relative_to(project)), text.encode())
        else:
            _replace(file, text)
    except OSError as error:
        raise WorldError("world.io", f"{file} cannot be written: {error.strerror}") from None


def _replace(file: Path, text: str) -> None:
    """All or nothing, with the mode it had; a file of the user may be a link to where they keep it."""
    real = Path(os.path.realpath(file))
    real.parent.mkdir(parents=True, exist_ok=True)
    mode = real.stat().st_mode & 0o777 if real.exists() else 0o600
    write_whole(real, text.encode(), mode=mode, exactly=True, durable=True)


def _difference(file: Path, before: str, after: str) -> str:
    """Only the lines around the change: the rest may hold what is nobody's business."""
    lines: Sequence[str] = list(
        difflib.unified_diff(
            before.splitlines(keepends=True), after.splitlines(keepends=True), str(file), str(file), n=1
        )
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
