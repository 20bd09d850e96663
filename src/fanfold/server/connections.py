"""Connections, bounded: who connects and says nothing, or says it very slowly, keeps nobody else out.

Anybody on the machine can connect, token or not. So the head of a request has to arrive within `HEAD_S`, and
where `MAX_CONNECTIONS` are open, the one that has been silent longest makes room. Only one that is being
answered does not: somebody could take all the room with requests that were refused already.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 12.0
"""Longer than browsers keep a connection open that they made beforehand."""
MAX_CONNECTIONS = 600
"""More than streams may be open, and fewer than the files a process may usually have open."""


class BoundedConnection(H11Protocol):
    """One connection of uvicorn's, with a deadline while the head of a request is awaited."""

    _deadline: asyncio.TimerHandle | None = None
    _heard_at = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._heard_at = self.loop.time()
        self._await_head()
        if len(self.connections) > MAX_CONNECTIONS:
            bounded = [one for one in self.connections if isinstance(one, BoundedConnection)]
            min(bounded, key=BoundedConnection.silent_since).transport.abort()

    def data_received(self, data: bytes) -> None:
        self._heard_at = self.loop.time()
        if self._deadline is None and self.conn.their_state is h11.IDLE:
            self._await_head()
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._deadline = self.loop.call_later(HEAD_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def silent_since(self) -> float:
        """When it was last heard of; one that is being answered is not silent."""
        answered = getattr(
            self.cycle, "response_complete", True
        )  # there is no cycle before the first request
        return self._heard_at if answered else float("inf")
