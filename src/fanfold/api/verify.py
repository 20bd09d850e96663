"""Read a log again: `replay` folds it, `verify` checks the hash chain and the invariants of stored runs.

Neither executes anything. Folding refuses events that do not follow from a decision, so a log that folds is
one that this kernel could have written. `verify` also checks every invariant, with separate bookkeeping; the
recorded state hash of each commit; the rows of runs and outputs, which follow from the log; and the store
itself (hash chains, seals, content hashes).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct, structs
from msgspec.structs import replace

from fanfold.api.display import duration
from fanfold.api.project import Project
from fanfold.api.run_list import folders_without_run
from fanfold.engine.dry_run import Order
from fanfold.engine.forecast import ForecastHost
from fanfold.engine.forecast_documents import Slots, Time, WhatIf
from fanfold.engine.recorded import RecordedResults, Recording
from fanfold.engine.run_tree import RunTree, run_status
from fanfold.errors import AuthorError, BugError, FanfoldError
from fanfold.kernel.events import UNBOUNDED, Event, Evidence, RunCreated, event_of
from fanfold.kernel.invariants import Auditor, InvariantViolation
from fanfold.kernel.state import RUN_TERMINAL, Node, State, fingerprint, trace
from fanfold.kernel.transitions import create_state, evolve
from fanfold.sessions.log import blobs_of
from fanfold.steps.run_config import from_json
from fanfold.store.protocol import DELETED, Commit, Damage, OutputRow, RunHead, Store

MAX_VIOLATIONS = 100
PRESENT, SAME_STATE, FOLLOWS, GIVEN, IN_TURN = 2, 3, 10, 14, 17
"""The invariants that are checked here and not by the auditor.

