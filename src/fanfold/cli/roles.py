"""`fanfold agents`: the roles that steps may delegate to, where they come from, what is wrong with them."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import click

from fanfold.agents.role import Role
from fanfold.agents.roles import Registry
from fanfold.cli.command import Call, command
from fanfold.cli.output import paint, plain, say, say_json
from fanfold.errors import EXIT_OK, AuthorError, NotFoundError
from fanfold.wiring import wire


@command("agents", summary="List roles: what each is for, where it comes from, warnings")
@click.argument("name", required=False)
def agents_command(call: Call, name: str | None) -> int:
    """List the roles known here, or show one by NAME or NAME@VERSION."""
    roles = wire(call.project).roles
    if name is None:
        return _list(call, roles)
    role = find_role(roles, name)
    say_json(_document(role)) if call.as_json else say(_text(role, call.colour))
    return EXIT_OK


def _list(call: Call, roles: Registry) -> int:
    warnings = [notice for notice in roles.notices if notice.severity == "warning"]
    found = [(name, role) for name in roles.names() if (role := roles.find(name)) is not None]
    if call.as_json:
        listed = [{**_document(role), "name": name} for name, role in found]
        said = [{"code": n.code, "message": n.message, "file": n.file, "line": n.line} for n in warnings]
        say_json({"roles": listed, "warnings": said})
        return EXIT_OK
    width = max(len(name) for name, _ in found)
    for name, role in found:
        what = "reads" if role.read_only else "writes"
        source = paint(f"({plain(role.source)})", "dim", call.colour)
        shown = paint(name.ljust(width), "cyan", call.colour)
        say(f"{shown}  {what.ljust(6)}  {plain(role.description)}  {source}\n")
    for notice in warnings:
        sys.stderr.write(f"warning: {plain(notice.file)}:{notice.line}: {plain(notice.message)}\n")
    return EXIT_OK


def find_role(roles: Registry, name: str) -> Role:
    """The role a person means, or the nearest as a hint."""
    broken = roles.broken.get(name.partition("@")[0])
    if broken is not None:  # another role of that name is not what was meant
        hint = "correct the file, or remove it"
        raise AuthorError("role.invalid", f"the file of role {name} cannot be used: {broken}", hint=hint)
    role = roles.find(name)
    if role is not None:
        return role
    from fanfold.recipe.diagnostics import nearest

    near = nearest(name, roles.names())
    hint = f'did you mean "{near}"?' if near else f"known here: {', '.join(roles.names())}"
    raise NotFoundError("role.not_found", f"there is no role {name}", hint=hint)


def _document(role: Role) -> dict[str, object]:
    return {
        "name": role.name,
        "description": role.description,
        "version": role.version,
        "read_only": role.read_only,
        "sandbox_mode": role.sandbox_mode,
        "model": role.model,
        "tools": role.tools,
        "stages": tuple(map(_stage, role.pipeline)),
        "source": role.source,
        "instructions": role.instructions,
    }


def _stage(stage: Mapping[str, object]) -> str:
    kind = next(kind for kind in ("model", "tool", "agent") if kind in stage)
    what = stage[kind]
    return kind if what is True or what == "default" else f"{kind} {what}"


def _text(role: Role, colour: bool) -> str:
    lines = [f"{paint(role.name, 'bold', colour)}  {plain(role.description)}"]
    for key, value in _document(role).items():
        if key not in ("name", "description", "instructions") and value not in (None, ()):
            shown = ", ".join(value) if isinstance(value, tuple) else str(value)
            lines.append(f"  {paint(key.ljust(12), 'dim', colour)} {plain(shown)}")
    if role.instructions:
        lines += ["", plain(role.instructions)]
    return "\n".join(lines) + "\n"
