"""Run many schedules and say which seed, if any, broke an invariant.

    python -m fanfold.testing.simulate --seed 1 --count 20000 [--jobs N] [--verbose]

One schedule per seed. A violation prints the invariant, the end of the log and the command that repeats
exactly this schedule; the exit status is then 1. The summary counts which constructs, faults and
transitions really occurred, because a simulation that never met a fault proves nothing about it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing import Pool

from msgspec import Struct, field

from fanfold.kernel.lifecycle import RUN_TRANSITIONS, STEP_TRANSITIONS
from fanfold.testing.coverage import CONSTRUCTS, SITUATIONS
from fanfold.testing.faults import FAULTS
from fanfold.testing.schedule import SimulatedOutcome, run_schedule

CHUNK = 50


class Tally(Struct):
    """What a number of schedules came to."""

    schedules: int = 0
    events: int = 0
    crashes: int = 0
    reached: Counter[str] = field(default_factory=Counter)
    broken: list[SimulatedOutcome] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.schedules += other.schedules
        self.events += other.events
        self.crashes += other.crashes
        self.reached.update(other.reached)
        self.broken += other.broken

    def missing(self) -> list[str]:
        """Constructs, faults and rows of the transition tables that never occurred."""
        rows = (f"{status} + {word}" for status, word in STEP_TRANSITIONS)
        run_rows = (f"run {status} + {word}" for status, word in RUN_TRANSITIONS)
        wanted = (*CONSTRUCTS, *SITUATIONS, *FAULTS, *rows, *run_rows)
        return [name for name in wanted if not self.reached[name]]


def run_schedules(seeds: Iterable[int]) -> Tally:
    """One schedule after the other; stops at the first that breaks an invariant."""
    tally = Tally()
    for seed in seeds:
        outcome = run_schedule(seed)
        tally.schedules += 1
        tally.events += outcome.events
        tally.crashes += outcome.crashes
        tally.reached.update(outcome.reached)
        if outcome.violation is not None:
            tally.broken.append(outcome)
            break
    return tally


def _chunks(seed: int, count: int) -> Iterator[range]:
    for start in range(seed, seed + count, CHUNK):
        yield range(start, min(start + CHUNK, seed + count))


def simulate(seed: int, count: int, jobs: int, *, say: bool = False) -> Tally:
    """Run `count` schedules on `jobs` processes."""
    total, began, spoke = Tally(), time.monotonic(), time.monotonic()
    pool = Pool(jobs) if jobs > 1 and count > CHUNK else None
    chunks = _chunks(seed, count)
    try:
        for tally in pool.imap_unordered(run_schedules, chunks) if pool else map(run_schedules, chunks):
            total.add(tally)
            if total.broken:
                break
            if say and time.monotonic() - spoke > 2:
                spoke = time.monotonic()
                rate = total.schedules / (spoke - began)
                print(f"{total.schedules}/{count} schedules, {rate:.0f}/s", file=sys.stderr, flush=True)
    finally:
        if pool is not None:
            pool.terminate()
            pool.join()
    return total


def _report_broken(outcome: SimulatedOutcome) -> None:
    assert outcome.violation is not None
    number, message = outcome.violation.number, outcome.violation.message
    print(f"seed {outcome.seed}: " + (f"invariant {number}: {message}" if number else message))
    print("the log ends with")
    for line in outcome.tail:
        print("  " + (line if len(line) <= 600 else line[:600] + "…"))
    print("to repeat:")
    print(f"  python -m fanfold.testing.simulate --seed {outcome.seed} --count 1")


def _summarize(tally: Tally, seconds: float, verbose: bool) -> None:
    rate = tally.schedules / seconds if seconds else 0.0
    print(
        f"{tally.schedules} schedules, {tally.events} events, {tally.crashes} crashes in {seconds:.1f} s"
        f" ({rate:.0f} schedules/s)"
    )
    if verbose:
        for name, count in sorted(tally.reached.items()):
            print(f"  {count:>9}  {name}")
    missing = tally.missing()
    print(
        "never reached: " + ", ".join(missing) if missing else "reached every construct, fault and transition"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fanfold.testing.simulate", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--count", type=int, default=1_000, help="schedules to run, one per seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--verbose", action="store_true", help="count everything that occurred")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    tally = simulate(options.seed, options.count, options.jobs, say=True)
    for outcome in tally.broken:
        _report_broken(outcome)
    if options.count == 1 and options.verbose:
        print("\n".join(line for line in replay_lines(options.seed)))
    _summarize(tally, time.monotonic() - began, options.verbose)
    return 1 if tally.broken else 0


def replay_lines(seed: int) -> list[str]:
    """The whole log of one schedule, for reading."""
    return run_schedule(seed, tail=1_000_000).tail


if __name__ == "__main__":
    sys.exit(main())
