"""Invariants of every run, checked event by event.

The auditor trusts no other code: it derives `Books` of its own from the log and compares them with the
state. The simulator, the kill tests and `fanfold verify` use it. Each invariant is one function in `CHECKS`,
under its number in the quality goals.

A log alone cannot show some invariants. These are checked elsewhere:

| invariant | checked by |
|---|---|
| 2 acknowledged means present | the simulator, `tests/kill`, `tests/store`; for stored data, `verify` |
| 3 folding again gives the same state | `verify`, by the hash in each commit; the simulator |
| 14 origin of values | references in inputs of steps here, inputs of child runs in `verify` |
| 15 a run leaves nothing behind | `tests/sessions/test_processes.py`, `tests/kill`, `tests/workspace` |
| 16 writes lie in the write-set | the host before each merge; `tests/workspace`, `tests/hostile` |
| 17 the same results, the same starts | folding, which rejects a start out of order; `make agree` |
| 18 no secret anywhere | `tests/e2e/test_canary.py`, `tests/models/test_secrets.py` |
| 20 every store gives the same log | the suite of `tests/store`, which each store must pass |
| 21 replaced executions have no effect | which of them continue, here; what they write, by the store |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from msgspec import Struct, field

from fanfold.kernel.events import (
    NOTHING_SPENT,
    UNCOUNTED,
    CancelRequested,
    EndRequested,
    Envelope,
    Event,
    Evidence,
    Failure,
    LimitsRaised,
    Payment,
    ResumeRequested,
    RunCreated,
    RunFinished,
    RunResumed,
    Settings,
    StepAdded,
    StepEvent,
    SubagentEvent,
    Usage,
    WorkflowEvent,
)
from fanfold.kernel.paths import overlaps
from fanfold.kernel.plan import MAX_NESTING_DEPTH, GroupAction, Ref
from fanfold.kernel.progress import untolerated
from fanfold.kernel.state import (
    ASKED,
    COMPLETED,
    EVENT_WORDS,
    FAILED,
    LEAF,
    LOOP,
    MAP,
    PAUSED,
    RUN_TERMINAL,
    SKIPPED,
    TERMINAL,
    TIMED_OUT,
    UNSUCCESSFUL,
    Composite,
    Loop,
    Map,
    Node,
    Run,
    State,
)

# -----------------------------------------------------------------------------------------------------------
# Books: a record of the log that is independent of the kernel's state.
#
# They come from the events alone. From the state they use only the shape of the tree: the steps and their
# recipe. If a single event shows a violation, the books report it while they record the event.

Address = tuple[str, str]
"""(run id, path in that run)"""


ENDS_EXECUTION = frozenset((*TERMINAL, "interrupted", ASKED, "held", "deferred"))
"""Statuses after which an execution has no process."""


class Attempt:
    """The number of executions and results of one attempt, according to the log."""

    __slots__ = ("executions", "results")

    def __init__(self) -> None:
        self.executions = 0
        self.results = 0


class Books:
    """The facts from all events of one run tree so far."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.log_seq: dict[str, int] = {}
        self.tree_seq = 0
        self.epoch = 0
        self.status: dict[Address, str] = {}
        """Terminal status by address."""
        self.skip_reason: dict[Address, str] = {}
        self.attempts: dict[tuple[str, str, int], Attempt] = {}
        self.live: dict[Address, Node] = {}
        """Steps with an unfinished attempt; interrupted ones too, unless they wait for a person."""
        self.open = False
        """Whether this is an open run."""
        self.growing = False
        """Whether an open run still accepts steps."""
        self.executing: dict[Address, tuple[int, int]] = {}
        """The attempt and execution of each step that has a process."""
        self.interrupted: dict[Address, Node] = {}
        """Steps of an open run that lost their process, until a client resumes them."""
        self.closed: set[Address] = set()
        self.agents = 0
        self.retried: dict[Address, str] = {}
        """Failure class of the last attempt of a step."""
        self.max_agents = 0
        self.max_tokens: int | None = None
        self.max_micro_usd: int | None = None
        self.tokens = 0
        self.micro_usd = 0
        self.paid: dict[tuple[str, str, int], Usage] = {}
        """The spending that sessions of each attempt reported before it ended."""
        self.last: Node | None = None
        """The node of the last recorded event."""

    def note_run(self, run: Run, data: WorkflowEvent) -> Iterator[tuple[int, str]]:
        """Record an event of a run; yield the violations that it shows (number, message)."""
        if isinstance(data, RunCreated) and data.plan is not None:
            self.open = self.growing = data.plan.open
            self.settings = data.limits()
            self.max_agents = self.settings.max_agents
            self.max_tokens = self.settings.budget_tokens
            self.max_micro_usd = self.settings.budget_micro_usd
        elif isinstance(data, RunResumed):
            yield from self._note_resume(data)
        elif isinstance(data, Payment):
            attempt = (run.id, data.step, data.attempt)
            self.paid[attempt] = self.paid.get(attempt, NOTHING_SPENT) + data.usage
            self._count(data.usage)
        elif isinstance(data, ResumeRequested):
            self.interrupted.pop((run.id, data.step), None)
        elif isinstance(data, EndRequested) or (isinstance(data, CancelRequested) and run.parent is None):
            self.growing = False
        elif isinstance(data, StepAdded):
            for name in data.step.after:
                if (run.id, name) in self.closed:
                    yield 10, f"{data.step.id} was added behind {name}, which is closed"
        elif isinstance(data, RunFinished) and run.parent is None and self.growing and run.ending != "stop":
            yield 10, f"run {run.id} is open and ended by itself"

    def _note_resume(self, data: RunResumed) -> Iterator[tuple[int, str]]:
        before, self.executing = self.executing, {}
        for ref in data.continues:
            address, number = (ref.run, ref.step), (ref.attempt, ref.execution)
            if before.get(address) != number:
                yield 21, f"{ref.step}: execution {ref.attempt}.{ref.execution} continues but does not run"
            self.executing[address] = number
        if self.open:
            lost = {address: node for address, node in self.live.items() if address not in self.executing}
            self.interrupted |= lost
            self.live = {address: node for address, node in self.live.items() if address not in lost}
        self._note_raised(data.raised or LimitsRaised())

    def _note_raised(self, raised: LimitsRaised) -> None:
        self.max_agents = max(self.max_agents, raised.max_agents or 0)
        if raised.budget_tokens is not None:
            self.max_tokens = max(self.max_tokens or 0, raised.budget_tokens)
        if raised.budget_micro_usd is not None:
            self.max_micro_usd = max(self.max_micro_usd or 0, raised.budget_micro_usd)

    def _count(self, usage: Usage) -> None:
        self.tokens += usage.tokens
        self.micro_usd += usage.micro_usd or 0

    def note_step(self, run: str, node: Node, data: StepEvent | SubagentEvent) -> Iterator[tuple[int, str]]:
        """Record an event of a step; yield the violations that it shows (number, message)."""
        word = EVENT_WORDS.get(data.status, data.status)
        address = (run, data.step)
        before = self.status.get(address)
        if data.usage is not None:
            present = data.attempt == node.attempt  # the node keeps payments of its last attempt only
            counted = self.paid.get((run, data.step, data.attempt)) if present else None
            self._count(data.usage.beyond(counted or NOTHING_SPENT))
        if word == "closed":
            self.closed.add(address)
        if data.late or word in ("queued", "closed"):
            return
        if before is not None:
            number = 6 if word == "started" else 10
            yield number, f"{data.step} is {before} and still took {word!r}"
        attempt = self.attempts.setdefault((run, data.step, data.attempt), Attempt())
        if word in ENDS_EXECUTION:
            self.executing.pop(address, None)
        if word == "started":
            yield from self._note_start(address, data, attempt, node)
        elif word == "interrupted" and self.open and not (data.error and data.error.subject):
            self.interrupted[address] = self.live.pop(address)
        elif word in ("held", "deferred"):  # it has no process, even if it had started before
            self.live.pop(address, None)
        elif word in TERMINAL:
            self._note_end(address, data, attempt, word, node)
            if attempt.results > 1:
                yield 5, f"{data.step}: attempt {data.attempt} has {attempt.results} results"

    def _note_start(
        self, address: Address, data: StepEvent | SubagentEvent, attempt: Attempt, node: Node
    ) -> Iterator[tuple[int, str]]:
        attempt.executions += 1
        if data.execution != attempt.executions:
            yield 5, f"{data.step}: execution {data.execution} follows {attempt.executions - 1}"
        if address in self.interrupted:
            yield 12, f"{data.step} was interrupted and goes on although nobody asked for it"
        if address in self.executing:
            yield 5, f"{data.step} started again while its execution {self.executing[address]} runs"
        if node.kind == LEAF:
            self.live[address] = node
            self.executing[address] = (data.attempt, data.execution)
            retries = self.settings.outage_ms is not None and self.retried.get(address) in UNCOUNTED
            if data.execution == 1 and node.step.traits.role is not None and not retries:
                self.agents += 1

    def _note_end(
        self, address: Address, data: StepEvent | SubagentEvent, attempt: Attempt, word: str, node: Node
    ) -> None:
        if attempt.executions:
            attempt.results += 1
        self.live.pop(address, None)
        self.interrupted.pop(address, None)
        self.retried[address] = data.error.kind if data.error is not None else ""
        if node.status in TERMINAL:
            self.status[address] = word
            self.skip_reason[address] = data.reason


