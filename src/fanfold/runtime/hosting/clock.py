"""The time of a run in the hands of one owner: it begins with the wall clock and goes on by itself.

Timers, time-outs and limits compare moments of one run. A wall clock that is set back would stop them, one
that is set forward would fire them all; so it is asked once, when an owner begins. From there time is what
has passed, sleep of the machine included. An owner never begins before what is in the log already.
"""

from __future__ import annotations

import time

_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def wall_clock_ms() -> int:
    """Milliseconds since the epoch, as this machine believes at this moment."""
    return int(time.time() * 1_000)


class OwnerClock:
    """`not_before` is when the log ends."""

    def __init__(self, not_before: int = 0) -> None:
        self._began_at = max(wall_clock_ms(), not_before)
        self._began = time.clock_gettime_ns(_ELAPSED)

    def now_ms(self) -> int:
        return self._began_at + (time.clock_gettime_ns(_ELAPSED) - self._began) // 1_000_000
