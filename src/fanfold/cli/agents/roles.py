"""`fanfold agents`: the roles that steps may delegate to, where they come from, what is wrong with them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

import click

from fanfold.agents.role import Notice, Role
from fanfold.agents.roles.registry import IGNORED, Registry
from fanfold.cli.command import Call, command
from fanfold.cli.terminal.output import paint, plain, say, say_json
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
    about = [one for one in roles.notices if one.file == role.source and one.code != "role.duplicate"]
    if call.as_json:
        say_json({**_document(role), "notices": [{**_notice(n), "severity": n.severity} for n in about]})
        return EXIT_OK
    say(_text(role, call.colour))
    _say_notices(about)
    return EXIT_OK


def _list(call: Call, roles: Registry) -> int:
    warnings = [notice for notice in roles.notices if notice.severity == "warning"]
    found = [(name, role) for name in roles.names() if (role := roles.find(name)) is not None]
    if call.as_json:
        listed = [{**_document(role), "name": name} for name, role in found]
        say_json({"roles": listed, "warnings": list(map(_notice, warnings))})
        return EXIT_OK
    width = max(len(name) for name, _ in found)
    for name, role in found:
        what = "reads" if role.read_only else "writes"
        source = paint(f"({plain(role.source)})", "dim", call.colour)
        shown = paint(name.ljust(width), "cyan", call.colour)
        say(f"{shown}  {what.ljust(6)}  {plain(role.description)}  {source}\n")
    _say_notices(warnings)
    return EXIT_OK


def _notice(notice: Notice) -> dict[str, object]:
    return {"code": notice.code, "message": notice.message, "file": notice.file, "line": notice.line}


def _say_notices(notices: Iterable[Notice]) -> None:
    for notice in notices:
        place = f"{plain(notice.file)}:{notice.line}"
        sys.stderr.write(f"{notice.severity}: {place}: {plain(notice.message)}\n")


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
    from fanfold.text.diagnostics import nearest

    near = nearest(name, roles.names())
    hint = f'did you mean "{near}"?' if near else f"known here: {', '.join(roles.names())}"
    raise NotFoundError("role.not_found", f"there is no role {name}", hint=hint)


def _refused(name: str, why: str) -> AuthorError:
    hint = "correct the file, or remove it"
    return AuthorError("role.invalid", f"the file of role {name} cannot be used: {why}", hint=hint)


def _document(role: Role) -> dict[str, object]:
    return {
        "name": role.name,
        "description": role.description,
        "version": role.version,
        "read_only": role.read_only,
        "sandbox_mode": role.sandbox_mode,
        "model": role.model,
        "model_reasoning_effort": role.reasoning_effort,
        "fallback_models": role.fallback_models,
        "tools": role.tools,
        "max_turns": role.max_turns,
        "network": role.network,
        "mcp_servers": tuple(role.mcp_servers),  # by name: their settings may hold what is not to be shown
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
    shown = {key: value for key, value in _document(role).items() if _is_said(key, value)}
    width = max(map(len, shown))
    for key, value in shown.items():
        text = (", ".join(value) or "none") if isinstance(value, tuple) else str(value)
        lines.append(f"  {paint(key.ljust(width), 'dim', colour)} {plain(text)}")
    if role.instructions:
        lines += ["", plain(role.instructions)]
    return "\n".join(lines) + "\n"


def _is_said(key: str, value: object) -> bool:
    if key in ("name", "description", "instructions") or value is None:
        return False
    if key == "network":  # as it is with nearly all roles
        return value is True
    return value != () or key == "tools"  # that there are none is worth saying
