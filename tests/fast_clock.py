"""A clock that skips idle time: what waits for minutes or hours is tested in moments, over real sockets.

    with FastClock() as clock:
        clock.run(work())          # asyncio.run, in a loop whose clock jumps to its next timer

Every clock of this process (`time.time`, `time.monotonic`, the loop's own) is ahead by the
time that was skipped. The loop skips only when nothing has happened for `QUIET_S` of real time.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, Self, TypeVar
from unittest import mock

QUIET_S = 0.02
T = TypeVar("T")
_monotonic, _time, _gettime_ns = time.monotonic, time.time, time.clock_gettime_ns


class FastClock:
    """All clocks of this process, ahead of the machine's by `skipped_s`."""

    def __init__(self, began_at: float | None = None) -> None:
        self.skipped_s = 0.0
        self._offset = 0.0 if began_at is None else began_at - _time()
        """Of the wall clock alone: it begins where the test says."""
        self._patches: list[Any] = [
            mock.patch.object(time, "time", self.time),
            mock.patch.object(time, "monotonic", self.monotonic),
            mock.patch.object(time, "clock_gettime_ns", self._gettime_ns),
        ]

    def __enter__(self) -> Self:
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        for patch in self._patches:
            patch.stop()

    def time(self) -> float:
        return _time() + self._offset + self.skipped_s

    def monotonic(self) -> float:
        return _monotonic() + self.skipped_s

    def _gettime_ns(self, clock: int) -> int:
        return _gettime_ns(clock) + int(self.skipped_s * 1e9)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        with asyncio.Runner(loop_factory=lambda: _SkippingLoop(self)) as runner:
            return runner.run(work)


class _SkippingLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: FastClock) -> None:
        super().__init__(_SkippingSelector(clock))
        self._clock = clock

    def time(self) -> float:
        return self._clock.monotonic()


class _SkippingSelector(selectors.DefaultSelector):
    """Waits a moment for something real; if there is nothing, the time that was to be waited has passed."""

    def __init__(self, clock: FastClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= QUIET_S:
            return super().select(timeout)
        found = super().select(QUIET_S)
        if not found:
            self._clock.skipped_s += timeout - QUIET_S
        return found
