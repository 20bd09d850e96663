"""Events: the facts in the log of a run. Only an event changes a run.

Rules
* An event is a fact in the past tense, decided by the kernel or reported from outside. Only folding the
  events of a run tree, in order, gives its state.
* Events contain everything that is not deterministic: time, ids, results, values of expressions, answers
  of people. So folding a log again needs no other input.
* Values live in the blob store. Events carry their hash and a short summary, so the size of an event does
  not depend on the output of an agent.
* All events in the log have the same envelope. `log_line` writes it, `read_line` reads it.

Three more types (`session_event`, `budget_event`, `workspace_event`) are evidence for people and for
other layers. They are stored in the same envelope; folding them has no effect.
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


UNCOUNTED = frozenset(("transport", "rate_limit"))
"""Failure classes after which a retry does not count as another agent."""


class Failure(Struct, frozen=True, omit_defaults=True, gc=False):
    """Why a step or run did not succeed. A failure is never an output."""

    kind: str = field(name="class")
    code: str
    message: str = ""
    hint: str = ""
    retryable: bool = True
    step: str = ""
    attempt: int = 0
    subject: str = ""
    """The shared resource that cannot be used, as in `WaitOpened`; empty: only this step is affected."""
    until: int = 0
    """With a subject: when it can be used again, in milliseconds since the epoch; 0: unknown."""


MOST_SPENT = 10**12
"""The most tokens, or micro-dollars, that one attempt can report; a million of these still add up."""


class Usage(Struct, frozen=True, omit_defaults=True, gc=False):
    """Spending of an attempt. An unknown price is None, never 0; it makes a sum unknown, too.

    >>> sum([Usage(1, 2, 10), Usage(1, 2, None)], NOTHING_SPENT)
    Usage(input_tokens=2, output_tokens=4, micro_usd=None, cached_tokens=0)
    """

    input_tokens: int = 0
    output_tokens: int = 0
    micro_usd: int | None = None
    cached_tokens: int = 0
    """The part of the input that the provider read from its cache. `micro_usd` includes its price."""

    @property
    def tokens(self) -> int:
        """The tokens that count for a budget: uncached input, and output."""
        return self.input_tokens - self.cached_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        price = None
        if self.micro_usd is not None and other.micro_usd is not None:
            price = self.micro_usd + other.micro_usd
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            price,
            self.cached_tokens + other.cached_tokens,
        )

    def beyond(self, counted: Usage) -> Usage:
        """Return the part of this sum that is not in `counted`, an earlier value of the same sum.

        >>> Usage(5, 2, 10).beyond(Usage(4, 2, 8))
        Usage(input_tokens=1, output_tokens=0, micro_usd=2, cached_tokens=0)
        """
        if not (counted.input_tokens or counted.output_tokens or counted.micro_usd):
            return self  # its price may be unknown
        read = max(0, self.input_tokens - counted.input_tokens)
        written = max(0, self.output_tokens - counted.output_tokens)
        cached = min(read, max(0, self.cached_tokens - counted.cached_tokens))
        price: int | None = 0
        if self.micro_usd is not None:
            price = max(0, self.micro_usd - (counted.micro_usd or 0))
        elif read or written:
            price = None
        return Usage(read, written, price, cached)

    def bounded(self) -> Usage:
        """Return usage that an external program or server reported, with each number in the valid range."""
        read, written, price, cached = (int(min(max(0, n or 0), MOST_SPENT)) for n in structs.astuple(self))
        return Usage(read, written, None if self.micro_usd is None else price, min(read, cached))


NOTHING_SPENT = Usage(0, 0, 0)
"""The start value of sums."""


class Estimate(Struct, frozen=True, omit_defaults=True, gc=False):
    """Expected spending of one attempt of a role without history."""

    tokens: int = 4_000
    micro_usd: int = 0


UNBOUNDED = 1 << 53


class Settings(Struct, frozen=True, omit_defaults=True, gc=False):
    """The effective limits of a run tree, resolved from flags, recipe and configuration."""

    max_concurrency: int = 4
    max_agents: int = 64
    max_steps: int = 1_000
    timeout_ms: int | None = 1_800_000
    budget_tokens: int | None = None
    budget_micro_usd: int | None = None
    estimates: dict[str, Estimate] = field(default_factory=dict)
    outage_ms: int | None = None
    """How long a provider outage may last before the run pauses.

    None: a log from a version without waits, in which each retry counts as an agent.
    """


class LimitsRaised(Struct, frozen=True, omit_defaults=True, gc=False):
    """New limits of a resume. None leaves a limit unchanged."""

    max_agents: int | None = None
    max_steps: int | None = None
    budget_tokens: int | None = None
    budget_micro_usd: int | None = None


class WorkflowEvent(Struct, frozen=True, omit_defaults=True, gc=False, tag_field="kind"):
    """A fact about a run as a whole, or the value of an expression. `kind` names the struct in the log."""

    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)


class RunCreated(WorkflowEvent, frozen=True, kw_only=True, tag="created"):
    """The first event of a run's log.

    In a root run it holds everything the tree needs. In a child run it names the workflow.
    """

    version: int = 1
    """Version of the log format. Without this field it is 1; a change that raises `LOG_VERSION` writes it."""
    plan: Plan | None = None
    workflow: str = ""
    settings: Settings | None = None
    inputs: str | None = None
    frozen: str | None = None
    """Blob of the settings that the host fixed for the whole tree: roles, back ends, script, permission."""
    parent_run_id: str | None = None
    epoch: int = 0

    def limits(self) -> Settings:
        """Return the limits of the tree.

        An open run limits only slots and budget; its children have limits of their own.
        """
        settings = self.settings or Settings()
        if self.plan is None or not self.plan.open:
            return settings
        return msgspec.structs.replace(settings, max_agents=UNBOUNDED, max_steps=UNBOUNDED, timeout_ms=None)


class RunForked(WorkflowEvent, frozen=True, tag="forked"):
    """The run is a fork of another run."""

    reason: str
    kept: tuple[str, ...] = ()
    """The blobs of the steps that are reused."""


class RunStarted(WorkflowEvent, frozen=True, tag="started"):
    pass


class ValueDecided(WorkflowEvent, frozen=True, kw_only=True, tag="decided"):
    """The value of one expression of one step."""

    step: str
    what: str
    value: bool | int | None = None
    items: str | None = None
    read_set: tuple[str, ...] | None = None
    write_set: tuple[str, ...] | None = None
    error: Failure | None = None


class TimerFired(WorkflowEvent, frozen=True, tag="woke"):
    """Time has passed; nothing else changed."""


class PauseRequested(WorkflowEvent, frozen=True, tag="pause_requested"):
    reason: str = "requested"
    error: Failure | None = None
    """The cause, if neither a person nor a budget requested the pause."""


class RunPaused(WorkflowEvent, frozen=True, tag="paused"):
    reason: str


class ExecutionRef(Struct, frozen=True, gc=False):
    """The address of one execution of a step."""

    run: str
    step: str
    attempt: int
    execution: int


class RunResumed(WorkflowEvent, frozen=True, tag="resumed"):
    """A run has a new owner, or continues after a pause. Executions without a process are lost."""

    epoch: int
    raised: LimitsRaised | None = None
    alive_at: int = 0
    """When the last owner was last known to be alive, if it did not release the run."""
    keep_waits: bool = False
    """Whether open waits keep their times; otherwise each is due at once."""
    continues: tuple[ExecutionRef, ...] = ()
    """The executions that kept their process, because another process than the last owner performs them."""
    driver: str = ""
    """The worker that drives the run from now on; empty outside a cluster."""


class WaitOpened(WorkflowEvent, frozen=True, kw_only=True, tag="wait_opened"):
    """No step that needs `subject` starts before `until`. For an open wait, this sets its next time."""

    subject: str
    """A shared resource that cannot be used now: a provider, a credential, a cap."""
    reason: str
    """`outage`, `limit` (a usage limit of a provider) or `daily_cap` (a cap of the user); see `explain`."""
    until: int
    count: int = 1
    """How many attempts failed."""
    probes: bool = True
    """Whether one step starts first, and the others follow when it has a result."""
    error: Failure | None = None


class WaitClosed(WorkflowEvent, frozen=True, tag="wait_closed"):
    """The subject can be used again: every step that waits for it may start."""

    subject: str


class CancelRequested(WorkflowEvent, frozen=True, tag="cancel_requested"):
    reason: str = ""


class StepAdded(WorkflowEvent, frozen=True, kw_only=True, tag="added"):
    """A client added a step to an open run."""

    step: Step
    frozen: str | None = None
    """Blob of the settings that the host fixed for this step: its role, back end, script, permission."""
    key: str = ""
    """Idempotency key of the request: another request with the same key adds nothing."""


class CloseRequested(WorkflowEvent, frozen=True, tag="close_requested"):
    """A client asked to end a step of an open run and the turns queued behind it."""

    step: str


class ResumeRequested(WorkflowEvent, frozen=True, tag="resume_requested"):
    """A client asked to continue a step of an open run that lost its process."""

    step: str


class EndRequested(WorkflowEvent, frozen=True, tag="end_requested"):
    """An open run accepts no more steps: it finishes with its last step."""


class RequestRefused(WorkflowEvent, frozen=True, tag="refused"):
    """A request to the run was no longer possible; evidence for its sender."""

    request: int
    error: Failure


class PhaseFolded(WorkflowEvent, frozen=True, tag="folded"):
    """The summary of a phase was published; evidence."""

    step: str


class Payment(WorkflowEvent, frozen=True, tag="payment"):
    """A session of a running attempt paid for one more request. The end of the attempt reports the sum."""

    step: str
    attempt: int
    usage: Usage
    model: str = ""


class RunFinished(WorkflowEvent, frozen=True, kw_only=True, tag="finished"):
    status: str
    output: str | None = None
    error: Failure | None = None


class StepEvent(Struct, frozen=True, omit_defaults=True, gc=False):
    """A transition of a step that `SubagentEvent` does not record."""

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
    """In a `waiting` event: when a timer ends the step."""
    child_run_id: str = ""
    cached: bool = False
    late: bool = False
    order: str = ""
    """In a `started` event: the blob of the order, if another process than the owner executes it."""


class SubagentEvent(Struct, frozen=True, omit_defaults=True, gc=False):
    """A transition of one child session, recorded in the log of its parent.

    Readers always see every field. Fields that follow from the envelope or the output are not written;
    `api.approvals.shown` restores them.
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
    chain: str = ""
    """The last link of the session's own chain when the execution ended."""
    order: str = ""
    """As in `StepEvent`."""


