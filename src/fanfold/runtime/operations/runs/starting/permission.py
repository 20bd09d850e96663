"""What a run may do without asking: `read_only`, `ask` or `auto`.

One question at the start covers what the recipe declares: agents that write, commands, functions, programs
that are tools of a role. A recipe that only reads needs no permission for what it does, but fifty agents are
a bill: a run that will probably start more agents, or spend more, than the user's own configuration lets pass
is asked about like one that writes. A project's configuration has no say in it. Nobody is asked about
scripted agents, nor about what a budget of the run rules out.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from fanfold.agents.role import COMMAND, SPOKEN, Role
from fanfold.errors import EXIT_PERMISSION, WorldError
from fanfold.kernel.plan import JSON, Plan
from fanfold.runtime.config import Config
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.starting.options import Options, settings_of
from fanfold.runtime.records.frozen import all_steps, all_steps_below, freeze_roles, with_stages
from fanfold.runtime.steps.registry import declare
from fanfold.text.patterns import regex
from fanfold.text.terminal import visible
from fanfold.trust.adopted import is_adopted, permitted

if TYPE_CHECKING:
    from fanfold.agents.permissions import Action

MAX_NAMED = 5
_INPUT = regex(r"(?<!\\)\{\{\s*inputs\.(\w+)\s*\}\}")
_PLAIN_WORD = regex(r"[A-Za-z0-9_.][A-Za-z0-9_./-]{0,199}")
KEPT_FROM_LOG = "goes on from results and answers in its log, which may be somebody else's"
AGENTS, CENTS = "permission.ask_above_agents", "permission.ask_above_cents"


def needs_permission(
    plan: Plan,
    find_role: Callable[[str], Role | None],
    *,
    scripted: bool = False,
    inputs: Callable[[str], JSON] | None = None,
) -> list[str]:
    """What the recipe, its sub-workflows and the roles they name declare beyond reading, line by line.

    A script answers for agents that are programs, too: then none of them is started. Plain words that
    `inputs` gives for names stand in the place of these.
    """
    lines: list[str] = []
    for used in (plan, *plan.workflows.values()):
        prefix = "" if used is plan else f"{used.name}: "
        told = [f"{prefix}{step.id} {needs}" for step in all_steps(used.steps) if (needs := declare(step))]
        # A sub-workflow has inputs of its own, which only the run will know.
        lines += [_filled(line, inputs) for line in told] if used is plan and inputs else told
    for role in with_stages(freeze_roles(plan, find_role), find_role).values():
        lines += [*([] if scripted else _program_lines(role)), *served_lines(role)]
    return list(dict.fromkeys(lines))  # a file that is called to read and to write says some of it twice


def _filled(line: str, inputs: Callable[[str], JSON]) -> str:
    """A line with the inputs it names; those that could pass for anything else stay names."""

    def value(found: re.Match[str]) -> str:
        given = inputs(found[1])
        return given if isinstance(given, str) and _PLAIN_WORD.fullmatch(given) else found[0]

    return _INPUT.sub(value, line)


def _program_lines(role: Role) -> list[str]:
    """The program that does a role's work, where it is one; a `command` that nobody will run is not named."""
    if role.backend is None:
        return []
    from fanfold.agents.command.profile_names import is_program  # few roles name any

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
    inputs: Callable[[str], JSON] | None = None,
) -> None:
    """Return when the recipe may do what it declares, and `also` this; else raise `permission_denied`."""
    lines = [*needs_permission(plan, find_role, scripted=scripted, inputs=inputs), *also]
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


def permit_adopted(project: Project, tree: RunTree, *, yes: bool, attendant: Attendant | None) -> None:
    """Return when a run may go on; one that was adopted only after somebody here said so."""
    root = tree.root.id
    if not is_adopted(project.folder, root):
        return
    frozen = tree.frozen()
    also = [KEPT_FROM_LOG, f"its agents work on: {', '.join(sorted(frozen.backends())) or frozen.backend}"]
    if frozen.permission == "auto":
        also.append("its agents run programs without asking")
    if frozen.unsafe:
        also.append("its programs run without a sandbox where there is none")
    permit(tree.state.plan, frozen.roles.get, "ask", yes=yes, attendant=attendant, also=also)
    permitted(project.folder, root)


class Spending(Struct, frozen=True):
    """What a run will probably take; a price that nobody knows counts as nothing."""

    agents: int
    micro_usd: int


def foresee_spending(project: Project, plan: Plan, inputs: Mapping[str, JSON], options: Options) -> Spending:
    """What a run of a plan will probably take, within the limits that it has. As in a dry run, lists that are
    known are counted, and any other stands for one item.
    """
    if options.script is not None or not any(step.traits.role for step in all_steps_below(plan)):
        return Spending(0, 0)
    from fanfold.runtime.forecast.foresight import Foresight
    from fanfold.runtime.forecast.host import ForecastHost
    from fanfold.runtime.operations.runs.starting.preflight import usual_estimates

    settings = settings_of(project.config, plan, options)
    host = ForecastHost(plan, settings, Foresight(inputs))
    host.drive()
    roles = [role for begun in host.begun if (role := begun.node.step.traits.role) is not None]
    estimates = usual_estimates(project, plan, options.backend, options.model)
    spent = sum(estimates[role].micro_usd for role in roles if role in estimates)
    if settings.budget_micro_usd is not None:
        spent = min(spent, settings.budget_micro_usd)
    return Spending(min(len(roles), settings.max_agents), spent)


def asked_about(config: Config, spending: Spending) -> list[str]:
    """What is said in the question at the start, if it is so much that there is one."""
    told: list[str] = []
    if spending.agents > (most := config.integer(AGENTS)):
        told.append(f"will probably start {spending.agents} agents (more than {most}, {AGENTS})")
    if spending.micro_usd > (cents := config.integer(CENTS)) * 10_000:
        dollars = spending.micro_usd / 1_000_000
        told.append(f"will probably cost ${dollars:.2f} (more than ${cents / 100:.2f}, {CENTS})")
    return told