Acknowledged data is present; folding gives the same state again; every event follows from earlier ones; a
child run got the declared inputs; steps started in the order that the kernel decides.
"""


class AuditedRun(Struct, frozen=True):
    """What reading the log of one run tree again showed. `fingerprint` names the state that it leads to.

    `unkeyed` counts its first events that are not bound to the user's secret: who knows the format could have
    written them.
    """

    run_id: str
    ok: bool
    events: int
    status: str
    fingerprint: str
    violations: list[InvariantViolation]
    unkeyed: int = 0


class Audit(Struct, frozen=True):
    """Results by run; `violations` are problems in rows that belong to no run."""

    ok: bool
    runs: list[AuditedRun]
    violations: list[InvariantViolation]


def replay_run(project: Project, run: str, *, checked: bool = False) -> AuditedRun:
    """Fold the log of a run from its first to its last event. `checked`: verify every invariant."""
    root = project.resolve(run).root_run_id
    return verify(project.store, root) if checked else replay(project.store, root)


def verify_run(project: Project, run: str) -> Audit:
    """Verify one run."""
    audited = replay_run(project, run, checked=True)
    return Audit(audited.ok, [audited], [])


def verify_all(project: Project) -> Audit:
    """Verify everything that the project has stored, and that every run folder has a stored run."""
    audit = verify_store(project.store) if project.has_runs else Audit(True, [], [])
    lost = [
        InvariantViolation(PRESENT, f"run {folder.name} has a folder, but is not in the database")
        for folder in folders_without_run(project)[:MAX_VIOLATIONS]
    ]
    return structs.replace(audit, ok=audit.ok and not lost, violations=[*audit.violations, *lost])


def verify(store: Store, root: str) -> AuditedRun:
    """Verify everything that belongs to one run tree."""
    with store.snapshot():
        return _verify(store, root, store.check(root), store.output_rows(limit=-1, root=root))


def verify_store(store: Store) -> Audit:
    """Verify everything that is stored."""
    with store.snapshot():
        roots = store.roots()
        outputs: dict[str, list[tuple[int, OutputRow]]] = {root: [] for root in roots}
        for number, row in store.output_rows(limit=-1):
            outputs.setdefault(row.root_run_id, []).append((number, row))
        damages: dict[str, list[Damage]] = {root: [] for root in roots}
        for damage in store.check():
            damages.setdefault(damage.root, []).append(damage)
        runs = [_verify(store, root, damages.pop(root), outputs[root]) for root in roots]
    rest = [damage.message for found in damages.values() for damage in found]
    broken = [InvariantViolation(PRESENT, text) for text in rest[:MAX_VIOLATIONS]]
    return Audit(not broken and all(run.ok for run in runs), runs, broken)


def replay(store: Store, root: str) -> AuditedRun:
    """Fold the stored log once. Only an event that does not follow from the log is a violation."""
    count = 0
    state: State | None = None
    event: Event | None = None
    try:
        for envelope in store.tree(root):
            count += 1
            event = event_of(envelope)
            state = create_state(event) if state is None else evolve(state, event)
    except Exception as error:  # noqa: BLE001  # an edited log may hold anything
        return AuditedRun(root, False, count, "", "", [_unreadable(count, error, event)])
    if state is None:
        return AuditedRun(root, False, count, "", "", [InvariantViolation(1, "the log is empty")])
    return AuditedRun(root, True, count, run_status(state, state.root), fingerprint(state), [])


class _Audit:
    """Reads a tree commit by commit, as its owner wrote them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.auditor = Auditor()
        self.tree: RunTree | None = None
        self.heads: dict[str, RunHead] = {}
        """The rows of runs that follow from the log."""
        self.since: dict[str, RunHead] = {}
        """Those rows at the time when their runs entered their current status."""
        self.outputs: list[OutputRow] = []
        self.blobs: dict[str, str] = {}
        """Hashes that the log refers to, with a description."""
        self.count = 0
        self.event: Event | None = None
        """The event that is being read."""

    def read(self, commit: Commit) -> Iterator[InvariantViolation]:
        events = []
        for envelope in commit.envelopes:
            self.count += 1
            event = self.event = event_of(envelope)
            if not isinstance(event.data, Evidence):
                events.append((event.run, event.data))
            if self.tree is None:
                self.tree = RunTree.reading(self.store, envelope)
            else:
                self.tree.take(envelope, event)
            yield from self.auditor.observe(envelope, event, self.tree.state)
            self._note_blobs(event)
            yield from _undeclared_inputs(self.tree, event)
            self.outputs += self.tree.outputs_of(event)
        for entry in commit.entries:
            for name in blobs_of(self.store, entry.data):
                self.blobs.setdefault(name, f"a part of the session of {entry.path or entry.log}")
        if self.tree is None:
            return
        for head in self.tree.changed_heads(commit.envelopes):
            before = self.heads.get(head.run_id)
            if before is None or before.status != head.status:
                self.since[head.run_id] = head
            self.heads[head.run_id] = head
        if commit.envelopes and commit.state != trace(self.tree.state, events):
            text = f"folding to event {self.count} gives another state than was recorded"
            yield InvariantViolation(SAME_STATE, text)

    def _note_blobs(self, event: Event) -> None:
        for name in ("output", "inputs", "items", "frozen"):
            blob = getattr(event.data, name, None)
            if isinstance(blob, str):
                self.blobs.setdefault(blob, f"the {name} of {getattr(event.data, 'step', '') or event.run}")

    def compare(self, root: str, outputs: Iterable[OutputRow]) -> Iterator[InvariantViolation]:
        """Compare the rows that follow from the log with the stored rows."""
        assert self.tree is not None
        memory = self.tree.memory
        if memory.frozen is not None:
            forked_from = from_json(self.tree.blobs.get(memory.frozen)).forked_from
            self.heads[root] = structs.replace(self.heads[root], forked_from=forked_from)
        found = {head.run_id: head for head in self.store.tree_heads(root)}
        for run in dict.fromkeys((*self.heads, *found)):
            said, says = self.heads.get(run), found.get(run)
            if said is not None and says is not None and _is_behind(says, self.since[run], said):
                says = structs.replace(says, usage=said.usage, agents=said.agents)
            yield from _differences(run, said, says)
        for name in self.store.absent_blobs(list(self.blobs)):
            yield InvariantViolation(PRESENT, f"{self.blobs[name]} ({name}) is gone")
        expected, stored = Counter(self.outputs), Counter(outputs)
        for row in (expected - stored) + (stored - expected):
            yield InvariantViolation(PRESENT, f"the row of the output of {row.path} is not what the log says")


