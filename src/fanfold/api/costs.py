"""The cost of the runs of a project, by recipe, model, day or run, and the cost of one run.

Everything is read from the logs of runs: each payment with its time and model. Scripted agents and logs of
earlier versions have no payments. For them the sum at the end of the attempt is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from fanfold.agents.entries import Compaction, Response
from fanfold.api.display import when
from fanfold.api.project import Project
from fanfold.engine.run_tree import RunTree
from fanfold.kernel.events import NOTHING_SPENT, Usage
from fanfold.kernel.state import Node, Run
from fanfold.language.leaf_steps import AgentBody
from fanfold.language.step_grammar import find_body
from fanfold.sessions.log import read_entries
from fanfold.steps.ids import session_id
from fanfold.store.protocol import RunHead, Store

By: TypeAlias = Literal["recipe", "model", "day", "run"]
UNKNOWN_MODEL = "(none)"


class CostLine(Struct, kw_only=True):
    """The cost of one recipe, model, day or run."""

    name: str
    runs: int = 0
    requests: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    """The part of the input that providers read from their caches."""
    output_tokens: int = 0
    cost_usd: float = 0.0
    """The known cost."""
    unpriced: int = 0
    """Requests with an unknown price; `cost_usd` does not include them."""
    cache_hits: int = 0
    """Steps whose output was reused from an earlier run, at no cost."""


class Costs(Struct, frozen=True, kw_only=True):
    """The lines, most expensive first; days in chronological order."""

    by: By
    since: str | None
    lines: list[CostLine]
    total: CostLine


class _Spending(Struct, frozen=True):
    """A payment, or a step whose output was reused."""

    at: int
    run: str
    usage: Usage | None
    model: str = ""
    requests: int = 1


def costs(project: Project, by: By, since: int | None = None) -> Costs:
    """Return the costs since a time (milliseconds since the epoch), or of all runs."""
    lines: dict[str, CostLine] = {}
    total = CostLine(name="total")
    for head in project.store.heads(limit=-1) if project.has_runs else ():
        if since is not None and head.ended_at is not None and head.ended_at < since:
            continue
        spent = [one for one in _spent_in(project.store, head) if since is None or one.at >= since]
        for name in dict.fromkeys(_name(by, head, one) for one in spent):
            lines.setdefault(name, CostLine(name=name)).runs += 1
        total.runs += bool(spent)
        for one in spent:
            for line in (lines[_name(by, head, one)], total):
                _add(line, one)
    ordered = sorted(lines.values(), key=lambda line: (-line.cost_usd, -line.input_tokens, line.name))
    if by == "day":
        ordered = sorted(lines.values(), key=lambda line: line.name)
    return Costs(by=by, since=when(since), lines=ordered, total=total)


def _name(by: By, head: RunHead, spent: _Spending) -> str:
    match by:
        case "recipe":
            return head.recipe
        case "run":
            return head.run_id
        case "day":
            return datetime.fromtimestamp(spent.at / 1_000).astimezone().date().isoformat()
        case _:
            return spent.model or UNKNOWN_MODEL


def _add(line: CostLine, spent: _Spending) -> None:
    usage = spent.usage
    if usage is None:
        line.cache_hits += 1
        return
    line.requests += spent.requests
    line.input_tokens += usage.input_tokens
    line.cached_tokens += usage.cached_tokens
    line.output_tokens += usage.output_tokens
    line.unpriced += spent.requests if usage.micro_usd is None else 0
    line.cost_usd = round(line.cost_usd + (usage.micro_usd or 0) / 1_000_000, 6)


def _spent_in(store: Store, head: RunHead) -> Iterator[_Spending]:
    """Yield the payments of a run tree, in the order of its log."""
    paid: dict[tuple[str, str, int], Usage] = {}
    for envelope in store.tree(head.run_id):
        data = envelope.data
        if not isinstance(data, dict):
            continue
        if envelope.type == "workflow_event" and data.get("kind") == "payment":
            usage = msgspec.convert(data["usage"], Usage)
            attempt = (envelope.run_id, data["step"], data["attempt"])
            paid[attempt] = paid.get(attempt, NOTHING_SPENT) + usage
            yield _Spending(envelope.at, envelope.run_id, usage, data.get("model", ""))
        elif envelope.type in ("step_event", "subagent_event"):
            if data.get("cached"):
                yield _Spending(envelope.at, envelope.run_id, None)
            if "usage" not in data:
                continue
            attempt = (envelope.run_id, data["step"], data.get("attempt", 0))
            rest = msgspec.convert(data["usage"], Usage).beyond(paid.get(attempt, NOTHING_SPENT))
            if rest.tokens or rest.cached_tokens or rest.micro_usd:
                yield _Spending(envelope.at, envelope.run_id, rest, _model_of(store, attempt))


def _model_of(store: Store, attempt: tuple[str, str, int]) -> str:
    """Return the model of an attempt whose payments are not in the log of its run."""
    entries = read_entries(store, session_id(*attempt))
    named = (entry.model for entry in entries if isinstance(entry, Response | Compaction))
    return next((model for model in named if model), "")


# -----------------------------------------------------------------------------------------------------------
# Costs within one run, and of the project over time


class CostRow(Struct, frozen=True):
    """What one step, role or model spent; `cost_usd` is None where a price is not known."""

    name: str
    steps: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None


class RunCost(Struct, frozen=True):
    """A run and the runs below it; the dearest first."""

    run_id: str
    total: CostRow
    steps: list[CostRow]
    roles: list[CostRow]
    models: list[CostRow]


class Spend(Struct, frozen=True):
    """`unpriced` runs spent something whose price nobody knows; the sum is without them."""

    runs: int
    agents: int
    input_tokens: int
    output_tokens: int
    cost_usd: float
    unpriced: int


def run_cost(tree: RunTree, run: Run) -> RunCost:
    """Return the cost of a run so far."""
    spent = [
        (node, usage) for node in _nodes(run) if (usage := tree.memory.usage.get((node.run.id, node.path)))
    ]
    return RunCost(
        run.id,
        _row(run.plan.name, [usage for _, usage in spent]),
        _rows((node.run.tree_path(node.path), usage) for node, usage in spent),
        _rows((node.step.traits.role or "", usage) for node, usage in spent),
        _rows((_model(tree, node), usage) for node, usage in spent),
    )


def _nodes(run: Run) -> Iterable[Node]:
    yield from run.nodes.values()
    for child in run.children:
        yield from _nodes(child)


def _model(tree: RunTree, node: Node) -> str:
    said = find_body(AgentBody, node.step)
    if said is None:
        return ""
    frozen = tree.frozen(node)
    role = frozen.session_role(node.step, said)
    return role.model or frozen.default_model or frozen.backend_of(role)


def _rows(named: Iterable[tuple[str, Usage]]) -> list[CostRow]:
    held: dict[str, list[Usage]] = {}
    for name, usage in named:
        held.setdefault(name, []).append(usage)
    rows = [_row(name, usages) for name, usages in held.items() if name]
    return sorted(
        rows, key=lambda row: (-(row.cost_usd or 0), -row.input_tokens - row.output_tokens, row.name)
    )


def _row(name: str, usages: list[Usage]) -> CostRow:
    total = sum(usages, NOTHING_SPENT)
    price = None if total.micro_usd is None else total.micro_usd / 1_000_000
    return CostRow(name, len(usages), total.input_tokens, total.output_tokens, price)
