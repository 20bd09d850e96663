"""What was spent: by whom in a run, and in the project over time."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from fanfold.kernel.events import NOTHING_SPENT, Usage
from fanfold.kernel.nodes import Node, Run
from fanfold.recipe.types.agent import AgentBody
from fanfold.recipe.types.body import find_body
from fanfold.runtime.hosting.run_tree import RunTree


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
    """What a run cost so far."""
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
