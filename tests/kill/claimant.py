"""One process of the test of claims: drives runs of the project that are free, until none is left.

    python -m tests.kill.claimant PROJECT FILE

The steps of all runs add a line each to FILE: they read it, take their time, and put it back with the line.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import fanfold
from fanfold.api.ownership import own
from fanfold.kernel.state import RUN_TERMINAL
from fanfold.store.protocol import LeaseHeld, LeaseLost
from fanfold.wiring import wire
from tests.dying_store import KeyedStore, opened

EXPIRY_S = 0.6
EFFECT_S = 0.03


async def main(folder: Path, file: Path) -> None:
    @fanfold.function
    def add(name: str) -> None:
        text = file.read_text()
        time.sleep(EFFECT_S)
        whole = folder.parent / f"{os.getpid()}-{name}"  # a kill must not leave half a file
        whole.write_text(f"{text}{name}\n")
        os.replace(whole, file)

    store = KeyedStore(folder / ".fanfold", durability="normal", expiry_s=EXPIRY_S)
    project = wire(folder, store=opened(store))
    while free := [head.run_id for head in store.heads() if head.status not in RUN_TERMINAL]:
        with store.follow(free[0]) as changed:
            owned = None
            for root in free:
                try:
                    owned = own(project, root)
                    break
                except LeaseHeld:
                    continue
            if owned is None:
                await changed.wait(0.05)
                continue
        try:
            await owned.host().resume()
        except LeaseLost:
            continue
        owned.done()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
