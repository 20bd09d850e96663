"""Signals in a chat: Ctrl-C stops what runs right now, and never the session; SIGTERM, and the SIGHUP of a
terminal that was closed, leave it as its own end does, so that somebody can go on with it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import TypeAlias

from fanfold.cli.terminal.output import tell

Stop: TypeAlias = Callable[[], Coroutine[None, None, None]]


class Interrupts:
    """While something runs, Ctrl-C stops it and nothing else. Without `stop` it ends in a moment anyway."""

    def __init__(self, stop: Stop | None, what: str = "the turn") -> None:
        self._stop = stop
        self._what = what
        self._stopping: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._interrupted)

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)

    def _interrupted(self) -> None:
        if self._stop is not None and self._stopping is None:
            tell(f"\nstopping {self._what}\n")
            self._stopping = asyncio.create_task(self._stop())


async def left_by_signals(work: Coroutine[None, None, int]) -> int:
    """Do the work of a chat; it ends with a `CancelledError` when a signal has it leave."""
    listen_for_leaving()
    return await work


def listen_for_leaving() -> None:
    """Have signals end the task that calls this, once; also when another listened to them meanwhile."""
    here, told = asyncio.current_task(), False
    assert here is not None

    def leave() -> None:
        nonlocal told
        if not told:
            told = True
            here.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            asyncio.get_running_loop().add_signal_handler(number, leave)
