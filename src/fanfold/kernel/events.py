"""What happened: the only things that ever change a run.

Rules
* An event is a fact in the past tense, decided by the kernel or reported from outside. Folding the
  events of a run tree in order gives its state; nothing else does.
* Whatever is not deterministic (time, ids, results, values of expressions, answers of people) is in
  here, so that folding again never asks the world.
* Values live in the blob store; events carry their hash and a short summary, so an event's size does
  not depend on what an agent wrote.
* The log holds one envelope shape for every type. `log_line` writes it, `read_line` reads it back.

Three more types (`session_event`, `budget_event`, `workspace_event`) are evidence for people and for
other layers: they are stored in the same envelope and the kernel folds over them without effect.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from msgspec import Struct, field, structs

from fanfold.errors import BugError
from fanfold.kernel.plan import Plan, Step

LOG_VERSION = 1

FAILURE_CLASSES = (
    "timeout",
    "transport",
    "rate_limit",
    "quota",
    "invalid_output",
    "agent",
    "tool",
    "conflict",
    "violation",
    "permission",
    "budget",
    "cancelled",
    "internal",
)


class Failure(Struct, frozen=True, omit_defaults=True, gc=False):
    """Why a step or run did not succeed; a type of its own, never an output."""

    kind: str = field(name="class")
    code: str
    message: str = ""
    hint: str = ""
    retryable: bool = True
    step: str = ""
    attempt: int = 0


MOST_SPENT = 10**12
"""Tokens, or millionths of a dollar, that one attempt can have spent: a million such can still be added."""


class Usage(Struct, frozen=True, omit_defaults=True, gc=False):
    """What an attempt spent. An unknown price is None, never 0, and one unknown makes a sum unknown.

    >>> sum([Usage(1, 2, 10), Usage(1, 2, None)], NOTHING_SPENT)
    Usage(input_tokens=2, output_tokens=4, micro_usd=None)
    """

    input_tokens: int = 0
    output_tokens: int = 0
    micro_usd: int | None = None

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        price = None
        if self.micro_usd is not None and other.micro_usd is not None:
            price = self.micro_usd + other.micro_usd
        return Usage(self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens, price)

    def bounded(self) -> Usage:
        """What a program or a server says was spent, as it can be counted."""
        read, written, price = (min(max(0, one or 0), MOST_SPENT) for one in structs.astuple(self))
        return Usage(read, written, None if self.micro_usd is None else price)


NOTHING_SPENT = Usage(0, 0, 0)
"""Where sums begin."""


class Estimate(Struct, frozen=True, omit_defaults=True, gc=False):
    """What one attempt of a role is expected to spend before there is history."""

    tokens: int = 4_000
    micro_usd: int = 0


UNBOUNDED = 1 << 53


class Settings(Struct, frozen=True, omit_defaults=True, gc=False):
    """The effective limits of a run tree, after flags, recipe and configuration were weighed."""

    max_concurrency: int = 4
    max_agents: int = 64
    max_steps: int = 1_000
    timeout_ms: int | None = 1_800_000
    budget_tokens: int | None = None
    budget_micro_usd: int | None = None
    estimates: dict[str, Estimate] = field(default_factory=dict)


class Raised(Struct, frozen=True, omit_defaults=True, gc=False):
    """New limits given on resume. None leaves a limit as it was."""

    max_agents: int | None = None
    max_steps: int | None = None
    budget_tokens: int | None = None
    budget_micro_usd: int | None = None


def _word_of(name: str) -> str:
    """`PauseRequested` -> `pause_requested`."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


class WorkflowEvent(Struct, frozen=True, omit_defaults=True, gc=False, tag=_word_of, tag_field="kind"):
    """A fact about a run as a whole, or a value decided once. One struct for each kind, told apart by the
    word `kind` in the stored data."""

    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)


class Created(WorkflowEvent, frozen=True, kw_only=True):
    """The first event of a run's log. That of a root holds everything the tree will ever need; that of a
    child run names its workflow."""

    version: int = 1
    """Of the log's format. One that does not say is of the first; whoever raises `LOG_VERSION` writes it."""
    plan: Plan | None = None
    workflow: str = ""
    settings: Settings | None = None
    inputs: str | None = None
    frozen: str | None = None
    """Blob of what the host fixed for the whole tree: roles, back ends, script, permission."""
    parent_run_id: str | None = None
    epoch: int = 0

    def limits(self) -> Settings:
        """What bounds the tree: an open run has slots and a budget, everything else is its children's."""
        settings = self.settings or Settings()
        if self.plan is None or not self.plan.open:
            return settings
        return msgspec.structs.replace(settings, max_agents=UNBOUNDED, max_steps=UNBOUNDED, timeout_ms=None)


class Forked(WorkflowEvent, frozen=True):
    reason: str
    kept: tuple[str, ...] = ()
    """The blobs of the steps that are reused."""


class Started(WorkflowEvent, frozen=True):
    pass


class Decided(WorkflowEvent, frozen=True, kw_only=True):
    """What one expression of one step evaluated to."""

    step: str
    what: str
    value: bool | int | None = None
    items: str | None = None
    read_set: tuple[str, ...] | None = None
    write_set: tuple[str, ...] | None = None
    error: Failure | None = None


class Woke(WorkflowEvent, frozen=True):
    """Only time has passed."""


class PauseRequested(WorkflowEvent, frozen=True):
    reason: str = "requested"
    error: Failure | None = None
    """Why, when it was neither a person nor a budget."""


