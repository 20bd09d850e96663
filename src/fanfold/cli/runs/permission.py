"""Permission at the command line: who answers when a recipe asks for more than reading."""

from __future__ import annotations

from collections.abc import Callable

from fanfold.agents.role import Role
from fanfold.kernel.plan import Plan
from fanfold.runtime.operations.runs.permission import denied, needs_permission


def ask_permission(plan: Plan, find_role: Callable[[str], Role | None], posture: str, *, yes: bool) -> None:
    """Return when the recipe may do what it declares; raise `permission_denied` otherwise."""
    lines = needs_permission(plan, find_role)
    if not lines or posture == "auto" or (yes and posture == "ask"):
        return
    if posture == "ask":
        from fanfold.cli.terminal.output import on_terminal

        if on_terminal():
            from fanfold.cli.terminal.questions import may_run

            if may_run(plan, lines):
                return
    raise denied(plan, lines, posture)
