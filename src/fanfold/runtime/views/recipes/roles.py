"""Roles as every surface shows them: what each is for, where it comes from, what is wrong with its file."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType, convert, structs

from fanfold.agents.role import DEFAULT_MODEL, Notice, Role, Stage


class RoleNotice(Struct, frozen=True):
    """Something odd about a role's file. Without `severity` it is a warning."""

    code: str
    message: str
    file: str
    line: int
    column: int
    help: str
    severity: str | UnsetType = UNSET


class RoleDocument(Struct, frozen=True):
    """One role; MCP servers by name, since their settings may hold what is not to be shown."""

    name: str
    description: str
    version: str | None
    read_only: bool
    sandbox_mode: str
    model: str | None
    model_reasoning_effort: str | None
    fallback_models: tuple[str, ...]
    tools: tuple[str, ...] | None
    may_run: tuple[str, ...]
    """The commands that it may run, when its file allows only some."""
    guards: tuple[str, ...]
    """What judges its calls, after the tools that it judges."""
    asks: bool
    isolated: bool
    max_turns: int | None
    backend: str | None
    command: tuple[str, ...]
    network: bool
    mcp_servers: tuple[str, ...]
    stages: tuple[str, ...]
    source: str
    instructions: str
    notices: list[RoleNotice] | UnsetType = UNSET


class RoleList(Struct, frozen=True):
    roles: list[RoleDocument]
    warnings: list[RoleNotice]


def role_document(role: Role, name: str, notices: list[RoleNotice] | UnsetType = UNSET) -> RoleDocument:
    """A role under the name by which it was found."""
    said = {
        **structs.asdict(role),
        "name": name,
        "read_only": role.read_only,
        "model_reasoning_effort": role.reasoning_effort,
        "may_run": tuple(one for listed in role.allowed_commands for one in listed),
        "guards": tuple(f"{guard.matcher or '*'}: {guard.command}" for guard in role.guards),
        "mcp_servers": tuple(role.mcp_servers),
        "stages": tuple(map(_stage, role.pipeline)),
    }
    return structs.replace(convert(said, RoleDocument), notices=notices)


def role_notice(notice: Notice, *, with_severity: bool = False) -> RoleNotice:
    severity = notice.severity if with_severity else UNSET
    return RoleNotice(
        notice.code, notice.message, notice.file, notice.line, notice.column, notice.help, severity
    )


def _stage(stage: Stage) -> str:
    what = stage.model or stage.tool or stage.agent
    return stage.kind if what == DEFAULT_MODEL else f"{stage.kind} {what}"