class Evidence(Struct, frozen=True, omit_defaults=True):
    """A stored fact that the kernel ignores (session, budget, workspace events)."""

    type: str
    data: Any
    """A struct of the layer that records it, or plain JSON after reading."""


StepData: TypeAlias = StepEvent | SubagentEvent
Data: TypeAlias = WorkflowEvent | StepData | Evidence


class Event(Struct, frozen=True, gc=False):
    """A fact, its run, and the time of recording in milliseconds since the epoch."""

    run: str
    at: int
    data: Data


class Envelope(Struct, frozen=True):
    """The stored form: an event with its position in its log and in the tree of runs."""

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
    RunCreated
    | RunForked
    | RunStarted
    | ValueDecided
    | TimerFired
    | PauseRequested
    | RunPaused
    | RunResumed
    | WaitOpened
    | WaitClosed
    | CancelRequested
    | StepAdded
    | CloseRequested
    | ResumeRequested
    | EndRequested
    | RequestRefused
    | PhaseFolded
    | Payment
    | RunFinished
)
_TYPES: dict[str, Any] = {
    "workflow_event": _WorkflowKinds,
    "step_event": StepEvent,
    "subagent_event": SubagentEvent,
}
_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {}
EVIDENCE_TYPES = ("session_event", "budget_event", "workspace_event")

