"""What must hold in every run, checked event by event.

The auditor trusts nobody: it follows the log with bookkeeping of its own, takes from the state only
the shape of the tree (which steps there are and what their recipe says), and compares. The simulator,
the kill tests and `fanfold verify` all use it. Each invariant is one function; its number is the one
the quality goals give it, and `INVARIANTS` lists them with their sentence.

Invariants about a host rather than a log are checked there: 2 (acknowledged means present), 3 (folding
again gives the same fingerprint), 14 (what templates saw), 15 to 18 and 20.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from fanfold.kernel.events import (
    Created,
    Envelope,
    Event,
    Evidence,
    Failure,
    Finished,
    Resumed,
    Settings,
    StepEvent,
    SubagentEvent,
    WorkflowEvent,
)
from fanfold.kernel.lifecycle import (
    COMPLETED,
    EVENT_WORDS,
    FAILED,
    PAUSED,
    RUN_TERMINAL,
    SKIPPED,
    TERMINAL,
    TIMED_OUT,
    UNSUCCESSFUL,
)
from fanfold.kernel.nodes import LOOP, MAP, Composite, Loop, Map, Node, Run, State
from fanfold.kernel.paths import overlaps
from fanfold.kernel.plan import MAX_NESTING_DEPTH, AgentAction, GroupAction, Plan

Address = tuple[str, str]
"""(run id, path in that run)"""

SLOT_TYPES = ("agent", "function", "command")


class Violation(Struct, frozen=True):
    number: int
    message: str


class Attempt:
    """One attempt as the log tells it: executions begun, results given."""

    __slots__ = ("executions", "results")

    def __init__(self) -> None:
        self.executions = 0
        self.results = 0


class Auditor:
    """Follows one run tree. Call `observe` after each fold, `close` when the run is over."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.settings = Settings()
        self.log_seq: dict[str, int] = {}
        self.tree_seq = 0
        self.epoch = 0
        self.status: dict[Address, str] = {}
        """Terminal status by address, from the events alone."""
        self.skip_reason: dict[Address, str] = {}
        self.attempts: dict[tuple[str, str, int], Attempt] = {}
        self.live: dict[Address, Node] = {}
        """Attempts begun and not ended, interrupted ones included."""
        self.agents = 0
        self.max_agents = 0
        self.max_tokens: int | None = None
        self.max_micro_usd: int | None = None
        self.tokens = 0
        self.micro_usd = 0
        self.last: Node | None = None
        """The node of the event just observed."""

    def observe(self, envelope: Envelope, event: Event, state: State) -> list[Violation]:
        """Every violation that this event, already folded into `state`, shows."""
        found = [Violation(1, message) for message in _check_sequence(self, envelope)]
        found += [Violation(11, message) for message in _check_epoch(self, envelope)]
        data = event.data
        if isinstance(data, Evidence):
            return found
        if isinstance(data, WorkflowEvent):
            self._note_workflow(data)
        before = dict.get(self.status, (event.run, getattr(data, "step", "")))
        self.last = None
        if isinstance(data, StepEvent | SubagentEvent):
            self.last = state.runs[event.run].nodes[data.step]
            found += [Violation(n, m) for n, m in self._note_step(event.run, self.last, data, before)]
        for number, check in CHECKS.items():
            found += [Violation(number, message) for message in check(self, event, state)]
        return found

    def close(self, state: State) -> list[Violation]:
        """What must hold when the root run has ended."""
        return [Violation(number, message) for number, message in _check_end(self, state)]

    def _note_workflow(self, data: WorkflowEvent) -> None:
        if isinstance(data, Created) and data.plan is not None:
            self.settings = data.settings or Settings()
            self.max_agents = self.settings.max_agents
            self.max_tokens = self.settings.budget_tokens
            self.max_micro_usd = self.settings.budget_micro_usd
        elif isinstance(data, Resumed) and data.raised is not None:
            raised = data.raised
            self.max_agents = max(self.max_agents, raised.max_agents or 0)
            if raised.budget_tokens is not None:
                self.max_tokens = max(self.max_tokens or 0, raised.budget_tokens)
            if raised.budget_micro_usd is not None:
                self.max_micro_usd = max(self.max_micro_usd or 0, raised.budget_micro_usd)

    def _note_step(
        self, run: str, node: Node, data: StepEvent | SubagentEvent, before: str | None
    ) -> Iterator[tuple[int, str]]:
        word = EVENT_WORDS.get(data.status, data.status)
        address = (run, data.step)
        if data.usage is not None:
            self.tokens += data.usage.tokens
            self.micro_usd += data.usage.micro_usd or 0
        if data.late or word in ("queued", "input", "closed"):
            return
        if before is not None:
            number = 6 if word == "started" else 10
            yield number, f"{data.step} is {before} and still took {word!r}"
        attempt = self.attempts.setdefault((run, data.step, data.attempt), Attempt())
        if word == "started":
            attempt.executions += 1
            if data.execution != attempt.executions:
                yield 5, f"{data.step}: execution {data.execution} follows {attempt.executions - 1}"
            if node.step.type in SLOT_TYPES:
                self.live[address] = node
                if data.execution == 1 and isinstance(node.step.action, AgentAction):
                    self.agents += 1
        elif word in TERMINAL:
            self._note_end(address, data, attempt, word, node)
            if attempt.results > 1:
                yield 5, f"{data.step}: attempt {data.attempt} has {attempt.results} results"

    def _note_end(
        self, address: Address, data: StepEvent | SubagentEvent, attempt: Attempt, word: str, node: Node
    ) -> None:
        if attempt.executions:
            attempt.results += 1
        self.live.pop(address, None)
        if node.status in TERMINAL:
            self.status[address] = word
            self.skip_reason[address] = data.reason


