"""MCP servers that a role names without saying what they are: Claude Code keeps those in `.mcp.json`.

The file comes with a checkout, so what it says is asked about like anything a role declares. One that cannot
be read defines nothing, and says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from fanfold.agents.role import Notice, Role
from fanfold.trust.project_files import read_beneath

FILE = ".mcp.json"
MAX_BYTES = 256 * 1024


class NamedServers:
    """The servers of one project by name, read when the first role names one."""

    def __init__(self, project: Path, notices: list[Notice]) -> None:
        self._project = project
        self._file = project / FILE
        self._notices = notices
        self._found: dict[str, dict[str, Any]] | None = None

    def complete(self, role: Role) -> Role:
        """The role with what its servers are, as far as the project says."""
        if all(role.mcp_servers.values()):
            return role
        if self._found is None:
            self._found = self._read()
        servers = {name: settings or self._found.get(name, {}) for name, settings in role.mcp_servers.items()}
        named = tuple(name for name, settings in role.mcp_servers.items() if not settings)
        return structs.replace(role, mcp_servers=servers, project_servers=named)

    def _read(self) -> dict[str, dict[str, Any]]:
        from fanfold.agents.toolbox.mcp.servers import servers_of

        try:
            data = read_beneath(self._project, self._file, MAX_BYTES)  # a longer one is cut, and so not JSON
            listed = msgspec.json.decode(data, type=dict[str, Any]).get("mcpServers", {})
            return servers_of(listed)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:  # DecodeError is a ValueError
            message = f"its MCP servers cannot be read: {error}"
            self._notices.append(Notice("role.invalid", message, str(self._file)))
            return {}
