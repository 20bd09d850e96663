"""The table of steps in a report: who did what, for how long, at what cost.

Rules
* Rows are bounded, and a map of many items does not push out what came after it: its items stand in one row,
  with what they used together, but for those that did not complete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from fanfold.kernel.events import NOTHING_SPENT, Usage
from fanfold.kernel.lifecycle import COMPLETED
from fanfold.kernel.nodes import Map, Node
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.views.items import item_around
from fanfold.runtime.views.runs.reviews import cell
from fanfold.runtime.views.runs.rounds import did_not_pass, why_not
from fanfold.runtime.views.standing import reason_of, status_of
from fanfold.runtime.views.times import duration

MAX_ROWS = 200
MAX_ITEMS = 20
"""Of a map, each with a row of its own."""


def step_table(tree: RunTree, nodes: Sequence[Node]) -> list[str]:
    """The table, with its head."""
    told = list(_told(nodes))
    spent = _spent_by_items(tree, nodes)
    lines = ["| step | who | status | took | tokens | cost |", "|---|---|---|---|---|---|"]
    lines += [_row(tree, node, spent.get(node)) for node in told[:MAX_ROWS]]
    if len(told) > MAX_ROWS:
        lines.append(f"| … {len(told) - MAX_ROWS} more | | | | | |")
    return lines


def price(micro_usd: int | None) -> str:
    if micro_usd is None:
        return "price unknown"
    return "< $0.0001" if 0 < micro_usd < 100 else f"${micro_usd / 1_000_000:.4f}"


def _told(nodes: Sequence[Node]) -> Iterator[Node]:
    for node in nodes:
        if all(item.status != COMPLETED for item, _ in _folded_items(node)):
            yield node


def _folded_items(node: Node) -> Iterator[tuple[Node, Map]]:
    """The items of large maps that a node is or is inside of, each with its map."""
    current, parent = node, node.parent
    while parent is not None and parent.run is node.run:
        if isinstance(parent, Map) and len(parent.children) > MAX_ITEMS:
            yield current, parent
        current, parent = parent, parent.parent


def _spent_by_items(tree: RunTree, nodes: Sequence[Node]) -> dict[Node, Usage]:
    """What the items of large maps used together."""
    found: dict[Node, Usage] = {}
    for node in nodes:
        usage = tree.memory.usage.get((node.run.id, node.path))
        if usage is not None:
            for _, around in _folded_items(node):
                found[around] = found.get(around, NOTHING_SPENT) + usage
    return found


def _row(tree: RunTree, node: Node, of_items: Usage | None) -> str:
    who = node.step.traits.role or node.step.type
    usage = tree.memory.usage.get((node.run.id, node.path)) or of_items
    took = duration(node.ended_at - node.started_at) if node.started_at and node.ended_at else ""
    status, reason = status_of(tree, node), reason_of(tree, node)
    status = f"{status} ({reason})" if reason else status
    if did_not_pass(node):
        status = f"did not pass ({why})" if (why := why_not(tree, node)) else "did not pass"
    if isinstance(node, Map) and len(node.children) > MAX_ITEMS:
        counted = Counter(child.status for child in node.children)
        status += f", items: {', '.join(f'{count} {name}' for name, count in counted.items())}"
    name = f"{node.path} {item}" if (item := item_around(tree, node)) else node.path
    spent = f"{usage.tokens} | {price(usage.micro_usd)}" if usage else " | "
    return f"| {cell(name)} | {who} | {cell(status)} | {took} | {spent} |"