def _verify(
    store: Store, root: str, damages: list[Damage], outputs: list[tuple[int, OutputRow]]
) -> AuditedRun:
    violations = [InvariantViolation(PRESENT, damage.message) for damage in damages]
    audit = _Audit(store)
    status = state_hash = ""
    try:
        for commit in store.commits(root):
            violations += audit.read(commit)
            if len(violations) >= MAX_VIOLATIONS:
                break
        if audit.tree is None:
            if store.head(root) is not None:  # otherwise the tree has only sessions
                violations.append(InvariantViolation(1, "the log is empty"))
        else:
            state = audit.tree.state
            status, state_hash = run_status(state, state.root), fingerprint(state)
            if state.root.status in RUN_TERMINAL and not violations:
                violations += audit.auditor.close(state)
            # Rows of a deleted run with this id stay, so that readers of the outputs learn about the
            # deletion.
            violations += audit.compare(root, [row for _, row in outputs if row.status != DELETED])
    except Exception as error:  # noqa: BLE001  # an edited log may hold anything
        violations.append(_unreadable(audit.count, error, audit.event))
    unkeyed = store.unkeyed(root)
    return AuditedRun(root, not violations, audit.count, status, state_hash, violations, unkeyed)


def _unreadable(count: int, error: Exception, event: Event | None = None) -> InvariantViolation:
    if isinstance(error, BugError):
        started = event is not None and getattr(event.data, "status", "") == "started"
        number = IN_TURN if started else FOLLOWS
        return InvariantViolation(number, f"event {count} does not follow from the log: {error.message}")
    said = error.message if isinstance(error, FanfoldError) else f"{type(error).__name__}: {error}"
    return InvariantViolation(PRESENT, f"what is stored after event {count} cannot be read: {said}")


def _differences(run: str, expected: RunHead | None, found: RunHead | None) -> Iterator[InvariantViolation]:
    if expected is None or found is None:
        gone = "gone" if found is None else "there, but the log knows no such run"
        yield InvariantViolation(PRESENT, f"the row of run {run} is {gone}")
        return
    for name in expected.__struct_fields__:
        says, said = getattr(found, name), getattr(expected, name)
        if says != said:
            text = f"the row of run {run} says {name} {_short(says)}, its log says {_short(said)}"
            yield InvariantViolation(PRESENT, text)


def _is_behind(found: RunHead, since: RunHead, now: RunHead) -> bool:
    """Whether the row of an unfinished run reports less spending than its log, within the allowed range.

    The spending must be at least that at the start of the current status. How often a row is updated in
    between depends on the code that drove the run.
    """
    if found.status != now.status or now.status in RUN_TERMINAL:
        return False
    steps = [(one.agents, one.usage.input_tokens, one.usage.output_tokens) for one in (since, found, now)]
    grows = all(first <= then <= last for first, then, last in zip(*steps, strict=True))
    then, last = found.usage.micro_usd, now.usage.micro_usd
    if then is None or last is None:  # an unknown price stays unknown
        return grows and last is None
    return grows and (since.usage.micro_usd or 0) <= then <= last


def _short(value: Any) -> str:
    return repr(value)[:100]