class InvariantViolation(Struct, frozen=True):
    """A violated invariant, by its number in the quality goals."""

    number: int = field(name="invariant")
    message: str


class Auditor:
    """Checks the invariants of one run tree. Call `observe` after each fold, `close` after the run's end."""

    def __init__(self) -> None:
        self.books = Books()

    def observe(self, envelope: Envelope, event: Event, state: State) -> list[InvariantViolation]:
        """Return the violations shown by this event, which is already folded into `state`."""
        books = self.books
        found = [InvariantViolation(1, message) for message in _check_sequence(books, envelope)]
        found += [InvariantViolation(11, message) for message in _check_epoch(books, envelope)]
        data = event.data
        if isinstance(data, Evidence):
            return found
        books.last = None
        if isinstance(data, WorkflowEvent):
            found += [InvariantViolation(n, m) for n, m in books.note_run(state.runs[event.run], data)]
        else:
            books.last = state.runs[event.run].nodes[data.step]
            found += [InvariantViolation(n, m) for n, m in books.note_step(event.run, books.last, data)]
        started = _is_start(event)
        for number, check in CHECKS.items():
            if started or number not in ON_START:
                found.extend(InvariantViolation(number, message) for message in check(books, event, state))
        return found

    def close(self, state: State) -> list[InvariantViolation]:
        """Return the violations shown by the state after the root run has ended."""
        return [InvariantViolation(number, message) for number, message in _check_end(self.books, state)]


