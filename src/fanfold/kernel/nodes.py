"""The state of a run tree as data: runs, and in each run a tree of step instances.

Rules
* Only the fold (`state.evolve` and what it calls) writes here. Everything is derived from events.
* A `Node` is one instance of a step. Leaves do work; composites (`Scope`, `Map`, `Loop`, `WorkflowCall`)
  exist for their children and end when these have ended.
* Cost: whatever happens touches a node, its dependents and its parent, never the whole tree. Queues
  are heaps with stale entries that are dropped when they surface.

| composite | is | its children |
|---|---|---|
| `Scope` | the top level of a run, or one instance of a group | one per declared step |
| `Map` | a step with `for_each` | one per item, `id[0]`, `id[1]` … |
| `Loop` | a step (or item) with `repeat` | one per iteration, `id#1`, `id#2` …, then `id/fold` |
| `WorkflowCall` | a `workflow` step | the `Scope` of its child run |
"""

from __future__ import annotations

from collections import deque
from typing import Final

from fanfold.kernel.budget import NOTHING, Ledger
from fanfold.kernel.commands import Command
from fanfold.kernel.events import Failure, Settings, Usage
from fanfold.kernel.lifecycle import ENDED, PENDING
from fanfold.kernel.plan import Plan, Step
from fanfold.kernel.sets.claims import ClaimIndex

Order = tuple[int, ...]

LEAF: Final = 0
SCOPE: Final = 1
MAP: Final = 2
LOOP: Final = 3
CALL: Final = 4


