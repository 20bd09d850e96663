"""The life of an agent step as its run remembers it: the fields that every `subagent_event` carries.

What follows from the place of the event in its log is left empty when it is written, and put back by whoever
shows it (`completed`): most steps are children of their run, in a session of their own that is named after
them, and share the workspace.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from fanfold.kernel.events import SubagentEvent
from fanfold.kernel.lifecycle import COMPLETED, UNSUCCESSFUL
from fanfold.kernel.nodes import Node
from fanfold.runtime.records.ids import session_id

SHARED = "shared"


def is_agent(node: Node) -> bool:
    return node.step.traits.role is not None


def is_lead(node: Node) -> bool:
    """Whether a person talks to the agent of a step: no subagent, it has them."""
    return is_agent(node) and not node.step.traits.slot


def subagent_event(
    node: Node, word: str, attempt: int, execution: int, task: str, **more: Any
) -> SubagentEvent:
    """A word about one attempt of an agent step; `completed` is called `finished` there."""
    step = node.step
    return SubagentEvent(
        node.path,
        "finished" if word == COMPLETED else word,
        attempt,
        execution,
        parent_id=session_of(node.run.nodes[step.parent]) if step.parent else "",
        subagent_id=child_name(node.path) if node.run.plan.open else "",
        role=step.traits.role or "",
        task=task,
        depth=node.run.depth + depth_of(node) if step.parent else 0,
        workspace="" if step.workspace_mode == SHARED else step.workspace_mode,
        **more,
    )


def completed(event: SubagentEvent, run_id: str, depth: int) -> SubagentEvent:
    """The event with everything that was left out because it follows from its run."""
    session = event.session_id or session_id(run_id, event.step, max(1, event.attempt))
    return replace(
        event,
        parent_id=event.parent_id or run_id,
        subagent_id=event.subagent_id or session,
        session_id=session,
        depth=event.depth or depth + 1,
        workspace=event.workspace or SHARED,
    )


def home_of(node: Node, attempt: int) -> str:
    """The session whose workspace a step works in: its own, unless it is the next turn of one that did not
    complete, which goes on in what that one left.
    """
    before = turn_before(node) if node.step.after and attempt == 1 else None
    if before is None or before.status not in UNSUCCESSFUL or node.step.workspace_mode != "isolated":
        return session_id(node.run.id, node.path, attempt)
    return home_of(before, max(1, before.attempt))


def session_of(node: Node) -> str:
    """The session of a step's latest attempt."""
    return session_id(node.run.id, node.path, max(1, node.attempt))


def depth_of(node: Node) -> int:
    """How many agents deep a step is: 1, unless an agent asked for it."""
    depth = 1
    while node.step.parent:
        node = node.run.nodes[node.step.parent]
        depth += 1
    return depth


def child_name(path: str) -> str:
    """The child of an open run that a step is a turn of.

    >>> child_name("scout#2")
    'scout'
    """
    return path.partition("#")[0]


def child_of(node: Node) -> tuple[str, str]:
    """The address of the first turn of the child of an open run that a step is, or is inside of."""
    root = node.run
    while root.call is not None and root.parent is not None:
        node, root = root.call, root.parent
    return root.id, child_name(node.path.partition("/")[0].partition("[")[0])


def turn_before(node: Node) -> Node | None:
    """The step whose conversation an agent step goes on with."""
    before = node.step.traits.continues
    if before is None:
        return None
    above = node.parent.path if node.parent is not None else ""
    return node.run.nodes[f"{above}/{before}" if above else before]
