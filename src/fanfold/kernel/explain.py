"""Explanations: why a step has its status, and which steps or limits block it.

Rules
* An explanation only reads the state, so it is available at any point of a log.
* Every status has a reason from a small fixed set, and names the steps or limits behind it. A status
  without an explanation is a bug: the run would hang for an unknown reason.
"""

from __future__ import annotations

from msgspec import Struct

from fanfold.kernel.admission import find_blocker
from fanfold.kernel.state import (
    ASKED,
    BACK_OFF,
    BUDGET,
    CALL,
    COMPLETED,
    DEFERRED,
    HELD,
    INTERRUPTED,
    LOOP,
    MAP,
    PENDING,
    READY,
    RUNNING,
    SKIPPED,
    TERMINAL,
    WAITING,
    Composite,
    Node,
    State,
)

SENTENCES = {
    "dependencies": "waits for the steps it depends on",
    "parent": "waits for the scope around it to start",
    "deciding": "waits for its condition, list or sets to be evaluated",
    "slots": "is ready; every slot is taken",
    "scope_slots": "is ready; the concurrency cap of its phase or run is reached",
    "conflict": "is ready; it would touch files of a step that goes first",
    "held": "is ready; a run of another process works on files it would change",
    "outage": "waits for a provider that does not answer",
    "limit": "waits for a usage limit to reset",
    "daily_cap": "waits for the next day: your own cap is used up",
    "max_agents": "is held back: no agents are left under the limit",
    "budget": "is held back: its reservation does not fit the budget",
    "out_of_budget": "stopped after its last recorded turn: the budget is used up",
    "max_steps": "is held back: expanding it would exceed the number of steps allowed",
    "paused": "is held back: the run is paused",
    "chosen": "is about to start",
    "children": "runs; ends when its steps have ended",
    "running": "runs",
    "stopping": "runs and was asked to stop",
    "interrupted": "was interrupted and goes on when it is resumed",
    "approval": "waits for a person",
    "timer": "waits for its time to come",
    "back-off": "failed and waits for its next attempt",
    "completed": "completed",
    "condition": "was skipped: its condition was false",
    "failure": "was skipped: a step it depends on did not complete",
    "ended": "was skipped: a step ended the run before",
    "failed": "failed",
    "timed_out": "took too long",
    "cancelled": "was cancelled",
}

SKIPPED_FOR = {"condition": "condition", "failure": "a dependency failed", "ended": "the run was ended"}
"""Why a step was skipped, as short text for tables."""

WAITING_FOR = {"person": "approval", "timer": "timer"}


class Explanation(Struct, frozen=True):
    """Why a step has its status. `path` and `blocked_by` are tree paths; `reason` is a key of `SENTENCES`."""

    path: str
    status: str
    reason: str
    blocked_by: tuple[str, ...] = ()
    message: str = ""


def explain(state: State, node: Node) -> Explanation:
    """Explain the present status of a step instance."""
    reason, blockers = _reason(state, node)
    paths = tuple(blocker.run.tree_path(blocker.path) for blocker in blockers)
    path = node.run.tree_path(node.path)
    message = f"{path} {SENTENCES[reason]}"
    if paths:
        message += f" ({', '.join(paths[:5])}{', …' if len(paths) > 5 else ''})"
    if node.error is not None and node.status != COMPLETED:
        message += f": {node.error.message or node.error.code}"
    return Explanation(path, node.status, reason, paths, message)


def _reason(state: State, node: Node) -> tuple[str, list[Node]]:
    if node.status in TERMINAL:
        return _why_ended(node)
    if node.status == PENDING:
        return _why_pending(state, node)
    if node.status == READY:
        return _why_ready(state, node)
    if node.status == WAITING:
        waits = node.step.traits.waits
        if waits is not None:
            return WAITING_FOR[waits], []
        if node.reason == DEFERRED:
            return state.waits[node.subject].reason, []
        if node.reason in (HELD, ASKED):
            return ("approval" if node.reason == ASKED else HELD), []
        return (INTERRUPTED if node.lost else BACK_OFF), []
    if isinstance(node, Composite):
        if _is_oversize(state, node):
            return "max_steps", []
        return "children", [child for child in node.children if child.status not in TERMINAL]
    if node.lost:
        return ("out_of_budget" if node.reason == BUDGET else "interrupted"), []
    return ("stopping" if node.stopping else "running"), []


def _why_ended(node: Node) -> tuple[str, list[Node]]:
    if node.status == SKIPPED:
        return node.reason, [node.blocked_by] if node.blocked_by is not None else []
    if isinstance(node, Composite) and node.status != COMPLETED and node.failed_child is not None:
        return node.status, [node.failed_child]
    return node.status, []


def _why_pending(state: State, node: Node) -> tuple[str, list[Node]]:
    if isinstance(node, Composite) and _is_oversize(state, node):
        return "max_steps", []
    open_dependencies = [other for other in _dependencies(node) if other.status not in TERMINAL]
    if open_dependencies:
        return "dependencies", open_dependencies
    parent = node.parent
    if parent is not None and parent.kind != CALL and parent.status == PENDING:
        return "parent", [parent]
    return "deciding", []


def _why_ready(state: State, node: Node) -> tuple[str, list[Node]]:
    if node.holding or isinstance(node, Composite):
        return "chosen", []
    for _, held, limit in state.starved:
        if held is node:
            return limit, []
    blocker = find_blocker(state, node) if node.reserving else None
    if blocker is not None:
        return "conflict", [blocker]
    if state.pausing:
        return "paused", []
    for quota in node.quotas:
        if quota.max_concurrency is not None and quota.live >= quota.max_concurrency:
            return "scope_slots", [other for other in _running(state) if quota in other.quotas]
    return "slots", _running(state)


def _running(state: State) -> list[Node]:
    return sorted(
        (n for n in state.in_flight.values() if n.status in (RUNNING, READY)), key=lambda n: n.order
    )


def _is_oversize(state: State, node: Composite) -> bool:
    return any(held is node for _, held in state.oversize)


def _dependencies(node: Node) -> list[Node]:
    parent = node.parent
    if parent is None or parent.kind in (MAP, LOOP):
        return []
    prefix = f"{parent.path}/" if parent.path else ""
    return [node.run.nodes[prefix + name] for name in node.step.depends_on + node.step.after]
