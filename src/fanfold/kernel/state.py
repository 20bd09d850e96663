"""The state of a run tree as data: runs, and in each run a tree of step instances.

Rules
* Only the fold (`transitions.evolve` and the functions it calls) writes the state. It derives everything
  from events.
* A `Node` is one instance of a step. Leaves do work. Composites (`Scope`, `Map`, `Loop`, `WorkflowCall`)
  contain children and end when these have ended.
* Cost: an event touches a node, its dependents and its parent, never the whole tree. Queues are heaps that
  may contain stale entries; these are dropped when they reach the top.

| composite | is | its children |
|---|---|---|
| `Scope` | the top level of a run, or one instance of a group | one per declared step |
| `Map` | a step with `for_each` | one per item, `id[0]`, `id[1]` … |
| `Loop` | a step (or item) with `repeat` | one per iteration, `id#1`, `id#2` …, then `id/fold` |
| `WorkflowCall` | a `workflow` step | the `Scope` of its child run |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Final

import msgspec

from fanfold.errors import BugError
from fanfold.kernel.budget import NOTHING, Ledger
from fanfold.kernel.claims import ClaimIndex
from fanfold.kernel.commands import Command
from fanfold.kernel.events import NOTHING_SPENT, Failure, Settings, Usage
from fanfold.kernel.plan import Plan, Step

# -----------------------------------------------------------------------------------------------------------
# Statuses and transitions of steps and runs.
#
# `STEP_TRANSITIONS` and `RUN_TRANSITIONS` map a status and the name of an event to the statuses that may
# follow. The fold rejects any other transition. The diagrams in the documentation come from the same tables,
# and the simulator must reach every row. Terminal statuses are final: only `closed` may still follow.

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
"""Statuses that count as a failure for dependents. A skip counts by its reason."""

BACK_OFF: Final = "back-off"
"""The `reason` of a step that waits for its next attempt."""
HELD: Final = "held"
"""The `reason` of a step that waits for files that a run of another process uses."""
DEFERRED: Final = "deferred"
"""The `reason` of a step that waits for a provider, a usage limit or a cap (see `Wait`)."""
ASKED: Final = "asked"
"""The `reason` of a step that started and waits for a person to approve the rest of its work."""
BUDGET: Final = "budget"
"""The `reason` of a step whose session stopped at a budget; it continues when the run is resumed."""
ENDED: Final = "end"
"""The `ending` of a run that a step of its plan ended."""
INTERRUPTED: Final = "interrupted"
"""The `reason` of a step of an open run that lost its process and waits for a person to resume it."""

STEP_STATUSES: Final = (
    PENDING, READY, RUNNING, WAITING, COMPLETED, FAILED, SKIPPED, CANCELLED, TIMED_OUT,
)  # fmt: skip
RUN_STATUSES: Final = (
    PENDING, RUNNING, WAITING, PAUSED, COMPLETED, PARTIAL, FAILED, CANCELLED, TIMED_OUT,
)  # fmt: skip

STEP_TRANSITIONS: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    # Not yet admitted: dependencies, conditions and lists come first.
    (PENDING, "queued"): (PENDING, READY, RUNNING),  # added to an open run
    (PENDING, "decided"): (READY, RUNNING, PENDING),
    (PENDING, "skipped"): (SKIPPED,),
    (PENDING, "failed"): (FAILED,),
    (PENDING, "cancelled"): (CANCELLED,),
    # Admitted: waits for a slot, an agent, budget, or the end of a conflicting step.
    (READY, "started"): (RUNNING,),
    (READY, "waiting"): (WAITING,),
    (READY, "completed"): (COMPLETED,),
    (READY, "failed"): (FAILED,),
    (READY, "held"): (WAITING,),  # a run of another process uses the same files
    (READY, "deferred"): (WAITING,),  # a wait is open for its provider, limit or cap
    (READY, "cancelled"): (CANCELLED,),
    (READY, "skipped"): (SKIPPED,),  # a step ended the run
    # Running. A second `started` is a new execution after a crash. In an open run, a step that lost its
    # process releases its slot and waits for a person, who may not want to pay for it again.
    (RUNNING, "started"): (RUNNING,),
    (RUNNING, "stopping"): (RUNNING,),
    (RUNNING, "held"): (WAITING,),  # another run acquired its files while this run had no owner
    (RUNNING, "deferred"): (WAITING,),  # it lost its execution, and a wait is open for its subject
    (RUNNING, "interrupted"): (RUNNING, WAITING),
    (RUNNING, "resumed"): (RUNNING, WAITING),
    (RUNNING, "completed"): (COMPLETED,),
    (RUNNING, "failed"): (FAILED, WAITING),
    (RUNNING, "timed_out"): (TIMED_OUT, WAITING),
    (RUNNING, "cancelled"): (CANCELLED,),
    (RUNNING, "decided"): (RUNNING,),
    (RUNNING, "asked"): (WAITING, RUNNING),  # its work is prepared and needs the approval of a person
    # Waiting for a person, for the end of a back-off or of a wait, or for files that another run uses.
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
    # Ended, and no turn can be added behind it.
    **{(status, "closed"): (status,) for status in (COMPLETED, FAILED, SKIPPED, CANCELLED, TIMED_OUT)},
}

RUN_TRANSITIONS: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    (PENDING, "forked"): (PENDING,),
    (PENDING, "started"): (RUNNING,),
    (PENDING, "created"): (RUNNING,),  # a child run starts with its log
    (PENDING, "resumed"): (PENDING,),  # its owner died before the run started
    (PENDING, "cancel_requested"): (RUNNING,),
    (RUNNING, "decided"): (RUNNING,),
    (RUNNING, "woke"): (RUNNING,),
    (RUNNING, "folded"): (RUNNING,),
    (RUNNING, "payment"): (RUNNING,),
    (RUNNING, "pause_requested"): (RUNNING,),
    (RUNNING, "paused"): (PAUSED,),
    (RUNNING, "resumed"): (RUNNING,),
    (RUNNING, "wait_opened"): (RUNNING,),
    (RUNNING, "wait_closed"): (RUNNING,),
    (RUNNING, "cancel_requested"): (RUNNING,),
    (RUNNING, "added"): (RUNNING,),
    (RUNNING, "close_requested"): (RUNNING,),
    (RUNNING, "resume_requested"): (RUNNING,),
    (RUNNING, "end_requested"): (RUNNING,),
    (RUNNING, "refused"): (RUNNING,),
    (RUNNING, "finished"): (COMPLETED, PARTIAL, FAILED, CANCELLED, TIMED_OUT),
    (PAUSED, "resumed"): (RUNNING,),
    (PAUSED, "cancel_requested"): (RUNNING,),  # of this run, or of a child run
    (PAUSED, "added"): (PAUSED,),
    (PAUSED, "close_requested"): (PAUSED,),
    (PAUSED, "resume_requested"): (PAUSED,),
    (PAUSED, "end_requested"): (PAUSED,),
    (PAUSED, "refused"): (PAUSED,),
    # The answer of a person may require a decision, and may finish the run.
    (PAUSED, "decided"): (PAUSED,),
    (PAUSED, "finished"): (COMPLETED, PARTIAL, FAILED),
}

RUN_PROJECTIONS: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    (RUNNING, "only people or timers are open"): (WAITING,),
    (WAITING, "an answer or a timer arrived"): (RUNNING,),
}
"""`waiting` is a view of a running run. No event sets it, and it accepts every event of a running run."""

EVENT_WORDS: Final[dict[str, str]] = {"finished": COMPLETED, "input": "queued"}
"""Names in a `subagent_event` that mean the same as another name in a `step_event`."""

Order = tuple[int, ...]

LEAF: Final = 0
SCOPE: Final = 1
MAP: Final = 2
LOOP: Final = 3
CALL: Final = 4


class Quota:
    """Limits of one scope, for everything inside it: slots, agents and budget."""

    __slots__ = ("agents", "ledger", "live", "max_agents", "max_concurrency", "waiting")

    def __init__(self, max_concurrency: int | None, max_agents: int | None, ledger: Ledger | None) -> None:
        self.max_concurrency = max_concurrency
        self.max_agents = max_agents
        self.ledger = ledger
        self.live = 0
        self.agents = 0
        self.waiting: list[tuple[Order, Node]] = []


class Node:
    """One instance of one step."""

    __slots__ = (
        "agreed", "attempt", "blocked_by", "closed", "closing", "counted", "deadline", "dependents",
        "ended_at", "error", "execution", "holding", "kind", "line", "lost", "order", "output", "parent",
        "path", "quotas", "read_set", "ready_from", "ready_seq", "reason", "reservation", "reserving",
        "run", "spawned", "started_at", "status", "step", "stopping", "subject", "unmet", "waiters",
        "waits_for", "write_set",
    )  # fmt: skip

    def __init__(self, step: Step, run: Run, parent: Composite | None, path: str, order: Order) -> None:  # noqa: PLR0915 - one line per field
        self.step = step
        self.run = run
        self.parent = parent
        self.path = path
        self.order = order
        self.kind = LEAF
        self.status = PENDING
        self.quotas: tuple[Quota, ...] = () if parent is None else parent.inner_quotas
        self.unmet = 0
        """Dependencies that have not ended."""
        self.dependents: list[Node] | tuple[()] = ()
        self.spawned: list[Node] | tuple[()] = ()
        """Steps of an open run that the agent of this step requested."""
        self.blocked_by: Node | None = None
        """A dependency whose failure will skip this step."""
        self.agreed = False
        """Whether a person approved the prepared work of the step."""
        self.attempt = 0
        self.execution = 0
        self.counted = NOTHING_SPENT
        """The spending that sessions of the current attempt reported so far (`Payment`)."""
        self.lost = False
        """Running according to the log, but without a process: interrupted, or its owner died."""
        self.stopping = ""
        """Why the running attempt was asked to stop: cancelled, timed_out, or pause."""
        self.output: str | None = None
        self.error: Failure | None = None
        self.reason = ""
        self.started_at = 0
        self.deadline = 0
        """Deadline of a started step with a timeout, by the clock of the tree."""
        self.ended_at = 0
        self.closed = False
        """Whether the step is closed: no turn can be added behind it."""
        self.closing = False
        """Whether a command that ends this node is on the agenda; there must be only one."""
        # admission
        self.read_set = step.read_set
        self.write_set = step.write_set
        self.ready_seq = 0
        self.ready_from = 0
        """The first `ready_seq` of the decision in which the step became ready."""
        self.holding = False
        """Whether the step holds a slot and its sets: it is chosen to start, or running."""
        self.reserving = False
        """Whether the step is parked: its sets are reserved against steps that became ready later."""
        self.reservation = NOTHING
        self.waits_for = 0
        """While parked: the `ready_seq` of the step that blocks it."""
        self.subject = ""
        """The subject of the wait that defers or deferred this step."""
        self.line = ""
        """The pattern that all steps in its line write (see `admission`)."""
        self.waiters: list[Node] | tuple[()] = ()
        """Parked steps that this one blocks, or will block when it starts."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.run.id}:{self.path} {self.status}>"


