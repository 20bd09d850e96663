"""The rows of runs, from which lists are made without folding a log: which of them a commit has to write.

Rules
* A row is written with the commit that changes the status of its run.
* What runs spend changes with nearly every event, and a row is a page more to write. So that is written with
  the first commit in each quarter of a second: a list is behind by what happened within one, at most.
* Which commit writes which row follows from the log alone, whoever wrote it: `verify` holds rows against it,
  and lets spending be behind while a run is not over, since other code may have written it less often.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

from fanfold.kernel.events import NOTHING_SPENT, Envelope, Usage
from fanfold.kernel.lifecycle import RUN_TERMINAL
from fanfold.kernel.nodes import Run
from fanfold.store.protocol import RunHead

SPENDING_EVERY_MS = 250
Spent: TypeAlias = tuple[Usage, int]
"""Usage and agents."""
_NOTHING: Spent = (NOTHING_SPENT, 0)


class RunRows:
    """`make` gives the row of a run as it is now; `status` and `spent` what they say, of the run itself."""

    def __init__(
        self, make: Callable[[Run], RunHead], status: Callable[[Run], str], spent: Callable[[Run], Spent]
    ) -> None:
        self._make = make
        self._status = status
        self._spent = spent
        self._written: dict[str, tuple[str, Spent]] = {}
        self._itself: dict[str, Spent] = {}
        """What each run itself had spent when rows were last written for that."""
        self._open: set[str] = set()
        """Runs that may have spent since rows were last written for that."""
        self._at = 0

    def take_over(self, found: Collection[RunHead], at: int) -> None:
        """Go on from the rows as they are in the store, after an event of that time."""
        self._note(found)
        self._at = at

    def changed(self, runs: Mapping[str, Run], root: Run, written: Sequence[Envelope]) -> list[RunHead]:
        """The rows to write with these events, which are folded; most change none."""
        rows: dict[str, RunHead] = {}
        moved = self._is_new(root)  # and all below with it
        if moved or len(runs) > 1:
            below = runs if moved else (envelope.run_id for envelope in written)
            names = [name for name in dict.fromkeys((root.id, *below)) if self._is_new(runs[name])]
            rows = {name: self._make(runs[name]) for name in names}
            self._note(rows.values())
        if written:
            at, before = written[-1].at, self._at
            self._at = at
            if at // SPENDING_EVERY_MS != before // SPENDING_EVERY_MS:
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
        ]:  # a row may be of no run: `verify` tells
            spent = self._spent(run)
            if self._itself.get(run.id, _NOTHING) != spent:
                self._itself[run.id] = spent
                spenders |= {one.id: one for one in _upward(run)}
        rows = {name: self._make(run) for name, run in spenders.items()}
        return {name: row for name, row in rows.items() if self._written.get(name) != _said(row)}


def _said(row: RunHead) -> tuple[str, Spent]:
    return row.status, (row.usage, row.agents)


def _upward(run: Run | None) -> Iterator[Run]:
    """A run and those above it, of whose spending its own is a part."""
    while run is not None:
        yield run
        run = run.parent