# 1 and 11: the shape of the log


def _check_sequence(books: Books, envelope: Envelope) -> Iterator[str]:
    expected = books.log_seq.get(envelope.log, 0) + 1
    if envelope.seq != expected:
        yield f"log {envelope.log}: seq {envelope.seq} where {expected} belongs"
    books.log_seq[envelope.log] = envelope.seq
    books.tree_seq += 1
    if envelope.tree_seq != books.tree_seq:
        yield f"tree_seq {envelope.tree_seq} where {books.tree_seq} belongs"


def _check_epoch(books: Books, envelope: Envelope) -> Iterator[str]:
    if envelope.epoch < books.epoch:
        yield f"epoch {envelope.epoch} after {books.epoch}"
    books.epoch = max(books.epoch, envelope.epoch)


# 4: order


def dependencies_ended(books: Books, event: Event, _state: State) -> Iterator[str]:
    """Check that no step starts before its dependencies have ended in a status that admits it."""
    if not _is_start(event) or books.last is None:
        return
    node: Node | None = books.last
    while node is not None:
        yield from _open_dependencies(books, node)
        # Maps and loops have no start event: the start of their first child counts as theirs.
        node = node.parent if node.parent is not None and node.parent.kind in (MAP, LOOP) else None


def _open_dependencies(books: Books, node: Node) -> Iterator[str]:
    parent = node.parent
    if parent is None or parent.kind in (MAP, LOOP):
        return
    prefix = f"{parent.path}/" if parent.path else ""
    for name in node.step.depends_on + node.step.after:
        address = (node.run.id, prefix + name)
        status = books.status.get(address)
        if status is None:
            yield f"{node.path} started before {address[1]} ended"
        elif name in node.step.depends_on and not _admits(books, address, status, node.run.nodes[address[1]]):
            yield f"{node.path} started although {address[1]} is {status}"


def _admits(books: Books, address: Address, status: str, dependency: Node) -> bool:
    if status == SKIPPED:
        return books.skip_reason.get(address) == "condition"
    return status == COMPLETED or (status in UNSUCCESSFUL and dependency.step.on_failure == "inline")


# 14: origin of values


_REFERENCE = r"(steps|inputs)\.([\w-]+)"


def made_of_what_is_there(books: Books, event: Event, _state: State) -> Iterator[str]:
    """Check that steps referred to have ended when a step starts, and that its recipe declares its inputs."""
    node = books.last
    if not _is_start(event) or node is None:
        return
    declared = {param.name for param in node.run.plan.inputs} if node.step.inputs else ()
    for kind, name in sorted(set(_references(node))):
        if kind == "inputs" and name not in declared:
            yield f"{node.path} refers to the input {name}, which nobody declares"
        found = _in_sight(node, name) if kind == "steps" else None
        if found is not None and books.status.get((found.run.id, found.path)) is None:
            yield f"{node.path} started before {found.path} ended, which it refers to"


