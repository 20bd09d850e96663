"""The children of an open run as every surface shows them: who, doing what, and how it stands.

Rules
* The log alone decides what is known; whether the run has a live owner only says whether anybody is at it. A
  child that was not over when the log ends, and that nobody has, is `detached`: not lost, not done.
  `detached` is an answer to a question, never an event.
* A child is all its turns: its status and what it said are those of the last one, its usage that of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path

from msgspec import Struct

from fanfold.kernel.events import NOTHING_SPENT, Failure
from fanfold.kernel.lifecycle import (
    CANCELLED,
    COMPLETED,
    FAILED,
    RUNNING,
    SKIPPED,
    TERMINAL,
    TIMED_OUT,
    WAITING,
)
from fanfold.kernel.nodes import Node
from fanfold.runtime.hosting.children import is_interrupted, no_subagent, waiting_proposal
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.records.evidence import ChangedPath, ConflictPath, ViolatedPath
from fanfold.runtime.records.subagents import child_name, depth_of, home_of, is_agent, is_lead, session_of
from fanfold.runtime.views.runs.rows import FailureDocument, StepUsage, failure_document, step_usage

QUEUED, CLOSED, DETACHED = "queued", "closed", "detached"
OVER = frozenset({COMPLETED, FAILED, TIMED_OUT, CANCELLED, SKIPPED, CLOSED})
LIVE = frozenset({QUEUED, RUNNING})


class Subagent(Struct, frozen=True, kw_only=True):
    """One child of an open run."""

    id: str
    run_id: str
    """The open run it is a step of."""
    role: str
    task: str
    status: str
    summary: str
    error: FailureDocument | None
    usage: StepUsage | None
    depth: int
    turns: int
    session_id: str
    permission: str
    merge: str
    workspace: str | None
    """The folder it works in, or what was kept of it."""
    changes: list[ChangedPath] | None
    """What its last turn changed; None for one that shares the project, where nobody can tell."""
    proposal: str | None
    violations: Sequence[ViolatedPath]
    """At most 20."""
    conflicts: Sequence[ConflictPath]
    """At most 20."""

    @property
    def left_something(self) -> bool:
        """Whether one that is over waits for a person: to be told more, closed, or applied."""
        kept = self.status != COMPLETED and self.workspace is not None and self.changes is not None
        return self.status != CLOSED and (kept or self.proposal is not None)


def find_subagents(tree: RunTree, project: Path, *, owned: bool) -> list[Subagent]:
    """The children in the order they were added. `owned`: whether a live process drives the run."""
    return [_subagent(tree, project, name, turns, owned) for name, turns in _turns_by_child(tree).items()]


def find_ended_turns(tree: RunTree, project: Path) -> list[Subagent]:
    """The children as they stood at the end of each turn that is over: one that was told more has several."""
    found: list[Subagent] = []
    for name, turns in _turns_by_child(tree).items():
        over = list(takewhile(lambda turn: turn.status in TERMINAL, turns))
        found += (
            _subagent(tree, project, name, over[:count], owned=True) for count in range(1, len(over) + 1)
        )
    return found


def _turns_by_child(tree: RunTree) -> dict[str, list[Node]]:
    children: dict[str, list[Node]] = {}
    for node in tree.root.scope.children:
        if is_agent(node) and not is_lead(node):
            children.setdefault(child_name(node.path), []).append(node)
    return children


def find_subagent(tree: RunTree, project: Path, name: str, *, owned: bool) -> Subagent:
    """One child; raises `subagent.not_found` for a name that nobody has."""
    turns = [node for node in tree.root.scope.children if is_agent(node) and child_name(node.path) == name]
    if not turns:
        raise no_subagent(name)
    return _subagent(tree, project, name, turns, owned)


def by_status(children: Iterable[Subagent]) -> dict[str, list[Subagent]]:
    """Buckets by status, each in the order given; statuses that nobody has are left out."""
    buckets: dict[str, list[Subagent]] = {}
    for child in children:
        buckets.setdefault(child.status, []).append(child)
    return buckets


def _subagent(tree: RunTree, project: Path, name: str, turns: Sequence[Node], owned: bool) -> Subagent:
    # Input that waits behind a turn changes nothing about the child: the turn that runs is what it does.
    last = next((turn for turn in turns if turn.status not in TERMINAL), turns[-1])
    spent = [
        usage for turn in turns if (usage := tree.memory.usage.get((turn.run.id, turn.path))) is not None
    ]
    address = (last.run.id, last.path)
    error = last.error if last.status in TERMINAL else None
    isolated = last.step.workspace_mode == "isolated"
    return Subagent(
        id=name,
        run_id=tree.root.id,
        role=last.step.traits.role or "",
        task=turns[0].step.description,
        status=_status(last, owned),
        summary=_summary(tree, last, error),
        error=failure_document(error, last),
        usage=step_usage(sum(spent, NOTHING_SPENT)) if spent else None,
        depth=depth_of(last),
        turns=sum(turn.attempt > 0 for turn in turns),
        session_id=session_of(last),
        permission=tree.frozen(turns[0]).permission,
        merge=last.step.merge,
        workspace=_folder(project, last) if isolated else str(project),
        changes=_changes(tree, last) if isolated or last.step.posture == "read_only" else None,
        proposal=waiting_proposal(tree, last),
        violations=tree.memory.violations.get(address, ()),
        conflicts=tree.memory.conflicts.get(address, ()),
    )


def _status(node: Node, owned: bool) -> str:
    if node.closed:
        return CLOSED
    if node.status in TERMINAL:
        return node.status
    if not owned or is_interrupted(node):
        return DETACHED
    return RUNNING if node.status in (RUNNING, WAITING) else QUEUED


def _summary(tree: RunTree, node: Node, error: Failure | None) -> str:
    if error is not None:
        return error.message or error.code
    return tree.values.summary(node) if node.status == COMPLETED else ""


def _changes(tree: RunTree, node: Node) -> list[ChangedPath]:
    rows = tree.memory.changes.get(node.run.id, [])
    return [ChangedPath(row.path, row.kind) for row in rows if row.step == node.path]


def _folder(project: Path, node: Node) -> str | None:
    if node.closed or node.status == COMPLETED:
        return None  # thrown away, or about to be
    folder = project / ".fanfold" / "subagents" / home_of(node, max(1, node.attempt)) / "workspace"
    return str(folder) if folder.is_dir() else None
