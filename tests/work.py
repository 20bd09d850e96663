"""How much work something is, told so that it is the same on an idle machine and on a busy one.

Seconds, on the clock or of a processor, are judged by `make bench` (`bench/bounds.py`) and never by a test:
here calls are counted, or what would never answer is given up.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, ParamSpec

P = ParamSpec("P")

PATIENCE_S = int(os.environ.get("TEST_PATIENCE_S") or 300)
"""What ends in seconds takes minutes on the slowest machine; what takes longer than this hangs."""


def long_enough_ms(quiet_ms: int) -> int:
    """How long an agent takes that a test looks at while it works, and that ends by itself afterwards.

    `quiet_ms` is enough where all takes up to three times as long as on a quiet machine.
    """
    from tests.tiers import Machine  # it watches all that its process starts: for tests alone

    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    return int(quiet_ms * max(1.0, busy / 3, Machine.measure().wall / 3))


class Hangs(BaseException):
    """Not an `Exception`: what is tried must not catch it."""


@contextmanager
def patience(seconds: int = PATIENCE_S) -> Iterator[None]:
    """Give up on what does not come to an end."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise Hangs(f"no end after {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def count_calls(work: Callable[P, object], *given: P.args, **named: P.kwargs) -> int:
    """How many functions, ours and those of Python, are called: the same number every time."""
    count = 0

    def called(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        if event in ("call", "c_call"):
            count += 1

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        work(*given, **named)
    finally:
        sys.setprofile(before)
    return count
