"""Estimates the spending of one attempt of a role, which budgets reserve before the run has its own data.

Rules
* The estimate is the mean of the role's last sessions with the same models, in runs of this project. Only
  the newest runs and the start of their logs are read, so a large store costs no more.
* Without such sessions, it is `TOKENS` for each model loop of the role: three quarters input, one quarter
  output.
* The cost is that number of tokens at the list price of the most expensive model that the role may use.
* The first event of a run records the estimates. Once a role has spent something in the run itself, the
  kernel uses that instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

import msgspec
from msgspec import Struct

from fanfold.agents.backend_registry import MODEL
from fanfold.agents.entries import Compaction, Response
from fanfold.agents.models.connections import list_price, replace_price
from fanfold.agents.role import DEFAULT_MODEL, Role, Stage
from fanfold.engine.config import Choice, Config
from fanfold.kernel.events import NOTHING_SPENT, Estimate, SubagentEvent, Usage
from fanfold.kernel.plan import GroupAction, Plan, Step, WorkflowAction
from fanfold.language.leaf_steps import AgentBody, find_body
from fanfold.sessions.log import read_entries
from fanfold.steps.ids import session_id
from fanfold.steps.run_config import RunConfig
from fanfold.store.protocol import Store

# -----------------------------------------------------------------------------------------------------------
# The models that the agents of a plan may use, and their origin: a step, a role, a stage, the user

_INSTANCE = r"\[\d+\]|#\d+"


class ModelUse(Struct, frozen=True, kw_only=True):
    """A model that an agent of the plan may use."""

    model: str | None
    """The name of the model, or None for the default model."""
    where: str
    """The origin of the name, for messages; empty for the user's flag."""
    role: str
    """The role as steps name it, without its version. Reservations use this name."""
    loops: int = 1
    """The number of model loops in one session of that role."""
    fallback: bool = False


def models_of(plan: Plan, frozen: RunConfig, config: Config) -> Iterator[ModelUse]:
    """Every model that agents of a plan may use, in step order; for a fork, without reused steps."""
    kept = {re.sub(_INSTANCE, "", path) for path in frozen.reused}
    for path, step in _steps(plan, plan):
        if path in kept:
            continue
        body = find_body(AgentBody, step)
        if body is not None:
            yield from _of_step(path, body, frozen, config)
    if frozen.reused:
        return
    # Roles that no step or stage names, such as the role that resolves merge conflicts.
    bodies = [find_body(AgentBody, step) for _, step in _steps(plan, plan)]
    named = {body.role for body in bodies if body is not None}
    stages = {stage.agent for role in frozen.roles.values() for stage in role.pipeline}
    for name, role in frozen.roles.items():
        if name not in named and name not in stages:
            yield from _of_role(f'role "{name}"', frozen.model or role.model, role, frozen, name)


def _of_step(path: str, action: AgentBody, frozen: RunConfig, config: Config) -> Iterator[ModelUse]:
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


def _of_role(where: str, model: str | None, role: Role, frozen: RunConfig, name: str) -> Iterator[ModelUse]:
    """The models that a role uses if its model is `model`. Its stages may name other models instead."""
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
            other = frozen.roles[stage.agent]
            place = "" if frozen.model is not None else f'role "{other.name}"' if other.model else where
            yield ModelUse(model=frozen.model or other.model, where=place, role=name, loops=loops)
            yield from _fallbacks(other, name, loops)
    yield from _fallbacks(role, name, loops)


def _fallbacks(role: Role, name: str, loops: int) -> Iterator[ModelUse]:
    for fallback in role.fallback_models:
        where = f'a fallback of role "{role.name}"'
        yield ModelUse(model=fallback, where=where, role=name, loops=loops, fallback=True)


def _steps(root: Plan, plan: Plan, above: str = "") -> Iterator[tuple[str, Step]]:
    """Every step of a plan and of its child workflows, with its path in the recipe."""
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


