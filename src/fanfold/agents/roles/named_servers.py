"""MCP servers that a role names without saying what they are: Claude Code keeps those in `.mcp.json`.

The file comes with a checkout, so what it says is asked about like anything a role declares. One that cannot
be read defines nothing, and says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import structs

from fanfold.agents.role import Notice, Role
from fanfold.text.trees.tree import Mapping, plain
from fanfold.text.trees.yaml import TextFormat, parse_yaml
from fanfold.trust.project_files import read_beneath

FILE = ".mcp.json"
MAX_BYTES = 256 * 1024
FORMAT = TextFormat(name="servers", max_bytes=MAX_BYTES, clean_text=False, clean_values=False)


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
            data = read_beneath(self._project, self._file, MAX_BYTES + 1)
        except FileNotFoundError:
            return {}
        except OSError as error:
            message = f"its MCP servers cannot be read: {error.strerror}"
            self._notices.append(Notice("role.invalid", message, str(self._file)))
            return {}
        found, _, report = parse_yaml(data, str(self._file), FORMAT)
        for one in report.diagnostics[:1]:
            message, at = f"its MCP servers cannot be read: {one.message}", one.range.start
            self._notices.append(
                Notice("role.invalid", message, one.file, at.line, column=at.column, help=one.help)
            )
        servers = found.get("mcpServers") if isinstance(found, Mapping) and report.ok else None
        return {} if servers is None else servers_of(plain(servers))
