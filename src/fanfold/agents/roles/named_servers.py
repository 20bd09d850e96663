"""MCP servers that a role names without saying what they are: Claude Code keeps those in `.mcp.json`.

The file comes with a checkout, so what it says is asked about like anything a role declares. One that cannot
be read defines nothing, and says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import structs

from fanfold.agents.role import Notice, Role
from fanfold.agents.toolbox.names import is_wanted, spellings
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
        said = role.mcp_servers
        # The tools of a server that the file does not name are those of the project's, as in Claude Code.
        listed = [one.split("__")[1] for one in role.tools or () if one.startswith("mcp__")]
        if all(said.values()) and all(any(name in spellings(one) for one in said) for name in listed):
            return role
        if self._found is None:
            self._found = self._read()
        servers = {name: settings or self._found.get(name, {}) for name, settings in said.items()}
        servers |= {
            name: self._found[name]
            for name in self._found
            if name not in said and spellings(name) & set(listed)
        }
        named = tuple(name for name in servers if not said.get(name))
        known = {spelled for name, settings in servers.items() if settings for spelled in spellings(name)}
        for name in dict.fromkeys([*said, *listed]):
            if name not in known and is_wanted(name, role.tools):
                self._tell_undefined(role, name)
        return structs.replace(role, mcp_servers=servers, project_servers=named)

    def _tell_undefined(self, role: Role, server: str) -> None:
        message = f'role "{role.name}" names the MCP server "{server[:64]}", and nobody says what that is'
        hint = f"say it in {FILE} of the project, or in the role"
        self._notices.append(Notice("role.no_server", message, role.source, role=role.name, help=hint))

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
