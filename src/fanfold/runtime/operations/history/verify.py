"""Reading a log again: `replay` folds it, `verify` checks that everything stored is what was written.

Neither executes anything. Folding refuses events that no decision led to, so a log that folds at all is one
this kernel would have written. On the way `verify` holds against it: every invariant, with bookkeeping of its
own; the hash of the state that each commit recorded; the rows of runs and outputs, which follow from the log;
and what the store itself finds (chains of hashes, seals, content unlike its name).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any

from msgspec import Struct, structs

from fanfold.errors import BugError, FanfoldError, NotFoundError
from fanfold.kernel.events import Created, Event, Evidence, SubagentEvent, event_of
from fanfold.kernel.fingerprint import fingerprint, trace
from fanfold.kernel.invariants import Auditor, InvariantViolation
from fanfold.kernel.lifecycle import RUN_TERMINAL
from fanfold.kernel.nodes import State
from fanfold.kernel.state import create_state, evolve
from fanfold.runtime.hosting.run_tree import RunTree, run_status
from fanfold.runtime.operations.project import Project
from fanfold.runtime.records.frozen import from_json
from fanfold.runtime.records.ids import session_id
from fanfold.sessions.log import read_entries
from fanfold.store.protocol import DELETED, Commit, Damage, OutputRow, RunHead, Store

MAX_VIOLATIONS = 100
PRESENT, SAME_STATE, FOLLOWS, GIVEN, IN_TURN = 2, 3, 10, 14, 17
"""The invariants that are checked here rather than by the auditor: what was acknowledged is there, folding
gives the same state again, every event follows from those before, a child run got what its recipe declares,
and steps started in the order that the kernel decides."""


class AuditedRun(Struct, frozen=True):
    """What reading the log of one run tree again showed. `fingerprint` names the state that it leads to."""

    run_id: str
    ok: bool
    events: int
    status: str
    fingerprint: str
    violations: list[InvariantViolation]


class Audit(Struct, frozen=True):
    """Run by run; `violations` is what was found in rows that belong to no run."""

    ok: bool
    runs: list[AuditedRun]
    violations: list[InvariantViolation]


def replay_run(project: Project, run: str, *, checked: bool = False) -> AuditedRun:
    """Fold the log of a run from its first event to its last; `checked` against every invariant."""
    root = project.resolve(run).root_run_id
    return verify(project.store, root) if checked else replay(project.store, root)


def verify_run(project: Project, run: str) -> Audit:
    """Check one run."""
    audited = replay_run(project, run, checked=True)
    return Audit(audited.ok, [audited], [])


def verify_all(project: Project) -> Audit:
    """Check everything that the project has stored."""
    return verify_store(project.store) if project.has_runs else Audit(True, [], [])


def verify(store: Store, root: str) -> AuditedRun:
    """Check everything that belongs to one run tree."""
    with store.snapshot():
        return _verify(store, root, store.check(root), store.output_rows(limit=-1, root=root))


def verify_store(store: Store) -> Audit:
    """Check everything that is stored."""
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
    """Fold the stored log once; only what does not follow from the log is a violation."""
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
    """One reading of a tree, commit by commit, as its owner wrote them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.auditor = Auditor()
        self.tree: RunTree | None = None
        self.heads: dict[str, RunHead] = {}
        """The rows of runs as the log has them."""
        self.since: dict[str, RunHead] = {}
        """Those rows as they were when their runs came to the status they have."""
        self.outputs: list[OutputRow] = []
        self.sessions: dict[str, str] = {}
        """Sessions of the tree, with the step that each served."""
        self.count = 0
        self.event: Event | None = None
        """The one that is being read."""

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
            yield from _missing_blobs(self.store, event)
            yield from _undeclared_inputs(self.tree, event)
            if isinstance(event.data, SubagentEvent):
                step = event.data.step
                self.sessions[session_id(event.run, step, event.data.attempt)] = step
            self.outputs += self.tree.outputs_of(event)
        if self.tree is None:
            return
        for head in self.tree.changed_heads(commit.envelopes):
            before = self.heads.get(head.run_id)
            if before is None or before.status != head.status:
                self.since[head.run_id] = head
            self.heads[head.run_id] = head
        if commit.state != trace(self.tree.state, events):
            text = f"folding to event {self.count} gives another state than was recorded"
            yield InvariantViolation(SAME_STATE, text)

    def compare(self, root: str, outputs: Iterable[OutputRow]) -> Iterator[InvariantViolation]:
        """What follows from the log, with what stands beside it."""
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
        for session, step in self.sessions.items():
            try:
                read_entries(self.store, session)
            except NotFoundError as error:
                yield InvariantViolation(
                    PRESENT, f"what the session of {step} refers to is gone: {error.message}"
                )
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
            if store.head(root) is not None:  # else it is a tree of sessions alone
                violations.append(InvariantViolation(1, "the log is empty"))
        else:
            state = audit.tree.state
            status, state_hash = run_status(state, state.root), fingerprint(state)
            if state.root.status in RUN_TERMINAL and not violations:
                violations += audit.auditor.close(state)
            # A run of this name may have been deleted: that stays known to whoever follows the outputs.
            violations += audit.compare(root, [row for _, row in outputs if row.status != DELETED])
    except Exception as error:  # noqa: BLE001  # an edited log may hold anything
        violations.append(_unreadable(audit.count, error, audit.event))
    return AuditedRun(root, not violations, audit.count, status, state_hash, violations)


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
    """Whether the row of a run that is not over tells of less spending than its log, but no less than when it
    came to this status: how often a row is brought up to date on the way is up to the code that drove it.
    """
    if found.status != now.status or now.status in RUN_TERMINAL:
        return False
    steps = [(one.agents, one.usage.input_tokens, one.usage.output_tokens) for one in (since, found, now)]
    grows = all(first <= then <= last for first, then, last in zip(*steps, strict=True))
    then, last = found.usage.micro_usd, now.usage.micro_usd
    if then is None or last is None:  # once unknown, a price stays that
        return grows and last is None
    return grows and (since.usage.micro_usd or 0) <= then <= last


def _short(value: Any) -> str:
    return repr(value)[:100]


def _undeclared_inputs(tree: RunTree, event: Event) -> Iterator[InvariantViolation]:
    """A run sees nothing beyond the inputs that its recipe declares."""
    if not isinstance(event.data, Created) or event.data.inputs is None:
        return
    run = tree.state.runs[event.run]
    declared = {one.name for one in run.plan.inputs}
    for name in sorted(set(tree.values.inputs(run)) - declared):
        yield InvariantViolation(GIVEN, f"run {run.id} was given {name}, which its recipe does not declare")


def _missing_blobs(store: Store, event: Event) -> Iterator[InvariantViolation]:
    for name in ("output", "inputs", "items", "frozen"):
        blob = getattr(event.data, name, None)
        if not isinstance(blob, str):
            continue
        try:
            content = store.blob(blob)
        except NotFoundError:
            where = getattr(event.data, "step", "")
            yield InvariantViolation(PRESENT, f"the {name} {blob} of {where} is gone")
            continue
        if blake2b(content, digest_size=16).hexdigest() != blob:
            yield InvariantViolation(PRESENT, f"the {name} {blob} does not hold what it was stored with")
