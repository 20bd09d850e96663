"""How a step stands, decided once for every view.

The log of a paused run ends while steps are under way: they were stopped, and begin again when somebody goes
on. The kernel learns that when the run is resumed; who looks before is told the same.
"""

from __future__ import annotations

from fanfold.kernel.lifecycle import COMPLETED, INTERRUPTED, PAUSED, PENDING, READY, RUNNING, SKIPPED, WAITING
from fanfold.kernel.nodes import CALL, LEAF, LOOP, MAP, Node
from fanfold.kernel.plan import Step
from fanfold.runtime.hosting.run_tree import RunTree


def is_interrupted(tree: RunTree, node: Node) -> bool:
    """Whether a pause stopped what this step was doing."""
    return node.status == RUNNING and tree.root.status == PAUSED


def status_of(tree: RunTree, node: Node) -> str:
    """The status of a step; nothing runs in a run that is paused."""
    return WAITING if is_interrupted(tree, node) else node.status


def reason_of(tree: RunTree, node: Node) -> str:
    """What there is to say about that status, in one word; empty for most."""
    return INTERRUPTED if is_interrupted(tree, node) else node.reason


def stopped_at(tree: RunTree) -> int | None:
    """When the time of a run stopped that is paused; None where it goes on, or is over."""
    return tree.state.now if tree.root.status == PAUSED else None


def may_write(step: Step, patterns: tuple[str, ...]) -> list[str]:
    """What a step may change: of its set nothing, where the set only keeps others from changing it."""
    return [] if step.traits.workspace == "claims" else list(patterns)


KINDS = {LEAF: "step", MAP: "map", LOOP: "loop", CALL: "run"}
"""What an instance is drawn as and listed as; any other holds the steps of a scope."""
MARKS = {
    PENDING: ("·", "."),
    READY: ("·", "."),
    RUNNING: ("▸", ">"),
    WAITING: ("?", "?"),
    COMPLETED: ("✓", "+"),
    "failed": ("✗", "x"),
    "timed_out": ("✗", "x"),
    "cancelled": ("⊘", "/"),
    SKIPPED: ("∅", "-"),
}
"""Status → the mark in front of a row, and the same in ASCII."""
