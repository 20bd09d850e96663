"""The write stream of the owner of a run tree: decisions of its host and entries of its sessions.

Rules
* Every commit also writes all pending entries and values, no matter which caller commits. So an entry that no
  caller waits for needs no commit of its own. It is never written later than the events it caused.
* A caller that needs a durable entry awaits `flush`. A session that is alone commits at once, in its own turn
  of the event loop. Several sessions that flush in the same turn share one commit. From `CROWD` sessions on,
  all flushes within two milliseconds share one commit. This delay is negligible next to a model's reply.
* A remote store is written without blocking the event loop: one commit is on its way at a time, and what
  arrives meanwhile is written by the next one. The host that drives the tree sends and awaits each of them.
* A failed write fails for every caller whose entries were in it. The sequence numbers assigned since then are
  wrong, so the journal can no longer be used. The owner of the tree must stop, and the log is authoritative.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from msgspec.structs import replace

from fanfold.kernel.events import Envelope
from fanfold.store.protocol import Batch, Blobs, Claim, Lease, Store

CROWD = 8
GATHER_S = 0.002


class Journal:
    """Writes to one run tree under its owner's lease; without a lease, no other process may use the tree."""

    def __init__(self, store: Store, root: str, lease: Lease | None = None) -> None:
        self.store = store
        self.root = root
        self.epoch = 0 if lease is None else lease.epoch
        self._lease = lease
        self.lived_ms = None if lease is None else lease.lived_ms
        self.sessions = 0
        """The number of sessions that currently write here."""
        self.blobs = Blobs(store)
        """Values that the next commit writes, unless they are already stored."""
        self.links: dict[str, bytes] = {}
        """The last link of the chain of each session that wrote here since its last event."""
        self._held: list[Envelope] = []
        self._data: list[bytes | None] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._gathering: asyncio.Handle | None = None
        """The scheduled commit for all waiting callers."""
        self.commit_tree: Callable[[], None] | None = None
        """Commits the pending writes of the tree together with the pending entries. Set by the host that
        drives the tree."""
        self.commit_remotely: Callable[[], Awaitable[None]] | None = None
        """Does the same with a remote store. Set by the host that drives the tree."""
        self.turn = asyncio.Lock()
        """Held while a commit is on its way to a remote store."""
        self._sent: Awaitable[None] | None = None

    def confirm(self) -> None:
        """Raise `LeaseLost` if this process does not own the tree; called before every effect."""
        if self._lease is not None:
            self.store.confirm(self._lease)

    def claim(self, claim: Claim) -> Claim | None:
        """Claim files for a step, or queue the claim and return the claim that blocks it."""
        return None if self._lease is None else self.store.claim(self._lease, claim)

    def hold(self, envelope: Envelope, data: bytes | None = None) -> None:
        """Add an entry to the next commit; see `Batch.data`."""
        self._held.append(envelope)
        self._data.append(data)

    def write(self, batch: Batch | None = None) -> None:
        """Commit all pending entries together with `batch`. Raises `LeaseLost` or `StoreFault`."""
        held, self._held = self._held, []
        data, self._data = self._data, []
        waiting, self._waiting = self._waiting, []
        if self._gathering is not None:
            self._gathering.cancel()  # this commit includes the entries of all waiting callers
            self._gathering = None
        blobs = self.blobs.take_fresh()
        if batch is None:
            batch = Batch(root=self.root, epoch=self.epoch, envelopes=held, data=data, blobs=blobs)
        elif held or blobs:
            batch = replace(
                batch,
                envelopes=[*held, *batch.envelopes],
                data=[*data, *(batch.data or [None] * len(batch.envelopes))],
                blobs=[*blobs, *batch.blobs],
            )
        if self.commit_remotely is not None:
            self._sent = self.store.submit([batch])
            return
        try:
            self.store.write([batch])
        except BaseException as error:
            for turn in waiting:
                if not turn.done():
                    turn.set_exception(error)
            raise
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)

    async def flush(self) -> None:
        """Return when all entries that are pending now are durable."""
        if not self._held:
            return
        if self.commit_remotely is not None:
            # In a task of its own: the commit, and what follows from it, outlives a caller that is cancelled.
            sending = asyncio.ensure_future(self.commit_remotely())
            # Marks its error as seen: the host raises it if no caller is left.
            sending.add_done_callback(lambda sent: None if sent.cancelled() else sent.exception())
            await asyncio.shield(sending)
            return
        if self.sessions <= 1:
            self._commit()
            return
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        if not self._waiting:
            if self.sessions < CROWD:  # after all tasks that are ready in this turn
                self._gathering = loop.call_soon(self._write_for_all)
            else:
                self._gathering = loop.call_later(GATHER_S, self._write_for_all)
        self._waiting.append(turn)
        await turn

    async def arrive(self) -> None:
        """Send all pending entries, and return when everything that was sent is durable."""
        if self._held:
            sent, self._sent = self._sent, None
            if sent is not None:
                await sent
            self.write()
        sent, self._sent = self._sent, None
        if sent is not None:
            await sent

    def _write_for_all(self) -> None:
        with suppress(Exception):  # waiting callers get the exception through their future
            self._commit()

    def _commit(self) -> None:
        if self.commit_tree is not None:
            self.commit_tree()
        if self._held:
            self.write()