def is_shared_writer(node: Node) -> bool:
    """Whether a step writes directly to the project tree, where other steps and users see each change."""
    step = node.step
    return step.posture == "writer" and step.workspace_mode == "shared" and bool(node.write_set)


class Composite(Node):
    """A node that contains child nodes and ends when they have ended."""

    __slots__ = ("children", "entered", "failed_child", "inner_quotas", "open", "promised")

    def __init__(self, step: Step, run: Run, parent: Composite | None, path: str, order: Order) -> None:
        super().__init__(step, run, parent, path, order)
        self.children: list[Node] = []
        self.open = 0
        """Children that have not ended."""
        self.failed_child: Node | None = None
        """The first child, in plan order, whose failure is this node's failure."""
        self.inner_quotas = self.quotas
        self.entered = False
        self.promised = 0
        """Instances reserved under `max_steps`, to be created once its start is recorded."""


class Scope(Composite):
    """The top level of a run, or one instance of a group."""

    __slots__ = ()

    def __init__(self, step: Step, run: Run, parent: Composite | None, path: str, order: Order) -> None:
        super().__init__(step, run, parent, path, order)
        self.kind = SCOPE


class Map(Composite):
    """A step with `for_each`. `count` is its number of items; None until `for_each` is evaluated."""

    __slots__ = ("count",)

    def __init__(self, step: Step, run: Run, parent: Composite | None, path: str, order: Order) -> None:
        super().__init__(step, run, parent, path, order)
        self.kind = MAP
        self.count: int | None = None


