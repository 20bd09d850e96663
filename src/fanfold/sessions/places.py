"""A limited number of places, given out in the order they were asked for.

Waiting costs a future and nothing else. A place that becomes free goes straight to the one who waited
longest, so nobody who comes later can take it in between.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Places:
    """At most `count` holders at once."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """How many stand in the queue."""
        return sum(not future.done() for future in self._queue)

    def take_free(self) -> bool:
        """Take a place if there is one: nobody waits while there is."""
        if self._free <= 0:
            return False
        self._free -= 1
        return True

    async def take(self) -> None:
        """Wait for a place."""
        if self.take_free():
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back()  # it was our turn just as we were called away
            raise

    def give_back(self) -> None:
        """Free a place: the next in the queue gets it."""
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
