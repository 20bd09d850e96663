"""What the roles need that may not be here: the network for their servers, a provider for their model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import structs

from fanfold.agents.providers import ANTHROPIC
from fanfold.agents.role import IGNORED, Notice, Role
from fanfold.agents.roles.files import RoleFile

_ADDRESSES = ("url", "httpUrl", "serverUrl")


def tell_of_network(roles: Iterable[Role], files: Mapping[str, RoleFile], notices: list[Notice]) -> None:
    """Say which roles have servers that they may not reach; else their sessions would be the first to."""
    for role in roles:
        if role.network:
            continue
        setting = "network: true" if _is_claude(role) else "network = true"
        # Among Claude Code's our own name stands for a tool that was not taken away, not one asked for.
        asked = ("WebFetch",) if _is_claude(role) else ("WebFetch", "fetch_url")
        if any(name in asked for name in role.tools or ()):
            message = (
                f'role "{role.name}" may fetch no page (WebFetch) without the network: set `{setting}` in it'
            )
            notices.append(files[role.source].notice("role.needs_network", message, "tools"))
        if not role.mcp_servers:
            continue
        from fanfold.agents.toolbox.names import is_wanted  # few roles have servers

        for name, settings in role.mcp_servers.items():
            if is_wanted(name, role.tools) and _is_remote(settings):
                message = f'role "{role.name}" may not reach its MCP server "{name}": set `{setting}` in it'
                notices.append(files[role.source].notice("role.needs_network", message, "mcp_servers"))


def kept_by_their_programs(
    roles: Iterable[Role], files: Mapping[str, RoleFile], notices: list[Notice]
) -> list[Role]:
    """The roles without those that a program with tools of its own is to work for, and would not keep to."""
    kept = []
    for role in roles:
        if role.backend is None or not role.needs_our_tools or not _is_program(role.backend):
            kept.append(role)
            continue
        message = f'{IGNORED}it says {role.needs_our_tools}, which "{role.backend}" would not keep to'
        notices.append(files[role.source].notice("role.refused", message, "backend"))
    return kept


def _is_program(backend: str) -> bool:
    from fanfold.agents.command.profile_names import is_program

    return is_program(backend)


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