_encoder = msgspec.json.Encoder()


def type_name(data: Data) -> str:
    """Return the envelope's `type` for the data of an event."""
    if isinstance(data, StepEvent):
        return "step_event"
    if isinstance(data, SubagentEvent):
        return "subagent_event"
    if isinstance(data, WorkflowEvent):
        return "workflow_event"
    return data.type


def log_line(envelope: Envelope) -> bytes:
    """Return one line of a log, as stored and as `fanfold logs --json` prints it."""
    return _encoder.encode(envelope)


def read_line(line: bytes) -> tuple[Envelope, Event]:
    """Return the envelope of a stored line and the event in it.

    >>> event = Event("r1", 5, StepEvent("gather", "completed", 1, 1))
    >>> line = log_line(Envelope("r1", 1, 1, 5, "step_event", event.data, "r1", "r1", None, 0, "", 1))
    >>> read_line(line)[1] == event
    True
    """
    envelope = msgspec.json.decode(line, type=Envelope)
    return envelope, event_of(envelope)


def event_of(envelope: Envelope) -> Event:
    """Return the event of an envelope whose `data` is plain JSON, decoded or as stored bytes."""
    encoded = envelope.data if isinstance(envelope.data, bytes) else None
    if envelope.type in EVIDENCE_TYPES:
        data = envelope.data if encoded is None else msgspec.json.decode(encoded)
        return Event(envelope.run_id, envelope.at, Evidence(envelope.type, data))
    shape = _TYPES.get(envelope.type)
    if shape is None:
        raise BugError("log.unknown_type", f"the log contains an event of unknown type {envelope.type!r}")
    if encoded is None:
        return Event(envelope.run_id, envelope.at, msgspec.convert(envelope.data, shape))
    decoder = _DECODERS.get(envelope.type)
    if decoder is None:
        decoder = _DECODERS[envelope.type] = msgspec.json.Decoder(shape)
    return Event(envelope.run_id, envelope.at, decoder.decode(encoded))
