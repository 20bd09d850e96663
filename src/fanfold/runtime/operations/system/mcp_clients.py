"""MCP clients and where each keeps the servers it starts: one row each.

A client is told to start `fanfold mcp` in the project it works in. Two of them start servers elsewhere, and
know a word for the project's folder instead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct

from fanfold.kernel.plan import JSON
from fanfold.runtime.config import user_home

Scope: TypeAlias = Literal["user", "project"]
NAME = "fanfold"
LONG_S = 3_600
"""How long a client waits for a call: runs take their time."""


class McpClient(Struct, frozen=True, kw_only=True):
    """`entry` makes what stands under `where` from the command that starts the server."""

    name: str
    title: str
    user_file: Callable[[Mapping[str, str]], Path]
    project_file: str
    where: tuple[str, ...]
    entry: Callable[[Sequence[str]], JSON]
    scope: Scope = "user"
    """Where it is written when nobody says."""
    in_project: tuple[str, ...] = ()
    """What the command needs where the client does not start it in the project."""
    next_step: str = ""
    toml: bool = False


def _stdio(command: Sequence[str], **more: JSON) -> JSON:
    return {"command": command[0], "args": list(command[1:]), **more}


def _claude(environment: Mapping[str, str]) -> Path:
    given = environment.get("CLAUDE_CONFIG_DIR", "").strip()
    return (Path(given) if given else user_home(environment)) / ".claude.json"


def _codex(environment: Mapping[str, str]) -> Path:
    given = environment.get("CODEX_HOME", "").strip()
    return (Path(given) if given else user_home(environment) / ".codex") / "config.toml"


def _opencode(environment: Mapping[str, str]) -> Path:
    if given := environment.get("OPENCODE_CONFIG", "").strip():
        return Path(given)
    given = environment.get("XDG_CONFIG_HOME", "").strip()
    folder = (Path(given) if given else user_home(environment) / ".config") / "opencode"
    commented = folder / "opencode.jsonc"
    return commented if commented.exists() else folder / "opencode.json"


def _vscode(environment: Mapping[str, str]) -> Path:
    home = user_home(environment)
    folder = home / "Library" / "Application Support" if sys.platform == "darwin" else home / ".config"
    return folder / "Code" / "User" / "mcp.json"


CLIENTS = (
    McpClient(
        name="claude",
        title="Claude Code",
        user_file=_claude,
        project_file=".mcp.json",
        where=("mcpServers", NAME),
        entry=lambda command: _stdio(command, type="stdio"),
        next_step="/mcp in Claude Code shows it",
    ),
    McpClient(
        name="codex",
        title="Codex",
        user_file=_codex,
        project_file=".codex/config.toml",
        where=("mcp_servers", NAME),
        entry=lambda command: _stdio(command, startup_timeout_sec=60, tool_timeout_sec=LONG_S),
        next_step="codex mcp list shows it",
        toml=True,
    ),
    McpClient(
        name="cursor",
        title="Cursor",
        user_file=lambda environment: user_home(environment) / ".cursor" / "mcp.json",
        project_file=".cursor/mcp.json",
        where=("mcpServers", NAME),
        entry=_stdio,
        in_project=("--project", "${workspaceFolder}"),
        next_step="Cursor's settings list it under MCP",
    ),
    McpClient(
        name="vscode",
        title="VS Code",
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
        title="OpenCode",
        user_file=_opencode,
        project_file="opencode.json",
        where=("mcp", NAME),
        entry=lambda command: {
            "type": "local",
            "command": list(command),
            "enabled": True,
            "timeout": 60_000,
        },
        next_step="opencode mcp list shows it",
    ),
    McpClient(
        name="gemini",
        title="Gemini CLI",
        user_file=lambda environment: user_home(environment) / ".gemini" / "settings.json",
        project_file=".gemini/settings.json",
        where=("mcpServers", NAME),
        entry=lambda command: _stdio(command, timeout=LONG_S * 1_000),
        next_step="/mcp in Gemini CLI shows it",
    ),
)
BY_NAME = {client.name: client for client in CLIENTS}
