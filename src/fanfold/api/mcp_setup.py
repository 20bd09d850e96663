"""Add Fanfold to the configuration of an MCP client, or remove it.

The file belongs to the user: only one entry is changed. A file that cannot be parsed is left unchanged, and
the error shows the entry to add. The file is replaced atomically.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct

from fanfold.api.display import unified_difference
from fanfold.engine.config import fanfold_home, user_home
from fanfold.errors import AuthorError, WorldError
from fanfold.kernel.plan import JSON
from fanfold.language.json_text import SettingsUnreadableError, as_text, entry_at, remove_entry, set_entry
from fanfold.language.toml_text import remove_table, set_table, table_at
from fanfold.project_files import NotAFile, read_beneath, write_beneath, write_whole
from fanfold.workspace.git import find_program

# -----------------------------------------------------------------------------------------------------------
# MCP clients and the files in which they configure servers
#
# A client starts `fanfold mcp` in its project. Two clients start servers elsewhere and have a variable for
# the project's folder.

Scope: TypeAlias = Literal["user", "project"]
NAME = "fanfold"
LONG_MS = 3_600_000
"""How long a client waits for a call: runs take long."""


class McpClient(Struct, frozen=True, kw_only=True):
    """One MCP client. `entry` makes the value at `where` from the command that starts the server."""

    name: str
    user_file: Callable[[Mapping[str, str]], Path]
    project_file: str
    where: tuple[str, ...] = ("mcpServers", NAME)
    entry: Callable[[Sequence[str]], JSON]
    scope: Scope = "user"
    """The default scope."""
    in_project: tuple[str, ...] = ()
    """Arguments for a client that does not start the command in the project."""
    next_step: str = ""
    toml: bool = False
    backend: bool = False
    """Whether it is also a back end. Then it does the work of roles that name none."""
    passes: Literal["", "names", "values"] = ""
    """How the configuration passes variables, if the client removes keys from the server's environment.

    `names`: `env_vars` with their names. `values`: `env` with `$NAME`.
    """


def _stdio(command: Sequence[str], **more: JSON) -> JSON:
    return {"command": command[0], "args": list(command[1:]), **more}


def _folder(environment: Mapping[str, str], variable: str, *usual: str) -> Path:
    """Return the folder that a variable names; else the usual one below the user's home."""
    given = environment.get(variable, "").strip()
    return Path(given) if given else user_home(environment).joinpath(*usual)


def _opencode(environment: Mapping[str, str]) -> Path:
    if given := environment.get("OPENCODE_CONFIG", "").strip():
        return Path(given)
    folder = _folder(environment, "XDG_CONFIG_HOME", ".config") / "opencode"
    commented = folder / "opencode.jsonc"
    return commented if commented.exists() else folder / "opencode.json"


def _vscode(environment: Mapping[str, str]) -> Path:
    home = user_home(environment)
    folder = home / "Library" / "Application Support" if sys.platform == "darwin" else home / ".config"
    return folder / "Code" / "User" / "mcp.json"


