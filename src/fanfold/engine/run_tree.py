"""One run tree in the process of its owner: state, log and values stay consistent.

Rules
* `report` applies one event and handles every command that follows from it. Nothing is durable yet.
* `commit` writes all of it as one transaction. Only then may effects start and listeners be notified.
* If a commit fails, this object is ahead of the log and must be discarded. The log is the truth.
* Secrets are removed from an event before it is applied, so that the state equals the log.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from itertools import takewhile
from threading import get_ident
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from fanfold.engine.command_handler import CommandHandler, RunWorld
from fanfold.errors import BugError
from fanfold.kernel.admission import budget_news
from fanfold.kernel.commands import Command, Stop
from fanfold.kernel.decide import is_waiting
from fanfold.kernel.events import (
    EVIDENCE_TYPES,
    NOTHING_SPENT,
    Data,
    Envelope,
    Event,
    Evidence,
    Failure,
    Payment,
    StepData,
    StepEvent,
    SubagentEvent,
    Usage,
    WorkflowEvent,
    event_of,
    type_name,
)
from fanfold.kernel.paths import overlaps
from fanfold.kernel.state import (
    ASKED,
    COMPLETED,
    DEFERRED,
    EVENT_WORDS,
    LEAF,
    PAUSED,
    READY,
    RUN_TERMINAL,
    RUNNING,
    TERMINAL,
    WAITING,
    Node,
    Run,
    State,
    is_shared_writer,
    trace,
)
from fanfold.kernel.transitions import create_state, evolve, is_executing, mark_late
from fanfold.language.json_text import with_text_only
from fanfold.steps.ids import session_id
from fanfold.steps.order import Job, Order
from fanfold.steps.records import Memory, child_name, child_of
from fanfold.steps.run_config import RunConfig, from_json, is_kept_open
from fanfold.steps.step_type import decode_order
from fanfold.steps.values import Values, is_below
from fanfold.store.protocol import (
    Batch,
    Blobs,
    Claim,
    OutputRow,
    RunHead,
    Store,
    StoreFault,
    as_stored,
    no_run,
)

if TYPE_CHECKING:
    from fanfold.store.journal import Journal

# -----------------------------------------------------------------------------------------------------------
# Child runs that only wait for people or a time (the kernel knows this of whole trees only)


def only_asks(state: State, top: Run) -> bool:
    """Whether a child run and the runs below it only wait for approvals, timers and open waits."""
    asks = False
    for run in state.runs.values():
        if not is_below(run, top):
            continue
        for node in run.nodes.values():
            if node.status == WAITING and (
                node.step.traits.waits is not None or node.reason in (ASKED, DEFERRED)
            ):
                asks = True
            elif node.kind == LEAF and node.status in (READY, RUNNING, WAITING):
                return False
    return asks


# -----------------------------------------------------------------------------------------------------------
# The clock of a run for one owner
#
# Timers, time-outs and limits compare moments of one run. A wall clock that is set back would stop them; one
# that is set forward would fire them all. So the clock of the store is read once, when an owner starts. After
# that only elapsed time counts, including sleep of the machine. The clock of an owner never starts before the
# last event in the log, nor before the last moment at which the previous owner was known to be alive.

_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def wall_clock_ms() -> int:
    """Milliseconds since the epoch, from the wall clock of this machine."""
    return int(time.time() * 1_000)


class Clock(Protocol):
    """Returns the time of a run in milliseconds since the epoch."""

    def now_ms(self) -> int: ...


class OwnerClock:
    """The clock of one owner, which starts at the time `began_at`."""

    def __init__(self, began_at: int) -> None:
        self._began_at = began_at
        self._began = time.clock_gettime_ns(_ELAPSED)

    def now_ms(self) -> int:
        return self._began_at + (time.clock_gettime_ns(_ELAPSED) - self._began) // 1_000_000


class PastOwner:
    """The owner that wrote the last events that were read, and the time of its first event.

    Its lease records how long it lived, by a clock that cannot be set; the wall clock may have been set
    since. The error is the time between acquiring the lease and the first event, well below a second.
    """

    def __init__(self) -> None:
        self._epoch, self._since = 0, 0

    def wrote(self, epoch: int, at: int) -> None:
        if epoch != self._epoch:
            self._epoch, self._since = epoch, at

    def alive_at(self, next_epoch: int, lived_ms: int | None) -> int:
        """The last moment at which the owner was known to be alive, or 0 if unknown.

        `lived_ms` is how long it lived, from the lease of the next owner.

        >>> past = PastOwner()
        >>> past.wrote(1, 5_000)
        >>> past.alive_at(2, 300), past.alive_at(2, None), past.alive_at(3, 300)  # the second wrote nothing
        (5300, 0, 0)
        """
        return self._since + lived_ms if lived_ms is not None and self._epoch == next_epoch - 1 else 0


# -----------------------------------------------------------------------------------------------------------
# Errors for logs that were changed after they were written, as opposed to bugs of Fanfold

T = TypeVar("T")
P = ParamSpec("P")


def tells_damage(
    load: Callable[Concatenate[type[T], Store, str, P], T],
) -> Callable[Concatenate[type[T], Store, str, P], T]:
    """Decorate a function that loads a tree: on an error, raise `store.corrupt` if the log was changed."""

    @wraps(load)
    def judged(cls: type[T], store: Store, root: str, /, *more: P.args, **named: P.kwargs) -> T:
        try:
            return load(cls, store, root, *more, **named)
        except (BugError, msgspec.MsgspecError, LookupError, TypeError, ValueError) as error:
            found = store.check(root)
            if not found:
                raise  # the log is intact, so this is a bug of Fanfold
            raise StoreFault(
                "store.corrupt",
                f"the log of run {root} was changed after it was written: {found[0].message}",
                hint=f"fanfold verify {root} shows the change",
            ) from error

    return judged


# -----------------------------------------------------------------------------------------------------------
# The rows of runs, from which runs are listed without replaying a log
#
# Rules
# * A row is written with the commit that changes the status of its run.
# * Spending changes with nearly every event, and each row costs one more page to write. So spending is
#   written with the first commit in each quarter of a second, and with each commit that records a payment.
#   If a process dies, the row of its run therefore includes all payments.
# * The log alone determines which commit writes which row. `verify` compares rows with the log. It allows
#   spending to lag while a run is unfinished, since other code may have written it less often.

SPENDING_EVERY_MS = 250
SpentSoFar: TypeAlias = tuple[Usage, int]
"""Usage and agents."""
_NOTHING: SpentSoFar = (NOTHING_SPENT, 0)


class RunRows:
    """Selects the rows that a commit has to write.

    `make` returns the current row of a run. `status` and `spent` return values of the run itself, without
    the runs below it.
    """

    def __init__(
        self, make: Callable[[Run], RunHead], status: Callable[[Run], str], spent: Callable[[Run], SpentSoFar]
    ) -> None:
        self._make = make
        self._status = status
        self._spent = spent
        self._written: dict[str, tuple[str, SpentSoFar]] = {}
        self._itself: dict[str, SpentSoFar] = {}
        """The spending of each run itself when rows were last written because of spending."""
        self._open: set[str] = set()
        """Runs that may have spent since rows were last written because of spending."""
        self._at = 0

    def take_over(self, found: Collection[RunHead], at: int) -> None:
        """Continue from the rows in the store; `at` is the time of the last event."""
        self._note(found)
        self._at = at

    def changed(self, runs: Mapping[str, Run], root: Run, written: Sequence[Envelope]) -> list[RunHead]:
        """The rows to write with these events, which are already applied. Most events change no row."""
        rows: dict[str, RunHead] = {}
        moved = self._is_new(root)  # then all runs below may have changed too
        if moved or len(runs) > 1:
            below = runs if moved else (envelope.run_id for envelope in written)
            names = [name for name in dict.fromkeys((root.id, *below)) if self._is_new(runs[name])]
            rows = {name: self._make(runs[name]) for name in names}
            self._note(rows.values())
        if written:
            at, before = written[-1].at, self._at
            self._at = at
            paid = any(isinstance(envelope.data, Payment) for envelope in written)
            if paid or at // SPENDING_EVERY_MS != before // SPENDING_EVERY_MS:
                spenders = self._of_spenders(runs)
                self._note(spenders.values())
                self._open = {name for name in self._open if self._written[name][0] not in RUN_TERMINAL}
                rows |= spenders
        return list(rows.values())

    def _note(self, rows: Collection[RunHead]) -> None:
        self._written |= {row.run_id: _said(row) for row in rows}
        self._open |= {row.run_id for row in rows}

    def _is_new(self, run: Run) -> bool:
        known = self._written.get(run.id)
        return known is None or known[0] != self._status(run)

    def _of_spenders(self, runs: Mapping[str, Run]) -> dict[str, RunHead]:
        spenders: dict[str, Run] = {}
        for run in [
            runs[name] for name in self._open if name in runs
        ]:  # a row may have no run; `verify` reports that
            spent = self._spent(run)
            if self._itself.get(run.id, _NOTHING) != spent:
                self._itself[run.id] = spent
                spenders |= {above.id: above for above in _upward(run)}
        rows = {name: self._make(run) for name, run in spenders.items()}
        return {name: row for name, row in rows.items() if self._written.get(name) != _said(row)}


def _said(row: RunHead) -> tuple[str, SpentSoFar]:
    return row.status, (row.usage, row.agents)


def _upward(run: Run | None) -> Iterator[Run]:
    """A run and the runs above it, whose spending includes its own."""
    while run is not None:
        yield run
        run = run.parent


# -----------------------------------------------------------------------------------------------------------
# The data of an event as the log stores it


def stored(data: Data) -> Any:
    """The part of an event's data that its envelope stores."""
    return data.data if type(data) is Evidence else data