# 1 and 11: the shape of the log


def _check_sequence(audit: Auditor, envelope: Envelope) -> Iterator[str]:
    expected = audit.log_seq.get(envelope.log, 0) + 1
    if envelope.seq != expected:
        yield f"log {envelope.log}: seq {envelope.seq} where {expected} belongs"
    audit.log_seq[envelope.log] = envelope.seq
    audit.tree_seq += 1
    if envelope.tree_seq != audit.tree_seq:
        yield f"tree_seq {envelope.tree_seq} where {audit.tree_seq} belongs"


def _check_epoch(audit: Auditor, envelope: Envelope) -> Iterator[str]:
    if envelope.epoch < audit.epoch:
        yield f"epoch {envelope.epoch} after {audit.epoch}"
    audit.epoch = max(audit.epoch, envelope.epoch)


# 4: order


def dependencies_ended(audit: Auditor, event: Event, _state: State) -> Iterator[str]:
    """No step starts before its dependencies are terminal and admissible."""
    if not _is_start(event) or audit.last is None:
        return
    node: Node | None = audit.last
    while node is not None:
        yield from _open_dependencies(audit, node)
        # Maps and loops have no start of their own: their first child's start stands for it.
        node = node.parent if node.parent is not None and node.parent.kind in (MAP, LOOP) else None


def _open_dependencies(audit: Auditor, node: Node) -> Iterator[str]:
    parent = node.parent
    if parent is None or parent.kind in (MAP, LOOP):
        return
    prefix = f"{parent.path}/" if parent.path else ""
    for name in node.step.depends_on:
        address = (node.run.id, prefix + name)
        status = audit.status.get(address)
        if status is None:
            yield f"{node.path} started before {address[1]} ended"
        elif not _admits(audit, address, status, node.run.nodes[address[1]]):
            yield f"{node.path} started although {address[1]} is {status}"


def _admits(audit: Auditor, address: Address, status: str, dependency: Node) -> bool:
    if status == SKIPPED:
        return audit.skip_reason.get(address) == "condition"
    return status == COMPLETED or (status in UNSUCCESSFUL and dependency.step.on_failure == "inline")


# 7 and 8: who runs together


