"""A store whose process dies at a commit: what kill tests put in place of the real one."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from fanfold.store.protocol import Batch
from fanfold.store.sqlite import SqliteStore


class DyingStore(SqliteStore):
    """Counts commits and kills its own process at one of them."""

    kill_at = 0
    when = "after"
    commits = 0

    def write(self, batches: Sequence[Batch]) -> None:
        self.commits += 1
        if self.commits != self.kill_at:
            super().write(batches)
            return
        if self.when == "after":
            super().write(batches)
        else:
            # Rows of a transaction that never commits: the next owner must not see them.
            self._db.execute("BEGIN IMMEDIATE")
            for batch in batches:
                self._write_batch(self._db, batch)
        os.kill(os.getpid(), signal.SIGKILL)
