"""The invariants that only a host can check, next to the auditor's.

| number | how it is checked here |
|---|---|
| 2 | the store's acknowledged lines are all there after every crash |
| 3 | reading the lines and folding them gives the fingerprints seen live, and the same one twice |
| 17 | folding the lines decides, at every point, the command whose answer was recorded there |
| 19 | after the faults have stopped, the run ends or names what it waits for in a bounded number of events |

11 is checked by the store, which refuses stale owners, and 14 by `values`.
"""

from __future__ import annotations

from collections.abc import Sequence

from fanfold.kernel.commands import Command
from fanfold.kernel.events import Event
from fanfold.kernel.invariants import Violation, fingerprint
from fanfold.kernel.nodes import State
from fanfold.kernel.state import create_state, evolve
from fanfold.testing.store import Store


class InvariantError(Exception):
    """An invariant does not hold; the schedule ends here."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(f"invariant {number}: {message}")
        self.violation = Violation(number, message)


def check_acknowledged(store: Store) -> None:
    if not store.kept_its_word():
        raise InvariantError(2, "an acknowledged event is gone after a crash")


def check_replay(
    store: Store, answered: Sequence[Command | None], sampled: dict[int, str], final: State
) -> None:
    """Fold the stored lines from scratch and compare with what happened live (3 and 17)."""
    events = [event for _, event in store.read()]
    state = _replay(events, answered, sampled)
    expected = fingerprint(final)
    if fingerprint(state) != expected:
        raise InvariantError(3, "folding the stored log gives another state than the live one")


def _replay(events: Sequence[Event], answered: Sequence[Command | None], sampled: dict[int, str]) -> State:
    state = create_state(events[0])
    for place, event in enumerate(events[1:], start=1):
        command = answered[place]
        if command is not None and (not state.agenda or state.agenda[0] != command):
            due = state.agenda[0] if state.agenda else None
            raise InvariantError(17, f"line {place + 1} answered {command}; folding again decides {due}")
        evolve(state, event)
        wanted = sampled.get(place)
        if wanted is not None and fingerprint(state) != wanted:
            raise InvariantError(3, f"the state after line {place + 1} differs from the live one")
    return state