def _undeclared_inputs(tree: RunTree, event: Event) -> Iterator[InvariantViolation]:
    """Yield a violation for each input that the recipe does not declare."""
    if not isinstance(event.data, RunCreated) or event.data.inputs is None:
        return
    run = tree.state.runs[event.run]
    declared = {one.name for one in run.plan.inputs}
    for name in sorted(set(tree.values.inputs(run)) - declared):
        yield InvariantViolation(GIVEN, f"run {run.id} was given {name}, which its recipe does not declare")


# -----------------------------------------------------------------------------------------------------------
# What-if: replay recorded durations through the scheduler with another number of slots

MAX_SLOTS = 1_024


def what_if(project: Project, run: str, max_concurrency: int) -> WhatIf:
    """Replay the tree of `run` with `max_concurrency` slots."""
    if not 1 <= max_concurrency <= MAX_SLOTS:
        message = f"--max-concurrency must be from 1 to {MAX_SLOTS}, not {max_concurrency}"
        raise AuthorError("usage.out_of_range", message)
    root = project.resolve(run).root_run_id
    recording = Recording(event_of(envelope) for envelope in project.store.tree(root))
    if recording.plan.open:
        message = f"run {root} has no plan of its own: its steps began when somebody asked for them"
        raise AuthorError("run.open", message, hint="ask about the run of a recipe; fanfold runs lists them")
    replayed = _Replay(recording, recording.settings.max_concurrency)
    asked = _Replay(recording, max_concurrency)
    path, length = asked.critical_path()
    was = project.view(root)
    return WhatIf(
        run_id=root,
        recipe=recording.plan.name,
        version=recording.plan.version,
        max_concurrency=Slots(recording.settings.max_concurrency, max_concurrency),
        time_ms=Time(was.state.clock, replayed.host.now, asked.host.now, sum(asked.spent.values())),
        attempts=len(asked.host.begun),
        critical_path=path,
        critical_path_ms=length,
        notes=list(_notes(recording, asked, over=was.root.status in RUN_TERMINAL)),
    )


class _Replay:
    """Drives a recording through the scheduler with a number of slots, and no other limit of the tree."""

    def __init__(self, recording: Recording, slots: int) -> None:
        settings = replace(
            recording.settings,
            max_concurrency=slots,
            max_agents=UNBOUNDED,
            max_steps=UNBOUNDED,
            budget_tokens=None,
            budget_micro_usd=None,
        )
        self.world = RecordedResults(recording)
        self.host = ForecastHost(
            recording.plan, settings, self.world, run_id=recording.run_id, largest=UNBOUNDED
        )
        self.host.drive()
        self.spent: dict[Node, int] = {}
        """Total duration of the attempts of each step; waits for people count as 0."""
        for begun in self.host.begun:
            asks = begun.node.step.traits.waits == "person"
            took = 0 if asks else min(begun.until, self.host.now) - begun.at
            self.spent[begun.node] = self.spent.get(begun.node, 0) + took

    def critical_path(self) -> tuple[list[str], int]:
        steps = sorted(self.spent, key=lambda node: node.order)
        took = [self.spent[step] + self.host.backed_off.get(step, 0) for step in steps]
        numbers = Order(self.host.state.root.scope, steps).critical_path(took.__getitem__)
        paths = [steps[number].run.tree_path(steps[number].path) for number in numbers]
        return paths, sum(took[number] for number in numbers)


def _notes(recording: Recording, asked: _Replay, *, over: bool) -> Iterator[str]:
    if not over:
        yield "the run is not over: this is about the steps that have ended"
    elif asked.world.unknown:
        yield f"{_count(asked.world.unknown, 'step')} did not end; what they took is not known"
    if asked.world.people:
        yield f"waits for people are left out ({_count(asked.world.people, 'question')})"
    if recording.lost:
        yield f"{_count(recording.lost, 'execution')} ended with the process; that time is not known"
    timeout = recording.settings.timeout_ms
    if timeout is not None and asked.host.now > timeout:
        yield f"this is longer than the run's time limit of {duration(timeout)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
