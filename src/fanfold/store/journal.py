"""What the owner of a run tree writes: decisions of its host and entries of its sessions, in one stream.

Rules
* Whatever is held, entries and values alike, goes with the next commit, whoever makes it. So an entry that
  nobody waits for costs no commit of its own, and is never later on the disk than what it led to.
* Who has to know that an entry is durable waits in `flush`. A session that is alone commits at once, in its
  own turn of the loop; where several run, those that speak in the same turn share one commit, and in a crowd
  those that speak within two milliseconds, which nobody notices beside an answer of a model.
* A write that failed failed for everybody whose entries were in it. The numbers given out since are wrong
  then, so the journal is of no more use: whoever owns the tree has to stop, and the log is the truth.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from msgspec.structs import replace

from fanfold.kernel.events import Envelope
from fanfold.store.blobs import Blobs
from fanfold.store.protocol import Batch, Claim, Lease, Store

CROWD = 8
GATHER_S = 0.002


class Journal:
    """The writes of one owner to one tree, under its lease; without one, of the only process there is."""

    def __init__(self, store: Store, root: str, lease: Lease | None = None) -> None:
        self.store = store
        self.root = root
        self.epoch = 0 if lease is None else lease.epoch
        self._lease = lease
        self.lived_ms = None if lease is None else lease.lived_ms
        self.sessions = 0
        """How many sessions write here at present."""
        self.blobs = Blobs(store)
        """Values that the next commit writes, if nobody wrote them before."""
        self._held: list[Envelope] = []
        self._data: list[bytes | None] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._gathering: asyncio.Handle | None = None
        """The commit that is to come for those who wait."""

    def confirm(self) -> None:
        """Right before an effect, from any thread: raises `LeaseLost` when this process may not act."""
        if self._lease is not None:
            self.store.confirm(self._lease)

    def claim(self, claim: Claim) -> Claim | None:
        """Claim files for a step, or stand in line and learn what is in the way."""
        return None if self._lease is None else self.store.claim(self._lease, claim)

    def hold(self, envelope: Envelope, data: bytes | None = None) -> None:
        """Have an entry written with the next commit; see `Batch.data`."""
        self._held.append(envelope)
        self._data.append(data)

    def write(self, batch: Batch | None = None) -> None:
        """Commit what is held, and `batch` with it. Raises `LeaseLost` or `StoreFault`."""
        held, self._held = self._held, []
        data, self._data = self._data, []
        waiting, self._waiting = self._waiting, []
        if self._gathering is not None:
            self._gathering.cancel()  # this one comes first, and nobody who comes later waits for that one
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
        """Return when everything that is held now is durable."""
        if not self._held:
            return
        if self.sessions <= 1:
            self.write()
            return
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        if not self._waiting:
            if self.sessions < CROWD:  # behind all who are ready to speak now
                self._gathering = loop.call_soon(self._write_for_all)
            else:
                self._gathering = loop.call_later(GATHER_S, self._write_for_all)
        self._waiting.append(turn)
        await turn

    def _write_for_all(self) -> None:
        with suppress(Exception):  # everybody who waits is told, and who does not finds out
            self.write()