class Loop(Composite):
    """A step with `repeat`."""

    __slots__ = ("converged", "exhausted", "iteration")

    def __init__(self, step: Step, run: Run, parent: Composite | None, path: str, order: Order) -> None:
        super().__init__(step, run, parent, path, order)
        self.kind = LOOP
        self.iteration = 0
        self.converged = False
        """Whether its gate passed: only the fold remains."""
        self.exhausted = False
        """Whether its gate never passed and the plan continues anyway (`on_exhausted`)."""


class WorkflowCall(Composite):
    """A `workflow` step; it contains the scope of its child run."""

    __slots__ = ("child",)

    def __init__(self, step: Step, run: Run, parent: Composite | None, path: str, order: Order) -> None:
        super().__init__(step, run, parent, path, order)
        self.kind = CALL
        self.child: Run | None = None


class Run:
    """One run of the tree: the root, or the child run of a `workflow` step."""

    __slots__ = (
        "agents", "call", "children", "completed", "depth", "ending", "error", "growing", "id", "nodes",
        "output", "parent", "path", "plan", "scope", "status", "stopped_by", "unsuccessful", "usage_cached",
        "usage_input", "usage_micro_usd", "usage_output", "usage_unpriced",
    )  # fmt: skip

    def __init__(self, run_id: str, plan: Plan, parent: Run | None, call: WorkflowCall | None) -> None:
        self.id = run_id
        self.plan = plan
        self.parent = parent
        self.call = call
        self.children: list[Run] = []
        if parent is not None:
            parent.children.append(self)
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.path: str = "" if call is None or parent is None else _join(parent.path, call.path)
        """The execution path: the position of this run in the tree."""
        self.scope: Scope
        self.nodes: dict[str, Node] = {}
        self.status = PENDING
        self.ending = ""
        """Why the run ends early: cancelled, timed_out, stop or end."""
        self.growing = plan.open
        """Whether steps may still be added: the run does not finish when all present steps have ended."""
        self.stopped_by: Node | None = None
        """The step whose failure stopped the run, or that ended the run as planned."""
        self.output: str | None = None
        self.error: Failure | None = None
        self.completed = 0
        """Number of step instances that completed."""
        self.unsuccessful = 0
        """Number of step instances that failed, timed out, were cancelled, or were skipped for a failure."""
        self.agents = 0
        self.usage_input = 0
        self.usage_cached = 0
        self.usage_output = 0
        self.usage_micro_usd = 0
        self.usage_unpriced = False

    @property
    def ended_by(self) -> Node | None:
        """The step that ended the run as planned; None if a failure stopped the run."""
        return self.stopped_by if self.ending == ENDED else None

    def tree_path(self, path: str) -> str:
        """Return a path of this run, relative to the root run."""
        return _join(self.path, path)

    @property
    def usage(self) -> Usage:
        """The spending of this run's own steps."""
        price = None if self.usage_unpriced else self.usage_micro_usd
        return Usage(self.usage_input, self.usage_output, price, self.usage_cached)

    def spend(self, usage: Usage) -> None:
        self.usage_input += usage.input_tokens
        self.usage_cached += usage.cached_tokens
        self.usage_output += usage.output_tokens
        if usage.micro_usd is None:
            self.usage_unpriced = True
        else:
            self.usage_micro_usd += usage.micro_usd