def text_only(data: Any) -> Any:
    """The same data with valid text only. File names may contain bytes that are not text."""
    if isinstance(data, Evidence):
        return replace(data, data=with_text_only(msgspec.to_builtins(data.data)))
    return msgspec.convert(with_text_only(msgspec.to_builtins(data)), type(data))


Reuse: TypeAlias = Callable[[Order[Job]], tuple[str | None, Failure | None]]
_Place: TypeAlias = tuple[str, str, str | None, int, str, int]
"""The fields that all envelopes of a run share."""
_encode = msgspec.json.Encoder().encode


def nothing_to_reuse(_order: Order[Job]) -> tuple[str | None, Failure | None]:
    return None, None


class StartRef(msgspec.Struct, frozen=True):
    """The place of a `started` event in the log of its run, and the blob of its order."""

    seq: int
    order: str


class RunTree:
    """The state, log and values of one run tree; without a journal, a reader's copy that never writes."""

    def __init__(
        self,
        store: Store,
        first: Event,
        journal: Journal | None,
        reuse: Reuse = nothing_to_reuse,
        *,
        forked_from: str | None = None,
    ) -> None:
        self.store = store
        self.journal = journal
        self.blobs = Blobs(store) if journal is None else journal.blobs
        self.memory = Memory()
        first, _ = self._without_secrets(first)
        self.state: State = create_state(first)
        self.memory.observe(first)
        self.values = Values(self.state, self.memory, self.blobs)
        self.world = RunWorld(self.memory, self.values, self.blobs, reuse, self._claim)
        self._handler = CommandHandler(self.state, self.world)
        self._claimed: dict[tuple[str, str], Node] = {}
        """Steps that claim files of the project tree, or wait for such files."""
        self._forked_from = forked_from
        self._clock: Clock | None = None
        self._owner = PastOwner()
        self.log_seq: dict[str, int] = {}
        self.tree_seq = 0
        self._last_at = 0
        self.pending: list[Envelope] = []
        self._data: list[bytes | None] = []
        """The encoded data of each pending envelope."""
        self._places: dict[str, _Place] = {}
        self.requests_done: list[int] = []
        self._rows = RunRows(self.head, lambda run: run_status(self.state, run), self._spent_itself)
        self._frozen: dict[str, RunConfig] = {}
        self._outputs: list[OutputRow] = []
        self._cache: list[tuple[str, str, str]] = []
        self.starts: dict[tuple[str, str], StartRef] = {}
        """The last start of each step that another process executes, by run and path."""
        self._turns: dict[str, list[Node]] = {}
        """The steps of an open run, grouped by the child whose turns they are, as far as `turns` has read."""
        self._turns_read = 0

    @property
    def root(self) -> Run:
        return self.state.root

    def use_clock(self, clock: Clock) -> None:
        """Take the time from another clock than the owner's, for a replay."""
        self._clock = clock

    def now_ms(self) -> int:
        """The current time of the run, from the clock of its owner."""
        if self._clock is None:
            self._clock = OwnerClock(max(self.store.now_ms(), self.state.now, self.alive_at()))
        return self._clock.now_ms()

    def alive_at(self) -> int:
        """When the previous owner was last known to be alive, by its clock; 0 if unknown or if it left."""
        return 0 if self.journal is None else self._owner.alive_at(self.journal.epoch, self.journal.lived_ms)

    def turns(self, child: str) -> list[Node]:
        """The steps of an open run that are turns of one child, in order; empty for an unknown name."""
        children = self.root.scope.children
        for node in children[self._turns_read :]:
            self._turns.setdefault(child_name(node.path), []).append(node)
        self._turns_read = len(children)
        return list(self._turns.get(child, ()))

    def nodes(self) -> Iterator[Node]:
        """Every step instance of the run and the runs below it, in the order in which they were created."""
        for run in self.state.runs.values():
            yield from run.nodes.values()

    def node(self, run: str, path: str) -> Node | None:
        """The step instance at a path of a run, if there is one."""
        found = self.state.runs.get(run)
        return None if found is None else found.nodes.get(path)

    def usage_of(self, node: Node) -> Usage | None:
        """What a step has spent; None for steps that spend nothing."""
        return self.memory.usage.get((node.run.id, node.path))

    def child_count(self) -> int:
        """How many children an open run has."""
        self.turns("")
        return len(self._turns)

    def frozen(self, node: Node | None = None) -> RunConfig:
        """The configuration of the run. A step of an open run has the configuration it was added with."""
        facts = self.memory.frozen
        if node is not None and self.memory.added:
            facts = self.memory.added.get(child_of(node), facts)
        if facts is None:
            return RunConfig()
        if facts not in self._frozen:
            self._frozen[facts] = from_json(self.blobs.get(facts))
        return self._frozen[facts]

    def know_frozen(self, facts: str, frozen: RunConfig) -> None:
        """Cache a configuration that the caller has just written."""
        self._frozen[facts] = frozen

    @classmethod
    @tells_damage
    def load(
        cls,
        store: Store,
        root: str,
        journal: Journal | None = None,
        reuse: Reuse = nothing_to_reuse,
        *,
        forked_from: str | None = None,
        until: int | None = None,
    ) -> RunTree:
        """Replay a stored tree, up to the event `until` if set. An owner then appends `resumed` first."""
        envelopes = store.tree(root, decode=as_stored)
        first = next(envelopes, None)
        if first is None:
            raise no_run(root)
        tree = cls(store, event_of(first), journal, reuse, forked_from=forked_from)
        tree._count(first)
        if until is not None:
            envelopes = takewhile(lambda envelope: envelope.tree_seq <= until, envelopes)
        tree._replay(envelopes)
        tree._rows.take_over(store.tree_heads(root), tree._last_at)
        return tree

    @classmethod
    def reading(cls, store: Store, first: Envelope) -> RunTree:
        """A reader's copy of a stored tree after its first event; `catch_up` continues from there."""
        tree = cls(store, event_of(first), None)
        tree._count(first)
        return tree

    def _replay(self, envelopes: Iterable[Envelope]) -> None:
        for envelope in envelopes:
            self.take(envelope, event_of(envelope))

    def take(self, envelope: Envelope, event: Event) -> None:
        """Apply the next event of the log, which the caller has read from its envelope."""
        evolve(self.state, event)
        self.memory.observe(event)
        self._count(envelope)
        if getattr(event.data, "order", ""):
            self._note_start(event, envelope.seq)

    def catch_up(self, written: Iterable[Envelope]) -> None:
        """Apply the events that the owner has written since, and skip known ones (reader's copy only)."""
        self._replay(envelope for envelope in written if envelope.tree_seq > self.tree_seq)

    def read_from(self, store: Store) -> None:
        """Read values from another connection to the same store (reader's copy only)."""
        self.store = store
        self.blobs.read_from(store)

    def _count(self, envelope: Envelope) -> None:
        self._owner.wrote(envelope.epoch, envelope.at)
        self._last_at = envelope.at
        self.log_seq[envelope.log] = envelope.seq
        self.tree_seq = envelope.tree_seq

    # Writing

    def _without_secrets(self, event: Event) -> tuple[Event, bytes]:
        """The event without secrets, and its encoded data."""
        try:
            encoded = _encode(stored(event.data))
        except UnicodeEncodeError:  # a file name may contain any bytes
            event = replace(event, data=text_only(event.data))
            encoded = _encode(stored(event.data))
        clean = self.store.clean(encoded)
        if clean is encoded:
            return event, encoded
        data: Any = event.data
        if isinstance(data, Evidence):
            return replace(event, data=replace(data, data=msgspec.json.decode(clean))), clean
        return replace(event, data=msgspec.json.decode(clean, type=type(data))), clean

    def begin(self, first: Event) -> None:
        """Record the first event of a new tree; it is already applied."""
        self._append(*self._without_secrets(first))

    def report(self, run: str, at: int, data: Data) -> None:
        """Apply one event, then handle every command that the kernel issues because of it."""
        if self.journal is not None and self.journal.links and isinstance(data, SubagentEvent):
            link = self.journal.links.pop(session_id(run, data.step, max(1, data.attempt)), b"")
            data = replace(data, chain=link.hex()) if link else data
        self._fold(mark_late(self.state, Event(run, at, data)))

        def record(command: Command, answer: Data) -> None:
            self._fold(Event(command.run, at, answer))

        self._handler.answer_all(record)

    def _fold(self, event: Event) -> None:
        event, encoded = self._without_secrets(event)
        evolve(self.state, event)
        self.memory.observe(event)
        self._append(event, encoded)
        self._outputs += self.outputs_of(event)
        if isinstance(event.data, WorkflowEvent):
            news = budget_news(self.state, event.data)
            if news is not None:
                self._append(*self._without_secrets(Event(event.run, event.at, news)))

    def _append(self, event: Event, encoded: bytes) -> None:
        name, data = event.run, event.data
        seq = self.log_seq[name] = self.log_seq.get(name, 0) + 1
        self.tree_seq += 1
        place = self._places.get(name) or self._place_of(name)
        self.pending.append(
            Envelope(name, seq, self.tree_seq, event.at, type_name(data), stored(data), *place)
        )
        self._data.append(encoded)
        if isinstance(data, StepData) and data.order:
            self._note_start(event, seq)

    def _note_start(self, event: Event, seq: int) -> None:
        data = event.data
        assert isinstance(data, StepData)
        self.starts[event.run, data.step] = StartRef(seq, data.order)

    def continuing(self) -> list[tuple[Node, Order[Job]]]:
        """The executions that other processes still perform by the log, with their orders, in plan order."""
        live = sorted(self.state.in_flight.values(), key=lambda node: node.order)
        nodes = [node for node in live if is_executing(node) and (node.run.id, node.path) in self.starts]
        orders = [decode_order(self.store.blob(self.starts[one.run.id, one.path].order)) for one in nodes]
        current = [
            (node, order)
            for node, order in zip(nodes, orders, strict=True)
            if (node.attempt, node.execution) == (order.attempt, order.execution)
        ]
        for node, _ in current:
            if is_shared_writer(node):
                self._claim(node)
        return current

    def _place_of(self, name: str) -> _Place:
        run = self.state.runs[name]
        parent = run.parent.id if run.parent is not None else None
        epoch = self.journal.epoch if self.journal is not None else 0
        place = self._places[name] = (name, self.root.id, parent, run.depth, run.path, epoch)
        return place

    def outputs_of(self, event: Event) -> list[OutputRow]:
        """The rows that index the output or the artifacts of an event, which is already applied."""
        data = event.data
        if isinstance(data, Evidence):
            # Imported late: most runs need neither.
            from fanfold.steps.records import ArtifactsPublished, workspace_fact

            fact = workspace_fact(data.data) if data.type == "workspace_event" else None
            if not isinstance(fact, ArtifactsPublished):
                return []
            named = [(f"{fact.step}/artifacts/{file.path}", file.text) for file in fact.files if file.text]
            step, status = fact.step, COMPLETED
        elif isinstance(data, StepData) and data.output is not None and not data.late:
            named, step = [(data.step, data.output)], data.step
            status = EVENT_WORDS.get(data.status, data.status)
        else:
            return []
        # A fork keeps artifacts of steps that it does not have.
        node = self.state.runs[event.run].nodes.get(step)
        role = node.step.traits.role or "" if node is not None else ""
        about = {"run_id": event.run, "root_run_id": self.root.id, "role": role, "status": status}
        return [OutputRow(**about, path=path, blob=blob, at=event.at) for path, blob in named]

    def _claim(self, node: Node) -> Claim | None:
        """Claim the files of a step that is about to start. Returns the claim that blocks it, if any."""
        if self.journal is None:  # a reader's copy claims nothing
            return None
        self._claimed[node.run.id, node.path] = node
        return self.journal.claim(self._claim_of(node))

    def _claim_of(self, node: Node) -> Claim:
        return Claim(self.root.id, node.run.id, node.path, node.write_set)

    def free_held(self, at: int) -> None:
        """Retry the steps that wait for files which are free now.

        Of steps that would block each other only the first is retried. Otherwise each release would wake
        all of them.
        """
        held = self.state.held
        active = [node.write_set for node in self._claimed.values() if node.status in (READY, RUNNING)]
        for (run, path), node in sorted(held.items(), key=lambda entry: entry[1].order):
            if any(overlaps(node.write_set, other) for other in active):
                continue
            active.append(node.write_set)
            if self.store.blocker(self._claim_of(node)) is None:
                self.report(run, at, StepEvent(path, "freed"))

    def _unclaimed(self) -> list[tuple[str, str]]:
        """Steps that no longer need the files they claimed, or that ended while they waited for files."""
        done = [
            at
            for at, node in self._claimed.items()
            if node.status in TERMINAL or (node.status == WAITING and at not in self.state.held)
        ]
        for at in done:
            del self._claimed[at]
        return done

    def remember_cached(self, key: str, blob: str) -> None:
        """Cache the output of a completed step, so that later runs can reuse it."""
        self._cache.append((key, blob, self.root.id))

    def commit(self, requires: str = "") -> tuple[list[Envelope], list[Order[Job]], list[Stop]]:
        """Make everything since the last commit durable.

        Returns the events that were written, the orders to carry out and the steps to stop.
        `requires` names a run tree whose values this one refers to; see `Batch.requires`.
        """
        written, self.pending = self.pending, []
        data, self._data = self._data, []
        orders, self.world.orders = self.world.orders, []
        stops, self.world.stops = self.world.stops, []
        unclaimed = self._unclaimed() if self._claimed else []
        if written or self.requests_done or unclaimed:
            assert self.journal is not None, "a reader's copy never writes"
            batch = Batch(
                root=self.root.id,
                epoch=self.journal.epoch,
                envelopes=written,
                data=data,
                heads=self.changed_heads(written),
                outputs=self._outputs,
                cache=self._cache,
                started=[(order.session, order.execution) for order in orders if order.execution > 1],
                requests_done=self.requests_done,
                unclaimed=unclaimed,
                requires=requires,
                # Evidence does not change the state of the kernel.
                state=trace(
                    self.state,
                    (
                        (envelope.run_id, envelope.data)
                        for envelope in written
                        if envelope.type not in EVIDENCE_TYPES
                    ),
                ),
            )
            self.journal.write(batch)
            self._outputs, self._cache, self.requests_done = [], [], []
        return written, orders, stops

    def changed_heads(self, written: Sequence[Envelope]) -> list[RunHead]:
        """The rows that these events changed."""
        return self._rows.changed(self.state.runs, self.root, written)

    def head(self, run: Run) -> RunHead:
        """The current row of a run."""
        usage, agents = self.spent(run)
        started = self.memory.run_started.get(run.id)
        return RunHead(
            run_id=run.id,
            root_run_id=self.root.id,
            parent_run_id=run.parent.id if run.parent is not None else None,
            nesting_depth=run.depth,
            execution_path=run.path,
            recipe=run.plan.name,
            version=run.plan.version,
            status=run_status(self.state, run),
            created_at=self.memory.created_at if run.parent is None else started or 0,
            started_at=started,
            ended_at=self.memory.run_ended.get(run.id),
            inputs=self.memory.inputs.get(run.id),
            output=run.output,
            error=run.error,
            usage=replace(usage, cached_tokens=0),  # a row has no column for it
            agents=agents,
            forked_from=self._forked_from if run.parent is None else None,
        )

    def spent(self, run: Run) -> tuple[Usage, int]:
        """Usage and number of agents of a run and all runs below it."""
        below = [run]
        for other in below:  # the list grows while it is walked
            below.extend(other.children)
        each = [self._spent_itself(other) for other in below]
        return sum((usage for usage, _ in each), NOTHING_SPENT), sum(agents for _, agents in each)

    def _spent_itself(self, run: Run) -> tuple[Usage, int]:
        return run.usage, run.agents + self.memory.settlers.get(run.id, 0)


