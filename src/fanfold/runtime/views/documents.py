"""Read models: the documents that every surface shows, made from a folded tree.

A view never changes anything and needs no lease, so it can be made by any process at any time.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from fanfold.kernel.events import Failure, Usage
from fanfold.kernel.lifecycle import COMPLETED
from fanfold.kernel.nodes import Node, Run
from fanfold.kernel.plan import JSON
from fanfold.runtime.hosting.run_tree import RunTree, run_status
from fanfold.runtime.records.values import failure_value
from fanfold.runtime.views.approvals import is_open, read_approval
from fanfold.store.protocol import RunHead
from fanfold.text.excerpts import shorten

Document = dict[str, Any]
MAX_ASKED_CHARS = 4_000


def when(at: int | None) -> str | None:
    """A point in time as people and scripts read it: ISO 8601 in UTC, milliseconds kept."""
    if not at:
        return None
    return datetime.fromtimestamp(at / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def result_document(tree: RunTree, run: Run | None = None) -> Document:
    """What `fanfold run --json` prints."""
    run = run or tree.root
    usage, agents = tree.spent(run)
    children = [other.id for other in tree.state.runs.values() if other.parent is run]
    return {
        "run_id": run.id,
        "recipe": run.plan.name,
        "version": run.plan.version,
        "status": run_status(tree.state, run),
        "output": tree.blobs.get(run.output) if run.output is not None else None,
        "error": _run_failure(tree, run),
        "steps": {path: step_document(tree, node) for path, node in run.nodes.items()},
        "usage": {**usage_document(usage), "agents": agents},
        "changes": tree.memory.changes.get(run.id, []),
        "children": children,
    }


def waiting_proposals(tree: RunTree, run: Run | None = None) -> dict[str, int]:
    """Tree path to the number of changed files, for each step whose proposal waits; of the tree, or a run."""
    waiting: dict[str, int] = {}
    for other in tree.state.runs.values() if run is None else [run]:
        for row in tree.memory.changes.get(other.id, []):
            if row["state"] == "proposed":
                path = other.tree_path(row["step"])
                waiting[path] = waiting.get(path, 0) + 1
    return waiting


def run_error(tree: RunTree, run: Run) -> Failure | None:
    """Why a run did not complete, or what holds it."""
    if run.error is None and run is tree.root and tree.state.pausing:
        held = tree.memory.held_by
        if held is not None:
            return msgspec.structs.replace(held, message=f"the run is paused: {held.message}")
        return Failure("budget" if tree.state.pausing == "budget" else "cancelled", "run.paused", _held(tree))
    return run.error


def _held(tree: RunTree) -> str:
    if tree.state.pausing != "budget":
        return f"the run is paused ({tree.state.pausing})"
    limits = sorted(
        {limit for _, _, limit in tree.state.starved} | ({"max_steps"} if tree.state.oversize else set())
    )
    if "budget" in limits and tree.state.ledger.unknowable:
        return "the run is paused: what it spent has no known price, so a budget in dollars cannot be kept"
    return f"the run is paused: {', '.join(limits) or 'budget'} reached"


def inspect_document(tree: RunTree, run: Run | None = None) -> Document:
    """What `fanfold inspect --json` prints: the result, where it stands in the tree, and its child runs."""
    run = run or tree.root
    head = tree.head(run)
    document = result_document(tree, run)
    document |= {
        "parent_run_id": head.parent_run_id,
        "nesting_depth": head.nesting_depth,
        "execution_path": head.execution_path,
        "created_at": when(head.created_at),
        "started_at": when(head.started_at),
        "ended_at": when(head.ended_at),
    }
    children = [other for other in tree.state.runs.values() if other.parent is run]
    document["runs"] = [inspect_document(tree, child) for child in children]
    return document


def step_document(tree: RunTree, node: Node) -> Document:
    error = node.error if node.status != COMPLETED else None
    usage = tree.memory.usage.get((node.run.id, node.path))
    document: Document = {
        "status": node.status,
        "type": node.step.type,
        "output": tree.blobs.get(node.output) if node.output is not None else None,
        "error": failure_document(error, node),
        "attempts": node.attempt,
        "started_at": when(node.started_at),
        "ended_at": when(node.ended_at),
        "usage": usage_document(usage) if usage is not None else None,
    }
    if node.reason:
        document["reason"] = node.reason
    if is_open(node):
        document["approval"] = approval_document(tree, node)
    return document


def approval_document(tree: RunTree, node: Node) -> Document:
    """What a person must see to answer; long texts are cut, and say so by their last character."""
    asked = read_approval(tree, node)
    return {
        "question": shorten(asked.question, MAX_ASKED_CHARS),
        "show": shorten(asked.show, MAX_ASKED_CHARS),
        "choices": list(asked.choices),
    }


def head_document(head: RunHead) -> Document:
    """A row of `fanfold runs --json`."""
    return {
        "run_id": head.run_id,
        "recipe": head.recipe,
        "version": head.version,
        "status": head.status,
        "parent_run_id": head.parent_run_id,
        "nesting_depth": head.nesting_depth,
        "execution_path": head.execution_path,
        "created_at": when(head.created_at),
        "started_at": when(head.started_at),
        "ended_at": when(head.ended_at),
        "error": failure_document(head.error),
        "usage": {**usage_document(head.usage), "agents": head.agents},
    }


def failure_document(failure: Failure | None, node: Node | None = None) -> Document | None:
    """A failure as scripts read it; `node` is the step that has it."""
    return failure_value(failure, node)


def _run_failure(tree: RunTree, run: Run) -> Document | None:
    error = run_error(tree, run)
    return failure_document(error, run.nodes.get(error.step) if error is not None else None)


def usage_document(usage: Usage) -> Document:
    price = None if usage.micro_usd is None else usage.micro_usd / 1_000_000
    return {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens, "cost_usd": price}


def as_text(value: JSON) -> str:
    """An output as a person reads it: text as it is, anything else as indented JSON."""
    if isinstance(value, str):
        return value
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
