"""Ctrl-C in a chat: it stops what runs right now, and never the session."""

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
