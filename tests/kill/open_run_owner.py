"""One owner of the open run `hand`, which dies at a chosen commit.

    python -m tests.kill.open_run_owner PROJECT KILL_AT WHEN

As `tests.kill.driver`, for a run that exists and to which others have left requests. Leaves when only people
can go on, and prints how many commits it made.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from fanfold.api.ownership import own
from fanfold.wiring import wire
from tests.dying_store import DyingStore, claimed, opened


async def main(folder: Path, kill_at: int, when: str) -> None:
    store = DyingStore(claimed(folder))
    store.kill_at, store.when = kill_at, when
    owned = own(wire(folder, store=opened(store)), "hand")
    await owned.host().resume()
    owned.done()
    sys.stdout.write(f"{store.counted}\n")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
