"""Which models the agents of a plan may use, and who names each: a step, a role, a stage, the user."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from fanfold.agents.backend_registry import MODEL
from fanfold.agents.role import DEFAULT_MODEL, Role, Stage
from fanfold.kernel.plan import GroupAction, Plan, Step, WorkflowAction
from fanfold.recipe.types.agent import AgentBody
from fanfold.recipe.types.body import find_body
from fanfold.runtime.config import Config
from fanfold.runtime.records.frozen import Frozen

_INSTANCE = re.compile(r"\[\d+\]|#\d+")


class ModelUse(Struct, frozen=True, kw_only=True):
    """A model that some agent may use."""

    model: str | None
    """None: the default one."""
    where: str
    """Who names it, for people; empty for the user's own flag."""
    role: str
    """As steps name it, without its version: what reservations go by."""
    loops: int = 1
    """How many loops of a model one session of that role has."""
    fallback: bool = False


def models_of(plan: Plan, frozen: Frozen, config: Config) -> Iterator[ModelUse]:
    """Every model that agents of a plan may use, in the order of its steps.

    A fork is asked only about steps of which it keeps nothing.
    """
    kept = {_INSTANCE.sub("", path) for path in frozen.reused}
    for path, step in _steps(plan, plan):
        if path in kept:
            continue
        said = find_body(AgentBody, step)
        if said is not None:
            yield from _of_step(path, said, frozen, config)
    for name, role in _of_no_step(plan, frozen):
        yield from _of_role(f'role "{name}"', frozen.model or role.model, role, frozen, name)


def _of_no_step(plan: Plan, frozen: Frozen) -> Iterator[tuple[str, Role]]:
    """Roles that were frozen for what may come: who settles conflicts, for one."""
    if frozen.reused:
        return
    bodies = [find_body(AgentBody, step) for _, step in _steps(plan, plan)]
    named = {said.role for said in bodies if said is not None}
    stages = {stage.agent for role in frozen.roles.values() for stage in role.pipeline}
    for name, role in frozen.roles.items():
        if name not in named and name not in stages:
            yield name, role


def _of_step(path: str, action: AgentBody, frozen: Frozen, config: Config) -> Iterator[ModelUse]:
    role, model = frozen.role_of(action), frozen.model_of(action)
    if model is None or model == action.model:
        where = f'step "{path}"'
    elif action.purpose == "fold" and model == frozen.fast_model:
        where = config.origins["workflows.model"]
    elif model == frozen.model:
        where = ""
    else:
        where = f'role "{role.name}"'
    yield from _of_role(where, model, role, frozen, action.agent)


def _of_role(where: str, model: str | None, role: Role, frozen: Frozen, name: str) -> Iterator[ModelUse]:
    """What a role uses when it is given `model`: its stages may name others and not need that one."""
    if frozen.backend_of(role) != MODEL:
        return
    stages = role.pipeline or (Stage(model=DEFAULT_MODEL),)
    loops = max(1, sum(stage.tool is None for stage in stages))
    for number, stage in enumerate(stages, 1):
        if stage.model == DEFAULT_MODEL:
            yield ModelUse(model=model, where=where, role=name, loops=loops)
        elif stage.model is not None:
            place = f'stage {number} of role "{role.name}"'
            yield ModelUse(model=stage.model, where=place, role=name, loops=loops)
        elif stage.agent is not None:
            yield from _of_stage_role(frozen.roles[stage.agent], where, frozen, name, loops)
    for fallback in role.fallback_models:
        where = f'a fallback of role "{role.name}"'
        yield ModelUse(model=fallback, where=where, role=name, loops=loops, fallback=True)


def _of_stage_role(role: Role, where: str, frozen: Frozen, name: str, loops: int) -> Iterator[ModelUse]:
    model = frozen.model or role.model
    if model is not None:
        where = "" if frozen.model is not None else f'role "{role.name}"'
    yield ModelUse(model=model, where=where, role=name, loops=loops)
    for fallback in role.fallback_models:
        where = f'a fallback of role "{role.name}"'
        yield ModelUse(model=fallback, where=where, role=name, loops=loops, fallback=True)


def _steps(root: Plan, plan: Plan, above: str = "") -> Iterator[tuple[str, Step]]:
    """Every step of a plan and of the runs below it, with its path as the recipe has it."""
    stack = [(above, step) for step in reversed(plan.steps)]
    while stack:
        prefix, step = stack.pop()
        path = f"{prefix}{step.id}"
        yield path, step
        inside = list(step.action.steps) if isinstance(step.action, GroupAction) else []
        if step.fold is not None:
            inside.append(step.fold)
        stack += [(f"{path}/", one) for one in reversed(inside)]
        if isinstance(step.action, WorkflowAction):
            yield from _steps(root, root.workflows[step.action.workflow], f"{path}/")
