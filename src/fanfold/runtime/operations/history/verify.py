"""Reading a log again: `replay` folds it, `verify` checks every invariant on the way.

Neither executes anything. Folding refuses events that no decision led to, so a log that folds at all
is one this kernel would have written; the auditor checks the rest with bookkeeping of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b

from msgspec import Struct

from fanfold.errors import BugError
from fanfold.kernel.events import Envelope, Event, event_of
from fanfold.kernel.fingerprint import fingerprint
from fanfold.kernel.invariants import Auditor, Violation
from fanfold.kernel.lifecycle import RUN_TERMINAL
from fanfold.kernel.nodes import State
from fanfold.kernel.state import create_state, evolve
from fanfold.runtime.hosting.run_tree import run_status
from fanfold.store.protocol import Store

MAX_VIOLATIONS = 100


class Verdict(Struct, frozen=True):
    """What reading a tree's log again showed."""

    run_id: str
    events: int
    status: str
    fingerprint: str
    violations: tuple[Violation, ...]

    @property
    def ok(self) -> bool:
        return not self.violations


def verify(store: Store, root: str) -> Verdict:
    """Fold the stored log twice, checking every invariant and that both folds agree."""
    first = _audit(store, root)
    again = _fold(event for _, event in _events(store, root))
    second = fingerprint(again) if again is not None else ""
    if first.ok and first.fingerprint != second:
        broken = Violation(3, "folding the log twice gives two different states")
        return Verdict(root, first.events, first.status, first.fingerprint, (broken,))
    return first


def replay(store: Store, root: str) -> Verdict:
    """Fold the stored log once; only what does not follow from the log is a violation."""
    count = 0
    state: State | None = None
    try:
        for _, event in _events(store, root):
            count += 1
            state = create_state(event) if state is None else evolve(state, event)
    except BugError as error:
        broken = Violation(10, f"event {count} does not follow from the log: {error.message}")
        return Verdict(root, count, "", "", (broken,))
    if state is None:
        return Verdict(root, count, "", "", (Violation(1, "the log is empty"),))
    return Verdict(root, count, run_status(state, state.root), fingerprint(state), ())


def _audit(store: Store, root: str) -> Verdict:
    auditor = Auditor()
    state: State | None = None
    violations: list[Violation] = []
    count = 0
    try:
        for envelope, event in _events(store, root):
            count += 1
            state = create_state(event) if state is None else evolve(state, event)
            violations += auditor.observe(envelope, event, state)
            violations += _missing_blobs(store, event)
            if len(violations) >= MAX_VIOLATIONS:
                break
    except BugError as error:
        violations.append(Violation(10, f"event {count} does not follow from the log: {error.message}"))
    if state is None:
        return Verdict(root, count, "", "", (*violations, Violation(1, "the log is empty")))
    if state.root.status in RUN_TERMINAL and not violations:
        violations += auditor.close(state)
    return Verdict(root, count, run_status(state, state.root), fingerprint(state), tuple(violations))


def _missing_blobs(store: Store, event: Event) -> Iterator[Violation]:
    for name in ("output", "inputs", "items", "frozen"):
        blob = getattr(event.data, name, None)
        if isinstance(blob, str) and store.has_blob(blob):
            if blake2b(store.blob(blob), digest_size=16).hexdigest() != blob:
                yield Violation(2, f"the {name} {blob} does not hold what it was stored with")
        elif isinstance(blob, str):
            yield Violation(2, f"the {name} {blob} of {getattr(event.data, 'step', '')} is gone")


def _events(store: Store, root: str) -> Iterator[tuple[Envelope, Event]]:
    for envelope in store.tree(root):
        yield envelope, event_of(envelope)


def _fold(events: Iterable[Event]) -> State | None:
    state: State | None = None
    try:
        for event in events:
            state = create_state(event) if state is None else evolve(state, event)
    except BugError:
        return None
    return state
