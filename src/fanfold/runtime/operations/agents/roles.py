"""The roles that steps may delegate to."""

from __future__ import annotations

from fanfold.agents.role import IGNORED, Role
from fanfold.agents.roles.registry import Registry
from fanfold.errors import AuthorError, NotFoundError
from fanfold.runtime.operations.project import Project
from fanfold.runtime.views.recipes.roles import RoleDocument, RoleList, role_document, role_notice


def list_roles(project: Project, version: str | None = None) -> RoleList:
    """Every role known here, or every one of a version, with what is wrong with files of roles."""
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
    """One role by name, or by `name@version`, with what is odd about its file."""
    role, asked = find_role(project.roles, name), name.partition("@")[0]
    about = [
        role_notice(one, with_severity=True)
        for one in project.roles.notices
        if one.code != "role.duplicate" and (one.file == role.source or one.role in (role.name, asked))
    ]
    return role_document(role, asked, about)


def find_role(roles: Registry, name: str) -> Role:
    """The role a person means, or the nearest as a hint."""
    broken = roles.broken.get(name.partition("@")[0])
    if broken is not None:  # another role of that name is not what was meant
        raise _refused(name, broken)
    role = roles.find(name)
    if role is not None:
        return role
    for notice in roles.notices:  # another version of it can be used, but that is not what was asked for
        if notice.code == "role.invalid" and notice.role == name.partition("@")[0]:
            raise _refused(name, f"{notice.file}:{notice.line}: {notice.message.removeprefix(IGNORED)}")
    from fanfold.text.spelling import nearest

    near = nearest(name, roles.names())
    hint = f'did you mean "{near}"?' if near else f"known here: {', '.join(roles.names())}"
    raise NotFoundError("role.not_found", f"there is no role {name}", hint=hint)


def _refused(name: str, why: str) -> AuthorError:
    hint = "correct the file, or remove it"
    return AuthorError("role.invalid", f"the file of role {name} cannot be used: {why}", hint=hint)