def _references(node: Node) -> Iterator[tuple[str, str]]:
    """Yield the references in the inputs of a step. Templates are ignored: only a renderer parses them."""
    for value in node.step.inputs.values():
        if isinstance(value, Ref) and (found := re.match(_REFERENCE, value.path)):
            yield found[1], found[2]


def _in_sight(node: Node, name: str) -> Node | None:
    """Return the step of that name in the scope of this one, or in the nearest enclosing scope."""
    parent = node.parent
    while parent is not None:
        found = node.run.nodes.get(f"{parent.path}/{name}" if parent.path else name)
        if parent.kind not in (MAP, LOOP) and found is not None and not _is_around(found, node):
            return found
        parent = parent.parent
    return None


def _is_around(other: Node, node: Node) -> bool:
    return other is node or (isinstance(other, Composite) and _is_inside(node, other))


# 7 and 8: steps that run at the same time


def writers_apart(books: Books, event: Event, _state: State) -> Iterator[str]:
    """Check that no two live writers overlap, and that no shared writer overlaps a live reader."""
    node = books.last
    if not _is_start(event) or node is None or node.kind != LEAF:
        return
    reads = node.step.posture == "read_only"
    for other in books.live.values():
        if reads and other.step.posture == "read_only":
            continue
        if other is not node and conflict(node, other):
            yield f"{node.path} started beside {other.path}, which touches the same files"


def conflict(a: Node, b: Node) -> bool:
    """Whether two steps conflict: their writes overlap, or one writes shared files that the other reads."""
    if a.write_set and b.write_set and overlaps(a.write_set, b.write_set):
        return True
    return _writes_under(a, b) or _writes_under(b, a)


def _writes_under(writer: Node, reader: Node) -> bool:
    shared = writer.step.posture == "writer" and writer.step.workspace_mode == "shared"
    return shared and overlaps(writer.write_set, reader.read_set)


def within_concurrency(books: Books, event: Event, _state: State) -> Iterator[str]:
    """Check that live steps never exceed the slots of the tree, nor those of any scope with a cap."""
    if not _is_start(event):
        return
    live = [node for node in books.live.values() if node.step.traits.slot]
    if len(live) > books.settings.max_concurrency:
        yield f"{len(live)} steps live, {books.settings.max_concurrency} slots"
    scope = books.last.parent if books.last is not None else None
    while scope is not None:
        for cap in _caps(scope):
            inside = sum(1 for node in live if _is_inside(node, scope))
            if inside > cap:
                yield f"{inside} steps live in {scope.path or scope.run.id}, which has {cap} slots"
        scope = scope.parent


def _caps(scope: Composite) -> Iterator[int]:
    caps: list[int | None] = []
    if scope is scope.run.scope:
        caps = [scope.run.plan.limits.max_concurrency if scope.run.parent is not None else None]
    else:
        action = scope.step.action
        if scope.kind not in (MAP, LOOP) and isinstance(action, GroupAction):
            caps.append(action.max_concurrency)
        if scope.parent is None or scope.parent.step is not scope.step:  # not one item or iteration of it
            caps.append(scope.step.max_concurrency)
    yield from (cap for cap in caps if cap is not None)


def _is_inside(node: Node, scope: Composite) -> bool:
    parent = node.parent
    while parent is not None:
        if parent is scope:
            return True
        parent = parent.parent
    return False


# 9: trees end from the leaves up


def parents_outlive_children(books: Books, event: Event, state: State) -> Iterator[str]:
    """Check that a parent is never terminal while a descendant is live."""
    node = books.last
    if isinstance(event.data, RunFinished):
        node = state.runs[event.run].scope
    elif node is None or node.status not in TERMINAL:
        return
    if isinstance(node, Composite):
        for child in node.children:
            if child.status not in TERMINAL and child.status not in RUN_TERMINAL:
                yield f"{node.path or event.run} ended while {child.path} is {child.status}"
        for (run, path), live in books.live.items():
            if _is_inside(live, node):
                yield f"{node.path or event.run} ended while {run}:{path} runs"


# 12 and 13: limits


