"""The configuration that is fixed for the life of a run: roles, back end, script, permission.

It is stored as a blob that the run's first event names. So a resumed run needs no flags, and edited files do
not change it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fanfold.agents.backend_registry import MODEL, SCRIPTED
from fanfold.agents.entries import Entry
from fanfold.agents.instructions import ProjectInstructions
from fanfold.agents.role import Role, Skill, for_step
from fanfold.errors import BugError
from fanfold.kernel.events import Failure
from fanfold.kernel.plan import JSON, GroupAction, Plan, Step
from fanfold.language.leaf_steps import AgentBody, find_body, roles_of

# -----------------------------------------------------------------------------------------------------------
# The source of a project's handlers when a run was permitted
#
# A user who permits a run permits the Python code of that moment. Agents of the run may change files of the
# project, and functions run without a sandbox. So the run stores a digest of every Python file of the
# project. A file that has changed since, or is new, is not executed. Files that are not imported may change.
#
# Bounds: 20,000 files of 64 MB. Compiled modules count by their content; bytecode is never used.

MAX_FILES = 20_000
MAX_FILE_BYTES = 64 * 1024 * 1024


class Sources(Struct, frozen=True, omit_defaults=True):
    """The source files of a project's handlers. Paths are relative to the project's folder."""

    files: dict[str, str] = {}
    """The digests of the files that may be imported, by path."""
    handlers: dict[str, str] = {}
    """The file that registers a name, for the names that steps use."""


def read_sources(project: Path, wanted: Collection[str]) -> Sources:
    """The source files for the handlers that steps name. Nothing is imported."""
    if not wanted:
        return Sources()
    from fanfold.steps.function_calls import (
        COMPILED,
        SOURCE,
        decorated_names,
        digest,
        is_module_name,
        read,
        walk,
    )

    names = {name for name in wanted if not is_module_name(name)}
    files: dict[str, str] = {}
    handlers: dict[str, str] = {}
    for number, file in enumerate(walk(project, (SOURCE, *COMPILED))):
        if number == MAX_FILES:
            break
        content = read(project, file, MAX_FILE_BYTES)
        if content is None:
            continue  # such a file cannot be imported either
        relative = os.path.relpath(file, project)
        files[relative] = digest(content)
        if names and file.suffix == SOURCE:
            for name in names.intersection(decorated_names(content)):
                handlers.setdefault(name, relative)
    return Sources(files, handlers)


RESOLVER = "worker"
"""The role that resolves merge conflicts for steps with `on_conflict: resolve`."""


class RecordedEntry(Struct, frozen=True):
    """An entry of a session's log, with its time."""

    at: int
    entry: Entry