class Quota:
    """Limits of one scope: slots, agents and money of everything inside it."""

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
        "agreed", "attempt", "blocked_by", "closed", "closing", "deadline", "dependents", "ended_at", "error",
        "execution", "holding", "kind", "line", "lost", "order", "output", "parent", "path", "quotas",
        "read_set", "ready_from", "ready_seq", "reason", "reservation", "reserving", "run", "spawned",
        "started_at", "status", "step", "stopping", "unmet", "waiters", "waits_for", "write_set",
    )  # fmt: skip

    def __init__(self, step: Step, run: Run, parent: Composite | None, path: str, order: Order) -> None:
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
        """Steps of an open run that its agent asked for."""
        self.blocked_by: Node | None = None
        """A dependency whose failure will skip this step."""
        self.agreed = False
        """A person agreed to what the step is about to do."""
        self.attempt = 0
        self.execution = 0
        self.lost = False
        """Running by the log, but no process is behind it: interrupted, or its owner died."""
        self.stopping = ""
        """Why the running attempt was asked to end: cancelled, timed_out, or pause."""
        self.output: str | None = None
        self.error: Failure | None = None
        self.reason = ""
        self.started_at = 0
        self.deadline = 0
        """By the clock of the tree, for one that has a time-out and was started."""
        self.ended_at = 0
        self.closed = False
        """Over for good: no turn can be added behind it."""
        self.closing = False
        """A command that ends this node is on the agenda: do not ask twice."""
        # admission
        self.read_set = step.read_set
        self.write_set = step.write_set
        self.ready_seq = 0
        self.ready_from = 0
        """The first `ready_seq` of the decision in which it became ready."""
        self.holding = False
        """Holds a slot and its sets: chosen to start, or running."""
        self.reserving = False
        """Passed over for a conflict: its sets are held against steps that became ready later."""
        self.reservation = NOTHING
        self.waits_for = 0
        """While parked: the `ready_seq` of the step that blocks it."""
        self.line = ""
        """The pattern that it and all who stand in line with it write."""
        self.waiters: list[Node] | tuple[()] = ()
        """Parked steps that this one blocks, or will block when it starts."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.run.id}:{self.path} {self.status}>"


def is_shared_writer(node: Node) -> bool:
    """Whether a step changes files of the project itself, under the eyes of everybody who works in it."""
    step = node.step
    return step.posture == "writer" and step.workspace_mode == "shared" and bool(node.write_set)


class Composite(Node):
    """A node that exists for its children."""

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
        """Instances it may create under `max_steps` once its start was recorded."""


class Scope(Composite):
    __slots__ = ()

    def __init__(self, step: Step, run: Run, parent: Composite | None, path: str, order: Order) -> None:
        super().__init__(step, run, parent, path, order)
        self.kind = SCOPE


class Map(Composite):
    """`count` items; None until `for_each` was evaluated."""

    __slots__ = ("count",)

    def __init__(self, step: Step, run: Run, parent: Composite | None, path: str, order: Order) -> None:
        super().__init__(step, run, parent, path, order)
        self.kind = MAP
        self.count: int | None = None


class Loop(Composite):
    __slots__ = ("converged", "exhausted", "iteration")

    def __init__(self, step: Step, run: Run, parent: Composite | None, path: str, order: Order) -> None:
        super().__init__(step, run, parent, path, order)
        self.kind = LOOP
        self.iteration = 0
        self.converged = False
        """Its gate passed: only the fold is left."""
        self.exhausted = False
        """Its gate never passed, and it goes on all the same."""


class WorkflowCall(Composite):
    __slots__ = ("child",)

    def __init__(self, step: Step, run: Run, parent: Composite | None, path: str, order: Order) -> None:
        super().__init__(step, run, parent, path, order)
        self.kind = CALL
        self.child: Run | None = None


class Run:
    """One run of the tree: the root, or the child run of a `workflow` step."""

    __slots__ = (
        "agents", "call", "children", "completed", "depth", "ending", "error", "growing", "id", "nodes",
        "output", "parent", "path", "plan", "scope", "status", "stopped_by", "unsuccessful", "usage_input",
        "usage_micro_usd", "usage_output", "usage_unpriced",
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
        """The execution path: where this run sits in the tree."""
        self.scope: Scope
        self.nodes: dict[str, Node] = {}
        self.status = PENDING
        self.ending = ""
        """Why the run winds up early: cancelled, timed_out, stop or end."""
        self.growing = plan.open
        """Steps may still be added: it does not end with the last of those it has."""
        self.stopped_by: Node | None = None
        """The step whose failure stopped the run, or that ended it because the plan says so."""
        self.output: str | None = None
        self.error: Failure | None = None
        self.completed = 0
        """Steps that completed, instances counted one by one."""
        self.unsuccessful = 0
        """Steps that failed, timed out, were cancelled, or were skipped for a failure."""
        self.agents = 0
        self.usage_input = 0
        self.usage_output = 0
        self.usage_micro_usd = 0
        self.usage_unpriced = False

    @property
    def ended_by(self) -> Node | None:
        """The step that ended the run as the plan says; None for one that failed and so stopped it."""
        return self.stopped_by if self.ending == ENDED else None

    def tree_path(self, path: str) -> str:
        """A path of this run as seen from the root."""
        return _join(self.path, path)

    @property
    def usage(self) -> Usage:
        """What this run's own steps spent."""
        price = None if self.usage_unpriced else self.usage_micro_usd
        return Usage(self.usage_input, self.usage_output, price)

    def spend(self, usage: Usage) -> None:
        self.usage_input += usage.input_tokens
        self.usage_output += usage.output_tokens
        if usage.micro_usd is None:
            self.usage_unpriced = True
        else:
            self.usage_micro_usd += usage.micro_usd


def _join(prefix: str, path: str) -> str:
    return f"{prefix}/{path}" if prefix and path else prefix or path


class Claims:
    """Who may touch what: the sets of running steps, or of parked ones that reserve theirs."""

    __slots__ = ("reads", "shared_writes", "writes")

    def __init__(self) -> None:
        self.reads = ClaimIndex()
        self.writes = ClaimIndex()
        self.shared_writes = ClaimIndex()