def within_budget(books: Books, event: Event, state: State) -> Iterator[str]:
    """Check that spending plus reservations fit the budget whenever a step is admitted."""
    ledger = state.ledger
    if (ledger.spent_tokens, ledger.spent_micro_usd) != (books.tokens, books.micro_usd):
        yield f"the ledger says {ledger.spent_tokens} tokens spent, the log says {books.tokens}"
    if books.last is None or not _is_start(event) or not state.budgeted:
        return
    ledgers = [(books.max_tokens, books.max_micro_usd, ledger)]
    ledgers += [
        (q.ledger.max_tokens, q.ledger.max_micro_usd, q.ledger) for q in books.last.quotas if q.ledger
    ]
    first = getattr(event.data, "execution", 0) == 1 and books.last.step.traits.role is not None
    for max_tokens, max_micro_usd, book in ledgers if first else ():
        if max_tokens is not None and book.spent_tokens + book.reserved_tokens > max_tokens:
            yield f"{books.last.path} was admitted over the budget of {max_tokens} tokens"
        if max_micro_usd is not None and book.spent_micro_usd + book.reserved_micro_usd > max_micro_usd:
            yield f"{books.last.path} was admitted over the budget of {max_micro_usd} micro-dollars"
    reserved = sum(node.reservation[0] for node in state.in_flight.values())
    if ledger.limited and ledger.reserved_tokens != reserved:
        yield f"{ledger.reserved_tokens} tokens are reserved, running attempts hold {reserved}"


def within_limits(books: Books, event: Event, state: State) -> Iterator[str]:
    """Check that depth, fan-out, attempts, iterations, agents and steps stay within their limits."""
    if books.agents > books.max_agents:
        yield f"{books.agents} agents started, {books.max_agents} allowed"
    if state.instances > state.max_steps and len(state.plan.steps) <= state.max_steps:
        yield f"{state.instances} step instances, {state.max_steps} allowed"
    run = state.runs.get(event.run)
    if run is not None and run.depth > MAX_NESTING_DEPTH:
        yield f"run {run.id} is {run.depth} deep"
    node = books.last
    if node is None:
        return
    if node.kind == LEAF and node.attempt > node.step.retry.attempts:
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


# 19: never stuck without a reason


def has_something_to_do(books: Books, _event: Event, state: State) -> Iterator[str]:
    """Check that an unfinished run is active, waits for something known, or is paused."""
    if state.root.status in RUN_TERMINAL or state.root.status == PAUSED or state.agenda:
        return
    waits = books.live or state.timers or state.approvals or state.held
    waits = waits or state.deferred or books.interrupted or books.growing
    if not waits and state.root.status != "pending":
        yield "nothing runs, nothing is due and nobody is asked"


# At the end


def _check_end(books: Books, state: State) -> Iterator[tuple[int, str]]:
    if books.live:
        yield 9, f"the run ended while {[path for _, path in books.live]} run"
    for (run, path, number), attempt in books.attempts.items():
        if attempt.executions and attempt.results != 1:
            yield 5, f"{run}:{path}: attempt {number} has {attempt.results} results"
    for run_state in state.runs.values():
        yield from _check_run_end(run_state)
    waiting = state.approvals or state.delays or state.backoffs or state.held or state.deferred
    if state.live or state.in_flight or state.claimants or waiting:
        yield 19, "the run ended with slots, sets or timers still held"
    if state.ledger.reserved_tokens or state.ledger.reserved_micro_usd:
        yield 12, "the run ended with reservations in flight"


def _check_run_end(run: Run) -> Iterator[tuple[int, str]]:
    lost = [node.path for node in untolerated(run)]
    for node in run.nodes.values():
        if node.status not in TERMINAL:
            yield 9, f"run {run.id} ended while {node.path} is {node.status}"
        if node.status in (FAILED, TIMED_OUT) and not isinstance(node.error, Failure):
            yield 10, f"{node.path} is {node.status} without a reason"
    ended_by = run.ended_by.step.traits.ends if run.ended_by is not None else None
    if ended_by is not None and run.status != ended_by:
        yield 10, f"run {run.id} is {run.status}, although a step ended it as {ended_by}"
    elif ended_by is None and run.status == COMPLETED and lost:
        yield 10, f"run {run.id} calls itself completed although it lost {lost}"
    if run.status not in RUN_TERMINAL:
        yield 9, f"run {run.id} is still {run.status}"


def _is_start(event: Event) -> bool:
    return getattr(event.data, "status", "") == "started" and not isinstance(event.data, WorkflowEvent)


CHECKS: dict[int, Callable[[Books, Event, State], Iterator[str]]] = {
    4: dependencies_ended,
    7: writers_apart,
    8: within_concurrency,
    9: parents_outlive_children,
    12: within_budget,
    13: within_limits,
    14: made_of_what_is_there,
    19: has_something_to_do,
}
ON_START = (4, 7, 8, 14)
"""Checks that apply only to the start of a step."""
