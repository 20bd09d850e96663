"""What a run has, has spent and lacks, as a `budget_event` tells it.

One is recorded when limits hold a run and it pauses, and when somebody raises them. It is read off the state,
so folding the log again finds the same numbers; the kernel itself never looks at it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fanfold.kernel.events import Evidence, Paused, Resumed, WorkflowEvent
from fanfold.kernel.fold.admission import reservation
from fanfold.kernel.lifecycle import READY, TERMINAL
from fanfold.kernel.nodes import LEAF, Node, State

HELD = "held"
RAISED = "raised"
MAX_WAITING = 20
"""How many of the steps that did not fit are named; all are counted."""


def budget_news(state: State, data: WorkflowEvent) -> Evidence | None:
    """The evidence that belongs behind an event that was just folded; None for most."""
    if isinstance(data, Paused) and data.reason == "budget":
        return Evidence("budget_event", {"what": HELD, **_numbers(state), **_waiting(state)})
    if isinstance(data, Resumed) and data.raised is not None:
        raised = msgspec.to_builtins(data.raised)
        return Evidence("budget_event", {"what": RAISED, "raised": raised, **_numbers(state)})
    return None


def _numbers(state: State) -> dict[str, Any]:
    ledger = state.ledger
    return {
        "tokens": {
            "limit": ledger.max_tokens,
            "spent": ledger.spent_tokens,
            "reserved": ledger.reserved_tokens,
        },
        "micro_usd": {
            "limit": ledger.max_micro_usd,
            "spent": None if ledger.unpriced else ledger.spent_micro_usd,
            "reserved": ledger.reserved_micro_usd,
        },
        "agents": {"limit": state.max_agents, "started": state.agents},
        "steps": {"limit": state.max_steps, "made": state.instances},
    }


def _waiting(state: State) -> dict[str, Any]:
    """The steps that did not fit, in plan order, each with the limit it met and what it asked for."""
    found: list[dict[str, Any]] = []
    starved = [entry for entry in state.starved if entry[1].status == READY]
    starved.sort(key=lambda entry: entry[0])
    for _, node, limit in starved[:MAX_WAITING]:
        wants: dict[str, Any] = {"step": node.run.tree_path(node.path), "limit": limit}
        if limit == "budget" and node.step.traits.role is not None:
            wants["tokens"], wants["micro_usd"] = reservation(state, node)
        found.append(wants)
    for _, node in state.oversize[: MAX_WAITING - len(found)]:
        found.append({"step": node.run.tree_path(node.path), "limit": "max_steps"})
    return {"waiting": found, "waiting_total": len(starved) + len(state.oversize)}


def held_back(state: State) -> list[str]:
    """The steps that are ready and not started, whatever holds them: a slot, files, a limit, a pause."""
    waiting: list[Node] = [
        node
        for run in state.runs.values()
        for node in run.nodes.values()
        if node.kind == LEAF and node.status == READY and not node.holding
    ]
    waiting += [node for _, node in state.oversize if node.status not in TERMINAL]
    return [node.run.tree_path(node.path) for node in sorted(waiting, key=lambda node: node.order)]