def run_status(state: State, run: Run) -> str:
    """The status of a run as users see it: also `waiting` for people or a time, `paused` with its root."""
    if run.status != RUNNING or state.root.status == PAUSED:
        return run.status if run.status != RUNNING else PAUSED
    if run is state.root:
        return WAITING if is_waiting(state) else run.status
    waits = state.approvals or state.delays or state.deferred
    return WAITING if waits and only_asks(state, run) else run.status


# -----------------------------------------------------------------------------------------------------------
# A cache of loaded trees, which are updated for the next read instead of being replayed again
#
# A cached tree is shared: readers must not change it, and the next read updates it. A project caches the
# trees of its open runs (`hand`, chats), which grow with every child. A server reads the same runs again and
# again, so it caches all of them. Only the thread that read first shares trees; other threads get their own.

MAX_TREES = 32
MAX_PAST = 2
"""The number of cached trees at a past event, for a user who moves the time slider of a run."""


class KeptTrees:
    """A cache of loaded trees. With `open_only` it caches only trees of open runs."""

    def __init__(self, *, open_only: bool = True) -> None:
        self._open_only = open_only
        self._thread: int | None = None
        self._now: OrderedDict[str, RunTree] = OrderedDict()
        self._past: OrderedDict[str, RunTree] = OrderedDict()

    def view(self, store: Store, root: str, at: int | None) -> RunTree:
        """The current tree of a log, or the tree as it was after the event `at`."""
        self._thread = self._thread or get_ident()
        if get_ident() != self._thread or (self._open_only and (at is not None or not is_kept_open(root))):
            return RunTree.load(store, root, until=at)
        if at is None:
            tree = self._now.pop(root, None)
            if tree is None or not _is_same(store, tree):
                tree = RunTree.load(store, root)
            else:
                tree.read_from(store)
                tree.catch_up(store.tree(root, tree.tree_seq, as_stored))
            self._now[root] = tree
            if len(self._now) > MAX_TREES:
                self._now.popitem(last=False)
            return tree
        tree = self._past.pop(root, None)
        if tree is None or tree.tree_seq > at:
            tree = RunTree.load(store, root, until=at)
        else:
            tree.read_from(store)
            after = store.tree(root, tree.tree_seq, as_stored)
            tree.catch_up(takewhile(lambda envelope: envelope.tree_seq <= at, after))
        self._past[root] = tree
        if len(self._past) > MAX_PAST:
            self._past.popitem(last=False)
        return tree


def _is_same(store: Store, tree: RunTree) -> bool:
    """Whether the stored run is the run that was loaded, not a later one with the same name."""
    head = store.head(tree.root.id)
    created = head is not None and head.created_at == tree.memory.created_at
    return created and store.reach(tree.root.id) >= tree.tree_seq