TOKENS = 4_000
INPUT_TOKENS = 3_000
RUNS = 20
EVENTS = 250
"""The number of events read of each run. With `RUNS`, 5,000 in total: some milliseconds."""
SESSIONS = 10
"""The number of sessions per role. This is enough for a mean, and older sessions are less relevant."""


class Prices:
    """List prices of the chosen models, by the names under which they were requested."""

    def __init__(self, chosen: Mapping[str | None, Choice], config: Config) -> None:
        self._chosen = chosen
        self._access = config.access

    def of(self, model: str | None, input_tokens: int, output_tokens: int) -> int | None:
        """The price in micro-dollars, or None if unknown (local models, third-party servers)."""
        choice, usage = self._chosen[model], Usage(input_tokens, output_tokens)
        own = self._access.own_rate(choice.provider, choice.model, choice.name)
        if own is not None:
            return replace_price(usage, own).micro_usd
        prices = None if choice.provider is None else self._access.prices(choice.provider)
        return None if prices is None else list_price(choice.name, prices, usage)

    def unpriced(self, model: str | None) -> str | None:
        """The full name of a chosen model whose price is unknown, else None."""
        if model not in self._chosen or self.of(model, 1, 1) is not None:
            return None
        return self._chosen[model].model

    def recorded(self, model: str | None) -> str:
        """The name of the model in the responses of a session's log."""
        choice = self._chosen[model]
        if choice.provider is None:
            return f"openai-chat:{Path(choice.name).stem}"
        return choice.model

    def knows(self, model: str | None) -> bool:
        return model in self._chosen


def estimates_of(uses: Iterable[ModelUse], prices: Prices, store: Store | None = None) -> dict[str, Estimate]:
    """The estimated spending of one attempt, by role. Without a store, it is the default for any role."""
    by_role: dict[str, list[ModelUse]] = {}
    for use in uses:
        if prices.knows(use.model):
            by_role.setdefault(use.role, []).append(use)
    models = {role: {prices.recorded(use.model) for use in given} for role, given in by_role.items()}
    history = {} if store is None else _history(store, models)
    return {role: _estimate(given, prices, history.get(role, [])) for role, given in by_role.items()}


def _estimate(uses: list[ModelUse], prices: Prices, history: list[Usage]) -> Estimate:
    if not history:
        loops = max(use.loops for use in uses)
        tokens, read = loops * TOKENS, loops * INPUT_TOKENS
        return Estimate(tokens=tokens, micro_usd=_dearest(uses, prices, read, tokens - read))
    total = sum(history, NOTHING_SPENT)
    count = len(history)
    read, written = -(-total.input_tokens // count), -(-total.output_tokens // count)
    if total.micro_usd is None:
        return Estimate(tokens=read + written, micro_usd=_dearest(uses, prices, read, written))
    return Estimate(tokens=read + written, micro_usd=-(-total.micro_usd // count))


def _dearest(uses: list[ModelUse], prices: Prices, input_tokens: int, output_tokens: int) -> int:
    return max(prices.of(use.model, input_tokens, output_tokens) or 0 for use in uses)


def _history(store: Store, models: Mapping[str, set[str]]) -> dict[str, list[Usage]]:
    """The usage of the last completed sessions of each role, without sessions that used other models."""
    found: dict[str, list[Usage]] = {}
    looked: dict[str, int] = {}
    for head in store.heads(limit=RUNS):
        for envelope in islice(store.tree(head.run_id), EVENTS):
            if envelope.type != "subagent_event" or envelope.data["status"] != "finished":
                continue
            ended = msgspec.convert(envelope.data, SubagentEvent)
            role, usage = ended.role, ended.usage
            if role not in models or usage is None or not usage.tokens or looked.get(role, 0) == SESSIONS:
                continue
            looked[role] = looked.get(role, 0) + 1
            entries = read_entries(store, session_id(envelope.run_id, ended.step, ended.attempt))
            # The models that replied. Scripted models have no name and match nothing.
            replied = {entry.model for entry in entries if isinstance(entry, Response | Compaction)} or {""}
            if replied <= models[role]:
                found.setdefault(role, []).append(usage)
    return found
