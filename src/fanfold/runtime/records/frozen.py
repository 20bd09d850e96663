"""What a run fixes for its whole life besides its plan: roles, back end, script, permission.

It is stored as a blob named by the run's first event. A resumed run therefore needs no flags and is not
changed by edited files.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct

from fanfold.agents.backend_registry import MODEL, SCRIPTED
from fanfold.agents.entries import Entry
from fanfold.agents.instructions import ProjectInstructions
from fanfold.agents.role import Role
from fanfold.agents.roles.session_role import for_step
from fanfold.errors import BugError
from fanfold.kernel.events import Failure
from fanfold.kernel.plan import JSON, GroupAction, Plan, Step
from fanfold.recipe.types.agent import AgentBody
from fanfold.recipe.types.body import find_body
from fanfold.recipe.types.table import roles_of
from fanfold.runtime.handlers.sources import Sources

RESOLVER = "worker"
"""The role that settles conflicts where a step says `on_conflict: resolve`."""


class RecordedEntry(Struct, frozen=True):
    """An entry of a session's log, and when it was recorded."""

    at: int
    entry: Entry


class TakenUp(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A conversation of another session that a step goes on with, up to one of its turns."""

    run_id: str
    step: str
    """Tree path of the step whose session it was."""
    session_id: str
    attempt: int
    turn: int
    say: str = ""
    """What is said next; empty: what the step itself asks."""
    entries: tuple[RecordedEntry, ...]


class Frozen(Struct, frozen=True, omit_defaults=True, kw_only=True):
    roles: dict[str, Role] = {}
    """By the name steps use, with `@version` where they ask for one."""
    backend: str = MODEL
    """For roles that name none."""
    model: str | None = None
    default_model: str | None = None
    """For agents for whom nobody names one, chosen when the run began."""
    fast_model: str | None = None
    """For summaries, by the user's configuration."""
    default_fast_model: str | None = None
    """For summaries for which nobody names a model."""
    instructions: ProjectInstructions = ProjectInstructions()
    """What the project told its agents when the run began."""
    script: str | None = None
    """Text of the script, for scripted agents."""
    script_file: str = ""
    sources: Sources = Sources()
    """What the functions of a run are made of."""
    permission: str = "ask"
    unsafe: bool = False
    """Whether programs may run without a sandbox where there is none."""
    forked_from: str | None = None
    reused: dict[str, str] = {}
    """For a fork: tree path to blob, for the steps it keeps."""
    reused_failures: dict[str, Failure] = {}
    """For a fork: tree path to failure, for steps whose failure was tolerated."""
    reused_merges: dict[str, tuple[str, ...]] = {}
    """For a fork: tree path to receipts of what the steps it keeps had merged."""
    taken_up: dict[str, TakenUp] = {}
    """For a fork at a turn: tree path to the conversation that the step goes on with."""

    def role_of(self, action: AgentBody) -> Role:
        """The role of a step, as it was when the run began."""
        return self.roles[action.role]

    def model_of(self, action: AgentBody) -> str | None:
        """What the step says, else what the user said for this run, else what the role says."""
        fast = self.fast_model if action.purpose == "fold" else None
        named = action.model or fast or self.model or self.role_of(action).model
        return named or (self.default_fast_model if action.purpose == "fold" else None)

    def backend_of(self, role: Role) -> str:
        """The back end that does a role's work: a script answers for everybody, else the role may say."""
        return SCRIPTED if self.script is not None else role.backend or self.backend

    def backends(self) -> set[str]:
        """The back ends that the roles of this run need."""
        return {self.backend_of(role) for role in self.roles.values()}

    def session_role(self, step: Step, said: AgentBody) -> Role:
        """The role of an agent step as its session has it, with all that the step and the run say."""
        return for_step(
            self.role_of(said),
            model=self.model_of(said),
            reasoning_effort=said.reasoning_effort,
            max_turns=said.max_turns,
            tools=said.tools,
            read_only=step.posture == "read_only",
        )

    def resolver_role(self, step: Step) -> Role:
        """The role that settles the conflicts of a step, with the step's own model if it says one."""
        role = self.roles[RESOLVER]
        said = find_body(AgentBody, step)
        model = said.model if said is not None else None
        return for_step(role, model=model or self.model or role.model)


def freeze_roles(plan: Plan, find: Callable[[str], Role | None]) -> dict[str, Role]:
    """The roles that a plan and its sub-workflows use, or may come to use, as they are now."""
    names: list[str] = []
    for step in all_steps_below(plan):
        names += roles_of(step)
        if step.on_conflict == "resolve":
            names.append(RESOLVER)
    roles: dict[str, Role] = {}
    for name in names:
        role = find(name)
        if role is None:
            raise BugError("role.unknown", f"the checked plan names the unknown role {name}")
        roles[name] = role
    return roles


def with_stages(roles: dict[str, Role], find: Callable[[str], Role | None]) -> dict[str, Role]:
    """These roles and those that the stages of their pipelines name, as they are now."""
    found = dict(roles)
    for role in roles.values():
        for stage in role.pipeline:
            name = stage.agent
            if name is not None and name not in found:
                other = find(name)
                if other is None:
                    message = f"the checked role {role.name} names the unknown role {name}"
                    raise BugError("role.unknown", message)
                found[name] = other
    return found


def all_steps_below(plan: Plan) -> list[Step]:
    """Every step of a plan and of the sub-workflows it calls."""
    return [step for used in (plan, *plan.workflows.values()) for step in all_steps(used.steps)]


def all_steps(steps: tuple[Step, ...]) -> list[Step]:
    """Every step of a scope and of the groups inside it, folds included."""
    found: list[Step] = []
    stack = list(reversed(steps))
    while stack:
        step = stack.pop()
        found.append(step)
        if step.fold is not None:
            stack.append(step.fold)
        if isinstance(step.action, GroupAction):
            stack.extend(reversed(step.action.steps))
    return found


def to_json(frozen: Frozen) -> JSON:
    return msgspec.to_builtins(frozen)


def from_json(value: JSON) -> Frozen:
    return msgspec.convert(value, Frozen)
