"""The location of a project's SQLite store, and how to open it.

The database module is imported on first use: most commands only check whether the project has a store.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from msgspec import Struct

from fanfold.errors import NotFoundError
from fanfold.store.database import DATABASE, is_bare, is_protected
from fanfold.store.protocol import LEASE_S, Clean, Health, Store, StoreFault, as_it_is

WITHOUT_TABLES = "store.read_only"


class SqliteAddress(Struct, frozen=True, kw_only=True):
    """The location of a SQLite store (see `StoreAddress`); `folder` is the project's `.fanfold` folder."""

    folder: Path
    durability: Literal["full", "normal"] = "full"
    clean: Clean = as_it_is
    expiry_s: float = LEASE_S
    """Seconds until a lease expires if its owner does not renew it."""
    read_key: Callable[[], tuple[bytes, bool]] = lambda: (b"", True)
    """Return the key of the project's user, and whether a database without this key may get it. Called when
    the store is opened, because the user's first state is created together with their secret."""

    def exists(self) -> bool:
        """Return whether the store contains data, or may contain data."""
        return (self.folder / DATABASE).exists() and not is_bare(self.folder)

    def open(self) -> Store:
        """Open the store; create it if it is missing."""
        from fanfold.store.sqlite import SqliteStore

        key, adopts = self.read_key()
        return SqliteStore(
            self.folder,
            durability=self.durability,
            clean=self.clean,
            expiry_s=self.expiry_s,
            key=key,
            adopts=adopts,
        )

    def open_to_read(self) -> Store:
        """Open the existing store read-only. Raises `NotFoundError` if there is none."""
        if not self.exists():
            raise self._nothing_there()
        from fanfold.store.sqlite import SqliteStore

        key, adopts = self.read_key()
        try:
            return SqliteStore(self.folder, clean=self.clean, read_only=True, key=key, adopts=adopts)
        except StoreFault as fault:
            # Another process is creating the tables now, or died while it created them.
            if fault.code == WITHOUT_TABLES and not is_protected(self.folder):
                raise self._nothing_there() from None
            raise

    def _nothing_there(self) -> NotFoundError:
        return NotFoundError(
            "run.not_found",
            f"nothing has run in {self.folder.parent.resolve()} yet",
            hint="fanfold list shows what can be run; --project DIR names another folder",
        )

    def examine(self) -> Health | None:
        """Check the store for damage; None if there is no store."""
        from fanfold.store.database import examine

        return examine(self.folder) if self.exists() else None

    def engine(self) -> str:
        """Return the name and the version of the database engine."""
        from fanfold.store.database import engine

        return engine()
