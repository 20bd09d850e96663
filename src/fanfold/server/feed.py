"""Hearing of everything that runs of the project record, with one watch for all streams and caches.

`generation` counts what was heard. A document that was made in a generation is what it would be now, as long
as that is still the current one; whoever waits for something new waits for the next.
"""

from __future__ import annotations

import asyncio

from fanfold.store.protocol import Store

PAUSE_S = 0.02
"""Between two wake-ups: a run that commits a thousand times a second is told of fifty times."""


class Feed:
    """Follows every tree of a store while `run` does."""

    def __init__(self, store: Store) -> None:
        self._signal = store.follow()
        self._generation = 0
        self._next = asyncio.Event()
        self.closing = asyncio.Event()
        """Set when the server is about to stop: streams end by themselves."""

    async def run(self) -> None:
        """Wake whoever waits, until cancelled."""
        try:
            while True:
                await self._signal.wait()
                self.bump()
                await asyncio.sleep(PAUSE_S)
        finally:
            self._signal.close()

    def bump(self) -> None:
        """Something happened, or may have."""
        self._generation += 1
        self._next.set()
        self._next = asyncio.Event()

    def generation(self) -> int:
        """The current one; what happened this very moment counts."""
        if self._signal.wait_blocking(0):
            self.bump()
        return self._generation

    def next(self) -> asyncio.Event:
        """Is set when the next generation begins. Take it, look, then wait for it: nothing is missed."""
        return self._next

    def close(self) -> None:
        """Let every stream end."""
        self.closing.set()
        self.bump()