def writers_apart(audit: Auditor, event: Event, _state: State) -> Iterator[str]:
    """No two live writers with overlapping sets; no shared writer over a live reader."""
    node = audit.last
    if not _is_start(event) or node is None or node.step.type not in SLOT_TYPES:
        return
    for other in audit.live.values():
        if other is not node and conflict(node, other):
            yield f"{node.path} started beside {other.path}, which touches the same files"


def conflict(a: Node, b: Node) -> bool:
    """The rule itself, spelled out: overlapping writes, or a shared write under a read."""
    if a.write_set and b.write_set and overlaps(a.write_set, b.write_set):
        return True
    return _writes_under(a, b) or _writes_under(b, a)


def _writes_under(writer: Node, reader: Node) -> bool:
    shared = writer.step.posture == "writer" and writer.step.workspace_mode == "shared"
    return shared and overlaps(writer.write_set, reader.read_set)


def within_concurrency(audit: Auditor, event: Event, _state: State) -> Iterator[str]:
    """Live steps never exceed the slots of the tree, nor those of any scope with a cap."""
    if not _is_start(event):
        return
    if len(audit.live) > audit.settings.max_concurrency:
        yield f"{len(audit.live)} steps live, {audit.settings.max_concurrency} slots"
    scope = audit.last.parent if audit.last is not None else None
    while scope is not None:
        cap = _cap(scope)
        if cap is not None:
            inside = sum(1 for node in audit.live.values() if _is_inside(node, scope))
            if inside > cap:
                yield f"{inside} steps live in {scope.path or scope.run.id}, which has {cap} slots"
        scope = scope.parent


def _cap(scope: Composite) -> int | None:
    if scope is scope.run.scope:
        return scope.run.plan.limits.max_concurrency if scope.run.parent is not None else None
    action = scope.step.action
    is_body = scope.kind not in (MAP, LOOP)
    return action.max_concurrency if is_body and isinstance(action, GroupAction) else None


def _is_inside(node: Node, scope: Composite) -> bool:
    parent = node.parent
    while parent is not None:
        if parent is scope:
            return True
        parent = parent.parent
    return False


# 9: trees end from the leaves up


def parents_outlive_children(audit: Auditor, event: Event, state: State) -> Iterator[str]:
    """A parent is never terminal while a descendant is live."""
    node = audit.last
    if isinstance(event.data, Finished):
        node = state.runs[event.run].scope
    elif node is None or node.status not in TERMINAL:
        return
    if isinstance(node, Composite):
        for child in node.children:
            if child.status not in TERMINAL and child.status not in RUN_TERMINAL:
                yield f"{node.path or event.run} ended while {child.path} is {child.status}"
        for (run, path), live in audit.live.items():
            if _is_inside(live, node):
                yield f"{node.path or event.run} ended while {run}:{path} runs"


# 12 and 13: limits


def within_budget(audit: Auditor, event: Event, state: State) -> Iterator[str]:
    """Spend plus reservations in flight fit the budget whenever something is admitted."""
    ledger = state.ledger
    if (ledger.spent_tokens, ledger.spent_micro_usd) != (audit.tokens, audit.micro_usd):
        yield f"the ledger says {ledger.spent_tokens} tokens spent, the log says {audit.tokens}"
    if audit.last is None or not _is_start(event) or not state.budgeted:
        return
    ledgers = [(audit.max_tokens, audit.max_micro_usd, ledger)]
    ledgers += [
        (q.ledger.max_tokens, q.ledger.max_micro_usd, q.ledger) for q in audit.last.quotas if q.ledger
    ]
    first = getattr(event.data, "execution", 0) == 1 and isinstance(audit.last.step.action, AgentAction)
    for max_tokens, max_micro_usd, book in ledgers if first else ():
        if max_tokens is not None and book.spent_tokens + book.reserved_tokens > max_tokens:
            yield f"{audit.last.path} was admitted over the budget of {max_tokens} tokens"
        if max_micro_usd is not None and book.spent_micro_usd + book.reserved_micro_usd > max_micro_usd:
            yield f"{audit.last.path} was admitted over the budget of {max_micro_usd} micro-dollars"
    reserved = sum(node.reservation[0] for node in state.in_flight.values())
    if ledger.limited and ledger.reserved_tokens != reserved:
        yield f"{ledger.reserved_tokens} tokens are reserved, running attempts hold {reserved}"


