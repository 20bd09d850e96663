"""The life of a step and of a run, as tables.

`STEP_TRANSITIONS` and `RUN_TRANSITIONS` say, for a status and the word of the event that arrives, which
statuses may follow. The fold refuses anything else, the documentation's diagrams are drawn from the same
tables, and the simulator has to reach every row. Terminal is final: only `closed` still comes then.
"""

from __future__ import annotations

from typing import Final

PENDING: Final = "pending"
READY: Final = "ready"
RUNNING: Final = "running"
WAITING: Final = "waiting"
COMPLETED: Final = "completed"
FAILED: Final = "failed"
SKIPPED: Final = "skipped"
CANCELLED: Final = "cancelled"
TIMED_OUT: Final = "timed_out"

PAUSED: Final = "paused"
PARTIAL: Final = "partial"

TERMINAL: Final = frozenset((COMPLETED, FAILED, SKIPPED, CANCELLED, TIMED_OUT))
RUN_TERMINAL: Final = frozenset((COMPLETED, PARTIAL, FAILED, CANCELLED, TIMED_OUT))
UNSUCCESSFUL: Final = frozenset((FAILED, CANCELLED, TIMED_OUT))
"""Statuses that count as a failure for dependents. A skip counts by its reason instead."""

BACK_OFF: Final = "back-off"
"""The `reason` of a step that waits for its next attempt."""
HELD: Final = "held"
"""The `reason` of a step that waits for files which a run of another process works on."""
ASKED: Final = "asked"
"""The `reason` of a step that began and waits for a person to agree to the rest of its work."""
ENDED: Final = "end"
"""Why a run winds up that a step of its plan ended."""
INTERRUPTED: Final = "interrupted"
"""The `reason` of a step of an open run that lost its process and waits for a person to take it up."""

STEP_STATUSES: Final = (
    PENDING, READY, RUNNING, WAITING, COMPLETED, FAILED, SKIPPED, CANCELLED, TIMED_OUT,
)  # fmt: skip
RUN_STATUSES: Final = (
    PENDING, RUNNING, WAITING, PAUSED, COMPLETED, PARTIAL, FAILED, CANCELLED, TIMED_OUT,
)  # fmt: skip

STEP_TRANSITIONS: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    # Not yet admitted: dependencies, conditions and lists are settled first.
    (PENDING, "queued"): (PENDING, READY, RUNNING),  # added to an open run
    (PENDING, "decided"): (READY, RUNNING, PENDING),
    (PENDING, "skipped"): (SKIPPED,),
    (PENDING, "failed"): (FAILED,),
    (PENDING, "cancelled"): (CANCELLED,),
    # Admitted: waits for a slot, agents, budget and freedom from conflicts.
    (READY, "started"): (RUNNING,),
    (READY, "waiting"): (WAITING,),
    (READY, "completed"): (COMPLETED,),
    (READY, "failed"): (FAILED,),
    (READY, "held"): (WAITING,),  # a run of another process works on the same files
    (READY, "cancelled"): (CANCELLED,),
    (READY, "skipped"): (SKIPPED,),  # a step ended the run
    # Under way. A second `started` is a new execution after a crash. In an open run who lost its process
    # gives its place back and waits for a person, who may not want to pay for it again.
    (RUNNING, "started"): (RUNNING,),
    (RUNNING, "stopping"): (RUNNING,),
    (RUNNING, "held"): (WAITING,),  # while nobody drove it, another run came to these files
    (RUNNING, "interrupted"): (RUNNING, WAITING),
    (RUNNING, "resumed"): (RUNNING, WAITING),
    (RUNNING, "completed"): (COMPLETED,),
    (RUNNING, "failed"): (FAILED, WAITING),
    (RUNNING, "timed_out"): (TIMED_OUT, WAITING),
    (RUNNING, "cancelled"): (CANCELLED,),
    (RUNNING, "decided"): (RUNNING,),
    (RUNNING, "asked"): (WAITING, RUNNING),  # its work is prepared, and a person has to agree to it
    # Waiting for a person, for the end of a back-off, or for files that another run works on.
    (WAITING, "resume_requested"): (READY,),
    (WAITING, "retrying"): (WAITING,),
    (WAITING, "woke"): (READY,),
    (WAITING, "freed"): (READY,),
    (WAITING, "agreed"): (RUNNING,),
    (WAITING, "completed"): (COMPLETED,),
    (WAITING, "failed"): (FAILED,),
    (WAITING, "timed_out"): (TIMED_OUT,),
    (WAITING, "cancelled"): (CANCELLED,),
    (WAITING, "skipped"): (SKIPPED,),
    # Over, and nothing will be added behind it.
    **{(status, "closed"): (status,) for status in (COMPLETED, FAILED, SKIPPED, CANCELLED, TIMED_OUT)},
}

RUN_TRANSITIONS: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    (PENDING, "forked"): (PENDING,),
    (PENDING, "started"): (RUNNING,),
    (PENDING, "created"): (RUNNING,),  # a child run begins with its log
    (PENDING, "resumed"): (PENDING,),  # its owner died before it began
    (PENDING, "cancel_requested"): (RUNNING,),
    (RUNNING, "decided"): (RUNNING,),
    (RUNNING, "woke"): (RUNNING,),
    (RUNNING, "folded"): (RUNNING,),
    (RUNNING, "pause_requested"): (RUNNING,),
    (RUNNING, "paused"): (PAUSED,),
    (RUNNING, "resumed"): (RUNNING,),
    (RUNNING, "cancel_requested"): (RUNNING,),
    (RUNNING, "added"): (RUNNING,),
    (RUNNING, "close_requested"): (RUNNING,),
    (RUNNING, "resume_requested"): (RUNNING,),
    (RUNNING, "end_requested"): (RUNNING,),
    (RUNNING, "refused"): (RUNNING,),
    (RUNNING, "finished"): (COMPLETED, PARTIAL, FAILED, CANCELLED, TIMED_OUT),
    (PAUSED, "resumed"): (RUNNING,),
    (PAUSED, "cancel_requested"): (RUNNING,),  # of this run, or of one below it
    (PAUSED, "added"): (PAUSED,),
    (PAUSED, "close_requested"): (PAUSED,),
    (PAUSED, "resume_requested"): (PAUSED,),
    (PAUSED, "end_requested"): (PAUSED,),
    (PAUSED, "refused"): (PAUSED,),
    # The answer of a person may lead to a question, and may be the last thing that was missing.
    (PAUSED, "decided"): (PAUSED,),
    (PAUSED, "finished"): (COMPLETED, PARTIAL, FAILED),
}

RUN_PROJECTIONS: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    (RUNNING, "only people can go on"): (WAITING,),
    (WAITING, "somebody went on"): (RUNNING,),
}
"""`waiting` is how a running run shows itself; no event is needed for it, and none is refused in it."""

EVENT_WORDS: Final[dict[str, str]] = {"finished": COMPLETED, "input": "queued"}
"""Words of `subagent_event` that mean the same as a step's word."""
