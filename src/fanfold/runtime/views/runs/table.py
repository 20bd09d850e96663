"""A run as a table: every step, instance and child run in plan order, with what it took, and no output.

Outputs are read one by one, where somebody looks: a page about two thousand steps must not carry them all.
"""

from __future__ import annotations

from msgspec import Struct

from fanfold.kernel.nodes import CALL, LEAF, LOOP, MAP, Node, Run
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.views.runs.rows import step_usage
from fanfold.runtime.views.runs.step_rows import run_rows
from fanfold.runtime.views.standing import status_of, stopped_at
from fanfold.runtime.views.times import when

MAX_ROWS = 20_000
_KINDS = {LEAF: "step", MAP: "map", LOOP: "loop", CALL: "run"}


class TableRow(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One step instance. `path` is its path in the tree, `run_id` the run whose step it is."""

    path: str
    depth: int
    name: str
    kind: str
    type: str
    who: str
    status: str
    run_id: str
    started_at: str | None = None
    ended_at: str | None = None
    attempts: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    stopped_at: str | None = None
    """When its time stopped, in a run that is paused."""
    note: str = ""
    child_run_id: str | None = None


class RunTable(Struct, frozen=True):
    """`left_off` rows are more than anybody reads."""

    rows: list[TableRow]
    left_off: int


def nodes_by_path(tree: RunTree) -> dict[str, Node]:
    """Every step instance of a tree, by its path in it."""
    return {one.tree_path(path): node for one in tree.state.runs.values() for path, node in one.nodes.items()}


def run_table(tree: RunTree, run: Run, now: int) -> RunTable:
    """The rows of a run and of the runs below it."""
    nodes = nodes_by_path(tree)
    rows = run_rows(tree, run, now, every=True)
    found = [
        _row(tree, nodes[row.path], (row.path, row.depth, row.name, row.who, row.note))
        for row in rows[:MAX_ROWS]
    ]
    return RunTable(found, max(0, len(rows) - MAX_ROWS))


def _row(tree: RunTree, node: Node, shown: tuple[str, int, str, str, str]) -> TableRow:
    path, depth, name, who, note = shown
    spent = tree.memory.usage.get((node.run.id, node.path))
    usage = step_usage(spent) if spent is not None else None
    child = getattr(node, "child", None)
    return TableRow(
        path=path,
        depth=depth,
        name=name,
        kind=_KINDS.get(node.kind, "group"),
        type=node.step.type,
        who=who,
        status=status_of(tree, node),
        run_id=node.run.id,
        started_at=when(node.started_at),
        ended_at=when(node.ended_at),
        stopped_at=when(stopped_at(tree)),
        attempts=node.attempt,
        input_tokens=None if usage is None else usage.input_tokens,
        output_tokens=None if usage is None else usage.output_tokens,
        cost_usd=None if usage is None else usage.cost_usd,
        note=note,
        child_run_id=child.id if isinstance(child, Run) else None,
    )
