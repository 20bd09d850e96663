"""What the roles need that may not be here: the network for their servers, a provider for their model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import structs

from fanfold.agents.providers import ANTHROPIC
from fanfold.agents.role import Notice, Role
from fanfold.agents.roles.files import RoleFile

_ADDRESSES = ("url", "httpUrl", "serverUrl")


def tell_of_network(roles: Iterable[Role], files: Mapping[str, RoleFile], notices: list[Notice]) -> None:
    """Say which roles have servers that they may not reach; else their sessions would be the first to."""
    for role in roles:
        if role.network or not role.mcp_servers:
            continue
        from fanfold.agents.toolbox.names import is_wanted  # few roles have servers

        for name, settings in role.mcp_servers.items():
            if is_wanted(name, role.tools) and _is_remote(settings):
                setting = "network: true" if _is_claude(role) else "network = true"
                message = f'role "{role.name}" may not reach its MCP server "{name}": set `{setting}` in it'
                notices.append(files[role.source].notice("role.needs_network", message, "mcp_servers"))


def with_models_here(
    roles: Iterable[Role], files: Mapping[str, RoleFile], notices: list[Notice]
) -> list[Role]:
    """The roles where Anthropic is not configured: those of Claude Code work with whatever is."""
    return [_without_model(role, files, notices) for role in roles]


def _without_model(role: Role, files: Mapping[str, RoleFile], notices: list[Notice]) -> Role:
    if (
        role.backend is not None
        or not _is_claude(role)
        or not (role.model or "").startswith(f"{ANTHROPIC.name}:")
    ):
        return role
    message = (
        f'role "{role.name}" asks for {role.model}, which needs {ANTHROPIC.key_variable}: '
        "it is done by the run's own model"
    )
    notices.append(files[role.source].notice("role.model", message, "model"))
    return structs.replace(role, model=None)


def _is_claude(role: Role) -> bool:
    return role.source.endswith(".md")


def _is_remote(settings: Mapping[str, object]) -> bool:
    """Whether a server that is switched on is an address and not a program."""
    off = str(settings.get("enabled")).lower() == "false" or str(settings.get("disabled")).lower() == "true"
    kind = settings.get("type", settings.get("transport"))
    if kind is not None:
        return not off and str(kind).lower() not in ("stdio", "local")
    return not off and "command" not in settings and any(key in settings for key in _ADDRESSES)