def within_limits(audit: Auditor, event: Event, state: State) -> Iterator[str]:
    """Depth, fan-out, attempts, iterations, agents and steps stay within what the plan allows."""
    if audit.agents > audit.max_agents:
        yield f"{audit.agents} agents started, {audit.max_agents} allowed"
    if state.instances > state.max_steps and len(state.plan.steps) <= state.max_steps:
        yield f"{state.instances} step instances, {state.max_steps} allowed"
    run = state.runs.get(event.run)
    if run is not None and run.depth > MAX_NESTING_DEPTH:
        yield f"run {run.id} is {run.depth} deep"
    node = audit.last
    if node is None:
        return
    if node.step.type in SLOT_TYPES and node.attempt > node.step.retry.attempts:
        yield f"{node.path} is at attempt {node.attempt} of {node.step.retry.attempts}"
    parent = node.parent
    if isinstance(parent, Map) and len(parent.children) > parent.step.max_items:
        yield f"{parent.path} has {len(parent.children)} items, {parent.step.max_items} allowed"
    if (
        isinstance(parent, Loop)
        and parent.step.repeat
        and parent.iteration > parent.step.repeat.max_iterations
    ):
        yield f"{parent.path} is at iteration {parent.iteration}"


# 19: never stuck without a name


def has_something_to_do(audit: Auditor, _event: Event, state: State) -> Iterator[str]:
    """A run that is not over does something, waits for something named, or is paused."""
    if state.root.status in RUN_TERMINAL or state.root.status == PAUSED or state.agenda:
        return
    if not (audit.live or state.timers or state.approvals) and state.root.status != "pending":
        yield "nothing runs, nothing is due and nobody is asked"


# At the end


def _check_end(audit: Auditor, state: State) -> Iterator[tuple[int, str]]:
    if audit.live:
        yield 9, f"the run ended while {[path for _, path in audit.live]} run"
    for (run, path, number), attempt in audit.attempts.items():
        if attempt.executions and attempt.results != 1:
            yield 5, f"{run}:{path}: attempt {number} has {attempt.results} results"
    for run_state in state.runs.values():
        yield from _check_run_end(run_state)
    if state.live or state.in_flight or state.claimants or state.approvals or state.backoffs:
        yield 19, "the run ended with slots, sets or timers still held"
    if state.ledger.reserved_tokens or state.ledger.reserved_micro_usd:
        yield 12, "the run ended with reservations in flight"


def _check_run_end(run: Run) -> Iterator[tuple[int, str]]:
    lost = [
        node.path
        for node in run.nodes.values()
        if node.status in UNSUCCESSFUL or (node.status == SKIPPED and node.reason == "failure")
    ]
    for node in run.nodes.values():
        if node.status not in TERMINAL:
            yield 9, f"run {run.id} ended while {node.path} is {node.status}"
        if node.status in (FAILED, TIMED_OUT) and not isinstance(node.error, Failure):
            yield 10, f"{node.path} is {node.status} without a reason"
    if run.status == COMPLETED and lost:
        yield 10, f"run {run.id} calls itself completed although it lost {lost}"
    if run.status not in RUN_TERMINAL:
        yield 9, f"run {run.id} is still {run.status}"


def _is_start(event: Event) -> bool:
    return getattr(event.data, "status", "") == "started" and not isinstance(event.data, WorkflowEvent)


CHECKS: dict[int, Callable[[Auditor, Event, State], Iterator[str]]] = {
    4: dependencies_ended,
    7: writers_apart,
    8: within_concurrency,
    9: parents_outlive_children,
    12: within_budget,
    13: within_limits,
    19: has_something_to_do,
}
