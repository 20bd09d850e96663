"""What a run may do without asking: `read_only`, `ask` or `auto`.

One question at the start covers what the recipe declares: agents that write, commands, functions. A
recipe that only reads needs no permission.
"""

from __future__ import annotations

from fanfold.errors import EXIT_PERMISSION, WorldError
from fanfold.kernel.plan import CommandAction, FunctionAction, Plan, Step
from fanfold.runtime.frozen import all_steps

POSTURES = ("read_only", "ask", "auto")


def needs_permission(plan: Plan) -> list[str]:
    """What the recipe and its sub-workflows declare beyond reading, as lines a person can judge."""
    lines: list[str] = []
    for used in (plan, *plan.workflows.values()):
        prefix = "" if used is plan else f"{used.name}: "
        lines += [prefix + line for step in all_steps(used.steps) if (line := _declared(step))]
    return lines


def _declared(step: Step) -> str:
    action = step.action
    if isinstance(action, CommandAction):
        shown = " ".join(action.run) or f"the project's {action.gate}"
        return f"{step.id} runs: {shown}"
    if isinstance(action, FunctionAction):
        return f"{step.id} calls the Python function {action.handler}"
    if step.posture == "writer" and step.type == "agent":
        return f"{step.id} writes {', '.join(step.write_set)}"
    return ""


def denied(plan: Plan, lines: list[str], posture: str = "ask") -> WorldError:
    """Nobody may answer, or somebody said no."""
    return WorldError(
        "permission_denied",
        f"{plan.name} needs permission: {lines[0]}"
        + (f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""),
        hint="--permission read_only allows reading alone; leave it out to be asked, or use --permission auto"
        if posture == "read_only"
        else "run it with --yes, or with --permission auto",
        details={"needs": lines},
        exit_status=EXIT_PERMISSION,
    )
