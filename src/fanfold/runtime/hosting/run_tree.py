"""One run tree in the hands of its owner: state, log and values kept in step.

Rules
* `report` folds one fact in and answers everything it leads to; nothing is durable yet.
* `commit` writes all of it as one transaction. Only then may effects begin and may anybody be told.
* If a commit fails, this object is ahead of the log and must be thrown away; the log is the truth.
* Secrets are taken out of an event before it is folded, so that what is known here is what was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec.structs import replace

from fanfold.kernel.commands import Start, Stop
from fanfold.kernel.decide import decide, is_waiting
from fanfold.kernel.events import (
    EVIDENCE_TYPES,
    NOTHING_SPENT,
    Data,
    Envelope,
    Event,
    Evidence,
    Failure,
    StepEvent,
    SubagentEvent,
    Usage,
    WorkflowEvent,
    event_of,
    type_name,
)
from fanfold.kernel.fingerprint import trace
from fanfold.kernel.holding import budget_news
from fanfold.kernel.lifecycle import COMPLETED, EVENT_WORDS, PAUSED, READY, RUNNING, TERMINAL, WAITING
from fanfold.kernel.nodes import Node, Run, State
from fanfold.kernel.paths import overlaps
from fanfold.kernel.state import create_state, evolve, mark_late
from fanfold.runtime.hosting.answers import Answers
from fanfold.runtime.hosting.child_waits import only_asks
from fanfold.runtime.hosting.clock import OwnerClock, PastOwner
from fanfold.runtime.hosting.damage import tells_damage
from fanfold.runtime.hosting.run_rows import RunRows
from fanfold.runtime.hosting.stored_data import stored, text_only
from fanfold.runtime.records.frozen import Frozen, from_json
from fanfold.runtime.records.memory import Memory
from fanfold.runtime.records.subagents import child_of
from fanfold.runtime.records.values import Values
from fanfold.runtime.steps.step_type import Job
from fanfold.store.blobs import Blobs
from fanfold.store.protocol import Batch, Claim, OutputRow, RunHead, Store, no_run

if TYPE_CHECKING:
    from fanfold.store.journal import Journal

Reuse: TypeAlias = Callable[[Node, Job], str | Failure | None]
_Place: TypeAlias = tuple[str, str, str | None, int, str, int]
"""What all envelopes of a run have in common."""
_encode = msgspec.json.Encoder().encode


def nothing_to_reuse(_node: Node, _job: Job) -> str | None:
    return None


class RunTree:
    """Without a journal: a reader's copy, which never writes."""

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
        self.answers = Answers(self.state, self.memory, self.values, self.blobs, reuse, self._claim)
        self._claimed: dict[tuple[str, str], Node] = {}
        """Steps that claim files of the project itself, or stand in line for them."""
        self._forked_from = forked_from
        self._clock: OwnerClock | None = None
        self._owner = PastOwner()
        self.log_seq: dict[str, int] = {}
        self.tree_seq = 0
        self._last_at = 0
        self.pending: list[Envelope] = []
        self._data: list[bytes | None] = []
        """Of each pending envelope, as it is written."""
        self._places: dict[str, _Place] = {}
        self.requests_done: list[int] = []
        self._rows = RunRows(self.head, lambda run: run_status(self.state, run), self._spent_itself)
        self._frozen: dict[str, Frozen] = {}
        self._outputs: list[OutputRow] = []
        self._cache: list[tuple[str, str, str]] = []

    @property
    def root(self) -> Run:
        return self.state.root

    def now_ms(self) -> int:
        """The time of the run, for its owner."""
        if self._clock is None:
            self._clock = OwnerClock(max(self.state.now, self.alive_at()))
        return self._clock.now_ms()

    def alive_at(self) -> int:
        """When the owner before was known to live, in its own time; 0 when it said that it left."""
        return 0 if self.journal is None else self._owner.alive_at(self.journal.epoch, self.journal.lived_ms)

    def frozen(self, node: Node | None = None) -> Frozen:
        """What the run fixed for its whole life; for a step of an open run, what that was added with."""
        facts = self.memory.frozen
        if node is not None and self.memory.added:
            facts = self.memory.added.get(child_of(node), facts)
        if facts is None:
            return Frozen()
        if facts not in self._frozen:
            self._frozen[facts] = from_json(self.blobs.get(facts))
        return self._frozen[facts]

    def know_frozen(self, facts: str, frozen: Frozen) -> None:
        """Whoever fixed it just now need not read it again."""
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
        """Fold a stored tree, perhaps only `until` one of its events; who goes on appends `resumed` first."""
        envelopes = store.tree(root)
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
        """A reader's copy of a stored tree as it was after its first event; `catch_up` goes on from there."""
        tree = cls(store, event_of(first), None)
        tree._count(first)
        return tree

    def _replay(self, envelopes: Iterable[Envelope]) -> None:
        for envelope in envelopes:
            self.take(envelope, event_of(envelope))

    def take(self, envelope: Envelope, event: Event) -> None:
        """Fold the next event of the log, which the caller has read from its envelope."""
        evolve(self.state, event)
        self.memory.observe(event)
        self._count(envelope)

    def catch_up(self, written: Iterable[Envelope]) -> None:
        """A reader's copy: fold what its owner has written since; what is known already is passed over."""
        self._replay(envelope for envelope in written if envelope.tree_seq > self.tree_seq)

    def _count(self, envelope: Envelope) -> None:
        self._owner.wrote(envelope.epoch, envelope.at)
        self._last_at = envelope.at
        self.log_seq[envelope.log] = envelope.seq
        self.tree_seq = envelope.tree_seq

    # Writing

    def _without_secrets(self, event: Event) -> tuple[Event, bytes]:
        """The event as it is written, and what of it is."""
        try:
            encoded = _encode(stored(event.data))
        except UnicodeEncodeError:  # a name of a file is any bytes
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
        """Record the first event of a new tree; it is already folded."""
        self._append(*self._without_secrets(first))

    def report(self, run: str, at: int, data: Data) -> None:
        """Fold one fact in, then answer everything the kernel asks because of it."""
        event = mark_late(self.state, Event(run, at, data))
        self._fold(event)
        while commands := decide(self.state):
            command = commands[0]
            self._fold(Event(command.run, at, self.answers.answer(command)))

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

    def _place_of(self, name: str) -> _Place:
        run = self.state.runs[name]
        parent = run.parent.id if run.parent is not None else None
        epoch = self.journal.epoch if self.journal is not None else 0
        place = self._places[name] = (name, self.root.id, parent, run.depth, run.path, epoch)
        return place

    def outputs_of(self, event: Event) -> list[OutputRow]:
        """The rows of what an event records to be found again, after it was folded: an output, artifacts."""
        data = event.data
        if isinstance(data, Evidence):
            from fanfold.runtime.records.evidence import Published, workspace_fact  # most runs have no facts

            fact = workspace_fact(data.data) if data.type == "workspace_event" else None
            if not isinstance(fact, Published):
                return []
            named = [(f"{fact.step}/artifacts/{one.path}", one.text) for one in fact.files if one.text]
            step, status = fact.step, COMPLETED
        elif isinstance(data, StepEvent | SubagentEvent) and data.output is not None and not data.late:
            named, step = [(data.step, data.output)], data.step
            status = EVENT_WORDS.get(data.status, data.status)
        else:
            return []
        node = self.state.runs[event.run].nodes.get(step)  # a fork keeps artifacts of steps it never had
        role = node.step.traits.role or "" if node is not None else ""
        about = {"run_id": event.run, "root_run_id": self.root.id, "role": role, "status": status}
        return [OutputRow(**about, path=path, blob=blob, at=event.at) for path, blob in named]

    def _claim(self, node: Node) -> Claim | None:
        """Claim the files of a step that is about to start; the claim that is in its way."""
        if self.journal is None:  # nobody else is there
            return None
        self._claimed[node.run.id, node.path] = node
        return self.journal.claim(self._claim_of(node))

    def _claim_of(self, node: Node) -> Claim:
        return Claim(self.root.id, node.run.id, node.path, node.write_set)

    def free_held(self, at: int) -> None:
        """Let the steps try again that wait for files which are free now; of those that would stand in each
        other's way only the first, or each handing over would be told to all of them.
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
        """Steps that are done with the files they claimed, or that ended while they stood in line."""
        done = [
            at
            for at, node in self._claimed.items()
            if node.status in TERMINAL or (node.status == WAITING and at not in self.state.held)
        ]
        for at in done:
            del self._claimed[at]
        return done

    def remember_cached(self, key: str, blob: str) -> None:
        """A cacheable step completed: later runs may reuse its output."""
        self._cache.append((key, blob, self.root.id))

    def commit(self) -> tuple[list[Envelope], list[tuple[Start, Job]], list[Stop]]:
        """Make everything since the last commit durable; what was written and what must happen now."""
        written, self.pending = self.pending, []
        data, self._data = self._data, []
        jobs, self.answers.jobs = self.answers.jobs, []
        stops, self.answers.stops = self.answers.stops, []
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
                requests_done=self.requests_done,
                unclaimed=unclaimed,
                # Evidence is not the kernel's: what it is about has not moved.
                state=trace(
                    self.state, ((one.run_id, one.data) for one in written if one.type not in EVIDENCE_TYPES)
                ),
            )
            self.journal.write(batch)
            self._outputs, self._cache, self.requests_done = [], [], []
        return written, jobs, stops

    def changed_heads(self, written: Sequence[Envelope]) -> list[RunHead]:
        """Rows of the runs that these events changed, as far as rows tell of it."""
        return self._rows.changed(self.state.runs, self.root, written)

    def head(self, run: Run) -> RunHead:
        """The row of a run as it is now."""
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
            usage=usage,
            agents=agents,
            forked_from=self._forked_from if run.parent is None else None,
        )

    def spent(self, run: Run) -> tuple[Usage, int]:
        """Usage and agents of a run and everything below it."""
        below = [run]
        for other in below:  # the list grows while it is walked
            below.extend(other.children)
        each = [self._spent_itself(other) for other in below]
        return sum((usage for usage, _ in each), NOTHING_SPENT), sum(agents for _, agents in each)

    def _spent_itself(self, run: Run) -> tuple[Usage, int]:
        return run.usage, run.agents + self.memory.settlers.get(run.id, 0)


def run_status(state: State, run: Run) -> str:
    """A run's status as people see it: `waiting` when only they can go on, `paused` with its root."""
    if run.status != RUNNING or state.root.status == PAUSED:
        return run.status if run.status != RUNNING else PAUSED
    if run is state.root:
        return WAITING if is_waiting(state) else run.status
    return WAITING if (state.approvals or state.delays) and only_asks(state, run) else run.status
