"""The head of a run: status, progress, cost; what stays in sight whatever else is shown."""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec import Struct, structs

from fanfold.kernel.nodes import LEAF, Run
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.views.runs.documents import run_error
from fanfold.runtime.views.runs.rows import RunRow, run_row
from fanfold.runtime.views.runs.rows import failure_document as _failure
from fanfold.runtime.views.standing import status_of, stopped_at


class SpendCap(Struct, frozen=True):
    """What the whole tree may spend; null where nobody set a limit."""

    usd: float | None
    tokens: int | None


class Breadcrumb(Struct, frozen=True):
    """A run above; `path` is the step there that called the next one."""

    run_id: str
    recipe: str
    path: str


class RunHeadDocument(RunRow, frozen=True, kw_only=True):
    """`seq` is the last event that was folded, `reach` the last there is: they differ in a look back."""

    description: str
    seq: int
    reach: int
    at: int
    """When the last folded event was recorded, in milliseconds."""
    counts: dict[str, int]
    """How many steps that do work are in each status, in this run and those below."""
    cap: SpendCap
    breadcrumbs: list[Breadcrumb]
    pausing: str
    growing: bool
    """Steps may still be added."""


def run_head(tree: RunTree, run: Run, *, reach: int | None = None) -> RunHeadDocument:
    """How a run stands, as its tree was folded."""
    row: dict[str, Any] = structs.asdict(run_row(tree.head(run), stopped_at=stopped_at(tree)))
    ledger = tree.state.ledger
    usd = None if ledger.max_micro_usd is None else ledger.max_micro_usd / 1_000_000
    error = run_error(tree, run)
    row["error"] = _failure(error, run.nodes.get(error.step) if error is not None else None)
    return RunHeadDocument(
        **row,
        description=run.plan.description,
        seq=tree.tree_seq,
        reach=tree.tree_seq if reach is None else reach,
        at=tree.state.now,
        counts=dict(_counts(tree, run)),
        cap=SpendCap(usd, ledger.max_tokens),
        breadcrumbs=_above(run),
        pausing=tree.state.pausing,
        growing=run.growing,
    )


def _counts(tree: RunTree, run: Run) -> Counter[str]:
    found = Counter(status_of(tree, node) for node in run.nodes.values() if node.kind == LEAF)
    for child in run.children:
        found += _counts(tree, child)
    return found


def _above(run: Run) -> list[Breadcrumb]:
    found: list[Breadcrumb] = []
    while run.parent is not None and run.call is not None:
        found.append(Breadcrumb(run.parent.id, run.parent.plan.name, run.call.path))
        run = run.parent
    return found[::-1]