class Paused(WorkflowEvent, frozen=True):
    reason: str


class Resumed(WorkflowEvent, frozen=True):
    epoch: int
    raised: Raised | None = None
    alive_at: int = 0
    """When the last owner was known to live, where it did not say that it left."""


class CancelRequested(WorkflowEvent, frozen=True):
    reason: str = ""


class Added(WorkflowEvent, frozen=True, kw_only=True):
    """A step was appended to an open run."""

    step: Step
    frozen: str | None = None
    """Blob of what the host fixed for this step alone: its role, back end, script, permission."""
    key: str = ""
    """Whoever asked for it; asking again with the same key adds nothing."""


class CloseRequested(WorkflowEvent, frozen=True):
    """A step of an open run, and the turns queued behind it, are to end."""

    step: str


class ResumeRequested(WorkflowEvent, frozen=True):
    """A step of an open run that lost its process is to go on."""

    step: str


class EndRequested(WorkflowEvent, frozen=True):
    """Nothing more will be added to an open run: it ends with the last of its steps."""


class Refused(WorkflowEvent, frozen=True):
    """What somebody asked of the run was not possible any more; evidence for whoever asked."""

    request: int
    error: Failure


class Folded(WorkflowEvent, frozen=True):
    """The summary of a phase was published; evidence."""

    step: str


class Finished(WorkflowEvent, frozen=True, kw_only=True):
    status: str
    output: str | None = None
    error: Failure | None = None


class StepEvent(Struct, frozen=True, omit_defaults=True, gc=False):
    """A transition of a step that no other event type records."""

    step: str
    status: str
    attempt: int = 0
    execution: int = 0
    output: str | None = None
    summary: str = ""
    error: Failure | None = None
    usage: Usage | None = None
    reason: str = ""
    retry_at: int = 0
    due_at: int = 0
    """waiting: when a timer ends it."""
    child_run_id: str = ""
    cached: bool = False
    late: bool = False


class SubagentEvent(Struct, frozen=True, omit_defaults=True, gc=False):
    """The life of one child session, as its parent remembers it.

    Every field is always shown. What follows from the rest of the envelope or from the output is not
    written; `runtime.views.shown` puts it back.
    """

    step: str
    status: str
    attempt: int = 0
    execution: int = 0
    output: str | None = None
    summary: str = ""
    error: Failure | None = None
    usage: Usage | None = None
    reason: str = ""
    retry_at: int = 0
    late: bool = False
    parent_id: str = ""
    subagent_id: str = ""
    session_id: str = ""
    role: str = ""
    task: str = ""
    depth: int = 0
    workspace: str = ""


class Evidence(Struct, frozen=True, omit_defaults=True):
    """A stored fact that is not the kernel's business (session, budget, workspace events)."""

    type: str
    data: Any
    """A struct of whoever records it, or the same as plain JSON when it is read again."""


Data: TypeAlias = WorkflowEvent | StepEvent | SubagentEvent | Evidence


class Event(Struct, frozen=True, gc=False):
    """A fact, the run it belongs to, and when it was recorded (milliseconds since the epoch)."""

    run: str
    at: int
    data: Data


class Envelope(Struct, frozen=True):
    """The stored form: an event with its place in its log and in the tree of runs."""

    log: str
    seq: int
    tree_seq: int
    at: int
    type: str
    data: Any
    run_id: str
    root_run_id: str
    parent_run_id: str | None
    depth: int
    path: str
    epoch: int


_WorkflowKinds: TypeAlias = (
    Created
    | Forked
    | Started
    | Decided
    | Woke
    | PauseRequested
    | Paused
    | Resumed
    | CancelRequested
    | Added
    | CloseRequested
    | ResumeRequested
    | EndRequested
    | Refused
    | Folded
    | Finished
)
_TYPES: dict[str, Any] = {
    "workflow_event": _WorkflowKinds,
    "step_event": StepEvent,
    "subagent_event": SubagentEvent,
}
EVIDENCE_TYPES = ("session_event", "budget_event", "workspace_event")

_encoder = msgspec.json.Encoder()


def type_name(data: Data) -> str:
    """The envelope's `type` word for an event's data."""
    if isinstance(data, StepEvent):
        return "step_event"
    if isinstance(data, SubagentEvent):
        return "subagent_event"
    if isinstance(data, WorkflowEvent):
        return "workflow_event"
    return data.type


def log_line(envelope: Envelope) -> bytes:
    """One line of a log, as stored and as `fanfold logs --json` prints it."""
    return _encoder.encode(envelope)


def read_line(line: bytes) -> tuple[Envelope, Event]:
    """The envelope of a stored line and the event inside it.

    >>> event = Event("r1", 5, StepEvent("gather", "completed", 1, 1))
    >>> line = log_line(Envelope("r1", 1, 1, 5, "step_event", event.data, "r1", "r1", None, 0, "", 1))
    >>> read_line(line)[1] == event
    True
    """
    envelope = msgspec.json.decode(line, type=Envelope)
    return envelope, event_of(envelope)


def event_of(envelope: Envelope) -> Event:
    """The event in an envelope whose `data` is plain JSON, as stores give it."""
    if envelope.type in EVIDENCE_TYPES:
        return Event(envelope.run_id, envelope.at, Evidence(envelope.type, envelope.data))
    shape = _TYPES.get(envelope.type)
    if shape is None:
        raise BugError("log.unknown_type", f"the log holds an event of unknown type {envelope.type!r}")
    return Event(envelope.run_id, envelope.at, msgspec.convert(envelope.data, shape))
