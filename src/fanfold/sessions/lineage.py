"""What a parent's log says about its children: the fold of its `subagent_event`s.

Rules
* The log alone decides what is known; a live handle only says whether anyone is still at it. A child that
  was not over when the log ends and that nobody holds is `detached`: not lost, not done, and nothing that
  happened to it is made up. `detached` is an answer to a question, never an event.
* Statuses are those of sessions; `_STATUS` says which word of an event means which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct, structs

from fanfold.kernel.events import Failure, SubagentEvent, Usage

QUEUED, RUNNING, COMPLETED, FAILED = "queued", "running", "completed", "failed"
TIMED_OUT, CANCELLED, CLOSED, DETACHED = "timed_out", "cancelled", "closed", "detached"
OVER = frozenset({COMPLETED, FAILED, TIMED_OUT, CANCELLED, CLOSED})
RESTARTABLE = OVER - {CLOSED}

_STATUS = {
    "queued": QUEUED,
    "started": RUNNING,
    "retrying": RUNNING,
    "finished": COMPLETED,
    "failed": FAILED,
    "timed_out": TIMED_OUT,
    "cancelled": CANCELLED,
    "closed": CLOSED,
}


class Child(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One child of a session, as its parent remembers it."""

    subagent_id: str
    parent_id: str
    session_id: str
    role: str
    task: str
    depth: int
    status: str
    workspace: str = ""
    summary: str = ""
    error: Failure | None = None
    usage: Usage | None = None
    attempt: int = 0
    execution: int = 0

    @property
    def is_over(self) -> bool:
        return self.status in OVER


def fold(events: Iterable[SubagentEvent]) -> dict[str, Child]:
    """The children of a session in the order they were spawned."""
    children: dict[str, Child] = {}
    for event in events:
        if not event.subagent_id:
            continue  # a step of a run: the kernel's business
        before = children.get(event.subagent_id)
        status = _STATUS.get(event.status)
        if status is None:  # an input changes nothing by itself
            status = QUEUED if before is None else before.status
        children[event.subagent_id] = Child(
            subagent_id=event.subagent_id,
            parent_id=event.parent_id,
            session_id=event.session_id,
            role=event.role,
            task=event.task,
            depth=event.depth,
            status=status,
            workspace=event.workspace,
            summary=event.summary,
            error=event.error,
            usage=event.usage,
            attempt=event.attempt,
            execution=event.execution,
        )
    return children


def project(child: Child, is_held: Callable[[str], bool]) -> Child:
    """The child as a query shows it: `detached` when it is not over and nobody holds it."""
    if child.is_over or is_held(child.subagent_id):
        return child
    return structs.replace(child, status=DETACHED)


def by_status(children: Sequence[Child]) -> dict[str, list[Child]]:
    """Buckets by status, each in the order given; statuses that nobody has are left out."""
    buckets: dict[str, list[Child]] = {}
    for child in children:
        buckets.setdefault(child.status, []).append(child)
    return buckets