def _join(prefix: str, path: str) -> str:
    return f"{prefix}/{path}" if prefix and path else prefix or path


class Claims:
    """The read-sets and write-sets of running steps, or those that parked steps reserve."""

    __slots__ = ("reads", "shared_writes", "writes")

    def __init__(self) -> None:
        self.reads = ClaimIndex()
        self.writes = ClaimIndex()
        self.shared_writes = ClaimIndex()


class Wait:
    """A shared resource, `subject`, that steps cannot use until a given time. Events open and close it."""

    __slots__ = ("count", "error", "nodes", "probe", "probes", "reason", "since", "subject", "until")

    def __init__(self, subject: str, since: int) -> None:
        self.subject = subject
        self.since = since
        """When the wait was opened, or when the run was last resumed during it."""
        self.reason = ""
        self.until = 0
        self.count = 0
        self.error: Failure | None = None
        self.probes = True
        self.probe: Node | None = None
        """The step that started first and has no result yet."""
        self.nodes: dict[int, Node] = {}
        """Deferred steps by `ready_seq`, in the order in which they become the probe."""


class State:
    """The complete state of one run tree."""

    __slots__ = (
        "agenda", "agents", "approvals", "asked", "backoffs", "budgeted", "claimants", "clock",
        "deferred", "delays", "dirty", "epoch", "executing", "held", "history", "in_flight", "instances",
        "interrupted", "late", "ledger", "live", "live_claims", "max_agents", "max_steps", "now",
        "out_of_budget", "oversize", "parked_claims", "pausing", "plan", "promised", "quotas",
        "raised_agents", "ready", "ready_count", "ready_from", "root", "run_deadlines", "runs",
        "scope_deadlines", "settings", "shared_writers", "slotless", "slots", "starved", "timer_count",
        "timers", "waits",
    )  # fmt: skip

    def __init__(self, run_id: str, plan: Plan, settings: Settings, at: int) -> None:  # noqa: PLR0915 - one line per field
        self.plan = plan
        self.settings = settings
        self.runs: dict[str, Run] = {}
        self.root = Run(run_id, plan, None, None)
        self.now = at
        self.clock = 0
        """Milliseconds with a live owner in which the run was not waiting; run timeouts use this clock."""
        self.epoch = 0
        self.agenda: deque[Command] = deque()
        """Commands that are decided and not yet answered."""
        self.dirty = True
        """Whether a change may allow a ready step to start."""
        self.pausing = ""
        """The reason of a requested or present pause; while set, no step is admitted."""
        # slots and limits; agents, steps and budgets may be raised on resume
        self.slots = settings.max_concurrency
        self.max_agents = settings.max_agents
        self.max_steps = settings.max_steps
        self.live = 0
        """Number of slots in use by chosen or running attempts."""
        self.executing = 0
        """Number of attempts that have a process."""
        self.in_flight: dict[int, Node] = {}
        """Nodes with a chosen or running attempt, by `ready_seq`."""
        self.agents = 0
        self.instances = 0
        self.promised = 0
        """Instances reserved for composites whose start is decided and not yet recorded."""
        self.ledger = Ledger(settings.budget_tokens, settings.budget_micro_usd)
        self.budgeted = self.ledger.limited
        """Whether any ledger of the tree has a limit; without a limit nothing is reserved."""
        self.history: dict[str, list[int]] = {}
        """Per role: attempts settled, tokens, micro-dollars."""
        self.quotas: list[Quota] = []
        """The quotas of all scopes in the tree; a resume may raise them."""
        self.raised_agents = 0
        """The agents that a resume allowed: a lower cap of a scope is raised to this number."""
        self.starved: list[tuple[Order, Node, str]] = []
        """Heap of the steps that a limit blocks, with the name of the limit."""
        self.oversize: list[tuple[Order, Composite]] = []
        """Composites that cannot expand: their children would exceed `max_steps`."""
        # queues
        self.ready: list[tuple[Order, Node]] = []
        self.slotless: list[tuple[Order, Node]] = []
        """Ready steps that need no slot."""
        self.ready_count = 0
        self.ready_from = 1
        """The first `ready_seq` of the steps that became ready since the last decision."""
        self.claimants: dict[int, Node] = {}
        """The steps whose sets are in `live_claims` or `parked_claims`, by `ready_seq`."""
        self.live_claims = Claims()
        self.parked_claims = Claims()
        self.shared_writers = False
        """Whether any step of the plan or its sub-workflows may write in the shared workspace."""
        # time
        self.timers: list[tuple[int, int, str, Node, int, int]] = []
        """Heap of (due, tie-break, kind, node, attempt, execution)."""
        self.timer_count = 0
        self.run_deadlines: list[tuple[int, str]] = []  # a heap of (clock, run id)
        self.scope_deadlines: list[tuple[int, int, Composite]] = []
        """Heap of (clock, tie-break, group or call). These timeouts use the clock of the tree, too."""
        self.backoffs = self.approvals = self.asked = self.delays = self.deferred = 0
        """Numbers of waiting steps, by cause. `asked` (a step that started) is also part of `approvals`."""
        self.held: dict[tuple[str, str], Node] = {}
        """Steps that wait for files that runs of other processes use, by run and path."""
        self.waits: dict[str, Wait] = {}  # by subject
        self.interrupted = 0  # steps of an open run that lost their process, until a person resumes them
        self.out_of_budget = self.late = 0
        """Numbers of attempts whose session stopped at a budget, until a resume; and of late results."""