class TakenUp(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A conversation of another session, up to one of its turns, that a step continues."""

    run_id: str
    step: str
    """The tree path of the step that had the session."""
    session_id: str
    attempt: int
    turn: int
    say: str = ""
    """The next message to the agent; if empty, the prompt of the step."""
    entries: tuple[RecordedEntry, ...]


class RunConfig(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The configuration that is fixed for the life of a run."""

    roles: dict[str, Role] = {}
    """The roles by the name that steps use, with `@version` if a step requires one."""
    backend: str = MODEL
    """The back end for roles that name none."""
    model: str | None = None
    default_model: str | None = None
    """The model for agents without a named model, chosen when the run started."""
    fast_model: str | None = None
    """The model for summaries, from the user's configuration."""
    default_fast_model: str | None = None
    """The model for summaries if no model is named."""
    instructions: ProjectInstructions = ProjectInstructions()
    """The project's instructions to agents when the run started."""
    skills: dict[str, Skill] = {}
    """The skills of roles and steps by name, as they were when the run started."""
    script: str | None = None
    """The text of the script for scripted agents."""
    script_file: str = ""
    sources: Sources = Sources()
    """The source files of the run's functions."""
    permission: str = "ask"
    traceparent: str = ""
    """The W3C trace context of the caller that started the run."""
    unsafe: bool = False
    """Whether programs may run without a sandbox if the machine has none."""
    forked_from: str | None = None
    reused: dict[str, str] = {}
    """For a fork: the output blobs of reused steps by tree path, including failed steps with an output."""
    reused_failures: dict[str, Failure] = {}
    """For a fork: the tolerated failures of reused steps, by tree path."""
    reused_merges: dict[str, tuple[str, ...]] = {}
    """For a fork: the merge receipts of reused steps, by tree path."""
    taken_up: dict[str, TakenUp] = {}
    """For a fork at a turn: the conversation that the step continues, by tree path."""
    tree: str = ""
    """The snapshot of the project's folder, if the run has its own tree; see `engine.run_trees`."""

    def role_of(self, action: AgentBody) -> Role:
        """The role of a step, as it was when the run started."""
        return self.roles[action.role]

    def model_of(self, action: AgentBody) -> str | None:
        """The model that the step names, else the user for this run, else the role.

        For summaries, the models for summaries apply.
        """
        fast = self.fast_model if action.purpose == "fold" else None
        named = action.model or fast or self.model or self.role_of(action).model
        return named or (self.default_fast_model if action.purpose == "fold" else None)

    def backend_of(self, role: Role) -> str:
        """The back end of a role. A script replaces the back ends of all roles."""
        return SCRIPTED if self.script is not None else role.backend or self.backend

    def fallback_backends(self, role: Role) -> tuple[str, ...]:
        """The back ends that a role uses while the run waits for its own back end."""
        return () if self.script is not None else role.fallback_backends

    def backends(self) -> set[str]:
        """The back ends that the roles of this run need."""
        roles = self.roles.values()
        return {name for role in roles for name in (self.backend_of(role), *self.fallback_backends(role))}

    def session_role(self, step: Step, settings: AgentBody) -> Role:
        """The role of an agent step for its session, with the settings of the step and the run."""
        role = self.role_of(settings)
        # A stage of a pipeline and a summary are only a part of a step, which cannot wait by itself.
        may_ask = (role.may_ask or settings.may_ask) and settings.purpose == "work" and not role.pipeline
        return for_step(
            role,
            model=self.model_of(settings),
            reasoning_effort=settings.reasoning_effort,
            max_turns=settings.max_turns,
            may_ask=may_ask,
            skills=tuple(
                self.skills[name] for name in (*role.skills, *settings.skills) if name in self.skills
            ),
            tools=settings.tools,
            read_only=step.posture == "read_only",
        )

    def resolver_role(self, step: Step) -> Role:
        """The role that resolves merge conflicts of a step, with the step's model if it names one."""
        role = self.roles[RESOLVER]
        settings = find_body(AgentBody, step)
        model = settings.model if settings is not None else None
        return for_step(role, model=model or self.model or role.model)


def without_permission(frozen: RunConfig) -> RunConfig:
    """The configuration of a foreign run without its permissions: agents ask, programs need a sandbox."""
    permission = "read_only" if frozen.permission == "read_only" else "ask"
    return replace(frozen, permission=permission, unsafe=False)


def freeze_roles(plan: Plan, find: Callable[[str], Role | None]) -> dict[str, Role]:
    """The current roles that a plan and its sub-workflows use or may use."""
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
    """These roles, and the current roles that the stages of their pipelines name."""
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
    """Every step of a plan and of its sub-workflows, with the steps inside groups, and folds."""
    found: list[Step] = []
    stack = [step for used in (plan, *plan.workflows.values()) for step in used.steps][::-1]
    while stack:
        step = stack.pop()
        found.append(step)
        if step.fold is not None:
            stack.append(step.fold)
        if isinstance(step.action, GroupAction):
            stack.extend(reversed(step.action.steps))
    return found


def to_json(frozen: RunConfig) -> JSON:
    """The configuration as JSON."""
    return msgspec.to_builtins(frozen)


def from_json(value: JSON) -> RunConfig:
    """The configuration from JSON."""
    return msgspec.convert(value, RunConfig)


# -----------------------------------------------------------------------------------------------------------
# Open runs, which never finish: how to recognize them by name, and how to resume them
#
# A run of a recipe continues when a process drives it. A chat waits until its user sends a message.

HAND = "hand"
"""The name of the open run for subagents that users start themselves."""
CHAT = "chat-"
"""The prefix of the names of chats."""


def is_chat(run: str) -> bool:
    """Whether a run is a chat, by its name."""
    return run.startswith(CHAT)


def is_kept_open(run: str) -> bool:
    """Whether a run is or was an open run: a chat, or the run of subagents that users start.

    >>> [name for name in ("hand", "hand-2", "chat-7k2m9x", "handy", "hand-made") if is_kept_open(name)]
    ['hand', 'hand-2', 'chat-7k2m9x']
    """
    name, _, number = run.partition("-")
    return is_chat(run) or (name == HAND and (not number or number.isdecimal()))


def how_to_resume(root: str) -> str:
    """The command that resumes an unfinished run.

    >>> how_to_resume("xp4rzz6mnp7z"), how_to_resume("chat-7k2m9x")
    ('fanfold resume xp4rzz6mnp7z', 'fanfold chat --resume chat-7k2m9x')
    """
    return f"fanfold chat --resume {root}" if is_chat(root) else f"fanfold resume {root}"
