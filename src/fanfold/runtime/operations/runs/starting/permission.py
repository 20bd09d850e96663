"""What a run may do without asking: `read_only`, `ask` or `auto`.

One question at the start covers what the recipe declares: agents that write, commands, functions, programs
that are tools of a role. A recipe that only reads needs no permission.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Protocol

from fanfold.agents.permissions import Action
from fanfold.agents.role import COMMAND, SPOKEN, Role
from fanfold.errors import EXIT_PERMISSION, WorldError
from fanfold.kernel.plan import Plan
from fanfold.runtime.records.frozen import all_steps, freeze_roles, with_stages
from fanfold.runtime.steps.registry import declare
from fanfold.text.terminal import visible

MAX_NAMED = 5


def needs_permission(
    plan: Plan, find_role: Callable[[str], Role | None], *, scripted: bool = False
) -> list[str]:
    """What the recipe, its sub-workflows and the roles they name declare beyond reading, line by line.

    A script answers for agents that are programs, too: then none of them is started.
    """
    lines: list[str] = []
    for used in (plan, *plan.workflows.values()):
        prefix = "" if used is plan else f"{used.name}: "
        lines += [f"{prefix}{step.id} {needs}" for step in all_steps(used.steps) if (needs := declare(step))]
    for role in with_stages(freeze_roles(plan, find_role), find_role).values():
        lines += [*([] if scripted else _program_lines(role)), *served_lines(role)]
    return lines


def _program_lines(role: Role) -> list[str]:
    """The program that does a role's work, where it is one; a `command` that nobody will run is not named."""
    if role.backend is None:
        return []
    from fanfold.agents.command.profile_files import is_program  # few roles name any

    if not is_program(role.backend):
        return []
    own = role.backend in (COMMAND, SPOKEN)
    return [
        f"role {role.name} runs{f': {shlex.join(role.command)}' if own else f' the agent {role.backend}'}"
    ]


def served_lines(role: Role) -> list[str]:
    """What a role brings beyond its words: the network, programs and addresses that are its tools, commands
    that judge its calls.
    """
    lines = [f"role {role.name} may reach the network"] if role.network else []
    lines += [
        f"role {role.name} has its calls of {guard.matcher or 'all tools'} judged by: {guard.command}"
        for guard in role.guards
    ]
    if role.mcp_servers:
        from fanfold.agents.toolbox.mcp.servers import declare_server  # few roles have any

        for name, settings in role.mcp_servers.items():
            lines.append(f"role {role.name} uses the MCP server {name}: {declare_server(name, settings)}")
    return lines


class Attendant(Protocol):
    """A person who can be asked while a run is started and driven."""

    def may_run(self, plan: Plan, lines: Sequence[str]) -> bool:
        """Whether a recipe may do what it declares."""
        ...

    async def allow(self, action: Action) -> bool:
        """Whether an agent may do what it chose to do."""
        ...


def permit(
    plan: Plan,
    find_role: Callable[[str], Role | None],
    posture: str,
    *,
    yes: bool = False,
    attendant: Attendant | None = None,
    also: Sequence[str] = (),
    scripted: bool = False,
) -> None:
    """Return when the recipe may do what it declares, and `also` this; else raise `permission_denied`."""
    lines = [*needs_permission(plan, find_role, scripted=scripted), *also]
    permit_lines(plan, lines, posture, yes=yes, attendant=attendant)


def permit_lines(
    plan: Plan,
    lines: Sequence[str],
    posture: str,
    *,
    yes: bool = False,
    attendant: Attendant | None = None,
) -> None:
    """The same for what a recipe declares in these lines."""
    if not lines or posture == "auto":
        return
    if posture == "ask" and (yes or (attendant is not None and attendant.may_run(plan, lines))):
        return
    raise _denied(plan, lines, posture)


def _denied(plan: Plan, lines: Sequence[str], posture: str) -> WorldError:
    """Nobody may answer, or somebody said no."""
    return WorldError(
        "permission_denied",
        f"{plan.name} needs permission: {'; '.join(visible(one) for one in lines[:MAX_NAMED])}"
        + (f"; and {len(lines) - MAX_NAMED} more, which --json lists" if len(lines) > MAX_NAMED else ""),
        hint="--permission read_only allows reading alone; leave it out to be asked, or use --permission auto"
        if posture == "read_only"
        else 'run it with --yes or --permission auto; from Python, with Options(permission="auto")',
        details={"needs": list(lines)},
        exit_status=EXIT_PERMISSION,
    )