# -----------------------------------------------------------------------------------------------------------
# Hashes of a state: two folds of one log give the same hash, on any machine and with any hash seed.

TRACE_BYTES = 4
_encode = msgspec.msgpack.Encoder().encode


def fingerprint(state: State) -> str:
    """Return a hash of the whole state; two folds of one log must give the same hash."""
    digest = blake2b(digest_size=16)
    for run in state.runs.values():
        digest.update(
            repr(
                (
                    run.id,
                    run.path,
                    run.status,
                    run.ending,
                    run.output,
                    run.completed,
                    run.unsuccessful,
                    run.agents,
                    run.growing,
                )
            ).encode()
        )
        for path, node in run.nodes.items():
            row = (
                path, node.status, node.reason, node.attempt, node.execution, node.lost, node.stopping,
                node.output, node.unmet, node.holding, node.reserving, node.ready_seq, node.reservation,
                node.closing, node.closed, node.agreed, node.counted,
            )  # fmt: skip
            digest.update(repr(row).encode())
    ledger = state.ledger
    totals = (
        state.now, state.clock, state.epoch, state.live, state.executing, state.agents, state.instances,
        state.approvals, state.asked, state.delays, state.backoffs, state.interrupted, state.late,
        state.out_of_budget, state.pausing, state.max_agents, state.max_steps, list(state.held),
        ledger.spent_tokens, ledger.spent_micro_usd, ledger.reserved_tokens, ledger.reserved_micro_usd,
        ledger.max_tokens, ledger.max_micro_usd, tuple(repr(command) for command in state.agenda),
        sorted(timer[:3] for timer in state.timers), sorted(state.run_deadlines),
        sorted(entry[:2] for entry in state.scope_deadlines),
    )  # fmt: skip
    digest.update(repr(totals).encode())
    for wait in state.waits.values():
        probe = "" if wait.probe is None else wait.probe.path
        about = wait.subject, wait.reason, wait.since, wait.until, wait.count, probe, list(wait.nodes)
        digest.update(repr(about).encode())
    return digest.hexdigest()


