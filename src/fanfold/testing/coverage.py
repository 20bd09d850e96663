"""Which constructs a schedule really reached, counted on the tree of instances it left behind."""

from __future__ import annotations

from collections import Counter

from fanfold.kernel.nodes import Loop, Map, Node, Scope, State, WorkflowCall
from fanfold.kernel.plan import MAX_NESTING_DEPTH, GroupAction, Plan
from fanfold.testing.faults import FAILURES

CONSTRUCTS = (
    "agent", "function", "command", "workflow", "approval", "group", "timer", "note", "set", "end", "deliver",
    "agent without a slot",
    "depends_on", "when", "for_each", "empty for_each", "for_each over a group", "for_each over a call",
    "repeat", "repeat inside for_each", "repeat of a group", "fold", "nested group", "nested child run",
    "deepest child run", "run.depth refused", "two calls of one workflow", "cached", "templated sets",
    "shared writer", "isolated writer", "scope slots", "scope agents", "child slots", "child agents",
    "child budget", "child timeout", "root budget", "on_failure inline", "on_failure stop",
    "approval timeout", "approval default", "step timeout", "group timeout", "call timeout", "run timeout",
    "retried", "restarted", "not converged", "expression failed", "skipped for a failure",
    "skipped by condition", "skipped for the end",
)  # fmt: skip
SKIPS = {
    "failure": "skipped for a failure",
    "condition": "skipped by condition",
    "ended": "skipped for the end",
}
SITUATIONS = (
    "crash before creation", "crash in agenda", "crash before effect", "crash in resume", "torn tail",
    "late", "late after the end", "answer while paused", "resumed after a pause", "paused for a limit",
    "added", "next turn", "input to a running child", "input after a failure", "closed while running",
    "closed while queued", "closed when over", "refused behind a closed one", "interrupted child resumed",
    "interrupted child closed", "told to end", "asked for by an agent", "asked while paused",
    "held by a limit of a scope", "live child cancelled", "approval by choice", "agreed", "not agreed",
    "run waiting",
    *(f"failure {kind}" for kind in FAILURES),
)  # fmt: skip
"""What faults and constructs lead to together."""


def count_constructs(state: State, reached: Counter[str]) -> None:
    """Count every construct of the tree once per instance."""
    for run in state.runs.values():
        for node in run.nodes.values():
            _count_node(node, reached)
        if run.parent is not None:
            _count_child_limits(run.plan, reached)
            reached["nested child run"] += run.depth > 1
            reached["deepest child run"] += run.depth == MAX_NESTING_DEPTH
        reached["run timeout"] += run.status == "timed_out"
    calls = Counter(id(run.plan) for run in state.runs.values())
    reached["two calls of one workflow"] += max(calls.values()) > 1
    reached["root budget"] += state.ledger.limited


def _count_node(node: Node, reached: Counter[str]) -> None:
    step = node.step
    if isinstance(node, Map):
        reached["for_each"] += 1
        reached["empty for_each"] += node.count == 0
        reached["for_each over a group"] += step.type == "group" and len(node.children) > 1
        reached["for_each over a call"] += step.type == "workflow" and len(node.children) > 1
    elif isinstance(node, Loop):
        reached["repeat"] += node.iteration > 1
        reached["repeat inside for_each"] += isinstance(node.parent, Map)
        reached["repeat of a group"] += step.type == "group"
        reached["fold"] += bool(node.children) and node.children[-1].step is step.fold
    else:
        reached[step.type] += 1
    reached["agent without a slot"] += step.traits.role is not None and not step.traits.slot
    reached["depends_on"] += bool(step.depends_on)
    reached["when"] += step.when is not None
    reached["templated sets"] += step.templated_sets
    if step.posture == "writer" and node.attempt:
        reached[f"{step.workspace_mode} writer"] += 1
    if isinstance(node, Scope):
        assert isinstance(step.action, GroupAction)
        reached["nested group"] += isinstance(node.parent, Scope) and node.parent is not node.run.scope
        reached["scope slots"] += step.action.max_concurrency is not None
        reached["scope agents"] += step.action.max_agents is not None
    _count_end(node, reached)


def _count_end(node: Node, reached: Counter[str]) -> None:
    step, status = node.step, node.status
    if status == "timed_out":
        kind = "call" if isinstance(node, WorkflowCall) else step.type
        reached[f"{kind if kind in ('call', 'group', 'approval') else 'step'} timeout"] += 1
    if status in ("failed", "timed_out"):
        reached[f"on_failure {step.on_failure}"] += 1
        assert node.error is not None
        code = node.error.code
        reached["not converged"] += code == "step.not_converged"
        reached["expression failed"] += code == "expression.failed"
        reached["run.depth refused"] += code == "run.depth"
    elif status == "skipped":
        reached[SKIPS[node.reason]] += 1
    reached["retried"] += node.attempt > 1
    reached["restarted"] += node.execution > 1


def _count_child_limits(plan: Plan, reached: Counter[str]) -> None:
    limits = plan.limits
    reached["child slots"] += limits.max_concurrency is not None
    reached["child agents"] += limits.max_agents is not None
    reached["child budget"] += limits.budget.tokens is not None or limits.budget.micro_usd is not None
    reached["child timeout"] += limits.timeout_ms is not None
