"""A store whose process dies at a commit: what kill tests put in place of the real one."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fanfold.engine.config import fanfold_home
from fanfold.store.address import SqliteAddress
from fanfold.store.protocol import Batch, Store
from fanfold.store.sqlite import SqliteStore
from fanfold.workspace.seal import chain_key, claim


class OpenedAddress(SqliteAddress, frozen=True, kw_only=True):
    """The address of a store that is open already."""

    store: Any

    def open(self) -> Store:
        opened: Store = self.store
        return opened


def claimed(project: Path) -> Path:
    """Where a store of a project goes, once the project is ours."""
    claim(project, fanfold_home(os.environ))
    return project / ".fanfold"


def opened(store: SqliteStore) -> OpenedAddress:
    """Have a project use a store that a test made."""
    return OpenedAddress(folder=store.path, store=store)


class KeyedStore(SqliteStore):
    """A store with the key that the product gives it, so that `verify` vouches for what it writes."""

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(path, key=chain_key(fanfold_home(os.environ)), **options)


class DyingStore(KeyedStore):
    """Counts commits and kills its own process at one of them."""

    kill_at = 0
    when = "after"
    counted = 0

    def write(self, batches: Sequence[Batch]) -> None:
        self.counted += 1
        if self.counted != self.kill_at:
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