def trace(state: State, events: Iterable[tuple[str, Any]]) -> bytes:
    """Return a hash of the totals of a state, and of the runs and steps of some events (run, data).

    Its cost depends on the number of events, not on the size of the plan, so each commit can carry one. The
    choice of hashed fields is part of the log format, like the events themselves.
    """
    ledger = state.ledger
    rows: list[tuple[Any, ...]] = [
        (
            state.clock, state.epoch, state.live, state.agents, state.instances, ledger.spent_tokens,
            ledger.spent_micro_usd, ledger.reserved_tokens, ledger.reserved_micro_usd,
        )
    ]  # fmt: skip
    for name, data in events:
        run, step = state.runs[name], getattr(data, "step", None)
        node = run.nodes.get(step) if isinstance(step, str) else None
        if node is None:
            rows.append((name, run.status, run.output, run.completed, run.unsuccessful, run.agents))
        else:
            row = (step, node.status, node.attempt, node.execution, node.output, node.unmet, node.ready_seq)
            rows.append(row)
    return blake2b(_encode(rows), digest_size=TRACE_BYTES).digest()


# -----------------------------------------------------------------------------------------------------------
# Matching of events with the commands that they answer.


def unexpected(message: str) -> BugError:
    """Return the error for an event that contradicts the state: a bug of the host or a damaged log."""
    return BugError("kernel.unexpected_event", message)


def take(state: State, shape: type[Command], run: str, step: str = "") -> Command:
    """Remove and return the first command of the agenda. Raises BugError if the event does not answer it."""
    command = state.agenda[0] if state.agenda else None
    fits = command is not None and type(command) is shape and command.run == run
    if fits and (not step or getattr(command, "step", "") == step):
        return state.agenda.popleft()
    raise unexpected(f"an answer to {shape.__name__} of {step or run} came, but {command} is due")


def require_idle(state: State, what: str) -> None:
    """Raise BugError if a command is unanswered: reports from outside may come only after all answers."""
    if state.agenda:
        raise unexpected(f"{what} came before {state.agenda[0]} was answered")


# -----------------------------------------------------------------------------------------------------------
# The effect of an answer on the step that waits for it.
#
# `judge` handles answers from all sources (a person, a default, a tool), so that the same answer always has
# the same effect.

REJECT: Final = "reject"
BY_DEFAULT: Final = "default"
"""The source of an answer that applies because no person answered in time."""


def judge(node: Node, decision: str, by: str, comment: str | None = None) -> Failure | None:
    """Return the failure of the step if this answer rejects it; None if the step completes."""
    if decision != REJECT or not node.step.traits.rejectable:
        return None
    said = f"{node.path} was not answered in time, which rejects it" if by == BY_DEFAULT else ""
    message = comment or said or f"{by} rejected {node.path}"
    return Failure("permission", "approval.rejected", message, "", False, node.path, node.attempt)
