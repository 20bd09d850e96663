"""One container of a take-over test: drives whatever run of the project is free, until none is left.

    python -m tests.kill.container PROJECT JOURNAL

The journal gets a line for each lease taken and each effect begun: when by the boot clock, which of both,
under which epoch, and the run.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextvars import ContextVar
from pathlib import Path

import fanfold
from fanfold.api.ownership import own
from fanfold.kernel.state import RUN_TERMINAL
from fanfold.process_identity import ProcessIdentity
from fanfold.store.leases import boot_clock_ms
from fanfold.store.protocol import Lease, LeaseHeld, LeaseLost
from fanfold.wiring import wire
from tests.dying_store import KeyedStore, opened

EXPIRY_S = 0.6
EFFECT_S = 0.05

held: ContextVar[Lease] = ContextVar("held")
"""The lease under which an effect was begun, however long ago; it goes with the task into the thread."""


class Journal:
    """Lines of all containers, each written whole."""

    def __init__(self, file: str) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, at: int, what: str, lease: Lease) -> None:
        os.write(self._file, f"{at} {what} {lease.epoch} {lease.root}\n".encode())


class WatchedStore(KeyedStore):
    """Notes when each lease was taken, by the clock that the lease itself was written with."""

    journal: Journal

    def acquire(self, root: str, owner: ProcessIdentity | None = None) -> Lease:
        lease = super().acquire(root, owner)
        rows = self._connections.reader().execute("SELECT heartbeat_at FROM leases WHERE root = ?", (root,))
        self.journal.note(rows.get, "took", lease)
        held.set(lease)
        return lease


async def main(folder: Path, journal: Journal) -> None:
    @fanfold.function
    def effect() -> None:
        at = boot_clock_ms()
        journal.note(at, "began", held.get())
        time.sleep(EFFECT_S)

    store = WatchedStore(folder / ".fanfold", durability="normal", expiry_s=EXPIRY_S)
    store.journal = journal
    project = wire(folder, store=opened(store))
    while free := [head for head in store.heads() if head.status not in RUN_TERMINAL]:
        root = free[-1].run_id
        with store.follow(root) as changed:
            try:
                owned = own(project, root)
            except LeaseHeld:
                await changed.wait(0.05)
                continue
        try:
            await owned.host().resume()
        except LeaseLost:
            continue
        owned.done()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Journal(sys.argv[2])))
