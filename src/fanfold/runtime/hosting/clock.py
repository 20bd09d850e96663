"""The time of a run in the hands of one owner: it begins with the wall clock and goes on by itself.

Timers, time-outs and limits compare moments of one run. A wall clock that is set back would stop them, one
that is set forward would fire them all; so it is asked once, when an owner begins. From there time is what
has passed, sleep of the machine included. An owner never begins before what is in the log already, nor before
the last moment at which the one before it was known to live.
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


class PastOwner:
    """The owner whose events were read last: from when it wrote, in its own time.

    How long it lived is what its lease knows, by a clock that nobody sets; the wall clock may have been set
    since. What passed between taking the lease and its first event is the error of this, well below a second.
    """

    def __init__(self) -> None:
        self._epoch, self._since = 0, 0

    def wrote(self, epoch: int, at: int) -> None:
        if epoch != self._epoch:
            self._epoch, self._since = epoch, at

    def alive_at(self, next_epoch: int, lived_ms: int | None) -> int:
        """Until when it is known to have lived, when the lease of the next one says for how long; else 0.

        >>> past = PastOwner()
        >>> past.wrote(1, 5_000)
        >>> past.alive_at(2, 300), past.alive_at(2, None), past.alive_at(3, 300)  # the second wrote nothing
        (5300, 0, 0)
        """
        return self._since + lived_ms if lived_ms is not None and self._epoch == next_epoch - 1 else 0
