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
    UNSUCCESSFUL,
    WAITING,
    Composite,
    Node,
    State,
    WorkflowCall,
)

SENTENCES = {
    "dependencies": "waits for the steps it depends on",
    "deciding": "waits for its condition, list or sets to be evaluated",
    "slots": "is ready; every slot is taken",
    "scope_slots": "is ready; the concurrency cap of its phase or run is reached",
    "conflict": "is ready; another step that uses the same files is first",
    "held": "waits for files that a run of another process uses",
    "outage": "waits for a provider that is not available",
    "limit": "waits for a usage limit to reset",
    "daily_cap": "waits for the next day: your daily cap is used up",
    "max_agents": "is held back: no agents are left under the limit",
    "budget": "is held back: its reservation does not fit the budget",
    "out_of_budget": "stopped after its last recorded turn: the budget is used up",
    "max_steps": "is held back: expanding it would exceed the number of steps allowed",
    "paused": "is held back: the run is paused",
    "chosen": "is about to start",
    "children": "is running until its steps have ended",
    "running": "is running",
    "stopping": "is running and was asked to stop",
    "interrupted": "was interrupted; it continues when the run is resumed",
    "approval": "waits for your answer",
    "timer": "waits until its time is reached",
    "back-off": "failed and waits for its next attempt",
    "completed": "completed",
    "condition": "was skipped: its condition was false",
    "failure": "was skipped: a step it depends on did not complete",
    "ended": "was skipped: another step ended the run",
    "failed": "failed",
    "timed_out": "timed out",
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
    if paths and node.status in UNSUCCESSFUL:
        message += f" because {paths[0]} {SENTENCES.get(blockers[0].status, 'did not complete')}"
    elif paths:
        message += f" ({', '.join(paths[:5])}{', …' if len(paths) > 5 else ''})"
    cause = (node.error.message or node.error.code) if node.error is not None else ""
    if cause and node.status != COMPLETED and cause != message:
        message += f": {cause}"
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
        inside = node.child.scope if isinstance(node, WorkflowCall) and node.child is not None else node
        return "children", [child for child in inside.children if child.status not in TERMINAL]
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
    if not node.step.traits.slot or state.live < state.slots:
        return "chosen", []
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
