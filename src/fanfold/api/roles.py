"""The roles that steps may delegate to."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType, convert, structs

from fanfold.agents.role import DEFAULT_MODEL, IGNORED, Notice, Role, Stage
from fanfold.agents.roles import Registry
from fanfold.api.project import Project
from fanfold.errors import AuthorError, NotFoundError


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
    """The commands that it is allowed to run, if its file restricts them."""
    guards: tuple[str, ...]
    """The guards of its tool calls, each after the tools that it checks."""
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
    prompt_template: str | None = None
    """The prompt if a step gives inputs and no prompt."""
    notices: list[RoleNotice] | UnsetType = UNSET


class RoleList(Struct, frozen=True):
    roles: list[RoleDocument]
    warnings: list[RoleNotice]


def role_document(role: Role, name: str, notices: list[RoleNotice] | UnsetType = UNSET) -> RoleDocument:
    """Return the document of a role under the name by which it was found."""
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


def list_roles(project: Project, version: str | None = None) -> RoleList:
    """List all roles, or those of a version, with warnings about role files."""
    roles = project.roles
    if version is not None:
        of_it = [role_document(role, role.name) for role in roles.with_version(version)]
        if not of_it:
            message = f"no role here has the version {version}"
            raise NotFoundError("role.not_found", message, hint="fanfold agents lists every role")
        return RoleList(of_it, [])
    found = [role_document(role, name) for name in roles.names() if (role := roles.find(name)) is not None]
    return RoleList(found, [role_notice(one) for one in roles.notices if one.severity == "warning"])


def show_role(project: Project, name: str) -> RoleDocument:
    """Return one role by name or by `name@version`, with notices about its file."""
    role, asked = find_role(project.roles, name), name.partition("@")[0]
    about = [
        role_notice(one, with_severity=True)
        for one in project.roles.notices
        if one.code != "role.duplicate" and (one.file == role.source or one.role in (role.name, asked))
    ]
    return role_document(role, asked, about)


def find_role(roles: Registry, name: str) -> Role:
    """Return a role by name; raises an error that suggests the nearest name."""
    broken = roles.broken.get(name.partition("@")[0])
    if broken is not None:  # another role with that name is not the requested one
        raise _refused(name, broken)
    role = roles.find(name)
    if role is not None:
        return role
    for notice in roles.notices:  # another version may be valid, but it is not the requested one
        if notice.code == "role.invalid" and notice.role == name.partition("@")[0]:
            raise _refused(name, f"{notice.file}:{notice.line}: {notice.message.removeprefix(IGNORED)}")
    from fanfold.language.diagnostics import nearest

    near = nearest(name, roles.names())
    hint = f'did you mean "{near}"?' if near else f"known here: {', '.join(roles.names())}"
    raise NotFoundError("role.not_found", f"there is no role {name}", hint=hint)


def _refused(name: str, why: str) -> AuthorError:
    hint = "correct the file, or remove it"
    return AuthorError("role.invalid", f"the file of role {name} cannot be used: {why}", hint=hint)