CLIENTS = (
    McpClient(
        name="claude",
        user_file=lambda environment: _folder(environment, "CLAUDE_CONFIG_DIR") / ".claude.json",
        project_file=".mcp.json",
        entry=lambda command: _stdio(command, type="stdio"),
        next_step="/mcp in Claude Code shows it",
        backend=True,
    ),
    McpClient(
        name="codex",
        user_file=lambda environment: _folder(environment, "CODEX_HOME", ".codex") / "config.toml",
        project_file=".codex/config.toml",
        where=("mcp_servers", NAME),
        entry=lambda command: _stdio(command, startup_timeout_sec=60, tool_timeout_sec=LONG_MS // 1_000),
        next_step="codex mcp list shows it",
        backend=True,
        passes="names",
        toml=True,
    ),
    McpClient(
        name="cursor",
        user_file=lambda environment: user_home(environment) / ".cursor" / "mcp.json",
        project_file=".cursor/mcp.json",
        entry=_stdio,
        in_project=("--project", "${workspaceFolder}"),
        next_step="Cursor's settings list it under MCP",
    ),
    McpClient(
        name="vscode",
        user_file=_vscode,
        project_file=".vscode/mcp.json",
        where=("servers", NAME),
        entry=lambda command: _stdio(command, type="stdio"),
        scope="project",
        in_project=("--project", "${workspaceFolder}"),
        next_step="MCP: List Servers in VS Code shows it",
    ),
    McpClient(
        name="opencode",
        user_file=_opencode,
        project_file="opencode.json",
        where=("mcp", NAME),
        entry=lambda command: {"type": "local", "command": [*command], "enabled": True, "timeout": LONG_MS},
        next_step="opencode mcp list shows it",
        backend=True,
    ),
    McpClient(
        name="gemini",
        user_file=lambda environment: user_home(environment) / ".gemini" / "settings.json",
        project_file=".gemini/settings.json",
        entry=lambda command: _stdio(command, timeout=LONG_MS),
        next_step="/mcp in Gemini CLI shows it",
        backend=True,
        passes="values",
    ),
)
BY_NAME = {client.name: client for client in CLIENTS}

MAX_BYTES = 64 * 1024 * 1024
_BYTE_ORDER_MARK = "\ufeff"


class ClientSetUp(Struct, frozen=True, kw_only=True):
    """The result of a set-up. `change` is `written`, `removed` or `unchanged`; a trial writes nothing."""

    client: str
    file: str
    change: str
    trial: bool
    difference: str
    next_step: str


class ClientChange(Struct, frozen=True, kw_only=True):
    """A request to change a client's configuration."""

    scope: Scope | None = None
    arguments: tuple[str, ...] = ()
    """Arguments of `fanfold mcp`."""
    variables: tuple[str, ...] = ()
    """Environment variables that the server needs for its agents: keys and addresses."""
    remove: bool = False
    trial: bool = False


def set_up_client(
    client: McpClient, project: Path, environment: Mapping[str, str], wish: ClientChange
) -> ClientSetUp:
    """Write or remove the entry of a client; a second call changes nothing."""
    scope = wish.scope or client.scope
    file = project / client.project_file if scope == "project" else client.user_file(environment)
    before = _read(project, file, scope)
    after = _edited(client, project, file, before, wish)
    change = "unchanged" if after == before else "removed" if wish.remove else "written"
    if change != "unchanged" and not wish.trial:
        try:
            if scope == "project":
                write_beneath(project, str(file.relative_to(project)), after.encode())
            else:
                # The user's file may be a link, which is followed. Its mode is kept.
                real = Path(os.path.realpath(file))
                real.parent.mkdir(parents=True, exist_ok=True)
                mode = real.stat().st_mode & 0o777 if real.exists() else 0o600
                write_whole(real, after.encode(), mode=mode, exactly=True, durable=True)
        except OSError as error:
            raise WorldError("world.io", f"{file} cannot be written: {error.strerror}") from None
    return ClientSetUp(
        client=client.name,
        file=str(file),
        change=change,
        trial=wish.trial,
        # With one line of context: the rest of the file may be private.
        difference=unified_difference(before, after, str(file), str(file), context=1),
        next_step="" if wish.remove else client.next_step,
    )


def needed_variables(client: McpClient, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables that are set now and that agents of the client's back end need."""
    if not client.passes:
        return ()
    from fanfold.agents.command.calls import AgentCredentials
    from fanfold.agents.command.profile_files import find_profile

    profile = find_profile(client.name, fanfold_home(environment))
    assert profile is not None, "every client that is a back end has a profile"
    named = (*AgentCredentials(profile, environment).key_names(), *profile.access.addresses, "FANFOLD_HOME")
    return tuple(name for name in dict.fromkeys(named) if environment.get(name))


def _own_command(project: Path) -> list[str]:
    """Return the command that starts this installation of Fanfold from any folder."""
    beside = Path(sys.executable).with_name("fanfold")
    found = str(beside) if beside.exists() else find_program("fanfold", project)
    # -P: a client starts it in a project, whose files must not be imported as modules.
    return [found] if found else [sys.executable, "-P", "-m", "fanfold.cli.main"]


def _entry(client: McpClient, project: Path, known: JSON, wish: ClientChange) -> dict[str, JSON]:
    """Return Fanfold's entry, including the keys that the user added to it."""
    arguments = wish.arguments
    if client.backend and not {"--agent-backend", "--model", "--script"} & {*arguments}:
        arguments = ("--agent-backend", client.name, *arguments)
    made = client.entry([*_own_command(project), "mcp", *client.in_project, *arguments])
    assert isinstance(made, dict), "an entry is an object"
    if client.passes == "names" and wish.variables:
        made["env_vars"] = list(wish.variables)
    elif client.passes == "values" and wish.variables:
        made["env"] = {name: f"${name}" for name in wish.variables}
    if not isinstance(known, dict):
        return made
    if isinstance(env := known.get("env"), dict) and isinstance(ours := made.get("env", {}), dict):
        made["env"] = {**ours, **env}
    names, passed = known.get("env_vars"), made.get("env_vars")
    if isinstance(names, list) and isinstance(passed, list):
        made["env_vars"] = [*passed, *(name for name in names if name not in passed)]
    return {**made, **{key: value for key, value in known.items() if key not in made}}


def _edited(client: McpClient, project: Path, file: Path, before: str, wish: ClientChange) -> str:
    mark = _BYTE_ORDER_MARK if before.startswith(_BYTE_ORDER_MARK) else ""
    text = before.removeprefix(mark)
    entry: dict[str, JSON] = {}
    try:
        known = table_at(text, client.where) if client.toml else entry_at(text, client.where)
        entry = _entry(client, project, known, wish)
        if client.toml:
            text = remove_table(text, client.where) if wish.remove else set_table(text, client.where, entry)
        else:
            text = remove_entry(text, client.where) if wish.remove else set_entry(text, client.where, entry)
        return mark + text
    except SettingsUnreadableError:
        what = f"{'.'.join(client.where)} = {as_text(entry or _entry(client, project, None, wish))}"
        hint = f"{'take out' if wish.remove else 'add this yourself:'} {what}"
        message = f"{file} could not be parsed and was not changed"
        raise AuthorError("mcp.unreadable", message, hint=hint) from None


def _read(project: Path, file: Path, scope: Scope) -> str:
    try:
        if scope == "project":
            return read_beneath(project, file, MAX_BYTES).decode()
        if not stat.S_ISREG(file.stat().st_mode):
            raise NotAFile(file)  # reading a pipe would block
        return file.read_bytes().decode()
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        raise AuthorError("mcp.unreadable", f"{file} is not UTF-8 text and was not changed") from None
    except OSError as error:
        raise WorldError("world.io", f"{file} cannot be read: {error.strerror}") from None
