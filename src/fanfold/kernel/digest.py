"""The digest of a run: what happened to each step, the same on every store and in every host.

Rules
* A digest depends on the recipe, the inputs and the results of steps. It contains no time, no id, no
  execution, and nothing about owners, interruptions, waits for slots or places of work.
* Runs and steps are named by their path in the tree of runs, values by the hash of their content, failures
  by their class and code.
* With one slot for the whole tree, facts are listed in the order of the log. Otherwise the order of
  concurrent steps is a matter of time, and facts are sorted.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import msgspec
from msgspec import Struct

from fanfold.kernel.events import (
    Event,
    Failure,
    RunCreated,
    RunFinished,
    StepEvent,
    SubagentEvent,
    ValueDecided,
)
from fanfold.kernel.state import ASKED, EVENT_WORDS, TERMINAL, WAITING

_ONCE = frozenset(("started", WAITING, ASKED, "agreed"))
"""Each of these counts once for an attempt: a new execution repeats it."""


class StepFact(Struct, frozen=True, omit_defaults=True, order=True, kw_only=True):
    """One thing that happened to a step, or to a run (`status` starts with `run`)."""

    path: str
    attempt: int = 0
    status: str
    value: str = ""
    """The hash of the output, the decided value, the inputs of a run, or the reason of a skip."""
    error: str = ""
    """The class and the code of the failure."""


class RunDigest(Struct, frozen=True):
    """The hash of what happened in a run tree, and the list that it is made of."""

    digest: str
    in_order: bool
    """Whether the order of the list is the order in which things happened."""
    facts: list[StepFact]


def digest(events: Iterable[Event]) -> RunDigest:
    """Return the digest of the events of a run tree.

    >>> one = Event("r1", 5, StepEvent("a", "completed", 1, 1))
    >>> other = Event("r2", 7, StepEvent("a", "completed", 1, 3))
    >>> digest([one]).digest == digest([other]).digest
    True
    """
    paths: dict[str, str] = {}
    children: dict[str, str] = {}
    seen: set[StepFact] = set()
    facts: list[StepFact] = []
    in_order = False
    for event in events:
        data = event.data
        if isinstance(data, RunCreated):
            paths[event.run] = children.get(event.run, "")
            in_order = in_order or (data.settings is not None and data.limits().max_concurrency == 1)
        elif isinstance(data, StepEvent) and data.child_run_id:
            children[data.child_run_id] = _join(paths.get(event.run, ""), data.step)
        fact = _fact(event, paths.get(event.run, ""))
        if fact is None or (fact.status in _ONCE and fact in seen):
            continue
        seen.add(fact)
        facts.append(fact)
    if not in_order:
        facts.sort()
    hashed = blake2b(msgspec.json.encode(facts), digest_size=16).hexdigest()
    return RunDigest(hashed, in_order, facts)


def _fact(event: Event, run: str) -> StepFact | None:
    data = event.data
    match data:
        case RunCreated():
            name = data.workflow or (data.plan.name if data.plan is not None else "")
            return StepFact(path=run, status=f"run {name}", value=data.inputs or "")
        case RunFinished():
            return StepFact(
                path=run, status=f"run {data.status}", value=data.output or "", error=_named(data.error)
            )
        case ValueDecided():
            value = msgspec.json.encode((data.value, data.items, data.read_set, data.write_set)).decode()
            path = _join(run, data.step)
            return StepFact(path=path, status=data.what, value=value, error=_named(data.error))
        case StepEvent() | SubagentEvent():
            status = EVENT_WORDS.get(data.status, data.status)
            if data.late or status not in TERMINAL | _ONCE:
                return None
            value = (data.output or data.reason) if status in TERMINAL else ""
            return StepFact(
                path=_join(run, data.step),
                attempt=data.attempt,
                status=status,
                value=value,
                error=_named(data.error) if status in TERMINAL else "",
            )
    return None


def _named(error: Failure | None) -> str:
    return "" if error is None else f"{error.kind} {error.code}"


def _join(run: str, path: str) -> str:
    return f"{run}/{path}" if run else path
