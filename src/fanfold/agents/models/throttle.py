"""What one provider is asked at once, and how soon again.

Rules
* When a provider says "too fast", everybody waits until the moment it named, not only who was told. Then
  fewer go at once (half as many), and one more again for every full round of successes.
* What cannot get better by trying again (no quota, a refused key) opens the circuit: for a while every
  request fails at once with the same words, without asking. Then one may try.
* Waiting is in order, and a request that is cancelled while it waits leaves no hole.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fanfold.agents.backend import SessionFailed
from fanfold.kernel.events import Failure

OPEN_S = 60.0
"""How long an open circuit refuses before one request may try again."""


class Throttle:
    """Lets requests to one provider through, so many at once and not before its time."""

    def __init__(
        self, most: int = 256, *, open_s: float = OPEN_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._allowed = most
        self._in_flight = 0
        self._successes = 0
        self._not_before = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._failure: Failure | None = None
        self._refuse_until = 0.0
        self._open_s = open_s
        self._clock = clock

    @property
    def allowed(self) -> int:
        """How many requests may be under way at once by what the provider said so far."""
        return self._allowed

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Hold a place for one request."""
        await self._enter()
        try:
            yield
        finally:
            self._in_flight -= 1
            self._wake()

    def slow_down(self, wait_s: float) -> None:
        """The provider said that it is asked too fast."""
        self._not_before = max(self._not_before, self._clock() + wait_s)
        self._allowed = max(1, min(self._allowed, self._in_flight or 1) // 2)
        self._successes = 0

    def succeeded(self) -> None:
        """A request got its answer."""
        self._failure = None
        self._successes += 1
        if self._successes >= self._allowed and self._allowed < self._most:
            self._allowed += 1
            self._successes = 0
            self._wake()

    def open_circuit(self, failure: Failure) -> None:
        """The provider refused in a way that trying again does not change."""
        self._failure = failure
        self._refuse_until = self._clock() + self._open_s

    async def _enter(self) -> None:
        while True:
            self._check_circuit()
            wait_s = self._not_before - self._clock()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            elif self._in_flight < self._allowed:
                self._in_flight += 1
                return
            else:
                await self._wait()

    async def _wait(self) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._wake()  # our turn had come: the next one takes it
            elif place in self._waiting:  # whoever left may have passed it over already
                self._waiting.remove(place)
            raise

    def _wake(self) -> None:
        free = self._allowed - self._in_flight
        while free > 0 and self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                free -= 1

    def _check_circuit(self) -> None:
        if self._failure is None:
            return
        if self._clock() >= self._refuse_until:
            self._refuse_until = self._clock() + self._open_s  # this one tries; the others go on failing
            return
        raise SessionFailed(self._failure)