class State:
    """Everything the kernel knows about one run tree."""

    __slots__ = (
        "agenda", "agents", "approvals", "asked", "backoffs", "budgeted", "claimants", "clock", "delays",
        "dirty", "epoch", "executing", "held", "history", "in_flight", "instances", "interrupted", "late",
        "ledger",
        "live", "live_claims", "max_agents", "max_steps", "now", "oversize", "parked_claims", "pausing",
        "plan",
        "promised", "quotas", "raised_agents", "ready", "ready_count", "ready_from", "root", "run_deadlines",
        "runs", "scope_deadlines", "settings", "shared_writers", "slotless", "slots", "starved",
        "timer_count", "timers",
    )  # fmt: skip

    def __init__(self, run_id: str, plan: Plan, settings: Settings, at: int) -> None:  # noqa: PLR0915 - one line per field
        self.plan = plan
        self.settings = settings
        self.runs: dict[str, Run] = {}
        self.root = Run(run_id, plan, None, None)
        self.now = at
        self.clock = 0
        """Milliseconds under a live owner with something to do; what run timeouts count."""
        self.epoch = 0
        self.agenda: deque[Command] = deque()
        """Commands decided and not yet answered."""
        self.dirty = True
        """Something changed that may let a ready step start."""
        self.pausing = ""
        """Why nothing new is admitted: a pause was asked for and has not been lifted."""
        # slots and limits; agents, steps and budgets may be raised on resume
        self.slots = settings.max_concurrency
        self.max_agents = settings.max_agents
        self.max_steps = settings.max_steps
        self.live = 0
        """Slots held: attempts chosen or running."""
        self.executing = 0
        """Attempts with a process behind them."""
        self.in_flight: dict[int, Node] = {}
        """Attempts chosen or running, by `ready_seq`."""
        self.agents = 0
        self.instances = 0
        self.promised = 0
        """Instances that composites may still create: their start is decided, not yet recorded."""
        self.ledger = Ledger(settings.budget_tokens, settings.budget_micro_usd)
        self.budgeted = self.ledger.limited
        """Whether any ledger of the tree has a limit; without one nothing is reserved."""
        self.history: dict[str, list[int]] = {}
        """Per role: attempts settled, tokens, micro-dollars."""
        self.quotas: list[Quota] = []
        """Every cap of a scope inside the tree, for raising."""
        self.raised_agents = 0
        """What a resume allowed: no scope's own cap on agents is below it any more."""
        self.starved: list[tuple[Order, Node, str]] = []
        """Heap of what a limit holds back, with the limit's name."""
        self.oversize: list[tuple[Order, Composite]] = []
        """Composites that may not expand: their children would be more than `max_steps`."""
        # queues
        self.ready: list[tuple[Order, Node]] = []
        self.slotless: list[tuple[Order, Node]] = []
        """Ready too, and in need of no slot."""
        self.ready_count = 0
        self.ready_from = 1
        """The first `ready_seq` of the steps that became ready since the last decision."""
        self.claimants: dict[int, Node] = {}
        """Whose sets are in the claims below, by `ready_seq`."""
        self.live_claims = Claims()
        self.parked_claims = Claims()
        self.shared_writers = False
        """Whether any step of the whole closure writes in the shared workspace."""
        # time
        self.timers: list[tuple[int, int, str, Node, int, int]] = []
        """Heap of (due, tie-break, kind, node, attempt, execution)."""
        self.timer_count = 0
        self.run_deadlines: list[tuple[int, str]] = []  # a heap of (clock, run id)
        self.scope_deadlines: list[tuple[int, int, Composite]] = []
        """Heap of (clock, tie-break, group or call): their time, too, counts only while the run is live."""
        self.backoffs = self.approvals = self.asked = self.delays = 0
        """Steps that wait for their next attempt, for a person (`asked`: and have begun), for their time."""
        self.held: dict[tuple[str, str], Node] = {}
        """Steps that wait for files which runs of other processes work on, by run and path."""
        self.interrupted = 0
        """Steps of an open run that lost their process and wait for a person to take them up."""
        self.late = 0
        """Results that came too late, recorded and not applied."""
