"""Where a project's SQLite store is: whether there is one, and the ways to open it.

The database itself is imported when it is needed: most commands only ask whether anything has run here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from msgspec import Struct

from fanfold.errors import NotFoundError
from fanfold.store.database.folder import DATABASE, is_bare, is_protected
from fanfold.store.protocol import LEASE_S, Clean, Health, Store, StoreFault, as_it_is

WITHOUT_TABLES = "store.read_only"


class SqliteAddress(Struct, frozen=True, kw_only=True):
    """`folder` is the project's `.fanfold` folder; see `StoreAddress`."""

    folder: Path
    durability: Literal["full", "normal"] = "full"
    clean: Clean = as_it_is
    expiry_s: float = LEASE_S
    """How long a lease lives that nobody renews."""

    def exists(self) -> bool:
        """Whether anything was ever stored there, or may have been."""
        return (self.folder / DATABASE).exists() and not is_bare(self.folder)

    def open(self) -> Store:
        """The store, made when it is missing."""
        from fanfold.store.sqlite import SqliteStore

        return SqliteStore(self.folder, durability=self.durability, clean=self.clean, expiry_s=self.expiry_s)

    def open_to_read(self) -> Store:
        """The store as it is, for looking only."""
        if not self.exists():
            raise self._nothing_there()
        from fanfold.store.sqlite import SqliteStore

        try:
            return SqliteStore(self.folder, clean=self.clean, read_only=True)
        except StoreFault as fault:
            # Somebody is making its tables just now, or died on the way.
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
        """Look for damage; None when there is no store."""
        from fanfold.store.database.folder import examine

        return examine(self.folder) if self.exists() else None

    def engine(self) -> str:
        """What keeps the data, with its version."""
        from fanfold.store.database.folder import engine

        return engine()
